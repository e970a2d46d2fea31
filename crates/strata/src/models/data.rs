//! The folder that models are kept in: `$STRATA_HOME`, else `$XDG_DATA_HOME/strata`, else `~/.local/share/strata`.
//!
//! Below it, `models/hf/OWNER/REPO/FILE` is what was pulled; whatever else lies below `models` was put there by hand.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use super::repository::{PATH_PARTS_MAX, Repository};
use super::stored::{self, Found, Stored};
use crate::error::Error;

/// Folders below each other that are looked into: `hf`, the owner's, the repository's and those of a file in it.
const DEPTH_MAX: usize = 3 + PATH_PARTS_MAX - 1;

/// The folder of models.
#[derive(Debug)]
pub struct DataFolder {
    root: PathBuf,
}

impl DataFolder {
    /// That of the user who runs this.
    ///
    /// # Errors
    /// [`Error::NoDataFolder`].
    pub fn of_user() -> Result<DataFolder, Error> {
        DataFolder::from_variables(|name| std::env::var_os(name)).ok_or(Error::NoDataFolder)
    }

    /// One that a test made.
    #[cfg(test)]
    pub fn at(folder: PathBuf) -> DataFolder {
        DataFolder { root: folder.join("models") }
    }

    fn from_variables(value: impl Fn(&str) -> Option<OsString>) -> Option<DataFolder> {
        let path = |name: &str| value(name).filter(|text| !text.is_empty()).map(PathBuf::from);
        // The standard for XDG_DATA_HOME says that a relative path in it counts for nothing.
        let absolute = |name: &str| path(name).filter(|path| path.is_absolute());
        let home = || absolute("HOME").map(|home| home.join(".local/share"));
        let root = path("STRATA_HOME")
            .or_else(|| absolute("XDG_DATA_HOME").or_else(home).map(|data| data.join("strata")))?;
        Some(DataFolder { root: root.join("models") })
    }

    /// What models lie in.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Where the lines typed in conversations are remembered.
    pub fn chat_history(&self) -> PathBuf {
        self.root.with_file_name("chat_history")
    }

    /// Where the files of a repository go.
    pub fn repository(&self, repository: &Repository) -> PathBuf {
        self.root.join("hf").join(repository.owner()).join(repository.name())
    }

    /// What there is, whole or in part, in the order of names. Links to folders are not followed.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn stored(&self) -> Result<Vec<Stored>, Error> {
        let mut found = Vec::new();
        if self.root.is_dir() {
            look_into(&self.root, "", DEPTH_MAX, &mut found)?;
        }
        Ok(stored::models(found))
    }
}

fn look_into(folder: &Path, below: &str, depth: usize, found: &mut Vec<Found>) -> Result<(), Error> {
    let fault = |source| Error::Io { action: "read the folder", what: folder.display().to_string(), source };
    for entry in fs::read_dir(folder).map_err(fault)? {
        let entry = entry.map_err(fault)?;
        let name = entry.file_name();
        // A name that is no text can still be given as a path.
        let Some(name) = name.to_str().filter(|name| !name.starts_with('.')) else { continue };
        let relative = format!("{below}{name}");
        let is_folder = entry.file_type().map_err(fault)?.is_dir();
        if is_folder && depth > 0 {
            look_into(&entry.path(), &format!("{relative}/"), depth - 1, found)?;
        }
        let lower = name.to_ascii_lowercase();
        let is_model = lower.ends_with(".gguf") || lower.ends_with(".gguf.part");
        // A link counts as what it leads to; one that leads nowhere as nothing.
        let Some(meta) = fs::metadata(entry.path()).ok().filter(|meta| is_model && meta.is_file()) else {
            continue;
        };
        found.push(Found { relative, path: entry.path(), bytes: meta.len() });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(variables: &[(&str, &str)]) -> Option<String> {
        let value = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| OsString::from(value))
        };
        DataFolder::from_variables(value).map(|data| data.root.to_str().expect("text").to_owned())
    }

    #[test]
    fn the_first_variable_that_is_set_counts() {
        let all = [("STRATA_HOME", "s"), ("XDG_DATA_HOME", "/x"), ("HOME", "/h")];
        assert_eq!(root(&all).expect("one"), "s/models");
        assert_eq!(root(&all[1..]).expect("one"), "/x/strata/models");
        assert_eq!(root(&all[2..]).expect("one"), "/h/.local/share/strata/models");
        assert_eq!(root(&[("STRATA_HOME", ""), ("XDG_DATA_HOME", "x")]), None);
        assert_eq!(root(&[("HOME", "")]), None);
    }

    #[test]
    fn links_to_folders_and_hidden_files_are_passed_over() {
        let folder = tempfile::tempdir().expect("a folder");
        let outside = tempfile::tempdir().expect("a folder");
        let data = DataFolder { root: folder.path().join("models") };
        assert!(data.stored().expect("nothing there").is_empty());
        fs::create_dir_all(data.root.join("hf/a/b/.c")).expect("made");
        for path in ["hf/a/b/x.gguf", "hf/a/b/.y.gguf", "hf/a/b/.c/z.gguf", "hf/a/b/readme.md"] {
            fs::write(data.root.join(path), "12").expect("written");
        }
        fs::write(outside.path().join("o.gguf"), "1").expect("written");
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink(outside.path(), data.root.join("hf/a/link")).expect("linked");
            std::os::unix::fs::symlink("nowhere", data.root.join("gone.gguf")).expect("linked");
        }
        let stored = data.stored().expect("read");
        assert_eq!(stored.iter().map(Stored::name).collect::<Vec<_>>(), ["a/b:x.gguf"]);
        assert_eq!(stored[0].bytes(), 2);
    }
}
