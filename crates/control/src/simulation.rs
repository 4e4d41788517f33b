// SPDX-License-Identifier: Apache-2.0
//! A controller and some nodes, with links that change and die, also while plans are made, streams that end
//! with all that is on its way, rows that are lost, repeated and overtaken, nodes and controllers that start
//! again, and stores that are lost. Whatever happens: no node follows an older plan after a newer, no plan has a link in it that
//! was reported dead, and when all is quiet every node holds the newest plan.

mod controller;
mod node;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::message::{LinkState, NodeNumber, RouteUpdate, ToController};
use controller::Controller;
use node::Node;
use posthaste_testkit::{Rng, simulate};

/// How many nodes there are.
const NODES: u64 = 6;

/// What is on its way between a node and the controller.
#[derive(Debug, Default)]
struct Stream {
    up: VecDeque<ToController>,
    down: Vec<RouteUpdate>,
}

/// All there is.
struct Simulation {
    rng: Rng,
    now: Duration,
    /// Round trips of links in microseconds, by both ends, the smaller number first; 0 for one that is dead.
    links: BTreeMap<(NodeNumber, NodeNumber), u32>,
    nodes: BTreeMap<NodeNumber, Node>,
    streams: BTreeMap<NodeNumber, Stream>,
    controller: Controller,
    /// Nothing goes wrong any more.
    is_quiet: bool,
}

impl Simulation {
    fn new(mut rng: Rng) -> Self {
        let ends = (1..=NODES).flat_map(|one| (one + 1..=NODES).map(move |two| (one, two)));
        let links = ends.map(|ends| (ends, rtt_us(&mut rng))).collect();
        let node = |number| (number, Node::new(number));
        Self {
            rng,
            now: Duration::ZERO,
            links,
            nodes: (1..=NODES).map(node).collect(),
            streams: BTreeMap::new(),
            controller: Controller::new(None, Duration::ZERO),
            is_quiet: false,
        }
    }

    fn step(&mut self) {
        self.now += Duration::from_millis(1 + self.rng.below(1500));
        if !self.is_quiet {
            self.disturb();
        }
        let number = 1 + self.rng.below(NODES);
        self.run_node(number);
        self.carry(number);
        self.controller
            .run(&mut self.streams, &mut self.rng, self.now);
    }

    /// Something goes wrong.
    fn disturb(&mut self) {
        let number = 1 + self.rng.below(NODES);
        match self.rng.below(160) {
            0..24 => {
                let place = self.rng.below(self.links.len());
                let rtt_us = rtt_us(&mut self.rng);
                *self.links.values_mut().nth(place).unwrap() = rtt_us;
            }
            24..36 => self.cut(number),
            36..40 => {
                self.cut(number);
                let keeps = !self.rng.once_in(3);
                self.nodes.get_mut(&number).unwrap().restart(keeps);
            }
            40 => {
                let has_store = !self.rng.once_in(4);
                let saved = has_store.then(|| self.controller.saved());
                (1..=NODES).for_each(|number| self.cut(number));
                self.controller = Controller::new(saved, self.now);
            }
            _ => {}
        }
    }

    /// A stream ends, and what was on its way is lost.
    fn cut(&mut self, number: NodeNumber) {
        if self.streams.remove(&number).is_some() {
            self.controller.ended(number, self.now);
        }
    }

    /// A node connects if it is not connected, and reports what is new.
    fn run_node(&mut self, number: NodeNumber) {
        let node = self.nodes.get_mut(&number).unwrap();
        let links = links_of(number, &self.links);
        match self.streams.get_mut(&number) {
            Some(stream) => stream.up.extend(node.news(&links)),
            None => {
                let stream = self.streams.entry(number).or_default();
                stream.up.extend(node.greet(&links));
            }
        }
    }

    /// Carries something over a stream, in both directions.
    fn carry(&mut self, number: NodeNumber) {
        let Some(stream) = self.streams.get_mut(&number) else {
            return;
        };
        while let Some(message) = stream.up.pop_front() {
            self.controller.receive(number, message, self.now);
            if !self.is_quiet && self.rng.once_in(4) {
                break;
            }
        }
        let node = self.nodes.get_mut(&number).unwrap();
        if self.is_quiet {
            let answers = stream.down.drain(..).map(|update| node.receive(&update));
            stream.up.extend(answers);
        } else if !stream.down.is_empty() {
            let place = self.rng.below(stream.down.len());
            let update = stream.down[place].clone();
            // What is repeated stays on its way.
            if !self.rng.once_in(5) {
                stream.down.remove(place);
            }
            if !self.rng.once_in(5) {
                stream.up.push_back(node.receive(&update));
            }
        }
    }

    fn check_end(&self) {
        let rib = &self.controller.rib;
        for (number, node) in &self.nodes {
            assert_eq!(
                node.held.plan_version(),
                Some(rib.plan_version()),
                "node {number}"
            );
            assert_eq!(node.held.whole(), rib.update(*number, None));
        }
        for (ends, rtt_us) in &self.links {
            let link = self.controller.registry.agreed(ends.0, ends.1).link;
            assert_eq!(link.map_or(0, |link| link.rtt_us), *rtt_us);
        }
    }
}

/// A link of any length, or a dead one.
fn rtt_us(rng: &mut Rng) -> u32 {
    if rng.once_in(4) {
        return 0;
    }
    1000 + rng.below(100_000)
}

/// What a node measures now.
fn links_of(
    number: NodeNumber,
    links: &BTreeMap<(NodeNumber, NodeNumber), u32>,
) -> BTreeMap<NodeNumber, LinkState> {
    let mine = links.iter().filter_map(|((one, two), rtt_us)| {
        let to = match number {
            number if number == *one => *two,
            number if number == *two => *one,
            _ => return None,
        };
        Some((to, *rtt_us))
    });
    let state = |rtt_us| match rtt_us {
        0 => LinkState::Dead,
        rtt_us => LinkState::Up {
            rtt_us,
            loss_ppm: None,
            rate: None,
        },
    };
    mine.map(|(to, rtt_us)| (to, state(rtt_us))).collect()
}

// promise: V1, V2, V4
#[test]
fn everyone_reaches_newest_plan() {
    let (mut plans, mut repairs) = (0, 0);
    let (mut nacks, mut older, mut changes) = (0, 0, 0);
    simulate(40, |rng| {
        let mut simulation = Simulation::new(rng);
        for _ in 0..400 {
            simulation.step();
        }
        simulation.is_quiet = true;
        for _ in 0..200 {
            simulation.step();
        }
        // The last plan reaches all nodes.
        simulation.controller.rests = true;
        for _ in 0..100 {
            simulation.step();
        }
        simulation.check_end();
        plans += simulation.controller.plans;
        repairs += simulation.controller.repairs;
        for node in simulation.nodes.values() {
            nacks += node.nacks;
            older += node.older;
            changes += node.changes;
        }
    });
    let seen = format!(
        "{plans} plans, {repairs} repairs, {nacks} NACKs, {older} older, {changes} changes"
    );
    assert!(
        plans > 400 && repairs > 300 && nacks > 20 && older > 100 && changes > 500,
        "{seen}"
    );
}
