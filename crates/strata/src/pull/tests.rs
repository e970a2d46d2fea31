use std::cell::RefCell;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sha2::{Digest, Sha256};
use tempfile::TempDir;

use super::*;

#[path = "../../tests/support/stub.rs"]
mod stub;
use stub::{Reply, Request, Stub};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// Bytes that repeat nowhere near.
fn content(len: usize) -> Vec<u8> {
    let mut number = 1u64;
    let mut next = || {
        number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (number >> 56) as u8
    };
    (0..len).map(|_| next()).collect()
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A list with one file, with its checksum or without.
fn listed(name: &str, bytes: &[u8], with_sum: bool) -> String {
    let lfs = match with_sum {
        true => json!({"sha256": sha256(bytes), "size": bytes.len()}),
        false => serde_json::Value::Null,
    };
    let file = json!({"rfilename": name, "size": bytes.len(), "blobId": "b", "lfs": lfs});
    json!({"sha": COMMIT, "siblings": [file, {"rfilename": "README.md", "size": 1}]}).to_string()
}

/// A data folder, and how often was waited for how long.
struct World {
    folder: TempDir,
    waited: RefCell<Vec<u64>>,
}

impl World {
    fn new() -> World {
        World { folder: tempfile::tempdir().expect("a folder"), waited: RefCell::default() }
    }

    /// Pulls the only model.
    fn pull(&self, stub: &Stub, reference: &str) -> Result<Vec<u8>, Error> {
        let client = Client::new(&stub.endpoint(), Some("secret".into()))?;
        let wait = |pause: Duration| self.waited.borrow_mut().push(pause.as_secs());
        let download = Download { client: &client, wait: &wait };
        let reference = Reference::parse(reference).expect("a reference");
        let data = DataFolder::at(self.folder.path().to_owned());
        let listing = with_patience(&download, || hub::list(&client, &reference))?;
        let offers = choose::offers(listing.files.clone());
        let path = fetch(&download, &data, &reference, &listing, &offers[0])?;
        Ok(fs::read(path).expect("it is there"))
    }

    /// Names of the files in the repository `a/b`, hidden ones left out.
    fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder.path().join("models/hf/a/b")).expect("a folder");
        let name = |entry: std::io::Result<fs::DirEntry>| entry.expect("an entry").file_name();
        let mut names: Vec<String> =
            entries.map(name).map(|name| name.to_str().expect("text").to_owned()).collect();
        names.retain(|name| !name.starts_with('.'));
        names.sort();
        names
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join("models/hf/a/b").join(name)
    }
}

/// A hub with the file `x.gguf`, which `answer` sends.
fn hub(list: String, mut answer: impl FnMut(&Request) -> Reply + Send + 'static) -> Stub {
    Stub::start(move |request| match request.path.starts_with("/api/") {
        true => Reply::new(200, list.clone()),
        false => answer(request),
    })
}

fn sentence(result: Result<Vec<u8>, Error>) -> (String, u8) {
    let error = result.expect_err("a fault");
    (error.to_string(), error.exit_code())
}

#[test]
fn a_file_comes_whole_from_the_commit_that_was_listed() {
    let bytes = content(3_000_000);
    let (list, sent) = (listed("Q4/gr\u{f6}\u{df}e 1.gguf", &bytes, true), bytes.clone());
    let stub = hub(list, move |request| Reply::file(request, &sent, "\"1\""));
    let world = World::new();
    assert_eq!(world.pull(&stub, "hf:a/b@v1").expect("pulled"), bytes);
    let paths: Vec<String> = stub.requests().into_iter().map(|request| request.path).collect();
    let file = format!("/a/b/resolve/{COMMIT}/Q4/gr%C3%B6%C3%9Fe%201.gguf");
    assert_eq!(paths, ["/api/models/a/b/revision/v1?blobs=true", &file]);
    assert_eq!(world.files(), ["Q4"]);
    // Whole and right: only the list is asked for again.
    assert_eq!(world.pull(&stub, "hf:a/b").expect("pulled"), bytes);
    assert_eq!(stub.requests().len(), 3);
    // Right in size only.
    fs::write(world.path("Q4/gr\u{f6}\u{df}e 1.gguf"), vec![0; bytes.len()]).expect("written");
    assert_eq!(world.pull(&stub, "hf:a/b").expect("pulled"), bytes);
    assert_eq!(stub.requests().len(), 5);
}

