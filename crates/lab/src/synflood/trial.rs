// SPDX-License-Identifier: Apache-2.0
//! One trial of the flood: a network, legitimate flows before and during, and the counters of
//! server and node.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use ipnet::IpNet;

use super::{Args, BUDGET, Delays};
use crate::flood::counts::Counts;
use crate::flood::{Flood, Plan};
use crate::link::Link;
use crate::network::{CLIENT_SIDE, Family, Network};
use crate::node::Node;
use crate::process::wait_for;
use crate::threads;
use crate::transfer::{self, Request, Server};

const PORT: u16 = 80;
/// Bytes of a legitimate flow: within one initial window.
const BYTES: u64 = 10_000;
/// From the start of one legitimate flow to the start of the next.
const SPACING: Duration = Duration::from_millis(200);
/// Interval of the readings of server and node.
const LOOK: Duration = Duration::from_millis(100);
/// How long a legitimate flow may take before it counts as failed.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long after the flood a node may keep half-open connections: their expiry, with a generous
/// margin.
const RELEASE: Duration = Duration::from_secs(20);

/// The parameters of a trial.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    /// Whether a node relays in early mode.
    pub(super) has_node: bool,
    pub(super) family: Family,
    /// The server's `tcp_syncookies`.
    pub(super) cookies: u8,
    pub(super) delays: Delays,
}

/// The results of a trial.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) before: Flows,
    pub(super) during: Flows,
    /// Spoofed SYNs sent.
    pub(super) sent: u64,
    /// Spoofed connections that the server's application accepted.
    pub(super) accepted: u64,
    /// The server's spoofed sockets, most seen at once, and its counters.
    pub(super) server: Counts,
    /// Handshakes the server completed beyond those of legitimate flows.
    pub(super) extra_opens: u64,
    /// The node's counters, if there is one.
    pub(super) node: Option<NodeCounts>,
}

/// Times of legitimate flows in milliseconds.
#[derive(Debug, Default)]
pub(super) struct Flows {
    pub(super) connect: Vec<f64>,
    pub(super) first_byte: Vec<f64>,
    /// The errors of the others.
    pub(super) failures: Vec<String>,
}

/// The node's counters.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NodeCounts {
    /// Most half-open upstream connections seen at once.
    pub(super) half_open: u64,
    /// Flows opened late because the budget was used up.
    pub(super) over_budget: u64,
    /// SYN-ACKs of the server that were held.
    pub(super) held: u64,
    /// Half-open connections some time after the flood.
    pub(super) left: u64,
}

/// Runs one trial.
pub(super) fn run(case: Case, args: &Args) -> Result<Outcome> {
    let course = start(case, args)?;
    let (host, network) = (course.network.server(), &course.network);
    host.sysctl("net.ipv4.tcp_syncookies", &case.cookies.to_string())?;
    let server = Server::start(host, PORT, network.congestion())?;
    let plan = Plan {
        sources: CLIENT_SIDE[usize::from(case.family == Family::V6)].parse()?,
        target: SocketAddr::new(network.server_address(case.family), PORT),
        rate: args.rate,
        duration: Duration::from_secs(args.seconds.into()),
        seed: args.common.seed,
    };
    // The first flow fills neighbour tables and validates the client's prefix; it is not counted.
    fetch_all(&course, plan.target, 1);
    let mut outcome = Outcome {
        before: fetch_all(&course, plan.target, args.flows),
        ..Outcome::default()
    };
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        // Half-open sockets exist for seconds: only readings meanwhile show their number.
        let watcher = scope.spawn(|| watch(&course, plan.sources, &done));
        let flooded = flood(&course, plan, args.flows, &mut outcome);
        done.store(true, Ordering::Relaxed);
        (outcome.server, outcome.node) = threads::join(watcher)?;
        flooded
    })?;
    if let (Some(node), Some(counts)) = (&course.node, &mut outcome.node) {
        counts.left = left(node)?;
    }
    let peers = server.peers();
    let spoofed = peers
        .iter()
        .filter(|peer| plan.sources.contains(&peer.ip()));
    outcome.accepted = spoofed.count() as u64;
    let legitimate = 1 + u64::from(args.flows) * 2;
    let opens = host.run_in(|| Counts::take(plan.sources))?.passive_opens;
    // Legitimate flows that failed lower it, and are reported by themselves.
    outcome.extra_opens = opens.saturating_sub(legitimate);
    Ok(outcome)
}

