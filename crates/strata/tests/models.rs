//! Models by name: pulled from a hub, listed, used and removed. The hub is a stub on this machine.

mod support;

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use support::stub::{Reply, Stub};
use support::*;

/// A data folder with a name that is no plain one, and the environment of a user who has it.
struct Home {
    folder: tempfile::TempDir,
}

impl Home {
    fn new() -> Home {
        let folder = tempfile::Builder::new().prefix("daten \u{fc} ").tempdir().expect("a folder");
        Home { folder }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = program(args);
        for name in
            ["HF_TOKEN", "HF_ENDPOINT", "XDG_DATA_HOME", "HOME", "http_proxy", "HTTP_PROXY", "ALL_PROXY"]
        {
            command.env_remove(name);
        }
        command.env("STRATA_HOME", self.folder.path());
        command
    }

    fn run(&self, args: &[&str]) -> Ran {
        ran(self.command(args).output().expect("the program starts"))
    }

    fn json(&self, args: &[&str]) -> Value {
        let ran = self.run(args);
        assert_eq!(ran.code, 0, "{args:?}: {}", ran.stderr);
        serde_json::from_str(&ran.stdout).expect("JSON")
    }

    fn fails(&self, args: &[&str], code: i32, words: &str) {
        let ran = self.run(args);
        assert_eq!(ran.code, code, "{args:?}: {ran:?}");
        let sentence = ran.stderr.lines().last().expect("a sentence");
        assert!(sentence.starts_with("error: ") && sentence.contains(words), "{args:?}: {}", ran.stderr);
    }

    fn put(&self, name: &str, model: &str) {
        let path = self.folder.path().join("models").join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        std::fs::copy(oracle::model(model), path).expect("copied");
    }

    fn names(&self) -> Vec<String> {
        let listed = self.json(&["list", "--json"]);
        let models = listed["models"].as_array().expect("an array");
        models.iter().map(|model| model["name"].as_str().expect("a text").to_owned()).collect()
    }
}

