//! Large files written and read front to back, past the system's cache of files where it can be passed by.
//!
//! That cache holds the pages of a mapped model, which a conversation of gigabytes would push out; and bytes that are needed
//! once are not worth a copy there. Requests are aligned, of [`CHUNK_BYTES`], and some are under way at once, each on a thread
//! of its own, so that the disk has work while the caller fills or empties the next buffer. A file system that has no direct
//! access (one in memory) is used through its cache.

mod scatter;

pub use scatter::{Part, read_scattered};

use std::fs::File;
use std::io::{self, Read, Write};
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};

use crate::memory::AlignedBuf;

/// Bytes of one request: long enough for a disk to be at its best.
pub const CHUNK_BYTES: usize = 4 << 20;

/// Requests begin and end at multiples of this, and so do buffers: a page, which is a multiple of any disk's block.
pub const ALIGNMENT_BYTES: usize = 4096;

/// Requests under way at once, and as many buffers: while one is filled the disk has the others.
const LANES: usize = 4;

/// Bytes of the buffers that a [`Writer`] has, or a [`Reader`], or what is measured beside them.
pub const BUFFERS_BYTES: usize = LANES * CHUNK_BYTES;

/// Part of a file on its way between a buffer and the disk.
struct Job {
    buffer: AlignedBuf<u8>,
    offset: u64,
    bytes: usize,
}

/// A thread that does one request at a time.
struct Lane {
    /// Absent only while it is dropped.
    jobs: Option<mpsc::Sender<Job>>,
    done: mpsc::Receiver<io::Result<AlignedBuf<u8>>>,
    thread: Option<JoinHandle<()>>,
}

impl Lane {
    fn start(work: impl Fn(&mut Job) -> io::Result<()> + Send + 'static) -> io::Result<Lane> {
        let (jobs, incoming) = mpsc::channel::<Job>();
        let (back, done) = mpsc::channel();
        let thread = thread::Builder::new().name("disk".into()).spawn(move || {
            for mut job in incoming {
                let result = work(&mut job);
                // The other side may have lost interest.
                let _ = back.send(result.map(|()| job.buffer));
            }
        })?;
        Ok(Lane { jobs: Some(jobs), done, thread: Some(thread) })
    }

    fn send(&self, job: Job) {
        let jobs = self.jobs.as_ref().expect("present until dropped");
        assert!(jobs.send(job).is_ok(), "a lane lives as long as its sender");
    }

    /// The buffer of the last job, which is waited for.
    fn receive(&self) -> io::Result<AlignedBuf<u8>> {
        self.done.recv().expect("a lane answers every job")
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported where it happened.
            let _ = thread.join();
        }
    }
}

fn buffer() -> io::Result<AlignedBuf<u8>> {
    AlignedBuf::zeroed(CHUNK_BYTES).map_err(|error| io::Error::new(io::ErrorKind::OutOfMemory, error))
}

/// A file that is being written. What was not [finished](Writer::finish) is of no use.
pub struct Writer {
    file: Arc<File>,
    lanes: Vec<Lane>,
    /// The buffer that is being filled; absent after a failure.
    buffer: Option<AlignedBuf<u8>>,
    filled: usize,
    /// Chunks handed to the lanes.
    chunks: usize,
    /// Where the first one lies.
    first: u64,
}

impl Writer {
    /// Makes a file, or empties the one that is there.
    ///
    /// # Errors
    /// The system's answer.
    pub fn create(path: &Path) -> io::Result<Writer> {
        Writer::start(open(path, File::options().write(true).create(true).truncate(true))?, 0)
    }

    /// Goes on behind the first `first` bytes of a file that is there, a multiple of [`ALIGNMENT_BYTES`]; what comes behind them
    /// is cut off.
    ///
    /// # Errors
    /// The system's answer.
    ///
    /// # Panics
    /// If `first` is no multiple of [`ALIGNMENT_BYTES`].
    pub fn append(path: &Path, first: u64) -> io::Result<Writer> {
        assert!(first.is_multiple_of(ALIGNMENT_BYTES as u64), "a direct file goes on at a whole page");
        let file = open(path, File::options().write(true))?;
        file.set_len(first)?;
        Writer::start(file, first)
    }

    fn start(file: File, first: u64) -> io::Result<Writer> {
        let file = Arc::new(file);
        let lane = |_| {
            let file = file.clone();
            Lane::start(move |job| write_at(&file, &job.buffer[..job.bytes], job.offset))
        };
        let lanes = (0..LANES).map(lane).collect::<io::Result<_>>()?;
        Ok(Writer { lanes, file, buffer: Some(buffer()?), filled: 0, chunks: 0, first })
    }

    /// Bytes of the file so far.
    pub fn position(&self) -> u64 {
        self.first + (self.chunks * CHUNK_BYTES + self.filled) as u64
    }

