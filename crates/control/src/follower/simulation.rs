// SPDX-License-Identifier: Apache-2.0
//! A follower through random orders of events: streams that break, messages that are lost with them,
//! repeated or old plans, controllers and nodes that start again, hosts that start again.

use std::collections::VecDeque;

use posthaste_testkit::{Rng, seeds};

use super::fake::{ME, difference, hello, whole};
use super::*;
use crate::message::RouteUpdate;

const TTL_S: u32 = 60;
const KEEPALIVE_S: u32 = 5;
const SEEDS: u64 = 100;
const STEPS: usize = 600;
const BOOTS: u64 = 1 << 40;

/// The controller, as far as one node sees it.
#[derive(Default)]
struct Controller {
    plans: Vec<RouteUpdate>,
    /// Which of them the node has reported to hold, on this stream.
    holds: Option<PlanVersion>,
    welcomed: bool,
    /// On their way to the node.
    sent: VecDeque<ToNode>,
}

impl Controller {
    fn newest(&self) -> &RouteUpdate {
        self.plans.last().unwrap()
    }

    fn replan(&mut self, rng: &mut Rng) {
        let last = self.newest().plan_version;
        let version = last.version + 1 + rng.below(3);
        self.plans.push(whole(PlanVersion { version, ..last }));
        self.offer();
    }

    /// Begins with an empty store: the epoch grows, versions begin anew.
    fn lose_store(&mut self) {
        let epoch = self.newest().plan_version.epoch + 1;
        self.plans = vec![whole(PlanVersion { epoch, version: 1 })];
    }

    fn offer(&mut self) {
        if !self.welcomed {
            return;
        }
        let newest = self.newest().clone();
        let base = self
            .plans
            .iter()
            .find(|plan| Some(plan.plan_version) == self.holds);
        self.sent.push_back(match base {
            Some(base) if base.plan_version == newest.plan_version => {
                ToNode::LeaseRenewed(newest.plan_version)
            }
            Some(base) => ToNode::RouteUpdate(difference(base, &newest)),
            None => ToNode::RouteUpdate(newest),
        });
    }

    fn receive(&mut self, message: ToController) {
        match message {
            ToController::Hello(hello) => {
                self.holds = hello.holds;
                self.welcomed = true;
                self.sent.push_back(ToNode::Welcome(Welcome {
                    version: VERSION,
                    ttl_s: TTL_S,
                    keepalive_s: KEEPALIVE_S,
                }));
                self.offer();
            }
            ToController::Holds(plan_version) if self.holds != Some(plan_version) => {
                self.holds = Some(plan_version);
                if plan_version != self.newest().plan_version {
                    self.offer();
                }
            }
            ToController::Nack { .. } => {
                self.holds = None;
                self.offer();
            }
            _ => {}
        }
    }

    fn hang_up(&mut self) {
        (self.welcomed, self.holds) = (false, None);
        self.sent.clear();
    }
}

struct Simulation {
    rng: Rng,
    /// True time, and what the host's clock is ahead of it: another host start sets it back.
    now: Duration,
    booted: Duration,
    boot: u8,
    follower: Follower,
    controller: Controller,
    reachable: bool,
    open: bool,
    disk: Option<Vec<u8>>,
    /// The last lease renewal of each plan that the node received.
    stood: BTreeMap<PlanVersion, Duration>,
    highest: Option<PlanVersion>,
    dials: u32,
}

impl Simulation {
    fn new(seed: u64) -> Self {
        let first = whole(PlanVersion {
            epoch: 1,
            version: 1,
        });
        Self {
            rng: Rng::new(seed),
            now: Duration::ZERO,
            booted: Duration::ZERO,
            boot: 0,
            follower: Follower::new(hello(), None, seed, Duration::ZERO),
            controller: Controller {
                plans: vec![first],
                ..Controller::default()
            },
            reachable: true,
            open: false,
            disk: None,
            stood: BTreeMap::new(),
            highest: None,
            dials: 0,
        }
    }

    /// The host's clock.
    fn clock(&self) -> Duration {
        self.now - self.booted
    }

    fn step(&mut self) {
        match self.rng.below(100) {
            0..=2 => self.reachable = !self.reachable,
            3..=4 => self.cut(),
            5..=6 => self.restart_node(false),
            7 => self.restart_node(true),
            8 => {
                self.cut();
                self.controller.lose_store();
            }
            9..=24 => self.controller.replan(&mut self.rng),
            25..=29 => self.controller.offer(),
            30..=32 if self.controller.welcomed => {
                // Some plan of before, whole or as changes to another.
                let plans = &self.controller.plans;
                let pick = |at: u64| plans[usize::try_from(at).unwrap() % plans.len()].clone();
                let (one, other) = (pick(self.rng.below(BOOTS)), pick(self.rng.below(BOOTS)));
                let mut update = difference(&one, &other);
                if self.rng.below(2) == 0 {
                    update = other;
                }
                self.controller.sent.push_back(ToNode::RouteUpdate(update));
            }
            _ => self.now += Duration::from_millis(self.rng.below(4000)),
        }
        self.settle();
    }

