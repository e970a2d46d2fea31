//! A scripted model behind a real server, and raw sockets to it.

#![allow(dead_code, reason = "each test file uses a part")]

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use chat::{ChatEnd, ChatError, ChatEvent, ChatRequest, EndReason, Ended, Finish, RequestError, Usage};
use serde_json::{Value, json};
use server::{Answer, Counts, Listener, Model, Server, Settings};

/// Tokens of a prompt, whatever it is.
pub const PROMPT_TOKENS: usize = 11;
/// Of these, those that it had read before.
const REUSED_TOKENS: usize = 4;

/// What a scripted answer does next.
#[derive(Debug, Clone)]
pub enum Step {
    /// It says this.
    Event(ChatEvent),
    /// Nothing any more: the model is at work for ever.
    Forever,
}

/// A model that says what it was told to say.
#[derive(Debug, Clone, Default)]
pub struct Script(Arc<State>);

#[derive(Debug, Default)]
struct State {
    inner: Mutex<Inner>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Inner {
    answers: VecDeque<Vec<Step>>,
    requests: Vec<ChatRequest>,
    refuse: VecDeque<ChatError>,
    open: usize,
    begun: usize,
    dead: bool,
}

impl Script {
    /// The next request gets these events; one for which there are none is answered with "ok".
    pub fn say(&self, steps: Vec<Step>) {
        self.0.inner.lock().expect("a lock").answers.push_back(steps);
    }

    /// The next request is not taken.
    pub fn refuse(&self, error: ChatError) {
        self.0.inner.lock().expect("a lock").refuse.push_back(error);
    }

    /// From now on it answers nobody.
    pub fn die(&self) {
        self.0.inner.lock().expect("a lock").dead = true;
    }

    /// The last request that was taken.
    pub fn last_request(&self) -> ChatRequest {
        self.0.inner.lock().expect("a lock").requests.last().expect("a request").clone()
    }

    /// Answers that were begun so far.
    pub fn begun(&self) -> usize {
        self.0.inner.lock().expect("a lock").begun
    }

    /// Waits until this many answers are being written.
    pub fn wait_open(&self, wanted: usize) {
        let inner = self.0.inner.lock().expect("a lock");
        drop(self.0.changed.wait_while(inner, |inner| inner.open != wanted).expect("a lock"));
    }

    /// Waits until so many answers were begun in all.
    pub fn wait_begun(&self, wanted: usize) {
        let inner = self.0.inner.lock().expect("a lock");
        drop(self.0.changed.wait_while(inner, |inner| inner.begun < wanted).expect("a lock"));
    }
}

impl Model for Script {
    type Answer = ScriptedAnswer;

    fn generate(&self, request: ChatRequest) -> Result<ScriptedAnswer, ChatError> {
        let mut inner = self.0.inner.lock().expect("a lock");
        if let Some(error) = inner.refuse.pop_front() {
            return Err(error);
        }
        inner.requests.push(request);
        inner.open += 1;
        inner.begun += 1;
        let steps = inner.answers.pop_front().unwrap_or_else(|| vec![text("ok"), end(Finish::Length, 1, 0)]);
        self.0.changed.notify_all();
        Ok(ScriptedAnswer { steps: steps.into(), state: Arc::clone(&self.0) })
    }

    fn context_tokens(&self) -> usize {
        512
    }

    fn counts(&self) -> Counts {
        let inner = self.0.inner.lock().expect("a lock");
        Counts { queued: 0, running: inner.open, parallel_max: 4, alive: !inner.dead }
    }
}

/// An answer of [`Script`].
#[derive(Debug)]
pub struct ScriptedAnswer {
    steps: VecDeque<Step>,
    state: Arc<State>,
}

impl Answer for ScriptedAnswer {
    fn prompt_tokens(&self) -> usize {
        PROMPT_TOKENS
    }

