// SPDX-License-Identifier: Apache-2.0
//! Estimates how many warm hops a peer needs, from the flows to it.
//!
//! A hop carries one flow, so each flow uses up one, and replacing it takes time. The pool must
//! hold as many as may be taken in that time, and flows arrive in bursts. The need is the greatest
//! of three:
//!
//! * by rate: the flows expected in the replacement time, three standard deviations more, and all
//!   flows of 1.25 seconds at once, up to 64;
//! * by burst: the flows that arrived at once and a quarter more;
//! * the former need, which decays slowly.
//!
//! So a burst raises the need with its first flow, and the next burst finds hops ready.

use std::time::Duration;

/// Time constant of the flow rate.
const RATE_LIFE: Duration = Duration::from_secs(5);
/// Time in which the need halves without flows.
const HALF_LIFE: Duration = Duration::from_secs(30);
/// Bound on the hops kept for the flows of a second arriving at once.
const AT_ONCE_MAX: f64 = 64.0;
/// Standard deviations of a Poisson process (the root of its mean) that the need leaves room for:
/// one period in a thousand has more flows.
const DEVIATIONS: f64 = 3.0;
/// Factor on an observed burst.
const BURST_ROOM: f64 = 1.25;
/// Time to replace a hop before it is measured.
const REPLACE_UNKNOWN: Duration = Duration::from_millis(250);
/// Lower bound on that time: the other node's process must be scheduled.
const REPLACE_MIN: Duration = Duration::from_millis(5);

/// The demand for hops to one peer.
#[derive(Clone, Debug)]
pub(super) struct Demand {
    /// Recent flows, over [`RATE_LIFE`].
    begun: Fading,
    /// Recent flows, over the time to replace a hop.
    recent: Fading,
    /// From the start of a dial to an idle hop.
    replace: Duration,
    replace_known: bool,
    /// The former need, and its time.
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

    /// A flow needs a hop.
    pub(super) fn on_flow(&mut self, now: Duration) {
        self.begun.add(now, RATE_LIFE);
        self.recent.add(now, self.replace);
        self.held = self.needed(now);
        self.held_at = now;
    }

    /// A dial took `took`.
    pub(super) fn on_replaced(&mut self, took: Duration) {
        let took = took.max(REPLACE_MIN);
        self.replace = if self.replace_known {
            // Smoothed as TCP smooths round trips (RFC 6298 §2.3).
            (self.replace * 7 + took) / 8
        } else {
            took
        };
        self.replace_known = true;
    }

    /// The number of idle hops to keep.
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

/// A decaying count: it falls to `1/e` within its life.
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

    /// Flows at a steady rate for `seconds`; returns the time afterwards.
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
