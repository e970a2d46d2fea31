//! `cargo xtask NAME`: everything about this repository that is automated, as a program.

#![forbid(unsafe_code)]

use std::process::ExitCode;

const USAGE: &str = "\
cargo xtask NAME

  answer [PROMPT] [FLAGS]   fetch a small real model, build Strata, print the model's answer;
                            FLAGS go to `strata run` as they are
  test                      everything a change must pass: format, tidy, lints, tests
  tidy [--lower]            the invariants of the tree; --lower takes improved counts into the ratchet
  mutate [--quick | NAME]   breaks each rule of purity once in a copy and sees its test fail
  emulate avx512 | neon [FILTER]
                            the kernels' tests on a CPU that this machine need not have
  qualify                   the long checks, by hand; appends their figures to bench/qualify.csv
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (name, rest) = match arguments.split_first() {
        Some((name, rest)) => (name.as_str(), rest),
        None => ("help", &[][..]),
    };
    let root = xtask::root();
    let outcome = match name {
        "answer" => xtask::answer::run(&root, rest),
        "test" => no_flags(rest).and_then(|()| xtask::test::run(&root)),
        "tidy" if rest == ["--lower"] => xtask::tidy::lower(&root),
        "tidy" => no_flags(rest).and_then(|()| xtask::tidy::run(&root)),
        "mutate" => xtask::mutate::run(&root, rest),
        "emulate" => xtask::emulate::run(&root, rest),
        "qualify" => no_flags(rest).and_then(|()| xtask::qualify::run(&root)),
        "help" | "-h" | "--help" => {
            print!("{USAGE}");
            Ok(())
        }
        other => Err(format!("no subcommand is called {other:?}\n\n{USAGE}")),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}

fn no_flags(rest: &[String]) -> Result<(), String> {
    match rest.first() {
        None => Ok(()),
        Some(extra) => Err(format!("this subcommand takes no argument {extra:?}\n\n{USAGE}")),
    }
}
