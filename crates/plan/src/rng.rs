// SPDX-License-Identifier: Apache-2.0
//! Reproducible pseudo-random numbers, for tests.

/// SplitMix64.
#[derive(Debug)]
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        u32::try_from(self.next() % u64::from(bound)).expect("it is below")
    }

    /// The numbers below `count` in any order.
    pub(crate) fn permutation(&mut self, count: usize) -> Vec<usize> {
        let mut numbers: Vec<usize> = (0..count).collect();
        for end in (1..count).rev() {
            let bound = u32::try_from(end + 1).expect("tests are small");
            numbers.swap(end, self.below(bound) as usize);
        }
        numbers
    }
}
