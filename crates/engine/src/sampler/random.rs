//! Randomness as a function of a seed and a place.

/// 64 random bits for a seed and a position: two rounds of splitmix64 (Steele, Lea and Flood 2014).
pub fn bits(seed: u64, position: u64) -> u64 {
    splitmix64(splitmix64(seed) ^ position)
}

fn splitmix64(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
