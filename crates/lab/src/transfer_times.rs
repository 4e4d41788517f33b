// SPDX-License-Identifier: Apache-2.0
//! `transfer-times`: how long transfers take with no node and with one to three on the path.
//!
//! Repeats figure 4 of the Miniproxy paper: evenly spaced transparent nodes on a path with 100 ms
//! of round-trip time and 100 Mbit/s, transfers of 10 to 500 KB (of 1000 bytes). Every number of
//! nodes has a network of its own, all alive at once, and every node relays in all three accept
//! modes, one per port. The transfers of a repeat are shuffled, so that whatever else the machine
//! does hits all configurations alike.

mod model;
mod report;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

pub use model::Mode;
use model::Path;

use crate::link::{Link, scramble};
use crate::network::{Family, Network};
use crate::node::{Binary, Node};
use crate::record::Record;
use crate::transfer::{Request, Server, Timing, fetch};

/// Bytes in a KB.
const KB: u64 = 1000;

/// How long one transfer may take; the slowest takes less than a second.
const DEADLINE: Duration = Duration::from_secs(30);

/// Transfers that may fail before the run is given up.
const FAILURES_MAX: usize = 5;

/// Arguments of `posthaste-lab transfer-times`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    binary: Binary,
    /// Round-trip time between client and server, in milliseconds
    #[arg(long, default_value_t = 100.0, value_name = "MS")]
    rtt: f64,
    /// Rate of every link, in Mbit/s; the emulation is faithful up to about 200
    #[arg(long, default_value_t = 100, value_name = "MBIT", value_parser = clap::value_parser!(u64).range(1..=1000))]
    rate: u64,
    /// Sizes of transfers, in KB of 1000 bytes
    #[arg(long, value_delimiter = ',', default_values_t = [10, 25, 50, 100, 250, 500], value_name = "KB")]
    sizes: Vec<u64>,
    /// Numbers of nodes on the path; 0 needs no node program
    #[arg(long, value_delimiter = ',', default_values_t = [0, 1, 2, 3], value_name = "COUNT", value_parser = clap::value_parser!(u32).range(0..=7))]
    nodes: Vec<u32>,
    /// When a node answers the client
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = Mode::ALL)]
    modes: Vec<Mode>,
    /// IP version
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = [Family::V4], value_name = "VERSION")]
    family: Vec<Family>,
    /// Transfers per configuration; the median counts
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..))]
    repeats: u32,
    /// Congestion control of client, server and nodes
    #[arg(long, default_value = "cubic", value_name = "NAME")]
    congestion: String,
    /// Initial window of the nodes, in segments
    #[arg(long, default_value_t = 10, value_name = "SEGMENTS")]
    initial_window: u32,
    /// Largest deviation of a median from the model in the early mode, in per cent
    #[arg(long, default_value_t = 3.0, value_name = "PERCENT")]
    tolerance: f64,
    /// Seed of the order of transfers
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Directory for the record and the pictures
    #[arg(long, default_value = "lab-output", value_name = "DIR")]
    output: PathBuf,
}

/// What is varied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Configuration {
    family: Family,
    nodes: u32,
    /// Of no effect without nodes.
    mode: Mode,
    bytes: u64,
}

/// All timings of a run, in the order they were taken.
type Timings = BTreeMap<Configuration, Vec<Timing>>;

impl Args {
    fn rtt(&self) -> Duration {
        Duration::from_secs_f64(self.rtt / 1e3)
    }

    fn bits_per_second(&self) -> u64 {
        self.rate * 1_000_000
    }

    fn path(&self, configuration: Configuration) -> Path {
        Path::even(
            self.rtt(),
            configuration.nodes,
            self.bits_per_second(),
            configuration.family,
        )
    }

    /// Every configuration once, smallest first.
    fn configurations(&self) -> Vec<Configuration> {
        let mut all = Vec::new();
        for &family in &self.family {
            for &nodes in &self.nodes {
                // Without a node there is nothing to choose a mode for.
                let modes = if nodes == 0 {
                    &[Mode::Early][..]
                } else {
                    &self.modes
                };
                for &mode in modes {
                    let of = |&size: &u64| Configuration {
                        family,
                        nodes,
                        mode,
                        bytes: size * KB,
                    };
                    all.extend(self.sizes.iter().map(of));
                }
            }
        }
        all.sort_unstable();
        all.dedup();
        all
    }
}

/// Runs the experiment.
pub fn run(args: &Args) -> Result<()> {
    ensure!(
        (0.1..=2000.0).contains(&args.rtt),
        "--rtt must be between 0.1 and 2000 ms"
    );
    ensure!(
        args.sizes.iter().all(|size| (1..=100_000).contains(size)),
        "--sizes must be 1 to 100000 KB"
    );
    let mut record = Record::start("transfer-times", args.seed);
    let setups = setups(args)?;
    let mut failures = Vec::new();
    let timings = measure(args, &setups, &mut failures)?;
    report::write(args, &setups, &timings, &failures, &mut record)
}

/// A network with its servers and nodes. Dropped in the order of its fields.
#[derive(Debug)]
struct Setup {
    nodes: Vec<Node>,
    _servers: Vec<Server>,
    network: Network,
}

fn setups(args: &Args) -> Result<BTreeMap<u32, Setup>> {
    let make = |&nodes: &u32| {
        let setup = Setup::new(args, nodes);
        Ok((
            nodes,
            setup.with_context(|| format!("set up the network with {nodes} nodes"))?,
        ))
    };
    args.nodes.iter().map(make).collect()
}

