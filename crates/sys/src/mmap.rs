//! Read-only maps of whole files that survive the file being cut or its disk failing.

use std::fs::File;
use std::io;
use std::ops::{Deref, Range};
use std::path::{Path, PathBuf};

#[cfg(target_os = "linux")]
mod sigbus;

/// A read-only map of a whole file, dereferencing to its bytes.
///
/// On Linux a page that can no longer be read (the file was cut, or the disk failed) reads as zeros instead of
/// ending the process, and [`Map::damaged`] says so from then on. The length stays the one the file had when opened.
/// Elsewhere `damaged` is always false.
#[derive(Debug)]
pub struct Map {
    // Declared before `bytes`: the range leaves the registry before the addresses are given back.
    #[cfg(target_os = "linux")]
    registered: Option<sigbus::Registered>,
    bytes: memmap2::Mmap,
    /// Kept open: by now the path may name another file.
    file: File,
    path: PathBuf,
}

/// Why a file could not be mapped.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// The file could not be opened or its size not be read.
    #[error("cannot open {path}: {source}", path = path.display())]
    Open {
        /// The file asked for.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The path names a folder, a pipe or a device.
    #[error("{path} is not a regular file", path = path.display())]
    NotAFile {
        /// The path asked for.
        path: PathBuf,
    },
    /// The system refused the map.
    #[error("cannot map the {bytes} bytes of {path}: {source}", path = path.display())]
    Refused {
        /// The file asked for.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// What the system said.
        source: io::Error,
    },
}

impl Map {
    /// Maps all of the file at `path`. An empty file gives an empty map.
    ///
    /// # Errors
    /// [`MapError`]: the file cannot be opened, is not a regular file, or the system refuses the map.
    pub fn open(path: &Path) -> Result<Map, MapError> {
        let open_error = |source| MapError::Open { path: path.into(), source };
        // Looked at before opening: opening a pipe would wait for its writer.
        if !std::fs::metadata(path).map_err(open_error)?.is_file() {
            return Err(MapError::NotAFile { path: path.into() });
        }
        let file = File::open(path).map_err(open_error)?;
        let size = file.metadata().map_err(open_error)?.len();
        let refused = |source| MapError::Refused { path: path.into(), bytes: size, source };
        let len = usize::try_from(size).map_err(|error| refused(io::Error::other(error)))?;
        // SAFETY: the map is private to this value, read-only and of plain bytes, for which every bit pattern is
        // valid. Pages that vanish are replaced by zeros in the SIGBUS handler. Another process writing into the
        // file can change bytes while they are borrowed; users of the map check every value after reading it and
        // keep no length or offset that they read twice.
        let bytes = unsafe { memmap2::MmapOptions::new().len(len).map(&file) }.map_err(refused)?;
        #[cfg(target_os = "linux")]
        let registered = if len == 0 {
            None
        } else {
            Some(sigbus::Registered::new(bytes.as_ptr() as usize, len).map_err(refused)?)
        };
        Ok(Map {
            #[cfg(target_os = "linux")]
            registered,
            bytes,
            file,
            path: path.into(),
        })
    }

    /// The path this map was opened with.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// True once a page of this map could not be read. Reads of such pages gave zeros, so whatever was computed from
    /// the map since the last time this was false is worthless.
    pub fn damaged(&self) -> bool {
        #[cfg(target_os = "linux")]
        return self.registered.as_ref().is_some_and(sigbus::Registered::damaged);
        #[cfg(not(target_os = "linux"))]
        false
    }

    /// Tells the system that `range` (byte offsets, cut to the file) is read in no order, so that it reads no pages ahead.
    pub fn advise_random(&self, range: Range<usize>) {
        #[cfg(unix)]
        self.advise(memmap2::Advice::Random, range);
        #[cfg(not(unix))]
        let _ = range;
    }

    /// Tells the system that `range` (byte offsets, cut to the file) is read from front to back.
    pub fn advise_sequential(&self, range: Range<usize>) {
        #[cfg(unix)]
        self.advise(memmap2::Advice::Sequential, range);
        #[cfg(not(unix))]
        let _ = range;
    }

    /// Asks the system to begin reading `range` (byte offsets, cut to the file) into memory.
    pub fn advise_willneed(&self, range: Range<usize>) {
        #[cfg(unix)]
        self.advise(memmap2::Advice::WillNeed, range);
        #[cfg(not(unix))]
        let _ = range;
    }

    /// Tells the system that this process needs no more of `range` (byte offsets, cut to the file) in its memory. Only
    /// whole pages within it are given up; they stay in the system's cache of files and come back with the same bytes
    /// when they are read again.
    pub fn advise_unneeded(&self, range: Range<usize>) {
        #[cfg(unix)]
        {
            let page = page_bytes();
            // The library would widen the range to whole pages; neighbours may be in use.
            let (first, end) = (range.start.next_multiple_of(page), range.end.min(self.len()) / page * page);
            if first < end {
                // SAFETY: the map is a shared one of a file and nobody writes through it, so a page that is dropped
                // comes back with the bytes of the file, or as zeros by way of the SIGBUS handler, like one that was
                // never read. References into it stay valid.
                let _ = unsafe {
                    self.bytes.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, first, end - first)
                };
            }
        }
        #[cfg(not(unix))]
        let _ = range;
    }

    /// Reads the bytes of the file from `offset` on into `into`, without touching the map.
    ///
    /// # Errors
    /// The system's answer; [`io::ErrorKind::UnexpectedEof`] where the file was cut. What `into` holds then is anything.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> io::Result<()> {
        #[cfg(unix)]
        return std::os::unix::fs::FileExt::read_exact_at(&self.file, into, offset as u64);
        #[cfg(windows)]
        {
            let mut done = 0;
            while done < into.len() {
                // Moves the position of the handle, which nobody else reads by.
                let at = (offset + done) as u64;
                match std::os::windows::fs::FileExt::seek_read(&self.file, &mut into[done..], at)? {
                    0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                    got => done += got,
                }
            }
            Ok(())
        }
        #[cfg(not(any(unix, windows)))]
        {
            let _ = (offset, into);
            Err(io::ErrorKind::Unsupported.into())
        }
    }

    /// Advice may be refused without harm, so its result is dropped.
    #[cfg(unix)]
    fn advise(&self, advice: memmap2::Advice, range: Range<usize>) {
        let end = range.end.min(self.len());
        if range.start < end {
            let _ = self.bytes.advise_range(advice, range.start, end - range.start);
        }
    }

    /// Bytes of this map that are in memory now (whole pages, so up to a page more than the file), or `None` where
    /// the system does not tell.
    pub fn resident_bytes(&self) -> Option<u64> {
        #[cfg(target_os = "linux")]
        return sigbus::resident_bytes(&self.bytes);
        #[cfg(not(target_os = "linux"))]
        None
    }
}

#[cfg(unix)]
fn page_bytes() -> usize {
    // SAFETY: sysconf has no preconditions.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).expect("a page has a size")
}

impl Deref for Map {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests;
