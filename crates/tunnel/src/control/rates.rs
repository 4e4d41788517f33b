// SPDX-License-Identifier: Apache-2.0
//! The largest or least of the values of a time that ends now, and the rate that samples show.

use std::collections::VecDeque;
use std::time::Duration;

/// Values that no later one has beaten, with their times: the first within any time that ends now
/// is the best of that time.
#[derive(Clone, Debug)]
pub(super) struct Extremes {
    values: VecDeque<(Duration, u64)>,
    /// Whether one value beats another.
    beats: fn(u64, u64) -> bool,
}

impl Extremes {
    /// Keeps the largest values.
    pub(super) fn largest() -> Self {
        Self {
            values: VecDeque::new(),
            beats: |one, other| one >= other,
        }
    }

    /// Keeps the least values.
    pub(super) fn least() -> Self {
        Self {
            values: VecDeque::new(),
            beats: |one, other| one <= other,
        }
    }

    /// Adds the value of `now`, and forgets those from before `since`.
    pub(super) fn add(&mut self, now: Duration, value: u64, since: Duration) {
        while self
            .values
            .pop_back_if(|(_, last)| (self.beats)(value, *last))
            .is_some()
        {}
        self.values.push_back((now, value));
        while self.values.pop_front_if(|(at, _)| *at < since).is_some() {}
    }

    /// The best value since then.
    pub(super) fn since(&self, since: Duration) -> Option<u64> {
        let first = self.values.partition_point(|(at, _)| *at < since);
        self.values.get(first).map(|(_, value)| *value)
    }

    pub(super) fn clear(&mut self) {
        self.values.clear();
    }
}

/// Round trips for which a rate counts: usually, and while there is a queue. Behind a queue, what
/// arrives is what the path gives, and a higher rate from before is out of date.
const RATE_ROUNDS: u32 = 10;
const RATE_ROUNDS_QUEUED: u32 = 3;

/// The largest rate of the last round trips, in bytes per second.
#[derive(Clone, Debug)]
pub(super) struct Rate {
    /// By active time.
    samples: Extremes,
    value: u64,
    sampled_at: Duration,
    /// Of which at most a round trip passes between two samples: while its host stops a sender, or that has
    /// nothing to send, it finds nothing out about the path.
    active: Duration,
}

impl Default for Rate {
    fn default() -> Self {
        Self {
            samples: Extremes::largest(),
            value: 0,
            sampled_at: Duration::ZERO,
            active: Duration::ZERO,
        }
    }
}

impl Rate {
    pub(super) fn value(&self) -> u64 {
        self.value
    }

    /// Forgets what was before, and begins with this.
    pub(super) fn begin(&mut self, value: u64) {
        self.samples.clear();
        self.samples.add(self.active, value, Duration::ZERO);
        self.value = value;
    }

    /// Adds a sample of `now`, on a path with a round trip of `round`.
    pub(super) fn add(&mut self, now: Duration, sample: u64, round: Duration, is_queued: bool) {
        self.active += now.saturating_sub(self.sampled_at).min(round);
        self.sampled_at = now;
        let since = |rounds| self.active.saturating_sub(round * rounds);
        self.samples.add(self.active, sample, since(RATE_ROUNDS));
        let rounds = if is_queued {
            RATE_ROUNDS_QUEUED
        } else {
            RATE_ROUNDS
        };
        self.value = self.samples.since(since(rounds)).unwrap_or(sample);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn best_of_any_recent_time() {
        let ms = Duration::from_millis;
        let mut rates = Extremes::largest();
        for (at, rate) in [(0, 5), (10, 9), (20, 3), (30, 4)] {
            rates.add(ms(at), rate, ms(0));
        }
        let best = [0, 10, 11, 30, 31].map(|since| rates.since(ms(since)));
        assert_eq!(best, [Some(9), Some(9), Some(4), Some(4), None]);
        rates.add(ms(40), 1, ms(30));
        assert_eq!(rates.since(ms(0)), Some(4), "the older ones are forgotten");
    }
}
