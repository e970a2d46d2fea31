//! Parts of a file read straight to where they belong.
//!
//! What is large goes to its place without a copy on the way. Memory that was never touched is cleared by the system when the
//! disk first writes there, and whoever gets a part checks it: both take as long as a fast disk, so they are done by the threads
//! that wait for the disk, some of which have it meanwhile.

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use super::{ALIGNMENT_BYTES, CHUNK_BYTES, LANES, buffer, open, read_at};
use crate::memory::AlignedBuf;

/// A part of a file, and where it goes.
pub struct Part<'a> {
    /// First byte within the file: a multiple of [`ALIGNMENT_BYTES`].
    pub offset: u64,
    /// As many bytes as this holds are read.
    pub into: &'a mut [u8],
}

/// Most pieces of memory of one request, a limit of the system.
const PIECES_MAX: usize = 1024;

/// Reads all parts. Each is shown to `whole` when it is there, with its number, by the thread that read it; what that says no to
/// ends the reading.
///
/// # Errors
/// The system's answer, or that of `whole`: the first one.
///
/// # Panics
/// If a part does not begin at a multiple of [`ALIGNMENT_BYTES`].
pub fn read_scattered(
    path: &Path,
    parts: Vec<Part<'_>>,
    whole: &(dyn Fn(usize, &[u8]) -> io::Result<()> + Sync),
) -> io::Result<()> {
    let file = open(path, File::options().read(true))?;
    let runs = runs(parts);
    let threads = LANES.min(runs.len());
    let shared = Mutex::new((runs.into_iter(), Ok(())));
    let lock = || shared.lock().unwrap_or_else(PoisonError::into_inner);
    let work = || {
        let mut room = None;
        loop {
            let run = {
                let mut shared = lock();
                if shared.1.is_err() { None } else { shared.0.next() }
            };
            let Some(run) = run else { return };
            if let Err(error) = read_run(&file, run, &mut room, whole) {
                let mut shared = lock();
                if shared.1.is_ok() {
                    shared.1 = Err(error);
                }
            }
        }
    };
    std::thread::scope(|scope| {
        (0..threads).for_each(|_| drop(scope.spawn(work)));
    });
    shared.into_inner().unwrap_or_else(PoisonError::into_inner).1
}

/// Parts that one request reads, since they follow each other in the file, or a single one that may take several.
struct Run<'a> {
    /// Number of the first part.
    first: usize,
    offset: u64,
    bytes: usize,
    parts: Vec<&'a mut [u8]>,
}

