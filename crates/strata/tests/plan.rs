//! `strata plan`: what goes where, and what to do where it does not fit.

mod support;

use support::*;

#[test]
fn every_part_is_listed_with_its_reason_and_they_add_up() {
    for name in ["q4e-tiny-F32", "q3moe-tiny-F32", "llama-tiny-F32"] {
        let file = model(name);
        let plan = json(&["plan", "-m", &file, "--json"]);
        let parts = plan["parts"].as_array().expect("parts");
        let sum = |key: &str, place: &str| -> u64 {
            let of_place = parts.iter().filter(|part| part["place"] == place);
            of_place.map(|part| part[key].as_u64().expect("bytes")).sum()
        };
        assert_eq!(plan["process_bytes"], sum("bytes", "process"), "{name}");
        assert_eq!(plan["total_bytes"], sum("bytes", "process") + sum("cached_bytes", "mapped"), "{name}");
        assert!(plan["total_bytes"].as_u64() <= plan["available_bytes"].as_u64(), "{name}");
        let text = strata(&["plan", "-m", &file]);
        assert_eq!(text.code, 0, "{}", text.stderr);
        for part in parts {
            let name = part["name"].as_str().expect("a name");
            assert!(text.stdout.contains(name) && part["reason"].as_str().is_some_and(|r| !r.is_empty()));
        }
        for words in ["total", "available: ", "context", "tokens", "at once", "sequences"] {
            assert!(text.stdout.contains(words), "{words:?} in {}", text.stdout);
        }
    }
}

/// An 8 GB machine, invented: what is refused says both numbers and a command line that works.
#[test]
fn what_does_not_fit_is_refused_with_what_would() {
    let file = model("q4e-tiny-F32");
    let wanted = ["plan", "-m", &file, "--memory", "300M", "--kv", "f32", "--ctx", "200000"];
    let ran = strata(&wanted);
    assert_eq!((ran.code, &*ran.stdout), (8, ""), "{ran:?}");
    assert!(ran.stderr.starts_with(&format!("error: {file} does not fit: ")), "{}", ran.stderr);
    assert!(
        ran.stderr.contains("are needed and 300.0 MiB are available (as --memory says)"),
        "{}",
        ran.stderr
    );
    assert_eq!(ran.stderr.lines().count(), 1);
    let (_, advice) = ran.stderr.trim_end().split_once("it fits with ").expect("advice");
    assert!(advice.contains("--ctx "), "{advice}");
    for setting in advice.split(", or with ") {
        let flags = setting.split(' ').filter(|word| *word != "and").collect::<Vec<_>>();
        let mut args = ["plan", "-m", &file, "--memory", "300M"].to_vec();
        for (flag, value) in [("--kv", "f32"), ("--ctx", "200000")] {
            if !flags.contains(&flag) {
                args.extend([flag, value]);
            }
        }
        args.extend(flags);
        let ran = strata(&args);
        assert_eq!(ran.code, 0, "{args:?}: {}", ran.stderr);
    }
    let ran = strata(&["plan", "-m", &file, "--memory", "1M"]);
    assert!(ran.code == 8 && ran.stderr.contains("no setting fits: even the smallest needs"), "{ran:?}");
}

