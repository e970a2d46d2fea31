//! Zeroed, aligned buffers of plain data.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use bytemuck::Pod;

/// A zeroed buffer of plain numbers that starts at a multiple of 64 bytes, dereferencing to `[T]`.
///
/// From 4 MiB on it starts at a multiple of 2 MiB, asks for huge pages (Linux), and its pages are taken from the
/// system only when first written or read.
pub struct AlignedBuf<T: Pod> {
    start: NonNull<T>,
    len: usize,
    owns: PhantomData<T>,
}

/// The system did not give the memory asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("out of memory: {bytes} bytes were asked for and the system has not so many to give")]
pub struct OutOfMemory {
    /// The bytes asked for; `u64::MAX` when their number does not fit.
    pub bytes: u64,
}

/// What a buffer of this many bytes takes: whole huge pages from 4 MiB on.
pub fn held_bytes(bytes: usize) -> usize {
    let page_bytes = if bytes >= HUGE_FROM_BYTES { HUGE_PAGE_BYTES } else { ALIGNMENT_BYTES };
    bytes.checked_next_multiple_of(page_bytes).unwrap_or(usize::MAX)
}

const ALIGNMENT_BYTES: usize = 64;
const HUGE_PAGE_BYTES: usize = 2 << 20;
const HUGE_FROM_BYTES: usize = 4 << 20;

impl<T: Pod> AlignedBuf<T> {
    /// A buffer of `len` zeros.
    ///
    /// # Errors
    /// [`OutOfMemory`] when the system refuses, or when `len` values are more bytes than an address space has.
    pub fn zeroed(len: usize) -> Result<AlignedBuf<T>, OutOfMemory> {
        const { assert!(align_of::<T>() <= ALIGNMENT_BYTES && size_of::<T>() > 0) };
        let refused = OutOfMemory { bytes: (len as u64).saturating_mul(size_of::<T>() as u64) };
        let layout = layout_of::<T>(len).ok_or(refused)?;
        let start = match layout.size() {
            0 => Some(dangling()),
            _ => allocate(layout),
        };
        Ok(AlignedBuf { start: start.ok_or(refused)?.cast(), len, owns: PhantomData })
    }

    /// A buffer holding a copy of `values`.
    ///
    /// # Errors
    /// As [`AlignedBuf::zeroed`].
    pub fn copy_of(values: &[T]) -> Result<AlignedBuf<T>, OutOfMemory> {
        let mut buffer = AlignedBuf::zeroed(values.len())?;
        buffer.copy_from_slice(values);
        Ok(buffer)
    }
}

