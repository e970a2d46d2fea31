//! Mapped matrices moved into huge pages while the model computes.
//!
//! A mapped file lies in pages of 4 KiB, and looking up their addresses costs a part of the bandwidth; reading a large file
//! into huge pages before the first token would take seconds. So a model starts mapped, and a thread copies matrix by
//! matrix, and interleaves rows on the way where that makes products faster. A matrix has two places from then on, of the same
//! rows: the map stays, and whoever took rows from it goes on with them; whoever asks after the copy is complete gets the copy. So nothing waits for anything, and a copy that cannot
//! be made (no memory, a file that was cut) is none: the matrix stays where it is.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use gguf::TensorType;
use kernels::INTERLEAVED_ROWS;
use sys::arena::{Lease, STEP_BYTES_MIN, Segment, lease_bytes};
use sys::read::ReadError;

use super::{Bytes, Held, Weights};
use crate::error::LoadError;
use crate::memory::MOVE_MARGIN_BYTES_MIN;

/// Copied at once: a huge page, below a millisecond.
pub(super) const PIECE_BYTES: usize = STEP_BYTES_MIN;

/// How often the thread asks what memory is left: asking takes as long as copying some hundred KiB.
const ASK_EVERY_BYTES: u64 = 64 << 20;

/// How long [`Mover::settle`] waits for one more piece.
const STALL_TIMEOUT: Duration = Duration::from_secs(10);

impl Weights {
    /// Copies mapped matrices into huge pages, in the order of the specification, but no n-gram tables, and gives up
    /// their mapped pages. Passes may go on meanwhile, and see the same rows throughout. `go_on` hears after each piece of
    /// at most 2 MiB how many bytes this call has copied, and ends it by saying no; matrices before the one at hand stay moved,
    /// and another call goes on with the rest. Answers with the bytes of matrices that this call moved.
    ///
    /// # Errors
    /// [`LoadError::Arena`] where there are no addresses or no memory, [`LoadError::Read`] where the file was cut or its disk
    /// failed. What was not moved stays mapped.
    pub fn move_matrices(&self, go_on: &mut dyn FnMut(u64) -> bool) -> Result<u64, LoadError> {
        let left: Vec<Movable<'_>> = self.movable().filter(|matrix| matrix.moved.get().is_none()).collect();
        let bytes = left.iter().map(|matrix| lease_bytes(matrix.range.len())).sum();
        let segment = Segment::reserve("weights", bytes, STEP_BYTES_MIN)?;
        let (mut copied, mut moved_bytes, mut in_rows) = (0, 0, Vec::new());
        for Movable { map, range, moved, sixteen_rows } in left {
            let mut lease = segment.lease(range.len())?;
            // Sixteen rows stay together.
            let piece_bytes = sixteen_rows.map_or(PIECE_BYTES, |(_, bytes)| PIECE_BYTES / bytes * bytes);
            for (i, piece) in lease.chunks_mut(piece_bytes).enumerate() {
                let offset = range.start + i * piece_bytes;
                match sixteen_rows {
                    None => self.read_piece(map, offset, piece)?,
                    Some((dtype, bytes)) => {
                        in_rows.resize(piece.len(), 0);
                        self.read_piece(map, offset, &mut in_rows)?;
                        kernels::interleave(dtype, bytes / INTERLEAVED_ROWS, &in_rows, piece);
                    }
                }
                copied += piece.len() as u64;
                if !go_on(copied) {
                    return Ok(moved_bytes);
                }
            }
            // Another call may have been faster; then this copy goes.
            if moved.set(lease).is_ok() {
                moved_bytes += range.len() as u64;
            }
            self.maps[map].advise_unneeded(range.clone());
        }
        // A pass that was at a matrix while it was moved has brought its pages back.
        self.movable().for_each(|matrix| self.maps[matrix.map].advise_unneeded(matrix.range.clone()));
        Ok(moved_bytes)
    }

    /// Not from the map: what cannot be read would be zeros there, and every pass would fail from then on.
    fn read_piece(&self, map: usize, offset: usize, piece: &mut [u8]) -> Result<(), ReadError> {
        self.maps[map].read(offset, piece).map_err(|source| ReadError {
            path: self.maps[map].path().into(),
            offset: offset as u64,
            bytes: piece.len(),
            source,
        })
    }

