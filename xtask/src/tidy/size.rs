//! Rules of size: a file that one sitting can read, a function that one screen can show.
//!
//! What is longer stands in the ratchet with its length, and that length can only go down.

use std::collections::BTreeMap;
use std::fmt;

use super::source::{code, functions};
use super::{Tree, Violation};

/// Where the exceptions are listed, relative to the root.
pub const RATCHET: &str = "xtask/ratchet.txt";

const FILE_LINES_MAX: usize = 800;
const FUNCTION_LINES_MAX: usize = 70;
const FILE_BYTES_MAX: u64 = 12_000_000;
const HEADER: &str = "\
# Rust files over 800 lines and functions over 70, with their lines. A number here can only go down:
# `cargo xtask tidy --lower` takes over what became shorter. A new entry needs its reason in the commit.
";

/// Every clone carries every file for good.
pub fn files_fit(tree: &Tree) -> Vec<Violation> {
    let large = tree.files.iter().filter(|file| file.size_bytes > FILE_BYTES_MAX);
    large
        .map(|file| {
            Violation::new(&file.path, 0, format!("{} bytes, at most {FILE_BYTES_MAX}", file.size_bytes))
        })
        .collect()
}

/// The listed exceptions: `path` or `path::function`, and the lines it may have.
#[derive(Debug, PartialEq, Eq)]
pub struct Ratchet {
    limits: BTreeMap<String, usize>,
}

impl Ratchet {
    /// The ratchet of the tree; empty if it has none.
    ///
    /// # Errors
    /// A line that is neither a comment nor a name and a number.
    pub fn of(tree: &Tree) -> Result<Ratchet, String> {
        let text = tree.text(RATCHET).unwrap_or_default();
        let entries = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let entry = |line: &str| {
            let (name, lines) = line.rsplit_once(' ')?;
            Some((name.trim().to_owned(), lines.parse().ok()?))
        };
        let limits = entries
            .map(|line| entry(line).ok_or_else(|| format!("{RATCHET}: {line:?} is not a name and a number")))
            .collect::<Result<_, String>>()?;
        Ok(Ratchet { limits })
    }

    /// What is too long, and entries that are higher than they need to be.
    pub fn violations(&self, tree: &Tree) -> Vec<Violation> {
        let long = long(tree);
        let mut violations = Vec::new();
        for (name, found) in &long {
            let limit = self.limits.get(name).copied().unwrap_or(found.max);
            if found.lines > limit {
                let message = format!("{name} has {} lines, at most {limit}: split it", found.lines);
                violations.push(Violation::new(&found.path, found.line, message));
            }
        }
        for (name, &limit) in &self.limits {
            if long.get(name).is_none_or(|found| found.lines < limit) {
                let message =
                    format!("{name} {limit} is more than it has now: run `cargo xtask tidy --lower`");
                violations.push(Violation::new(RATCHET, 0, message));
            }
        }
        violations
    }

    /// The same entries with the lines they have now, where those are fewer; without those that are no longer long.
    pub fn lowered(&self, tree: &Tree) -> Ratchet {
        let long = long(tree);
        let kept = self.limits.iter().filter_map(|(name, &limit)| {
            let found = long.get(name)?;
            Some((name.clone(), found.lines.min(limit)))
        });
        Ratchet { limits: kept.collect() }
    }
}

impl fmt::Display for Ratchet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HEADER)?;
        self.limits.iter().try_for_each(|(name, lines)| writeln!(f, "{name} {lines}"))
    }
}

struct Long {
    path: String,
    line: usize,
    lines: usize,
    max: usize,
}

/// Everything over its limit by name. Of two functions with one name in a file the longer one counts.
fn long(tree: &Tree) -> BTreeMap<String, Long> {
    let mut long = BTreeMap::new();
    for (path, text) in tree.rust().filter(|(_, text)| !is_generated(tree, text)) {
        let lines = text.lines().count();
        if lines > FILE_LINES_MAX {
            let found = Long { path: path.to_owned(), line: 0, lines, max: FILE_LINES_MAX };
            long.insert(path.to_owned(), found);
        }
        for function in functions(&code(text)).into_iter().filter(|f| f.lines > FUNCTION_LINES_MAX) {
            let name = format!("{path}::{}", function.name);
            if long.get(&name).is_none_or(|other: &Long| other.lines < function.lines) {
                let (line, lines) = (function.line, function.lines);
                long.insert(name, Long { path: path.to_owned(), line, lines, max: FUNCTION_LINES_MAX });
            }
        }
    }
    long
}

/// A file of tables says in its opening comment that it is generated and names, in backquotes, the Python script of
/// this tree that wrote it.
fn is_generated(tree: &Tree, text: &str) -> bool {
    let opening = text.lines().take_while(|line| line.starts_with("//!")).collect::<Vec<_>>().join(" ");
    let mut quoted = opening.split('`').skip(1).step_by(2);
    let has_script = quoted.any(|name| name.ends_with(".py") && tree.text(name).is_some());
    has_script && opening.to_lowercase().contains("generated")
}

#[cfg(test)]
mod tests {
    use super::super::File;
    use super::*;

    fn tree(function_lines: usize, ratchet: &str) -> Tree {
        let text = format!("//! A.\nfn f() {{\n{}}}\n", "    g();\n".repeat(function_lines - 2));
        Tree::of(&[("a.rs", &text), (RATCHET, ratchet)])
    }

    fn messages(tree: &Tree) -> Vec<String> {
        let ratchet = Ratchet::of(tree).unwrap();
        ratchet.violations(tree).into_iter().map(|violation| violation.message).collect()
    }

    #[test]
    fn a_length_can_only_go_down() {
        assert!(messages(&tree(70, "")).is_empty());
        assert_eq!(messages(&tree(71, "")), ["a.rs::f has 71 lines, at most 70: split it"]);
        assert!(messages(&tree(80, "a.rs::f 80\n")).is_empty());
        assert_eq!(messages(&tree(81, "a.rs::f 80\n")), ["a.rs::f has 81 lines, at most 80: split it"]);
        assert_eq!(messages(&tree(79, "a.rs::f 80\n")).len(), 1);
        assert_eq!(messages(&tree(70, "a.rs::f 80\n")).len(), 1);
    }

    #[test]
    fn lowering_never_raises() {
        let lowered = |lines, ratchet| {
            let tree = tree(lines, ratchet);
            Ratchet::of(&tree).unwrap().lowered(&tree).to_string()
        };
        assert_eq!(lowered(75, "a.rs::f 80\n"), format!("{HEADER}a.rs::f 75\n"));
        assert_eq!(lowered(90, "a.rs::f 80\n"), format!("{HEADER}a.rs::f 80\n"));
        assert_eq!(lowered(60, "a.rs::f 80\n"), HEADER);
        assert!(Ratchet::of(&Tree::of(&[(RATCHET, "a.rs\n")])).is_err());
    }

    #[test]
    fn long_and_large_files_are_found() {
        let text = format!("//! A.\n{}", "// a\n".repeat(800));
        let generated = format!("//! A, generated. Script: `make.py`.\n{}", "// a\n".repeat(800));
        let large = File { path: "b".into(), size_bytes: FILE_BYTES_MAX + 1, text: None };
        let mut tree = Tree::of(&[("a.rs", &text), ("g.rs", &generated), ("make.py", "")]);
        assert_eq!(messages(&tree), ["a.rs has 801 lines, at most 800: split it"]);
        tree.files.retain(|file| file.path != "make.py");
        assert_eq!(messages(&tree).len(), 2);
        tree.files.push(large);
        assert_eq!(files_fit(&tree).len(), 1);
    }
}
