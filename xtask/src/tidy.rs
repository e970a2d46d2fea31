//! `cargo xtask tidy`: the invariants of the tree that a program can see.
//!
//! Each rule is a function from a [`Tree`] to its [`Violation`]s, so a test can hand it a tree that breaks the rule.

use std::fmt;
use std::path::Path;

use crate::workspace;

pub mod documents;
pub mod layers;
pub mod rust;
pub mod size;
pub mod source;
pub mod text;
pub mod tree;

pub use tree::{File, Tree};

/// One broken rule at one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The file, relative to the root.
    pub path: String,
    /// The line, from 1; 0 when the rule is about the whole file.
    pub line: usize,
    /// What is wrong and what is wanted.
    pub message: String,
}

impl Violation {
    /// A violation at `line` (from 1; 0: the whole file).
    pub fn new(path: &str, line: usize, message: impl Into<String>) -> Violation {
        Violation { path: path.to_owned(), line, message: message.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path, self.message),
            line => write!(f, "{}:{line}: {}", self.path, self.message),
        }
    }
}

/// Checks the checkout at `root` against every rule.
///
/// # Errors
/// All violations, one a line; or the checkout could not be read.
pub fn run(root: &Path) -> Result<(), String> {
    let tree = Tree::read(root)?;
    let violations = check(&tree, &workspace::read(root)?.members)?;
    if violations.is_empty() {
        println!("{} files are tidy", tree.files.len());
        return Ok(());
    }
    let lines: Vec<String> = violations.iter().map(ToString::to_string).collect();
    Err(format!("{} rules are broken:\n{}", lines.len(), lines.join("\n")))
}

/// Takes counts that went down into the ratchet and drops the entries that it no longer needs.
///
/// # Errors
/// The ratchet cannot be read or written.
pub fn lower(root: &Path) -> Result<(), String> {
    let tree = Tree::read(root)?;
    let lowered = size::Ratchet::of(&tree)?.lowered(&tree);
    let path = root.join(size::RATCHET);
    std::fs::write(&path, lowered.to_string()).map_err(|error| format!("{}: {error}", path.display()))
}

/// All violations of all rules.
///
/// # Errors
/// The ratchet cannot be read.
pub fn check(tree: &Tree, members: &[workspace::Member]) -> Result<Vec<Violation>, String> {
    let mut violations = Vec::new();
    violations.extend(rust::opens_with_doc_comment(tree));
    violations.extend(rust::forbids_unsafe(tree, members));
    violations.extend(rust::leaves_environment_alone(tree));
    violations.extend(layers::follow_the_line(members));
    violations.extend(text::has_no_marks(tree));
    violations.extend(text::names_no_machine(tree));
    violations.extend(size::files_fit(tree));
    violations.extend(size::Ratchet::of(tree)?.violations(tree));
    violations.extend(documents::name_every_crate(tree, members));
    violations.extend(documents::changelog_is_open(tree));
    Ok(violations)
}
