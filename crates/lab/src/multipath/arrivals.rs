// SPDX-License-Identifier: Apache-2.0
//! When the bytes of a download arrived. Pure.

use std::time::{Duration, Instant};

/// How long a rate must last to count.
const WINDOW: Duration = Duration::from_secs(1);
/// How exactly the begin of a rate is found.
const STEP: Duration = Duration::from_millis(50);

/// The parts of a download: when each was read, and the bytes so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Arrivals(Vec<(Instant, u64)>);

impl Arrivals {
    pub(super) fn push(&mut self, at: Instant, bytes: u64) {
        self.0.push((at, bytes));
    }

    /// The longest time without a byte that ended between two moments, or lasted beyond the second.
    pub(super) fn longest_gap(&self, from: Instant, to: Instant) -> Duration {
        let before = self.0.iter().rev().find(|(at, _)| *at < from);
        let mut last = before.map_or(from, |(at, _)| *at);
        let mut longest = Duration::ZERO;
        let within = self.0.iter().filter(|(at, _)| *at >= from && *at <= to);
        for at in within.map(|(at, _)| *at).chain([to]) {
            longest = longest.max(at - last);
            last = at;
        }
        longest
    }

    /// The time from a moment to the first second with this many bytes. `None` if there is none.
    pub(super) fn until_rate(&self, from: Instant, bytes: f64) -> Option<Duration> {
        let (last, _) = self.0.last()?;
        let starts = (0..).map(|step| STEP * step);
        let mut starts = starts.take_while(|&after| from + after + WINDOW <= *last);
        starts.find(|&after| {
            let start = from + after;
            (self.bytes_by(start + WINDOW) - self.bytes_by(start)) as f64 >= bytes
        })
    }

    /// The bytes that had arrived at a moment.
    fn bytes_by(&self, moment: Instant) -> u64 {
        let later = self.0.partition_point(|(at, _)| *at <= moment);
        later.checked_sub(1).map_or(0, |index| self.0[index].1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrivals(start: Instant, parts: &[(u64, u64)]) -> Arrivals {
        let each = parts.iter();
        Arrivals(
            each.map(|(millis, bytes)| (start + Duration::from_millis(*millis), *bytes))
                .collect(),
        )
    }

    #[test]
    fn gaps_by_their_end() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let all = arrivals(start, &[(0, 1), (900, 2), (1000, 3), (1600, 4), (1700, 5)]);
        let gap = |from, to| all.longest_gap(at(from), at(to)).as_millis();
        assert_eq!(gap(0, 2000), 900);
        assert_eq!(gap(950, 2000), 600);
        assert_eq!(gap(1100, 1650), 600, "it began before");
        assert_eq!(gap(1100, 1300), 300, "it lasts on");
        assert_eq!(gap(1700, 2700), 1000);
    }

    #[test]
    fn rate_of_a_whole_second() {
        let start = Instant::now();
        let slow = (1..=10).map(|second| (second * 100, second));
        let fast = (1..=20).map(|second| (1000 + second * 100, 10 + second * 10));
        let all = arrivals(start, &slow.chain(fast).collect::<Vec<_>>());
        assert_eq!(all.until_rate(start, 10.0), Some(Duration::ZERO));
        assert_eq!(
            all.until_rate(start, 100.0),
            Some(Duration::from_millis(1000))
        );
        assert_eq!(all.until_rate(start, 101.0), None);
    }
}
