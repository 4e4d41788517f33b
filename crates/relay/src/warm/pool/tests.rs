// SPDX-License-Identifier: Apache-2.0
//! Traces: events of a pool, and the actions it returns.

use super::*;

const RTT: Duration = Duration::from_millis(40);

/// A pool, its time, and hops numbered in the order of their dials.
struct Trace {
    pool: Pool,
    now: Duration,
    dials: u64,
}

impl Trace {
    fn new(min: u16, max: u16) -> Self {
        let now = Duration::from_secs(100);
        Self {
            pool: Pool::new(PoolLimits { min, max }, 1, now),
            now,
            dials: 0,
        }
    }

    /// A pool whose `count` hops have just been dialed.
    fn ready(count: u16, max: u16) -> Self {
        let mut trace = Self::new(count, max);
        let hops = trace.orders().len() as u64;
        assert_eq!(hops, u64::from(count), "dialed");
        trace.later(2 * 40);
        for hop in 0..hops {
            trace.pool.on_ready(hop, RTT, trace.now);
        }
        trace
    }

    fn later(&mut self, millis: u64) {
        self.now += Duration::from_millis(millis);
    }

    fn orders(&mut self) -> Vec<Action> {
        let mut orders = Vec::new();
        while let Some(order) = self.pool.poll_action(self.now) {
            if order == Action::Dial {
                self.pool.on_dial(self.dials, self.now);
                self.dials += 1;
            }
            orders.push(order);
            assert!(orders.len() < 10_000, "there is no end to it");
        }
        orders
    }

    /// A flow arrives and takes a hop, if there is one.
    fn flow(&mut self) -> Option<u64> {
        self.pool.on_flow(self.now);
        self.pool.take()
    }

    fn dial_fails(&mut self, failure: Failure) {
        let hop = self.dials - 1;
        self.pool.on_dial_failed(Some(hop), failure, self.now);
    }
}

#[test]
fn minimum_dialed_and_refilled() {
    let mut trace = Trace::new(2, 8);
    assert_eq!(trace.orders(), [Action::Dial; 2]);
    assert_eq!(trace.flow(), None, "nothing is there yet");
    trace.later(80);
    trace.pool.on_ready(0, RTT, trace.now);
    trace.pool.on_ready(1, RTT, trace.now);
    assert_eq!(trace.orders(), []);
    assert_eq!(trace.flow(), Some(1));
    assert_eq!(trace.orders(), [Action::Dial]);
}

#[test]
fn no_limits_no_dials() {
    let mut trace = Trace::new(0, 0);
    assert_eq!(trace.flow(), None);
    assert_eq!(trace.orders(), []);
    assert_eq!(trace.pool.deadline(), None);
}

#[test]
fn pool_grows_and_empties() {
    let mut trace = Trace::new(0, 8);
    assert_eq!(trace.orders(), []);
    assert_eq!(trace.flow(), None);
    assert_eq!(trace.orders(), [Action::Dial]);
    trace.later(80);
    trace.pool.on_ready(0, RTT, trace.now);
    trace.later(100_000);
    trace.pool.poll_action(trace.now);
    trace.pool.on_pong(0, trace.now);
    assert_eq!(trace.orders(), [], "too many, but not for long");
    trace.later(10_000);
    assert_eq!(trace.orders(), [Action::Dismiss(0)]);
    assert_eq!(trace.pool.deadline(), None);
}

#[test]
fn resting_hop_pinged() {
    let mut trace = Trace::ready(1, 8);
    assert_eq!(trace.orders(), []);
    let deadline = trace.pool.deadline();
    assert_eq!(deadline, Some(trace.now + REST_MAX));
    trace.later(15_000);
    assert_eq!(trace.orders(), [Action::Ping(0)]);
    assert_eq!(trace.orders(), [], "no second ping");
    trace.later(40);
    trace.pool.on_pong(0, trace.now);
    assert_eq!(trace.orders(), []);
    assert!(!trace.pool.down());
}

#[test]
fn pinged_hop_still_usable() {
    let mut trace = Trace::ready(1, 8);
    trace.later(15_000);
    assert_eq!(trace.orders(), [Action::Ping(0)]);
    assert_eq!(trace.flow(), Some(0));
    trace.later(5_000);
    assert!(!trace.orders().contains(&Action::Bury(0)), "not ours now");
    assert!(!trace.pool.down());
}

