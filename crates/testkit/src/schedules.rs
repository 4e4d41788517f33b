// SPDX-License-Identifier: Apache-2.0
//! Schedules, each by its seed.

use super::Rng;

/// Prints the seed of the current schedule when a check fails.
struct Witness(u64);

impl Drop for Witness {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("to see this again: POSTHASTE_SEED={}", self.0);
        }
    }
}

fn variable(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name} is a number")),
    )
}

/// How many schedules to run: `POSTHASTE_SCHEDULES`, or `usual`.
pub fn schedules(usual: u64) -> u64 {
    variable("POSTHASTE_SCHEDULES").unwrap_or(usual)
}

/// Runs a schedule for `count` seeds, from `POSTHASTE_SEED` on.
pub fn seeds(count: u64, mut schedule: impl FnMut(u64)) {
    let first = variable("POSTHASTE_SEED").unwrap_or(1);
    for number in 0..count {
        let witness = Witness(first.wrapping_add(number));
        schedule(witness.0);
    }
}

/// The same, with a generator of the seed's numbers.
pub fn simulate(count: u64, mut schedule: impl FnMut(Rng)) {
    seeds(count, |seed| schedule(Rng::new(seed)));
}
