//! The pool under loom, which runs every interleaving of its atomic steps and finds deadlocks and unordered accesses.
//!
//! `RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom cargo test --release -p sys --lib loom`

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;

/// Bounded in the number of forced switches, as usual for loom: faults show with two or three.
fn explore(preemptions_max: usize, f: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions_max);
    model.check(f);
}

#[test]
fn loom_every_item_is_done_once_in_two_calls() {
    explore(3, || {
        let pool = Pool::new(2).unwrap();
        let mut items = [0u8; 2];
        pool.for_each(&mut items, |item| *item += 1);
        assert_eq!(items, [1, 1]);
        pool.for_each(&mut items, |item| *item += 1);
        assert_eq!(items, [2, 2]);
    });
}

#[test]
fn loom_three_threads() {
    explore(2, || {
        let pool = Pool::new(3).unwrap();
        let mut items = [0u8; 3];
        pool.for_each(&mut items, |item| *item += 1);
        assert_eq!(items, [1, 1, 1]);
    });
}

/// Both items wait for each other: a wake-up lost by the worker is a deadlock here.
#[test]
fn loom_no_wake_up_is_lost() {
    explore(3, || {
        let pool = Pool::new(2).unwrap();
        for _ in 0..2 {
            let begun = Mutex::new(0);
            let both = Condvar::new();
            pool.for_each(&mut [(), ()], |()| {
                let mut count = sync::lock(&begun);
                *count += 1;
                both.notify_all();
                while *count < 2 {
                    count = sync::wait(&both, count);
                }
            });
        }
    });
}

#[test]
fn loom_a_panic_leaves_the_pool_usable() {
    explore(2, || {
        let pool = Pool::new(2).unwrap();
        let mut items = [0u8; 2];
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            pool.for_each(&mut [0u8, 1], |_| resume_unwind(Box::new(7u8)));
        }));
        assert_eq!(*outcome.unwrap_err().downcast::<u8>().unwrap(), 7);
        pool.for_each(&mut items, |item| *item += 1);
        assert_eq!(items, [1, 1]);
    });
}
