// SPDX-License-Identifier: Apache-2.0
//! Reproducible randomness, to spread what many nodes would otherwise do at the same time. Not for
//! secrets.

/// SplitMix64: small, fast without optimisation, and any seed is good.
#[derive(Debug)]
pub struct Rng(u64);

impl Rng {
    /// A generator whose numbers follow from `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number of 64 random bits.
    #[expect(
        clippy::should_implement_trait,
        reason = "it never ends, and is no iterator"
    )]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number in `0..limit`; `limit` is not zero.
    pub fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit as u64).expect("less than a usize")
    }
}
