//! A fixed set of worker threads for short parallel steps, called thousands of times a second.
//!
//! # Protocol
//!
//! All coordination goes through one word, the *gate*: a call number, a bit that says whether the call takes
//! workers, and the number of workers inside.
//!
//! - The caller writes the job while the gate is shut and empty, then opens it under a new call number. It works on
//!   the items itself; when none are left it shuts the gate and waits for those inside to leave. A worker that was
//!   slow to wake never entered and is not waited for, so an overloaded machine costs speed and nothing else.
//! - A worker enters by counting itself in while the gate is open for a call it has not yet served, takes items until
//!   none are left, and counts itself out. The job is not touched after that.
//! - The items of a call are cut into one *run* of neighbours for each thread, see [`Pool::runs`]. A thread takes its own
//!   run's items in ascending order, so that what it reads goes on where it left off; then, one by one, the last item of
//!   the longest run of another thread, so that one that is late or slow holds up nobody for longer than an item takes.
//! - Waiting, on both sides, is a spin of at most [`SPIN_MAX`], then sleep on a condition variable.
//!
//! Sleeping workers are not missed: a worker counts itself among the sleepers and then looks at the gate; the caller
//! opens the gate and then looks at the number of sleepers, each with a full fence between. One of the two sees
//! the other. The worker holds the sleep lock from counting itself until it waits, and the caller takes that lock to
//! hand out wake-ups. A sleeping caller is not missed either: it sets [`WAITED`] and looks at the count under the
//! `left` lock; a worker that leaves after that sees the bit and takes the same lock to notify.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use sync::{
    Arc, AtomicBool, AtomicU64, AtomicUsize, Condvar, JoinHandle, Mutex, Ordering, UnsafeCell, fence,
};

mod foreseen;
mod sync;

use foreseen::Foreseen;

/// How long a thread without work spins before it sleeps.
pub const SPIN_MAX: Duration = Duration::from_micros(50);

/// Most threads a pool may have.
pub const THREADS_MAX: usize = 4096;

/// A fixed set of worker threads; the thread that calls works too. Idle pools use no processor time.
///
/// Calls from several threads at once, and calls from within a call, are allowed: while one call has the workers, the
/// others run on their own thread alone.
#[derive(Debug)]
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

/// Why a pool could not be made.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// No threads, or absurdly many.
    #[error("a pool needs 1 to {THREADS_MAX} threads, not {threads}")]
    Threads {
        /// The number asked for.
        threads: usize,
    },
    /// The system did not start a thread.
    #[error("cannot start worker thread {worker} of {threads}: {source}")]
    Spawn {
        /// Which one.
        worker: usize,
        /// The number asked for.
        threads: usize,
        /// What the system said.
        source: std::io::Error,
    },
}

impl Pool {
    /// A pool of `threads` threads in all: the caller and `threads - 1` workers, named `worker-1` and on.
    ///
    /// # Errors
    /// [`PoolError`]: `threads` is 0 or above [`THREADS_MAX`], or the system does not start so many.
    pub fn new(threads: usize) -> Result<Pool, PoolError> {
        Pool::placed(threads, &[])
    }

    /// As [`Pool::new`], workers staying on the logical processors `places` if there are any; see
    /// [`crate::topology::Processors::placing`]. The caller goes where the system wants it.
    ///
    /// # Errors
    /// As [`Pool::new`]. Processors that do not let a worker in are no error: it stays where it is.
    pub fn placed(threads: usize, places: &[usize]) -> Result<Pool, PoolError> {
        if threads == 0 || threads > THREADS_MAX {
            return Err(PoolError::Threads { threads });
        }
        let mut pool = Pool { shared: Arc::new(Shared::new(threads - 1)), workers: Vec::new() };
        for worker in 1..threads {
            let shared = Arc::clone(&pool.shared);
            let places = places.to_vec();
            let spawned = sync::spawn(format!("worker-{worker}"), move || {
                if !places.is_empty() {
                    crate::topology::stay_on(&places);
                }
                shared.serve(worker);
            });
            pool.workers.push(spawned.map_err(|source| PoolError::Spawn { worker, threads, source })?);
        }
        Ok(pool)
    }

    /// Threads that work on a call, the calling one included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Where each thread's run of `items` items begins, the calling thread's first: the items that it takes in ascending
    /// order, unless others are done with theirs before. Runs lie one after another and differ in length by one at most.
    pub fn runs(&self, items: usize) -> impl Iterator<Item = usize> + use<> {
        let threads = self.threads();
        (0..threads).map(move |thread| run_start(items, threads, thread))
    }

