// SPDX-License-Identifier: Apache-2.0
//! The state and the followers of its nodes: streams that are slow or end, controllers that start again, nodes
//! that are taken off the list and put back, and flows that come all the time. Nodes receive all that at
//! different moments; yet wherever a flow comes by a chain, the node before and the one behind are known.

use std::collections::{BTreeSet, VecDeque};

use posthaste_control::follower::{Action, Follower};
use posthaste_control::message::{Link, LinkState};
use posthaste_testkit::Rng;

use super::*;

/// Off the list are two of them at the most.
const NODES: u64 = 7;
/// How long a message is on its way at the most: less than nobody takes a new chain for.
const LATE_MS: u64 = 400;
/// How long a flow is on its way from a node to the next.
const HOP_MS: u64 = 20;
const SECOND: Duration = Duration::from_secs(1);

fn millis(rng: &mut Rng, limit: u64) -> Duration {
    Duration::from_millis(rng.below(limit))
}

/// A node, and what is on its way to it and from it, each with when it is there.
struct Node {
    follower: Follower,
    /// It has a stream, since then.
    open: Option<Duration>,
    /// The controller checks what is due to it.
    is_woken: bool,
    down: VecDeque<(Duration, ToNode)>,
    up: VecDeque<(Duration, ToController)>,
}

/// A flow on its way to the node at a position of its chain.
struct Flow {
    nodes: Vec<NodeNumber>,
    position: usize,
    there: Duration,
}

struct Simulation {
    rng: Rng,
    now: Duration,
    state: ControllerState,
    /// When the controller is there, and since when.
    up: Duration,
    /// When each node was put on the list or taken off it.
    listed: BTreeMap<NodeNumber, Duration>,
    unlisted: BTreeMap<NodeNumber, Duration>,
    /// All that ever came: a controller that starts again knows them by their keys.
    known: BTreeSet<NodeNumber>,
    nodes: BTreeMap<NodeNumber, Node>,
    flows: Vec<Flow>,
    /// Something went wrong of late: no more does until then.
    calm: Duration,
    carried: [usize; 2],
}

fn state_of(last: PlanVersion, now: Duration) -> ControllerState {
    let limits = Limits {
        ttl: SECOND * 900,
        warm: false,
        keepalive: SECOND * 5,
    };
    let rib = Rib::new(Settings::default(), last);
    ControllerState::new(limits, rib, (SECOND * 10, SECOND), now)
}

fn hello(number: NodeNumber) -> Hello {
    Hello {
        version: VERSION,
        number,
        software: String::new(),
        exchange: [u8::try_from(number).unwrap(); 32],
        listeners: Vec::new(),
        reflectors: Vec::new(),
        holds: None,
    }
}

impl Simulation {
    fn new(seed: u64) -> Self {
        let node = |number| {
            let node = Node {
                follower: Follower::new(hello(number), None, seed + number, Duration::ZERO),
                open: None,
                is_woken: false,
                down: VecDeque::new(),
                up: VecDeque::new(),
            };
            (number, node)
        };
        let mut simulation = Self {
            rng: Rng::new(seed),
            now: Duration::ZERO,
            state: state_of(PlanVersion::default(), Duration::ZERO),
            up: Duration::ZERO,
            listed: (1..=NODES).map(|number| (number, Duration::ZERO)).collect(),
            unlisted: BTreeMap::new(),
            known: BTreeSet::new(),
            nodes: (1..=NODES).map(node).collect(),
            flows: Vec::new(),
            calm: SECOND * 30,
            carried: [0; 2],
        };
        simulation.configure();
        (1..=NODES).for_each(|number| simulation.measure(number));
        simulation
    }

    /// What the server does with a list.
    fn configure(&mut self) {
        let listed = self.listed.keys().map(|node| {
            let name = format!("n{node}");
            (*node, Listed { name, cost_us: 0 })
        });
        let (listed, intervals) = (listed.collect(), (SECOND * 10, SECOND));
        self.state
            .configure(listed, BTreeMap::new(), intervals, self.now);
        for number in &self.known {
            if !self.listed.contains_key(number) {
                self.state.lose(*number, self.now);
            }
        }
    }

