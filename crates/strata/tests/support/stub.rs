//! A hub that does as a test tells it.

#![allow(dead_code, reason = "each test file uses a part")]

use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// What was asked.
#[derive(Clone, Debug)]
pub struct Request {
    /// Path and query.
    pub path: String,
    headers: Vec<(String, String)>,
}

impl Request {
    /// A header's text.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    /// As if a header had not been sent.
    pub fn forget(&mut self, name: &str) {
        self.headers.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
    }

    /// The first byte asked for; 0 without a range.
    pub fn first_byte(&self) -> usize {
        let range = self.header("range").and_then(|text| text.strip_prefix("bytes=")?.strip_suffix('-'));
        range.map_or(0, |text| text.parse().expect("a number"))
    }
}

/// What is answered.
pub struct Reply {
    /// The status.
    pub status: u16,
    /// Headers besides the length.
    pub headers: Vec<(&'static str, String)>,
    /// The body that is announced.
    pub body: Vec<u8>,
    /// Bytes of it after which the connection is closed.
    pub sent: usize,
}

impl Reply {
    /// All of a body.
    pub fn new(status: u16, body: impl Into<Vec<u8>>) -> Reply {
        let body = body.into();
        Reply { status, headers: Vec::new(), sent: body.len(), body }
    }

    /// What a request for a file, or for the rest of it, is answered with.
    pub fn file(request: &Request, content: &[u8], etag: &str) -> Reply {
        let start = request.first_byte();
        let same = request.header("if-range").is_none_or(|tag| tag == etag);
        let mut reply = if start > 0 && same {
            let mut reply = Reply::new(206, &content[start..]);
            let range = format!("bytes {start}-{}/{}", content.len() - 1, content.len());
            reply.headers.push(("Content-Range", range));
            reply
        } else {
            Reply::new(200, content)
        };
        reply.headers.push(("ETag", etag.to_owned()));
        reply
    }

    /// With one more header.
    pub fn with(mut self, name: &'static str, value: &str) -> Reply {
        self.headers.push((name, value.to_owned()));
        self
    }

    /// Closed after so many bytes of the body.
    pub fn cut(mut self, sent: usize) -> Reply {
        self.sent = sent.min(self.body.len());
        self
    }
}

/// A server of one test.
pub struct Stub {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<Request>>>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Stub {
    /// Answers until it is dropped, one request after the other.
    pub fn start(mut answer: impl FnMut(&Request) -> Reply + Send + 'static) -> Stub {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let requests = Arc::new(Mutex::new(Vec::new()));
        let ends = Arc::new(AtomicBool::new(false));
        let (seen, stop) = (requests.clone(), ends.clone());
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if stop.load(Ordering::SeqCst) {
                    return;
                }
                let mut stream = stream.expect("a connection");
                let Some(request) = read(&stream) else { continue };
                seen.lock().expect("no test panics here").push(request.clone());
                write(&mut stream, &answer(&request));
            }
        });
        Stub { address, requests, ends, thread: Some(thread) }
    }

    /// `http://127.0.0.1:PORT`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What has been asked so far.
    pub fn requests(&self) -> Vec<Request> {
        self.requests.lock().expect("no test panics here").clone()
    }
}

impl Drop for Stub {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
        let ended = self.thread.take().expect("joined once").join();
        if !std::thread::panicking() {
            ended.expect("the stub's answers do not panic");
        }
    }
}

fn read(stream: &TcpStream) -> Option<Request> {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let first = lines.next()?;
    let path = first.split(' ').nth(1)?.to_owned();
    let headers = lines
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.split_once(": ").map(|(name, value)| (name.to_owned(), value.to_owned())));
    Some(Request { path, headers: headers.collect() })
}

fn write(stream: &mut TcpStream, reply: &Reply) {
    let mut head = format!("HTTP/1.1 {} X\r\nConnection: close\r\n", reply.status);
    for (name, value) in &reply.headers {
        head += &format!("{name}: {value}\r\n");
    }
    if !reply.headers.iter().any(|(name, _)| *name == "Content-Length") {
        head += &format!("Content-Length: {}\r\n", reply.body.len());
    }
    head += "\r\n";
    // The program may have left already.
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&reply.body[..reply.sent]));
    let _ = stream.shutdown(Shutdown::Write);
}
