//! The SIGBUS guard: a static registry of mapped ranges, and the handler that puts zero pages where a file is gone.
//!
//! The registry is a list of blocks of slots. Blocks are never freed and slots are reused, so the handler may walk
//! the list at any time. Writers take a lock; the handler takes none: each slot has a version that is odd while the
//! slot changes. A slot seen changing is passed over, which is right because the slot of the map being read cannot
//! change while the reading thread borrows that map.

use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering, fence};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// A range in the registry; leaves it when dropped.
#[derive(Debug)]
pub(super) struct Registered {
    slot: &'static Slot,
}

impl Registered {
    /// Enters the `len > 0` mapped bytes at `start` (the begin of a page), installing the handler the first time.
    pub(super) fn new(start: usize, len: usize) -> io::Result<Registered> {
        install()?;
        let page = PAGE_BYTES.load(Ordering::Relaxed);
        let end = start + len.next_multiple_of(page);
        let _writer = writer();
        let slot = free_slot();
        slot.damaged.store(false, Ordering::Relaxed);
        slot.set(start, end);
        Ok(Registered { slot })
    }

    /// Whether a page of the range was replaced by zeros.
    pub(super) fn damaged(&self) -> bool {
        self.slot.damaged.load(Ordering::SeqCst)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let _writer = writer();
        self.slot.set(0, 0);
    }
}

const SLOTS_PER_BLOCK: usize = 64;

#[derive(Debug)]
struct Slot {
    version: AtomicUsize,
    start: AtomicUsize,
    /// One past the last byte of the last page; 0 in a free slot.
    end: AtomicUsize,
    damaged: AtomicBool,
}

impl Slot {
    const fn new() -> Slot {
        Slot {
            version: AtomicUsize::new(0),
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            damaged: AtomicBool::new(false),
        }
    }

    /// Writes the range; the caller holds the writers' lock.
    fn set(&self, start: usize, end: usize) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        self.start.store(start, Ordering::Relaxed);
        self.end.store(end, Ordering::Relaxed);
        self.version.store(version.wrapping_add(2), Ordering::Release);
    }

    /// The range, or `None` while the slot is changing. Takes no lock.
    fn get(&self) -> Option<(usize, usize)> {
        let version = self.version.load(Ordering::Acquire);
        let range = (self.start.load(Ordering::Relaxed), self.end.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        (version.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == version).then_some(range)
    }
}

struct Block {
    slots: [Slot; SLOTS_PER_BLOCK],
    next: AtomicPtr<Block>,
}

impl Block {
    const fn new() -> Block {
        Block { slots: [const { Slot::new() }; SLOTS_PER_BLOCK], next: AtomicPtr::new(ptr::null_mut()) }
    }

    fn next(&self) -> Option<&'static Block> {
        // SAFETY: `next` is null or came from `Box::leak` and was published with Release; blocks are never freed.
        unsafe { self.next.load(Ordering::Acquire).as_ref() }
    }
}

static FIRST: Block = Block::new();
static WRITER: Mutex<()> = Mutex::new(());
static PAGE_BYTES: AtomicUsize = AtomicUsize::new(0);
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

fn writer() -> MutexGuard<'static, ()> {
    WRITER.lock().unwrap_or_else(PoisonError::into_inner)
}

fn blocks() -> impl Iterator<Item = &'static Block> {
    std::iter::successors(Some(&FIRST), |block| block.next())
}

/// A slot that holds no range; the caller holds the writers' lock.
fn free_slot() -> &'static Slot {
    let mut last = &FIRST;
    for block in blocks() {
        if let Some(slot) = block.slots.iter().find(|slot| slot.end.load(Ordering::Relaxed) == 0) {
            return slot;
        }
        last = block;
    }
    let block: &'static mut Block = Box::leak(Box::new(Block::new()));
    last.next.store(block, Ordering::Release);
    &last.next().expect("a block was just appended").slots[0]
}

