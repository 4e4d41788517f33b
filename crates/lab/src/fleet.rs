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
use serde_json::Value;

use crate::controller::{self, Controller, Member};
use crate::netns::Namespace;
use crate::node::Binary;
use crate::record::{Common, Record};
use crate::rng::Rng;
use crate::socket;
use clients::{Clients, Player, number, place};
use report::{ALL_ROWS, FIRST_ROWS, JOINED};
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
/// The share of links that change in a beat: one per cent in ten seconds.
const CHANGED: f64 = 0.0001;

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
    /// Links that die, one after the other, and then as many nodes
    #[arg(long, default_value_t = 5, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=20))]
    deaths: u16,
    #[command(flatten)]
    common: Common,
}

/// Runs the experiment. Fails when a stream was lost, or rows refused.
pub fn run(args: &Args) -> Result<()> {
    let mut record = Record::start("fleet", args.common.seed);
    record.parameter("nodes", args.nodes);
    record.parameter("seconds", args.seconds);
    record.parameter("deaths", args.deaths);
    let binary = args.binary.find()?;
    // Every played node has a connection.
    socket::raise_descriptor_limit()?;
    let namespace = Namespace::new()?;
    let nodes = (0..args.nodes).map(|place| Member {
        number: number(place.into()),
        name: format!("n{}", number(place.into())),
        prefix: {
            let [high, low] = place.to_be_bytes();
            format!("10.{high}.{low}.0/24")
        },
    });
    let nodes: Vec<Member> = nodes.collect();
    let controller = Controller::start(&namespace, &binary, &nodes, "")?;
    let losses = namespace.run_in(|| experiment(args, &controller, &mut record));
    let losses = losses.with_context(|| {
        let log = controller.process().stdout();
        let last: Vec<&str> = log.lines().rev().take(5).collect();
        format!(
            "the controller's last words, backwards: {}",
            last.join("; ")
        )
    })?;
    report::fill(args, &losses, &mut record);
    record.finish(&args.common.output, &losses)
}

/// A moment, and all costs until then.
struct Mark {
    at: Instant,
    cost: [f64; 5],
}

/// A link or a node that may die.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Part {
    /// Between these two nodes.
    Link(NodeNumber, NodeNumber),
    Node(NodeNumber),
}

impl Part {
    fn link(ends: &[NodeNumber]) -> Self {
        Self::Link(ends[0].min(ends[1]), ends[0].max(ends[1]))
    }

    /// The links of a chain.
    fn links(chain: &[NodeNumber]) -> Vec<Self> {
        chain.windows(2).map(Self::link).collect()
    }

    /// The nodes between the ends of a chain.
    fn nodes(chain: &[NodeNumber]) -> Vec<Self> {
        let between = chain.iter().skip(1).take(chain.len().saturating_sub(2));
        between.map(|&node| Self::Node(node)).collect()
    }

    /// Whether a chain goes by this part, at its ends or between them.
    fn is_in(self, chain: &[NodeNumber]) -> bool {
        match self {
            Self::Link(..) => Self::links(chain).contains(&self),
            Self::Node(node) => chain.contains(&node),
        }
    }
}

struct Experiment<'a> {
    args: &'a Args,
    controller: &'a Controller,
    clients: Clients,
    began: Instant,
    record: &'a mut Record,
}

/// Runs all parts. Returns the errors of streams that ended unexpectedly, or of rejected rows.
fn experiment(args: &Args, controller: &Controller, record: &mut Record) -> Result<Vec<String>> {
    let topology = Topology::new(args.nodes.into(), args.common.seed);
    let address = (Ipv4Addr::LOCALHOST, controller::PORT).into();
    let clients = Clients::new(topology, controller.key(), address, args.common.seed)?;
    let mut experiment = Experiment {
        args,
        controller,
        clients,
        began: Instant::now(),
        record,
    };
    experiment.arrival()?;
    let memory_at_first = controller.used()?.memory;
    eprintln!("fleet: all nodes are there; links change");
    experiment.changes()?;
    // A dead node stays dead, and its links with it, so links come first.
    for (what, parts) in [("link", Part::links as Parts), ("node", Part::nodes)] {
        for death in 1..=args.deaths {
            eprintln!("fleet: {what} {death} of {} dies", args.deaths);
            experiment.death(&[("dead", what), ("number", &death.to_string())], parts)?;
        }
    }
    let memory = vec![memory_at_first, controller.used()?.memory];
    experiment
        .record
        .sample(report::MEMORY, "bytes", &[], memory);
    let losses = experiment.clients.living().flat_map(|one| &one.losses);
    Ok(losses.cloned().collect())
}

/// Parts of a chain that may die.
type Parts = fn(&[NodeNumber]) -> Vec<Part>;

