// SPDX-License-Identifier: Apache-2.0
//! The largest or least of the values of a time that ends now.

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