    /// Fills up to a multiple of [`ALIGNMENT_BYTES`] with zeros.
    ///
    /// # Errors
    /// The system's answer.
    pub fn pad(&mut self) -> io::Result<()> {
        let zeros = [0; ALIGNMENT_BYTES];
        self.write_all(&zeros[..self.filled.next_multiple_of(ALIGNMENT_BYTES) - self.filled])
    }

    /// Ends the file, whose length is a multiple of [`ALIGNMENT_BYTES`] now, and waits for the disk to have it.
    ///
    /// # Errors
    /// The system's answer.
    ///
    /// # Panics
    /// If the position is no multiple of [`ALIGNMENT_BYTES`].
    pub fn finish(self) -> io::Result<()> {
        self.finish_with(None)
    }

    /// As [`Writer::finish`]; once the disk has all of it, `page` is written at its place over what is there, and waited for: either
    /// nothing says that the file goes on or all that it says is there.
    ///
    /// # Errors
    /// The system's answer.
    ///
    /// # Panics
    /// If the position or the place of the page is no multiple of [`ALIGNMENT_BYTES`].
    pub fn finish_and_say(self, offset: u64, page: &[u8; ALIGNMENT_BYTES]) -> io::Result<()> {
        self.finish_with(Some((offset, page)))
    }

    fn finish_with(mut self, page: Option<(u64, &[u8; ALIGNMENT_BYTES])>) -> io::Result<()> {
        assert!(self.filled.is_multiple_of(ALIGNMENT_BYTES), "a direct file ends with a whole page");
        if self.filled > 0 {
            self.hand_on()?;
        }
        for at in self.chunks.saturating_sub(LANES)..self.chunks {
            // The buffer at hand belongs to no lane, so all those handed on come back.
            drop(self.lanes[at % LANES].receive()?);
        }
        self.file.sync_data()?;
        if let Some((offset, page)) = page {
            assert!(offset.is_multiple_of(ALIGNMENT_BYTES as u64), "a direct file has whole pages");
            let mut aligned = buffer()?;
            aligned[..ALIGNMENT_BYTES].copy_from_slice(page);
            write_at(&self.file, &aligned[..ALIGNMENT_BYTES], offset)?;
            self.file.sync_data()?;
        }
        Ok(())
    }

    /// Gives the buffer to the next lane.
    fn hand_on(&mut self) -> io::Result<()> {
        let buffer = self.buffer.take().ok_or_else(failed)?;
        let offset = self.first + (self.chunks * CHUNK_BYTES) as u64;
        let job = Job { buffer, offset, bytes: self.filled };
        self.lanes[self.chunks % LANES].send(job);
        self.chunks += 1;
        self.filled = 0;
        Ok(())
    }
}

fn failed() -> io::Error {
    io::Error::other("an earlier part could not be written")
}

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.filled == CHUNK_BYTES && !bytes.is_empty() {
            self.hand_on()?;
            self.buffer = Some(match self.chunks < LANES {
                true => buffer()?,
                false => self.lanes[self.chunks % LANES].receive()?,
            });
        }
        let room = &mut self.buffer.as_mut().ok_or_else(failed)?[self.filled..];
        let taken = room.len().min(bytes.len());
        room[..taken].copy_from_slice(&bytes[..taken]);
        self.filled += taken;
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Ranges of a file, read one after the other as if they were one.
pub struct Reader {
    lanes: Vec<Lane>,
    pieces: Vec<Piece>,
    /// Pieces whose buffers were emptied.
    done: usize,
    /// The piece that is being emptied, and how much of it is gone.
    buffer: Option<AlignedBuf<u8>>,
    emptied: usize,
}

/// What one request reads of a range: `skip` bytes too many at its front, since it is aligned.
struct Piece {
    offset: u64,
    skip: usize,
    bytes: usize,
}

impl Reader {
    /// Begins to read. The ranges are not empty.
    ///
    /// # Errors
    /// The system's answer.
    pub fn open(path: &Path, ranges: impl IntoIterator<Item = Range<u64>>) -> io::Result<Reader> {
        let file = Arc::new(open(path, File::options().read(true))?);
        let pieces: Vec<Piece> = ranges.into_iter().flat_map(pieces).collect();
        let lane = |_| {
            let file = file.clone();
            Lane::start(move |job| read_at(&file, &mut job.buffer, job.bytes, job.offset))
        };
        let lanes = (0..LANES.min(pieces.len())).map(lane).collect::<io::Result<_>>()?;
        let mut reader = Reader { lanes, pieces, done: 0, buffer: None, emptied: 0 };
        for at in 0..reader.lanes.len() {
            reader.ask(at, buffer()?);
        }
        Ok(reader)
    }

