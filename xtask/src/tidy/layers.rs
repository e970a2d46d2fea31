//! The dependency line: which crate may know which.

use super::Violation;
use crate::workspace::Member;

/// For every crate, the crates of the workspace that it may depend on. A new edge is a change of the architecture:
/// ARCHITECTURE.md changes with this table. Crates stand above those they know.
const ALLOWED: &[(&str, &[&str])] = &[
    ("strata", &["server", "chat", "engine", "gguf", "sys"]),
    // Not the engine: what of it a request needs has its names in `chat`.
    ("server", &["chat"]),
    ("chat", &["engine", "gguf"]),
    ("engine", &["kernels", "gguf", "sys"]),
    ("kernels", &["gguf"]),
    ("gguf", &[]),
    ("sys", &[]),
    ("oracle", &[]),
    ("xtask", &[]),
];

/// The crate of tiny models and expected numbers: any crate's tests may use it, nothing else may.
const TESTS_ONLY: &str = "oracle";

/// Every dependency between crates of the workspace is in [`ALLOWED`].
pub fn follow_the_line(members: &[Member]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for member in members {
        let manifest = format!("{}/Cargo.toml", member.folder);
        let Some((_, allowed)) = ALLOWED.iter().find(|(name, _)| *name == member.name) else {
            let message = format!("the crate {:?} has no place in the dependency line yet", member.name);
            violations.push(Violation::new(&manifest, 0, message));
            continue;
        };
        let may = |on: &str, dev: bool| allowed.contains(&on) || (dev && on == TESTS_ONLY);
        for edge in member.edges.iter().filter(|edge| !may(&edge.on, edge.dev)) {
            let message = format!("{} must not depend on {}", member.name, edge.on);
            violations.push(Violation::new(&manifest, 0, message));
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Edge;

    fn found(name: &str, edges: &[(&str, bool)]) -> Vec<String> {
        let edges = edges.iter().map(|&(on, dev)| Edge { on: on.into(), dev }).collect();
        let member = Member { name: name.into(), folder: format!("crates/{name}"), roots: vec![], edges };
        follow_the_line(&[member]).into_iter().map(|violation| violation.message).collect()
    }

    #[test]
    fn edges_outside_the_line_are_named() {
        assert!(found("engine", &[("kernels", false), ("oracle", true)]).is_empty());
        assert_eq!(found("engine", &[("chat", false)]), ["engine must not depend on chat"]);
        assert_eq!(found("engine", &[("chat", true)]), ["engine must not depend on chat"]);
        assert_eq!(found("engine", &[("oracle", false)]), ["engine must not depend on oracle"]);
        assert_eq!(found("gguf", &[("sys", false)]), ["gguf must not depend on sys"]);
        assert_eq!(found("extra", &[]), ["the crate \"extra\" has no place in the dependency line yet"]);
    }

    #[test]
    fn the_table_itself_has_no_circle() {
        let level = |name: &str| ALLOWED.iter().position(|(crate_name, _)| *crate_name == name);
        for (name, on) in ALLOWED {
            for below in *on {
                assert!(level(below) > level(name), "{name} -> {below}");
            }
        }
    }
}
