// SPDX-License-Identifier: Apache-2.0
//! When to plan. Pure.

use std::time::Duration;

/// Between plans, if there is news.
pub const TICK: Duration = Duration::from_secs(10);

/// From the death of a link or a node to the next plan: others that die with it are heard of by then.
pub const AFTER_DEATH: Duration = Duration::from_millis(100);

/// How long nodes that a controller knew before it started have to tell their links again.
pub const SETTLE: Duration = Duration::from_secs(30);

/// Between plans without news: chains that left give their numbers back.
pub const IDLE: Duration = Duration::from_secs(60);

/// When the next plan is due.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// When the last plan was made, or the controller started.
    last: Duration,
    /// How long the first plan waits for nodes; nothing when it was made.
    first: Option<Duration>,
    news: bool,
    death: Option<Duration>,
}

impl Timing {
    /// From the start of a controller. There may be a plan from before.
    pub fn new(now: Duration, has_plan: bool) -> Self {
        Self {
            last: now,
            first: Some(if has_plan { SETTLE } else { TICK }),
            news: false,
            death: None,
        }
    }

    /// Something is not as it was planned with.
    pub fn news(&mut self) {
        self.news = true;
    }

    /// A link or a node is not there any more.
    pub fn death(&mut self, now: Duration) {
        self.news = true;
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
        let idle = self.last + IDLE;
        let tick = self.last + TICK;
        let death = self.death.map_or(idle, |death| death + AFTER_DEATH);
        if self.news { tick.min(death) } else { idle }
    }

    /// A plan with all that was said until `now` is being made.
    pub fn planned(&mut self, now: Duration) {
        *self = Self {
            last: now,
            first: None,
            news: false,
            death: None,
        };
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
        timing.news();
        assert_eq!(timing.due(true), at(11_000));
        timing.death(at(3000));
        timing.death(at(3050));
        assert_eq!(timing.due(false), at(3100));
        timing.planned(at(3100));
        assert_eq!(timing.due(false), at(63_100));
        timing.death(at(13_099));
        assert_eq!(timing.due(false), at(13_100));
    }
}
