//! What a thread is known to read next.

// Not those of loom: no order between threads rests on them, and each would double what loom looks at.
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Most parts that are asked for in advance. With tiles of 64 KiB, a quarter of a usual second-level cache and some ten
/// microseconds of memory.
const PARTS_MAX: usize = 4;
const LINE_BYTES: usize = 64;
/// Lines between two looks at whether there is work.
const LINES_AT_ONCE: usize = 8;

/// Bytes to ask for, one part after another. Written by a caller, read and counted down by one worker; both may be seen mixed, which
/// asks for the wrong lines and does no harm.
#[derive(Debug, Default)]
pub(super) struct Foreseen {
    parts: [Part; PARTS_MAX],
}

#[derive(Debug, Default)]
struct Part {
    start: AtomicUsize,
    len: AtomicUsize,
}

impl Foreseen {
    pub(super) fn set<'a>(&self, bytes: impl Iterator<Item = &'a [u8]>) {
        let mut bytes = bytes.fuse();
        for part in &self.parts {
            let bytes = bytes.next().unwrap_or_default();
            part.start.store(bytes.as_ptr().addr(), Relaxed);
            part.len.store(bytes.len(), Relaxed);
        }
    }

    /// Asks for some lines; false if all have been asked for.
    pub(super) fn ask(&self) -> bool {
        let left = |part: &&Part| part.len.load(Relaxed) > 0;
        let Some(part) = self.parts.iter().find(left) else { return false };
        let (start, len) = (part.start.load(Relaxed), part.len.load(Relaxed));
        let asked = len.min(LINES_AT_ONCE * LINE_BYTES);
        for at in (0..asked).step_by(LINE_BYTES) {
            prefetch(start.wrapping_add(at));
        }
        part.start.store(start.wrapping_add(asked), Relaxed);
        part.len.store(len - asked, Relaxed);
        true
    }
}

/// Asks for the line at an address to come into the second-level cache.
#[inline(always)]
fn prefetch(address: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: a hint; it neither reads nor faults at any address.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(std::ptr::without_provenance(address)) };
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    {
        // SAFETY: as above.
        unsafe {
            std::arch::asm!("prfm pldl2keep, [{}]", in(reg) address, options(readonly, nostack, preserves_flags));
        }
    }
    #[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri))))]
    let _ = address;
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_foreseen_is_asked_for_once() {
        let bytes = [0u8; 3 * LINES_AT_ONCE * LINE_BYTES];
        let parts = |lens: &[usize]| lens.iter().map(|&len| len.div_ceil(LINES_AT_ONCE * LINE_BYTES)).sum();
        let foreseen = Foreseen::default();
        for lens in [&[][..], &[0], &[1], &[LINE_BYTES, 0, 513], &[1536, 1, 512, 9, 700]] {
            foreseen.set(lens.iter().map(|&len| &bytes[..len]));
            let expected: usize = parts(&lens[..lens.len().min(PARTS_MAX)]);
            assert_eq!((0..).take_while(|_| foreseen.ask()).count(), expected, "{lens:?}");
            for (&len, part) in lens.iter().zip(&foreseen.parts) {
                assert_eq!(part.start.load(Relaxed), bytes.as_ptr().addr() + len, "{lens:?}");
            }
        }
        foreseen.set([&bytes[..]].into_iter());
        foreseen.set(std::iter::empty());
        assert!(!foreseen.ask(), "what was foreseen before is forgotten");
    }
}