/// A network of client, node and server, and the node, if there is one. It ends before its network.
#[derive(Debug)]
struct Course {
    node: Option<Node>,
    network: Network,
}

fn start(case: Case, args: &Args) -> Result<Course> {
    let delay = |ms| Link::delay(Duration::from_millis(ms)).rate(100_000_000);
    let links = [delay(case.delays.client), delay(case.delays.server)];
    let network = Network::line(links).seed(args.common.seed).build()?;
    // The reserve is for clients that were validated, which the flood's are not.
    let reserve = BUDGET / 4;
    let config = format!(
        "[half_open]\ntotal = {BUDGET}\nreserve = {reserve}\n[defaults]\naccept = \"early\"\n"
    );
    let start = || {
        let builder = Node::builder(network.node(0), args.binary.find()?).relaying();
        builder.config(&config).start().context("start the node")
    };
    Ok(Course {
        node: case.has_node.then(start).transpose()?,
        network,
    })
}

/// Floods while legitimate flows run.
fn flood(course: &Course, plan: Plan, flows: u32, outcome: &mut Outcome) -> Result<()> {
    let flood = course.network.client().run_in(|| Flood::start(plan))?;
    // The flood needs some time to have an effect.
    thread::sleep(plan.duration / 10);
    outcome.during = fetch_all(course, plan.target, flows);
    outcome.sent = flood.finish()?;
    Ok(())
}

/// Waits for a node to close its half-open connections; returns how many it keeps.
fn left(node: &Node) -> Result<u64> {
    let empty = || Ok((node.counter("half_open")? == 0).then_some(()));
    match wait_for(RELEASE, empty)? {
        Some(()) => Ok(0),
        None => node.counter("half_open"),
    }
}

/// Starts `count` flows, evenly spaced, and waits for all.
fn fetch_all(course: &Course, target: SocketAddr, count: u32) -> Flows {
    let mut request = Request::new(target.ip(), target.port(), BYTES);
    request.deadline = PATIENCE;
    let results = threads::at_once(count, |index| {
        // Spaced, so that they meet all phases of the flood.
        thread::sleep(SPACING * index);
        transfer::fetch(course.network.client(), &request)
    });
    let mut flows = Flows::default();
    for result in results {
        match result {
            Ok(timing) => {
                flows.connect.push(timing.connect.as_secs_f64() * 1e3);
                flows.first_byte.push(timing.first_byte.as_secs_f64() * 1e3);
            }
            Err(error) => flows.failures.push(format!("{error:#}")),
        }
    }
    flows
}

/// Reads server and node repeatedly until `done`, and returns the extremes.
fn watch(
    course: &Course,
    sources: IpNet,
    done: &AtomicBool,
) -> Result<(Counts, Option<NodeCounts>)> {
    let (mut most, mut half_open) = (Counts::default(), 0);
    while !done.load(Ordering::Relaxed) {
        let server = course.network.server().run_in(|| Counts::take(sources))?;
        // Each counter by itself: its maximum may be in another reading.
        most = Counts {
            completed: most.completed.max(server.completed),
            half_open: most.half_open.max(server.half_open),
            ..server
        };
        if let Some(node) = &course.node {
            half_open = node.counter("half_open")?.max(half_open);
        }
        thread::sleep(LOOK);
    }
    let counts = |node: &Node| -> Result<NodeCounts> {
        Ok(NodeCounts {
            half_open,
            over_budget: node.counter("over_budget")?,
            held: node.counter("syn_acks_held")?,
            left: 0,
        })
    };
    Ok((most, course.node.as_ref().map(counts).transpose()?))
}

impl Outcome {
    /// Handshakes that the server completed for spoofed sources. One shows in one of three places,
    /// by how long it lasted.
    pub(super) fn completed(&self) -> u64 {
        let seen = self.server.completed;
        seen.max(self.accepted).max(self.extra_opens)
    }

    /// The errors of legitimate flows.
    pub(super) fn failures(&self) -> impl Iterator<Item = &String> {
        self.before.failures.iter().chain(&self.during.failures)
    }
}