    fn ask(&mut self, at: usize, buffer: AlignedBuf<u8>) {
        if let Some(Piece { offset, skip, bytes }) = self.pieces.get(at) {
            self.lanes[at % LANES].send(Job { buffer, offset: *offset, bytes: skip + bytes });
        }
    }
}

fn pieces(range: Range<u64>) -> impl Iterator<Item = Piece> {
    let alignment = ALIGNMENT_BYTES as u64;
    let mut at = range.start;
    std::iter::from_fn(move || {
        let offset = at / alignment * alignment;
        let end = range.end.min(offset + CHUNK_BYTES as u64);
        let piece = Piece { offset, skip: (at - offset) as usize, bytes: (end.max(at) - at) as usize };
        at = end;
        (piece.bytes > 0).then_some(piece)
    })
}

impl Read for Reader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let Some(piece) = self.pieces.get(self.done) else { return Ok(0) };
        let (first, bytes) = (piece.skip + self.emptied, piece.bytes - self.emptied);
        let buffer = match self.buffer.take() {
            Some(buffer) => buffer,
            None => self.lanes[self.done % LANES].receive()?,
        };
        let taken = bytes.min(into.len());
        into[..taken].copy_from_slice(&buffer[first..first + taken]);
        self.emptied += taken;
        if taken == bytes {
            self.ask(self.done + LANES, buffer);
            (self.done, self.emptied) = (self.done + 1, 0);
        } else {
            self.buffer = Some(buffer);
        }
        Ok(taken)
    }
}

/// Writes `bytes` bytes, a multiple of [`ALIGNMENT_BYTES`], out of buffers that are there: the bound that a [`Writer`] is
/// measured against.
///
/// # Errors
/// The system's answer.
pub fn write_raw(path: &Path, bytes: u64) -> io::Result<()> {
    let file = Arc::new(open(path, File::options().write(true).create(true).truncate(true))?);
    let of_lanes = file.clone();
    raw(bytes, move |job| write_at(&of_lanes, &job.buffer[..job.bytes], job.offset))?;
    file.sync_data()
}

/// Reads the first `bytes` bytes of a file into buffers that are there: the bound that a [`Reader`] is measured against.
///
/// # Errors
/// The system's answer.
pub fn read_raw(path: &Path, bytes: u64) -> io::Result<()> {
    let file = Arc::new(open(path, File::options().read(true))?);
    raw(bytes, move |job| read_at(&file, &mut job.buffer, job.bytes, job.offset))
}

/// Has the lanes do their work for each chunk of so many bytes.
fn raw(bytes: u64, work: impl Fn(&mut Job) -> io::Result<()> + Clone + Send + 'static) -> io::Result<()> {
    let lanes = (0..LANES).map(|_| Lane::start(work.clone())).collect::<io::Result<Vec<Lane>>>()?;
    let chunks = bytes.div_ceil(CHUNK_BYTES as u64) as usize;
    for at in 0..chunks + LANES {
        let lane = &lanes[at % LANES];
        // What it did before, if that was anything.
        let buffer = if at >= LANES && at - LANES < chunks { Some(lane.receive()?) } else { None };
        if at < chunks {
            let mut buffer = buffer.map_or_else(buffer_of_ones, Ok)?;
            let offset = (at * CHUNK_BYTES) as u64;
            buffer[0] = at as u8;
            lane.send(Job { buffer, offset, bytes: CHUNK_BYTES.min((bytes - offset) as usize) });
        }
    }
    Ok(())
}

fn buffer_of_ones() -> io::Result<AlignedBuf<u8>> {
    let mut buffer = buffer()?;
    buffer.fill(1);
    Ok(buffer)
}

/// Opens a file for direct access, or for what access there is.
fn open(path: &Path, options: &mut std::fs::OpenOptions) -> io::Result<File> {
    #[cfg(target_os = "linux")]
    {
        use std::os::unix::fs::OpenOptionsExt;
        match options.clone().custom_flags(libc::O_DIRECT).open(path) {
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {}
            opened => return opened,
        }
    }
    options.open(path)
}