    /// Tells what thread `thread` reads first after the next call: while a worker waits it asks for that to come into its cache,
    /// so that memory is not idle while the caller does alone what cannot be shared. No more than a hint: nothing is read,
    /// the bytes may be gone when they are asked for, and of many only the first count.
    ///
    /// # Panics
    /// When there is no such thread.
    pub fn foresee<'a>(&self, thread: usize, parts: impl Iterator<Item = &'a [u8]>) {
        self.shared.foreseen[thread].0.set(parts);
    }

    /// Calls `f(item)` exactly once for each item, on any thread, and returns when all are done; see [`Pool::runs`] for
    /// their order. One item, or a pool of one thread, runs on the calling thread with no synchronisation.
    ///
    /// # Panics
    /// When `f` panics: items not yet handed out stay untouched, and the first panic goes on in the caller once no
    /// thread is inside `f` any more. The pool stays usable.
    pub fn for_each<T: Send>(&self, items: &mut [T], f: impl Fn(&mut T) + Sync) {
        let all = Parts(items.as_mut_ptr());
        self.run(items.len(), &|_, item| {
            // SAFETY: `run` passes each index below `items.len()` to one call only, and returns after the last one;
            // `items` is borrowed until then.
            f(unsafe { all.part(item) });
        });
    }

    /// As [`Pool::for_each`], with a scratch value of the working thread: `f(&mut scratch[thread], item)`.
    ///
    /// # Panics
    /// As [`Pool::for_each`], and when `scratch` holds fewer than [`Pool::threads`] values.
    pub fn for_each_with<T: Send, S: Send>(
        &self,
        scratch: &mut [S],
        items: &mut [T],
        f: impl Fn(&mut S, &mut T) + Sync,
    ) {
        let threads = self.threads();
        assert!(scratch.len() >= threads, "{} scratch values for {threads} threads", scratch.len());
        let (every_scratch, all) = (Parts(scratch.as_mut_ptr()), Parts(items.as_mut_ptr()));
        self.run(items.len(), &|thread, item| {
            // SAFETY: as in `for_each`; besides, a thread index is below `threads` and belongs to one thread, which
            // makes one call at a time, so each scratch value has one user.
            unsafe { f(every_scratch.part(thread), all.part(item)) };
        });
    }

    /// Calls `f(thread, item)` once for each item below `items`, thread 0 being the caller.
    fn run<F: Fn(usize, usize) + Sync>(&self, items: usize, f: &F) {
        assert!(u32::try_from(items).is_ok(), "{items} items");
        if items <= 1 || self.workers.is_empty() || !self.shared.begin() {
            for item in 0..items {
                f(0, item);
            }
            return;
        }
        self.shared.call(Job { items, f: (f as *const F).cast(), call: call_as::<F> });
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop();
        for worker in self.workers.drain(..) {
            // Workers catch what `f` throws, so a failed join has nothing to tell.
            let _ = worker.join();
        }
    }
}

/// A slice to be shared out element by element.
struct Parts<T>(*mut T);

// SAFETY: sharing a `Parts` only lets threads take elements, each by one thread; T may go to another thread.
unsafe impl<T: Send> Sync for Parts<T> {}

impl<T> Parts<T> {
    /// # Safety
    /// `index` is within the slice, the slice is borrowed for the result's life, and no one else has this element.
    #[expect(clippy::mut_from_ref, reason = "the caller promises that each element is taken once")]
    unsafe fn part(&self, index: usize) -> &mut T {
        // SAFETY: the caller's promise.
        unsafe { &mut *self.0.add(index) }
    }
}

/// A call's work with its type erased: `call(f, thread, item)` for each item.
#[derive(Debug, Clone, Copy)]
struct Job {
    items: usize,
    f: *const (),
    call: unsafe fn(*const (), usize, usize),
}

/// # Safety
/// `f` points to a live `F`.
unsafe fn call_as<F: Fn(usize, usize)>(f: *const (), thread: usize, item: usize) {
    // SAFETY: the caller's promise.
    unsafe { (*f.cast::<F>())(thread, item) }
}

/// The first item of a thread's run.
fn run_start(items: usize, threads: usize, thread: usize) -> usize {
    items / threads * thread + (items % threads).min(thread)
}

/// What is left of a run: the first item in the upper half, the end in the lower.
fn run_of(first: usize, end: usize) -> u64 {
    (first as u64) << 32 | end as u64
}

/// The first item and the end.
fn bounds_of(run: u64) -> (usize, usize) {
    ((run >> 32) as usize, (run & u64::from(u32::MAX)) as usize)
}

/// Gate: workers inside.
const INSIDE: u64 = 0xffff;
/// Gate: workers may enter.
const OPEN: u64 = 1 << 16;
/// Gate: the caller sleeps until those inside have left.
const WAITED: u64 = 1 << 17;
/// Gate: some call of `f` panicked.
const PANICKED: u64 = 1 << 18;
/// Gate: the pool ends.
const STOP: u64 = 1 << 19;
/// Gate: the call number is what lies above.
const CALL_SHIFT: u32 = 32;

