//! Who may ask.
//!
//! With a key: who knows it, from wherever. Without one: whoever can open a connection, but no web page. A page can name a
//! local server by a name of its own that it lets point here, which the `Host` header shows, and it can send requests
//! blindly, which the `Origin` header shows. A literal address in `Host` cannot be such a name.

use std::net::IpAddr;

use axum::extract::Request;
use axum::http::header::{AUTHORIZATION, HOST, ORIGIN};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Version};

use crate::fault::{Fault, Kind};

/// Who may ask, and under which names.
#[derive(Debug, Clone)]
pub(crate) struct Guard {
    api_key: Option<String>,
    /// As given for listening: a name is known under which clients come.
    host: String,
    /// Where connections are accepted.
    address: IpAddr,
}

impl Guard {
    /// For a server on `address`, which was found under `host`.
    pub fn new(api_key: Option<String>, host: &str, address: IpAddr) -> Guard {
        Guard { api_key, host: host.to_owned(), address }
    }

    /// Whether a request may be answered at all.
    ///
    /// # Errors
    /// It names another host, comes from a web page elsewhere, or says not clearly whom it wants.
    pub fn admit(&self, request: &Request) -> Result<(), Fault> {
        let named = names(request)?;
        if self.api_key.is_some() {
            return Ok(());
        }
        if named.is_empty() {
            return Err(forbidden(
                "the request has no Host header, without which only a server with --api-key answers",
            ));
        }
        if !named.iter().all(|name| self.knows(name)) {
            return Err(forbidden(
                "the Host header names another server: call this one by its address, start it with that name as --host, \
                 or give it an --api-key",
            ));
        }
        match request.headers().get_all(ORIGIN).iter().all(|origin| is_of(origin, &named)) {
            true => Ok(()),
            false => Err(forbidden(
                "requests of web pages from elsewhere are not answered: give the server an --api-key and let the page's \
                 own server ask",
            )),
        }
    }

    /// Whether a request has the key, if one is needed.
    ///
    /// # Errors
    /// It has not.
    pub fn check_key(&self, headers: &HeaderMap) -> Result<(), Fault> {
        let Some(key) = &self.api_key else { return Ok(()) };
        let given = headers.get(AUTHORIZATION).map(HeaderValue::as_bytes).unwrap_or_default();
        let given = match given.split_at_checked("Bearer ".len()) {
            Some((scheme, given)) if scheme.eq_ignore_ascii_case(b"Bearer ") => given,
            _ => {
                return Err(Fault::new(
                    Kind::Key,
                    "this server needs its key as `Authorization: Bearer KEY`",
                ));
            }
        };
        match same(given, key.as_bytes()) {
            true => Ok(()),
            false => Err(Fault::new(Kind::Key, "the key is not that of this server")),
        }
    }

    fn knows(&self, authority: &Authority) -> bool {
        let host = authority.host();
        let literal = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        match literal.parse::<IpAddr>().map(|address| address.to_canonical()) {
            Ok(address) => {
                let own = self.address.to_canonical();
                address == own || address.is_loopback() || own.is_unspecified()
            }
            Err(_) => host.eq_ignore_ascii_case("localhost") || host.eq_ignore_ascii_case(&self.host),
        }
    }
}

/// Whom a request wants: by its `Host` header and, if it has one, by its target.
fn names(request: &Request) -> Result<Vec<Authority>, Fault> {
    let refused = |message| Err(Fault::new(Kind::Invalid, message));
    let mut headers = request.headers().get_all(HOST).iter();
    let host = headers.next();
    if headers.next().is_some() {
        return refused("the request has more than one Host header");
    }
    if host.is_none() && request.version() >= Version::HTTP_11 {
        return refused("the request has no Host header");
    }
    let mut names: Vec<Authority> = request.uri().authority().cloned().into_iter().collect();
    match host.map(|host| Authority::try_from(host.as_bytes())) {
        None => {}
        Some(Ok(name)) => names.push(name),
        Some(Err(_)) => return refused("the Host header names no host"),
    }
    match names.iter().any(|name| name.as_str().contains('@')) {
        true => refused("the request names a user before the host"),
        false => Ok(names),
    }
}

/// Whether a page came from the server that it now asks.
fn is_of(origin: &HeaderValue, named: &[Authority]) -> bool {
    let origin = origin.as_bytes();
    let own = |name: &Authority| {
        ["http://", "https://"].iter().any(|scheme| {
            let rest = origin.strip_prefix(scheme.as_bytes());
            rest.is_some_and(|rest| rest.eq_ignore_ascii_case(name.as_str().as_bytes()))
        })
    };
    named.iter().all(own)
}

/// Takes as long for a key that is wrong at its end as for one that is wrong at its beginning.
fn same(given: &[u8], key: &[u8]) -> bool {
    let differences = given.iter().zip(key.iter().cycle()).fold(0, |all, (a, b)| all | (a ^ b));
    std::hint::black_box(differences) == 0 && given.len() == key.len()
}

