//! The files that Git keeps, and those it would keep once added.

use std::path::Path;

use crate::process;

/// A checkout's files, in path order.
#[derive(Default)]
pub struct Tree {
    /// The files.
    pub files: Vec<File>,
}

/// One file.
pub struct File {
    /// Relative to the root, with `/` between the parts.
    pub path: String,
    /// Size of the file.
    pub size_bytes: u64,
    /// The contents, unless they are not UTF-8 or hold a zero byte.
    pub text: Option<String>,
}

impl Tree {
    /// Reads every file that Git tracks or does not ignore.
    ///
    /// # Errors
    /// Git is missing or this is no checkout; a file cannot be read.
    pub fn read(root: &Path) -> Result<Tree, String> {
        // A checkout may belong to another user than the one who tests it, as in a container.
        let list = "git -c safe.directory=* ls-files -z --cached --others --exclude-standard";
        let listing = process::read(process::command(root, list))?;
        let mut paths: Vec<&str> = listing.split('\0').filter(|path| !path.is_empty()).collect();
        paths.sort_unstable();
        paths.dedup();
        let mut files = Vec::with_capacity(paths.len());
        for path in paths {
            match std::fs::read(root.join(path)) {
                Ok(bytes) => files.push(File::new(path, bytes)),
                // Deleted but not yet committed.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(format!("{path}: {error}")),
            }
        }
        Ok(Tree { files })
    }

    /// The text of the file at `path`.
    pub fn text(&self, path: &str) -> Option<&str> {
        self.files.iter().find(|file| file.path == path)?.text.as_deref()
    }

    /// The Rust files with their text.
    pub fn rust(&self) -> impl Iterator<Item = (&str, &str)> {
        self.texts().filter(|(path, _)| path.ends_with(".rs"))
    }

    /// The files that are text, with it.
    pub fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().filter_map(|file| Some((file.path.as_str(), file.text.as_deref()?)))
    }
}

impl File {
    /// A file with these contents.
    pub fn new(path: &str, bytes: Vec<u8>) -> File {
        let size_bytes = bytes.len() as u64;
        let text = String::from_utf8(bytes).ok().filter(|text| !text.contains('\0'));
        File { path: path.to_owned(), size_bytes, text }
    }
}

#[cfg(test)]
impl Tree {
    /// A tree of text files.
    pub fn of(files: &[(&str, &str)]) -> Tree {
        Tree { files: files.iter().map(|(path, text)| File::new(path, text.as_bytes().to_vec())).collect() }
    }
}
