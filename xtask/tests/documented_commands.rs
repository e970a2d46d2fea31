//! Every command that the README prints is run as printed: by `.ci/run` if it stands there, else by this test.

use std::fs;
use std::process::Command;

use xtask::commands::{documented, script_runs};

#[test]
fn the_readme_prints_only_commands_that_work() {
    let root = xtask::root();
    let readme = fs::read_to_string(root.join("README.md")).expect("README.md");
    let script = fs::read_to_string(root.join(".ci/run")).expect(".ci/run");
    let commands = documented(&readme);
    assert!(
        commands.iter().any(|command| command == "cargo xtask test"),
        "the README names its test command"
    );
    for command in commands.iter().filter(|command| !script_runs(&script, command)) {
        let output = Command::new("sh").arg("-c").arg(command).current_dir(&root).output().expect("a shell");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "`{command}` of README.md ended with {}:\n{errors}", output.status);
    }
}
