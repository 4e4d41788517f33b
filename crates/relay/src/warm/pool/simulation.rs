// SPDX-License-Identifier: Apache-2.0
//! Pools under many random histories of a peer.
//!
//! A small world surrounds one [`Pool`]: flows that come singly, steadily and in bursts, and a peer
//! that answers, falls silent, refuses, dies with a reset of all hops, or accepts hops and drops
//! them. The world carries out the pool's actions and checks that none is invalid.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::*;
use posthaste_testkit::{Rng, Timeline, simulate};

const SCHEDULES: u64 = 50;
/// When the owner of a dial gives it up.
const DIAL_MAX: Duration = Duration::from_secs(5);
const SECOND: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Peer {
    Answers,
    IsSilent,
    Refuses,
    /// Accepts hops and resets them.
    Drops,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Flow,
    /// An answer to a dial.
    Dialed(u64),
    DialTimeout(u64),
    Pong(u64),
    Reset(u64),
    Change,
}

struct Simulation {
    rng: Rng,
    pool: Pool,
    limits: PoolLimits,
    now: Duration,
    rtt: Duration,
    peer: Peer,
    /// Since when the peer is in its state.
    peer_since: Duration,
    events: Timeline<Duration, Event>,
    dials: u64,
    dialing: BTreeSet<u64>,
    /// With the time of the unanswered ping.
    waiting: BTreeMap<u64, Option<Duration>>,
    /// Flows in a burst, and the time between two.
    burst: usize,
    gap: Duration,
    busy_since: Duration,
    /// The latest flows.
    flows: VecDeque<Duration>,
    came: usize,
    missed: usize,
    /// The last dial to a peer that was down, if none has succeeded since.
    probed_at: Option<Duration>,
}

impl Simulation {
    fn new(mut rng: Rng) -> Self {
        let max = u16::try_from(rng.some_of(256)).unwrap();
        let min = u16::try_from(rng.below(usize::from(max) + 1)).unwrap();
        let now = SECOND * 1000;
        Self {
            limits: PoolLimits { min, max },
            pool: Pool::new(PoolLimits { min, max }, rng.next(), now),
            now,
            rtt: Duration::from_millis(1 << rng.below(9)),
            peer: Peer::Answers,
            peer_since: now,
            events: Timeline::default(),
            dials: 0,
            dialing: BTreeSet::new(),
            waiting: BTreeMap::new(),
            burst: 0,
            gap: SECOND,
            busy_since: now,
            flows: VecDeque::new(),
            came: 0,
            missed: 0,
            probed_at: None,
            rng,
        }
    }

    fn at(&mut self, after: Duration, event: Event) {
        self.events.add(self.now + after, event);
    }

    /// Runs on for `span`.
    fn run(&mut self, span: Duration) {
        let end = self.now + span;
        loop {
            self.obey();
            let event = self.events.first();
            let deadline = self.pool.deadline().map(|at| at.max(self.now));
            let next = event.into_iter().chain(deadline).min();
            let Some(next) = next.filter(|next| *next <= end) else {
                self.now = end;
                return;
            };
            assert!(next > self.now || event == Some(next), "it is in a hurry");
            self.now = next;
            if event == Some(next) {
                let (_, event) = self.events.pop().unwrap();
                self.happen(event);
            }
            self.check();
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Flow => self.flows_come(),
            Event::Dialed(hop) if self.dialing.contains(&hop) => self.dial_is_answered(hop),
            Event::DialTimeout(hop) if self.dialing.remove(&hop) => {
                self.fail(hop, Failure::Silence);
            }
            Event::Pong(hop) if self.waiting.get(&hop).is_some_and(Option::is_some) => {
                self.waiting.insert(hop, None);
                self.pool.on_pong(hop, self.now);
            }
            Event::Reset(hop) if self.waiting.remove(&hop).is_some() => {
                self.pool.on_lost(hop, End::Broken, self.now);
            }
            Event::Change => self.change(),
            _ => {}
        }
    }

    fn flows_come(&mut self) {
        for _ in 0..self.burst {
            self.flows.push_back(self.now);
            self.came += 1;
            self.pool.on_flow(self.now);
            match self.pool.take() {
                Some(hop) => assert!(self.waiting.remove(&hop).is_some(), "none of ours"),
                None => self.missed += 1,
            }
        }
        if self.burst > 0 {
            let spread = self.rng.below(1000);
            let gap = self.gap * u32::try_from(500 + spread).unwrap() / 1000;
            self.at(gap, Event::Flow);
        }
    }