#[test]
fn a_connection_that_breaks_is_taken_up_where_it_broke() {
    let bytes = content(5 << 20);
    let sent = bytes.clone();
    let stub =
        hub(listed("x.gguf", &bytes, true), move |request| Reply::file(request, &sent, "\"1\"").cut(1 << 20));
    let world = World::new();
    assert_eq!(world.pull(&stub, "hf:a/b").expect("pulled"), bytes);
    let starts: Vec<usize> = stub.requests()[1..].iter().map(Request::first_byte).collect();
    assert_eq!(starts, [0, 1 << 20, 2 << 20, 3 << 20, 4 << 20]);
    assert_eq!(stub.requests()[2].header("if-range"), Some("\"1\""));
    assert_eq!(*world.waited.borrow(), [1, 1, 1, 1], "a try that brings much is none that failed");
    assert_eq!(world.files(), ["x.gguf"]);
}

#[test]
fn what_came_stays_for_the_next_pull() {
    let bytes = content(1_000_000);
    let sent = bytes.clone();
    let broken = hub(listed("x.gguf", &bytes, true), move |request| {
        let reply = Reply::file(request, &sent, "\"1\"");
        let cut = if request.first_byte() == 0 { 990_000 } else { 0 };
        reply.cut(cut)
    });
    let world = World::new();
    let (told, code) = sentence(world.pull(&broken, "hf:a/b"));
    assert!(told.contains("x.gguf came only up to 990 kB of 1.00 MB"), "{told}");
    assert_eq!(code, 7);
    assert_eq!(*world.waited.borrow(), [1, 2, 4, 8]);
    assert_eq!(world.files(), ["x.gguf.part", "x.gguf.part.json"]);
    let sent = bytes.clone();
    let whole = hub(listed("x.gguf", &bytes, true), move |request| Reply::file(request, &sent, "\"1\""));
    assert_eq!(world.pull(&whole, "hf:a/b").expect("pulled"), bytes);
    assert_eq!(whole.requests()[1].first_byte(), 990_000);
}

#[test]
fn a_server_without_ranges_sends_all_of_it() {
    let bytes = content(300_000);
    let sent = bytes.clone();
    let mut tries = 0;
    let stub = hub(listed("x.gguf", &bytes, true), move |_| {
        tries += 1;
        Reply::new(200, sent.clone()).cut(if tries == 1 { 200_000 } else { usize::MAX })
    });
    assert_eq!(World::new().pull(&stub, "hf:a/b").expect("pulled"), bytes);
}

/// The rest of another file must not be joined to what came of the first: with the checksum of the hub it is seen, but
/// without one only the entity tag tells.
#[test]
fn a_file_that_changes_between_two_tries_is_not_joined() {
    for obeys in [true, false] {
        for with_sum in [true, false] {
            let (old, new) = (content(400_000), content(400_000).into_iter().rev().collect::<Vec<u8>>());
            let (first, then) = (old.clone(), new.clone());
            let mut tries = 0;
            let stub = hub(listed("x.gguf", &new, with_sum), move |request| {
                tries += 1;
                if tries == 1 {
                    return Reply::file(request, &first, "\"old\"").cut(150_000);
                }
                let mut request = request.clone();
                if !obeys {
                    request.forget("if-range");
                }
                Reply::file(&request, &then, "\"new\"")
            });
            assert_eq!(World::new().pull(&stub, "hf:a/b").expect("pulled"), new, "{obeys} {with_sum}");
        }
    }
}

#[test]
fn a_part_of_another_file_is_thrown_away() {
    let (old, new) = (content(200_000), content(300_000));
    let sent = old.clone();
    let broken = hub(listed("x.gguf", &old, false), move |request| {
        Reply::file(request, &sent, "\"1\"").cut(100_000 - request.first_byte())
    });
    let world = World::new();
    world.pull(&broken, "hf:a/b").expect_err("cut off");
    let sent = new.clone();
    let stub = hub(listed("x.gguf", &new, false), move |request| Reply::file(request, &sent, "\"1\""));
    assert_eq!(world.pull(&stub, "hf:a/b").expect("pulled"), new);
    assert_eq!(stub.requests()[1].first_byte(), 0);
}

