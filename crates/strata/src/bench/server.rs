//! A server as a peer: it completes lists of token ids.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use ureq::Agent;

use super::measure::{Test, tokens};

/// No prompt takes longer.
const ANSWER_TIME: Duration = Duration::from_secs(3600);

/// Ids that any vocabulary has.
const VOCABULARY: usize = 256;

/// Where it listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    address: String,
}

/// What a completion took.
struct Completion {
    seconds: f64,
    /// Of the prompt and of the answer, where the server tells (llama-server's `timings`).
    told: Option<(f64, f64)>,
}

impl Server {
    /// A server at `http://HOST:PORT`, with or without `/v1`.
    pub fn new(address: &str) -> Server {
        let address = address.trim_end_matches('/');
        Server { address: address.strip_suffix("/v1").unwrap_or(address).to_owned() }
    }

    /// Where it listens.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Tokens per second. Every round has a prompt of its own, of which the server remembers nothing.
    ///
    /// # Errors
    /// A sentence.
    pub fn rate(&self, test: Test, round: usize) -> Result<f64, String> {
        let rate = match test {
            Test::Prompt { tokens } => {
                let completion = self.complete(tokens, 1, round)?;
                completion.told.map_or(tokens as f64 / completion.seconds, |(prompt, _)| prompt)
            }
            Test::Write { tokens, depth, .. } => {
                let prompt = depth.max(1);
                let long = self.complete(prompt, tokens + 1, 2 * round)?;
                match long.told {
                    Some((_, answer)) => answer,
                    // What reading takes is measured apart, on another prompt.
                    None => {
                        let short = self.complete(prompt, 1, 2 * round + 1)?;
                        tokens as f64 / (long.seconds - short.seconds)
                    }
                }
            }
        };
        match rate.is_finite() && rate > 0.0 {
            true => Ok(rate),
            false => Err(format!("its times for `{test}` make no sense")),
        }
    }

    fn complete(&self, prompt: usize, answer: usize, variant: usize) -> Result<Completion, String> {
        let mut ids = tokens(prompt, VOCABULARY);
        ids[0] = (variant % VOCABULARY) as u32;
        let body = json!({
            "prompt": ids, "max_tokens": answer, "temperature": 0, "stream": false,
            // Words of llama-server; others pass over them.
            "ignore_eos": true, "cache_prompt": false,
        });
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_connect(Some(Duration::from_secs(10)))
            .timeout_recv_response(Some(ANSWER_TIME))
            .timeout_recv_body(Some(ANSWER_TIME))
            .proxy(None);
        let agent = Agent::new_with_config(config.build());
        let start = Instant::now();
        let reply = agent
            .post(format!("{}/v1/completions", self.address))
            .content_type("application/json")
            .send(body.to_string())
            .map_err(|error| format!("it cannot be asked: {error}"))?;
        let status = reply.status().as_u16();
        let text =
            reply.into_body().read_to_string().map_err(|error| format!("its answer broke off: {error}"))?;
        let seconds = start.elapsed().as_secs_f64();
        if status != 200 {
            return Err(format!("it answered with status {status}: {text}"));
        }
        let reply: Value =
            serde_json::from_str(&text).map_err(|error| format!("its answer is not JSON: {error}"))?;
        check(&reply, prompt, answer)?;
        let told = |key: &str| reply.get("timings")?.get(key)?.as_f64();
        Ok(Completion { seconds, told: told("prompt_per_second").zip(told("predicted_per_second")) })
    }
}

/// A server that stopped early, or had the prompt already, did other work than was asked for.
fn check(reply: &Value, prompt: usize, answer: usize) -> Result<(), String> {
    let counted = |key: &str| reply.get("usage")?.get(key)?.as_u64().map(|count| count as usize);
    let wrong = |what: &str, found: usize, wanted: usize| {
        Err(format!("its {what} had {found} tokens where {wanted} were asked for"))
    };
    match (counted("prompt_tokens"), counted("completion_tokens")) {
        (Some(found), _) if found != prompt => wrong("prompt", found, prompt),
        (_, Some(found)) if found != answer => wrong("answer", found, answer),
        (Some(_), Some(_)) => Ok(()),
        _ => Err("its answer does not count tokens".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_those_of_clients() {
        for text in ["http://host:1", "http://host:1/", "http://host:1/v1", "http://host:1/v1/"] {
            assert_eq!(Server::new(text).address(), "http://host:1", "{text}");
        }
    }

    #[test]
    fn an_answer_must_have_done_the_work() {
        let reply = |prompt: usize, answer: usize| json!({"usage": {"prompt_tokens": prompt, "completion_tokens": answer}});
        assert_eq!(check(&reply(5, 3), 5, 3), Ok(()));
        for wrong in [reply(6, 3), reply(5, 2), json!({}), json!({"usage": {"prompt_tokens": 5}})] {
            assert!(check(&wrong, 5, 3).is_err(), "{wrong}");
        }
    }
}
