//! Which of a repository's files is meant.

use gguf::ShardName;

use super::hub::RemoteFile;
use crate::models::repository::{file_fits, narrowed};

/// A model that a repository offers: a file, or the files of a set in order.
#[derive(Clone, Debug)]
pub struct Offer {
    /// At least one.
    pub files: Vec<RemoteFile>,
    /// Files that there should be.
    count: u64,
}

impl Offer {
    /// The path of its first file.
    pub fn path(&self) -> &str {
        self.files[0].path.as_str()
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.size).sum()
    }

    /// Whether the repository has all of it.
    pub fn is_whole(&self) -> bool {
        self.files.len() as u64 == self.count
    }
}

/// Puts files together to models, in the order of their paths.
pub fn offers(mut files: Vec<RemoteFile>) -> Vec<Offer> {
    files.sort_by(|a, b| a.path.cmp(&b.path));
    let mut offers: Vec<(String, Offer)> = Vec::new();
    for file in files {
        let path = file.path.as_str();
        let folder = &path[..path.len() - file.path.file_name().len()];
        let shard = ShardName::parse(file.path.file_name());
        let key = shard.as_ref().map_or(path.to_owned(), |shard| format!("{folder}{}", shard.of_shard(1)));
        match offers.iter_mut().find(|(known, _)| *known == key) {
            Some((_, offer)) => offer.files.push(file),
            None => {
                let count = shard.map_or(1, |shard| shard.count);
                offers.push((key, Offer { files: vec![file], count }));
            }
        }
    }
    offers.into_iter().map(|(_, offer)| offer).collect()
}

/// The models that `wanted` fits, or that there are at all. Image encoders and draft heads only count alone.
pub fn fitting<'a>(offers: &'a [Offer], wanted: Option<&str>) -> Vec<&'a Offer> {
    let fits = |offer: &&Offer| {
        wanted.is_none_or(|wanted| offer.files.iter().any(|file| file_fits(wanted, file.path.as_str())))
    };
    narrowed(offers.iter().filter(fits).collect(), Offer::path, |offer| {
        offer.files.iter().any(|file| Some(file.path.as_str()) == wanted)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::repository::FilePath;
    use crate::pull::hub::Content;

    fn paths(names: &[&str], wanted: Option<&str>) -> Vec<String> {
        let file = |name: &&str| RemoteFile {
            path: FilePath::parse(name).expect("a path"),
            size: 1,
            content: Content::Blob(String::new()),
        };
        let offers = offers(names.iter().map(file).collect());
        fitting(&offers, wanted).into_iter().map(|offer| offer.path().to_owned()).collect()
    }

    const NAMES: [&str; 6] = [
        "M-Q4_K_M.gguf",
        "M-Q4_K.gguf",
        "BF16/M-BF16-00002-of-00002.gguf",
        "BF16/M-BF16-00001-of-00002.gguf",
        "mmproj-BF16.gguf",
        "mtp-M-Q4_K.gguf",
    ];

    #[test]
    fn a_quantization_means_the_model_of_it() {
        let one = |wanted: &str| paths(&NAMES, Some(wanted));
        assert_eq!(one("Q4_K_M"), ["M-Q4_K_M.gguf"]);
        assert_eq!(one("q4_k"), ["M-Q4_K.gguf"]);
        assert_eq!(one("bf16"), ["BF16/M-BF16-00001-of-00002.gguf"]);
        assert_eq!(one("BF16/M-BF16-00002-of-00002.gguf"), ["BF16/M-BF16-00001-of-00002.gguf"]);
        assert_eq!(one("mmproj-BF16.gguf"), ["mmproj-BF16.gguf"]);
        assert!(one("Q8_0").is_empty());
    }

    #[test]
    fn without_a_file_all_models_are_offered_and_no_companions() {
        assert_eq!(paths(&NAMES, None), ["BF16/M-BF16-00001-of-00002.gguf", "M-Q4_K.gguf", "M-Q4_K_M.gguf"]);
        assert_eq!(paths(&["mmproj.gguf", "x.gguf"], None), ["x.gguf"]);
        assert_eq!(paths(&["mmproj.gguf"], None), ["mmproj.gguf"]);
    }
}
