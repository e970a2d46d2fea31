//! How fast memory can be read: the bound that token generation is measured against.

use std::hint::black_box;
use std::time::Instant;

use crate::memory::{AlignedBuf, OutOfMemory};
use crate::pool::Pool;

/// Measured read bandwidth, in bytes per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ReadBandwidth {
    /// Of the fastest pass over the buffer.
    pub best: f64,
    /// Of the median pass.
    pub median: f64,
}

/// Bytes a thread takes at a time: long enough for the processor's read-ahead, short enough to share out evenly.
const PART_BYTES: usize = 1 << 20;

/// Reads a buffer of `bytes` (rounded up to whole MiB; huge pages where there are) `passes` times with all threads of
/// the pool. For the memory's bandwidth `bytes` must be several times the last cache.
///
/// # Errors
/// [`OutOfMemory`] when there is no such buffer.
///
/// # Panics
/// When `passes` is 0.
pub fn read_bandwidth(pool: &Pool, bytes: usize, passes: usize) -> Result<ReadBandwidth, OutOfMemory> {
    assert!(passes > 0, "a bandwidth needs at least one pass");
    let words = PART_BYTES / size_of::<u64>();
    let parts = bytes.div_ceil(PART_BYTES).max(1);
    let mut buffer = AlignedBuf::<u64>::zeroed(parts * words)?;
    // Untouched pages would all be the same one; the threads that read also touch first.
    let mut to_touch: Vec<&mut [u64]> = buffer.chunks_mut(words).collect();
    pool.for_each(&mut to_touch, |part| part.fill(1));

    let mut to_read: Vec<(&[u64], u64)> = buffer.chunks(words).map(|part| (part, 0)).collect();
    let mut seconds: Vec<f64> = (0..passes)
        .map(|_| {
            let began = Instant::now();
            pool.for_each(&mut to_read, |(part, sum)| *sum = wide_sum(black_box(part)));
            let seconds = began.elapsed().as_secs_f64();
            let total: u64 = to_read.iter().map(|(_, sum)| sum).sum();
            assert!(total == (parts * words) as u64, "the buffer was not read as it was written");
            seconds
        })
        .collect();
    seconds.sort_unstable_by(f64::total_cmp);
    let rate = |seconds: f64| (parts * PART_BYTES) as f64 / seconds.max(1e-9);
    Ok(ReadBandwidth { best: rate(seconds[0]), median: rate(seconds[passes / 2]) })
}

/// The sum in 32 lanes, which compilers turn into independent vector additions.
fn wide_sum(part: &[u64]) -> u64 {
    const LANES: usize = 32;
    let mut sums = [0u64; LANES];
    let (blocks, rest) = part.as_chunks::<LANES>();
    for block in blocks {
        for lane in 0..LANES {
            sums[lane] = sums[lane].wrapping_add(block[lane]);
        }
    }
    sums.iter().chain(rest).fold(0, |sum, &value| sum.wrapping_add(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_every_word() {
        let words: Vec<u64> = (1..=1000).collect();
        for len in [0, 1, 31, 32, 33, 1000] {
            assert_eq!(wide_sum(&words[..len]), (len * (len + 1) / 2) as u64);
        }
    }

    #[test]
    fn gives_finite_rates_in_order() {
        for threads in [1, 2] {
            let pool = Pool::new(threads).unwrap();
            let got = read_bandwidth(&pool, 10 << 20, 3).unwrap();
            assert!(got.median > 0.0 && got.median <= got.best && got.best.is_finite(), "{got:?}");
        }
        let pool = Pool::new(1).unwrap();
        assert!(read_bandwidth(&pool, 1 << 60, 1).is_err());
        assert!(read_bandwidth(&pool, 0, 1).unwrap().best > 0.0);
    }
}
