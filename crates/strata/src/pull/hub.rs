//! The hub's list of a repository's files.
//!
//! `GET /api/models/OWNER/REPO/revision/REV?blobs=true` answers with the commit (`sha`) and with `siblings`: for each file
//! `rfilename`, `size`, `blobId` and, of large ones, `lfs.sha256`. `GET /OWNER/REPO/resolve/REV/FILE` is the file, mostly
//! by way of another server. (Documentation of the Hugging Face Hub's API; its Python client reads the same.)

use std::io::Read;

use serde::Deserialize;

use super::fault::Fault;
use super::http::Client;
use super::reference::Reference;
use crate::models::repository::{FilePath, Repository};

/// Most bytes of a list: hundreds of thousands of files.
const LIST_BYTES_MAX: u64 = 64 << 20;

/// A model file of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteFile {
    /// Where in the repository.
    pub path: FilePath,
    /// Its bytes.
    pub size: u64,
    /// What tells this state of it from another.
    pub content: Content,
}

/// What tells one state of a file from another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// SHA-256 of the bytes, in hexadecimal digits.
    Sha256(String),
    /// Some text that changes with the bytes, and says nothing about them.
    Blob(String),
}

/// The model files of a repository at one commit.
pub struct Listing {
    /// What to ask for files by, so that all are of one commit.
    pub revision: String,
    /// Files whose name ends in `.gguf`.
    pub files: Vec<RemoteFile>,
}

#[derive(Deserialize)]
struct Answer {
    sha: Option<String>,
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    #[serde(rename = "blobId")]
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: Option<String>,
    size: Option<u64>,
}

/// Asks the hub for its list.
///
/// # Errors
/// Those of the connection, and [`Fault::Listing`].
pub fn list(client: &Client, reference: &Reference) -> Result<Listing, Fault> {
    let Reference { repository, revision, .. } = reference;
    let path = format!("/api/models/{repository}/revision/{}?blobs=true", encoded(revision, ""));
    let what = match revision.as_str() {
        super::reference::REVISION_DEFAULT => format!("model {repository}"),
        revision => format!("model {repository} at {revision}"),
    };
    let answer = client.get(&client.address(&path), &[])?.succeeded(&client.host(), &what)?;
    let mut bytes = Vec::new();
    let unusable = |why: String| Fault::Listing { host: client.host(), repository: repository.clone(), why };
    answer
        .into_reader()
        .take(LIST_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| Fault::Connection { host: client.host(), cause: error.to_string() })?;
    if bytes.len() as u64 > LIST_BYTES_MAX {
        return Err(unusable(format!("it is longer than {LIST_BYTES_MAX} bytes")));
    }
    parse(&bytes, revision).map_err(unusable)
}

/// The address of a file.
pub fn file_address(client: &Client, repository: &Repository, revision: &str, path: &FilePath) -> String {
    let path = encoded(path.as_str(), "/");
    client.address(&format!("/{repository}/resolve/{}/{path}", encoded(revision, "")))
}

fn parse(bytes: &[u8], revision: &str) -> Result<Listing, String> {
    let answer: Answer = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    let is_commit = |text: &String| text.len() == 40 && text.bytes().all(|b| b.is_ascii_hexdigit());
    let revision = answer.sha.filter(is_commit).unwrap_or_else(|| revision.to_owned());
    let is_model = |file: &Sibling| file.rfilename.to_ascii_lowercase().ends_with(".gguf");
    let files = answer.siblings.into_iter().filter(is_model).map(remote_file);
    Ok(Listing { revision, files: files.collect::<Result<_, _>>()? })
}

fn remote_file(file: Sibling) -> Result<RemoteFile, String> {
    let path = FilePath::parse(&file.rfilename)
        .ok_or_else(|| format!("the file name `{}` is not taken", file.rfilename))?;
    let size = file.lfs.as_ref().and_then(|lfs| lfs.size).or(file.size);
    let size = size.ok_or_else(|| format!("it does not say how large {} is", file.rfilename))?;
    let is_sha = |text: &String| text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit());
    let content = match file.lfs.and_then(|lfs| lfs.sha256) {
        Some(sha) if is_sha(&sha) => Content::Sha256(sha.to_ascii_lowercase()),
        Some(other) => return Err(format!("the checksum `{other}` of {} is none", file.rfilename)),
        None => Content::Blob(file.blob_id.unwrap_or_default()),
    };
    Ok(RemoteFile { path, size, content })
}

/// Percent-encoding of all but letters, digits, `-._~` and what is in `kept`.
fn encoded(text: &str, kept: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        let c = char::from(byte);
        if c.is_ascii_alphanumeric() || "-._~".contains(c) || kept.contains(c) {
            encoded.push(c);
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_encoded_byte_by_byte() {
        assert_eq!(encoded("a b/ö+%.gguf", "/"), "a%20b/%C3%B6%2B%25.gguf");
        assert_eq!(encoded("refs/pr/1", ""), "refs%2Fpr%2F1");
    }

    #[test]
    fn a_list_that_cannot_be_trusted_is_refused() {
        let list = |sibling: &str| parse(format!("{{\"siblings\": [{sibling}]}}").as_bytes(), "main");
        let good =
            list("{\"rfilename\": \"a.gguf\", \"size\": 5, \"blobId\": \"x\"}, {\"rfilename\": \"../b\"}");
        let good = good.expect("one model");
        assert_eq!((good.revision.as_str(), good.files.len()), ("main", 1));
        assert_eq!((good.files[0].size, &good.files[0].content), (5, &Content::Blob("x".into())));
        for (wrong, words) in [
            ("{\"rfilename\": \"../a.gguf\", \"size\": 5}", "`../a.gguf` is not taken"),
            ("{\"rfilename\": \"/a.gguf\", \"size\": 5}", "is not taken"),
            ("{\"rfilename\": \"a\\\\b.gguf\", \"size\": 5}", "is not taken"),
            ("{\"rfilename\": \"a\\u0000.gguf\", \"size\": 5}", "is not taken"),
            ("{\"rfilename\": \"a.gguf\"}", "how large"),
            ("{\"rfilename\": \"a.gguf\", \"size\": -1}", "-1"),
            ("{\"rfilename\": \"a.gguf\", \"size\": 5, \"lfs\": {\"sha256\": \"12\"}}", "checksum `12`"),
            ("{", "key must be a string"),
        ] {
            let why = list(wrong).err().expect(wrong);
            assert!(why.contains(words), "{wrong}: {why}");
        }
        assert!(parse(b"<html>", "main").is_err());
    }
}
