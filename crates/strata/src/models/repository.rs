//! Repositories of the hub and the files in them: names that can be joined to a folder without leaving it.

use std::fmt;

use gguf::ShardName;

/// Folders in a repository, and the file: more than any has.
pub const PATH_PARTS_MAX: usize = 8;

/// `OWNER/REPO`. Neither part can lead anywhere but down.
#[derive(Clone, PartialEq, Eq, Debug, PartialOrd, Ord)]
pub struct Repository {
    owner: String,
    name: String,
}

impl Repository {
    /// The repository of a text `OWNER/REPO`; `None` if it is none.
    pub fn parse(text: &str) -> Option<Repository> {
        let (owner, name) = text.split_once('/')?;
        // The hub's own rule for names.
        let of_names = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        let plain = |part: &str| {
            (1..=96).contains(&part.len()) && !part.starts_with('.') && part.chars().all(of_names)
        };
        (plain(owner) && plain(name)).then(|| Repository { owner: owner.into(), name: name.into() })
    }

    /// Whose it is.
    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// Its name without the owner.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Display for Repository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.owner, self.name)
    }
}

/// A path below a repository's folder, with `/` between its parts; cannot lead out of it, nor to a hidden file.
#[derive(Clone, PartialEq, Eq, Debug, PartialOrd, Ord)]
pub struct FilePath(String);

impl FilePath {
    /// The path of a text; `None` if it is absolute, leads up or deeper than models are looked for, or holds what a file's
    /// name cannot everywhere.
    pub fn parse(text: &str) -> Option<FilePath> {
        let plain = |part: &str| {
            (1..=240).contains(&part.len())
                && !part.starts_with('.')
                && !part.chars().any(|c| c.is_control() || "\\:*?\"<>|".contains(c))
        };
        let parts = text.split('/').count();
        (text.len() <= 1024 && parts <= PATH_PARTS_MAX && text.split('/').all(plain))
            .then(|| FilePath(text.to_owned()))
    }

    /// The path as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The last part.
    pub fn file_name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or(&self.0)
    }
}

/// A file's name without `.gguf` and, of a file of a set, without its number.
pub fn stem(path: &str) -> &str {
    let name = path.rsplit('/').next().unwrap_or(path);
    match ShardName::parse(name) {
        Some(shard) => &name[..shard.stem.len()],
        None => name.len().checked_sub(5).and_then(|end| cut_extension(name, end)).unwrap_or(name),
    }
}

fn cut_extension(name: &str, end: usize) -> Option<&str> {
    name.get(end..)?.eq_ignore_ascii_case(".gguf").then(|| &name[..end])
}

/// Whether `wanted` says `path`: the path itself, its file's name, the stem, or a quantization at the stem's end or as
/// a folder, as in `Q4_K_M`. Capitals do not matter.
pub fn file_fits(wanted: &str, path: &str) -> bool {
    let (wanted, path) = (wanted.to_lowercase(), path.to_lowercase());
    let stem = stem(&path);
    let at_end = || {
        let rest = stem.strip_suffix(&*wanted)?;
        Some(is_quantization(&wanted) && rest.ends_with(['-', '.', ' ']))
    };
    let mut parts = path.split('/').rev();
    parts.next() == Some(&wanted)
        || path == wanted
        || stem == wanted
        || at_end() == Some(true)
        || (is_quantization(&wanted) && parts.any(|folder| folder == wanted))
}

/// `Q4_K_M`, `IQ2_XXS`, `UD-Q2_K_XL`, `BF16`, `MXFP4`: a part that begins like a tensor type and holds a digit.
fn is_quantization(text: &str) -> bool {
    let begins = ["q", "iq", "tq", "ud-", "f16", "f32", "bf16", "mxfp4", "nvfp4"];
    begins.iter().any(|begin| text.starts_with(begin)) && text.contains(|c: char| c.is_ascii_digit())
}

/// Of what a name fits, what was most likely meant: what it says exactly, else all but image encoders and draft heads,
/// else those.
pub fn narrowed<'a, T>(
    found: Vec<&'a T>,
    path: impl Fn(&'a T) -> &'a str,
    is_exact: impl Fn(&T) -> bool,
) -> Vec<&'a T> {
    let exact: Vec<&T> = found.iter().copied().filter(|one| is_exact(one)).collect();
    let models: Vec<&T> = found.iter().copied().filter(|one| !is_companion(path(one))).collect();
    match (exact.len(), models.len()) {
        (1, _) => exact,
        (_, 0) => found,
        _ => models,
    }
}

/// Image encoders and draft heads: files beside a model that are none by themselves.
pub fn is_companion(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path).to_ascii_lowercase();
    name.contains("mmproj") || name.starts_with("mtp-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_leads_out_of_its_folder() {
        assert_eq!(Repository::parse("a-b/C.d_e").expect("a name").to_string(), "a-b/C.d_e");
        let wrong = ["a", "a/b/c", "../b", "a/..", "/b", "a/", "a/b c", "a/b\\c", "a/\0", "a/.b", "ä/b", "."];
        for text in wrong {
            assert_eq!(Repository::parse(text), None, "{text:?}");
        }
        assert_eq!(FilePath::parse("Q4/größe 1.gguf").expect("a path").file_name(), "größe 1.gguf");
        for text in [
            "", "/a", "../a", "a/../b", "a//b", "a/", "./a", "a\\..\\b", "a\0b", "a\nb", "C:/a", ".git/a",
            "a:b",
        ] {
            assert_eq!(FilePath::parse(text), None, "{text:?}");
        }
        assert!(FilePath::parse(&["a"; PATH_PARTS_MAX].join("/")).is_some());
        assert_eq!(FilePath::parse(&["a"; PATH_PARTS_MAX + 1].join("/")), None);
    }

    #[test]
    fn stems_leave_out_numbers_and_endings() {
        for (path, wanted) in [
            ("x/A.Q4.gguf", "A.Q4"),
            ("A-00001-of-00003.gguf", "A"),
            ("A.GGUF", "A"),
            ("ä", "ä"),
            ("日本", "日本"),
        ] {
            assert_eq!(stem(path), wanted);
        }
    }

    #[test]
    fn a_quantization_fits_whole_or_not_at_all() {
        let fits = |wanted: &str| file_fits(wanted, "UD-Q2_K_XL/Big-UD-Q2_K_XL-00001-of-00002.gguf");
        for wanted in ["q2_k_xl", "UD-Q2_K_XL", "Big-UD-Q2_K_XL", "Big-UD-Q2_K_XL-00001-of-00002.gguf"] {
            assert!(fits(wanted), "{wanted}");
        }
        for wanted in ["XL", "Q2_K", "K_XL", "D-Q2_K_XL", "Big", "2_K_XL", ""] {
            assert!(!fits(wanted), "{wanted}");
        }
    }
}
