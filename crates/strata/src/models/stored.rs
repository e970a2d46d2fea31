//! What lies in the data folder: files, put together to models.

use std::path::PathBuf;

use gguf::ShardName;

use super::repository::{self, Repository};

/// One file.
#[derive(Debug)]
pub struct Found {
    /// Its path below the folder of models, with `/` between.
    pub relative: String,
    /// Its path.
    pub path: PathBuf,
    /// Its size.
    pub bytes: u64,
}

/// A model, whole or in part: a file, or the files of a set.
#[derive(Debug)]
pub struct Stored {
    /// The hub's repository that it was pulled from; none of what was put there by hand.
    pub repository: Option<Repository>,
    /// The path of its first file below the repository, or below the folder of models.
    pub file: String,
    /// Files that it should have.
    pub count: u64,
    /// Files that are there, in order.
    pub whole: Vec<Found>,
    /// Files of which a part has been pulled.
    pub parts: Vec<Found>,
}

const PART: &str = ".part";

impl Stored {
    /// What to call it by, from anywhere and unmistakably.
    pub fn name(&self) -> String {
        match &self.repository {
            Some(repository) => format!("{repository}:{}", self.file),
            None => self.file.clone(),
        }
    }

    /// The texts that a user may have meant it by.
    pub fn forms(&self) -> Vec<String> {
        let of_repository = |repository: &Repository| {
            let stem = repository::stem(&self.file);
            [
                repository.to_string(),
                repository.name().to_owned(),
                format!("{repository}:{stem}"),
                format!("{}:{stem}", repository.name()),
            ]
        };
        let mut forms = vec![self.name(), repository::stem(&self.file).to_owned()];
        forms.extend(self.repository.iter().flat_map(of_repository));
        forms
    }

    /// Whether `wanted` is its repository, with the owner or without.
    pub fn is_of(&self, wanted: &str) -> bool {
        self.repository.as_ref().is_some_and(|repository| {
            wanted.eq_ignore_ascii_case(repository.name())
                || wanted.eq_ignore_ascii_case(&repository.to_string())
        })
    }

    /// What to open; of a model of which nothing is whole yet, what will be there.
    pub fn first_path(&self) -> PathBuf {
        match (self.whole.first(), self.parts.first()) {
            (Some(file), _) => file.path.clone(),
            (None, Some(part)) => part.path.with_extension(""),
            (None, None) => unreachable!("a model is put together from files"),
        }
    }

    /// Bytes that it takes.
    pub fn bytes(&self) -> u64 {
        self.whole.iter().chain(&self.parts).map(|file| file.bytes).sum()
    }

    /// Whether all of it is there.
    pub fn is_whole(&self) -> bool {
        self.whole.len() as u64 == self.count
    }
}

/// Puts files together to models, in the order of their names.
pub fn models(mut found: Vec<Found>) -> Vec<Stored> {
    found.sort_by(|a, b| a.relative.cmp(&b.relative));
    // Files of a set have a folder, a stem and a count in common.
    let mut models: Vec<((String, u64), Stored)> = Vec::new();
    for file in found {
        let is_part = file.relative.ends_with(PART);
        let relative = file.relative.strip_suffix(PART).unwrap_or(&file.relative).to_owned();
        let (folder, name) =
            relative.rsplit_once('/').map_or(("", &*relative), |(folder, name)| (folder, name));
        let shard = ShardName::parse(name);
        let key = match &shard {
            Some(shard) => (format!("{folder}/{}", shard.stem), shard.count),
            None => (relative.clone(), 0),
        };
        let at = models.iter().position(|(known, _)| *known == key).unwrap_or_else(|| {
            let first = shard.as_ref().map_or(name.to_owned(), |shard| shard.of_shard(1));
            let first = if folder.is_empty() { first } else { format!("{folder}/{first}") };
            let (repository, file) = of_hub(&first).unwrap_or((None, first.clone()));
            let count = shard.as_ref().map_or(1, |shard| shard.count);
            models.push((key, Stored { repository, file, count, whole: Vec::new(), parts: Vec::new() }));
            models.len() - 1
        });
        let model = &mut models[at].1;
        if is_part { &mut model.parts } else { &mut model.whole }.push(file);
    }
    let mut models: Vec<Stored> = models.into_iter().map(|(_, model)| model).collect();
    models.sort_by_key(Stored::name);
    models
}

/// Repository and file of `hf/OWNER/REPO/FILE`.
fn of_hub(relative: &str) -> Option<(Option<Repository>, String)> {
    let rest = relative.strip_prefix("hf/")?;
    let end = rest.match_indices('/').nth(1)?.0;
    let repository = Repository::parse(&rest[..end])?;
    Some((Some(repository), rest[end + 1..].to_owned()))
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Models of these files, of one byte each.
    pub fn stored(relative: &[&str]) -> Vec<Stored> {
        let found = |text: &&str| Found { relative: (*text).to_owned(), path: PathBuf::from(text), bytes: 1 };
        models(relative.iter().map(found).collect())
    }

    #[test]
    fn files_of_a_set_are_one_model() {
        let all = stored(&[
            "hf/a/b/x-00001-of-00003.gguf",
            "hf/a/b/x-00003-of-00003.gguf.part",
            "hf/a/b/y.gguf.part",
            "hf/a/z.gguf",
            "w.gguf",
        ]);
        let told: Vec<_> = all.iter().map(|m| (m.name(), m.count, m.whole.len(), m.parts.len())).collect();
        assert_eq!(
            told,
            [
                ("a/b:x-00001-of-00003.gguf".to_owned(), 3, 1, 1),
                ("a/b:y.gguf".to_owned(), 1, 0, 1),
                ("hf/a/z.gguf".to_owned(), 1, 1, 0),
                ("w.gguf".to_owned(), 1, 1, 0),
            ]
        );
        assert!(!all[0].is_whole() && !all[1].is_whole() && all[3].is_whole());
        assert_eq!(all[1].first_path(), PathBuf::from("hf/a/b/y.gguf"));
        assert_eq!(all[0].bytes(), 2);
    }
}
