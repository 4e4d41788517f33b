// SPDX-License-Identifier: Apache-2.0
//! The time that a controller sends its nodes. Pure.

use std::time::Duration;

/// The sent time is faster or slower than it passes by one part in so many, until it is that of the
/// controller's clock: an hour takes twenty.
const SLEW: u32 = 20;

/// The time that was sent, and what the clock showed then: survives the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredClock {
    /// The time that was sent, since 1970.
    pub sent: Duration,
    /// What the clock showed.
    pub clock: Duration,
}

/// The time by a clock that an operator may set, without steps. Nodes request it one after the other, and
/// refuse each other's authentication tags if their times differ too much; and they never accept a tag that is
/// as old as those they have forgotten, so time must not go back for them.
#[derive(Clone, Copy, Debug)]
pub struct ClockServer {
    sent: Duration,
    at: Duration,
}

impl ClockServer {
    /// Begins with what the clock shows, since 1970, or goes on from what was kept; `now` is by a clock
    /// that only goes forward.
    pub fn new(clock: Duration, kept: Option<StoredClock>, now: Duration) -> Self {
        let sent = kept.map_or(clock, |kept| {
            // A clock that was set back meanwhile does not show how long it was.
            kept.sent + clock.saturating_sub(kept.clock)
        });
        Self { sent, at: now }
    }

    /// What time it is.
    pub fn send(&mut self, clock: Duration, now: Duration) -> Duration {
        let passed = now.saturating_sub(self.at);
        let (free, slew) = (self.sent + passed, passed / SLEW);
        // Never a step: nodes request the time one after the other, and reject tags that differ by
        // 30 s.
        self.sent = clock.clamp(free - slew, free + slew);
        self.at = now.max(self.at);
        self.sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn right_clock_unchanged() {
        let mut clock_server = ClockServer::new(at(1_000_000), None, at(50));
        for second in [0, 1, 2, 300, 86_400] {
            let clock = at(1_000_000 + second);
            assert_eq!(clock_server.send(clock, at(50 + second)), clock);
        }
    }

    // promise: S15
    #[test]
    fn set_clock_slewed() {
        for (set, hours) in [(at(1_003_600), 21), (at(996_400), 20)] {
            let mut clock_server = ClockServer::new(at(1_000_000), None, at(0));
            let mut last = at(1_000_000);
            for second in 1..=hours * 3_600 {
                let sent = clock_server.send(set + at(second), at(second));
                let went = sent - last;
                assert!(went >= at(19) / 20 && went <= at(21) / 20, "{went:?}");
                last = sent;
            }
            assert_eq!(last, set + at(hours * 3_600));
        }
    }

    // promise: S15
    #[test]
    fn restart_never_goes_back() {
        let kept = |sent, clock| {
            let (sent, clock) = (at(sent), at(clock));
            Some(StoredClock { sent, clock })
        };
        // The clock was right and is, a minute later.
        let mut clock_server = ClockServer::new(at(1_000_060), kept(1_000_000, 1_000_000), at(0));
        assert_eq!(clock_server.send(at(1_000_060), at(0)), at(1_000_060));
        // It was set back by an hour meanwhile.
        let mut clock_server = ClockServer::new(at(996_400), kept(1_000_000, 1_000_000), at(0));
        assert_eq!(clock_server.send(at(996_400), at(0)), at(1_000_000));
        assert_eq!(clock_server.send(at(996_420), at(20)), at(1_000_019));
        // It had been before.
        let mut clock_server = ClockServer::new(at(996_460), kept(1_000_000, 996_400), at(0));
        assert_eq!(clock_server.send(at(996_460), at(0)), at(1_000_060));
    }
}
