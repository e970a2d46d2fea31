//! Rules of text files: no unfinished marks, nothing that only holds on one machine.
//!
//! The forbidden strings are written in pieces so that this file does not break its own rules.

use super::source::{line_of, words};
use super::{Tree, Violation};

const MARKS: &[&str] = &[concat!("TO", "DO"), concat!("FIX", "ME"), concat!("X", "XX")];
const SOURCES: &[&str] =
    &[".rs", ".py", ".sh", ".toml", ".yml", ".glsl", ".comp", ".js", ".css", ".html", ".ci/run"];
const FOLDERS: &[&str] = &[concat!("/", "work/"), concat!("/", "root/")];
const HOSTS: &[&str] = &[
    concat!("crates", ".io"),
    concat!("pypi", ".org"),
    concat!("pythonhosted", ".org"),
    concat!("deb.", "debian.org"),
    concat!("registry.", "npmjs"),
];

/// Unfinished work is an issue, not a mark that nobody reads again.
pub fn has_no_marks(tree: &Tree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (path, text) in tree.texts().filter(|(path, _)| SOURCES.iter().any(|end| path.ends_with(end))) {
        for mark in MARKS {
            let message = format!("says {mark}: finish it or file an issue");
            violations.extend(
                words(text, mark).map(|offset| Violation::new(path, line_of(text, offset), &message)),
            );
        }
    }
    violations
}

/// A checkout must work in any folder and against any mirror of a package registry.
pub fn names_no_machine(tree: &Tree) -> Vec<Violation> {
    let mut violations = Vec::new();
    // Cargo writes its registry's address into the lock file itself.
    for (path, text) in tree.texts().filter(|(path, _)| !path.ends_with("Cargo.lock")) {
        for folder in FOLDERS {
            let starts_path = |offset: usize| {
                let before = text[..offset].chars().next_back();
                !before.is_some_and(|c| c.is_alphanumeric() || "._-/~}".contains(c))
            };
            let found =
                text.match_indices(folder).map(|(offset, _)| offset).filter(|&offset| starts_path(offset));
            let message = format!("names the folder {folder} of one machine");
            violations.extend(found.map(|offset| Violation::new(path, line_of(text, offset), &message)));
        }
        for host in HOSTS {
            let found = text.match_indices(host);
            let message =
                format!("names the package registry {host}: name the package, its client knows the host");
            violations.extend(found.map(|(offset, _)| Violation::new(path, line_of(text, offset), &message)));
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_found_as_words() {
        let text = format!("a {}: b\nIQ2_{}S\n", MARKS[0], MARKS[2]);
        let tree = Tree::of(&[("a.rs", &text), ("a.md", &text)]);
        let found = has_no_marks(&tree);
        assert_eq!(found.iter().map(|v| (v.path.as_str(), v.line)).collect::<Vec<_>>(), [("a.rs", 1)]);
    }

    #[test]
    fn machine_paths_and_hosts_are_found() {
        let text = format!("ok\n\"{}x\"\n{}\nhome{}y ..{}y\n", FOLDERS[0], HOSTS[0], FOLDERS[0], FOLDERS[1]);
        let tree = Tree::of(&[("a.md", &text), ("Cargo.lock", &text)]);
        let found = names_no_machine(&tree);
        assert_eq!(
            found.iter().map(|v| (v.path.as_str(), v.line)).collect::<Vec<_>>(),
            [("a.md", 2), ("a.md", 3)]
        );
    }
}
