// SPDX-License-Identifier: Apache-2.0
//! When to plan. Pure.

use std::time::Duration;

/// Between plans at the least, if there is news and plans are quickly made.
pub const TICK: Duration = Duration::from_secs(1);

/// Between plans at the most, if there is news.
pub const TICK_MAX: Duration = Duration::from_secs(10);

/// News wait for so many times as long as the last plan took to make, within those bounds.
const TICK_FACTOR: u32 = 20;

/// From whatever is heard to the next plan: what goes with it is heard of by then.
pub const GATHER: Duration = Duration::from_millis(100);

/// Links that become worse wait for so many times as long as the last plan took, too: some always do.
const WORSE_FACTOR: u32 = 4;

/// How long nodes have to tell their links before the first plan of all.
pub const FIRST: Duration = Duration::from_secs(10);

/// How long nodes that a controller knew before it started have to tell their links again.
pub const SETTLE: Duration = Duration::from_secs(30);

/// Between plans without news: chains that left give their numbers back.
pub const IDLE: Duration = Duration::from_secs(60);

/// When the next plan is due.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// When the last plan was begun, or the controller started.
    last: Duration,
    /// How long the first plan waits for nodes; nothing when it was made.
    first: Option<Duration>,
    /// How long the last plan took, until nodes could be told.
    took: Duration,
    news: Option<Duration>,
    worse: Option<Duration>,
    death: Option<Duration>,
}

impl Timing {
    /// From the start of a controller. There may be a plan from before.
    pub fn new(now: Duration, has_plan: bool) -> Self {
        Self {
            last: now,
            first: Some(if has_plan { SETTLE } else { FIRST }),
            took: Duration::ZERO,
            news: None,
            worse: None,
            death: None,
        }
    }

    /// Something is not as it was planned with.
    pub fn news(&mut self, now: Duration) {
        self.news.get_or_insert(now);
    }

    /// A link that chains use is much worse than it was planned with.
    pub fn worse(&mut self, now: Duration) {
        self.worse.get_or_insert(now);
    }

    /// A link or a node is not there any more.
    pub fn death(&mut self, now: Duration) {
        self.death.get_or_insert(now);
    }

    /// When to plan. The first time waits until all nodes have told their links, or for a while.
    pub fn due(&self, is_complete: bool) -> Duration {
        if let Some(wait) = self.first {
            return if is_complete {
                self.last
            } else {
                self.last + wait
            };
        }
        let after = |since: Option<Duration>, factor: u32| {
            let pause = (self.took * factor).clamp(TICK, TICK_MAX);
            Some((since? + GATHER).max(self.last + pause))
        };
        let dues = [
            after(self.news, TICK_FACTOR),
            after(self.worse, WORSE_FACTOR),
            self.death.map(|since| since + GATHER),
        ];
        let idle = self.last + IDLE;
        dues.into_iter().flatten().fold(idle, Duration::min)
    }

    /// A plan with all that was said until `now` is being made.
    pub fn planned(&mut self, now: Duration) {
        *self = Self {
            last: now,
            first: None,
            took: self.took,
            news: None,
            worse: None,
            death: None,
        };
    }

    /// The plan that was being made is there.
    pub fn made(&mut self, now: Duration) {
        self.took = now.saturating_sub(self.last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn the_first_plan_waits_for_nodes() {
        let timing = Timing::new(at(500), false);
        assert_eq!((timing.due(true), timing.due(false)), (at(500), at(10_500)));
        let mut timing = Timing::new(at(500), true);
        timing.death(at(600));
        assert_eq!((timing.due(true), timing.due(false)), (at(500), at(30_500)));
    }

    #[test]
    fn news_wait_for_the_tick_and_deaths_do_not() {
        let mut timing = Timing::new(at(0), false);
        timing.planned(at(1000));
        assert_eq!(timing.due(true), at(61_000));
        timing.news(at(1100));
        assert_eq!(timing.due(true), at(2000));
        timing.death(at(1300));
        timing.death(at(1350));
        assert_eq!(timing.due(false), at(1400));
        timing.planned(at(1400));
        timing.news(at(9000));
        assert_eq!(timing.due(false), at(9100));
        timing.planned(at(1400));
        assert_eq!(timing.due(false), at(61_400));
        timing.death(at(13_099));
        assert_eq!(timing.due(false), at(13_199));
    }

    #[test]
    fn who_plans_for_long_plans_less_often() {
        let mut timing = Timing::new(at(0), false);
        for (took, tick) in [(10, 1000), (200, 4000), (5000, 10_000)] {
            timing.planned(at(1000));
            timing.made(at(1000 + took));
            timing.planned(at(20_000));
            timing.news(at(20_000));
            assert_eq!(timing.due(true), at(20_000 + tick), "{took}");
        }
        timing.death(at(20_500));
        assert_eq!(timing.due(true), at(20_600), "of whatever size");
    }

    #[test]
    fn what_is_worse_waits_for_a_while_at_the_most() {
        let mut timing = Timing::new(at(0), false);
        timing.planned(at(1000));
        timing.made(at(1500));
        timing.worse(at(1600));
        assert_eq!(timing.due(true), at(3000));
        timing.planned(at(3000));
        timing.worse(at(9000));
        timing.worse(at(9050));
        assert_eq!(timing.due(true), at(9100));
    }
}
