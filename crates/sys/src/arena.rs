//! Memory in named segments: address space is reserved once, bytes are committed in steps as they are leased and given
//! back when whole steps are free.
//!
//! A [`Segment`] never moves and never exceeds its budget, so that several of them (keys and values, weights, slots of
//! experts) can share one machine by numbers that are decided beforehand. A [`Lease`] is a range of a segment that
//! belongs to its holder alone; it keeps the segment alive and goes back when dropped.

mod book;
mod system;

use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytemuck::Pod;

use crate::cast;
use book::Book;
use system::Pages;

/// Every lease starts at a multiple of this many bytes and takes a multiple of it: a cache line, and the widest load.
pub const LEASE_ALIGNMENT_BYTES: usize = 64;

/// Steps are multiples of this: a huge page, so that no step shares one with memory that was given back.
pub const STEP_BYTES_MIN: usize = 2 << 20;

/// Reserved addresses of which parts are leased. Cloning it gives another handle to the same.
#[derive(Clone, Debug)]
pub struct Segment {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    name: String,
    pages: Pages,
    book: Mutex<Book>,
}

/// A range of a segment, dereferencing to its bytes, which were all zero when it was leased, if that was asked for.
pub struct Lease {
    shared: Arc<Shared>,
    /// Whole multiples of the alignment.
    range: Range<usize>,
    /// As many as were asked for.
    bytes: usize,
}

/// What a segment holds, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counters {
    /// Addresses, and the most that may be committed.
    pub budget: usize,
    /// Memory taken from the system, in whole steps; of a page that was never touched only the promise.
    pub committed: usize,
    /// Memory that leases have.
    pub leased: usize,
}

/// A segment has no room, or the system none for it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArenaError {
    /// The budget is used up.
    #[error("no room for {wanted_bytes} more bytes of {name}: {left_bytes} of {budget_bytes} are left")]
    OutOfBudget {
        /// The segment.
        name: String,
        /// Bytes asked for.
        wanted_bytes: usize,
        /// Bytes that nobody has leased, perhaps not in one piece.
        left_bytes: usize,
        /// Bytes of the segment.
        budget_bytes: usize,
    },
    /// The system refuses.
    #[error("the system gives no {bytes} bytes for {name}: {reason}")]
    Refused {
        /// The segment.
        name: String,
        /// Bytes asked for.
        bytes: usize,
        /// The system's answer.
        reason: String,
    },
}

/// The budget of a segment for `bytes` bytes: whole steps.
pub fn whole_steps(bytes: usize, step_bytes: usize) -> usize {
    let step_bytes = step_bytes.next_multiple_of(STEP_BYTES_MIN);
    bytes.checked_next_multiple_of(step_bytes).unwrap_or(usize::MAX)
}

/// What a lease of `bytes` bytes takes of its segment.
pub fn lease_bytes(bytes: usize) -> usize {
    bytes.checked_next_multiple_of(LEASE_ALIGNMENT_BYTES).unwrap_or(usize::MAX)
}

impl Segment {
    /// Reserves addresses for [`whole_steps`] of `budget_bytes`; takes no memory yet.
    ///
    /// # Errors
    /// [`ArenaError::Refused`].
    pub fn reserve(name: &str, budget_bytes: usize, step_bytes: usize) -> Result<Segment, ArenaError> {
        let step_bytes = step_bytes.next_multiple_of(STEP_BYTES_MIN);
        let bytes = whole_steps(budget_bytes, step_bytes);
        let refused = |error: std::io::Error| ArenaError::Refused {
            name: name.into(),
            bytes,
            reason: error.to_string(),
        };
        let pages = Pages::reserve(bytes).map_err(refused)?;
        let book = Mutex::new(Book::new(bytes, step_bytes));
        Ok(Segment { shared: Arc::new(Shared { name: name.into(), pages, book }) })
    }

    /// Keeps memory that it has or gets among its first `bytes` bytes, in whole steps, though nobody leases it: who leases
    /// again after a while does not wait for the system to clear pages.
    pub fn keep(&self, bytes: usize) {
        self.shared.book().keep(bytes);
    }

