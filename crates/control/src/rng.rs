// SPDX-License-Identifier: Apache-2.0
//! Chance that is the same every time, for tests and simulations.

/// SplitMix64.
#[derive(Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    /// All that follows is decided by `seed`.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, which is not 0.
    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        u32::try_from(self.next() % u64::from(bound)).expect("it is below")
    }

    /// True once in `times`, on average.
    pub(crate) fn once_in(&mut self, times: u32) -> bool {
        self.below(times) == 0
    }
}

/// Names the schedule that is under way when a check fails.
struct Witness(u64);

impl Drop for Witness {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("to see this again: POSTHASTE_SEED={}", self.0);
        }
    }
}

/// Runs `count` schedules, each with its own chance, from `POSTHASTE_SEED` on.
pub(crate) fn simulate(count: u64, mut schedule: impl FnMut(Rng)) {
    let first = match std::env::var("POSTHASTE_SEED") {
        Ok(seed) => seed.parse().expect("POSTHASTE_SEED is a number"),
        Err(_) => 1,
    };
    for seed in first..first + count {
        let witness = Witness(seed);
        schedule(Rng::new(witness.0));
    }
}
