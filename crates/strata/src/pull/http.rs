//! Requests to the hub and to the servers that it leads to.

use std::io::Read;
use std::time::Duration;

use ureq::http::{HeaderMap, Uri, header};
use ureq::{Agent, Body};

use super::fault::Fault;

/// Places that a server may lead to, one after the other.
const REDIRECTS_MAX: usize = 8;

/// Asks a hub, and shows the token to nobody else.
pub struct Client {
    agent: Agent,
    hub: Uri,
    token: Option<String>,
}

/// An answer whose body has not been read yet.
pub struct Answer {
    /// Its status.
    pub status: u16,
    headers: HeaderMap,
    body: Body,
}

impl Client {
    /// For the hub at `https://HOST`. The token goes over secure connections only, or to this machine itself.
    ///
    /// # Errors
    /// [`Fault::Address`].
    pub fn new(endpoint: &str, token: Option<String>) -> Result<Client, Fault> {
        let wrong = || Fault::Address(endpoint.to_owned());
        let hub: Uri = endpoint.trim_end_matches('/').parse().map_err(|_| wrong())?;
        let host = hub.host().filter(|host| !host.is_empty()).ok_or_else(wrong)?;
        let is_secure = match hub.scheme_str() {
            Some("https") => true,
            Some("http") => ["localhost", "127.0.0.1", "[::1]"].contains(&host),
            _ => return Err(wrong()),
        };
        if token.is_some() && !is_secure {
            tracing::warn!("the connection to {host} is not encrypted, so the access token is not sent");
        }
        let config = Agent::config_builder()
            .http_status_as_error(false)
            // Followed here, where it is known whom the token is for.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("strata/", env!("CARGO_PKG_VERSION")))
            .accept_encoding("identity")
            .timeout_resolve(Some(Duration::from_secs(30)))
            .timeout_connect(Some(Duration::from_secs(30)))
            .timeout_recv_response(Some(Duration::from_secs(120)))
            .timeout_per_read(Some(Duration::from_secs(60)))
            .build();
        Ok(Client { agent: Agent::new_with_config(config), hub, token: token.filter(|_| is_secure) })
    }

    /// The hub's name for sentences.
    pub fn host(&self) -> String {
        host(&self.hub)
    }

    /// An address on the hub; `path` begins with `/` and is encoded.
    pub fn address(&self, path: &str) -> String {
        format!("{}{path}", self.hub.to_string().trim_end_matches('/'))
    }

    /// Asks for an address and follows where it leads. `what` is for sentences.
    ///
    /// # Errors
    /// [`Fault::Connection`] and [`Fault::Redirect`]; an answer of any status is none.
    pub fn get(&self, address: &str, headers: &[(header::HeaderName, String)]) -> Result<Answer, Fault> {
        let mut at: Uri = address.parse().map_err(|_| Fault::Address(address.to_owned()))?;
        for _ in 0..=REDIRECTS_MAX {
            let mut request = self.agent.get(&at);
            for (name, value) in headers {
                request = request.header(name, value);
            }
            if let Some(token) = self.token.as_ref().filter(|_| same_origin(&at, &self.hub)) {
                request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
            }
            let response = request.call().map_err(|error| connection(&at, &error))?;
            let (parts, body) = response.into_parts();
            if !matches!(parts.status.as_u16(), 301 | 302 | 303 | 307 | 308) {
                return Ok(Answer { status: parts.status.as_u16(), headers: parts.headers, body });
            }
            let to = text(&parts.headers, &header::LOCATION).unwrap_or("").to_owned();
            at = led_to(&at, &to).ok_or(Fault::Redirect { host: host(&at), to })?;
            tracing::debug!("led to {}", host(&at));
        }
        Err(Fault::Redirect { host: self.host(), to: at.to_string() })
    }
}

impl Answer {
    /// The answer if it is what was asked for.
    ///
    /// # Errors
    /// The fault that the status stands for.
    pub fn succeeded(self, host: &str, what: &str) -> Result<Answer, Fault> {
        let (host, what) = (host.to_owned(), what.to_owned());
        match self.status {
            200..=299 => Ok(self),
            401 => Err(Fault::Unauthorized { host, what }),
            403 => Err(Fault::Forbidden { host, what }),
            404 | 410 => Err(Fault::NotFound { host, what }),
            status => {
                let retry_after_s = text(&self.headers, &header::RETRY_AFTER).and_then(|s| s.parse().ok());
                Err(Fault::Status { host, what, status, retry_after_s })
            }
        }
    }

    /// A header's text.
    pub fn header(&self, name: &header::HeaderName) -> Option<&str> {
        text(&self.headers, name)
    }

    /// The bytes.
    pub fn into_reader(self) -> impl Read {
        self.body.into_reader()
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &header::HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

fn host(uri: &Uri) -> String {
    uri.authority().map_or(String::new(), |authority| {
        let text = authority.as_str();
        // Whoever puts a password into an address does not want to see it in messages.
        text.rsplit('@').next().unwrap_or(text).to_owned()
    })
}

fn same_origin(a: &Uri, b: &Uri) -> bool {
    a.scheme() == b.scheme() && a.authority() == b.authority()
}

fn connection(at: &Uri, error: &ureq::Error) -> Fault {
    Fault::Connection { host: host(at), cause: error.to_string() }
}

/// Where a `Location` leads from an address; nowhere if it is none, or leads from a secure connection to an open one.
fn led_to(from: &Uri, location: &str) -> Option<Uri> {
    let scheme = from.scheme_str()?;
    let authority = from.authority()?;
    let whole = if location.is_empty() {
        return None;
    } else if location.starts_with("//") {
        format!("{scheme}:{location}")
    } else if location.starts_with('/') {
        format!("{scheme}://{authority}{location}")
    } else if location.contains("://") {
        location.to_owned()
    } else {
        let folder = from.path().rsplit_once('/').map_or("", |(folder, _)| folder);
        format!("{scheme}://{authority}{folder}/{location}")
    };
    let uri: Uri = whole.parse().ok()?;
    uri.authority()?;
    let allowed = match uri.scheme_str()? {
        "https" => true,
        "http" => scheme == "http",
        _ => false,
    };
    allowed.then_some(uri)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_are_followed_from_where_they_stand() {
        let from: Uri = "https://hub.example/a/b/c?x=1".parse().expect("an address");
        let to = |location: &str| led_to(&from, location).map(|uri| uri.to_string());
        assert_eq!(to("/d?y=2").expect("a path"), "https://hub.example/d?y=2");
        assert_eq!(to("d").expect("beside it"), "https://hub.example/a/b/d");
        assert_eq!(to("//other.example/d").expect("a host"), "https://other.example/d");
        assert_eq!(to("https://other.example:8/d").expect("whole"), "https://other.example:8/d");
        for wrong in ["", "http://other.example/d", "file:///etc/passwd", "ftp://x/y", "https:///x"] {
            assert_eq!(to(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_token_is_not_sent_in_the_open() {
        let token = |endpoint: &str| Client::new(endpoint, Some("t".into())).map(|client| client.token);
        assert!(token("https://hub.example").expect("an address").is_some());
        assert!(token("http://127.0.0.1:8080/").expect("an address").is_some());
        assert!(token("http://hub.example").expect("an address").is_none());
        for wrong in ["", "hub.example", "ftp://hub.example", "https://", "a b"] {
            assert!(matches!(token(wrong), Err(Fault::Address(_))), "{wrong}");
        }
    }
}
