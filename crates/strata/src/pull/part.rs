//! A file that is on its way: `FILE.part`, and beside it `FILE.part.json`, which says of what it is a part.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::fault::Fault;
use super::hub::{Content, RemoteFile};
use crate::error::Error;

/// Bytes that are read or written at once.
pub const BLOCK_BYTES: usize = 1 << 20;

/// What a part was pulled from; a part of anything else is worth nothing.
#[derive(Serialize, Deserialize, PartialEq, Eq, Clone, Debug)]
struct Record {
    size: u64,
    sha256: Option<String>,
    blob: Option<String>,
    /// The entity tag of the server that had the bytes.
    etag: Option<String>,
}

/// A file that is on its way. Held by one process at a time.
#[derive(Debug)]
pub struct Part {
    target: PathBuf,
    path: PathBuf,
    file: File,
    /// Bytes that are here.
    len: u64,
    /// Of those bytes.
    hash: Sha256,
    record: Record,
    /// False if all bytes came in one answer.
    is_joined: bool,
    _lock: File,
}

/// `path` with more behind its name.
fn with(path: &Path, more: &str) -> PathBuf {
    let mut text = path.as_os_str().to_owned();
    text.push(more);
    text.into()
}

/// Every file that pulling `target` may leave beside it.
pub fn companions(target: &Path) -> [PathBuf; 3] {
    [with(target, ".part"), with(target, ".part.json"), lock_path(target)]
}

/// The size that a part will have, as far as is known.
pub fn size_recorded(part: &Path) -> Option<u64> {
    let record: Record = serde_json::from_slice(&fs::read(with(part, ".json")).ok()?).ok()?;
    Some(record.size)
}

fn lock_path(target: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(target.file_name().unwrap_or_default());
    name.push(".lock");
    target.with_file_name(name)
}

/// Keeps other processes away from `target` until the value is dropped. The lock's file stays, since removing it would
/// let two processes hold locks on two files of the same name.
///
/// # Errors
/// [`Fault::Busy`], and [`Error::Io`].
pub fn lock(target: &Path) -> Result<File, Error> {
    let path = lock_path(target);
    let file = OpenOptions::new().create(true).append(true).open(&path).map_err(io_error("create", &path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Fault::Busy(target.to_owned()).into()),
        Err(TryLockError::Error(source)) => Err(io_error("lock", &path)(source)),
    }
}

impl Part {
    /// What there is of `target` already, if it is of this file; `seen` is told how many bytes have been read.
    ///
    /// # Errors
    /// Those of files, and [`Fault::Busy`].
    pub fn open(target: &Path, of: &RemoteFile, seen: &mut dyn FnMut(u64)) -> Result<Part, Error> {
        let lock = lock(target)?;
        let path = with(target, ".part");
        let (sha256, blob) = match of.content.clone() {
            Content::Sha256(sum) => (Some(sum), None),
            Content::Blob(blob) => (None, Some(blob)),
        };
        let mut record = Record { size: of.size, sha256, blob, etag: None };
        let known: Option<Record> =
            fs::read(with(&path, ".json")).ok().and_then(|json| serde_json::from_slice(&json).ok());
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(io_error("open", &path))?;
        let len = file.metadata().map_err(io_error("look at", &path))?.len();
        let same = known.filter(|known| Record { etag: None, ..known.clone() } == record);
        let usable = same.is_some() && len <= of.size;
        record.etag = same.and_then(|known| known.etag);
        let (target, hash) = (target.to_owned(), Sha256::new());
        let mut part = Part { target, path, file, len, hash, record, is_joined: true, _lock: lock };
        if !usable {
            part.restart()?;
        }
        let io = |source| io_error("read", &part.path)(source);
        hash_rest(&mut part.file, &mut part.hash, seen).map_err(io)?;
        Ok(part)
    }

    /// Bytes that are here.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// The strong entity tag that the last answer came with.
    pub fn etag(&self) -> Option<&str> {
        self.record.etag.as_deref().filter(|tag| !tag.starts_with("W/"))
    }

    /// Whether bytes of several answers are joined in it.
    pub fn is_joined(&self) -> bool {
        self.is_joined
    }

    /// Throws away what is here.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn restart(&mut self) -> Result<(), Error> {
        self.file
            .set_len(0)
            .and_then(|()| self.file.seek(SeekFrom::Start(0)))
            .map_err(io_error("empty", &self.path))?;
        (self.len, self.hash, self.is_joined) = (0, Sha256::new(), false);
        Ok(())
    }

    /// More bytes are about to come, in an answer with this entity tag.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn begin(&mut self, etag: Option<&str>) -> Result<(), Error> {
        self.is_joined = self.len > 0;
        self.record.etag = etag.map(str::to_owned);
        let path = with(&self.path, ".json");
        let json = serde_json::to_vec(&self.record).expect("texts and numbers can be written");
        fs::write(&path, json).map_err(io_error("write", &path))
    }

    /// Adds bytes.
    ///
    /// # Errors
    /// [`Error::Io`]; what was written before stays.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.file.write_all(bytes).map_err(io_error("write", &self.path))?;
        self.hash.update(bytes);
        self.len += bytes.len() as u64;
        Ok(())
    }

    /// SHA-256 of what is here.
    pub fn sha256(&self) -> String {
        hexadecimal(&self.hash.clone().finalize())
    }

    /// All is here and right: it takes its name, for good.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn finish(self) -> Result<(), Error> {
        self.file.sync_all().map_err(io_error("write", &self.path))?;
        fs::rename(&self.path, &self.target).map_err(io_error("rename", &self.path))?;
        // The name itself; some file systems cannot do this, and then need not.
        let _ = self.target.parent().map(|folder| File::open(folder).and_then(|folder| folder.sync_all()));
        let record = with(&self.path, ".json");
        match fs::remove_file(&record) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(io_error("remove", &record)(error)),
            _ => Ok(()),
        }
    }

    /// It is worth nothing.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn discard(self) -> Result<(), Error> {
        fs::remove_file(&self.path).map_err(io_error("remove", &self.path))?;
        let _ = fs::remove_file(with(&self.path, ".json"));
        Ok(())
    }
}

/// SHA-256 of a file, in hexadecimal digits.
///
/// # Errors
/// [`Error::Io`].
pub fn file_sha256(path: &Path, seen: &mut dyn FnMut(u64)) -> Result<String, Error> {
    let mut hash = Sha256::new();
    File::open(path)
        .and_then(|mut file| hash_rest(&mut file, &mut hash, seen))
        .map_err(io_error("read", path))?;
    Ok(hexadecimal(&hash.finalize()))
}

fn hash_rest(file: &mut File, hash: &mut Sha256, seen: &mut dyn FnMut(u64)) -> io::Result<()> {
    let mut block = vec![0; BLOCK_BYTES];
    let mut total = 0;
    loop {
        let read = file.read(&mut block)?;
        if read == 0 {
            return Ok(());
        }
        hash.update(&block[..read]);
        total += read as u64;
        seen(total);
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// For `map_err`: the error that says what was tried with which file.
pub fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let what = path.display().to_string();
    move |source| Error::Io { action, what, source }
}
