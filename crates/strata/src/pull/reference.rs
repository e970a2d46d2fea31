//! What `strata pull` is told to get: `hf:OWNER/REPO[@REV][:FILE]`.

use crate::models::repository::Repository;

/// The revision of a repository where none is given.
pub const REVISION_DEFAULT: &str = "main";

/// A model on the hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// Whose.
    pub repository: Repository,
    /// A branch, a tag or a commit.
    pub revision: String,
    /// A file's path, name or stem, or a quantization.
    pub file: Option<String>,
}

impl Reference {
    /// For the parser of arguments.
    ///
    /// # Errors
    /// What is wanted instead.
    pub fn parse(text: &str) -> Result<Reference, String> {
        let rest = text.strip_prefix("hf:").unwrap_or(text);
        let (rest, file) = match rest.split_once(':') {
            Some((rest, file)) => (rest, Some(file)),
            None => (rest, None),
        };
        let (repository, revision) = rest.split_once('@').unwrap_or((rest, REVISION_DEFAULT));
        let of_revisions = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
        let is_revision = (1..=200).contains(&revision.len())
            && revision.chars().all(of_revisions)
            && revision.split('/').all(|part| !part.is_empty() && !part.starts_with('.'));
        let repository = Repository::parse(repository);
        match (repository, is_revision && file != Some("")) {
            (Some(repository), true) => {
                Ok(Reference { repository, revision: revision.to_owned(), file: file.map(str::to_owned) })
            }
            _ => {
                Err("hf:OWNER/REPO is needed, with :FILE or :QUANTIZATION and @REVISION where wanted".into())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_name_a_repository_and_perhaps_more() {
        let parts = |text: &str| {
            let found = Reference::parse(text).expect(text);
            (found.repository.to_string(), found.revision, found.file)
        };
        assert_eq!(parts("hf:a/b"), ("a/b".into(), "main".into(), None));
        assert_eq!(parts("a/b:Q4_K_M"), ("a/b".into(), "main".into(), Some("Q4_K_M".into())));
        assert_eq!(
            parts("hf:a/b@refs/pr/1:x/y.gguf"),
            ("a/b".into(), "refs/pr/1".into(), Some("x/y.gguf".into()))
        );
        for wrong in
            ["", "hf:", "a", "hf:a/b/c", "hf:a/b:", "hf:a/b@", "hf:../b", "hf:a/b@../c", "hf:a/b@x?y"]
        {
            assert!(Reference::parse(wrong).is_err(), "{wrong}");
        }
    }
}
