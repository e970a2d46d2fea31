//! Programs and servers that are measured beside our own engine.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};

use engine::KvType;
use serde_json::Value;

use super::measure::Test;
use super::server::Server;

/// Somebody else's engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A program that is told what to measure as `llama-bench` is, and answers as it does.
    Program {
        /// The program, then flags of its own.
        words: Vec<String>,
    },
    /// A server that has the model loaded.
    Server(Server),
}

/// Why a peer gave no figures.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// There is no such program, or it may not be run.
    #[error("it cannot be started: {0}")]
    Start(std::io::Error),
    /// It gave up: it may not know the model.
    #[error("it ended with {status}{}", last_words(said))]
    Ended {
        /// Its exit status.
        status: std::process::ExitStatus,
        /// What it said on standard error.
        said: String,
    },
    /// Its output is not that of `llama-bench -o json`.
    #[error("its output is not the JSON of llama-bench: {0}")]
    Output(String),
    /// It measured something else.
    #[error("its output has no figure for `{0}`")]
    Missing(Test),
    /// The server did not do as asked.
    #[error("{0}")]
    Server(String),
}

/// The last line that speaks of an error, else the last one at all: where the reason stands.
fn last_words(said: &str) -> String {
    let lines = || said.lines().rev().map(str::trim).filter(|line| !line.is_empty());
    let tells = |line: &str| ["error", "assert"].iter().any(|word| line.to_ascii_lowercase().contains(word));
    let line = lines().find(|line| tells(line)).or_else(|| lines().next());
    line.map_or(String::new(), |line| format!(": {line}"))
}

impl Peer {
    /// A peer from the command line: an address, the path of a program, or a program with flags and blanks between.
    pub fn parse(text: &str) -> Result<Peer, String> {
        if text.starts_with("http://") || text.starts_with("https://") {
            return Ok(Peer::Server(Server::new(text)));
        }
        let words: Vec<String> = match Path::new(text).is_file() {
            true => vec![text.to_owned()],
            false => text.split_whitespace().map(str::to_owned).collect(),
        };
        match words.is_empty() {
            true => Err("a program or an address is needed".into()),
            false => Ok(Peer::Program { words }),
        }
    }

    /// What it is called in tables: without the folders, and without the interpreter of a script.
    pub fn name(&self) -> String {
        let words = match self {
            Peer::Server(server) => return server.address().to_owned(),
            Peer::Program { words } => words,
        };
        let script = words.get(1).is_some_and(|word| word.ends_with(".py"));
        let words = &words[usize::from(script)..];
        let short = |word: &String| {
            Path::new(word).file_name().map_or(word.clone(), |name| name.to_string_lossy().into_owned())
        };
        let words: Vec<String> = words.iter().map(short).collect();
        words.join(" ")
    }

    /// Whether it can be asked for tests like these: `llama-bench` and servers write one sequence.
    pub fn takes(&self, group: &[Test]) -> bool {
        let alone = group.iter().all(|test| !matches!(test, Test::Write { sequences: 2.., .. }));
        let many = match self {
            Peer::Program { words } => !Path::new(&words[0])
                .file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with("llama-bench")),
            Peer::Server(_) => false,
        };
        alone || many
    }

    /// Tokens per second of each test, measured once.
    ///
    /// # Errors
    /// See [`Fault`].
    pub fn measure(
        &self,
        group: &[Test],
        model: &Path,
        threads: usize,
        kv: KvType,
        round: usize,
    ) -> Result<Vec<f64>, Fault> {
        match self {
            Peer::Program { words } => {
                let mut command = Command::new(&words[0]);
                command.args(&words[1..]).args(flags(group, model, threads, kv));
                rates(group, &output(command)?)
            }
            Peer::Server(server) => {
                group.iter().map(|test| server.rate(*test, round).map_err(Fault::Server)).collect()
            }
        }
    }
}

