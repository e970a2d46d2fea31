use super::*;

const STEP: usize = STEP_BYTES_MIN;

/// A linear congruential generator (Knuth's MMIX constants).
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}

/// The segment against a plain list of ranges: what is handed out, what it holds, what is counted.
#[test]
fn any_order_of_leases_keeps_them_apart() {
    for seed in 0..8 {
        let mut random = Random(seed);
        let steps = 2 + random.below(6);
        let step = STEP * (1 + random.below(2));
        let segment = Segment::reserve("test", steps * step - 5, step).unwrap();
        let budget = steps * step;
        let mut live: Vec<(Lease, u8)> = Vec::new();
        let mut refused = 0;
        for turn in 0..300 {
            if random.below(5) < 3 {
                let order = [100, 5000, STEP, 2 * STEP][random.below(4)];
                let bytes = 1 + random.below(order);
                match segment.lease(bytes) {
                    Ok(mut lease) => {
                        assert_eq!((lease.len(), lease.offset() % LEASE_ALIGNMENT_BYTES), (bytes, 0));
                        assert!(lease.whole().iter().all(|&byte| byte == 0), "{lease:?} turn {turn}");
                        lease.whole().fill(turn as u8);
                        live.push((lease, turn as u8));
                    }
                    Err(ArenaError::OutOfBudget { wanted_bytes, left_bytes, budget_bytes, .. }) => {
                        refused += 1;
                        let leased: usize = live.iter().map(|(lease, _)| lease_bytes(lease.len())).sum();
                        assert_eq!(
                            (wanted_bytes, left_bytes, budget_bytes),
                            (bytes, budget - leased, budget)
                        );
                        assert!(largest_gap(&live, budget) < lease_bytes(bytes), "turn {turn}");
                    }
                    Err(error) => panic!("{error}"),
                }
            } else if !live.is_empty() {
                let (mut lease, stamp) = live.swap_remove(random.below(live.len()));
                assert!(lease.whole().iter().all(|&byte| byte == stamp), "{lease:?} was written by another");
            }
            check_counters(&segment, &live, step);
        }
        assert!(refused > 5, "seed {seed}: {refused}");
        assert!(live.iter().all(|(lease, stamp)| lease.iter().all(|byte| byte == stamp)));
        drop(live);
        assert_eq!(segment.counters(), Counters { budget, committed: 0, leased: 0 });
    }
}

fn sorted(live: &[(Lease, u8)]) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = live.iter().map(|(lease, _)| lease.range.clone()).collect();
    ranges.sort_by_key(|range| range.start);
    ranges
}

fn largest_gap(live: &[(Lease, u8)], budget: usize) -> usize {
    let ranges = sorted(live);
    let starts = ranges.iter().map(|range| range.start).chain([budget]);
    let ends = [0].into_iter().chain(ranges.iter().map(|range| range.end));
    starts.zip(ends).map(|(start, end)| start.checked_sub(end).expect("ranges apart")).max().unwrap()
}

/// Committed are exactly the steps that a lease touches.
fn check_counters(segment: &Segment, live: &[(Lease, u8)], step: usize) {
    let mut touched: Vec<usize> =
        sorted(live).iter().flat_map(|range| range.start / step..range.end.div_ceil(step)).collect();
    touched.dedup();
    let counters = segment.counters();
    assert_eq!(counters.committed, touched.len() * step);
    assert_eq!(counters.leased, live.iter().map(|(lease, _)| lease.range.len()).sum::<usize>());
    assert!(counters.committed <= counters.budget);
}

#[test]
fn a_budget_is_an_error_with_numbers() {
    let segment = Segment::reserve("keys and values", STEP, STEP).unwrap();
    let most = segment.lease(STEP).unwrap();
    let error = segment.lease(1).unwrap_err();
    let text = "no room for 1 more bytes of keys and values: 0 of 2097152 are left";
    assert_eq!(error.to_string(), text);
    drop(most);
    assert!(segment.lease(STEP).is_ok() && segment.lease(STEP + 1).is_err());
    let error = Segment::reserve("all", usize::MAX, STEP).unwrap_err();
    assert!(matches!(error, ArenaError::Refused { .. }), "{error}");
}

#[test]
fn nothing_takes_nothing() {
    let segment = Segment::reserve("nothing", 0, STEP).unwrap();
    let (mut a, b) = (segment.lease(0).unwrap(), segment.lease(0).unwrap());
    assert!(a.is_empty() && b.values::<f32>().is_empty() && a.values_mut::<u16>().is_empty());
    assert!(segment.lease(1).is_err());
    drop((a, b));
    assert_eq!(segment.counters(), Counters { budget: 0, committed: 0, leased: 0 });
}

#[test]
fn leases_are_numbers_and_outlive_the_handle() {
    let segment = Segment::reserve("numbers", STEP, STEP).unwrap();
    let mut floats = segment.lease(40).unwrap();
    let mut halves = segment.lease(6).unwrap();
    drop(segment);
    floats.values_mut::<f32>().copy_from_slice(&[1.5; 10]);
    halves.values_mut::<u16>().fill(7);
    assert_eq!((floats.values::<f32>(), halves.values::<u16>()), (&[1.5f32; 10][..], &[7u16; 3][..]));
}

#[test]
fn threads_lease_and_write_at_the_same_time() {
    let segment = Segment::reserve("threads", 8 * STEP, STEP).unwrap();
    std::thread::scope(|scope| {
        for thread in 1..=4u8 {
            let segment = segment.clone();
            scope.spawn(move || {
                for turn in 0..50 {
                    let mut lease = segment.lease(STEP / 3 + turn).unwrap();
                    assert!(lease.iter().all(|&byte| byte == 0));
                    lease.fill(thread);
                    assert!(lease.iter().all(|&byte| byte == thread));
                }
            });
        }
    });
    assert_eq!(segment.counters().committed, 0);
}

/// What was committed first stays when its leases end, and what lies behind it goes.
#[test]
fn the_first_bytes_keep_their_memory() {
    let segment = Segment::reserve("kept", 4 * STEP, STEP).unwrap();
    segment.commit_first(STEP + 1).unwrap();
    assert_eq!(segment.counters().committed, 2 * STEP);
    let mut leases: Vec<Lease> = (0..3).map(|_| segment.lease(STEP).unwrap()).collect();
    leases.iter_mut().for_each(|lease| lease.fill(7));
    assert_eq!(segment.counters().committed, 3 * STEP);
    leases.clear();
    assert_eq!(segment.counters(), Counters { budget: 4 * STEP, committed: 2 * STEP, leased: 0 });
    // What stayed is cleared for whoever leases it next.
    assert!(segment.lease(3 * STEP).unwrap().iter().all(|&byte| byte == 0));
    segment.keep(usize::MAX);
    drop(segment.lease(4 * STEP).unwrap());
    assert_eq!(segment.counters().committed, 4 * STEP);
    segment.keep(0);
    drop(segment.lease(1).unwrap());
    assert_eq!(segment.counters().committed, 0);
}
