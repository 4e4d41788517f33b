// SPDX-License-Identifier: Apache-2.0
//! Round trip times of one path between two nodes, and its length. Pure.
//!
//! The length of a path is the shortest recent time. A longer time is accepted when it is measured
//! twice in a row: once, it was a queue.

use std::collections::VecDeque;
use std::time::Duration;

/// Number of times kept.
const DEPTH: usize = 8;
/// Bound on their age: a path may have become longer gradually.
const AGE_MAX: Duration = Duration::from_secs(300);
/// Smaller differences are noise, in microseconds.
const NOISE_US: u32 = 1_000;

/// Whether a time differs from another by more than noise: by more than a tenth of it, and more
/// than a millisecond.
pub(super) fn differs(rtt_us: u32, from_us: u32) -> bool {
    rtt_us.abs_diff(from_us) > (from_us / 10).max(NOISE_US)
}

/// What a time shows about its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    /// Nothing new.
    Usual,
    /// It may have become longer: the next time decides.
    Odd,
    /// It has become longer or shorter.
    Moved,
}

/// The recent times of one path.
#[derive(Clone, Debug, Default)]
pub(super) struct Series {
    /// Microseconds, and the time of the measurement; the newest last.
    times: VecDeque<(u32, Duration)>,
    /// Whether the newest is longer than all others.
    odd: bool,
}

impl Series {
    /// Adds a time.
    pub(super) fn add(&mut self, rtt_us: u32, now: Duration) -> News {
        // Without the new time, which is judged by it.
        let level = self.level();
        while self.times.len() == DEPTH || self.oldest().is_some_and(|at| now >= at + AGE_MAX) {
            self.times.pop_front();
        }
        self.times.push_back((rtt_us, now));
        let Some(level) = level else {
            return News::Usual;
        };
        let moved = differs(rtt_us, level);
        let longer = moved && rtt_us > level;
        let again = longer && self.odd;
        self.odd = longer && !again;
        if again {
            let former = self.times.len().saturating_sub(2);
            // The shorter times of the former path would hide that it is longer now.
            self.times.drain(..former);
        }
        match (moved, longer && !again) {
            (_, true) => News::Odd,
            (true, false) => News::Moved,
            (false, false) => News::Usual,
        }
    }

    /// The length of the path, in microseconds, if measured.
    pub(super) fn level(&self) -> Option<u32> {
        self.times.iter().map(|(rtt_us, _)| *rtt_us).min()
    }

    /// The time of the last measurement.
    pub(super) fn newest(&self) -> Option<Duration> {
        self.times.back().map(|(_, at)| *at)
    }

    fn oldest(&self) -> Option<Duration> {
        self.times.front().map(|(_, at)| *at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: u64) -> Duration {
        Duration::from_secs(second)
    }

    #[test]
    fn noise_tolerance() {
        assert!(!differs(2_000, 1_000) && differs(2_001, 1_000));
        assert!(!differs(0, 1_000) && differs(0, 1_001));
        assert!(!differs(110_000, 100_000) && differs(110_001, 100_000));
        assert!(!differs(90_000, 100_000) && differs(89_999, 100_000));
    }

    #[test]
    fn second_long_time_counts() {
        let mut series = Series::default();
        for second in 0..4 {
            assert_eq!(series.add(20_000, at(second)), News::Usual);
        }
        assert_eq!(series.add(50_000, at(4)), News::Odd);
        assert_eq!(series.add(20_500, at(5)), News::Usual);
        assert_eq!(series.level(), Some(20_000));
        assert_eq!(series.add(50_000, at(6)), News::Odd);
        assert_eq!(series.add(60_000, at(7)), News::Moved);
        assert_eq!(series.level(), Some(50_000));
        assert_eq!(series.add(51_000, at(8)), News::Usual);
    }

    #[test]
    fn shorter_time_at_once() {
        let mut series = Series::default();
        series.add(50_000, at(0));
        assert_eq!(series.add(20_000, at(1)), News::Moved);
        assert_eq!(series.level(), Some(20_000));
    }

    #[test]
    fn old_times_forgotten() {
        let mut series = Series::default();
        series.add(20_000, at(0));
        for second in 1..=8 {
            series.add(20_900, at(second));
        }
        assert_eq!(series.level(), Some(20_900), "the eight last");
        let mut series = Series::default();
        series.add(20_000, at(0));
        series.add(20_900, at(299));
        assert_eq!(series.level(), Some(20_000));
        series.add(20_900, at(300));
        assert_eq!(series.level(), Some(20_900));
    }
}
