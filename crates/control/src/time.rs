// SPDX-License-Identifier: Apache-2.0
//! The time that a controller tells its nodes. Pure.

use std::time::Duration;

/// The told time is faster or slower than it passes by one part in so many, until it is that of the
/// controller's clock: an hour takes twenty.
const SLEW: u32 = 20;

/// What was told, and what the clock showed then: survives the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The time that was told, since 1970.
    pub told: Duration,
    /// What the clock showed.
    pub clock: Duration,
}

/// Tells the time by a clock that anybody may set, without leaps. Nodes ask one after the other, and refuse
/// each other's seals if what they were told differs too much; and they never take a seal again that
/// is as old as those they have forgotten, so time must not go back for them.
#[derive(Clone, Copy, Debug)]
pub struct Teller {
    told: Duration,
    at: Duration,
}

impl Teller {
    /// Begins with what the clock shows, since 1970, or goes on from what was kept; `now` is by a clock
    /// that only goes forward.
    pub fn new(clock: Duration, kept: Option<Kept>, now: Duration) -> Self {
        let told = kept.map_or(clock, |kept| {
            // A clock that was set back meanwhile does not say how long it was.
            kept.told + clock.saturating_sub(kept.clock)
        });
        Self { told, at: now }
    }

    /// What time it is.
    pub fn tell(&mut self, clock: Duration, now: Duration) -> Duration {
        let passed = now.saturating_sub(self.at);
        let (free, slew) = (self.told + passed, passed / SLEW);
        self.told = clock.clamp(free - slew, free + slew);
        self.at = now.max(self.at);
        self.told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_clock_that_is_right_is_told_as_it_is() {
        let mut teller = Teller::new(at(1_000_000), None, at(50));
        for second in [0, 1, 2, 300, 86_400] {
            let clock = at(1_000_000 + second);
            assert_eq!(teller.tell(clock, at(50 + second)), clock);
        }
    }

    #[test]
    fn a_clock_that_is_set_is_approached_without_leaps_and_never_back() {
        for (set, hours) in [(at(1_003_600), 21), (at(996_400), 20)] {
            let mut teller = Teller::new(at(1_000_000), None, at(0));
            let mut last = at(1_000_000);
            for second in 1..=hours * 3_600 {
                let told = teller.tell(set + at(second), at(second));
                let went = told - last;
                assert!(went >= at(19) / 20 && went <= at(21) / 20, "{went:?}");
                last = told;
            }
            assert_eq!(last, set + at(hours * 3_600));
        }
    }

    #[test]
    fn what_was_told_before_a_restart_is_not_told_again() {
        let kept = |told, clock| {
            let (told, clock) = (at(told), at(clock));
            Some(Kept { told, clock })
        };
        // The clock was right and is, a minute later.
        let mut teller = Teller::new(at(1_000_060), kept(1_000_000, 1_000_000), at(0));
        assert_eq!(teller.tell(at(1_000_060), at(0)), at(1_000_060));
        // It was set back by an hour meanwhile.
        let mut teller = Teller::new(at(996_400), kept(1_000_000, 1_000_000), at(0));
        assert_eq!(teller.tell(at(996_400), at(0)), at(1_000_000));
        assert_eq!(teller.tell(at(996_420), at(20)), at(1_000_019));
        // It had been before.
        let mut teller = Teller::new(at(996_460), kept(1_000_000, 996_400), at(0));
        assert_eq!(teller.tell(at(996_460), at(0)), at(1_000_060));
    }
}
