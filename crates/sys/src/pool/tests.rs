use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::*;

#[test]
fn every_item_is_done_exactly_once() {
    for threads in [1, 2, 3, 8] {
        let pool = Pool::new(threads).unwrap();
        assert_eq!(pool.threads(), threads);
        for count in [0, 1, 2, 3, 7, 64, 1000] {
            let mut items = vec![0u32; count];
            for round in 1..=20 {
                pool.for_each(&mut items, |item| *item += 1);
                assert!(items.iter().all(|&item| item == round), "{threads} threads, {count} items");
            }
        }
    }
}

#[test]
fn a_thread_takes_its_own_run_in_ascending_order_and_then_the_ends_of_others() {
    let pool = Pool::new(4).unwrap();
    for count in [2, 3, 7, 502] {
        let mut scratch = vec![Vec::new(); 4];
        let mut items: Vec<usize> = (0..count).collect();
        pool.for_each_with(&mut scratch, &mut items, |taken, item| {
            taken.push(*item);
            spin_for(Duration::from_micros(2));
        });
        let starts: Vec<usize> = pool.runs(count).chain([count]).collect();
        assert!(starts[0] == 0 && starts.is_sorted(), "{starts:?}");
        assert!(starts.windows(2).all(|run| (count / 4..=count / 4 + 1).contains(&(run[1] - run[0]))));
        for (taken, run) in scratch.iter().zip(starts.windows(2)) {
            let own = taken.iter().take_while(|&&item| (run[0]..run[1]).contains(&item)).count();
            assert!((run[0]..).zip(taken).take(own).all(|(wanted, &item)| item == wanted), "{taken:?}");
            // Of another's run the last items come first.
            for other in starts.windows(2).filter(|other| *other != run) {
                let stolen = taken[own..].iter().filter(|item| (other[0]..other[1]).contains(item));
                assert!(stolen.is_sorted_by(|a, b| a > b), "{taken:?}");
            }
            assert!(taken[own..].iter().all(|item| !(run[0]..run[1]).contains(item)), "{taken:?}");
        }
        let mut all: Vec<usize> = scratch.concat();
        all.sort_unstable();
        assert_eq!(all, items);
    }
}

#[test]
fn scratch_belongs_to_one_thread_and_workers_have_names() {
    let pool = Pool::new(3).unwrap();
    let mut scratch = vec![HashSet::new(); 5];
    for _ in 0..50 {
        let mut items = [(); 40];
        pool.for_each_with(&mut scratch, &mut items, |seen, ()| {
            seen.insert((thread::current().id(), thread::current().name().map(str::to_owned)));
            spin_for(Duration::from_micros(20));
        });
    }
    assert!(scratch[..3].iter().all(|seen| seen.len() <= 1));
    assert!(scratch[3..].iter().all(HashSet::is_empty));
    assert_eq!(scratch[0].iter().next().unwrap().0, thread::current().id());
    let helped: Vec<_> = scratch[1..3].iter().flatten().map(|(_, name)| name.clone().unwrap()).collect();
    assert!(!helped.is_empty() && helped.iter().all(|name| name.starts_with("worker-")), "{helped:?}");
}

#[test]
#[should_panic = "2 scratch values for 3 threads"]
fn too_little_scratch_is_refused() {
    Pool::new(3).unwrap().for_each_with(&mut [0, 0], &mut [0; 9], |_, _| ());
}

#[test]
fn thread_numbers_out_of_range_are_refused() {
    assert!(matches!(Pool::new(0), Err(PoolError::Threads { threads: 0 })));
    assert!(matches!(Pool::new(THREADS_MAX + 1), Err(PoolError::Threads { .. })));
}

#[test]
fn a_sleeping_worker_is_woken_and_helps() {
    let pool = Pool::new(2).unwrap();
    for _ in 0..200 {
        // Long enough for the worker to sleep.
        thread::sleep(SPIN_MAX * 4);
        meet(&pool, 2);
    }
}

#[test]
fn all_sleeping_workers_are_woken_when_there_is_work_for_all() {
    let pool = Pool::new(6).unwrap();
    for wanted in [6, 2, 4, 6, 3, 6] {
        thread::sleep(SPIN_MAX * 40);
        meet(&pool, wanted);
    }
}

/// A call whose items each wait until all of them have begun, so that it ends only if `count` threads work at once.
fn meet(pool: &Pool, count: usize) {
    let begun = AtomicUsize::new(0);
    let deadline = Instant::now() + Duration::from_secs(60);
    pool.for_each(&mut vec![(); count], |()| {
        begun.fetch_add(1, Ordering::SeqCst);
        while begun.load(Ordering::SeqCst) < count {
            assert!(Instant::now() < deadline, "fewer than {count} threads came");
            thread::yield_now();
        }
    });
}