#[test]
fn settings_change_what_they_should() {
    let file = model("q3moe-tiny-F32");
    let plan = |more: &[&str]| json(&[&["plan", "-m", &file, "--json", "--ctx", "400000"], more].concat());
    let bytes = |plan: &serde_json::Value, name: &str| -> u64 {
        let parts = plan["parts"].as_array().expect("parts");
        parts
            .iter()
            .filter(|part| part["name"] == name)
            .map(|part| part["bytes"].as_u64().expect("bytes"))
            .sum()
    };
    let base = plan(&["--parallel", "1"]);
    assert_eq!(base["kv"], "f16");
    let weights = |memory: &str, how: &str| {
        let plan = plan(&["--memory", memory, "--weights", how]);
        plan["weights"].as_str().map(str::to_owned).expect("how")
    };
    // What was asked for, and the default, which is as good as asked for.
    assert_eq!(plan(&["--memory", "100G"])["weights"], "moved");
    assert_eq!(["moved", "mapped", "read"].map(|how| weights("100G", how)), ["moved", "mapped", "read"]);
    // Moving needs a GiB to spare.
    assert_eq!(["moved", "mapped"].map(|how| weights("1G", how)), ["mapped", "mapped"]);
    let cells = ["f32", "f16", "int8", "k8v4", "q4"]
        .map(|kv| bytes(&plan(&["--parallel", "1", "--kv", kv]), "KV cells"));
    assert!(cells.is_sorted_by(|more, less| more > less), "{cells:?}");
    assert_eq!(cells[1], bytes(&base, "KV cells"));
    assert!(bytes(&plan(&["--parallel", "3"]), "KV cells") > 2 * bytes(&base, "KV cells"));
    assert!(bytes(&plan(&["--chunk", "64"]), "scratch buffers") < bytes(&base, "scratch buffers") / 2);
    let sequences = |memory: &str| plan(&["--memory", memory])["parallel"].as_u64().expect("a number");
    assert_eq!(plan(&["--parallel", "3"])["parallel"], 3);
    assert!(sequences("1G") < 4 && sequences("100G") == 16, "as many as fit, and no more than are of use");
    let read = plan(&["--parallel", "1", "--weights", "read"]);
    assert!(read["process_bytes"].as_u64() > base["process_bytes"].as_u64());
    assert_eq!(read["cached_bytes"], 0);
}

/// The process against its plan: what was planned byte by byte and what was only estimated, together.
#[cfg(target_os = "linux")]
#[test]
fn a_run_stays_within_its_plan() {
    for (name, weights) in [
        ("q4e-tiny-F32", "mapped"),
        ("q3moe-tiny-F32", "read"),
        ("q3moe-tiny-F32", "moved"),
        ("q35moe-tiny-F32", "read"),
    ] {
        let file = model(name);
        let settings = ["-m", &file, "--ctx", "600", "--weights", weights, "--json"];
        let plan = json(&[&["plan"], &settings[..]].concat());
        let prompt = "word ".repeat(80);
        let run = json(&[&["run", "--raw", "-n", "3", "-p", &prompt], &settings[..]].concat());
        let (peak, planned) = (run["peak_memory_bytes"].as_u64(), plan["total_bytes"].as_u64());
        assert!(peak.is_some() && peak <= planned, "{name}: {peak:?} of {planned:?}");
    }
}

/// Without a planned budget, the addresses for keys and values were as many as no limited process may have, and logits of
/// many rows were more than was planned.
#[cfg(target_os = "linux")]
#[test]
fn every_command_runs_in_few_addresses() {
    let file = model("q4e-tiny-F32");
    let folder = tempfile::tempdir().expect("a folder");
    let text = folder.path().join("text.txt");
    std::fs::write(&text, "word and word ".repeat(60)).expect("a file");
    let text = text.display().to_string();
    let tokens: Vec<String> = (0..130).map(|i| (i * 7 % 1000).to_string()).collect();
    let tokens = tokens.join(",");
    let commands: [&[&str]; 7] = [
        &["run", "--raw", "-n", "3", "-p", "word"],
        &["run", "--raw", "-n", "3", "-p", "word", "--weights", "mapped"],
        &["run", "--raw", "-n", "3", "-p", "word", "--weights", "read"],
        &["bench", "-p", "80", "-n", "3", "--repeat", "1"],
        &["logits", "--tokens", &tokens, "--json"],
        &["logits", "--tokens", &tokens, "--json", "--taps"],
        &["perplexity", "-f", &text, "-c", "64"],
    ];
    for command in commands {
        // The limit is the shell's, which then becomes the program.
        let mut limited = std::process::Command::new("sh");
        limited.args(["-c", "ulimit -v 3000000 && exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_strata")]);
        let ran = limited.args(command).args(["-m", &file, "--threads", "2"]).output().expect("a shell");
        let errors = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "{}: {errors}", command[..2].join(" "));
    }
}