// promise: B14
#[test]
fn dead_hop_checks_others() {
    let mut trace = Trace::ready(3, 8);
    trace.later(15_000);
    let pinged = [Action::Ping(0), Action::Ping(1), Action::Ping(2)];
    assert_eq!(trace.orders(), pinged);
    trace.later(40);
    trace.pool.on_pong(2, trace.now);
    trace.later(960);
    let orders = trace.orders();
    let expected = [Action::Bury(0), Action::Bury(1), Action::Ping(2)];
    assert_eq!(orders[..3], expected);
    assert!(!trace.pool.down(), "it has answered since");
    assert_eq!(trace.flow(), None, "not over a suspect");
    trace.pool.on_pong(2, trace.now);
    assert_eq!(trace.flow(), Some(2));
}

#[test]
fn busy_peer_pinged_often() {
    let mut trace = Trace::ready(2, 2);
    trace.flow();
    trace.orders();
    trace.later(500);
    assert_eq!(trace.orders(), [Action::Ping(0)]);
    trace.later(1000);
    let orders = trace.orders();
    assert_eq!(orders[0], Action::Bury(0));
    assert!(trace.pool.down());
}

// promise: B15
#[test]
fn refused_dials_back_off() {
    let mut trace = Trace::new(4, 8);
    assert_eq!(trace.orders(), [Action::Dial; 4]);
    for hop in 0..4 {
        let failure = Failure::Refusal;
        trace.pool.on_dial_failed(Some(hop), failure, trace.now);
    }
    assert!(trace.pool.down());
    let mut waits = Vec::new();
    for _ in 0..8 {
        assert_eq!(trace.orders(), [], "not yet");
        let next = trace.pool.deadline().unwrap();
        waits.push((next - trace.now).as_millis());
        trace.now = next;
        assert_eq!(trace.orders(), [Action::Dial], "one is enough to see");
        trace.dial_fails(Failure::Refusal);
    }
    assert!(waits.is_sorted_by(|a, b| *a < *b + b / 3), "{waits:?}");
    assert!((3750..=5000).contains(waits.last().unwrap()), "{waits:?}");
    trace.now = trace.pool.deadline().unwrap();
    assert_eq!(trace.orders(), [Action::Dial]);
    trace.pool.on_ready(trace.dials - 1, RTT, trace.now);
    assert!(!trace.pool.down());
    assert_eq!(trace.orders(), [Action::Dial; 3], "and now all of them");
}

#[test]
fn unanswered_dial_means_down() {
    let mut trace = Trace::ready(1, 8);
    assert_eq!(trace.flow(), Some(0));
    assert!(trace.orders().contains(&Action::Dial));
    trace.now = trace.pool.deadline().unwrap();
    assert_eq!(trace.orders(), []);
    assert!(trace.pool.down());
    trace.pool.on_ready(1, RTT, trace.now);
    assert!(!trace.pool.down(), "only late");
}

#[test]
fn local_failure_no_blame() {
    let mut trace = Trace::new(1, 8);
    assert_eq!(trace.pool.poll_action(trace.now), Some(Action::Dial));
    trace.pool.on_dial_failed(None, Failure::Means, trace.now);
    assert!(!trace.pool.down());
    assert_eq!(trace.orders(), [], "but it is no use to go on at once");
}

#[test]
fn dropped_hops_are_failures() {
    let mut trace = Trace::new(1, 8);
    let mut dials = 0;
    let end = trace.now + Duration::from_secs(60);
    while trace.now < end {
        for order in trace.orders() {
            assert_eq!(order, Action::Dial);
            dials += 1;
            trace.later(80);
            trace.pool.on_ready(trace.dials - 1, RTT, trace.now);
            trace.pool.on_lost(trace.dials - 1, End::Broken, trace.now);
        }
        trace.now = trace.pool.deadline().unwrap().max(trace.now);
    }
    assert!((10..25).contains(&dials), "{dials}");
}

#[test]
fn closed_and_broken_hops() {
    let mut trace = Trace::ready(3, 3);
    trace.later(2000);
    trace.pool.on_lost(0, End::Closed, trace.now);
    assert_eq!(trace.orders(), [Action::Dial]);
    trace.pool.on_lost(1, End::Broken, trace.now);
    assert_eq!(trace.orders(), [Action::Ping(2), Action::Dial]);
}

#[test]
fn full_pool_probes_recovery() {
    let mut trace = Trace::ready(1, 2);
    trace.flow();
    trace.flow();
    trace.orders();
    trace.pool.on_ready(1, RTT, trace.now);
    trace.dial_fails(Failure::Refusal);
    assert!(trace.pool.down());
    assert_eq!(trace.orders(), [Action::Ping(1)]);
    trace.pool.on_pong(1, trace.now);
    assert!(trace.pool.down(), "it lives, and refuses");
    trace.later(30_000);
    assert!(trace.orders().contains(&Action::Dial), "there is room");
}
