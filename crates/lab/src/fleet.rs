// SPDX-License-Identifier: Apache-2.0
//! `fleet`: a controller and a thousand nodes.
//!
//! The controller is the product's, with its own process, store and streams. This program plays the
//! nodes with the product's own code (TLS, messages, the node's side of the stream); they carry no
//! flows, and their measurements come from a synthetic world. Everything runs on one host, so the
//! network adds no time. Nodes share the processors with the controller, and one thread plays all
//! of them: where it is busy, times are those of a slower fleet.
//!
//! In order: all nodes join at once; some links change all the time, as measured ones do; then
//! links fail, one after the other, and nodes: each time the one with the most routes.

mod clients;
mod report;
mod stream;
mod topology;

use std::collections::HashMap;
use std::hash::Hash;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use posthaste_control::message::{LinkState, NodeNumber, PlanVersion};
use posthaste_control::route_table::RouteTable;
use serde_json::Value;

use crate::controller::{self, Controller};
use crate::netns::Namespace;
use crate::node::Binary;
use crate::record::{Common, Record};
use crate::rng::Rng;
use crate::socket;
use clients::{Clients, Player, number, place};
use report::{Death, Interval, Outcome};
use topology::Topology;

/// Bound on every wait: a slow controller is measured, one that hangs fails.
const PATIENCE: Duration = Duration::from_secs(300);
/// Interval of the queries for the controller's plan while nodes join.
const QUERY_INTERVAL: Duration = Duration::from_millis(100);
/// Interval of failures: longer than the controller defers other changes, plans and pauses.
const REST: Duration = Duration::from_secs(13);
/// Interval of link changes.
const BEAT: Duration = Duration::from_millis(100);
/// Factor of link changes, up or down.
const CHANGE: f64 = 1.25;
/// Period of the share `--changes`.
const CHANGES_IN: Duration = Duration::from_secs(10);

/// Arguments of `posthaste-lab fleet`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    binary: Binary,
    /// Nodes
    #[arg(long, default_value_t = 1000, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(3..=1024))]
    nodes: u16,
    /// Seconds during which links change
    #[arg(long, default_value_t = 60, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Links that change within ten seconds, in per cent of all
    #[arg(long, default_value_t = 1.0, value_name = "PERCENT")]
    changes: f64,
    /// Links that die, one after the other, and then as many nodes
    #[arg(long, default_value_t = 5, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=20))]
    deaths: u16,
    #[command(flatten)]
    common: Common,
}

/// Runs the experiment.
pub fn run(args: &Args) -> Result<()> {
    ensure!(
        (0.0..=100.0).contains(&args.changes),
        "--changes must be between 0 and 100"
    );
    let mut record = Record::start("fleet", args.common.seed);
    let binary = args.binary.find()?;
    // Every played node has a connection.
    socket::raise_descriptor_limit()?;
    let namespace = Namespace::new()?;
    let nodes = usize::from(args.nodes);
    let names: Vec<(NodeNumber, String)> = (0..nodes)
        .map(|place| (number(place), format!("n{}", number(place))))
        .collect();
    let controller = Controller::start(&namespace, &binary, &names, &prefixes(nodes))?;
    let outcome = namespace.run_in(|| experiment(args, &controller));
    let outcome = outcome.with_context(|| {
        let log = controller.process().stdout();
        let last: Vec<&str> = log.lines().rev().take(5).collect();
        format!(
            "the controller's last words, backwards: {}",
            last.join("; ")
        )
    })?;
    report::write(args, &outcome, &mut record)
}

/// A prefix for each node.
fn prefixes(nodes: usize) -> String {
    let prefix = |place: usize| {
        let [high, low] = [place / 256, place % 256];
        let number = number(place);
        format!("[[prefix]]\ndestinations = [\"10.{high}.{low}.0/24\"]\nnode = \"n{number}\"\n")
    };
    (0..nodes).map(prefix).collect()
}

/// The state at one moment.
struct Mark {
    at: Instant,
    processor: f64,
    sent: u64,
    received: u64,
    plans: u64,
}

struct Experiment<'a> {
    args: &'a Args,
    controller: &'a Controller,
    clients: Clients,
}

fn experiment(args: &Args, controller: &Controller) -> Result<Outcome> {
    let topology = Topology::new(args.nodes.into(), args.common.seed);
    let address = (Ipv4Addr::LOCALHOST, controller::PORT).into();
    let clients = Clients::new(topology, controller.key(), address, args.common.seed)?;
    let mut experiment = Experiment {
        args,
        controller,
        clients,
    };
    let mut outcome = experiment.arrival()?;
    eprintln!("fleet: all nodes are there; links change");
    outcome.changes = experiment.changes()?;
    for death in 0..args.deaths {
        eprintln!("fleet: link {} of {} dies", death + 1, args.deaths);
        outcome.links.push(experiment.link_death()?);
    }
    // After the links: a dead node stays dead, and its links with it.
    for death in 0..args.deaths {
        eprintln!("fleet: node {} of {} dies", death + 1, args.deaths);
        outcome.nodes.push(experiment.node_death()?);
    }
    outcome.memory = controller.used()?.memory;
    let losses = experiment.clients.living().flat_map(Player::losses);
    outcome.losses = losses.cloned().collect();
    Ok(outcome)
}