#[test]
fn a_panic_reaches_the_caller_after_all_stopped_and_the_pool_goes_on() {
    let pool = Pool::new(4).unwrap();
    for bad in [0, 1, 17, 99] {
        let inside = AtomicUsize::new(0);
        let mut items: Vec<(usize, u32)> = (0..100).map(|number| (number, 0)).collect();
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            pool.for_each(&mut items, |(number, calls)| {
                inside.fetch_add(1, Ordering::SeqCst);
                *calls += 1;
                spin_for(Duration::from_micros(5));
                inside.fetch_sub(1, Ordering::SeqCst);
                assert!(*number != bad, "item {number} is bad");
            });
        }));
        let message = outcome.unwrap_err().downcast::<String>().unwrap();
        assert_eq!(*message, format!("item {bad} is bad"));
        assert_eq!(inside.into_inner(), 0);
        assert!(items.iter().all(|&(_, calls)| calls <= 1) && items[bad].1 == 1);
        // Items are taken from the two ends of a run, so what is left of it are neighbours.
        let starts: Vec<usize> = pool.runs(items.len()).chain([items.len()]).collect();
        for run in starts.windows(2) {
            let left: Vec<usize> = (run[0]..run[1]).filter(|&item| items[item].1 == 0).collect();
            assert!(left.windows(2).all(|pair| pair[1] == pair[0] + 1), "{left:?}");
        }
        let mut after = vec![0; 100];
        pool.for_each(&mut after, |item| *item += 1);
        assert_eq!(after, vec![1; 100]);
    }
}

#[test]
fn after_a_panic_no_more_items_are_handed_out() {
    for threads in [1, 3] {
        let pool = Pool::new(threads).unwrap();
        let calls = AtomicUsize::new(0);
        let mut items: Vec<usize> = (0..1000).collect();
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            pool.for_each(&mut items, |item| {
                calls.fetch_add(1, Ordering::SeqCst);
                if *item == 0 {
                    // All threads are at work when it happens.
                    while calls.load(Ordering::SeqCst) < threads {
                        thread::yield_now();
                    }
                    resume_unwind(Box::new(()));
                }
                thread::sleep(Duration::from_millis(1));
            });
        }));
        assert!(outcome.is_err());
        assert!(calls.into_inner() < 1000, "{threads} threads");
    }
}

#[test]
fn many_panics_at_once_give_one() {
    let pool = Pool::new(4).unwrap();
    for _ in 0..50 {
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            pool.for_each(&mut [(); 8], |()| {
                // The quiet way to panic: no message is printed.
                resume_unwind(Box::new(7u8));
            });
        }));
        assert_eq!(*outcome.unwrap_err().downcast::<u8>().unwrap(), 7);
    }
    meet(&pool, 4);
}

#[test]
fn calls_inside_calls_and_from_several_threads_work() {
    let pool = Pool::new(3).unwrap();
    let done = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..200 {
                    pool.for_each(&mut [0; 5], |_| {
                        pool.for_each(&mut [0; 4], |_| {
                            done.fetch_add(1, Ordering::Relaxed);
                        });
                    });
                }
            });
        }
    });
    assert_eq!(done.into_inner(), 3 * 200 * 5 * 4);
}

#[test]
fn ends_its_threads_when_dropped() {
    for threads in 1..=8 {
        let alive = Arc::new(());
        let pool = Pool::new(threads).unwrap();
        let shared = Arc::downgrade(&pool.shared);
        pool.for_each(&mut vec![(); threads], |()| drop(Arc::clone(&alive)));
        if threads % 2 == 0 {
            thread::sleep(SPIN_MAX * 4);
        }
        drop(pool);
        assert_eq!(shared.strong_count(), 0);
    }
}

/// More threads than cores, calls of all sizes, with pauses on both sides of the spin bound.
#[test]
fn holds_under_random_delays_and_oversubscription() {
    let deadline = Instant::now() + Duration::from_secs(120);
    for threads in 1..=8 {
        let pool = Pool::new(threads).unwrap();
        let mut random = Random(threads as u64);
        let mut scratch = vec![0u64; threads];
        let mut expected = 0;
        for _ in 0..2000 {
            let mut items: Vec<(u32, Duration)> =
                (0..random.below(12)).map(|_| (0, random.pause(40))).collect();
            expected += items.len() as u64;
            pool.for_each_with(&mut scratch, &mut items, |count, (calls, pause)| {
                spin_for(*pause);
                *calls += 1;
                *count += 1;
            });
            assert!(items.iter().all(|&(calls, _)| calls == 1));
            let pause = random.pause(400);
            if pause > SPIN_MAX * 2 {
                thread::sleep(pause)
            } else {
                spin_for(pause)
            }
            assert!(Instant::now() < deadline, "{threads} threads make no progress");
        }
        assert_eq!(scratch.iter().sum::<u64>(), expected);
    }
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let one = sums(&Pool::new(1).unwrap());
    assert_eq!(one, sums(&Pool::new(2).unwrap()));
    assert_eq!(one, sums(&Pool::new(5).unwrap()));
}

fn sums(pool: &Pool) -> Vec<u64> {
    let totals = Mutex::new(vec![0; 64]);
    let mut items: Vec<usize> = (0..64).collect();
    pool.for_each(&mut items, |item| {
        let sum = (0..1000).map(|value| value * *item as u64).sum();
        totals.lock().unwrap()[*item] = sum;
    });
    totals.into_inner().unwrap()
}

fn spin_for(time: Duration) {
    let began = Instant::now();
    while began.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// Steele and Vigna's SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    /// Nothing in three of four cases, else up to `micros_max`.
    fn pause(&mut self, micros_max: u64) -> Duration {
        let micros = if self.below(4) == 0 { self.below(micros_max) } else { 0 };
        Duration::from_micros(micros)
    }
}