/// A hub with these files, each an oracle model.
fn hub(files: &[(&'static str, &str)]) -> Stub {
    let files: Vec<(&str, Vec<u8>)> = files
        .iter()
        .map(|(name, model)| (*name, std::fs::read(oracle::model(model)).expect("read")))
        .collect();
    let sum = |bytes: &[u8]| Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect::<String>();
    let sibling = |(name, bytes): &(&str, Vec<u8>)| json!({"rfilename": name, "size": bytes.len(), "lfs": {"sha256": sum(bytes)}});
    let list = json!({"siblings": files.iter().map(sibling).collect::<Vec<_>>()}).to_string();
    Stub::start(move |request| {
        if request.path.starts_with("/api/models/acme/Tiny-GGUF/") {
            return Reply::new(200, list.clone());
        }
        match files.iter().find(|(name, _)| request.path.ends_with(name)) {
            Some((_, bytes)) => Reply::file(request, bytes, "\"1\""),
            None => Reply::new(404, "no"),
        }
    })
}

const SPLIT: [(&str, &str); 2] = [
    ("F16/q4e-tiny-split-F16-00001-of-00002.gguf", "q4e-tiny-split-F16-00001-of-00002"),
    ("F16/q4e-tiny-split-F16-00002-of-00002.gguf", "q4e-tiny-split-F16-00002-of-00002"),
];

#[test]
fn a_model_is_pulled_listed_used_and_removed() {
    let stub = hub(&[SPLIT[0], SPLIT[1], ("Tiny-Q8_0.gguf", "q4e-tiny-Q8_0")]);
    let home = Home::new();
    let endpoint = stub.endpoint();
    let pull = |what: &str| home.run(&["pull", what, "--endpoint", &endpoint]);
    // Several models: their names and sizes, and how to choose.
    let several = pull("hf:acme/Tiny-GGUF");
    assert_eq!(several.code, 2, "{several:?}");
    assert_eq!(several.stdout.lines().count(), 2, "{several:?}");
    assert!(several.stdout.contains("1.98 MB  Tiny-Q8_0.gguf"), "{several:?}");
    assert!(several.stderr.contains("strata pull hf:acme/Tiny-GGUF:"), "{several:?}");
    assert_eq!(pull("hf:acme/Tiny-GGUF:Q4_K_M").code, 2);
    assert_eq!(pull("hf:acme/Other").code, 7);
    // All files of the set; the hub is named by the environment.
    let mut by_variable = home.command(&["pull", "acme/Tiny-GGUF:F16", "--json"]);
    let pulled = ran(by_variable.env("HF_ENDPOINT", &endpoint).output().expect("started"));
    assert_eq!(pulled.code, 0, "{pulled:?}");
    let pulled: Value = serde_json::from_str(&pulled.stdout).expect("JSON");
    assert_eq!(pulled["files"].as_array().expect("files").len(), 2);
    let quantized = pull("hf:acme/Tiny-GGUF:Q8_0");
    assert_eq!(quantized.code, 0, "{quantized:?}");
    assert!(quantized.stdout.contains("is here: qwen4exp, "), "{quantized:?}");
    assert!(quantized.stdout.contains("strata run -m 'acme/Tiny-GGUF:Tiny-Q8_0.gguf'"), "{quantized:?}");
    assert_eq!(
        home.names(),
        ["acme/Tiny-GGUF:F16/q4e-tiny-split-F16-00001-of-00002.gguf", "acme/Tiny-GGUF:Tiny-Q8_0.gguf"]
    );
    let table = home.run(&["list"]).stdout;
    assert!(table.contains("1.98 MB  acme/Tiny-GGUF:Tiny-Q8_0.gguf\n"), "{table}");
    // By name it is the same model.
    let logits = |path: &str| home.run(&["logits", "-m", path, "--tokens", "5,6", "--json"]).stdout;
    assert_eq!(logits("Tiny-Q8_0"), logits(&model("q4e-tiny-Q8_0")));
    assert_eq!(logits("hf:acme/Tiny-GGUF:F16"), logits(&model("q4e-tiny-F16")));
    home.fails(&["tokenize", "-m", "Tiny-GGUF", "-p", "x"], 3, "fits 2 models");
    home.fails(&["tokenize", "-m", "Tinny-GGUF", "-p", "x"], 3, "the nearest are acme/Tiny-GGUF:");
    // Removed only when that was meant.
    home.fails(&["rm", "Tiny-Q8_0"], 2, "give --yes");
    home.fails(&["rm", "nothing", "--yes"], 3, "is called `nothing`");
    let removed = home.run(&["rm", "Tiny-Q8_0", "--yes"]);
    assert!(removed.code == 0 && removed.stdout.starts_with("1.98 MB are free again: "), "{removed:?}");
    assert_eq!(home.names(), ["acme/Tiny-GGUF:F16/q4e-tiny-split-F16-00001-of-00002.gguf"]);
    assert_eq!(home.run(&["rm", "acme/Tiny-GGUF", "-y"]).code, 0);
    assert!(home.names().is_empty());
    assert!(!home.folder.path().join("models/hf/acme/Tiny-GGUF/F16").exists());
    let empty = home.run(&["list"]).stdout;
    assert!(empty.contains("strata pull"), "{empty}");
}

#[test]
fn a_pull_that_was_cut_off_is_listed_and_removed() {
    let home = Home::new();
    home.put("hf/a/b/x.gguf.part", "q2-tiny-F32");
    home.put("hf/a/b/y-00001-of-00002.gguf", "q2-tiny-F32");
    let part = home.folder.path().join("models/hf/a/b/x.gguf.part.json");
    std::fs::write(&part, "{\"size\": 2000000, \"sha256\": null, \"blob\": \"\", \"etag\": null}")
        .expect("written");
    let table = home.run(&["list"]).stdout;
    assert!(table.contains("a/b:x.gguf  (incomplete: 927 kB of 2.00 MB of a file)"), "{table}");
    assert!(table.contains("a/b:y-00001-of-00002.gguf  (incomplete: 1 of 2 files)"), "{table}");
    let listed = home.json(&["list", "--json"]);
    assert_eq!(
        (&listed["models"][0]["complete"], &listed["models"][0]["files_in_part"]),
        (&false.into(), &1.into())
    );
    // The file that is not there yet could not be opened, which says nothing of what to do.
    home.fails(&["inspect", "x"], 3, "only a part of a/b:x.gguf is here; pull it again");
    assert_eq!(home.run(&["rm", "a/b:x.gguf", "--yes"]).code, 0);
    assert!(!part.exists());
    assert_eq!(home.names(), ["a/b:y-00001-of-00002.gguf"]);
}

/// The name of a file that was put there by hand went to the terminal as it is.
#[test]
fn names_in_a_list_steer_no_terminal() {
    let home = Home::new();
    home.put("a\u{1b}[31m.gguf", "q2-tiny-F32");
    let table = home.run(&["list"]).stdout;
    assert!(table.contains("  a\\u{1b}[31m.gguf\n"), "{table:?}");
}

#[test]
fn a_path_that_exists_wins_over_a_name() {
    let home = Home::new();
    home.put("same.gguf", "q2-tiny-F32");
    home.put("here/only.gguf", "q3-tiny-F32");
    let here = tempfile::tempdir().expect("a folder");
    std::fs::copy(oracle::model("q3-tiny-F32"), here.path().join("same.gguf")).expect("copied");
    let logits = |path: &str| {
        let mut command = home.command(&["logits", "-m", path, "--tokens", "5", "--json"]);
        ran(command.current_dir(here.path()).output().expect("started")).stdout
    };
    assert_eq!(logits("same.gguf"), logits(&model("q3-tiny-F32")));
    assert_eq!(logits("same"), logits(&model("q2-tiny-F32")));
    assert_eq!(logits("only"), logits(&model("q3-tiny-F32")));
}

/// A link out of the data folder must not make `rm` reach there.
#[cfg(unix)]
#[test]
fn what_lies_outside_of_the_data_folder_is_never_removed() {
    let home = Home::new();
    home.put("hf/a/b/x.gguf", "q2-tiny-F32");
    let outside = tempfile::tempdir().expect("a folder");
    let kept = outside.path().join("kept.gguf");
    std::fs::write(&kept, "1").expect("written");
    let link = home.folder.path().join("models/hf/a/b/linked.gguf");
    std::os::unix::fs::symlink(&kept, &link).expect("linked");
    std::os::unix::fs::symlink(outside.path(), home.folder.path().join("models/hf/a/c")).expect("linked");
    assert_eq!(home.names(), ["a/b:linked.gguf", "a/b:x.gguf"]);
    // Of the file that is there, it was said that it is not.
    let path = text(&kept);
    home.fails(&["rm", &path, "--yes"], 3, &format!("is called `{path}`; strata list prints the names"));
    home.fails(&["rm", "../../kept.gguf", "--yes"], 3, "is called `../../kept.gguf`");
    assert_eq!(home.run(&["rm", "a/b", "--yes"]).code, 0);
    assert!(kept.exists() && !link.exists());
    assert!(home.names().is_empty());
}

#[test]
fn without_a_home_folder_paths_still_work() {
    let home = Home::new();
    let run = |args: &[&str]| {
        let mut command = home.command(args);
        ran(command.env_remove("STRATA_HOME").output().expect("the program starts"))
    };
    let file = model("q2-tiny-F32");
    assert_eq!(run(&["tokenize", "-m", &file, "-p", "x"]).code, 0);
    for args in [&["--version"][..], &["--help"], &["pull", "--help"]] {
        assert_eq!(run(args).code, 0, "{args:?}");
    }
    for (args, code, words) in [
        (&["list"][..], 2, "set HOME, or STRATA_HOME"),
        (&["pull", "hf:a/b"], 2, "set HOME, or STRATA_HOME"),
        (&["rm", "a/b", "--yes"], 2, "set HOME, or STRATA_HOME"),
        (&["tokenize", "-m", "a/b", "-p", "x"], 3, "HOME or STRATA_HOME must be set"),
    ] {
        let ran = run(args);
        assert_eq!(ran.code, code, "{args:?}: {ran:?}");
        assert!(ran.stderr.starts_with("error: ") && ran.stderr.contains(words), "{args:?}: {}", ran.stderr);
        assert_eq!(ran.stderr.lines().count(), 1, "{args:?}: {}", ran.stderr);
    }
}

#[test]
fn what_stands_in_the_way_of_a_pull_is_said_in_one_sentence() {
    let stub = hub(&[("x.gguf", "q2-tiny-F32")]);
    let endpoint = stub.endpoint();
    let home = Home::new();
    let pull = |what: &str, more: &[&str], code: i32, words: &str| {
        home.fails(&[&["pull", what], more].concat(), code, words);
    };
    pull("hf:acme/Tiny-GGUF", &["--endpoint", "ftp://x"], 2, "is no address of a hub");
    // Nobody listens there: the port was given back.
    let nobody = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        format!("http://{}", listener.local_addr().expect("an address"))
    };
    pull("hf:acme/Tiny-GGUF", &["--endpoint", &nobody], 7, "cannot reach 127.0.0.1:");
    pull(
        "hf:acme/Tiny-GGUF",
        &["--endpoint", &endpoint, "--token-file", "/no such"],
        6,
        "cannot read /no such",
    );
    let blank = home.folder.path().join("token");
    std::fs::write(&blank, " \n").expect("written");
    pull("hf:acme/Tiny-GGUF", &["--endpoint", &endpoint, "--token-file", &text(&blank)], 2, "holds no token");
    // Where the data folder should be lies a file.
    let file = home.folder.path().join("models");
    std::fs::write(&file, "").expect("written");
    pull("hf:acme/Tiny-GGUF", &["--endpoint", &endpoint], 6, "cannot create the folder");
    let wrong = home.run(&["pull", "../x"]);
    assert!(wrong.code == 2 && wrong.stderr.contains("hf:OWNER/REPO is needed"), "{wrong:?}");
}

/// A token's file is used, and never printed.
#[test]
fn the_token_stays_secret() {
    let stub = hub(&[("x.gguf", "q2-tiny-F32")]);
    let home = Home::new();
    let path = home.folder.path().join("token");
    std::fs::write(&path, "hf_secret\n").expect("written");
    let endpoint = stub.endpoint();
    let args = [
        "--log-level",
        "trace",
        "pull",
        "hf:acme/Tiny-GGUF",
        "--endpoint",
        &endpoint,
        "--token-file",
        &text(&path),
    ];
    let pulled = home.run(&args);
    assert_eq!(pulled.code, 0, "{pulled:?}");
    assert!(!format!("{pulled:?}").contains("hf_secret"));
    assert!(
        stub.requests().iter().all(|request| request.header("authorization") == Some("Bearer hf_secret"))
    );
}

/// A disk without room is a small file system of memory, where this test may make one.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_and_a_read_only_folder_end_a_pull() {
    let stub = hub(&[("x.gguf", "q2-tiny-F32")]);
    let home = Home::new();
    let mount = |options: &str| {
        let args = ["-t", "tmpfs", "-o", options, "none", &text(home.folder.path())];
        Command::new("mount").args(args).output().is_ok_and(|output| output.status.success())
    };
    if !mount("size=64k") {
        return;
    }
    let endpoint = stub.endpoint();
    let pull = ["pull", "hf:acme/Tiny-GGUF", "--endpoint", &endpoint];
    let full = home.run(&pull);
    let read_only = mount("remount,ro,size=4m").then(|| home.run(&pull));
    unmount(home.folder.path());
    assert_eq!(full.code, 6, "{full:?}");
    assert!(full.stderr.contains("needs 927 kB more and has "), "{full:?}");
    let read_only = read_only.expect("remounted");
    assert_eq!(read_only.code, 6, "{read_only:?}");
    assert!(read_only.stderr.contains("Read-only file system"), "{read_only:?}");
}

