// SPDX-License-Identifier: Apache-2.0
//! One trial of the flood: a network, legitimate flows before and during, and the counters of
//! server and node.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

use super::Delays;
use crate::encapsulation::{Course, Encapsulation};
use crate::flood::counts::Counts;
use crate::flood::{Flood, Plan, Prefix};
use crate::link::Link;
use crate::network::{CLIENT_SIDE, Family};
use crate::node::Binary;
use crate::transfer::{self, Request, Server, Timing};

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
    pub(super) subject: Encapsulation,
    pub(super) family: Family,
    /// The server's `tcp_syncookies`.
    pub(super) cookies: u8,
    pub(super) delays: Delays,
}

/// The strength of the flood, and the number of measured flows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Strength {
    pub(super) rate: u32,
    pub(super) duration: Duration,
    pub(super) flows: u32,
    pub(super) budget: u64,
    pub(super) seed: u64,
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
    /// Most spoofed sockets past their handshake seen at once at the server.
    pub(super) completed: u64,
    /// Most spoofed half-open sockets seen at once at the server.
    pub(super) server_half_open: u64,
    /// Handshakes the server completed beyond those of legitimate flows.
    pub(super) extra_opens: u64,
    /// SYN cookies the server accepted.
    pub(super) cookies_received: u64,
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
    /// Whether all half-open connections were closed in time.
    pub(super) released: bool,
}

/// Runs one trial.
pub(super) fn run(case: Case, strength: Strength, binary: &Binary) -> Result<Outcome> {
    let course = start(case, strength, binary)?;
    let network = &course.network;
    network
        .server()
        .sysctl("net.ipv4.tcp_syncookies", &case.cookies.to_string())?;
    let server = Server::start(network.server(), PORT, network.congestion())?;
    let target = SocketAddr::new(network.server_address(case.family), PORT);
    let sources: Prefix = CLIENT_SIDE[usize::from(case.family == Family::V6)].parse()?;
    let mut outcome = Outcome::default();
    // The first flow fills neighbour tables and validates the client's prefix; it is not counted.
    fetch_all(&course, target, 1);
    outcome.before = fetch_all(&course, target, strength.flows);
    let plan = Plan {
        sources,
        target,
        rate: strength.rate,
        duration: strength.duration,
        seed: strength.seed,
    };
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let watcher = scope.spawn(|| watch(&course, sources, &done));
        let flooded = flood(&course, plan, target, strength, &mut outcome);
        done.store(true, Ordering::Relaxed);
        let watched = watcher
            .join()
            .map_err(|_| anyhow!("the watching thread panicked"))??;
        outcome.take(watched);
        flooded
    })?;
    let spoofed = |peer: &SocketAddr| sources.contains(peer.ip());
    let peers = server.peers();
    outcome.accepted = peers.iter().filter(|peer| spoofed(peer)).count() as u64;
    let legitimate = 1 + u64::from(strength.flows) * 2;
    let opens = network
        .server()
        .run_in(|| Counts::take(sources))?
        .passive_opens;
    outcome.extra_opens = opens.saturating_sub(legitimate);
    Ok(outcome)
}

fn start(case: Case, strength: Strength, binary: &Binary) -> Result<Course> {
    let delay = |ms| Link::delay(Duration::from_millis(ms)).rate(100_000_000);
    let links = [delay(case.delays.client), delay(case.delays.server)];
    let (total, reserve) = (strength.budget, strength.budget / 4);
    let budget = format!("[half_open]\ntotal = {total}\nreserve = {reserve}\n");
    case.subject.start(links, binary, strength.seed, &budget)
}

/// Floods while legitimate flows run, then waits for the node to close its half-open connections.
fn flood(
    course: &Course,
    plan: Plan,
    target: SocketAddr,
    strength: Strength,
    outcome: &mut Outcome,
) -> Result<()> {
    let flood = course.network.client().run_in(|| Flood::start(plan))?;
    // The flood needs some time to have an effect.
    thread::sleep(strength.duration / 10);
    outcome.during = fetch_all(course, target, strength.flows);
    outcome.sent = flood.finish()?;
    let Some(node) = &course.node else {
        return Ok(());
    };
    let until = Instant::now() + RELEASE;
    let mut released = false;
    while !released && Instant::now() < until {
        released = node.counter("half_open")? == 0;
        thread::sleep(LOOK);
    }
    outcome.node = Some(NodeCounts {
        released,
        ..NodeCounts::default()
    });
    Ok(())
}