    /// A node finds its links as long as they like to be now; the way around most is shorter.
    fn measure(&mut self, number: NodeNumber) {
        for to in (1..=NODES).filter(|to| *to != number) {
            let near = number.abs_diff(to) == 1;
            let rtt_us = if near {
                10_000
            } else {
                40_000 * u32::try_from(number.abs_diff(to)).unwrap()
            };
            let state = LinkState::Up {
                rtt_us: rtt_us + self.rng.below(rtt_us),
                loss_ppm: None,
                rate: None,
            };
            let follower = &mut self.nodes.get_mut(&number).unwrap().follower;
            follower.on_link(Link { to, state });
        }
    }

    fn step(&mut self) {
        self.now += Duration::from_millis(1) + millis(&mut self.rng, 30);
        if self.now >= self.calm {
            self.disturb();
        }
        if self.now >= self.up {
            self.run_controller();
        }
        for number in 1..=NODES {
            self.run_node(number);
            if self.rng.once_in(4) {
                self.begin(number);
            }
        }
        self.carry();
    }

    fn disturb(&mut self) {
        let number = 1 + self.rng.below(NODES);
        match self.rng.below(400) {
            0..4 => self.measure(number),
            4..6 => {
                self.hang_up(number);
                self.calm = self.now + SECOND * 12;
            }
            6..10 => {
                self.list_another(number);
                self.configure();
                self.dismiss();
            }
            10 => {
                // It is away for a while, and the list is another when it is back.
                (1..=NODES).for_each(|number| self.hang_up(number));
                self.up = self.now + millis(&mut self.rng, 60_000);
                let saved = self.state.rib.as_ref().unwrap().plan_version();
                self.state = state_of(saved, self.now);
                self.list_another(number);
                self.configure();
                self.calm = self.up + SECOND * 50;
            }
            _ => {}
        }
    }

    fn list_another(&mut self, number: NodeNumber) {
        if self.listed.remove(&number).is_some() {
            self.unlisted.insert(number, self.now);
        } else {
            self.unlisted.remove(&number);
            self.listed.insert(number, self.now);
        }
        if self.unlisted.len() > 2 {
            let first = *self.unlisted.keys().next().unwrap();
            self.list_another(first);
        }
        self.calm = self.now + millis(&mut self.rng, 20_000);
    }

    /// Who is not on the list has no stream.
    fn dismiss(&mut self) {
        self.nodes
            .values_mut()
            .for_each(|node| node.is_woken = true);
        let unlisted: Vec<NodeNumber> = self.unlisted.keys().copied().collect();
        unlisted.into_iter().for_each(|number| self.hang_up(number));
    }

    fn hang_up(&mut self, number: NodeNumber) {
        let node = self.nodes.get_mut(&number).unwrap();
        if node.open.take().is_some() {
            node.follower.on_closed(self.now);
            self.state.leave(number, self.now);
        }
        node.down.clear();
        node.up.clear();
    }

    /// Plans and repairs take no time here; that they do, the tests beside this one are about.
    fn run_controller(&mut self) {
        let mut wakes_all = self.state.tick(self.now);
        while let Some(work) = self.state.work(self.now) {
            match work {
                Work::Tables(settings, network) => {
                    let tables = settings.tables(&network);
                    self.state.tabled(Rollout::new(network, tables));
                }
                Work::Rib(mut rib, mut rollout) => {
                    if let Some(rollout) = &mut rollout {
                        rib.roll_out(rollout, || true);
                    }
                    let (network, worse) = self.state.repairing(self.now);
                    rib.repair(&network, &worse);
                    self.state.written(rib, rollout, self.now);
                    wakes_all = true;
                }
            }
        }
        for (number, node) in &mut self.nodes {
            node.is_woken |= wakes_all;
            while let Some((_, message)) = node.up.pop_front_if(|(at, _)| *at <= self.now) {
                node.is_woken = true;
                let is_in = match message {
                    ToController::Hello(hello) => {
                        let welcome = self.state.enter(hello, self.now).is_ok();
                        self.known.insert(*number);
                        welcome
                            .then(|| node.down.push_back((self.now, self.state.welcome(*number))));
                        welcome
                    }
                    message => self.state.received(*number, message, self.now).is_ok(),
                };
                if !is_in {
                    node.open = None;
                    node.follower.on_closed(self.now);
                    node.up.clear();
                }
            }
            if !std::mem::take(&mut node.is_woken) {
                continue;
            }
            while let Some(message) = self.state.due(*number, self.now) {
                let before = node.down.back().map_or(self.now, |(at, _)| *at);
                let there = before.max(self.now + millis(&mut self.rng, LATE_MS));
                node.down.push_back((there, message));
            }
        }
    }

