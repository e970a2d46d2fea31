//! From logits to a token.

use kernels::math;

/// How a token is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// 0 takes the largest logit; otherwise logits are divided by this.
    pub temperature: f32,
    /// Only this many of the most likely tokens; 0 keeps all.
    pub top_k: usize,
    /// Only the most likely tokens that together reach this probability; 1 keeps all.
    pub top_p: f32,
    /// Only tokens at least this fraction as likely as the likeliest; 0 keeps all.
    pub min_p: f32,
    /// Same seed, same position, same logits: same token.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Sampling {
        Sampling { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 0 }
    }
}

/// Index of the largest value, the lower one among equals. The values are finite.
pub fn argmax(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (i, &logit) in logits.iter().enumerate() {
        if logit > logits[best] {
            best = i;
        }
    }
    best as u32
}

/// The token for the place `position` of a sequence.
///
/// Randomness is a counter, not a stream: the number drawn depends on the seed and the position alone, so a sequence
/// goes on in the same way whatever else was sampled in between.
pub fn sample(logits: &[f32], sampling: &Sampling, position: u64) -> u32 {
    if sampling.temperature <= 0.0 {
        return argmax(logits);
    }
    let mut order: Vec<u32> = (0..logits.len() as u32).collect();
    let better = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
    if sampling.top_k > 0 && sampling.top_k < order.len() {
        order.select_nth_unstable_by(sampling.top_k, better);
        order.truncate(sampling.top_k);
    }
    order.sort_unstable_by(better);
    let max = logits[order[0] as usize];
    let mut weights: Vec<f64> = order
        .iter()
        .map(|&token| f64::from(math::exp((logits[token as usize] - max) / sampling.temperature)))
        .collect();
    let likely = weights.partition_point(|&w| w >= f64::from(sampling.min_p)).max(1);
    weights.truncate(likely);
    let total: f64 = weights.iter().sum();
    let mut reached = 0.0;
    let kept = weights
        .iter()
        .position(|w| {
            reached += w;
            reached >= f64::from(sampling.top_p) * total
        })
        .map_or(weights.len(), |last| last + 1);
    weights.truncate(kept);
    let target = uniform(sampling.seed, position) * weights.iter().sum::<f64>();
    let mut reached = 0.0;
    let chosen = weights.iter().position(|w| {
        reached += w;
        reached > target
    });
    order[chosen.unwrap_or(weights.len() - 1)]
}

/// A number in [0, 1) for a seed and a position: two rounds of splitmix64 (Steele, Lea and Flood 2014).
fn uniform(seed: u64, position: u64) -> f64 {
    let bits = splitmix64(splitmix64(seed) ^ position);
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

fn splitmix64(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greedy_takes_the_lower_of_equals() {
        assert_eq!(argmax(&[1.0, 3.0, 3.0]), 1);
        assert_eq!(sample(&[1.0, 3.0, 3.0], &Sampling::default(), 0), 1);
    }

    #[test]
    fn frequencies_follow_the_probabilities() {
        let logits = [0.0, 1.0, 2.0, -40.0].map(|x: f32| x);
        let sampling = Sampling { temperature: 1.0, seed: 7, ..Sampling::default() };
        let mut counts = [0usize; 4];
        for position in 0..20_000 {
            counts[sample(&logits, &sampling, position) as usize] += 1;
        }
        let total: f64 = logits[..3].iter().map(|&l| f64::from(l).exp()).sum();
        for i in 0..3 {
            let wanted = f64::from(logits[i]).exp() / total;
            assert!((counts[i] as f64 / 20_000.0 - wanted).abs() < 0.015, "{counts:?}");
        }
        assert_eq!(counts[3], 0);
    }

    #[test]
    fn cut_offs_keep_the_likeliest() {
        let logits = [0.0, 1.0, 2.0, 1.5];
        let seen = |sampling: Sampling| {
            let mut tokens: Vec<u32> = (0..500).map(|p| sample(&logits, &sampling, p)).collect();
            tokens.sort_unstable();
            tokens.dedup();
            tokens
        };
        let base = Sampling { temperature: 1.0, ..Sampling::default() };
        assert_eq!(seen(base), [0, 1, 2, 3]);
        assert_eq!(seen(Sampling { top_k: 2, ..base }), [2, 3]);
        assert_eq!(seen(Sampling { top_p: 0.4, ..base }), [2]);
        assert_eq!(seen(Sampling { min_p: 0.3, ..base }), [1, 2, 3]);
    }
}