fn runs(parts: Vec<Part<'_>>) -> Vec<Run<'_>> {
    let mut runs: Vec<Run<'_>> = Vec::new();
    for (at, Part { offset, into }) in parts.into_iter().enumerate() {
        assert!(offset.is_multiple_of(ALIGNMENT_BYTES as u64), "a part that begins at byte {offset}");
        match runs.last_mut() {
            Some(run)
                if run.offset + run.bytes as u64 == offset
                    && run.bytes + into.len() <= CHUNK_BYTES
                    && run.parts.len() < PIECES_MAX
                    && is_aligned(into)
                    && is_aligned(run.parts[0]) =>
            {
                run.bytes += into.len();
                run.parts.push(into);
            }
            _ => runs.push(Run { first: at, offset, bytes: into.len(), parts: vec![into] }),
        }
    }
    runs
}

/// Whether a disk can write there.
fn is_aligned(memory: &[u8]) -> bool {
    memory.as_ptr().addr().is_multiple_of(ALIGNMENT_BYTES) && memory.len().is_multiple_of(ALIGNMENT_BYTES)
}

fn read_run(
    file: &File,
    run: Run<'_>,
    room: &mut Option<AlignedBuf<u8>>,
    whole: &(dyn Fn(usize, &[u8]) -> io::Result<()> + Sync),
) -> io::Result<()> {
    let Run { first, offset, mut parts, .. } = run;
    match &mut parts[..] {
        [part] if is_aligned(part) => {
            for (at, chunk) in part.chunks_mut(CHUNK_BYTES).enumerate() {
                let bytes = chunk.len();
                read_at(file, chunk, bytes, offset + (at * CHUNK_BYTES) as u64)?;
            }
        }
        // The disk has no way there, so it takes a copy.
        [part] => {
            let room = match room {
                Some(room) => room,
                None => room.insert(buffer()?),
            };
            for (at, chunk) in part.chunks_mut(CHUNK_BYTES).enumerate() {
                read_at(file, room, chunk.len(), offset + (at * CHUNK_BYTES) as u64)?;
                chunk.copy_from_slice(&room[..chunk.len()]);
            }
        }
        parts => {
            let mut pieces: Vec<IoSliceMut<'_>> =
                parts.iter_mut().map(|part| IoSliceMut::new(part)).collect();
            read_pieces(file, &mut pieces, offset)?;
        }
    }
    parts.iter().enumerate().try_for_each(|(at, part)| whole(first + at, part))
}

#[cfg(target_os = "linux")]
fn read_pieces(file: &File, mut pieces: &mut [IoSliceMut<'_>], mut offset: u64) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    while !pieces.is_empty() {
        let count = libc::c_int::try_from(pieces.len()).expect("as few as a request has");
        // SAFETY: an `IoSliceMut` has the layout of an `iovec`, as std promises; each is borrowed mutably until the call has
        // returned, so the system writes within memory that nobody else uses.
        let read = unsafe {
            libc::preadv(
                file.as_raw_fd(),
                pieces.as_mut_ptr().cast::<libc::iovec>(),
                count,
                offset as libc::off_t,
            )
        };
        match read {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            1.. => {
                offset += read as u64;
                IoSliceMut::advance_slices(&mut pieces, read as usize);
            }
            _ => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn read_pieces(file: &File, pieces: &mut [IoSliceMut<'_>], mut offset: u64) -> io::Result<()> {
    for piece in pieces {
        let bytes = piece.len();
        read_at(file, piece, bytes, offset)?;
        offset += bytes as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const PAGE: usize = ALIGNMENT_BYTES;

    fn byte(at: usize) -> u8 {
        (at % 251) as u8 ^ (at / PAGE) as u8
    }

    /// Reads parts (first page, bytes) into memory that is aligned if it can be, or a few bytes beside that.
    fn scattered(path: &Path, parts: &[(usize, usize)], beside: usize) {
        let strides = parts.iter().map(|&(_, bytes)| (bytes + beside).next_multiple_of(PAGE));
        let mut memory = AlignedBuf::<u8>::zeroed(strides.clone().sum::<usize>() + 2 * PAGE).unwrap();
        let front = memory.as_ptr().align_offset(PAGE);
        let mut left = &mut memory[front..];
        let mut wanted = Vec::new();
        for (&(page, bytes), stride) in parts.iter().zip(strides) {
            let (mine, rest) = left.split_at_mut(stride);
            left = rest;
            wanted.push(Part { offset: (page * PAGE) as u64, into: &mut mine[beside..][..bytes] });
        }
        let told: Vec<AtomicUsize> = parts.iter().map(|_| AtomicUsize::new(0)).collect();
        read_scattered(path, wanted, &|at, read| {
            let (page, bytes) = parts[at];
            assert!(read.len() == bytes && read.iter().enumerate().all(|(i, &b)| b == byte(page * PAGE + i)));
            told[at].fetch_add(1, Ordering::Relaxed);
            Ok(())
        })
        .unwrap();
        assert!(told.iter().all(|told| told.load(Ordering::Relaxed) == 1), "{parts:?} {beside}");
    }

    fn file(folder: &Path) -> std::path::PathBuf {
        let path = folder.join("file");
        let bytes: Vec<u8> = (0..3 * CHUNK_BYTES).map(byte).collect();
        std::fs::write(&path, bytes).unwrap();
        path
    }

    #[test]
    fn parts_come_to_where_they_belong() {
        let folder = tempfile::tempdir().unwrap();
        let path = file(folder.path());
        let small: Vec<(usize, usize)> = (0..1500).map(|at| (at, PAGE)).collect();
        let apart: Vec<(usize, usize)> = (0..60).rev().map(|at| (7 * at, 2 * PAGE)).collect();
        let uneven: Vec<(usize, usize)> = (0..40).map(|at| (3 * at, 2 * PAGE + 100)).collect();
        let large = [(1, 2 * CHUNK_BYTES + PAGE), (0, CHUNK_BYTES), (1024, CHUNK_BYTES - 64)];
        for parts in [&[][..], &small, &apart, &uneven, &large] {
            for beside in [0, 64] {
                scattered(&path, parts, beside);
            }
        }
    }

    #[test]
    fn what_is_not_there_or_not_wanted_ends_the_reading() {
        let folder = tempfile::tempdir().unwrap();
        let path = file(folder.path());
        let read = |first: u64, whole: &(dyn Fn(usize, &[u8]) -> io::Result<()> + Sync)| {
            let mut memory = AlignedBuf::<u8>::zeroed(CHUNK_BYTES).unwrap();
            let parts = memory.chunks_mut(2 * PAGE).enumerate();
            let parts = parts.map(|(at, into)| Part { offset: first + (2 * at * PAGE) as u64, into });
            read_scattered(&path, parts.collect(), whole)
        };
        let all = 3 * CHUNK_BYTES as u64;
        read(all - CHUNK_BYTES as u64, &|_, _| Ok(())).unwrap();
        // The file ends at a part's end, and within a part.
        for short in [2, 3] {
            let error = read(all - CHUNK_BYTES as u64 + short * PAGE as u64, &|_, _| Ok(())).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        }
        let no = |at: usize, _: &[u8]| if at == 5 { Err(io::ErrorKind::InvalidData.into()) } else { Ok(()) };
        assert_eq!(read(0, &no).unwrap_err().kind(), io::ErrorKind::InvalidData);
        let gone = read_scattered(&folder.path().join("none"), Vec::new(), &|_, _| Ok(()));
        assert_eq!(gone.unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
