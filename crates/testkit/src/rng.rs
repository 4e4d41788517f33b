// SPDX-License-Identifier: Apache-2.0
//! Random numbers that follow from a seed.

use std::fmt::Debug;

/// SplitMix64: small, fast without optimisation, and any seed is good.
#[derive(Debug)]
pub struct Rng(u64);

impl Rng {
    /// A generator whose numbers follow from `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number of 64 random bits.
    #[expect(clippy::should_implement_trait, reason = "it never ends")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number in `0..limit`, of any type of integers.
    ///
    /// # Panics
    /// `limit` is not positive.
    pub fn below<N: TryInto<u64, Error: Debug> + TryFrom<u64, Error: Debug>>(
        &mut self,
        limit: N,
    ) -> N {
        let limit: u64 = limit.try_into().expect("a positive limit");
        N::try_from(self.next() % limit).expect("less than the limit")
    }

    /// A number from 0 to 1.
    pub fn uniform(&mut self) -> f64 {
        self.next() as f64 / u64::MAX as f64
    }

    /// True once in `times`, on average.
    pub fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// A number in `1..=limit`, often a small one.
    pub fn some_of(&mut self, limit: usize) -> usize {
        let limit = match self.below(4) {
            0 => 1,
            1 => limit.min(16),
            _ => limit,
        };
        1 + self.below(limit)
    }

    /// All of `whole`, or a part of it.
    pub fn part_of(&mut self, whole: usize) -> usize {
        if self.once_in(3) {
            whole
        } else {
            self.some_of(whole)
        }
    }

    /// One of `from`, which is not empty.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// What `make` makes, in half of the cases.
    pub fn perhaps<T>(&mut self, make: impl FnOnce(&mut Self) -> T) -> Option<T> {
        (self.below(2) == 0).then(|| make(self))
    }

    /// Up to `most` things, none in half of the cases.
    pub fn some<T>(&mut self, most: usize, mut make: impl FnMut(&mut Self) -> T) -> Vec<T> {
        let count = self.perhaps(|_| 0);
        let count = count.unwrap_or_else(|| 1 + self.below(most));
        (0..count).map(|_| make(self)).collect()
    }

    /// A random byte.
    pub fn byte(&mut self) -> u8 {
        self.next().to_be_bytes()[0]
    }

    /// Random bytes.
    pub fn array<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.byte())
    }

    /// `length` random bytes.
    pub fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.byte()).collect()
    }

    /// The numbers below `count` in any order (Fisher and Yates' shuffle).
    pub fn permutation(&mut self, count: usize) -> Vec<usize> {
        let mut numbers: Vec<usize> = (0..count).collect();
        for end in (1..count).rev() {
            numbers.swap(end, self.below(end + 1));
        }
        numbers
    }
}
