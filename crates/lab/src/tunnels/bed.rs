// SPDX-License-Identifier: Apache-2.0
//! The network of one subject: `client -- node 0 == long link == node 1 -- server`.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::loads::{Load, Outcome};
use super::udt::Proxies;
use super::{Args, Path, Subject};
use crate::chain::{self, Chain, Member};
use crate::content::Received;
use crate::link::{Late, Link, Stats};
use crate::network::{Family, Network};
use crate::node::Node;
use crate::process::wait_for;
use crate::transfer::{Server, exchange};
use crate::{load, socket, stats, threads};

/// One way.
const DELAY: Duration = Duration::from_millis(50);
pub(super) const RTT: Duration = Duration::from_millis(100);
const PORT: u16 = 8001;
/// The only emulated link.
pub(super) const LONG: usize = 0;
/// Warm hops that each worker keeps: all flows of a load may reach one worker.
const POOL: u16 = 80;
/// Connections that each worker dials where they carry all flows.
const TUNNELS: u64 = 2;
const WITHIN: Duration = Duration::from_secs(30);
/// Bound on one transfer: losses of 5 % slow cubic down to less than 50 KB/s.
pub(super) const DEADLINE: Duration = Duration::from_mins(5);
/// How long transfers run before another is timed beside them.
const LEAD: Duration = Duration::from_secs(2);
/// Between two of those, and while a link is watched.
const PAUSE: Duration = Duration::from_millis(200);
/// Bytes in such a pause that are keep-alives at the most.
const QUIET_BYTES: u64 = 20_000;
/// Transfers that are timed beside others, in a round.
const BESIDE: u32 = 5;
/// What a path learns from: as long as slow start takes, and some; and a bound on its time.
const WARM_UP_BYTES: u64 = 20_000_000;
const WARM_UP_MAX: Duration = Duration::from_secs(5);
/// What nodes that choose what carries flows need for two windows of losses.
const CHOICE: Duration = Duration::from_secs(16);

/// The parts of a subject. Dropped in the order of its fields.
#[derive(Debug)]
pub(super) struct Bed {
    pub(super) subject: Subject,
    path: Path,
    shape: Shape,
    nodes: Vec<Node>,
    proxies: Option<Proxies>,
    /// What clients connect to.
    target: SocketAddr,
    chain: Chain,
    _server: Server,
    pub(super) network: Network,
}

/// What the long link is besides its rate and losses.
#[derive(Clone, Copy, Debug)]
struct Shape {
    /// Percent of rate times round-trip time.
    queue: u32,
    /// Milliseconds by which some packets are late at most.
    late: u32,
}

/// The long link at a rate in Mbit/s, with the queue of its usual one.
fn long_link(rate: u32, path: Path, shape: Shape) -> Link {
    let product = u64::from(path.rate) * 1_000_000 / 8 * u64::from(RTT.subsec_millis()) / 1000;
    let link = Link::delay(DELAY).rate(u64::from(rate) * 1_000_000);
    let link = link
        .queue(product * u64::from(shape.queue) / 100)
        .loss(path.loss / 100.0);
    if shape.late == 0 {
        return link;
    }
    link.late(Late {
        share: 0.3,
        at_most: Duration::from_millis(shape.late.into()),
    })
}

impl Bed {
    pub(super) fn build(args: &Args, subject: Subject, path: Path) -> Result<Self> {
        let shape = Shape {
            queue: args.queue,
            late: args.late,
        };
        let link = long_link(path.rate, path, shape);
        let builder = Network::line([Link::Veth, link, Link::Veth]).seed(args.common.seed);
        let network = builder.congestion(subject.congestion_of_ends()).build()?;
        for host in [network.client(), network.server()] {
            chain::prepare(host)?;
        }
        let server = Server::start(network.server(), PORT, subject.congestion_of_ends())?;
        let member = |node| Member {
            listener: network.node_address(node, Family::V4),
            source_addresses: network.calling_address(node, Family::V4),
        };
        let chain = Chain {
            nodes: (0..2).map(member).collect(),
            pool: if subject == Subject::Quic { 0 } else { POOL },
            transport: subject.transport(),
        };
        let places = if subject.has_nodes() { 0..2 } else { 0..0 };
        let nodes = places.map(|place| {
            chain::prepare(network.node(place))?;
            let node = Node::builder(network.node(place), args.binary.find()?).relaying();
            node.config(&chain.config(place)).start()
        });
        let nodes = nodes.collect::<Result<_>>()?;
        let target = SocketAddr::new(network.server_address(Family::V4), PORT);
        let proxies = (subject == Subject::Udt)
            .then(|| Proxies::start(&network, target))
            .transpose()?;
        Ok(Self {
            subject,
            path,
            shape,
            nodes,
            target: proxies.as_ref().map_or(target, |proxies| proxies.address),
            proxies,
            chain,
            _server: server,
            network,
        })
    }

    /// Lets the subject learn the path, and fills its pools.
    pub(super) fn warm_up(&self) -> Result<()> {
        self.ready()?;
        let begun = Instant::now();
        let learn = || {
            let begun = Instant::now();
            self.fetch(WARM_UP_BYTES, || begun.elapsed() > WARM_UP_MAX)
        };
        learn()?;
        while self.subject == Subject::Auto && begun.elapsed() < CHOICE {
            learn()?;
        }
        Ok(())
    }