    async fn next(&mut self) -> Option<ChatEvent> {
        match self.steps.front() {
            Some(Step::Forever) => std::future::pending().await,
            _ => match self.steps.pop_front()? {
                Step::Event(event) => Some(event),
                Step::Forever => unreachable!("looked at above"),
            },
        }
    }
}

impl Drop for ScriptedAnswer {
    fn drop(&mut self) {
        self.state.inner.lock().expect("a lock").open -= 1;
        self.state.changed.notify_all();
    }
}

/// More of the answer.
pub fn text(text: &str) -> Step {
    Step::Event(ChatEvent::Text(text.into()))
}

/// More of the thinking.
pub fn thinking(text: &str) -> Step {
    Step::Event(ChatEvent::Thinking(text.into()))
}

/// More of the prompt is read.
pub fn reading(done: usize) -> Step {
    Step::Event(ChatEvent::Reading { done, of: PROMPT_TOKENS })
}

/// The end.
pub fn end(finish: Finish, completion_tokens: usize, thinking_tokens: usize) -> Step {
    ended(Ok(finish), completion_tokens, thinking_tokens)
}

/// The end, when something failed.
pub fn failure() -> Step {
    ended(Err(RequestError::EngineGone), 1, 0)
}

fn ended(reason: Result<Finish, RequestError>, completion_tokens: usize, thinking_tokens: usize) -> Step {
    let engine = Ended {
        reason: EndReason::Length,
        prompt_tokens: PROMPT_TOKENS,
        reused_tokens: REUSED_TOKENS,
        read_tokens: PROMPT_TOKENS - REUSED_TOKENS,
        generated_tokens: completion_tokens,
        queue_time: Duration::ZERO,
        read_time: Duration::ZERO,
        write_time: Duration::ZERO,
    };
    let usage = Usage {
        prompt_tokens: PROMPT_TOKENS,
        reused_tokens: REUSED_TOKENS,
        completion_tokens,
        thinking_tokens,
    };
    Step::Event(ChatEvent::End(ChatEnd { reason, usage, engine }))
}

/// A server on a free port of this machine, with its model.
pub struct Served {
    /// What it answers with.
    pub script: Script,
    /// Where it is.
    pub address: SocketAddr,
    server: Option<Server<Script>>,
}

impl Served {
    /// With usual settings.
    pub fn start() -> Served {
        Served::with(Settings { model_name: "scripted".into(), ..Settings::default() })
    }

    /// With these.
    pub fn with(settings: Settings) -> Served {
        let server = Served::loading(settings);
        let script = Script::default();
        server.ready(script.clone());
        Served { script, address: server.address(), server: Some(server) }
    }

    /// Still without its model.
    pub fn loading(settings: Settings) -> Server<Script> {
        let listener = Listener::bind("127.0.0.1", 0).expect("a free port");
        Server::start(listener, settings).expect("a server")
    }

    /// Stops it.
    pub fn stop(mut self) {
        self.server.take().expect("still there").stop().expect("a good end");
    }

    /// Connects to it.
    pub fn connect(&self) -> Raw {
        Raw::connect(self.address)
    }

    /// Sends a request on a connection of its own and reads the answer.
    pub fn post(&self, path: &str, body: &Value) -> Reply {
        let mut raw = self.connect();
        raw.post(path, body);
        raw.reply()
    }

    /// As above.
    pub fn get(&self, path: &str) -> Reply {
        let mut raw = self.connect();
        raw.send(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes());
        raw.reply()
    }

    /// The server still answers as it should.
    pub fn is_well(&self) {
        self.script.wait_open(0);
        let reply = self.post("/v1/chat/completions", &minimal());
        assert_eq!(
            (reply.status, reply.json()["choices"][0]["message"]["content"].as_str()),
            (200, Some("ok"))
        );
        self.script.wait_open(0);
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            let _ = server.stop();
        }
    }
}

/// A chat request that asks for nothing special.
pub fn minimal() -> Value {
    json!({"messages": [{"role": "user", "content": "Hi"}]})
}

/// The same, streamed.
pub fn streamed() -> Value {
    json!({"messages": [{"role": "user", "content": "Hi"}], "stream": true})
}

/// A connection.
pub struct Raw {
    stream: BufReader<TcpStream>,
}