/// Starts `count` flows, evenly spaced, and waits for all.
fn fetch_all(course: &Course, target: SocketAddr, count: u32) -> Flows {
    let mut request = Request::new(target.ip(), target.port(), BYTES);
    request.deadline = PATIENCE;
    let fetch = |index: u32| {
        thread::sleep(SPACING * index);
        transfer::fetch(course.network.client(), &request)
    };
    let results: Vec<Result<Timing>> = thread::scope(|scope| {
        let threads: Vec<_> = (0..count)
            .map(|index| scope.spawn(move || fetch(index)))
            .collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread
                .join()
                .unwrap_or_else(|_| Err(anyhow!("the client's thread panicked")))
        };
        threads.into_iter().map(join).collect()
    });
    let mut flows = Flows::default();
    for result in results {
        match result {
            Ok(timing) => {
                flows.connect.push(timing.connect.as_secs_f64() * 1000.0);
                flows
                    .first_byte
                    .push(timing.first_byte.as_secs_f64() * 1000.0);
            }
            Err(error) => flows.failures.push(format!("{error:#}")),
        }
    }
    flows
}

/// The extremes measured while a flood ran.
#[derive(Debug, Default)]
struct Watched {
    server: Counts,
    node: NodeCounts,
}

/// Reads server and node repeatedly until `done`.
fn watch(course: &Course, sources: Prefix, done: &AtomicBool) -> Result<Watched> {
    let mut most = Watched::default();
    while !done.load(Ordering::Relaxed) {
        let server = course.network.server().run_in(|| Counts::take(sources))?;
        most.server = Counts {
            completed: most.server.completed.max(server.completed),
            half_open: most.server.half_open.max(server.half_open),
            ..server
        };
        if let Some(node) = &course.node {
            let half_open = node.counter("half_open")?;
            most.node.half_open = most.node.half_open.max(half_open);
        }
        thread::sleep(LOOK);
    }
    if let Some(node) = &course.node {
        most.node.over_budget = node.counter("over_budget")?;
        most.node.held = node.counter("syn_acks_held")?;
    }
    Ok(most)
}

impl Outcome {
    fn take(&mut self, watched: Watched) {
        self.completed = watched.server.completed;
        self.server_half_open = watched.server.half_open;
        self.cookies_received = watched.server.cookies_received;
        if let Some(node) = &mut self.node {
            *node = NodeCounts {
                released: node.released,
                ..watched.node
            };
        }
    }

    /// The promises this trial broke.
    pub(super) fn broken(&self, budget: u64) -> Vec<String> {
        let mut broken = Vec::new();
        let Some(node) = self.node else { return broken };
        let mut check = |holds: bool, what: String| {
            if !holds {
                broken.push(what);
            }
        };
        let completed = self.completed.max(self.accepted).max(self.extra_opens);
        check(
            completed == 0,
            format!("{completed} spoofed handshakes completed at the server"),
        );
        check(
            node.half_open <= budget,
            format!(
                "{} half-open upstream connections, {budget} allowed",
                node.half_open
            ),
        );
        // The server's own counter: it would be higher if a node dropped connections silently.
        let seen = self.server_half_open;
        check(
            seen <= budget,
            format!("{seen} half-open connections at the server, {budget} allowed"),
        );
        check(
            node.released,
            format!("half-open connections left {RELEASE:?} after the flood"),
        );
        let failures = self.before.failures.iter().chain(&self.during.failures);
        let failures: Vec<&String> = failures.collect();
        let example = failures.first().map_or("", |failure| failure.as_str());
        check(
            failures.is_empty(),
            format!("{} flows failed: {example}", failures.len()),
        );
        broken
    }
}
