//! What an arena takes from the system; a program of its own, as other tests take and give back memory meanwhile.
#![cfg(target_os = "linux")]

use sys::arena::Segment;
use sys::memory::resident;

#[test]
fn memory_comes_in_steps_and_goes_back() {
    const STEP: usize = 16 << 20;
    // More addresses than any machine has memory.
    let segment = Segment::reserve("test", 1 << 40, STEP).unwrap();
    let before = resident().unwrap().anonymous;
    let now = || resident().unwrap().anonymous.saturating_sub(before);
    let mut leases: Vec<_> = (0..10).map(|_| segment.lease(STEP / 2).unwrap()).collect();
    assert!(now() < (2 << 20), "untouched memory is not held: {}", now());
    assert_eq!(segment.counters().committed, 5 * STEP);
    leases.iter_mut().for_each(|lease| lease.fill(1));
    assert!(now() > 5 * STEP as u64 - (1 << 20), "{}", now());
    leases.truncate(5);
    assert_eq!(segment.counters().committed, 3 * STEP);
    assert!(now() < 3 * STEP as u64 + (1 << 20), "{}", now());
    drop(leases);
    assert!(now() < (2 << 20), "{}", now());
}
