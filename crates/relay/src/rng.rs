// SPDX-License-Identifier: Apache-2.0
//! Reproducible randomness: for the simulations, and to spread what many nodes would otherwise do
//! at the same time. Not for secrets.
//!
//! Every schedule of a simulation follows from one number. A failure prints
//! it; `POSTHASTE_SEED=<number> cargo test` then starts with that schedule.

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

#[cfg(test)]
impl Rng {
    /// A number in `1..=limit`, often a small one.
    pub(crate) fn some_of(&mut self, limit: usize) -> usize {
        let limit = match self.below(4) {
            0 => 1,
            1 => limit.min(16),
            _ => limit,
        };
        1 + self.below(limit)
    }

    /// All of `whole`, or a part of it.
    pub(crate) fn part_of(&mut self, whole: usize) -> usize {
        if self.once_in(3) {
            whole
        } else {
            self.some_of(whole)
        }
    }

    /// True once in `times`, on average.
    pub(crate) fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

/// Prints the seed of the current schedule when a check fails.
#[cfg(test)]
struct Witness(u64);

#[cfg(test)]
impl Drop for Witness {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("to see this again: POSTHASTE_SEED={}", self.0);
        }
    }
}

/// Runs `count` schedules, each with its own seed.
#[cfg(test)]
pub(crate) fn simulate(count: u64, mut schedule: impl FnMut(Rng)) {
    let first = match std::env::var("POSTHASTE_SEED") {
        Ok(seed) => seed.parse().expect("POSTHASTE_SEED is a number"),
        Err(_) => 1,
    };
    for number in 0..count {
        let witness = Witness(first + number);
        schedule(Rng::new(witness.0));
    }
}