    fn dial_is_answered(&mut self, hop: u64) {
        match self.peer {
            Peer::IsSilent => return,
            Peer::Refuses => self.fail(hop, Failure::Refusal),
            Peer::Answers | Peer::Drops => {
                self.waiting.insert(hop, None);
                self.pool.on_ready(hop, self.rtt, self.now);
                self.probed_at = None;
                assert!(!self.pool.down(), "it is there");
                if self.peer == Peer::Drops {
                    self.at(self.rtt / 4, Event::Reset(hop));
                }
            }
        }
        self.dialing.remove(&hop);
    }

    fn fail(&mut self, hop: u64, failure: Failure) {
        self.pool.on_dial_failed(Some(hop), failure, self.now);
    }

    /// Changes the state of the peer.
    fn change(&mut self) {
        let peers = [
            Peer::Answers,
            Peer::Answers,
            Peer::IsSilent,
            Peer::Refuses,
            Peer::Drops,
        ];
        let next = self.rng.pick(&peers);
        self.become_peer(next);
    }

    fn become_peer(&mut self, peer: Peer) {
        if peer == self.peer {
            return;
        }
        // Its hops are gone: they are reset now, or when they are next written to.
        let lost: Vec<u64> = self.waiting.keys().copied().collect();
        for hop in lost {
            match peer {
                Peer::IsSilent => {}
                _ => self.at(self.rtt / 2, Event::Reset(hop)),
            }
        }
        self.peer = peer;
        self.peer_since = self.now;
    }

    /// Carries out the pool's actions.
    fn obey(&mut self) {
        for orders in 0.. {
            assert!(orders < 10_000, "there is no end to it");
            let Some(order) = self.pool.poll_action(self.now) else {
                return;
            };
            match order {
                Action::Ping(hop) => self.ping(hop),
                Action::Bury(hop) => self.bury(hop),
                Action::Dismiss(hop) => {
                    assert!(self.waiting.remove(&hop).is_some());
                    assert!(self.waiting.len() >= self.pool.target(self.now));
                }
                Action::Dial => self.dial(),
            }
        }
    }

    fn ping(&mut self, hop: u64) {
        let pinged = self.waiting.insert(hop, Some(self.now));
        assert_eq!(pinged, Some(None), "one of ours, and no second ping");
        match self.peer {
            Peer::IsSilent => {}
            Peer::Answers => self.at(self.rtt, Event::Pong(hop)),
            Peer::Refuses | Peer::Drops => self.at(self.rtt, Event::Reset(hop)),
        }
    }

    fn bury(&mut self, hop: u64) {
        let pinged = self.waiting.remove(&hop).flatten();
        let pinged = pinged.expect("it was pinged");
        assert!(self.now >= pinged + PONG_MIN.max(self.rtt * 4));
        let answered = self.peer != Peer::IsSilent && self.peer_since <= pinged;
        assert!(!answered, "it would have answered");
    }

    fn dial(&mut self) {
        let window = (SECOND * 3).max(self.rtt * 30);
        let from = self.now.saturating_sub(window);
        while self.flows.front().is_some_and(|at| *at < from) {
            self.flows.pop_front();
        }
        let bound = DIALS_BASE + 2 * self.flows.len();
        assert!(self.dialing.len() < bound, "a storm");
        if self.pool.down() {
            assert_eq!(self.dialing.len(), 0, "one is enough to see");
            let least = Duration::from_millis(187);
            let former = self.probed_at.replace(self.now);
            assert!(former.is_none_or(|at| self.now >= at + least), "too soon");
        }
        let hop = self.dials;
        self.dials += 1;
        self.dialing.insert(hop);
        self.at(self.rtt * 2, Event::Dialed(hop));
        self.at(DIAL_MAX, Event::DialTimeout(hop));
        self.pool.on_dial(hop, self.now);
    }

    fn check(&mut self) {
        let pool = &self.pool;
        assert_eq!(pool.waiting(), self.waiting.len());
        assert_eq!(pool.dialing(), self.dialing.len());
        let open = self.waiting.len() + self.dialing.len();
        assert!(open <= self.limits.max.into(), "{open} are too many");
        self.check_death_is_known();
    }