    /// Waits until all hops are warm, or all tunnels up.
    fn ready(&self) -> Result<()> {
        let Some(dialer) = self.nodes.first() else {
            return Ok(());
        };
        if self.chain.pool > 0 {
            self.chain.wait_until_full(&self.nodes)?;
        }
        if !matches!(self.subject, Subject::Quic | Subject::Auto) {
            return Ok(());
        }
        let up = wait_for(WITHIN, || {
            let workers = dialer.counter("workers")?;
            let up = dialer.counter("tunnels_up")?;
            Ok((up == TUNNELS * workers).then_some(()))
        })?;
        up.context("the tunnels are not up")
    }

    /// Runs a load once.
    pub(super) fn run(&self, load: Load) -> Result<Outcome> {
        self.ready()?;
        self.until_quiet();
        let before = (self.network.stats(), self.cpu()?);
        let (seconds, bytes) = match load.beside {
            None => self.at_once(load)?,
            Some(others) => self.beside(load, *others)?,
        };
        let after = (self.network.stats(), self.cpu()?);
        let sent = |stats: &Stats| stats.sent_bytes;
        Ok(Outcome {
            seconds,
            wire: (sent(&after.0) - sent(&before.0)) as f64 / bytes as f64,
            drops: (after.0.overflowed - before.0.overflowed) as f64,
            cpu: (after.1 - before.1).as_secs_f64() / (bytes as f64 / 1e9),
        })
    }

    /// Waits for the bytes of downloads that were given up, which are still on their way.
    fn until_quiet(&self) {
        let begun = Instant::now();
        let sent = || self.network.stats().sent_bytes;
        let mut before = sent();
        while begun.elapsed() < WITHIN {
            thread::sleep(PAUSE);
            let now = sent();
            if now - before < QUIET_BYTES {
                return;
            }
            before = now;
        }
    }

    /// CPU time of both nodes or proxies so far.
    fn cpu(&self) -> Result<Duration> {
        let proxies = self.proxies.iter().map(Proxies::cpu);
        self.nodes.iter().map(Node::cpu).chain(proxies).sum()
    }

    /// The mean time of the flows of a load, and their bytes.
    fn at_once(&self, load: Load) -> Result<(f64, u64)> {
        let all = threads::at_once(load.flows, |_| self.fetch(load.bytes, || false));
        let all = all.into_iter().collect::<Result<Vec<_>>>()?;
        let times: Vec<f64> = all.iter().map(|(time, _)| time.as_secs_f64()).collect();
        let mean = stats::mean(&times).unwrap_or(0.0);
        Ok((mean, load.bytes * u64::from(load.flows)))
    }

    /// The mean time of a load beside others, and the bytes of all.
    fn beside(&self, load: Load, others: Load) -> Result<(f64, u64)> {
        let is_over = AtomicBool::new(false);
        let over = || is_over.load(Ordering::Relaxed);
        thread::scope(|scope| {
            let fetch_others =
                || threads::at_once(others.flows, |_| self.fetch(others.bytes, over));
            let running = scope.spawn(fetch_others);
            thread::sleep(LEAD);
            let timed = (0..BESIDE).map(|_| {
                thread::sleep(PAUSE);
                ensure!(!running.is_finished(), "the others ended too early");
                Ok(self.fetch(load.bytes, || false)?.0.as_secs_f64())
            });
            let timed = timed.collect::<Result<Vec<f64>>>();
            is_over.store(true, Ordering::Relaxed);
            let others = threads::join(running)
                .into_iter()
                .collect::<Result<Vec<_>>>()?;
            let others: u64 = others.iter().map(|(_, bytes)| bytes).sum();
            let mean = stats::mean(&timed?).unwrap_or(0.0);
            Ok((mean, others + load.bytes * u64::from(BESIDE)))
        })
    }

    /// Fetches from the server until `is_over`, checks every byte. The time and the bytes.
    pub(super) fn fetch(
        &self,
        bytes: u64,
        is_over: impl Fn() -> bool + Sync,
    ) -> Result<(Duration, u64)> {
        let mut last = 0;
        let time = self.fetch_watched(bytes, |_, so_far| {
            last = so_far;
            is_over()
        })?;
        Ok((time, last))
    }

    /// Likewise, and calls `watch` with the time and the bytes so far at each arrival.
    pub(super) fn fetch_watched(
        &self,
        bytes: u64,
        mut watch: impl FnMut(Instant, u64) -> bool + Send,
    ) -> Result<Duration> {
        let target = self.target;
        let object = load::Request::Object(bytes).encode();
        let mut received = Received::of(bytes);
        let timing = self.network.client().run_in(|| {
            exchange(socket::toward(target)?, target, &object, DEADLINE, |part| {
                let so_far = received.take(part)?;
                Ok(watch(Instant::now(), so_far) || part.is_empty())
            })
        })?;
        Ok(timing.complete)
    }

    /// Changes the rate of the long link, and nothing else.
    pub(super) fn change_rate(&self, rate: u32) -> Result<()> {
        self.network
            .change(LONG, long_link(rate, self.path, self.shape))
    }
}