    /// Mapped matrices but n-gram tables.
    fn movable(&self) -> impl Iterator<Item = Movable<'_>> {
        self.held.iter().enumerate().filter_map(|(i, held)| match held {
            Held::Rows { bytes: Bytes::Mapped { map, range, moved }, dtype, row_values, interleaves } => {
                let is_table = self.tables.iter().any(|table| table.0 as usize == i);
                let row_bytes =
                    || dtype.row_bytes(*row_values).expect("rows were checked when the file was opened");
                let sixteen_rows = interleaves.then(|| (*dtype, INTERLEAVED_ROWS * row_bytes()));
                (!is_table).then_some(Movable { map: *map, range, moved, sixteen_rows })
            }
            _ => None,
        })
    }
}

/// A mapped matrix.
struct Movable<'a> {
    map: usize,
    /// Its bytes within the map.
    range: &'a Range<usize>,
    /// The copy.
    moved: &'a OnceLock<Lease>,
    /// Type and bytes of sixteen rows, where these lie side by side in the copy.
    sixteen_rows: Option<(TensorType, usize)>,
}

/// The thread that moves the weights of a model. Dropping it ends it after the piece it is at, and waits for that, but not
/// longer than [`STALL_TIMEOUT`].
pub(crate) struct Mover {
    weights: Arc<Weights>,
    promised_bytes: u64,
    shared: Arc<Shared>,
    thread: Option<Running>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    copied_bytes: AtomicU64,
}

struct Running {
    handle: JoinHandle<Result<u64, LoadError>>,
    /// Closed by the thread's end; nothing is ever sent.
    ended: mpsc::Receiver<()>,
}

impl Mover {
    /// One that has not begun, and leaves what is not touched yet of `promised_bytes` of this process.
    pub fn new(weights: Arc<Weights>, promised_bytes: u64) -> Mover {
        Mover { weights, promised_bytes, shared: Arc::default(), thread: None }
    }

    /// Begins, the first time. Where the system gives no thread, weights stay where they are.
    pub fn begin(&mut self) {
        if self.thread.is_some() || self.shared.stop.load(Ordering::Relaxed) {
            return;
        }
        let (weights, shared, promised) = (self.weights.clone(), self.shared.clone(), self.promised_bytes);
        let (until_ended, ended) = mpsc::channel();
        let started = thread::Builder::new().name("weights".into()).spawn(move || {
            let _until_ended = until_ended;
            sys::priority::step_back();
            work(&weights, &shared, &|copied| left_bytes(promised, copied))
        });
        match started {
            Ok(handle) => self.thread = Some(Running { handle, ended }),
            Err(_) => self.shared.stop.store(true, Ordering::Relaxed),
        }
    }

    /// Waits until all is moved, or nothing moves any more: as long as each piece comes within [`STALL_TIMEOUT`]. Answers
    /// with the bytes moved; with those copied, of which a matrix may be incomplete, where that ended it.
    ///
    /// # Errors
    /// Why moving ended early, once: weights lie then partly here and partly there, and compute the same.
    pub fn settle(&mut self) -> Result<u64, LoadError> {
        self.begin();
        let copied = || self.shared.copied_bytes.load(Ordering::Relaxed);
        let Some(running) = self.thread.take() else { return Ok(copied()) };
        loop {
            let before = copied();
            match running.ended.recv_timeout(STALL_TIMEOUT) {
                Err(RecvTimeoutError::Timeout) if copied() > before => {}
                // It may hang in a read of a file that a network holds: nobody waits for that.
                Err(RecvTimeoutError::Timeout) => {
                    self.thread = Some(running);
                    return Ok(copied());
                }
                Ok(()) | Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        // Once is enough.
        self.shared.stop.store(true, Ordering::Relaxed);
        // A panic was reported where it happened.
        running.handle.join().unwrap_or(Ok(0))
    }
}

impl Drop for Mover {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(running) = self.thread.take() {
            // A read that hangs, of a file that a network holds, holds up nobody: the thread owns all it uses. Its outcome
            // is of use to nobody now.
            if running.ended.recv_timeout(STALL_TIMEOUT) != Err(RecvTimeoutError::Timeout) {
                let _ = running.handle.join();
            }
        }
    }
}

/// What is available and promised to nobody: of `promised` bytes of this process those that it has not touched yet look
/// available. `copied` bytes of what it has are copies.
fn left_bytes(promised: u64, copied: u64) -> u64 {
    let anonymous = sys::memory::resident().map_or(0, |resident| resident.anonymous);
    let untouched = promised.saturating_sub(anonymous.saturating_sub(copied));
    sys::memory::available().bytes.saturating_sub(untouched)
}

/// Moves until it is told to stop, or until memory gets short: the plan's figure is of the start, and others take memory too.
fn work(weights: &Weights, shared: &Shared, left_bytes: &dyn Fn(u64) -> u64) -> Result<u64, LoadError> {
    let mut ask_at = 0;
    let mut go_on = |copied: u64| {
        shared.copied_bytes.store(copied, Ordering::Relaxed);
        if shared.stop.load(Ordering::Relaxed) {
            return false;
        }
        if copied < ask_at {
            return true;
        }
        ask_at = copied + ASK_EVERY_BYTES;
        left_bytes(copied) >= MOVE_MARGIN_BYTES_MIN
    };
    match go_on(0) {
        true => weights.move_matrices(&mut go_on),
        false => Ok(0),
    }
}

#[cfg(test)]
mod tests {
    use gguf::ModelFile;