    /// Commits the first `bytes` bytes, in whole steps and within the budget, and keeps them.
    ///
    /// # Errors
    /// [`ArenaError::Refused`].
    pub fn commit_first(&self, bytes: usize) -> Result<(), ArenaError> {
        let mut book = self.shared.book();
        let kept = book.keep(bytes);
        for missing in book.missing(&kept) {
            self.shared.pages.commit(missing.clone()).map_err(|error| ArenaError::Refused {
                name: self.shared.name.clone(),
                bytes: kept.len(),
                reason: error.to_string(),
            })?;
            book.committed(missing);
        }
        Ok(())
    }

    /// A range of `bytes` zeros: the lowest one that is free, so that what is given back lies together above.
    ///
    /// # Errors
    /// [`ArenaError::OutOfBudget`] when no free range is long enough; [`ArenaError::Refused`].
    pub fn lease(&self, bytes: usize) -> Result<Lease, ArenaError> {
        let (mut lease, used_before) = self.take(bytes)?;
        let first = lease.range.start;
        for part in used_before {
            lease.whole()[part.start - first..part.end - first].fill(0);
        }
        Ok(lease)
    }

    /// As [`Segment::lease`], but for the zeros: what an earlier lease left may be there still, for whoever writes over all of it.
    ///
    /// # Errors
    /// As [`Segment::lease`].
    pub fn lease_as_it_is(&self, bytes: usize) -> Result<Lease, ArenaError> {
        self.take(bytes).map(|(lease, _)| lease)
    }

    /// A lease, and the parts of its range that may not be zero.
    fn take(&self, bytes: usize) -> Result<(Lease, Vec<Range<usize>>), ArenaError> {
        let shared = self.shared.clone();
        let mut book = shared.book();
        let Some(range) = book.take(lease_bytes(bytes)) else {
            let counters = book.counters();
            return Err(ArenaError::OutOfBudget {
                name: shared.name.clone(),
                wanted_bytes: bytes,
                left_bytes: counters.budget - counters.leased,
                budget_bytes: counters.budget,
            });
        };
        for missing in book.missing(&range) {
            if let Err(error) = shared.pages.commit(missing.clone()) {
                shared.put_back(&mut book, range);
                let (name, reason) = (shared.name.clone(), error.to_string());
                return Err(ArenaError::Refused { name, bytes, reason });
            }
            book.committed(missing);
        }
        let used_before = book.used_before(&range);
        drop(book);
        Ok((Lease { shared, range, bytes }, used_before))
    }

    /// What it holds now.
    pub fn counters(&self) -> Counters {
        self.shared.book().counters()
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.shared.name
    }
}

impl Shared {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Frees a range and gives back the steps that are wholly free now.
    fn put_back(&self, book: &mut Book, range: Range<usize>) {
        for steps in book.put_back(range) {
            // What the system does not take back stays committed, to be leased again.
            if self.pages.give_back(steps.clone()).is_ok() {
                book.given_back(steps);
            }
        }
    }
}

impl Lease {
    /// The memory as numbers.
    ///
    /// # Panics
    /// If it is no whole number of them.
    pub fn values<T: Pod>(&self) -> &[T] {
        cast::slice(self).expect("a whole number of values; leases are aligned for all of them")
    }

    /// As [`Lease::values`], to be written.
    pub fn values_mut<T: Pod>(&mut self) -> &mut [T] {
        cast::slice_mut(self).expect("a whole number of values; leases are aligned for all of them")
    }

    /// First byte within the segment.
    pub fn offset(&self) -> usize {
        self.range.start
    }

    /// All bytes that are taken, those that only align included.
    fn whole(&mut self) -> &mut [u8] {
        // SAFETY: `book` handed the range out to this lease alone and takes it back when the lease is dropped; its steps
        // are committed, so it is readable and writable, and `&mut self` is the only access through the lease.
        unsafe { std::slice::from_raw_parts_mut(self.shared.pages.at(self.range.start), self.range.len()) }
    }
}

impl Deref for Lease {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: as in `whole`, but for reading: writes need `&mut self`. `bytes` is at most the range's length.
        unsafe { std::slice::from_raw_parts(self.shared.pages.at(self.range.start), self.bytes) }
    }
}

impl DerefMut for Lease {
    fn deref_mut(&mut self) -> &mut [u8] {
        let bytes = self.bytes;
        &mut self.whole()[..bytes]
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut book = self.shared.book();
        self.shared.put_back(&mut book, self.range.clone());
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lease({} bytes at {} of {})", self.bytes, self.range.start, self.shared.name)
    }
}

#[cfg(test)]
mod tests;
