// SPDX-License-Identifier: Apache-2.0
//! A follower through random orders of events: streams that break, messages that are lost with them,
//! repeated or old plans, controllers and nodes that start again, hosts that start again.

use std::collections::VecDeque;

use super::fake::{ME, difference, hello, whole};
use super::*;
use crate::message::Rows;

const LIFE_S: u32 = 60;
const ALIVE_S: u32 = 5;
const SEEDS: u64 = 100;
const STEPS: usize = 600;
const BOOTS: u64 = 1 << 40;

/// SplitMix64.
struct Rng(u64);

impl Rng {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % limit
    }
}

/// The controller, as far as one node sees it.
#[derive(Default)]
struct Controller {
    plans: Vec<Rows>,
    /// Which of them the node said that it holds, on this stream.
    holds: Option<Stamp>,
    welcomed: bool,
    /// On their way to the node.
    sent: VecDeque<ToNode>,
}

impl Controller {
    fn newest(&self) -> &Rows {
        self.plans.last().unwrap()
    }

    fn replan(&mut self, rng: &mut Rng) {
        let last = self.newest().stamp;
        let version = last.version + 1 + rng.below(3);
        self.plans.push(whole(Stamp { version, ..last }));
        self.offer();
    }

    /// Begins with an empty store: the epoch grows, versions begin anew.
    fn lose_store(&mut self) {
        let epoch = self.newest().stamp.epoch + 1;
        self.plans = vec![whole(Stamp { epoch, version: 1 })];
    }

    fn offer(&mut self) {
        if !self.welcomed {
            return;
        }
        let newest = self.newest().clone();
        let base = self
            .plans
            .iter()
            .find(|plan| Some(plan.stamp) == self.holds);
        self.sent.push_back(match base {
            Some(base) if base.stamp == newest.stamp => ToNode::Stands(newest.stamp),
            Some(base) => ToNode::Rows(difference(base, &newest)),
            None => ToNode::Rows(newest),
        });
    }

    fn hear(&mut self, message: ToController) {
        match message {
            ToController::Hello(hello) => {
                self.holds = hello.holds;
                self.welcomed = true;
                self.sent.push_back(ToNode::Welcome(Welcome {
                    version: VERSION,
                    life_s: LIFE_S,
                    alive_s: ALIVE_S,
                }));
                self.offer();
            }
            ToController::Holds(stamp) if self.holds != Some(stamp) => {
                self.holds = Some(stamp);
                if stamp != self.newest().stamp {
                    self.offer();
                }
            }
            ToController::Misfit { .. } => {
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

struct World {
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
    /// When the controller last said of each plan that it stands, as the node heard it.
    stood: BTreeMap<Stamp, Duration>,
    highest: Option<Stamp>,
    dials: u32,
}

impl World {
    fn new(seed: u64) -> Self {
        let first = whole(Stamp {
            epoch: 1,
            version: 1,
        });
        Self {
            rng: Rng(seed),
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
                let mut rows = difference(&one, &other);
                if self.rng.below(2) == 0 {
                    rows = other;
                }
                self.controller.sent.push_back(ToNode::Rows(rows));
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
            .and_then(|(saved, _)| saved.rows.as_ref().map(|rows| rows.stamp));
        self.follower = Follower::new(hello(), saved, self.rng.below(BOOTS), self.clock());
    }

    fn settle(&mut self) {
        for _ in 0..100 {
            let now = self.clock();
            let Some(order) = self.follower.next_order(now) else {
                match self.controller.sent.pop_front() {
                    Some(message) if self.open => self.deliver(message),
                    _ => return self.check(),
                }
                continue;
            };
            match order {
                Order::Dial if self.reachable => {
                    self.dials += 1;
                    self.open = true;
                    self.follower.on_open(now);
                }
                Order::Dial => {
                    self.dials += 1;
                    self.follower.on_closed(now);
                }
                Order::Send(message) => {
                    assert!(self.open);
                    self.controller.hear(*message);
                }
                Order::Close(_) => {
                    self.open = false;
                    self.controller.hang_up();
                }
                Order::Save => self.disk = Some(self.follower.saved([self.boot; 16]).to_bytes()),
                Order::Renew | Order::Measure | Order::SetTime(_) => {}
            }
        }
        panic!("the two never come to rest");
    }

    fn deliver(&mut self, message: ToNode) {
        let stamp = match &message {
            ToNode::Rows(rows) => Some((rows.stamp, false)),
            ToNode::Stands(stamp) => Some((*stamp, true)),
            _ => None,
        };
        let plans = self.follower.counts().plans;
        self.follower.on_message(message, self.clock());
        let is_followed = self.follower.counts().plans > plans;
        if let Some((stamp, _)) = stamp.filter(|(_, stands)| *stands || is_followed) {
            self.stood.insert(stamp, self.now);
        }
    }

    fn check(&mut self) {
        let held = self.follower.held.stamp();
        assert!(held >= self.highest, "an older plan is followed");
        self.highest = held;
        if let Some(held) = held {
            // Whole and unchanged, whichever way it came.
            assert_eq!(self.follower.held.whole(), Some(whole(held)));
        }
        if let Some(plan) = self.follower.plan() {
            let stood = self.stood[&plan.stamp().unwrap()];
            assert!(self.now <= stood + Duration::from_secs(LIFE_S.into()));
        }
        while self.follower.next_event().is_some() {}
    }
}

#[test]
fn no_order_of_events_makes_a_node_follow_what_it_should_not() {
    for seed in 0..SEEDS {
        let mut world = World::new(seed);
        for _ in 0..STEPS {
            world.step();
        }
        // One try a second at the most, and those after restarts.
        let most = world.now.as_secs() * 2 + STEPS as u64;
        assert!(u64::from(world.dials) < most, "seed {seed}");
    }
}

#[test]
fn whatever_was_before_a_node_that_is_reached_comes_to_the_newest_plan() {
    for seed in 0..SEEDS {
        let mut world = World::new(seed);
        for _ in 0..STEPS / 4 {
            world.step();
        }
        world.reachable = true;
        for second in 0..120 {
            world.now += Duration::from_secs(1);
            if second % 10 == 0 {
                // It says something in time.
                world.controller.offer();
            }
            world.settle();
        }
        let plan = world.follower.plan().and_then(Held::stamp);
        assert_eq!(plan, Some(world.controller.newest().stamp), "seed {seed}");
        assert_eq!(world.follower.hello.number, ME);
    }
}
