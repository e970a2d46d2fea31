//! Documents in step with the tree.

use super::{Tree, Violation};
use crate::workspace::Member;

/// The map names every crate's folder, so that nobody finds a room that is not on it.
pub fn name_every_crate(tree: &Tree, members: &[Member]) -> Vec<Violation> {
    let path = "ARCHITECTURE.md";
    let map = tree.text(path).unwrap_or_default();
    let missing = members.iter().filter(|member| !map.contains(&format!("`{}`", member.folder)));
    missing.map(|member| Violation::new(path, 0, format!("does not name `{}`", member.folder))).collect()
}

/// The changelog has a part for what is not released yet, where a change is written down with the change.
pub fn changelog_is_open(tree: &Tree) -> Vec<Violation> {
    let path = "CHANGELOG.md";
    let is_open = tree.text(path).is_some_and(|text| text.lines().any(|line| line.trim() == "## Unreleased"));
    if is_open { vec![] } else { vec![Violation::new(path, 0, "has no `## Unreleased` part")] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_off_the_map_is_named() {
        let member = Member { name: "x".into(), folder: "crates/x".into(), roots: vec![], edges: vec![] };
        assert!(
            name_every_crate(&Tree::of(&[("ARCHITECTURE.md", "`crates/x`")]), std::slice::from_ref(&member))
                .is_empty()
        );
        let found = name_every_crate(&Tree::of(&[("ARCHITECTURE.md", "`crates/xy`")]), &[member]);
        assert_eq!(found[0].message, "does not name `crates/x`");
    }

    #[test]
    fn a_closed_changelog_is_found() {
        assert!(changelog_is_open(&Tree::of(&[("CHANGELOG.md", "# C\n\n## Unreleased\n")])).is_empty());
        assert_eq!(changelog_is_open(&Tree::of(&[("CHANGELOG.md", "# C\n")])).len(), 1);
    }
}