fn call_number(gate: u64) -> u64 {
    gate >> CALL_SHIFT
}

/// On a cache line of its own (two, as processors fetch them in pairs).
#[derive(Debug)]
#[repr(align(128))]
struct Apart<T>(T);

#[derive(Debug)]
struct Shared {
    gate: Apart<AtomicU64>,
    /// What is left of each thread's run; see [`run_of`].
    runs: Vec<Apart<AtomicU64>>,
    /// What each thread reads next.
    foreseen: Vec<Apart<Foreseen>>,
    /// Workers that sleep and are not yet told to wake; changed under the lock of `wakeups`.
    sleepers: Apart<AtomicUsize>,
    workers: usize,
    /// Whether a call has the workers.
    taken: AtomicBool,
    /// Written by the caller while the gate is shut and empty, read by workers inside.
    job: UnsafeCell<Option<Job>>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    /// Wake-ups handed out and not yet taken.
    wakeups: Mutex<usize>,
    woken: Condvar,
    left_lock: Mutex<()>,
    left: Condvar,
}

// SAFETY: only `job` holds something thread-bound: pointers to the caller's closure, which is Sync and outlives the
// presence of any worker inside the gate.
unsafe impl Send for Shared {}
// SAFETY: as above; access to `job` is ordered by the gate.
unsafe impl Sync for Shared {}

enum Entry {
    Entered { call: u64 },
    NothingNew,
    Stopped,
}

impl Shared {
    fn new(workers: usize) -> Shared {
        Shared {
            gate: Apart(AtomicU64::new(0)),
            runs: (0..=workers).map(|_| Apart(AtomicU64::new(0))).collect(),
            foreseen: (0..=workers).map(|_| Apart(Foreseen::default())).collect(),
            sleepers: Apart(AtomicUsize::new(0)),
            workers,
            taken: AtomicBool::new(false),
            job: UnsafeCell::new(None),
            panic: Mutex::new(None),
            wakeups: Mutex::new(0),
            woken: Condvar::new(),
            left_lock: Mutex::new(()),
            left: Condvar::new(),
        }
    }

    /// Takes the workers for a call; false when another call has them.
    fn begin(&self) -> bool {
        !self.taken.swap(true, Ordering::Acquire)
    }

    /// The caller's side of a call, after `begin`.
    fn call(&self, job: Job) {
        let shut = self.gate.0.load(Ordering::Relaxed);
        assert!(shut & (INSIDE | OPEN) == 0, "a call began inside another");
        self.job.with_mut(|cell| {
            // SAFETY: `begin` made this call the only one, and no worker is inside or may enter.
            unsafe { *cell = Some(job) };
        });
        let threads = self.runs.len();
        for (thread, run) in self.runs.iter().enumerate() {
            let start = |thread| run_start(job.items, threads, thread);
            run.0.store(run_of(start(thread), start(thread + 1)), Ordering::Relaxed);
        }
        let call = (call_number(shut) + 1) & u64::from(u32::MAX);
        // Release: who enters sees the job and the runs. A plain store, as nobody else writes a shut, empty gate.
        self.gate.0.store(call << CALL_SHIFT | OPEN, Ordering::Release);
        fence(Ordering::SeqCst);
        self.wake(job.items - 1);

        self.work(job, 0);
        let gate = self.shut();
        let panic = if gate & PANICKED == 0 { None } else { sync::lock(&self.panic).take() };
        self.taken.store(false, Ordering::Release);
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }

    /// Wakes sleepers so that `wanted` workers are awake, as far as there are so many.
    fn wake(&self, wanted: usize) {
        let asleep = self.sleepers.0.load(Ordering::Relaxed);
        if asleep == 0 || wanted <= self.workers - asleep {
            return;
        }
        let mut wakeups = sync::lock(&self.wakeups);
        let asleep = self.sleepers.0.load(Ordering::Relaxed);
        let wake = wanted.saturating_sub(self.workers - asleep).min(asleep);
        self.sleepers.0.store(asleep - wake, Ordering::Relaxed);
        *wakeups += wake;
        drop(wakeups);
        for _ in 0..wake {
            self.woken.notify_one();
        }
    }

    /// Shuts the gate and waits until nobody is inside; the gate's last state.
    fn shut(&self) -> u64 {
        // Acquire, here and below: what those who left have written is seen.
        let mut gate = self.gate.0.fetch_and(!OPEN, Ordering::AcqRel);
        let empty = |gate: u64| gate & INSIDE == 0;
        if empty(gate)
            || sync::spin(|| {
                gate = self.gate.0.load(Ordering::Acquire);
                empty(gate)
            })
        {
            return gate;
        }
        let mut lock = sync::lock(&self.left_lock);
        gate = self.gate.0.fetch_or(WAITED, Ordering::AcqRel);
        while !empty(gate) {
            lock = sync::wait(&self.left, lock);
            gate = self.gate.0.load(Ordering::Acquire);
        }
        gate
    }