#[test]
fn wrong_bytes_are_thrown_away() {
    let (bytes, mut wrong) = (content(100_000), content(100_000));
    wrong[50_000] ^= 1;
    let stub = hub(listed("x.gguf", &bytes, true), move |request| Reply::file(request, &wrong, "\"1\""));
    let world = World::new();
    let (told, code) = sentence(world.pull(&stub, "hf:a/b"));
    assert!(told.contains(&sha256(&bytes)) && told.contains("thrown away"), "{told}");
    assert_eq!((code, stub.requests().len(), world.files().len()), (7, 2, 0));
}

#[test]
fn wrong_lengths_are_refused() {
    let bytes = content(100_000);
    for other in [99_999, 100_001] {
        let stub = hub(listed("x.gguf", &bytes, false), move |_| Reply::new(200, content(other)));
        let (told, code) = sentence(World::new().pull(&stub, "hf:a/b"));
        assert!(told.contains(&format!("has {other} bytes on its server and not 100000")), "{told}");
        assert_eq!(code, 7);
    }
    // One that does not say how long it is, and does not end where it should.
    let stub = hub(listed("x.gguf", &bytes, false), move |_| {
        Reply::new(200, format!("{:x}\r\n{}\r\n0\r\n\r\n", 200_000, "x".repeat(200_000)))
            .with("Transfer-Encoding", "chunked")
            .with("Content-Length-Is", "unknown")
    });
    let (_, code) = sentence(World::new().pull(&stub, "hf:a/b"));
    assert_eq!(code, 7);
}

#[test]
fn every_refusal_says_what_to_do() {
    let cases = [
        (401, "HF_TOKEN", 0),
        (403, "accept its terms", 0),
        (404, "see whether the name is right", 0),
        (429, "with status 429; pull again later", 4),
        (500, "with status 500; pull again later", 4),
        (503, "with status 503; pull again later", 4),
        (418, "with status 418", 0),
    ];
    for (status, words, waits) in cases {
        for at_list in [true, false] {
            let bytes = content(1000);
            let list = listed("x.gguf", &bytes, true);
            let stub = Stub::start(move |request| match request.path.starts_with("/api/") == at_list {
                true => Reply::new(status, "no"),
                false => Reply::new(200, list.clone()),
            });
            let world = World::new();
            let (told, code) = sentence(world.pull(&stub, "hf:a/b"));
            assert!(told.contains(words) && told.lines().count() == 1, "{status}: {told}");
            assert_eq!((code, world.waited.borrow().len()), (7, waits), "{status} {at_list}");
        }
    }
}

#[test]
fn a_server_that_asks_for_time_gets_it() {
    let bytes = content(1000);
    let sent = bytes.clone();
    let mut tries = 0;
    let stub = hub(listed("x.gguf", &bytes, true), move |request| {
        tries += 1;
        match tries {
            1 => Reply::new(429, "").with("Retry-After", "7"),
            2 => Reply::new(503, "").with("Retry-After", "100000"),
            _ => Reply::file(request, &sent, "\"1\""),
        }
    });
    let world = World::new();
    assert_eq!(world.pull(&stub, "hf:a/b").expect("pulled"), bytes);
    assert_eq!(*world.waited.borrow(), [7, 60]);
}

#[test]
fn the_token_is_for_the_hub_only() {
    let bytes = content(1000);
    let sent = bytes.clone();
    let store = Stub::start(move |request| Reply::file(request, &sent, "\"s\""));
    let to = format!("{}/store/x?sign=1", store.endpoint());
    let stub = hub(listed("x.gguf", &bytes, true), move |request| match request.path.contains("resolve") {
        true => Reply::new(302, "").with("Location", "/here"),
        false => Reply::new(302, "").with("Location", &to),
    });
    assert_eq!(World::new().pull(&stub, "hf:a/b").expect("pulled"), bytes);
    let asked = stub.requests();
    assert_eq!(asked.len(), 3);
    assert!(asked.iter().all(|request| request.header("authorization") == Some("Bearer secret")));
    assert_eq!(store.requests().len(), 1);
    assert_eq!(store.requests()[0].header("authorization"), None);
    assert_eq!(store.requests()[0].path, "/store/x?sign=1");
}