impl Experiment<'_> {
    fn mark(&self) -> Result<Mark> {
        let (at, bytes) = (Instant::now(), self.clients.bytes);
        let cost = [
            (at - self.began).as_secs_f64(),
            self.controller.used()?.seconds * 1e3,
            bytes.sent as f64,
            bytes.received as f64,
            plan_version(&query_plan()?)?.version as f64,
        ];
        Ok(Mark { at, cost })
    }

    /// The cost of the time since then.
    fn since(&self, before: &Mark) -> Result<[f64; 5]> {
        let now = self.mark()?.cost;
        Ok(std::array::from_fn(|one| now[one] - before.cost[one]))
    }

    /// When each living node did something, in seconds since then.
    fn times(&self, before: &Mark, when: impl Fn(&Player) -> Option<Instant>) -> Vec<f64> {
        let times = self.clients.living().filter_map(when);
        times.map(|at| (at - before.at).as_secs_f64()).collect()
    }

    /// All nodes join, until they follow a plan of all links.
    fn arrival(&mut self) -> Result<()> {
        let nodes = self.clients.living().count();
        let before = self.mark()?;
        self.clients
            .run_until("let in", PATIENCE, |player| player.joined.is_some())?;
        eprintln!("fleet: {nodes} nodes are let in");
        let whole = self.until_whole(nodes)?;
        let arrival = self.since(&before)?;
        for (quantity, times) in [
            (JOINED, self.times(&before, |player| player.joined)),
            (
                FIRST_ROWS,
                self.times(&before, |player| player.followed(PlanVersion::default())),
            ),
            (
                ALL_ROWS,
                self.times(&before, |player| player.followed(whole)),
            ),
        ] {
            self.record.sample(quantity, "s", &[], times);
        }
        report::sample_interval(self.record, "arrival", arrival);
        Ok(())
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
    fn changes(&mut self) -> Result<()> {
        let nodes = self.clients.topology.nodes();
        let links = (nodes * (nodes - 1) / 2) as f64;
        // Spread over the interval: real measurements do not change all at once.
        let each_beat = links * CHANGED;
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
        let cost = self.since(&before)?;
        report::sample_interval(self.record, "changes", cost);
        Ok(())
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

    /// The part with the most routes dies, and all nodes get a plan without it.
    fn death(&mut self, labels: &[(&str, &str)], parts: Parts) -> Result<()> {
        // A plan in progress would be counted as the reaction to the failure.
        let plan = self.settle()?;
        let (dead, routes) = self.most_used(parts).context("too few nodes live")?;
        let before = self.mark()?;
        match dead {
            Part::Link(one, other) => {
                self.clients
                    .change(place(one), place(other), LinkState::Dead)?;
            }
            Part::Node(node) => self.clients.kill(place(node))?,
        }
        let newer = self.until_avoided(dead, plan, &before)?;
        let cost = self.since(&before)?;
        let times = self.times(&before, |player| player.followed(newer));
        report::sample_death(self.record, labels, &times, routes, cost);
        Ok(())
    }

    /// Waits until all nodes have a plan without the dead part. Returns its version.
    fn until_avoided(
        &mut self,
        dead: Part,
        plan: PlanVersion,
        before: &Mark,
    ) -> Result<PlanVersion> {
        let mut newer = plan;
        // A plan in progress at the failure does not include it.
        while !self.clients.all(|player| !goes_by(player, dead)) {
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
        Ok(newer)
    }

    /// What the most routes for the largest transfers have in common, and their number.
    fn most_used(&self, parts: Parts) -> Option<(Part, usize)> {
        let mut used: HashMap<Part, usize> = HashMap::new();
        let chains = self.clients.living().flat_map(routes);
        for part in chains
            .filter(|chain| chain.len() > 2)
            .flat_map(|chain| parts(&chain))
        {
            *used.entry(part).or_default() += 1;
        }
        let most = used.into_iter().max_by_key(|(part, count)| (*count, *part));
        // In a small fleet all routes may be direct: then any part.
        let living = self.clients.living();
        let living: Vec<NodeNumber> = living
            .filter_map(|one| Some(one.follower.plan()?.node()))
            .collect();
        most.or_else(|| Some((*parts(&living).first()?, 0)))
    }
}

/// The chains of a node's routes for the largest transfers: all nodes of each.
fn routes(player: &Player) -> impl Iterator<Item = Vec<NodeNumber>> + '_ {
    let held = player.follower.plan().into_iter();
    held.flat_map(|held| {
        let class = held.class(u64::MAX, 0).unwrap_or(0);
        let members = player.follower.members();
        members.flat_map(move |(member, _)| {
            let chains = held.routes(member.number, class);
            chains.map(|between| [&[held.node()], between, &[member.number]].concat())
        })
    })
}

/// Whether a flow from a node may use this part.
fn goes_by(player: &Player, part: Part) -> bool {
    routes(player).any(|chain| part.is_in(&chain))
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