/// What came back.
#[derive(Debug)]
pub struct Reply {
    /// The status, 0 if the connection closed before one came.
    pub status: u16,
    /// Header lines, names in lower case.
    pub headers: Vec<String>,
    /// The body, put together.
    pub body: Vec<u8>,
}

impl Reply {
    /// The body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8(self.body.clone()).expect("text")
    }

    /// A header.
    pub fn header(&self, name: &str) -> Option<&str> {
        let prefix = format!("{name}: ");
        self.headers.iter().find_map(|line| line.strip_prefix(&prefix))
    }

    /// The code in an error's body.
    pub fn code(&self) -> String {
        self.json()["error"]["code"].as_str().unwrap_or_default().to_owned()
    }
}

impl Raw {
    /// A new connection.
    pub fn connect(address: SocketAddr) -> Raw {
        let stream = TcpStream::connect(address).expect("a connection");
        // Nothing waits for this; a server that never answers fails the test instead of holding it up.
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a time");
        Raw { stream: BufReader::new(stream) }
    }

    /// Sends bytes; a server that has closed is no fault.
    pub fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.get_mut().write_all(bytes);
    }

    /// Sends a request with a JSON body.
    pub fn post(&mut self, path: &str, body: &Value) {
        let body = body.to_string();
        let length = body.len();
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
        );
        self.send(format!("{head}{body}").as_bytes());
    }

    /// Reads until this text has come.
    pub fn read_to(&mut self, wanted: &str) -> String {
        let mut seen = Vec::new();
        while !seen.ends_with(wanted.as_bytes()) {
            let mut byte = [0];
            self.stream.read_exact(&mut byte).unwrap_or_else(|error| {
                panic!("{error} after {:?}, waiting for {wanted:?}", String::from_utf8_lossy(&seen))
            });
            seen.push(byte[0]);
        }
        String::from_utf8(seen).expect("text")
    }

    /// Whether the server closes without a further byte.
    pub fn is_closed(&mut self) -> bool {
        matches!(self.stream.read(&mut [0]), Ok(0) | Err(_))
    }

    /// The status of an answer whose rest does not matter, 0 if there is none.
    pub fn connection_status(&mut self) -> u16 {
        let line = self.line();
        line.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0)
    }

    /// Reads what comes until the server closes; whether it does.
    pub fn drain(&mut self) -> bool {
        std::io::copy(&mut self.stream, &mut std::io::sink()).is_ok()
    }

    /// No more is sent; the server's words can still be read.
    pub fn half_close(&mut self) {
        self.stream.get_ref().shutdown(Shutdown::Write).expect("open");
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        let _ = self.stream.read_line(&mut line);
        line.trim_end().to_owned()
    }

    /// Reads a whole answer.
    pub fn reply(&mut self) -> Reply {
        let line = self.line();
        let status = line.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        let mut headers = Vec::new();
        loop {
            let line = self.line();
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(':').expect("a header");
            headers.push(format!("{}: {}", name.to_lowercase(), value.trim()));
        }
        let mut reply = Reply { status, headers, body: Vec::new() };
        let length = reply.header("content-length").map(|length| length.parse().expect("a number"));
        if status == 0 || status == 100 {
            return reply;
        }
        if let Some(length) = length {
            reply.body = vec![0; length];
            self.stream.read_exact(&mut reply.body).expect("a body");
        } else if reply.header("transfer-encoding") == Some("chunked") {
            while let Some(chunk) = self.chunk() {
                reply.body.extend(chunk);
            }
        } else {
            let _ = self.stream.read_to_end(&mut reply.body);
        }
        reply
    }

    /// One chunk; none at the end.
    fn chunk(&mut self) -> Option<Vec<u8>> {
        let length = usize::from_str_radix(&self.line(), 16).expect("the length of a chunk");
        let mut chunk = vec![0; length + 2];
        self.stream.read_exact(&mut chunk).expect("a chunk");
        chunk.truncate(length);
        (length > 0).then_some(chunk)
    }
}
