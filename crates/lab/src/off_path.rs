// SPDX-License-Identifier: Apache-2.0
//! `off-path`: is the way by a node worth it when the node is not on the path?
//!
//! Repeats figure 5 of the Miniproxy paper: 100 ms of round-trip time and 100 Mbit/s, and one node
//! in the middle, which is first on the path (25 ms to either end) and then farther and farther
//! from it (up to 37.5 ms to either end). The node lengthens the way, and shortens the loops.
//!
//! ```text
//! client ---- access ---- router ---- server
//!                            |
//!                          node
//! ```
//!
//! Here three links meet at a router, so that the direct way stays as it is. A client knows nothing
//! of the node: an access node beside it, without any delay between them, sends its flows there, by
//! a chain of cold hops and in early mode. The flow's SYN is the first packet on every hop, as in
//! the paper, whose clients' SYNs were sent through the node. Every distance has a network of its
//! own, and the transfers of a repeat are shuffled.

mod charts;
mod crossing;
mod report;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::chain::{Chain, Member};
use crate::link::Link;
use crate::model::Path;
use crate::network::{Family, Network};
use crate::node::{Binary, Node};
use crate::record::Record;
use crate::repeats::Repeats;
use crate::transfer::{Request, Server, Timing, fetch};

/// Bytes in a KB.
const KB: u64 = 1000;

/// Where the server listens.
const PORT: u16 = 8001;

/// How long one transfer may take; the slowest takes less than a second.
const DEADLINE: Duration = Duration::from_secs(30);

/// Distances and sizes: as many as charts have colours, no node aside.
const SERIES_MAX: usize = 6;

/// Arguments of `posthaste-lab off-path`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    binary: Binary,
    /// Round-trip time between client and server without the node, in milliseconds
    #[arg(long, default_value_t = 100.0, value_name = "MS")]
    rtt: f64,
    /// One-way delays between node and client, and node and server; a quarter of --rtt is on the path
    #[arg(long, value_delimiter = ',', default_values_t = [25.0, 27.5, 30.0, 32.5, 35.0, 37.5], value_name = "MS")]
    hops: Vec<f64>,
    /// Rate of every link, in Mbit/s; the emulation is faithful up to about 100
    #[arg(long, default_value_t = 100, value_name = "MBIT", value_parser = clap::value_parser!(u64).range(1..=1000))]
    rate: u64,
    /// Sizes of transfers, in KB of 1000 bytes
    #[arg(long, value_delimiter = ',', default_values_t = [10, 25, 50, 100, 250, 500], value_name = "KB")]
    sizes: Vec<u64>,
    /// IP version
    #[arg(long, value_enum, default_value_t = Family::V4, value_name = "VERSION")]
    family: Family,
    /// Transfers per distance and size; the median counts
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..))]
    repeats: u32,
    /// Congestion control of client, server and nodes
    #[arg(long, default_value = "cubic", value_name = "NAME")]
    congestion: String,
    /// Largest deviation of a median from the model, in per cent
    #[arg(long, default_value_t = 3.0, value_name = "PERCENT")]
    tolerance: f64,
    /// Seed of the order of transfers
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Directory for the record and the charts
    #[arg(long, default_value = "lab-output", value_name = "DIR")]
    output: PathBuf,
}

/// Where the node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    /// There is none.
    Nowhere,
    /// At this one-way delay from either end.
    Hops(Duration),
}

/// What is varied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Configuration {
    place: Place,
    bytes: u64,
}

/// All timings of a run, in the order they were taken.
type Timings = BTreeMap<Configuration, Vec<Timing>>;

impl Args {
    /// One-way delay from either end to the router.
    fn to_router(&self) -> Duration {
        milliseconds(self.rtt / 4.0)
    }

    fn places(&self) -> Vec<Place> {
        let hops = self.hops.iter().map(|&hop| Place::Hops(milliseconds(hop)));
        std::iter::once(Place::Nowhere).chain(hops).collect()
    }

    fn configurations(&self) -> Vec<Configuration> {
        let sizes = |place: Place| {
            let of = move |&size: &u64| Configuration {
                place,
                bytes: size * KB,
            };
            self.sizes.iter().map(of)
        };
        self.places().into_iter().flat_map(sizes).collect()
    }

    fn path(&self, place: Place) -> Path {
        let hops = match place {
            Place::Nowhere => vec![self.to_router() * 2],
            // The access node is where the client is.
            Place::Hops(hop) => vec![Duration::ZERO, hop, hop],
        };
        Path::new(hops, self.rate * 1_000_000, self.family)
    }

    fn check(&self) -> Result<()> {
        ensure!(
            (1.0..=2000.0).contains(&self.rtt),
            "--rtt must be between 1 and 2000 ms"
        );
        ensure!(
            self.sizes.iter().all(|size| (1..=100_000).contains(size)),
            "--sizes must be 1 to 100000 KB"
        );
        ensure!(
            self.hops.is_sorted_by(|a, b| a < b)
                && self
                    .hops
                    .iter()
                    .all(|&hop| (self.rtt / 4.0..=2000.0).contains(&hop)),
            "--hops must ascend from a quarter of --rtt, where the node is on the path"
        );
        ensure!(
            self.hops.len() <= SERIES_MAX && self.sizes.len() <= SERIES_MAX,
            "at most {SERIES_MAX} of --hops and of --sizes"
        );
        Ok(())
    }
}