#[test]
fn a_circle_of_redirects_ends() {
    let stub =
        hub(listed("x.gguf", b"x", true), |request| Reply::new(302, "").with("Location", &request.path));
    let (told, code) = sentence(World::new().pull(&stub, "hf:a/b"));
    assert!(told.contains("which is not followed"), "{told}");
    assert_eq!((code, stub.requests().len()), (7, 10));
}

#[test]
fn all_files_of_a_set_come_one_after_the_other() {
    let parts = [content(1000), content(2000)];
    let name = |no: usize| format!("M/x-0000{no}-of-00002.gguf");
    let file = |no: usize| {
        let bytes = &parts[no - 1];
        json!({"rfilename": name(no), "size": bytes.len(), "lfs": {"sha256": sha256(bytes)}})
    };
    let list = json!({"siblings": [file(2), file(1)]}).to_string();
    let sent = parts.clone();
    let stub = hub(list, move |request| {
        let no = usize::from(request.path.ends_with("00002-of-00002.gguf"));
        Reply::file(request, &sent[no], "\"1\"")
    });
    let world = World::new();
    assert_eq!(world.pull(&stub, "hf:a/b").expect("pulled"), parts[0]);
    assert_eq!(fs::read(world.path(&name(2))).expect("there"), parts[1]);
    // Half a set is no offer.
    let half = hub(json!({"siblings": [file(2)]}).to_string(), |_| Reply::new(404, ""));
    let (told, _) = sentence(World::new().pull(&half, "hf:a/b"));
    assert!(told.contains("lacks files"), "{told}");
}

#[test]
fn two_pulls_of_one_file_do_not_meet() {
    let bytes = content(1000);
    let sent = bytes.clone();
    let stub = hub(listed("x.gguf", &bytes, true), move |request| Reply::file(request, &sent, "\"1\""));
    let world = World::new();
    fs::create_dir_all(world.path("")).expect("made");
    let held = part::lock(&world.path("x.gguf")).expect("nobody else");
    let (told, code) = sentence(world.pull(&stub, "hf:a/b"));
    assert!(told.contains("by another process"), "{told}");
    assert_eq!(code, 6);
    drop(held);
    assert_eq!(world.pull(&stub, "hf:a/b").expect("pulled"), bytes);
}

#[test]
fn no_byte_is_asked_for_that_finds_no_room() {
    let list = json!({"siblings": [{"rfilename": "x.gguf", "size": 1u64 << 60}]}).to_string();
    let stub = hub(list, |_| Reply::new(404, ""));
    let (told, code) = sentence(World::new().pull(&stub, "hf:a/b"));
    assert!(told.contains("needs 1153 PB more and has "), "{told}");
    assert_eq!((code, stub.requests().len()), (6, 1));
}

/// A progress that goes backwards, or past the end, frightens.
#[test]
fn what_has_come_is_told_on_the_way() {
    let bytes = content(3 << 20);
    let sent = bytes.clone();
    let stub = Stub::start(move |request| Reply::file(request, &sent, "\"1\"").cut(2 << 20));
    let client = Client::new(&stub.endpoint(), None).expect("an address");
    let folder = tempfile::tempdir().expect("a folder");
    let told = Arc::new(Mutex::new(Vec::new()));
    let file = RemoteFile {
        path: crate::models::repository::FilePath::parse("x.gguf").expect("a path"),
        size: bytes.len() as u64,
        content: Content::Sha256(sha256(&bytes)),
    };
    Download { client: &client, wait: &|_| () }
        .file(&client.address("/x"), &file, &folder.path().join("x.gguf"), &mut |done| {
            told.lock().expect("one thread").push(done);
        })
        .expect("pulled");
    let told = told.lock().expect("one thread");
    assert!(told.len() > 3 && told.is_sorted(), "{told:?}");
    assert_eq!(told.last(), Some(&(3 << 20)));
}