impl Experiment<'_> {
    fn mark(&self) -> Result<Mark> {
        Ok(Mark {
            at: Instant::now(),
            processor: self.controller.used()?.seconds,
            sent: self.clients.bytes.sent,
            received: self.clients.bytes.received,
            plans: plan_version(&query_plan()?)?.version,
        })
    }

    fn since(&self, before: &Mark) -> Result<Interval> {
        let now = self.mark()?;
        Ok(Interval {
            seconds: (now.at - before.at).as_secs_f64(),
            processor: now.processor - before.processor,
            sent: (now.sent - before.sent) as f64,
            received: (now.received - before.received) as f64,
            plans: (now.plans - before.plans) as f64,
        })
    }

    /// All nodes join, until they follow a plan of all links.
    fn arrival(&mut self) -> Result<Outcome> {
        let nodes = self.clients.living().count();
        let before = self.mark()?;
        self.clients
            .run_until("let in", PATIENCE, |player| player.joined().is_some())?;
        eprintln!("fleet: {nodes} nodes are let in");
        let whole = self.until_whole(nodes)?;
        let arrival = self.since(&before)?;
        let times = |when: &dyn Fn(&Player) -> Option<Instant>| {
            let times = self.clients.living().filter_map(when);
            times.map(|at| (at - before.at).as_secs_f64()).collect()
        };
        Ok(Outcome {
            joined: times(&Player::joined),
            first_update: times(&|player| player.followed(PlanVersion::default())),
            whole: times(&|player| player.followed(whole)),
            memory_at_first: self.controller.used()?.memory,
            row_bytes: arrival.received / nodes as f64,
            arrival,
            ..Outcome::default()
        })
    }

    /// Waits until all nodes follow a plan of all nodes and links. Returns its version.
    fn until_whole(&mut self, nodes: usize) -> Result<PlanVersion> {
        let deadline = Instant::now() + PATIENCE;
        let mut found = None;
        loop {
            let plan = query_plan()?;
            // A plan of all nodes may still lack links that are reported later.
            let links = plan["links"].as_u64().context("links of the plan")?;
            if links == (nodes * (nodes - 1)) as u64 {
                let whole = *found.get_or_insert(plan_version(&plan)?);
                if self.clients.all(|player| player.holds() >= Some(whole)) {
                    return Ok(whole);
                }
            }
            ensure!(Instant::now() < deadline, "no plan of all links: {plan}");
            self.clients.run_for(QUERY_INTERVAL)?;
        }
    }

    /// Some links change.
    fn changes(&mut self) -> Result<Interval> {
        let nodes = self.clients.topology.nodes();
        let links = (nodes * (nodes - 1) / 2) as f64;
        // Spread over the interval: real measurements do not change all at once.
        let each_beat = links * self.args.changes / 100.0 * BEAT.div_duration_f64(CHANGES_IN);
        let before = self.mark()?;
        let end = before.at + Duration::from_secs(self.args.seconds);
        let mut rng = Rng::new(self.args.common.seed ^ 0xf1ee7);
        let (mut owed, mut next) = (0.0, before.at);
        while Instant::now() < end {
            self.clients
                .run_for(next.saturating_duration_since(Instant::now()))?;
            next += BEAT;
            owed += each_beat;
            while owed >= 1.0 {
                owed -= 1.0;
                let random = rng.next();
                let (one, other) = pair(random, nodes);
                // Up and down alike, so that links keep their mean length.
                let factor = if random >> 63 == 0 {
                    CHANGE
                } else {
                    CHANGE.recip()
                };
                self.clients.stretch(one, other, factor)?;
            }
        }
        self.since(&before)
    }

    /// Waits until nothing is pending: the controller has planned with all reports, and all nodes
    /// have that plan.
    fn settle(&mut self) -> Result<PlanVersion> {
        let deadline = Instant::now() + PATIENCE;
        let mut before = plan_version(&query_plan()?)?;
        loop {
            self.clients.run_for(REST)?;
            let plan = plan_version(&query_plan()?)?;
            let all = self.clients.all(|player| player.holds() == Some(plan));
            if all && before == plan {
                return Ok(plan);
            }
            ensure!(Instant::now() < deadline, "plans follow each other");
            before = plan;
        }
    }

    /// The link with the most routes fails.
    fn link_death(&mut self) -> Result<Death> {
        // A plan in progress would be counted as the reaction to the failure.
        let plan = self.settle()?;
        let ((one, other), routes) = self.most_used();
        let before = self.mark()?;
        self.clients.change(one, other, LinkState::Dead)?;
        let ends = (number(one), number(other));
        let is_dead = |pair| pair == ends || pair == (ends.1, ends.0);
        self.aftermath(plan, &before, routes, is_dead)
    }

    /// The node with the most routes fails.
    fn node_death(&mut self) -> Result<Death> {
        let plan = self.settle()?;
        let (dead, routes) = self.most_passed();
        let before = self.mark()?;
        self.clients.kill(dead)?;
        let dead = number(dead);
        let is_dead = |(one, other)| one == dead || other == dead;
        self.aftermath(plan, &before, routes, is_dead)
    }

    /// Waits until all nodes have a plan without the failed part.
    fn aftermath(
        &mut self,
        plan: PlanVersion,
        before: &Mark,
        routes: usize,
        is_dead: impl Fn((NodeNumber, NodeNumber)) -> bool,
    ) -> Result<Death> {
        let mut newer = plan;
        // A plan in progress at the failure does not include it.
        while !self.clients.all(|player| !goes_by(player, &is_dead)) {
            ensure!(
                before.at.elapsed() < PATIENCE,
                "nodes go on over what is dead"
            );
            // Plans of one controller differ in the version; the epoch changes with its store.
            newer.version += 1;
            let what = "going by a plan without what is dead";
            self.clients
                .run_until(what, PATIENCE, |player| player.holds() >= Some(newer))?;
        }
        let cost = self.since(before)?;
        let times = self
            .clients
            .living()
            .filter_map(|player| player.followed(newer));
        Ok(Death {
            seconds: times.map(|at| (at - before.at).as_secs_f64()).collect(),
            routes,
            cost,
        })
    }

    /// The link with the most routes, and their number.
    fn most_used(&self) -> ((usize, usize), usize) {
        let ends = |pair: &[NodeNumber]| (pair[0].min(pair[1]), pair[0].max(pair[1]));
        let most = self.most(|nodes| nodes.windows(2).map(ends).collect());
        most.map_or(((0, 1), 0), |((one, other), count)| {
            ((place(one), place(other)), count)
        })
    }

    /// The node that the most routes pass, and their number.
    fn most_passed(&self) -> (usize, usize) {
        let most = self.most(|nodes| nodes[1..nodes.len() - 1].to_vec());
        let held = self.clients.living().find_map(|one| one.follower().plan());
        let any = held.map_or(1, RouteTable::node);
        let (node, count) = most.unwrap_or((any, 0));
        (place(node), count)
    }

    /// What the most routes for the largest transfers have in common, and their number. `parts`
    /// returns the parts of a chain of more than two nodes.
    fn most<T: Copy + Eq + Hash + Ord>(
        &self,
        parts: impl Fn(&[NodeNumber]) -> Vec<T>,
    ) -> Option<(T, usize)> {
        let mut used: HashMap<T, usize> = HashMap::new();
        for player in self.clients.living() {
            let chains = player.follower().plan().into_iter();
            let chains = chains.flat_map(|held| routes(player, held));
            for part in chains
                .filter(|nodes| nodes.len() > 2)
                .flat_map(|nodes| parts(&nodes))
            {
                *used.entry(part).or_default() += 1;
            }
        }
        used.into_iter().max_by_key(|(part, count)| (*count, *part))
    }
}