    /// Takes items until none are left.
    fn work(&self, job: Job, thread: usize) {
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            while let Some(item) = self.take(thread) {
                // SAFETY: the closure lives until the call returns, which waits for this thread to be done.
                unsafe { (job.call)(job.f, thread, item) };
            }
        }));
        if let Err(panic) = outcome {
            self.runs.iter().for_each(|run| run.0.store(0, Ordering::Relaxed));
            let mut first = sync::lock(&self.panic);
            match *first {
                None => *first = Some(panic),
                // Dropping a payload may panic again.
                Some(_) => std::mem::forget(panic),
            }
            drop(first);
            self.gate.0.fetch_or(PANICKED, Ordering::AcqRel);
        }
    }

    /// The next item of the thread's own run; when that is at its end, the last of the longest one left.
    fn take(&self, thread: usize) -> Option<usize> {
        let own = self.runs[thread].0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |run| {
            let (first, end) = bounds_of(run);
            (first < end).then(|| run_of(first + 1, end))
        });
        if let Ok(run) = own {
            return Some(bounds_of(run).0);
        }
        loop {
            let left = |run: u64| bounds_of(run).1 - bounds_of(run).0;
            let runs = self.runs.iter().map(|run| (run, run.0.load(Ordering::Relaxed)));
            let (run, seen) = runs.max_by_key(|&(_, seen)| left(seen)).expect("a run for each thread");
            if left(seen) == 0 {
                return None;
            }
            let (first, end) = bounds_of(seen);
            let taken = run_of(first, end - 1);
            if run.0.compare_exchange(seen, taken, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                return Some(end - 1);
            }
        }
    }

    /// A worker's life.
    fn serve(&self, thread: usize) {
        let mut served = 0;
        loop {
            match self.await_call(served, thread) {
                Entry::Entered { call } => served = call,
                Entry::NothingNew => continue,
                Entry::Stopped => return,
            }
            let job = self.job.with(|cell| {
                // SAFETY: this worker is inside, and the job is written only while nobody is.
                unsafe { *cell }
            });
            self.work(job.expect("an open gate has a job"), thread);
            self.leave();
        }
    }

    fn leave(&self) {
        // Release: the caller sees what this worker has written.
        let before = self.gate.0.fetch_sub(1, Ordering::AcqRel);
        if before & INSIDE == 1 && before & WAITED != 0 {
            drop(sync::lock(&self.left_lock));
            self.left.notify_one();
        }
    }

    /// Spins for a call other than `served`, then sleeps until woken.
    fn await_call(&self, served: u64, thread: usize) -> Entry {
        let mut entry = Entry::NothingNew;
        let entered = sync::spin(|| {
            entry = self.enter(served);
            let entered = !matches!(entry, Entry::NothingNew);
            if !entered {
                self.foreseen[thread].0.ask();
            }
            entered
        });
        if entered { entry } else { self.sleep(served) }
    }

    /// Sleeps until woken, unless there is something to do already.
    fn sleep(&self, served: u64) -> Entry {
        let mut wakeups = sync::lock(&self.wakeups);
        self.sleepers.0.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let entry = self.enter(served);
        if !matches!(entry, Entry::NothingNew) {
            self.sleepers.0.fetch_sub(1, Ordering::Relaxed);
            return entry;
        }
        while *wakeups == 0 {
            wakeups = sync::wait(&self.woken, wakeups);
        }
        *wakeups -= 1;
        drop(wakeups);
        self.enter(served)
    }

    /// Counts this worker in if the gate is open for a call other than `served`.
    fn enter(&self, served: u64) -> Entry {
        let mut gate = self.gate.0.load(Ordering::Relaxed);
        loop {
            if gate & STOP != 0 {
                return Entry::Stopped;
            }
            if gate & OPEN == 0 || call_number(gate) == served {
                return Entry::NothingNew;
            }
            match self.gate.0.compare_exchange_weak(gate, gate + 1, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Entry::Entered { call: call_number(gate) },
                Err(now) => gate = now,
            }
        }
    }

    /// Ends the workers.
    fn stop(&self) {
        let mut wakeups = sync::lock(&self.wakeups);
        // Under the lock: a worker looks at the gate between taking it and waiting.
        self.gate.0.fetch_or(STOP, Ordering::AcqRel);
        *wakeups += self.sleepers.0.load(Ordering::Relaxed);
        self.sleepers.0.store(0, Ordering::Relaxed);
        drop(wakeups);
        self.woken.notify_all();
    }
}

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(all(test, loom))]
mod loom_tests;