/// The flags of `llama-bench` that stand for a group.
fn flags(group: &[Test], model: &Path, threads: usize, kv: KvType) -> Vec<OsString> {
    let mut flags: Vec<OsString> = vec!["-m".into(), model.into()];
    let mut flag = |name: &str, value: String| flags.extend([name.into(), value.into()]);
    flag("-t", threads.to_string());
    flag("-r", "1".into());
    flag("-o", "json".into());
    if kv != KvType::F16 {
        flag("-ctk", kv.keys().ggml_name().into());
        flag("-ctv", kv.values().ggml_name().into());
    }
    let listed = |value: &dyn Fn(&Test) -> Option<usize>| {
        let mut values: Vec<usize> = group.iter().filter_map(value).collect();
        values.dedup();
        values.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
    };
    match group[0] {
        Test::Prompt { .. } => {
            flag("-p", listed(&|test| Some(test.tokens())));
            flag("-n", "0".into());
        }
        Test::Write { tokens, sequences: first, .. } => {
            flag("-p", "0".into());
            flag("-n", tokens.to_string());
            flag(
                "-d",
                listed(&|test| match *test {
                    // Every number of sequences is written after the same depths.
                    Test::Write { depth, sequences, .. } => (sequences == first).then_some(depth),
                    Test::Prompt { .. } => None,
                }),
            );
            let batches = listed(&|test| match *test {
                Test::Write { sequences, .. } => Some(sequences),
                Test::Prompt { .. } => None,
            });
            if batches != "1" {
                flag("-npl", batches);
            }
        }
    }
    flags
}

fn output(mut command: Command) -> Result<String, Fault> {
    let ran = command.stdin(Stdio::null()).output().map_err(Fault::Start)?;
    if !ran.status.success() {
        let said = String::from_utf8_lossy(&ran.stderr).into_owned();
        return Err(Fault::Ended { status: ran.status, said });
    }
    Ok(String::from_utf8_lossy(&ran.stdout).into_owned())
}

