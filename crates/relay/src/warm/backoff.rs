// SPDX-License-Identifier: Apache-2.0
//! The wait after failed dials.

use std::time::Duration;

use crate::rng::Rng;

/// The longest wait after the first failure.
const FIRST: Duration = Duration::from_millis(250);
/// The longest wait of all.
const MOST: Duration = Duration::from_secs(5);

/// A wait that doubles with each failure. Failures during the wait count as the same failure. A
/// success ends the wait, but failures soon after continue from the former level: a peer that
/// accepts hops and drops them again is not dialed faster than one that refuses.
#[derive(Debug)]
pub(super) struct Backoff {
    failures: u32,
    until: Duration,
    /// Time of the last failure.
    failed: Duration,
    rng: Rng,
}

impl Backoff {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            failures: 0,
            until: Duration::ZERO,
            failed: Duration::ZERO,
            rng: Rng::new(seed),
        }
    }

    /// End of the wait.
    pub(super) fn until(&self) -> Duration {
        self.until
    }

    pub(super) fn on_failure(&mut self, now: Duration) {
        if now < self.until {
            return;
        }
        // Quiet for twice as long as the next wait would be: start again.
        if now >= self.failed + self.longest() * 4 {
            self.failures = 0;
        }
        self.failures = self.failures.saturating_add(1);
        // A quarter is random, so that nodes that lost the same peer at the same time do not all
        // return at the same time.
        let quarter = self.longest() / 4;
        let chance = u32::try_from(self.rng.below(1024)).unwrap_or(0);
        self.until = now + quarter * 3 + quarter * chance / 1024;
        self.failed = now;
    }

    pub(super) fn on_success(&mut self, now: Duration) {
        self.until = self.until.min(now);
    }

    /// The upper bound of the wait after this many failures.
    fn longest(&self) -> Duration {
        let doublings = self.failures.saturating_sub(1).min(8);
        (FIRST * (1 << doublings)).min(MOST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait_ms(backoff: &mut Backoff, now: Duration) -> u128 {
        backoff.on_failure(now);
        (backoff.until() - now).as_millis()
    }

    #[test]
    fn wait_doubles_to_bound() {
        let mut backoff = Backoff::new(1);
        let mut now = Duration::from_secs(1);
        for longest in [250, 500, 1000, 2000, 4000, 5000, 5000] {
            let wait = wait_ms(&mut backoff, now);
            assert!((longest * 3 / 4..=longest).contains(&wait), "{wait}");
            now = backoff.until();
        }
    }

    #[test]
    fn simultaneous_failures_count_once() {
        let mut backoff = Backoff::new(1);
        let now = Duration::from_secs(1);
        backoff.on_failure(now);
        let until = backoff.until();
        for _ in 0..100 {
            backoff.on_failure(now);
        }
        assert_eq!(backoff.until(), until);
    }

    #[test]
    fn success_ends_wait() {
        let mut backoff = Backoff::new(1);
        let now = Duration::from_secs(1);
        backoff.on_failure(now);
        backoff.on_success(now);
        assert_eq!(backoff.until(), now);
        let soon = wait_ms(&mut backoff, now);
        assert!(soon > 250, "{soon}");
        let later = wait_ms(&mut backoff, now + Duration::from_secs(10));
        assert!(later <= 250, "{later}");
    }

    #[test]
    fn nodes_do_not_wait_alike() {
        let waits = [1, 2, 3].map(|seed| wait_ms(&mut Backoff::new(seed), Duration::ZERO));
        assert!(waits[0] != waits[1] || waits[1] != waits[2], "{waits:?}");
    }
}