fn milliseconds(number: f64) -> Duration {
    Duration::from_secs_f64(number / 1e3)
}

/// Runs the experiment.
pub fn run(args: &Args) -> Result<()> {
    args.check()?;
    let mut record = Record::start("off-path", args.seed);
    let make = |place: Place| {
        let setup = Setup::new(args, place);
        Ok((place, setup.with_context(|| format!("set up {place}"))?))
    };
    let setups = args.places().into_iter().map(make).collect::<Result<_>>()?;
    let mut failures = Vec::new();
    let timings = measure(args, &setups, &mut failures)?;
    report::write(args, &setups, &timings, &failures, &mut record)
}

/// A network with its server and nodes. Dropped in the order of its fields.
#[derive(Debug)]
struct Setup {
    nodes: Vec<Node>,
    _server: Server,
    network: Network,
}

type Setups = BTreeMap<Place, Setup>;

impl Setup {
    fn new(args: &Args, place: Place) -> Result<Self> {
        // A queue that never drops: slow start must not end before the transfer does.
        let link = |delay| {
            Link::delay(delay)
                .rate(args.rate * 1_000_000)
                .queue(10_000_000)
        };
        let half = args.to_router();
        let builder = match place {
            Place::Nowhere => Network::line([Link::Veth, link(half), link(half)]),
            Place::Hops(hop) => Network::line([Link::Veth, link(half), link(half)])
                .beside(ROUTER, link(hop.saturating_sub(half))),
        };
        let builder = builder.seed(args.seed).congestion(&args.congestion);
        let network = builder.build()?;
        let server = Server::start(network.server(), PORT, &args.congestion)?;
        let nodes = match place {
            Place::Nowhere => Vec::new(),
            Place::Hops(_) => start_nodes(args, &network)?,
        };
        Ok(Self {
            nodes,
            _server: server,
            network,
        })
    }

    fn fetch(&self, args: &Args, configuration: Configuration) -> Result<Timing> {
        let server = self.network.server_address(args.family);
        let request = Request {
            congestion: args.congestion.clone(),
            deadline: DEADLINE,
            ..Request::new(server, PORT, configuration.bytes)
        };
        fetch(self.network.client(), &request)
    }
}

/// The access node and the router, among the nodes of the line.
const ACCESS: usize = 0;
const ROUTER: usize = 1;

/// Starts the access node and the one beside the path.
fn start_nodes(args: &Args, network: &Network) -> Result<Vec<Node>> {
    let access = Member {
        asked_at: network.node_address(ACCESS, args.family),
        source_addresses: network.calling_address(ACCESS, args.family),
    };
    let aside = network.aside_address(0, args.family);
    let aside = Member {
        asked_at: aside,
        source_addresses: aside,
    };
    let chain = Chain {
        nodes: vec![access, aside],
        pool: 0,
        congestion: args.congestion.clone(),
    };
    let namespaces = [network.node(ACCESS), network.aside(0)];
    let start = |(place, namespace)| {
        chain.prepare(namespace)?;
        let config = format!("{}{}", socket_config(args), chain.config(place));
        let node = Node::builder(namespace, args.binary.find()?);
        node.config(&config).start()
    };
    namespaces.into_iter().enumerate().map(start).collect()
}

fn socket_config(args: &Args) -> String {
    let table = |side| format!("[defaults.{side}]\ncongestion = {:?}\n", args.congestion);
    ["downstream", "upstream"].map(table).concat()
}

/// Runs all transfers, `repeats` times, each time in another order.
fn measure(args: &Args, setups: &Setups, failures: &mut Vec<String>) -> Result<Timings> {
    let mut timings = Timings::new();
    let configurations = args.configurations();
    // The first transfer also fills caches on its way and is not counted.
    for (&place, setup) in setups {
        let bytes = KB;
        let first = setup.fetch(args, Configuration { place, bytes });
        first.with_context(|| format!("first transfer, {place}"))?;
    }
    let repeats = Repeats {
        experiment: "off-path",
        count: args.repeats,
        seed: args.seed,
    };
    repeats.run(&configurations, failures, |configuration| {
        let Configuration { place, bytes } = configuration;
        let fetched = setups[&place].fetch(args, configuration);
        let timing = fetched.with_context(|| format!("{} KB, {place}", bytes / KB))?;
        timings.entry(configuration).or_default().push(timing);
        Ok(())
    })?;
    Ok(timings)
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Nowhere => f.write_str("no node"),
            Self::Hops(hop) => write!(f, "{} ms", hop.as_secs_f64() * 1e3),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    pub(super) fn args(words: &[&str]) -> Args {
        Cli::try_parse_from([&["x"], words].concat()).unwrap().args
    }

    #[test]
    fn default_is_published_figure() {
        let args = args(&[]);
        args.check().unwrap();
        assert_eq!(args.configurations().len(), 7 * 6);
        let places: Vec<_> = args.places().iter().map(ToString::to_string).collect();
        assert_eq!(
            places,
            [
                "no node", "25 ms", "27.5 ms", "30 ms", "32.5 ms", "35 ms", "37.5 ms"
            ]
        );
    }

    #[test]
    fn impossible_distances_refused() {
        assert!(args(&["--hops", "24"]).check().is_err());
        assert!(args(&["--hops", "30,30"]).check().is_err());
        assert!(args(&["--rtt", "96", "--hops", "24"]).check().is_ok());
    }
}
