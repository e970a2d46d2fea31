//! What Cargo knows of the workspace, read through `cargo metadata`.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::process;

/// The workspace as its `Cargo.toml` files describe it.
pub struct Workspace {
    /// Where build output goes.
    pub target: PathBuf,
    /// The workspace's own crates.
    pub members: Vec<Member>,
}

/// One crate of the workspace.
#[derive(Clone, Debug)]
pub struct Member {
    /// Name of the crate.
    pub name: String,
    /// Its folder, relative to the root, with `/` between the parts.
    pub folder: String,
    /// Root files of its library and programs, relative to the root.
    pub roots: Vec<String>,
    /// The workspace's crates that it depends on.
    pub edges: Vec<Edge>,
}

/// A dependency of one crate of the workspace on another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edge {
    /// Name of the crate depended on.
    pub on: String,
    /// Only tests, examples and benches use it.
    pub dev: bool,
}

/// Reads the members and their dependencies on each other; needs no network.
///
/// # Errors
/// Cargo's own failure, or output of another shape than `--format-version 1`.
pub fn read(root: &Path) -> Result<Workspace, String> {
    let json = metadata(root)?;
    let packages = json["packages"].as_array().ok_or("cargo metadata lists no packages")?;
    let mut members: Vec<Member> = packages.iter().map(|package| member(root, package)).collect();
    members.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(Workspace { target: PathBuf::from(text(&json["target_directory"])), members })
}

fn metadata(root: &Path) -> Result<Value, String> {
    let line = "cargo metadata --format-version 1 --no-deps --offline";
    let output = process::read(process::command(root, line))?;
    serde_json::from_str(&output).map_err(|error| format!("cargo metadata: {error}"))
}

fn member(root: &Path, package: &Value) -> Member {
    let manifest = PathBuf::from(text(&package["manifest_path"]));
    let folder = manifest.parent().expect("a manifest lies in a folder");
    let linked = |target: &&Value| {
        let kinds: Vec<&str> =
            list(&target["kind"]).iter().map(|kind| kind.as_str().unwrap_or_default()).collect();
        kinds.iter().any(|kind| ["lib", "bin", "proc-macro"].contains(kind))
    };
    let roots = list(&package["targets"]).iter().filter(linked);
    let own = list(&package["dependencies"]).iter().filter(|dependency| dependency["path"].is_string());
    Member {
        name: text(&package["name"]),
        folder: relative(root, folder),
        roots: roots.map(|target| relative(root, Path::new(&text(&target["src_path"])))).collect(),
        edges: own
            .map(|dependency| Edge { on: text(&dependency["name"]), dev: dependency["kind"] == "dev" })
            .collect(),
    }
}

fn relative(root: &Path, path: &Path) -> String {
    let path = path.strip_prefix(root).unwrap_or(path);
    path.to_string_lossy().replace('\\', "/")
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
