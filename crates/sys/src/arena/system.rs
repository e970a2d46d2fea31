//! Reserved addresses, and memory behind parts of them.

use std::io;
use std::ops::Range;
use std::ptr::NonNull;

use super::STEP_BYTES_MIN;

/// Reserved addresses that start at a multiple of [`STEP_BYTES_MIN`].
#[derive(Debug)]
pub(super) struct Pages {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the addresses belong to the value alone, and nothing about them is tied to a thread; who may use which of them
// is decided by the book of the segment.
unsafe impl Send for Pages {}
// SAFETY: as above; shared access only computes addresses and asks the system.
unsafe impl Sync for Pages {}

impl Pages {
    /// The address of byte `offset`.
    pub fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset <= self.bytes, "byte {offset} of {}", self.bytes);
        // SAFETY: within the reserved range or one past it, which is one object of the system.
        unsafe { self.start.as_ptr().add(offset) }
    }

    fn check(&self, range: &Range<usize>) {
        assert!(
            range.start <= range.end && range.end <= self.bytes && range.start.is_multiple_of(STEP_BYTES_MIN),
            "{range:?} of {}",
            self.bytes
        );
    }
}

#[cfg(unix)]
impl Pages {
    /// Reserves `bytes` addresses, a multiple of the least step, without memory.
    pub fn reserve(bytes: usize) -> io::Result<Pages> {
        if bytes == 0 {
            let start =
                NonNull::without_provenance(std::num::NonZero::new(STEP_BYTES_MIN).expect("not zero"));
            return Ok(Pages { start, bytes });
        }
        let mapped =
            bytes.checked_add(STEP_BYTES_MIN).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        // SAFETY: a fresh anonymous map at an address of the system's choice touches nothing that exists.
        let base = unsafe { map(std::ptr::null_mut(), mapped, 0) }?.cast::<u8>();
        let front = base.align_offset(STEP_BYTES_MIN);
        // SAFETY: both ends lie within the map just made: `front` bytes before and the rest after the `bytes` kept.
        unsafe {
            let start = base.add(front);
            if front > 0 {
                libc::munmap(base.cast(), front);
            }
            libc::munmap(start.add(bytes).cast(), mapped - front - bytes);
            Ok(Pages { start: NonNull::new(start).expect("maps are not at zero"), bytes })
        }
    }

    /// Puts zeroed memory behind `range`, whole steps without any.
    pub fn commit(&self, range: Range<usize>) -> io::Result<()> {
        self.check(&range);
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: whole pages of our own map, of which nobody has a reference: no lease reaches into an absent step.
        let got = unsafe { libc::mprotect(self.at(range.start).cast(), range.len(), access) };
        if got != 0 {
            return Err(io::Error::last_os_error());
        }
        // Weights and cells are read from front to back, token after token: with pages of 4 KiB the look-ups of
        // addresses would cost a part of the bandwidth. Where huge pages are not allowed memory is slower, not wrong.
        #[cfg(target_os = "linux")]
        // SAFETY: as above; advice changes no contents.
        unsafe {
            libc::madvise(self.at(range.start).cast(), range.len(), libc::MADV_HUGEPAGE);
        }
        Ok(())
    }

    /// Gives the memory behind `range`, whole steps, back to the system; the addresses stay reserved.
    pub fn give_back(&self, range: Range<usize>) -> io::Result<()> {
        self.check(&range);
        // SAFETY: whole pages of our own map, of which nobody has a reference: the steps are free. A fresh map over them
        // drops their contents.
        unsafe { map(self.at(range.start).cast(), range.len(), libc::MAP_FIXED) }.map(|_| ())
    }
}

/// An anonymous map without access.
///
/// # Safety
/// With `MAP_FIXED` the range belongs to the caller, and nobody has a reference into it.
#[cfg(unix)]
unsafe fn map(at: *mut libc::c_void, bytes: usize, fixed: libc::c_int) -> io::Result<*mut libc::c_void> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | fixed;
    // SAFETY: the caller's promise.
    let got = unsafe { libc::mmap(at, bytes, libc::PROT_NONE, flags, -1, 0) };
    if got == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(got) }
}

#[cfg(unix)]
impl Drop for Pages {
    fn drop(&mut self) {
        if self.bytes > 0 {
            // SAFETY: the map made by `reserve`; leases keep the segment alive, so nobody has a reference any more.
            unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
        }
    }
}

/// Where addresses cannot be reserved without memory, all of it is taken at once.
#[cfg(not(unix))]
mod elsewhere {
    use std::alloc::{Layout, alloc_zeroed, dealloc};

    use super::*;

    impl Pages {
        fn layout(bytes: usize) -> io::Result<Layout> {
            Layout::from_size_align(bytes, STEP_BYTES_MIN).map_err(io::Error::other)
        }

        /// Zeroed memory of `bytes` bytes.
        pub fn reserve(bytes: usize) -> io::Result<Pages> {
            let layout = Pages::layout(bytes)?;
            let start = match bytes {
                0 => NonNull::without_provenance(std::num::NonZero::new(STEP_BYTES_MIN).expect("not zero")),
                // SAFETY: the layout has bytes.
                _ => NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(io::ErrorKind::OutOfMemory)?,
            };
            Ok(Pages { start, bytes })
        }

        /// It is there already.
        pub fn commit(&self, range: Range<usize>) -> io::Result<()> {
            self.check(&range);
            Ok(())
        }

        /// It stays, zeroed.
        pub fn give_back(&self, range: Range<usize>) -> io::Result<()> {
            self.check(&range);
            // SAFETY: within the allocation, and nobody has a reference into it: the steps are free.
            unsafe { self.at(range.start).write_bytes(0, range.len()) };
            Ok(())
        }
    }

    impl Drop for Pages {
        fn drop(&mut self) {
            if self.bytes > 0 {
                let layout = Pages::layout(self.bytes).expect("the layout it was made with");
                // SAFETY: it came from `alloc_zeroed` with this layout and is given back once.
                unsafe { dealloc(self.start.as_ptr(), layout) };
            }
        }
    }
}
