// SPDX-License-Identifier: Apache-2.0
//! How many warm hops a peer needs, from the flows that asked for it.
//!
//! A hop carries one flow, so each flow costs one and it takes a while to
//! replace it. Waiting must be as many as flows may come in that while, and
//! flows do not come one after the other. The need is the greatest of three:
//!
//! * flows come at a rate: those of the while, what chance adds to them, and
//!   all of a second and a quarter at once, up to 64;
//! * flows came at once: those and a quarter more;
//! * what was needed before, which fades slowly.
//!
//! So a burst raises the need with its first flow, and what one burst has
//! taught is there for the next.

use std::time::Duration;

/// Over which the rate of flows is smoothed.
const RATE_LIFE: Duration = Duration::from_secs(5);
/// In which the need falls to a half when nothing is asked for.
const HALF_LIFE: Duration = Duration::from_secs(30);
/// No more are kept for what comes in a second coming at once.
const AT_ONCE_MAX: f64 = 64.0;
/// Standard deviations of a random stream of flows (the root of its mean) that
/// the need leaves room for: one while in a thousand has more.
const DEVIATIONS: f64 = 3.0;
/// What is known to come at once is made so much more.
const BURST_ROOM: f64 = 1.25;
/// How long it takes to replace a hop as long as nobody knows.
const REPLACE_UNKNOWN: Duration = Duration::from_millis(250);
/// Shorter than this is not to be relied on: the other end has to be woken.
const REPLACE_MIN: Duration = Duration::from_millis(5);

/// What was asked of one peer.
#[derive(Clone, Debug)]
pub(super) struct Demand {
    /// Flows of late, over [`RATE_LIFE`].
    begun: Fading,
    /// Flows of late, over the time to replace a hop.
    recent: Fading,
    /// From the start of a dial to a hop that waits.
    replace: Duration,
    replace_known: bool,
    /// What was needed, and when.
    held: f64,
    held_at: Duration,
}

impl Demand {
    pub(super) fn new(now: Duration) -> Self {
        Self {
            begun: Fading::new(now),
            recent: Fading::new(now),
            replace: REPLACE_UNKNOWN,
            replace_known: false,
            held: 0.0,
            held_at: now,
        }
    }

    /// A flow asks for a hop.
    pub(super) fn on_flow(&mut self, now: Duration) {
        self.begun.add(now, RATE_LIFE);
        self.recent.add(now, self.replace);
        self.held = self.needed(now);
        self.held_at = now;
    }

    /// A dial took so long.
    pub(super) fn on_replaced(&mut self, took: Duration) {
        let took = took.max(REPLACE_MIN);
        self.replace = if self.replace_known {
            (self.replace * 7 + took) / 8
        } else {
            took
        };
        self.replace_known = true;
    }

    /// How many hops are to wait.
    pub(super) fn wanted(&self, now: Duration) -> usize {
        rounded(self.needed(now))
    }

    /// Flows that began within about the time of a dial.
    pub(super) fn recent(&self, now: Duration) -> f64 {
        self.recent.value(now, self.replace)
    }

    fn needed(&self, now: Duration) -> f64 {
        let rate = self.begun.value(now, RATE_LIFE) / RATE_LIFE.as_secs_f64();
        let meanwhile = rate * self.replace.as_secs_f64();
        let at_once = (rate * BURST_ROOM).min(AT_ONCE_MAX);
        let steady = meanwhile + DEVIATIONS * meanwhile.sqrt() + at_once;
        let burst = self.recent(now) * BURST_ROOM;
        let age = now.saturating_sub(self.held_at);
        let former = self.held * (-age.as_secs_f64() / HALF_LIFE.as_secs_f64()).exp2();
        steady.max(burst).max(former)
    }
}

/// A count that forgets: it falls to `1/e` within its life.
#[derive(Clone, Debug)]
struct Fading {
    count: f64,
    at: Duration,
}

impl Fading {
    fn new(now: Duration) -> Self {
        Self {
            count: 0.0,
            at: now,
        }
    }

    fn value(&self, now: Duration, life: Duration) -> f64 {
        let age = now.saturating_sub(self.at);
        self.count * (-age.as_secs_f64() / life.as_secs_f64()).exp()
    }

    fn add(&mut self, now: Duration, life: Duration) {
        self.count = self.value(now, life) + 1.0;
        self.at = now;
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "never negative, and a float that is too large becomes the largest number"
)]
pub(super) fn rounded(number: f64) -> usize {
    number.round() as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Flows at a steady rate for a while; the time afterwards.
    fn steady(demand: &mut Demand, from: Duration, per_second: u32, seconds: u32) -> Duration {
        for number in 0..per_second * seconds {
            demand.on_flow(from + SECOND * number / per_second);
        }
        from + SECOND * seconds
    }

    fn with_replace(millis: u64) -> Demand {
        let mut demand = Demand::new(Duration::ZERO);
        demand.on_replaced(Duration::from_millis(millis));
        demand
    }

    #[test]
    fn no_demand_no_hops() {
        assert_eq!(Demand::new(SECOND).wanted(SECOND * 100), 0);
    }

    #[test]
    fn burst_rises_and_decays() {
        let mut demand = with_replace(200);
        for _ in 0..50 {
            demand.on_flow(SECOND);
        }
        assert_eq!(demand.wanted(SECOND), 63);
        let later = demand.wanted(SECOND * 31);
        assert!((30..=32).contains(&later), "half of it: {later}");
        assert_eq!(demand.wanted(SECOND * 600), 0);
    }

    #[test]
    fn steady_load_covers_burst() {
        let mut demand = with_replace(100);
        let now = steady(&mut demand, SECOND, 50, 20);
        let wanted = demand.wanted(now);
        assert!((63..=85).contains(&wanted), "{wanted}");
    }

    #[test]
    fn a_long_way_needs_more() {
        let [near, far] = [10, 1000].map(|millis| {
            let mut demand = with_replace(millis);
            let now = steady(&mut demand, SECOND, 200, 20);
            demand.wanted(now)
        });
        assert!((64..=80).contains(&near), "{near}");
        assert!((264..=350).contains(&far), "{far}");
    }

    #[test]
    fn one_flow_one_hop() {
        let mut demand = with_replace(100);
        demand.on_flow(SECOND);
        assert_eq!(demand.wanted(SECOND), 1);
        assert_eq!(demand.wanted(SECOND * 20), 1);
        assert_eq!(demand.wanted(SECOND * 60), 0);
    }

    #[test]
    fn clock_steps_are_harmless() {
        let mut demand = with_replace(0);
        for _ in 0..100_000 {
            demand.on_flow(SECOND);
        }
        demand.on_flow(Duration::ZERO);
        assert!(demand.wanted(Duration::ZERO) >= 100_000);
    }
}
