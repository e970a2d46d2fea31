//! What the pool is built from: the standard library's, or loom's, which runs every interleaving (`--cfg loom`).

#[cfg(not(loom))]
pub(super) use std::{
    sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
};

#[cfg(loom)]
pub(super) use loom::{
    cell::UnsafeCell,
    sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence},
    sync::{Arc, Condvar, Mutex, MutexGuard},
    thread::JoinHandle,
};
#[cfg(loom)]
use std::sync::PoisonError;

/// A cell with loom's interface.
#[cfg(not(loom))]
#[derive(Debug)]
pub(super) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    pub(super) fn new(value: T) -> UnsafeCell<T> {
        UnsafeCell(std::cell::UnsafeCell::new(value))
    }

    pub(super) fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        f(self.0.get())
    }

    pub(super) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}

/// No lock of the pool guards anything that a panic could leave half done.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn wait<'a, T>(condition: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condition.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn spawn(name: String, f: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    #[cfg(not(loom))]
    return std::thread::Builder::new().name(name).spawn(f);
    #[cfg(loom)]
    return loom::thread::Builder::new().name(name).spawn(f);
}

/// Asks `ready` until it is true or [`super::SPIN_MAX`] has passed; whether it became true.
#[cfg(not(loom))]
pub(super) fn spin(mut ready: impl FnMut() -> bool) -> bool {
    const ASKS_PER_CLOCK_READ: usize = 32;
    let mut began = None;
    loop {
        for _ in 0..ASKS_PER_CLOCK_READ {
            if ready() {
                return true;
            }
            std::hint::spin_loop();
        }
        // The clock is first read after a round: most waits are over by then.
        let began = began.get_or_insert_with(std::time::Instant::now);
        if began.elapsed() >= super::SPIN_MAX {
            return false;
        }
    }
}

/// One look: spinning longer shows loom nothing new.
#[cfg(loom)]
pub(super) fn spin(mut ready: impl FnMut() -> bool) -> bool {
    ready()
}
