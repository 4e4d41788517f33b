// SPDX-License-Identifier: Apache-2.0
//! Reproducible random numbers: all follow from a seed. Not for secrets.

/// Spreads the bits of a number over the whole word (the finaliser of `splitmix64`). A bijection.
pub(crate) fn scramble(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A sequence of numbers.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A sequence that follows from `seed`; any seed is good.
    pub fn new(seed: u64) -> Self {
        Self(scramble(seed))
    }

    /// A number of 64 random bits.
    #[expect(
        clippy::should_implement_trait,
        reason = "it never ends, and nobody goes through it"
    )]
    pub fn next(&mut self) -> u64 {
        self.0 = scramble(self.0);
        self.0
    }

    /// A number in `0..limit`; `limit` is not zero.
    pub fn below(&mut self, limit: u64) -> u64 {
        // The bias of the remainder is below 2^-40 for the small limits of the lab.
        self.next() % limit
    }

    /// A number from 0 to 1, exclusive of 1.
    pub(crate) fn uniform(&mut self) -> f64 {
        // A double holds 53 bits exactly; more would round up to 1.
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// The items in an order given by the seed and the round (Fisher and Yates' shuffle).
pub(crate) fn shuffled<T: Clone>(items: &[T], seed: u64, round: u32) -> Vec<T> {
    let mut items = items.to_vec();
    // Rounds of one seed must differ, and so must the same round of similar seeds.
    let mut random = Rng(scramble(seed) ^ u64::from(round));
    for end in (1..items.len()).rev() {
        let chosen = usize::try_from(random.below(end as u64 + 1)).unwrap_or(end);
        items.swap(end, chosen);
    }
    items
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shuffle_by_seed() {
        let all: Vec<u32> = (0..60).collect();
        let once = shuffled(&all, 1, 0);
        assert_ne!(once, all);
        assert_eq!(once, shuffled(&all, 1, 0));
        assert_ne!(once, shuffled(&all, 1, 1));
        assert_ne!(once, shuffled(&all, 2, 0));
        let mut sorted = once;
        sorted.sort_unstable();
        assert_eq!(sorted, all);
    }
}
