//! Parts of files read into memory, several at a time.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// A range of a file and where it goes.
pub struct Part<'a> {
    /// The file.
    pub path: &'a Path,
    /// First byte within it.
    pub offset: u64,
    /// As many bytes as this holds are read.
    pub into: &'a mut [u8],
}

/// A part that could not be read.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot read {bytes} bytes at byte {offset} of {}: {source}; the file was cut or changed, or its disk failed",
    path.display()
)]
pub struct ReadError {
    /// The file.
    pub path: PathBuf,
    /// First byte of what was to be read.
    pub offset: u64,
    /// Bytes that were to be read.
    pub bytes: usize,
    /// The system's answer.
    pub source: io::Error,
}

/// Read at once by a thread: long enough for a disk to be at its best, short enough to share a file out evenly.
const CHUNK_BYTES: usize = 8 << 20;

/// Reads all parts on `threads` threads. `progress` is told after each piece how many bytes are read and how many there
/// are, by the thread that read it.
///
/// # Errors
/// The first [`ReadError`]; what was read until then stays where it is.
pub fn read_parts(
    parts: Vec<Part<'_>>,
    threads: usize,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<(), ReadError> {
    let total = parts.iter().map(|part| part.into.len() as u64).sum();
    let pieces = parts.into_iter().flat_map(|part| {
        let Part { path, offset, into } = part;
        let piece = move |(i, into)| Part { path, offset: offset + (i * CHUNK_BYTES) as u64, into };
        into.chunks_mut(CHUNK_BYTES).enumerate().map(piece)
    });
    let shared = Mutex::new((pieces, 0u64, None::<ReadError>));
    let lock = || shared.lock().unwrap_or_else(PoisonError::into_inner);
    let work = || loop {
        let piece = {
            let mut shared = lock();
            if shared.2.is_some() { None } else { shared.0.next() }
        };
        let Some(piece) = piece else { return };
        let bytes = piece.into.len();
        match read(piece.path, piece.offset, piece.into) {
            Ok(()) => {
                let done = {
                    let mut shared = lock();
                    shared.1 += bytes as u64;
                    shared.1
                };
                progress(done, total);
            }
            Err(source) => {
                let error = ReadError { path: piece.path.into(), offset: piece.offset, bytes, source };
                lock().2.get_or_insert(error);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.max(1) {
            scope.spawn(work);
        }
        work();
    });
    match shared.into_inner().unwrap_or_else(PoisonError::into_inner).2 {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

fn read(path: &Path, offset: u64, into: &mut [u8]) -> io::Result<()> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(offset))?;
    file.read_exact(into)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn parts_land_where_they_should_on_any_number_of_threads() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let bytes: Vec<u8> = (0..CHUNK_BYTES + 70_000).map(|i| (i % 251) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        for threads in [0, 1, 3] {
            let (mut a, mut b, mut c) = (vec![0; CHUNK_BYTES + 5], vec![0; 1000], Vec::new());
            let last = AtomicU64::new(0);
            let parts = vec![
                Part { path: &path, offset: 7, into: &mut a },
                Part { path: &path, offset: 69_000, into: &mut b },
                Part { path: &path, offset: 0, into: &mut c },
            ];
            let all = (CHUNK_BYTES + 1005) as u64;
            let progress = |done, total| {
                assert_eq!(total, all);
                last.fetch_max(done, Ordering::Relaxed);
            };
            read_parts(parts, threads, &progress).unwrap();
            assert!(a == bytes[7..CHUNK_BYTES + 12] && b == bytes[69_000..70_000]);
            assert_eq!(last.into_inner(), all);
        }
    }

    /// One thread reads part by part, so the file can be cut between them.
    #[test]
    fn a_file_cut_while_it_is_read_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, [1; 3000]).unwrap();
        let (mut a, mut b) = (vec![0; 1000], vec![0; 1000]);
        let parts = vec![
            Part { path: &path, offset: 0, into: &mut a },
            Part { path: &path, offset: 1500, into: &mut b },
        ];
        let cut = |_, _| File::options().write(true).open(&path).unwrap().set_len(2000).unwrap();
        let error = read_parts(parts, 1, &cut).unwrap_err();
        assert_eq!((&error.path, error.offset, error.bytes), (&path, 1500, 1000));
        assert!(error.to_string().contains("file: ") && error.to_string().contains("was cut"), "{error}");
        assert_eq!(a, [1; 1000]);
    }

    #[test]
    fn a_file_that_is_gone_is_named() {
        let path = Path::new("/no such folder/file");
        let error = read_parts(vec![Part { path, offset: 0, into: &mut [0; 4] }], 2, &|_, _| ()).unwrap_err();
        assert_eq!(error.source.kind(), io::ErrorKind::NotFound);
    }
}