    /// A peer in use that has been silent for a while is down.
    fn check_death_is_known(&self) {
        // A hop that is taken while it is pinged takes its ping with it.
        let known_within = DIAL_MIN.max(self.rtt * 4) + BEAT + PONG_MIN + self.gap * 2;
        let from = self.peer_since.max(self.busy_since) + known_within;
        let busy = self.burst > 0 && self.gap <= SECOND / 4;
        // Before the first hop the round trip time is unknown.
        let known = self.pool.rtt().is_some();
        if self.peer == Peer::IsSilent && busy && known && self.now > from {
            let flow_seen = self.flows.back().is_some_and(|at| *at > from);
            assert!(self.pool.down() || !flow_seen, "it has been silent");
        }
    }
}

/// The invariants hold under any history, and a peer that answers is up in the end.
// promise: B13, B15
#[test]
fn random_histories() {
    simulate(SCHEDULES, |rng| {
        let mut simulation = Simulation::new(rng);
        for _ in 0..simulation.rng.below(6) {
            let idle = simulation
                .events
                .events()
                .all(|event| *event != Event::Flow);
            simulation.busy_since = simulation.now;
            simulation.burst = simulation.rng.pick(&[0, 1, 1, 1, 5, 50]);
            simulation.gap = Duration::from_millis(1 << (4 + simulation.rng.below(9)));
            if idle {
                simulation.at(Duration::ZERO, Event::Flow);
            }
            simulation.at(simulation.gap, Event::Change);
            let millis = simulation.rng.below(8_000);
            simulation.run(Duration::from_millis(millis));
        }
        simulation.events.retain(|event| *event != Event::Change);
        simulation.become_peer(Peer::Answers);
        simulation.burst = 0;
        simulation.run(SECOND * 30);
        assert!(!simulation.pool.down(), "it is there again");
        let wanted = simulation.pool.target(simulation.now);
        assert!(simulation.waiting.len() >= wanted, "and so are the hops");
        simulation.run(SECOND * 900);
        assert_eq!(simulation.waiting.len(), usize::from(simulation.limits.min));
    });
}

/// A steady load is served warm, except for the first moments and random peaks.
// promise: B13
#[test]
fn steady_flows_find_hops() {
    let (mut flows, mut missed) = (0, 0);
    simulate(20, |rng| {
        let mut simulation = Simulation::new(rng);
        let limits = PoolLimits { min: 0, max: 1024 };
        simulation.limits = limits;
        simulation.pool = Pool::new(limits, 1, simulation.now);
        simulation.burst = 1;
        simulation.gap = Duration::from_millis(1 << simulation.rng.below(8));
        simulation.at(Duration::ZERO, Event::Flow);
        simulation.run(SECOND * 5);
        let before = (simulation.came, simulation.missed);
        simulation.run(SECOND * 20);
        flows += simulation.came - before.0;
        missed += simulation.missed - before.1;
    });
    assert!(missed * 1000 <= flows, "{missed} of {flows}");
}

/// After a steady load of fifty flows per second, fifty at once are served.
// promise: B13
#[test]
fn burst_after_steady_load() {
    simulate(20, |rng| {
        let mut simulation = Simulation::new(rng);
        let limits = PoolLimits { min: 0, max: 256 };
        simulation.limits = limits;
        simulation.pool = Pool::new(limits, 1, simulation.now);
        simulation.rtt = simulation.rtt.min(SECOND / 8);
        simulation.burst = 1;
        simulation.gap = SECOND / 50;
        simulation.at(Duration::ZERO, Event::Flow);
        simulation.run(SECOND * 20);
        let before = simulation.missed;
        simulation.burst = 50;
        simulation.flows_come();
        assert_eq!(simulation.missed, before, "of fifty");
    });
}

/// The pool reports within two seconds that a peer with a few hops has died silently.
// promise: B15
#[test]
fn silent_death_within_two_seconds() {
    simulate(40, |rng| {
        let mut simulation = Simulation::new(rng);
        let limits = PoolLimits { min: 4, max: 64 };
        simulation.limits = limits;
        simulation.pool = Pool::new(limits, 1, simulation.now);
        simulation.burst = 1;
        simulation.gap = SECOND / (1 << simulation.rng.below(8)) / 4;
        simulation.at(Duration::ZERO, Event::Flow);
        let millis = simulation.rng.below(5_000);
        simulation.run(SECOND * 10 + Duration::from_millis(millis));
        simulation.become_peer(Peer::IsSilent);
        simulation.run(SECOND * 2);
        assert!(simulation.pool.down());
    });
}