/// The chains of a node's routes for the largest transfers: all nodes of each.
fn routes<'a>(
    player: &'a Player,
    held: &'a RouteTable,
) -> impl Iterator<Item = Vec<NodeNumber>> + 'a {
    let class = held.class(u64::MAX, 0).unwrap_or(0);
    let members = player.follower().members();
    members.flat_map(move |(member, _)| {
        let chains = held.routes(member.number, class);
        chains.map(|between| [&[held.node()], between, &[member.number]].concat())
    })
}

/// Whether a flow from a node may use a hop of this kind.
fn goes_by(player: &Player, is_such: &impl Fn((NodeNumber, NodeNumber)) -> bool) -> bool {
    let Some(held) = player.follower().plan() else {
        return false;
    };
    let mut chains = routes(player, held);
    chains.any(|nodes| nodes.windows(2).any(|pair| is_such((pair[0], pair[1]))))
}

fn query_plan() -> Result<Value> {
    controller::query("/v1/plan")
}

/// The version of a plan in the API.
fn plan_version(plan: &Value) -> Result<PlanVersion> {
    let version = &plan["plan_version"];
    let number = |name: &str| version[name].as_u64().context("the version of a plan");
    Ok(PlanVersion {
        epoch: number("epoch")?,
        version: number("version")?,
    })
}

/// Two different nodes.
fn pair(random: u64, nodes: usize) -> (usize, usize) {
    let of = |number: u64, count: usize| usize::try_from(number % count as u64).unwrap_or(0);
    let one = of(random, nodes);
    let other = of(random >> 24, nodes - 1);
    (one, other + usize::from(other >= one))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::scramble;

    #[test]
    fn pairs_of_existing_nodes() {
        for random in (0..1000).map(scramble) {
            let (one, other) = pair(random, 3);
            assert!(one != other && one < 3 && other < 3);
        }
    }
}
