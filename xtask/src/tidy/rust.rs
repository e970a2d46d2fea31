//! Rules of Rust files: an opening sentence, no unsafe code where none belongs, no reading of the environment.

use super::source::{code, line_of, without_test_modules, words};
use super::{Tree, Violation};
use crate::workspace::Member;

/// Crates that may hold unsafe code: the operating system and kernels. All others forbid it at their root, so
/// that memory errors can only come from there.
const UNSAFE_CRATES: &[&str] = &["sys", "kernels"];

/// Every file says at its top what it is, so that a reader need not guess from its contents. Build scripts and unit
/// tests split off into a `tests.rs` are named by what they belong to.
pub fn opens_with_doc_comment(tree: &Tree) -> Vec<Violation> {
    let opens = |text: &str| text.trim_start().starts_with("//!");
    let exempt = |path: &str| matches!(path.rsplit('/').next(), Some("build.rs" | "tests.rs"));
    let silent = tree.rust().filter(|(path, text)| !exempt(path) && !opens(text));
    silent
        .map(|(path, _)| Violation::new(path, 1, "must open with a `//!` comment that says what is in it"))
        .collect()
}

/// The root file of every library and program outside of [`UNSAFE_CRATES`] forbids unsafe code.
pub fn forbids_unsafe(tree: &Tree, members: &[Member]) -> Vec<Violation> {
    let safe = members.iter().filter(|member| !UNSAFE_CRATES.contains(&member.name.as_str()));
    let roots = safe.flat_map(|member| &member.roots);
    let forbids = |text: &str| code(text).contains("#![forbid(unsafe_code)]");
    roots
        .filter(|root| !tree.text(root).is_some_and(forbids))
        .map(|root| Violation::new(root, 0, "must say `#![forbid(unsafe_code)]`"))
        .collect()
}

/// Only the program reads the environment and its arguments; everything below is told, so that two engines in one
/// process can differ and a test is not changed by the shell it runs in. Tests, examples, benches and build scripts are
/// programs of their own.
pub fn leaves_environment_alone(tree: &Tree) -> Vec<Violation> {
    let library = |path: &str| {
        let outside = ["/tests/", "/tests.rs", "/examples/", "/benches/", "/build.rs"];
        let is_own_program = outside.iter().any(|part| path.contains(part));
        path.starts_with("crates/") && !path.starts_with("crates/strata/") && !is_own_program
    };
    let mut violations = Vec::new();
    for (path, text) in tree.rust().filter(|(path, _)| library(path)) {
        let code = without_test_modules(&code(text));
        for offset in words(&code, "env") {
            let before = code[..offset].trim_end();
            let after = code[offset + "env".len()..].trim_start();
            if before.ends_with("std::")
                || ["::var", "::args", "::set_", "::remove_"].iter().any(|p| after.starts_with(p))
            {
                let message = "only crates/strata reads std::env; take the value as a parameter";
                violations.push(Violation::new(path, line_of(&code, offset), message));
            }
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_must_say_what_it_is() {
        let tree =
            Tree::of(&[("a.rs", "//! A.\n"), ("b.rs", "// B.\n"), ("x/tests.rs", "use a;\n"), ("c.py", "")]);
        let found = opens_with_doc_comment(&tree);
        assert_eq!(found.iter().map(|v| v.path.as_str()).collect::<Vec<_>>(), ["b.rs"]);
    }

    #[test]
    fn unsafe_code_is_forbidden_outside_its_crates() {
        let member = |name: &str| Member {
            name: name.into(),
            folder: format!("crates/{name}"),
            roots: vec![format!("crates/{name}/src/lib.rs")],
            edges: vec![],
        };
        let tree = Tree::of(&[
            ("crates/gguf/src/lib.rs", "//! G.\n#![forbid(unsafe_code)]\n"),
            ("crates/chat/src/lib.rs", "//! C.\n// #![forbid(unsafe_code)]\n"),
            ("crates/sys/src/lib.rs", "//! S.\n"),
        ]);
        let found = forbids_unsafe(&tree, &[member("gguf"), member("chat"), member("sys")]);
        assert_eq!(found.iter().map(|v| v.path.as_str()).collect::<Vec<_>>(), ["crates/chat/src/lib.rs"]);
    }

    #[test]
    fn the_environment_is_read_in_one_place() {
        let reads = "//! R.\nuse std::env;\nfn f() { env::var(\"X\"); }\n";
        let innocent = "//! std::env\nfn f() { env!(\"X\"); \"std::env\"; }\n#[cfg(test)]\nmod tests { use std::env; }\n";
        let tree = Tree::of(&[
            ("crates/engine/src/a.rs", reads),
            ("crates/engine/src/b.rs", innocent),
            ("crates/engine/tests/c.rs", reads),
            ("crates/engine/examples/d.rs", reads),
            ("crates/strata/src/main.rs", reads),
        ]);
        let found = leaves_environment_alone(&tree);
        let places: Vec<_> = found.iter().map(|v| (v.path.as_str(), v.line)).collect();
        assert_eq!(places, [("crates/engine/src/a.rs", 2), ("crates/engine/src/a.rs", 3)]);
    }
}