fn forbidden(message: &str) -> Fault {
    Fault::new(Kind::Forbidden, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;

    fn request(version: Version, target: &str, headers: &[(&str, &str)]) -> Request {
        let request =
            headers.iter().fold(Request::builder().uri(target).version(version), |request, (name, value)| {
                request.header(*name, *value)
            });
        request.body(Body::empty()).expect("a request")
    }

    fn kind(guard: &Guard, version: Version, target: &str, headers: &[(&str, &str)]) -> Option<Kind> {
        guard.admit(&request(version, target, headers)).err().map(|fault| fault.kind)
    }

    fn of_host(guard: &Guard, host: &str) -> Option<Kind> {
        kind(guard, Version::HTTP_11, "/", &[("host", host)])
    }

    fn guard(host: &str, address: &str) -> Guard {
        Guard::new(None, host, address.parse().expect("an address"))
    }

    /// A web page could read a server on 127.0.0.1 through a name of its own that it let point there.
    #[test]
    fn only_known_names_are_answered() {
        let local = guard("127.0.0.1", "127.0.0.1");
        for known in
            ["127.0.0.1", "127.0.0.1:8080", "localhost", "LOCALHOST:8080", "[::1]", "[::1]:9", "127.0.0.2"]
        {
            assert_eq!(of_host(&local, known), None, "{known}");
        }
        for foreign in [
            "evil.example",
            "evil.example:8080",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "192.0.2.1",
            "localhost.",
            "0x7f.1",
            "2130706433",
        ] {
            assert_eq!(of_host(&local, foreign), Some(Kind::Forbidden), "{foreign}");
        }
        for wrong in ["", "a b", "[::1", "user@localhost", "http://localhost"] {
            assert_eq!(of_host(&local, wrong), Some(Kind::Invalid), "{wrong}");
        }
    }

    #[test]
    fn what_it_listens_on_is_a_known_name() {
        let named = guard("box.lan", "192.168.1.5");
        for (host, wanted) in [
            ("box.lan:80", None),
            ("BOX.lan", None),
            ("192.168.1.5", None),
            ("[::ffff:192.168.1.5]", None),
            ("192.168.1.6", Some(Kind::Forbidden)),
            ("lan", Some(Kind::Forbidden)),
        ] {
            assert_eq!(of_host(&named, host), wanted, "{host}");
        }
        // Under which of the machine's addresses a client comes, or a container's host, is not known here.
        let everywhere = guard("0.0.0.0", "0.0.0.0");
        assert_eq!(of_host(&everywhere, "192.168.1.6:8080"), None);
        assert_eq!(of_host(&everywhere, "evil.example"), Some(Kind::Forbidden));
    }

    #[test]
    fn a_request_says_clearly_whom_it_wants() {
        let local = guard("localhost", "127.0.0.1");
        let (old, new) = (Version::HTTP_10, Version::HTTP_11);
        assert_eq!(kind(&local, new, "/", &[]), Some(Kind::Invalid));
        assert_eq!(kind(&local, old, "/", &[]), Some(Kind::Forbidden));
        assert_eq!(kind(&local, old, "/", &[("host", "localhost")]), None);
        let twice = [("host", "localhost"), ("host", "localhost")];
        assert_eq!(kind(&local, new, "/", &twice), Some(Kind::Invalid));
        let host = [("host", "localhost")];
        assert_eq!(kind(&local, new, "http://localhost/", &host), None);
        assert_eq!(kind(&local, new, "http://evil.example/", &host), Some(Kind::Forbidden));
        let evil = [("host", "evil.example")];
        assert_eq!(kind(&local, new, "http://localhost/", &evil), Some(Kind::Forbidden));
    }

    #[test]
    fn pages_from_elsewhere_get_nothing() {
        let local = guard("127.0.0.1", "127.0.0.1");
        let from =
            |origin| kind(&local, Version::HTTP_11, "/", &[("host", "localhost:8080"), ("origin", origin)]);
        assert_eq!(from("http://localhost:8080"), None);
        assert_eq!(from("http://LOCALHOST:8080"), None);
        for foreign in [
            "http://evil.example",
            "http://localhost:3000",
            "http://localhost",
            "null",
            "chrome-extension://abcdef",
            "http://localhost:8080.evil.example",
            "",
        ] {
            assert_eq!(from(foreign), Some(Kind::Forbidden), "{foreign}");
        }
    }

    /// Of two origins only the first was looked at.
    #[test]
    fn a_second_origin_counts_as_well() {
        let local = guard("127.0.0.1", "127.0.0.1");
        let own = ("origin", "http://localhost");
        let two = |second| kind(&local, Version::HTTP_11, "/", &[("host", "localhost"), own, second]);
        assert_eq!(two(own), None);
        assert_eq!(two(("origin", "http://evil.example")), Some(Kind::Forbidden));
    }

    #[test]
    fn a_key_is_asked_for_and_then_names_do_not_matter() {
        let guard = Guard::new(Some("sesame".into()), "127.0.0.1", "127.0.0.1".parse().expect("an address"));
        let foreign = [("host", "evil.example"), ("origin", "null")];
        assert_eq!(kind(&guard, Version::HTTP_11, "/", &foreign), None);
        let with = |key: &str| {
            guard.check_key(request(Version::HTTP_11, "/", &[("authorization", key)]).headers()).is_ok()
        };
        assert!(with("Bearer sesame") && with("bearer sesame"));
        for wrong in
            ["Bearer sesam", "Bearer sesamesesame", "Bearer ", "sesame", "Basic sesame", "", "Bearer sesamf"]
        {
            assert!(!with(wrong), "{wrong}");
        }
        assert!(guard.check_key(&HeaderMap::new()).is_err());
        assert!(Guard::new(None, "", guard.address).check_key(&HeaderMap::new()).is_ok());
    }
}