/// The figures for a group in the JSON of `llama-bench`, before which libraries may have said something.
fn rates(group: &[Test], output: &str) -> Result<Vec<f64>, Fault> {
    let begin = output.find('[').ok_or_else(|| Fault::Output("there is no list in it".into()))?;
    let list = serde_json::Deserializer::from_str(&output[begin..]).into_iter::<Vec<Value>>().next();
    let list = list.expect("the list has begun").map_err(|error| Fault::Output(error.to_string()))?;
    let number = |entry: &Value, key: &str, default: usize| {
        entry.get(key).map_or(Some(default), |value| value.as_u64().map(|n| n as usize))
    };
    let is_of = |entry: &Value, test: &Test| {
        let (prompt, written, depth, sequences) = match *test {
            Test::Prompt { tokens } => (tokens, 0, 0, 1),
            Test::Write { tokens, depth, sequences } => (0, tokens, depth, sequences),
        };
        number(entry, "n_prompt", usize::MAX) == Some(prompt)
            && number(entry, "n_gen", usize::MAX) == Some(written)
            && number(entry, "n_depth", 0) == Some(depth)
            && number(entry, "n_sequences", 1) == Some(sequences)
    };
    let rate = |test: &Test| {
        let entry = list.iter().find(|entry| is_of(entry, test));
        let rate = entry.and_then(|entry| entry.get("avg_ts")?.as_f64());
        rate.filter(|rate| rate.is_finite() && *rate > 0.0).ok_or(Fault::Missing(*test))
    };
    group.iter().map(rate).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROMPTS: [Test; 2] = [Test::Prompt { tokens: 128 }, Test::Prompt { tokens: 512 }];

    fn write(depth: usize, sequences: usize) -> Test {
        Test::Write { tokens: 16, depth, sequences }
    }

    fn program(text: &str) -> Peer {
        Peer::parse(text).expect(text)
    }

    fn told(group: &[Test], kv: KvType) -> String {
        let flags = flags(group, Path::new("a model.gguf"), 2, kv);
        flags.iter().map(|flag| flag.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn peers_have_short_names() {
        let name = |text: &str| program(text).name();
        assert_eq!(name("/opt/llama/llama-bench --repack 0"), "llama-bench --repack 0");
        assert_eq!(name("/usr/bin/python3 bench/peer.py ik_llama_cpp -rtr 1"), "peer.py ik_llama_cpp -rtr 1");
        assert_eq!(name("http://127.0.0.1:8080/"), "http://127.0.0.1:8080");
        assert!(Peer::parse("  ").is_err());
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a program");
        std::fs::write(&path, "").expect("written");
        assert_eq!(name(path.to_str().expect("text")), "a program");
    }

    #[test]
    fn a_group_is_told_as_llama_bench_takes_it() {
        let common = "-m a model.gguf -t 2 -r 1 -o json ";
        assert_eq!(told(&PROMPTS, KvType::F16), format!("{common}-p 128,512 -n 0"));
        let writes = [write(0, 1), write(2048, 1)];
        assert_eq!(told(&writes, KvType::F16), format!("{common}-p 0 -n 16 -d 0,2048"));
        assert_eq!(told(&writes[..1], KvType::F32), format!("{common}-ctk f32 -ctv f32 -p 0 -n 16 -d 0"));
        let batches = [write(0, 4), write(64, 4), write(0, 8), write(64, 8)];
        assert_eq!(told(&batches, KvType::F16), format!("{common}-p 0 -n 16 -d 0,64 -npl 4,8"));
        let llama = program("/opt/llama-bench --repack 0");
        assert!(llama.takes(&writes) && !llama.takes(&batches));
        assert!(program("python3 bench/peer.py xllamacpp").takes(&batches));
        assert!(!program("http://localhost:1").takes(&batches));
    }

    #[test]
    fn figures_are_found_by_what_was_measured() {
        let entry = |prompt: usize, written: usize, depth: usize, rate: &str| {
            format!(
                "{{\"n_prompt\": {prompt}, \"n_gen\": {written}, \"n_depth\": {depth}, \"avg_ts\": {rate}}}"
            )
        };
        let list = |entries: &[String]| format!("loading...\n[{}]\nbye", entries.join(",\n"));
        let output = list(&[entry(512, 0, 0, "31.5"), entry(128, 0, 64, "1"), entry(128, 0, 0, "40")]);
        assert_eq!(rates(&PROMPTS, &output).expect("both"), [40.0, 31.5]);
        let fault = |group: &[Test], output: &str| rates(group, output).expect_err(output).to_string();
        assert_eq!(fault(&[write(0, 1)], &output), "its output has no figure for `write 16`");
        let wrong = list(&[entry(0, 16, 64, "0")]);
        assert_eq!(fault(&[write(64, 1)], &wrong), "its output has no figure for `write 16 after 64`");
        for output in ["", "no json", "[{]", "[1, 2"] {
            assert!(rates(&PROMPTS, output).is_err(), "{output}");
        }
        // Several sequences are told apart; llama-bench, which has but one, says nothing of them.
        let many = "[{\"n_prompt\":0,\"n_gen\":16,\"n_depth\":0,\"n_sequences\":8,\"avg_ts\":9.5}]";
        assert_eq!(rates(&[write(0, 8)], many).expect("eight"), [9.5]);
        assert!(rates(&[write(0, 1)], many).is_err());
    }

    #[test]
    fn the_reason_is_an_error_or_what_was_said_last() {
        assert_eq!(
            last_words("loading\nerror: unknown architecture\nbye\n\n"),
            ": error: unknown architecture"
        );
        assert_eq!(last_words("GGML_ASSERT(S > 0) failed\n#1 main\n"), ": GGML_ASSERT(S > 0) failed");
        assert_eq!(last_words("first\nlast\n"), ": last");
        assert_eq!(last_words(" \n"), "");
    }
}