/// There was room when the pull began, and then somebody else took it: what came stays.
#[cfg(target_os = "linux")]
#[test]
fn a_disk_that_fills_on_the_way_ends_a_pull() {
    let home = Home::new();
    let root = home.folder.path().to_owned();
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=2m", "none", &text(&root)]).output();
    if !mounted.is_ok_and(|output| output.status.success()) {
        return;
    }
    let bytes = std::fs::read(oracle::model("q2-tiny-F32")).expect("read");
    let list = json!({"siblings": [{"rfilename": "x.gguf", "size": bytes.len()}]}).to_string();
    let filler = root.join("filler");
    let stub = Stub::start(move |request| {
        if request.path.starts_with("/api/") {
            return Reply::new(200, list.clone());
        }
        std::fs::write(&filler, vec![0; 1_500_000]).expect("room for this");
        Reply::file(request, &bytes, "\"1\"")
    });
    let ran = home.run(&["pull", "a/b", "--endpoint", &stub.endpoint()]);
    let part = std::fs::metadata(root.join("models/hf/a/b/x.gguf.part")).map(|meta| meta.len());
    unmount(&root);
    assert_eq!(ran.code, 6, "{ran:?}");
    assert!(ran.stderr.contains("x.gguf.part: No space left on device"), "{ran:?}");
    assert!(part.expect("a part") > 0);
}

#[cfg(target_os = "linux")]
fn unmount(folder: &Path) {
    let done = Command::new("umount").arg(folder).status().expect("umount is there where mount is");
    assert!(done.success());
}
