// SPDX-License-Identifier: Apache-2.0
//! Probes of one link out of schedule, to check possible changes, within a budget, so that a noisy
//! link costs no more than others. Pure.

use std::collections::VecDeque;
use std::time::Duration;

/// Interval of such probes.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Bound on such probes in a row.
const CHECKS_MAX: u32 = 16;
/// Time for one more probe.
const REFILL: Duration = Duration::from_secs(2);

/// The ports to probe out of schedule.
#[derive(Clone, Debug)]
pub(super) struct Checks {
    ports: VecDeque<u8>,
    due: Duration,
    /// Probes left in the budget, and since when they are counted.
    left: u32,
    since: Duration,
}

impl Checks {
    pub(super) fn new(now: Duration) -> Self {
        Self {
            ports: VecDeque::new(),
            due: now,
            left: CHECKS_MAX,
            since: now,
        }
    }

    /// Replaces the ports to probe.
    pub(super) fn set(&mut self, ports: impl Iterator<Item = u8>) {
        self.ports.clear();
        self.ports.extend(ports);
    }

    /// Probes this port before the others, but not at once: the disturbance may be over by then.
    pub(super) fn again(&mut self, port: u8, now: Duration) {
        // It may be in the queue already, and one probe is enough.
        self.ports.retain(|one| *one != port);
        self.ports.push_front(port);
        self.due = self.due.max(now + CHECK_INTERVAL);
    }

    pub(super) fn clear(&mut self) {
        self.ports.clear();
    }

    /// The port to probe now, if one is due.
    pub(super) fn take(&mut self, now: Duration) -> Option<u8> {
        if self.at()? > now {
            return None;
        }
        // With nothing left in the budget the port stays in the queue.
        self.refill(now);
        self.left = self.left.checked_sub(1)?;
        self.due = now + CHECK_INTERVAL;
        self.ports.pop_front()
    }

    /// When the next probe is due.
    pub(super) fn at(&self) -> Option<Duration> {
        self.ports.front()?;
        let refilled = if self.left > 0 {
            Duration::ZERO
        } else {
            self.since + REFILL
        };
        Some(self.due.max(refilled))
    }

    fn refill(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.since).as_millis() / REFILL.as_millis();
        let more = u32::try_from(passed).unwrap_or(u32::MAX);
        if self.left.saturating_add(more) >= CHECKS_MAX {
            // A full budget does not save up more.
            (self.left, self.since) = (CHECKS_MAX, now);
        } else {
            self.left += more;
            // What is left of the interval counts for the next probe.
            self.since += REFILL * more;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn ten_checks_per_second() {
        let mut checks = Checks::new(at(0));
        assert_eq!(checks.at(), None);
        checks.set([2, 3].into_iter());
        assert_eq!(checks.take(at(5)), Some(2));
        assert_eq!(checks.at(), Some(at(105)));
        assert_eq!(checks.take(at(104)), None);
        checks.again(1, at(105));
        assert_eq!(checks.take(at(105)), None, "not at once");
        assert_eq!(checks.take(at(205)), Some(1));
        assert_eq!(checks.take(at(305)), Some(3));
        assert_eq!(checks.take(at(405)), None);
    }

    #[test]
    fn odd_link_within_budget() {
        let mut checks = Checks::new(at(0));
        let mut sent = 0;
        for ms in 0..100_000 {
            checks.set([0].into_iter());
            sent += u64::from(checks.take(at(ms)).is_some());
        }
        let budget = u64::from(CHECKS_MAX) + 50;
        assert!((budget - 2..=budget).contains(&sent), "{sent}");
        // After a pause it has its budget again.
        for step in 0..u64::from(CHECKS_MAX) {
            checks.set([0].into_iter());
            assert_eq!(checks.take(at(200_000 + step * 100)), Some(0));
        }
    }
}