    fn run_node(&mut self, number: NodeNumber) {
        let (now, is_up) = (self.now, self.now >= self.up);
        let node = self.nodes.get_mut(&number).unwrap();
        while let Some((_, message)) = node.down.pop_front_if(|(at, _)| *at <= now) {
            node.follower.on_message(message, now);
        }
        while let Some(order) = node.follower.poll_action(now) {
            match order {
                Action::Dial if is_up => {
                    node.open = Some(now);
                    node.follower.on_open(now);
                }
                Action::Dial => node.follower.on_closed(now),
                Action::Send(message) => {
                    let before = node.up.back().map_or(now, |(at, _)| *at);
                    let there = before.max(now + millis(&mut self.rng, LATE_MS));
                    node.up.push_back((there, *message));
                }
                Action::Close(why) => panic!("{number}: {why}"),
                _ => {}
            }
        }
        while node.follower.next_event().is_some() {}
    }

    /// A flow begins at a node, by a chain that flows from there take.
    fn begin(&mut self, number: NodeNumber) {
        let node = &self.nodes[&number];
        let follower = &node.follower;
        let since = self.listed.get(&number);
        // That it was off the list it need not have noticed before it is back.
        let is_back = |since: &&Duration| {
            let sent = node.open.filter(|open| open >= since);
            since.is_zero() || sent.is_some_and(|open| self.now >= open + SECOND)
        };
        let plan = follower.plan().filter(|_| since.filter(is_back).is_some());
        let Some(plan) = plan else {
            return;
        };
        let chains = plan.chains().filter(|(egress, between)| {
            let mut nodes = between.iter().chain([egress]);
            !between.is_empty() && nodes.all(|node| follower.is_settled(*node))
        });
        let whole =
            |(egress, between): (_, &[NodeNumber])| [&[number], between, &[egress]].concat();
        let mut taken: Vec<Vec<NodeNumber>> = chains.map(whole).collect();
        if taken.is_empty() {
            return;
        }
        taken.sort_unstable();
        let place = self.rng.below(taken.len());
        let there = self.now + millis(&mut self.rng, HOP_MS);
        self.flows.push(Flow {
            nodes: taken.swap_remove(place),
            position: 1,
            there,
        });
    }

    /// Every node that a flow has come to knows who sent it and who is next.
    fn carry(&mut self) {
        let now = self.now;
        for mut flow in std::mem::take(&mut self.flows) {
            if flow.there > now {
                self.flows.push(flow);
                continue;
            }
            let here = flow.nodes[flow.position];
            let follower = &self.nodes[&here].follower;
            let beside = [
                flow.nodes.get(flow.position + 1),
                flow.nodes.get(flow.position - 1),
            ];
            for other in beside.into_iter().flatten() {
                if self.must_know(here, *other) {
                    let all = follower.members().chain(follower.former_members());
                    let is_known = all
                        .map(|(member, _)| member.number)
                        .any(|known| known == *other);
                    assert!(
                        is_known,
                        "at {now:?} {here} does not know {other} of {:?}",
                        flow.nodes
                    );
                    self.carried[usize::from(self.unlisted.contains_key(other))] += 1;
                }
            }
            flow.position += 1;
            flow.there = now + millis(&mut self.rng, HOP_MS);
            if flow.position < flow.nodes.len() {
                self.flows.push(flow);
            }
        }
    }

    /// A node on the list knows who was taken off it, and who is on it; of those that were put back only
    /// if it has a stream since.
    fn must_know(&self, here: NodeNumber, other: NodeNumber) -> bool {
        let since = self.listed.get(&other).copied().unwrap_or_default();
        let is_sent = self.nodes[&here].open.is_some_and(|open| open <= since);
        self.listed.contains_key(&here) && (is_sent || since.is_zero())
    }
}

// promise: S8, V11
#[test]
fn leaving_node_loses_no_flow() {
    let mut carried = [0; 2];
    for seed in 0..10 {
        let mut simulation = Simulation::new(seed * 1000);
        for _ in 0..20_000 {
            simulation.step();
        }
        carried[0] += simulation.carried[0];
        carried[1] += simulation.carried[1];
    }
    assert!(carried[0] > 10_000 && carried[1] > 300, "{carried:?}");
}
