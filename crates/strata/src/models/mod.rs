//! Models by name: what stands for `-m` besides a path, and where it leads.
//!
//! A path that exists wins. Else the text is a name in the [data folder](data): `OWNER/REPO`, `OWNER/REPO:FILE`, either
//! with `hf:` in front, or as little of it (`REPO`, the file's name, its stem) as fits one model only.

pub mod data;
mod nearest;
pub mod repository;
pub mod stored;

use std::path::{Path, PathBuf};

use crate::error::Error;
use data::DataFolder;
use repository::{file_fits, narrowed};
use stored::Stored;

/// Names that are shown where a choice is to be made.
const SHOWN: usize = 8;

/// Where `-m` leads.
///
/// # Errors
/// [`Error::UnknownModel`], [`Error::AmbiguousModel`], and what reading the data folder gives.
pub fn locate(given: &Path) -> Result<PathBuf, Error> {
    // What is plainly a path is left to whoever opens it: that error is the better one.
    let Some(name) = given.to_str().filter(|text| may_be_name(text) && given.symlink_metadata().is_err())
    else {
        return Ok(given.to_owned());
    };
    let data = DataFolder::of_user().map_err(|_| Error::UnknownModelNoData { name: name.to_owned() })?;
    let stored = data.stored()?;
    let found = one(name, &stored, data.root())?;
    match found.whole.first() {
        Some(file) => Ok(file.path.clone()),
        None => Err(Error::InPart { name: found.name() }),
    }
}

/// The one model of a name.
///
/// # Errors
/// [`Error::UnknownModel`] and [`Error::AmbiguousModel`].
pub fn one<'a>(name: &str, stored: &'a [Stored], folder: &Path) -> Result<&'a Stored, Error> {
    let found = named(name, stored);
    match found[..] {
        [one] => Ok(one),
        [] => Err(Error::UnknownModel {
            name: name.to_owned(),
            folder: folder.to_owned(),
            nearest: nearest::names(name, stored),
        }),
        _ => Err(Error::AmbiguousModel {
            name: name.to_owned(),
            count: found.len(),
            names: found.iter().take(SHOWN).map(|model| model.name()).collect(),
        }),
    }
}

/// All models that a name fits. Image encoders and draft heads only count if nothing else does.
fn named<'a>(name: &str, stored: &'a [Stored]) -> Vec<&'a Stored> {
    let (repository, file) = parts(name);
    let fits = |model: &&Stored| match file {
        Some(file) => model.is_of(repository) && file_fits(file, &model.file),
        None => model.is_of(repository) || file_fits(repository, &model.file),
    };
    let found = stored.iter().filter(fits).collect();
    narrowed(
        found,
        |model| &model.file,
        |model| model.file == file.unwrap_or(repository) || model.name() == name,
    )
}

/// The repository (or a part of its name, or a file's) and the file that a name gives.
pub fn parts(name: &str) -> (&str, Option<&str>) {
    let name = name.strip_prefix("hf:").unwrap_or(name);
    match name.split_once(':') {
        Some((repository, file)) => (repository, Some(file)),
        None => (name, None),
    }
}

/// Whether a text could be a name at all: what begins like a path, or holds what no name does, is none.
fn may_be_name(text: &str) -> bool {
    let of_names = |c: char| c.is_alphanumeric() || " ._-+:/@()".contains(c);
    !text.is_empty() && text.len() <= 512 && !text.starts_with(['/', '.']) && text.chars().all(of_names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use stored::tests::stored;

    const FILES: [&str; 6] = [
        "hf/acme/Tiny-GGUF/Tiny.Q4_K_M.gguf",
        "hf/acme/Tiny-GGUF/Tiny.Q8_0.gguf",
        "hf/acme/Big-GGUF/UD-Q2_K/Big-UD-Q2_K-00001-of-00002.gguf",
        "hf/acme/Big-GGUF/UD-Q2_K/Big-UD-Q2_K-00002-of-00002.gguf",
        "hf/acme/Big-GGUF/mmproj-F16.gguf",
        "by hand/größe.gguf",
    ];

    #[test]
    fn a_name_leads_to_one_model_or_says_which_there_are() {
        let all = stored(&FILES);
        let found = |name: &str| one(name, &all, Path::new("d")).map(Stored::name);
        let whole = "acme/Tiny-GGUF:Tiny.Q8_0.gguf";
        for name in [
            whole,
            "hf:acme/Tiny-GGUF:Tiny.Q8_0.gguf",
            "Tiny-GGUF:Q8_0",
            "tiny.q8_0",
            "Tiny.Q8_0.gguf",
            "ACME/tiny-gguf:q8_0",
        ] {
            assert_eq!(found(name).expect(name), whole);
        }
        for name in ["Big-GGUF", "acme/Big-GGUF", "Big-UD-Q2_K", "acme/Big-GGUF:UD-Q2_K", "Big-GGUF:Q2_K"] {
            let wanted = "acme/Big-GGUF:UD-Q2_K/Big-UD-Q2_K-00001-of-00002.gguf";
            assert_eq!(found(name).expect(name), wanted, "{name}");
        }
        assert_eq!(found("Big-GGUF:mmproj-F16").expect("asked for"), "acme/Big-GGUF:mmproj-F16.gguf");
        assert_eq!(found("größe").expect("by hand"), "by hand/größe.gguf");
        let several = found("acme/Tiny-GGUF").expect_err("two").to_string();
        assert!(several.contains("2 models") && several.contains(whole), "{several}");
        let unknown = found("Tiny-GUFF").expect_err("none").to_string();
        assert!(unknown.contains("acme/Tiny-GGUF") && unknown.contains("strata pull"), "{unknown}");
        // An end of a name is not enough, nor is a part of a quantization's.
        for name in ["GGUF", "Tiny-GGUF:K_M", "Tiny-GGUF:Q4_K", "acme", ""] {
            assert!(found(name).is_err(), "{name}");
        }
    }

    #[test]
    fn what_is_plainly_a_path_is_no_name() {
        for path in ["/x/y.gguf", "./x", "../x", "a\nb", "a\u{1b}b", "C:\\x.gguf", ""] {
            assert!(!may_be_name(path), "{path:?}");
        }
        for name in ["hf:acme/Tiny-GGUF:Q4_K_M", "größe", "x.gguf"] {
            assert!(may_be_name(name), "{name:?}");
        }
    }
}
