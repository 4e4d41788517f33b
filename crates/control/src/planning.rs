// SPDX-License-Identifier: Apache-2.0
//! When to plan, and when to fix the plan. Pure.

use std::time::Duration;

/// Between plans at the least, if there is news and plans are quickly made.
pub const TICK: Duration = Duration::from_secs(1);

/// Between plans at the most, if there is news.
pub const TICK_MAX: Duration = Duration::from_secs(10);

/// News wait for so many times as long as the last plan took to make, within those bounds.
const TICK_FACTOR: u32 = 20;

/// From the first report to the next plan or repair: those that belong to it have arrived by then.
pub const GATHER: Duration = Duration::from_millis(100);

/// Between repairs at the least, if links became worse and none died: some always do.
pub const WORSE_TICK: Duration = Duration::from_secs(1);

/// How long nodes have to report their links before the first plan of all.
pub const FIRST: Duration = Duration::from_secs(10);

/// How long nodes that a controller had before it started have to report their links again.
pub const SETTLE: Duration = Duration::from_secs(30);

/// Between plans without news: chains that left give their numbers back.
pub const IDLE: Duration = Duration::from_secs(60);

/// When the next plan is due, and the next repair.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// When the last plan was begun, or the controller started.
    last: Duration,
    /// How long the first plan waits for nodes; nothing when it was begun.
    first: Option<Duration>,
    /// How long the last plan took, until it could be sent, and when that was.
    took: Duration,
    made: Duration,
    news: Option<Duration>,
    worse: Option<Duration>,
    death: Option<Duration>,
    /// When the last repair was begun, and when it could be sent.
    repair: Duration,
    repaired: Duration,
}

impl Timing {
    /// From the start of a controller. There may be a plan from before.
    pub fn new(now: Duration, has_plan: bool) -> Self {
        Self {
            last: now,
            first: Some(if has_plan { SETTLE } else { FIRST }),
            took: Duration::ZERO,
            made: now,
            news: None,
            worse: None,
            death: None,
            repair: now,
            repaired: now,
        }
    }

    /// Something is not as it was planned with.
    pub fn news(&mut self, now: Duration) {
        // The first news counts, so that a stream of them does not delay the plan.
        self.news.get_or_insert(now);
    }

    /// A link that chains use is much worse than it was planned with.
    pub fn worse(&mut self, now: Duration) {
        self.news(now);
        self.worse.get_or_insert(now);
    }

    /// A link or a node is not there any more.
    pub fn death(&mut self, now: Duration) {
        self.news(now);
        self.death.get_or_insert(now);
    }

    /// When to plan. The first time waits until all nodes have reported their links, or for a while. After that
    /// planning takes half of a processor at the most.
    pub fn due(&self, is_complete: impl FnOnce() -> bool) -> Duration {
        if let Some(wait) = self.first {
            return if is_complete() {
                self.last
            } else {
                self.last + wait
            };
        }
        let tick = (self.took * TICK_FACTOR).clamp(TICK, TICK_MAX);
        let idle = self.last + IDLE;
        let news = self.news.map_or(idle, |since| since + GATHER);
        let news = news.max(self.last + tick).min(idle);
        // As long idle as it was busy: half of a processor.
        news.max(self.made + self.took)
    }

    /// When to repair the plan, if something is to be repaired. That takes half of a processor at the most,
    /// however often links die, and never waits for planning.
    pub fn repair_due(&self) -> Option<Duration> {
        let death = self.death.map(|since| since + GATHER);
        let worse = self.worse.map(|since| since + GATHER);
        let worse = worse.map(|due| due.max(self.repair + WORSE_TICK));
        // A death does not wait for the tick: its flows have no chain until the repair.
        let due = death.into_iter().chain(worse).min()?;
        let took = self.repaired.saturating_sub(self.repair);
        Some(due.max(self.repaired + took))
    }

    /// A plan with all reports until `now` is being made. What the first is made for needs no repair.
    pub fn planned(&mut self, now: Duration) {
        if self.first.take().is_some() {
            (self.worse, self.death) = (None, None);
        }
        self.last = now;
        self.news = None;
    }

    /// When the last plan was begun.
    pub fn planned_at(&self) -> Duration {
        self.last
    }

    /// The plan that was being made is there. Returns how long it took.
    pub fn made(&mut self, now: Duration) -> Duration {
        self.took = now.saturating_sub(self.last);
        self.made = now;
        self.took
    }

    /// The plan is being repaired by all reports until `now`.
    pub fn repairing(&mut self, now: Duration) {
        (self.worse, self.death) = (None, None);
        self.repair = now;
    }

    /// The repair that was begun last is there.
    pub fn repaired(&mut self, now: Duration) {
        self.repaired = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn first_plan_waits() {
        let timing = Timing::new(at(500), false);
        assert_eq!(
            (timing.due(|| true), timing.due(|| false)),
            (at(500), at(10_500))
        );
        let mut timing = Timing::new(at(500), true);
        timing.death(at(600));
        assert_eq!(
            (timing.due(|| true), timing.due(|| false)),
            (at(500), at(30_500))
        );
        timing.planned(at(700));
        assert_eq!(timing.repair_due(), None);
    }

    // promise: V10
    #[test]
    fn changes_wait_deaths_repair() {
        let mut timing = Timing::new(at(0), false);
        timing.planned(at(1000));
        timing.made(at(1000));
        assert_eq!(
            (timing.due(|| true), timing.repair_due()),
            (at(61_000), None)
        );
        timing.news(at(1100));
        assert_eq!((timing.due(|| true), timing.repair_due()), (at(2000), None));
        timing.death(at(1300));
        timing.death(at(1350));
        assert_eq!(timing.repair_due(), Some(at(1400)));
        timing.repairing(at(1400));
        timing.repaired(at(1420));
        assert_eq!(
            (timing.due(|| false), timing.repair_due()),
            (at(2000), None)
        );
        timing.planned(at(2000));
        timing.made(at(2000));
        timing.death(at(9000));
        assert_eq!(timing.due(|| false), at(9100), "a plan follows");
    }

    // promise: V10
    #[test]
    fn slow_planning_spaced_out() {
        let mut timing = Timing::new(at(0), false);
        for (took, tick) in [(10, 1000), (200, 4000), (5000, 10_000), (12_000, 24_000)] {
            timing.planned(at(1000));
            timing.death(at(1500));
            assert_eq!(timing.repair_due(), Some(at(1600)), "while it plans");
            timing.repairing(at(1600));
            timing.repaired(at(1600));
            timing.made(at(1000 + took));
            timing.news(at(1000));
            assert_eq!(timing.due(|| true), at(1000 + tick), "{took}");
        }
        timing.death(at(13_500));
        assert_eq!(timing.repair_due(), Some(at(13_600)));
    }

    // promise: V10
    #[test]
    fn worsening_repaired_each_second() {
        let mut timing = Timing::new(at(0), false);
        timing.planned(at(1000));
        timing.worse(at(5000));
        timing.worse(at(5050));
        assert_eq!(timing.repair_due(), Some(at(5100)));
        timing.repairing(at(5100));
        timing.repaired(at(5400));
        timing.worse(at(5450));
        assert_eq!(timing.repair_due(), Some(at(6100)));
        timing.death(at(5500));
        assert_eq!(timing.repair_due(), Some(at(5700)));
    }
}