    fn cut(&mut self) {
        self.controller.hang_up();
        if std::mem::take(&mut self.open) {
            self.follower.on_closed(self.clock());
        }
    }

    /// The node starts again; with `host`, the host does, and its clock.
    fn restart_node(&mut self, host: bool) {
        self.controller.hang_up();
        self.open = false;
        self.now += Duration::from_millis(self.rng.below(20_000));
        if host {
            (self.booted, self.boot) = (self.now, self.boot.wrapping_add(1));
        }
        let boot = [self.boot; 16];
        let saved = self.disk.as_ref().map(|bytes| {
            let saved = Saved::from_bytes(bytes).unwrap();
            let stood = saved.stood(boot);
            (saved, stood)
        });
        // What was not saved yet may be forgotten, and offered again.
        self.highest = saved
            .as_ref()
            .and_then(|(saved, _)| saved.update.as_ref().map(|update| update.plan_version));
        self.follower = Follower::new(hello(), saved, self.rng.below(BOOTS), self.clock());
    }

    fn settle(&mut self) {
        for _ in 0..100 {
            let now = self.clock();
            let Some(order) = self.follower.poll_action(now) else {
                match self.controller.sent.pop_front() {
                    Some(message) if self.open => self.deliver(message),
                    _ => return self.check(),
                }
                continue;
            };
            match order {
                Action::Dial if self.reachable => {
                    self.dials += 1;
                    self.open = true;
                    self.follower.on_open(now);
                }
                Action::Dial => {
                    self.dials += 1;
                    self.follower.on_closed(now);
                }
                Action::Send(message) => {
                    assert!(self.open);
                    self.controller.receive(*message);
                }
                Action::Close(_) => {
                    self.open = false;
                    self.controller.hang_up();
                }
                Action::Save => self.disk = Some(self.follower.saved([self.boot; 16]).to_bytes()),
                Action::Renew | Action::Measure | Action::SetTime(_) => {}
            }
        }
        panic!("the two never come to rest");
    }

    fn deliver(&mut self, message: ToNode) {
        let plan_version = match &message {
            ToNode::RouteUpdate(update) => Some((update.plan_version, false)),
            ToNode::LeaseRenewed(plan_version) => Some((*plan_version, true)),
            _ => None,
        };
        let plans = self.follower.counts().plans;
        self.follower.on_message(message, self.clock());
        let is_followed = self.follower.counts().plans > plans;
        if let Some((plan_version, _)) =
            plan_version.filter(|(_, renew_lease)| *renew_lease || is_followed)
        {
            self.stood.insert(plan_version, self.now);
        }
    }

    fn check(&mut self) {
        let held = self.follower.held.plan_version();
        assert!(held >= self.highest, "an older plan is followed");
        self.highest = held;
        if let Some(held) = held {
            // Whole and unchanged, whichever way it came.
            assert_eq!(self.follower.held.whole(), Some(whole(held)));
        }
        if let Some(plan) = self.follower.plan() {
            let stood = self.stood[&plan.plan_version().unwrap()];
            assert!(self.now <= stood + Duration::from_secs(TTL_S.into()));
        }
        while self.follower.next_event().is_some() {}
    }
}

#[test]
fn random_events_valid_plan() {
    seeds(SEEDS, |seed| {
        let mut simulation = Simulation::new(seed);
        for _ in 0..STEPS {
            simulation.step();
        }
        // One try a second at the most, and those after restarts.
        let most = simulation.now.as_secs() * 2 + STEPS as u64;
        assert!(u64::from(simulation.dials) < most);
    });
}

#[test]
fn recovers_to_newest_plan() {
    seeds(SEEDS, |seed| {
        let mut simulation = Simulation::new(seed);
        for _ in 0..STEPS / 4 {
            simulation.step();
        }
        simulation.reachable = true;
        for second in 0..120 {
            simulation.now += Duration::from_secs(1);
            if second % 10 == 0 {
                // It sends something in time.
                simulation.controller.offer();
            }
            simulation.settle();
        }
        let plan = simulation
            .follower
            .plan()
            .and_then(RouteTable::plan_version);
        assert_eq!(
            plan,
            Some(simulation.controller.newest().plan_version),
            "seed {seed}"
        );
        assert_eq!(simulation.follower.hello.number, ME);
    });
}