    use super::*;
    use crate::models::read_spec;
    use crate::weights::Loading;

    fn weights() -> Weights {
        let file = ModelFile::open(&oracle::model("q3moe-tiny-F32")).unwrap();
        let spec = read_spec(&file, None).unwrap();
        Weights::load(&file, None, &spec, Loading::Moved, &|_, _| ()).unwrap()
    }

    fn all_bytes(weights: &Weights) -> u64 {
        weights.movable().map(|matrix| matrix.range.len() as u64).sum()
    }

    /// A thread that went on after its engine was dropped would keep the weights alive and compete with the next engine's.
    #[test]
    fn who_is_told_to_stop_moves_no_more() {
        let (weights, shared) = (weights(), Shared::default());
        let all = all_bytes(&weights);
        let stop_at_second = |_| {
            shared.stop.store(true, Ordering::Relaxed);
            u64::MAX
        };
        // Told while the memory is asked for, before the first piece: that one is the last, and incomplete or alone.
        let moved = work(&weights, &shared, &stop_at_second).unwrap();
        assert!(moved == 0 && shared.copied_bytes.load(Ordering::Relaxed) < all, "{moved} of {all}");
        assert_eq!(work(&weights, &shared, &|_| u64::MAX).unwrap(), 0);
        assert!(weights.movable().all(|matrix| matrix.moved.get().is_none()));
        shared.stop.store(false, Ordering::Relaxed);
        assert_eq!(work(&weights, &shared, &|_| u64::MAX).unwrap(), all);
        assert!(weights.movable().all(|matrix| matrix.moved.get().is_some()));
    }

    #[test]
    fn nothing_moves_where_memory_is_short() {
        let (weights, shared) = (weights(), Shared::default());
        assert_eq!(work(&weights, &shared, &|_| MOVE_MARGIN_BYTES_MIN - 1).unwrap(), 0);
        assert!(weights.movable().all(|matrix| matrix.moved.get().is_none()));
        assert!(work(&weights, &shared, &|_| MOVE_MARGIN_BYTES_MIN).unwrap() > 0);
    }

    /// Cells that a plan promised and nobody touched yet were given away to copies of weights.
    #[cfg(target_os = "linux")]
    #[test]
    fn what_is_promised_and_not_touched_is_left() {
        let all = left_bytes(0, 0);
        assert!(all > 0 && left_bytes(u64::MAX, 0) == 0);
        // Copies are no touched part of what was promised.
        let anonymous = sys::memory::resident().unwrap().anonymous;
        assert!(left_bytes(anonymous + (1 << 20), 0) > left_bytes(anonymous + (1 << 30), 1 << 30));
    }

    #[test]
    fn a_mover_settles_once_and_ends_when_dropped() {
        let weights = Arc::new(weights());
        let mut mover = Mover::new(weights.clone(), 0);
        // A machine that has less than the margin left moves nothing; this may be one.
        let moved = mover.settle().unwrap();
        assert!(moved == 0 || moved == all_bytes(&weights), "{moved}");
        mover.begin();
        assert!(mover.thread.is_none());
        drop(mover);
        let mut begun = Mover::new(weights.clone(), 0);
        begun.begin();
        drop(begun);
        // The thread is gone, and its hold on the weights with it.
        assert_eq!(Arc::strong_count(&weights), 1);
    }
}
