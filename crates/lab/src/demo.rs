// SPDX-License-Identifier: Apache-2.0
//! `demo`: fetches the same web objects with and without a node on the path.
//!
//! Two networks are alike: a client, a router halfway, a server with a real nginx. In one of them the
//! router also runs a node with default settings, except for the congestion control, which is the
//! same everywhere, whatever the host's default. Fetches are those of
//! [`transfers`](crate::transfers), with the two networks as subjects. Every object is compared with
//! the original, and the server's log must have the client's own address.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::link::Link;
use crate::model;
use crate::network::{Family, Network};
use crate::nginx::{self, LOG_VISITORS, Nginx};
use crate::node::{Binary, Node};
use crate::record::{Common, Record};
use crate::transfer::Timing;
use crate::transfers::{Case, Experiment, Group, KB, Subject, Topology};
use crate::web;

/// How objects reach the client.
const DIRECTLY: &str = "directly";
const BY_NODE: &str = "through a node";

/// The port of the server.
const PORT: u16 = 80;

/// Rate of every link, in Mbit/s.
const RATE_MBIT: u64 = 100;

/// Timeout of one fetch.
const PATIENCE: Duration = Duration::from_secs(60);

/// Arguments of `posthaste-lab demo`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    binary: Binary,
    /// Round-trip time between client and server, in milliseconds
    #[arg(long, default_value_t = 100, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=2000))]
    rtt: u64,
    /// Sizes of the objects, in KB of 1000 bytes
    #[arg(long, value_delimiter = ',', default_values_t = [10, 25, 100, 500], value_name = "KB", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    sizes: Vec<u64>,
    /// IP version
    #[arg(long, value_enum, default_value_t = Family::V4, value_name = "VERSION")]
    family: Family,
    /// Fetches of each object each way; the median counts
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeats: u32,
    #[command(flatten)]
    common: Common,
}

impl Args {
    fn experiment(&self, congestion: &str) -> Experiment {
        let subject = |name: &str, reference| Subject {
            name: name.to_owned(),
            labels: Vec::new(),
            reference,
            goals: Vec::new(),
        };
        let family = self.family;
        Experiment {
            name: "demo",
            subjects: vec![subject(DIRECTLY, None), subject(BY_NODE, Some(0))],
            groups: vec![Group {
                file: String::new(),
                title: format!("Web objects from nginx, {family}"),
                subjects: vec![0, 1],
            }],
            sizes: self.sizes.clone(),
            head_bytes: 0,
            clients: 1,
            repeats: self.repeats,
            conditions: format!(
                "{} ms round-trip time, {RATE_MBIT} Mbit/s, {congestion}",
                self.rtt
            ),
            common: self.common.clone(),
        }
    }
}

/// A network with a web server. Dropped in the order of its fields.
#[derive(Debug)]
struct Testbed {
    way: &'static str,
    node: Option<Node>,
    server: Nginx,
    network: Network,
    family: Family,
}

/// Runs the demonstration.
pub fn run(args: &Args) -> Result<()> {
    let mut record = Record::start("demo", args.common.seed);
    let bed = |way| Testbed::new(args, way);
    let sites = Sites([bed(DIRECTLY)?, bed(BY_NODE)?]);
    let congestion = sites.0[0].network.congestion().to_owned();
    let results = args.experiment(&congestion).run(&sites)?;
    for (subject, testbed) in sites.0.iter().enumerate() {
        // One more: the fetch that filled caches.
        testbed.check(1 + results.timed(|one| one == subject))?;
    }
    let unchanged = "Every object arrived unchanged, and nginx received the client's own address \
                     both ways.";
    record.remarks.push(unchanged.to_owned());
    results.publish(record, Vec::new())
}

/// The two networks, in the order of the subjects.
struct Sites([Testbed; 2]);

impl Topology for Sites {
    fn fetch(&self, case: Case) -> Result<Vec<Timing>> {
        Ok(vec![self.0[case.subject].fetch(case.bytes / KB)?])
    }

    fn path(&self, _case: Case) -> Option<model::Path> {
        // No model has the times of a web server.
        None
    }
}

impl Testbed {
    fn new(args: &Args, way: &'static str) -> Result<Self> {
        // A round trip takes each of the two links twice.
        let hop = Duration::from_millis(args.rtt) / 4;
        let link = Link::delay(hop)
            .rate(RATE_MBIT * 1_000_000)
            .queue(10_000_000);
        let network = Network::line([link.clone(), link]).build()?;
        let start = || {
            let config = node_config(network.congestion());
            let node = Node::builder(network.node(0), args.binary.find()?).relaying();
            node.config(&config).start().context("start the node")
        };
        // Header and object in one segment, as web servers are usually configured.
        let http = format!("{LOG_VISITORS}\ntcp_nopush on;\n");
        let testbed = Self {
            way,
            node: (way == BY_NODE).then(start).transpose()?,
            server: nginx::serve_objects(network.server(), &http, &[PORT], &args.sizes)?,
            network,
            family: args.family,
        };
        // The first fetch fills caches on the path and is not counted.
        testbed.fetch(args.sizes[0])?;
        Ok(testbed)
    }

    fn fetch(&self, size: u64) -> Result<Timing> {
        let server = SocketAddr::new(self.network.server_address(self.family), PORT);
        web::fetch(self.network.client(), server, size, PATIENCE).context(self.way)
    }

    /// Checks that so many fetches took the expected path.
    fn check(&self, fetches: u64) -> Result<()> {
        let client = self.network.client_address(self.family);
        let seen = self.server.visitors()?;
        ensure!(
            seen.len() as u64 == fetches
                && seen.iter().all(|visitor| *visitor == client.to_string()),
            "{}: nginx received {seen:?} instead of {fetches} times {client}",
            self.way
        );
        let Some(node) = &self.node else {
            return Ok(());
        };
        let relayed = node.counter("relays_opened")?;
        ensure!(
            relayed == fetches,
            "the node relayed {relayed} of {fetches} connections"
        );
        Ok(())
    }
}

fn node_config(congestion: &str) -> String {
    ["downstream", "upstream"]
        .map(|side| format!("[defaults.{side}]\ncongestion = {congestion:?}\n"))
        .concat()
}
