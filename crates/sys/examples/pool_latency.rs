//! Prints what a call of the pool costs: `cargo run --release -p sys --example pool_latency -- [threads]`.

use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

fn main() {
    let threads = std::env::args().nth(1).map_or(2, |text| text.parse().expect("a number of threads"));
    let pool = sys::pool::Pool::new(threads).expect("a pool");
    println!("{threads} threads");
    for items in [1usize, 2, 8, 64] {
        let mut values = vec![0u64; items];
        let times =
            nanos(20_000, Duration::ZERO, || pool.for_each(&mut values, |value| *value += black_box(1)));
        println!("{items:3} empty items, hot workers: {}", text(times));
    }
    let begun = AtomicUsize::new(0);
    let mut round = 0;
    let meeting = nanos(20_000, Duration::ZERO, || {
        round += 1;
        pool.for_each(&mut [(), ()], |()| {
            begun.fetch_add(1, Ordering::SeqCst);
            while begun.load(Ordering::SeqCst) < 2 * round {
                std::hint::spin_loop();
            }
        });
    });
    println!("  2 items that wait for each other:  {}", text(meeting));
    let mut values: Vec<Apart> = (0..threads).map(|_| Apart(0)).collect();
    let busy = |value: &mut Apart| (0..10_000u64).for_each(|step| value.0 = black_box(value.0 ^ step));
    let alone = nanos(5_000, Duration::ZERO, || values.iter_mut().for_each(busy));
    let shared = nanos(5_000, Duration::ZERO, || pool.for_each(&mut values, busy));
    println!("{threads} busy items in a plain loop: {}", text(alone));
    println!("{threads} busy items on the pool:     {}", text(shared));
    let asleep = nanos(500, Duration::from_micros(300), || pool.for_each(&mut values, busy));
    println!("{threads} busy items, workers asleep: {}", text(asleep));
}

/// Items that threads write at the same time must not share a cache line.
#[repr(align(128))]
struct Apart(u64);

/// Sorted times of `calls` calls.
fn nanos(calls: usize, pause: Duration, mut call: impl FnMut()) -> Vec<u128> {
    let time = |_| {
        if !pause.is_zero() {
            std::thread::sleep(pause);
        }
        let began = Instant::now();
        call();
        began.elapsed().as_nanos()
    };
    let mut times: Vec<u128> = (0..calls).map(time).collect();
    times.sort_unstable();
    times
}

fn text(times: Vec<u128>) -> String {
    let at = |share: usize| times[(times.len() - 1) * share / 100];
    let mean = times.iter().sum::<u128>() / times.len() as u128;
    format!("median {} ns, mean {mean} ns, 95 % under {} ns", at(50), at(95))
}