/// Installs the handler once. The previous action is known before the handler can run.
fn install() -> io::Result<()> {
    let _writer = writer();
    if PREVIOUS.get().is_some() {
        return Ok(());
    }
    // SAFETY: sysconf has no preconditions.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    PAGE_BYTES.store(usize::try_from(page).map_err(io::Error::other)?, Ordering::Relaxed);
    let mut previous = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: a null new action only asks; the kernel writes the old one into `previous`.
    let asked = unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), previous.as_mut_ptr()) };
    if asked != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so `previous` was written.
    let previous = unsafe { previous.assume_init() };
    // SAFETY: all-zero is a valid `sigaction` (default action, empty mask).
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = on_sigbus;
    action.sa_sigaction = handler as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    let _ = PREVIOUS.set(previous);
    // SAFETY: `action` is complete, and `on_sigbus` makes only async-signal-safe calls.
    if unsafe { libc::sigaction(libc::SIGBUS, &action, ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Puts a zero page where a registered range faulted; any other SIGBUS takes its previous course.
///
/// Async-signal-safe: atomics, `mmap`, `sigaction` and `raise` only.
extern "C" fn on_sigbus(_signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: with SA_SIGINFO the kernel passes a valid `siginfo_t`; `si_addr` is plain data of it.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    // SAFETY: the thread's errno, which the interrupted code must find unchanged.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let errno_before = unsafe { *errno };
    // A code of 0 or less: sent by a process, not by the kernel for an access, and then the address means nothing.
    let faulted = code > 0;
    if !(faulted && mend(address)) {
        resume_previous(faulted);
    }
    // SAFETY: as above.
    unsafe { *errno = errno_before };
}

/// Maps zeros over the page at `address` when a registered range holds it; false when none does or it cannot be done.
fn mend(address: usize) -> bool {
    for slot in blocks().flat_map(|block| &block.slots) {
        let Some((start, end)) = slot.get() else { continue };
        if address < start || address >= end {
            continue;
        }
        // Before the page: whoever reads the zeros must also find the mark.
        slot.damaged.store(true, Ordering::SeqCst);
        let page_bytes = PAGE_BYTES.load(Ordering::Relaxed);
        let page = address & !(page_bytes - 1);
        // The second attempt is for when the process has no more separate maps left: all of the range becomes zeros,
        // which the mark covers.
        return zeros_over(page, page_bytes) || zeros_over(start, end - start);
    }
    false
}

fn zeros_over(start: usize, len: usize) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    // SAFETY: `start..start + len` lies within a registered map, which is alive because a thread faulted reading it;
    // the replaced pages were read-only file pages and become read-only zeros.
    let got = unsafe { libc::mmap(start as *mut libc::c_void, len, libc::PROT_READ, flags, -1, 0) };
    got != libc::MAP_FAILED
}

/// Gives SIGBUS back to who had it before. A faulting access runs again on return and meets the previous action; a
/// signal that was sent has to be sent again.
fn resume_previous(faulted: bool) {
    let Some(previous) = PREVIOUS.get() else { return };
    if !faulted && previous.sa_sigaction == libc::SIG_IGN {
        return;
    }
    // SAFETY: `previous` is the action the system reported; sigaction and raise are async-signal-safe.
    unsafe {
        libc::sigaction(libc::SIGBUS, previous, ptr::null_mut());
        if !faulted {
            libc::raise(libc::SIGBUS);
        }
    }
}

/// Bytes of the mapped slice's pages that are in memory.
pub(super) fn resident_bytes(bytes: &[u8]) -> Option<u64> {
    const PAGES_AT_ONCE: usize = 1 << 16;
    // SAFETY: sysconf has no preconditions.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok()?;
    let mut states = vec![0u8; PAGES_AT_ONCE.min(bytes.len().div_ceil(page))];
    let mut resident = 0u64;
    for part in bytes.chunks(PAGES_AT_ONCE * page) {
        let pages = part.len().div_ceil(page);
        // SAFETY: `part` starts on a page of a live map, and `states` has one byte for each of its pages.
        let got = unsafe { libc::mincore(part.as_ptr() as *mut _, part.len(), states.as_mut_ptr()) };
        if got != 0 {
            return None;
        }
        resident += states[..pages].iter().map(|state| u64::from(state & 1) * page as u64).sum::<u64>();
    }
    Some(resident)
}