fn write_at(file: &File, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        #[cfg(unix)]
        let written = std::os::unix::fs::FileExt::write_at(file, bytes, offset);
        #[cfg(windows)]
        let written = std::os::windows::fs::FileExt::seek_write(file, bytes, offset);
        match written {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => (bytes, offset) = (&bytes[count..], offset + count as u64),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Reads `bytes` bytes and up to what aligns them more.
fn read_at(file: &File, into: &mut [u8], bytes: usize, offset: u64) -> io::Result<()> {
    let whole = bytes.next_multiple_of(ALIGNMENT_BYTES);
    let mut done = 0;
    while done < bytes {
        let (into, offset) = (&mut into[done..whole], offset + done as u64);
        #[cfg(unix)]
        let read = std::os::unix::fs::FileExt::read_at(file, into, offset);
        #[cfg(windows)]
        let read = std::os::windows::fs::FileExt::seek_read(file, into, offset);
        match read {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "lists of ranges, some of which have one")]
mod tests {
    use super::*;

    fn byte(at: usize) -> u8 {
        (at % 251) as u8 ^ (at / CHUNK_BYTES) as u8
    }

    fn written(path: &Path, len: usize, piece: usize) {
        let bytes: Vec<u8> = (0..len).map(byte).collect();
        let mut writer = Writer::create(path).unwrap();
        bytes.chunks(piece).for_each(|piece| writer.write_all(piece).unwrap());
        assert_eq!(writer.position(), len as u64);
        writer.finish().unwrap();
        assert!(std::fs::read(path).unwrap() == bytes, "{len} in pieces of {piece}");
    }

    #[test]
    fn what_was_written_is_there() {
        let folder = tempfile::tempdir().unwrap();
        for (len, piece) in [
            (0, 1),
            (ALIGNMENT_BYTES, 7),
            (CHUNK_BYTES, 1 << 20),
            (CHUNK_BYTES + ALIGNMENT_BYTES, CHUNK_BYTES + 5),
            (LANES * CHUNK_BYTES, 100_003),
            (2 * LANES * CHUNK_BYTES + 3 * ALIGNMENT_BYTES, 1 << 25),
        ] {
            written(&folder.path().join("file"), len, piece);
        }
    }

    #[test]
    fn a_file_goes_on_behind_what_is_kept_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        written(&path, 3 * CHUNK_BYTES, 1 << 20);
        let (kept, more) = (CHUNK_BYTES + ALIGNMENT_BYTES, 2 * LANES * CHUNK_BYTES + 5);
        let mut writer = Writer::append(&path, kept as u64).unwrap();
        writer.write_all(&vec![7; more]).unwrap();
        writer.pad().unwrap();
        let end = (kept + more).next_multiple_of(ALIGNMENT_BYTES);
        assert_eq!(writer.position(), end as u64);
        writer.finish_and_say(ALIGNMENT_BYTES as u64, &[9; ALIGNMENT_BYTES]).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(bytes.len(), end);
        let said = ALIGNMENT_BYTES..2 * ALIGNMENT_BYTES;
        assert!(bytes[said.clone()].iter().all(|&byte| byte == 9));
        assert!((0..kept).filter(|at| !said.contains(at)).all(|at| bytes[at] == byte(at)));
        assert!(bytes[kept..kept + more].iter().all(|&byte| byte == 7));
        assert!(bytes[kept + more..].iter().all(|&byte| byte == 0));
        assert_eq!(
            Writer::append(&folder.path().join("none"), 0).err().unwrap().kind(),
            io::ErrorKind::NotFound
        );
    }

    #[test]
    fn ranges_are_read_as_if_they_were_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let len = 5 * CHUNK_BYTES;
        written(&path, len, 1 << 20);
        for ranges in [
            vec![],
            vec![0..1],
            vec![5..4097],
            vec![0..len],
            vec![len - 1..len, 0..3],
            vec![4095..CHUNK_BYTES + 4097, 7..9, CHUNK_BYTES..4 * CHUNK_BYTES + 1, 100..200, 300..400],
        ] {
            let wanted: Vec<u8> = ranges.iter().cloned().flatten().map(byte).collect();
            let mut reader =
                Reader::open(&path, ranges.iter().map(|r| r.start as u64..r.end as u64)).unwrap();
            let mut read = Vec::new();
            reader.read_to_end(&mut read).unwrap();
            assert!(read == wanted, "{ranges:?}");
        }
    }

    /// Nobody waits for what never comes, and nothing is made up.
    #[test]
    fn a_file_that_is_too_short_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        written(&path, CHUNK_BYTES, 1 << 20);
        let mut reader = Reader::open(&path, [0..2 * CHUNK_BYTES as u64]).unwrap();
        let error = reader.read_to_end(&mut Vec::new()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        drop(Reader::open(&path, [0..CHUNK_BYTES as u64]).unwrap());
        assert!(Reader::open(&folder.path().join("none"), [0..1]).is_err());
    }

    #[test]
    fn what_is_measured_is_written_and_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        for bytes in [0, ALIGNMENT_BYTES, 5 * CHUNK_BYTES + ALIGNMENT_BYTES] {
            write_raw(&path, bytes as u64).unwrap();
            assert_eq!(path.metadata().unwrap().len(), bytes as u64);
            read_raw(&path, bytes as u64).unwrap();
        }
        assert!(read_raw(&path, 7 * CHUNK_BYTES as u64).is_err());
    }

    #[test]
    fn a_writer_that_is_left_leaves_no_thread_behind() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = Writer::create(&folder.path().join("file")).unwrap();
        writer.write_all(&vec![1; LANES * CHUNK_BYTES + 1]).unwrap();
        drop(writer);
    }
}