impl<T: Pod> Deref for AlignedBuf<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `start` is aligned for T and begins `len` values that were zeroed, and all-zero is valid for Pod.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T: Pod> DerefMut for AlignedBuf<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`, and `&mut self` is the only access.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl<T: Pod> Clone for AlignedBuf<T> {
    /// A copy; ends the process like any failed allocation when there is no memory for it. Use
    /// [`AlignedBuf::copy_of`] to be told instead.
    fn clone(&self) -> AlignedBuf<T> {
        AlignedBuf::copy_of(self).unwrap_or_else(|_| handle_alloc_error(Layout::for_value::<[T]>(self)))
    }
}

impl<T: Pod> fmt::Debug for AlignedBuf<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBuf<{}>({} values)", std::any::type_name::<T>(), self.len)
    }
}

impl<T: Pod> Drop for AlignedBuf<T> {
    fn drop(&mut self) {
        let layout = layout_of::<T>(self.len).expect("the layout the buffer was made with");
        if layout.size() > 0 {
            // SAFETY: `start` came from `allocate` with this same layout and is given back once.
            unsafe { release(self.start.cast(), layout) };
        }
    }
}

// SAFETY: the buffer owns its memory alone, and Pod values have no ties to a thread.
unsafe impl<T: Pod + Send> Send for AlignedBuf<T> {}
// SAFETY: shared access only reads Pod values.
unsafe impl<T: Pod + Sync> Sync for AlignedBuf<T> {}

/// The layout of `len` values: their alignment tells how the memory is had.
fn layout_of<T>(len: usize) -> Option<Layout> {
    let bytes = len.checked_mul(size_of::<T>())?;
    let align = if bytes >= HUGE_FROM_BYTES { HUGE_PAGE_BYTES } else { ALIGNMENT_BYTES };
    Layout::from_size_align(bytes, align).ok()
}

/// The aligned address of a buffer without bytes.
fn dangling() -> NonNull<u8> {
    NonNull::without_provenance(std::num::NonZero::new(ALIGNMENT_BYTES).expect("not zero"))
}

/// Zeroed memory of a layout with bytes.
fn allocate(layout: Layout) -> Option<NonNull<u8>> {
    #[cfg(target_os = "linux")]
    if layout.size() >= HUGE_FROM_BYTES {
        return map_huge(layout.size());
    }
    // SAFETY: the layout has bytes.
    NonNull::new(unsafe { alloc_zeroed(layout) })
}

/// Gives back what `allocate` gave.
///
/// # Safety
/// `start` came from `allocate` with this layout, and nothing uses it any more.
unsafe fn release(start: NonNull<u8>, layout: Layout) {
    #[cfg(target_os = "linux")]
    if layout.size() >= HUGE_FROM_BYTES {
        // SAFETY: the caller's promise; `map_huge` left exactly this range mapped.
        unsafe { libc::munmap(start.as_ptr().cast(), mapped_bytes(layout.size())) };
        return;
    }
    // SAFETY: the caller's promise.
    unsafe { dealloc(start.as_ptr(), layout) };
}

/// What a large buffer maps: whole huge pages, so that its last part has one as well.
#[cfg(target_os = "linux")]
fn mapped_bytes(bytes: usize) -> usize {
    bytes.next_multiple_of(HUGE_PAGE_BYTES)
}

/// Fresh zero pages on a huge page boundary: maps one huge page more and cuts both ends.
#[cfg(target_os = "linux")]
fn map_huge(bytes: usize) -> Option<NonNull<u8>> {
    let keep = mapped_bytes(bytes);
    let mapped = keep.checked_add(HUGE_PAGE_BYTES)?;
    let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a fresh anonymous map at an address of the system's choice touches nothing that exists.
    let base = unsafe { libc::mmap(std::ptr::null_mut(), mapped, access, flags, -1, 0) };
    if base == libc::MAP_FAILED {
        return None;
    }
    let base: *mut u8 = base.cast();
    let front = base.align_offset(HUGE_PAGE_BYTES);
    let back = mapped - front - keep;
    // SAFETY: all ranges lie within the map just made: `front` bytes, `keep` bytes, `back` bytes.
    unsafe {
        let start = base.add(front);
        if front > 0 {
            libc::munmap(base.cast(), front);
        }
        if back > 0 {
            libc::munmap(start.add(keep).cast(), back);
        }
        // Without huge pages the buffer is slower, not wrong.
        libc::madvise(start.cast(), keep, libc::MADV_HUGEPAGE);
        NonNull::new(start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<T: Pod + PartialEq + fmt::Debug>(len: usize, value: T) {
        let mut buffer = AlignedBuf::<T>::zeroed(len).unwrap();
        assert_eq!(buffer.len(), len);
        let alignment = if len * size_of::<T>() >= 4 << 20 { 2 << 20 } else { 64 };
        assert!((buffer.as_ptr() as usize).is_multiple_of(alignment));
        assert!(buffer.iter().all(|&got| got == T::zeroed()));
        buffer.fill(value);
        let copy = buffer.clone();
        buffer.fill(T::zeroed());
        assert!(copy.iter().all(|&got| got == value));
        assert!(buffer.iter().all(|&got| got == T::zeroed()));
    }

    #[test]
    fn buffers_are_zeroed_aligned_and_apart_from_their_copies() {
        for len in [0, 1, 15, 1000, (1 << 20) - 1, 1 << 20, (3 << 20) + 1] {
            check(len, 1.5f32);
            check(len, -3i8);
            check(len, 0xfeedu16);
            check(len, u64::MAX);
        }
    }

    #[test]
    fn memory_given_back_comes_zeroed_again() {
        for _ in 0..20 {
            let mut buffer = AlignedBuf::<u32>::zeroed(5000).unwrap();
            assert!(buffer.iter().all(|&value| value == 0));
            buffer.fill(u32::MAX);
        }
    }

    #[test]
    fn too_much_is_an_error_that_names_the_bytes() {
        let bytes = 1u64 << 60;
        assert_eq!(AlignedBuf::<u8>::zeroed(1 << 60).unwrap_err(), OutOfMemory { bytes });
        assert_eq!(AlignedBuf::<f64>::zeroed(usize::MAX).unwrap_err(), OutOfMemory { bytes: u64::MAX });
        assert!(OutOfMemory { bytes }.to_string().contains("1152921504606846976 bytes"));
    }

    #[test]
    fn buffers_may_go_to_other_threads() {
        let mut buffer = AlignedBuf::copy_of(&[1i16, 2, 3]).unwrap();
        std::thread::scope(|scope| scope.spawn(|| buffer[0] = 9).join().unwrap());
        assert_eq!(buffer[..], [9, 2, 3]);
    }
}