impl Setup {
    fn new(args: &Args, nodes: u32) -> Result<Self> {
        let hop = args.rtt() / 2 / (nodes + 1);
        // A queue that never drops: slow start must not end before the transfer does.
        let link = Link::delay(hop)
            .rate(args.bits_per_second())
            .queue(10_000_000);
        let links = vec![link; nodes as usize + 1];
        let network = Network::line(links)
            .seed(args.seed)
            .congestion(&args.congestion)
            .build()?;
        let serve = |mode: Mode| Server::start(network.server(), port(mode), &args.congestion);
        let servers = Mode::ALL.into_iter().map(serve).collect::<Result<_>>()?;
        let start = |namespace| {
            Node::builder(namespace, args.binary.find()?)
                .config(&node_config(args))
                .start()
        };
        let nodes = network.nodes().iter().map(start).collect::<Result<_>>()?;
        Ok(Self {
            nodes,
            _servers: servers,
            network,
        })
    }

    fn fetch(&self, args: &Args, configuration: Configuration) -> Result<Timing> {
        let server = self.network.server_address(configuration.family);
        let request = Request {
            congestion: args.congestion.clone(),
            deadline: DEADLINE,
            ..Request::new(server, port(configuration.mode), configuration.bytes)
        };
        fetch(self.network.client(), &request)
    }
}

/// The port whose connections a node accepts in `mode`.
fn port(mode: Mode) -> u16 {
    match mode {
        Mode::Early => 8001,
        Mode::Strict => 8002,
        Mode::Late => 8003,
    }
}

fn node_config(args: &Args) -> String {
    let mut toml = String::new();
    for side in ["downstream", "upstream"] {
        toml.push_str(&format!(
            "[defaults.{side}]\ncongestion = {:?}\ninitial_window = {}\n",
            args.congestion, args.initial_window
        ));
    }
    for mode in Mode::ALL {
        let (name, port) = (mode.name(), port(mode));
        toml.push_str(&format!(
            "[[rule]]\nname = {name:?}\naction = \"relay\"\naccept = {name:?}\nports = [{port}]\n"
        ));
    }
    toml
}

/// Runs all transfers, `repeats` times, each time in another order.
fn measure(
    args: &Args,
    setups: &BTreeMap<u32, Setup>,
    failures: &mut Vec<String>,
) -> Result<Timings> {
    let mut timings = Timings::new();
    let configurations = args.configurations();
    // The first transfer of each kind also fills caches on its way and is not counted.
    let smallest = args.sizes.iter().min().copied().unwrap_or_default() * KB;
    for configuration in configurations.iter().filter(|c| c.bytes == smallest) {
        setups[&configuration.nodes]
            .fetch(args, *configuration)
            .context("first transfer")?;
    }
    for repeat in 0..args.repeats {
        let round = repeat + 1;
        eprintln!(
            "transfer-times: repeat {round} of {}, {} transfers",
            args.repeats,
            configurations.len()
        );
        for configuration in shuffled(&configurations, args.seed, repeat) {
            match setups[&configuration.nodes].fetch(args, configuration) {
                Ok(timing) => timings.entry(configuration).or_default().push(timing),
                Err(error) => {
                    let failure = format!("{}: {error:#}", configuration.describe());
                    eprintln!("transfer-times: {failure}");
                    failures.push(failure);
                }
            }
            ensure!(
                failures.len() <= FAILURES_MAX,
                "more than {FAILURES_MAX} transfers failed"
            );
        }
    }
    Ok(timings)
}

impl Configuration {
    /// In words, for messages.
    fn describe(self) -> String {
        let Self {
            family,
            nodes,
            mode,
            bytes,
        } = self;
        format!(
            "{} KB over {family}, {nodes} nodes, {}",
            bytes / KB,
            mode.name()
        )
    }
}

/// The items in an order given by the seed and the round (Fisher and Yates' shuffle).
fn shuffled(items: &[Configuration], seed: u64, round: u32) -> Vec<Configuration> {
    let mut items = items.to_vec();
    let mut state = scramble(seed) ^ u64::from(round);
    for end in (1..items.len()).rev() {
        state = scramble(state);
        let chosen = usize::try_from(state % (end as u64 + 1)).unwrap_or(end);
        items.swap(end, chosen);
    }
    items
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

    fn args(words: &[&str]) -> Args {
        Cli::try_parse_from([&["x"], words].concat()).unwrap().args
    }

    #[test]
    fn the_default_is_the_papers_figure() {
        // Six sizes for no node and for three modes with one, two and three nodes.
        assert_eq!(args(&[]).configurations().len(), 6 + 3 * 3 * 6);
        assert_eq!(
            args(&["--nodes", "0", "--family", "4,6"])
                .configurations()
                .len(),
            12
        );
    }

    #[test]
    fn a_shuffle_loses_nothing_and_follows_the_seed() {
        let all = args(&[]).configurations();
        let once = shuffled(&all, 1, 0);
        assert_ne!(once, all);
        assert_eq!(once, shuffled(&all, 1, 0));
        assert_ne!(once, shuffled(&all, 1, 1));
        assert_ne!(once, shuffled(&all, 2, 0));
        let mut sorted = once;
        sorted.sort_unstable();
        assert_eq!(sorted, all);
    }

    #[test]
    fn every_mode_has_a_rule() {
        let toml = node_config(&args(&[]));
        for part in [
            "accept = \"strict\"\nports = [8002]",
            "initial_window = 10",
            "[defaults.upstream]",
        ] {
            assert!(toml.contains(part), "{part} in {toml}");
        }
    }
}
