// SPDX-License-Identifier: Apache-2.0
//! `transfer-times`: how long transfers take with no node and with one to three, on the path and
//! in chains.
//!
//! Repeats figure 4 of the Miniproxy paper: evenly spaced nodes on a path with 100 ms of round-trip
//! time and 100 Mbit/s, transfers of 10 to 500 KB (of 1000 bytes). `--carriage` says what the nodes
//! know of each other. `transparent` is the paper's: nothing. In a chain the first of so many nodes
//! is on the path and the others are asked, over cold or warm hops; one node needs no chain and is
//! the same in all. Chains are measured in early mode.
//!
//! Every layout has a network of its own, all alive at once, and every node relays in all three
//! accept modes, one per port. The transfers of a repeat are shuffled, so that whatever else the
//! machine does hits all configurations alike. Nothing is left from one transfer to the next but
//! warm hops, and what the nodes of a chain remember: how much the last flows between them could
//! send. Cold hops profit as well, and are judged only for being slower than the model. So that all
//! sizes find the same warm hops, a longer transfer goes before each one that is timed
//! (`--primer`), and all pools are full again before that begins. Without it (`--primer 0`) a
//! transfer finds what nodes take for granted, and what transfers of its like have shown.
//!
//! Transfers over warm hops near the ends are to take so much less time than without a node
//! ([`verdict`]); many at once (`--clients`) as well, as far as the rate of the links lets them.

mod report;
mod setup;
mod verdict;
mod view;
mod way;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::model::Mode;
use crate::network::Family;
use crate::node::Binary;
use crate::record::Record;
use crate::repeats::Repeats;
use crate::transfer::Timing;
use setup::Setup;
use way::{Carriage, Layout, Way};

/// Bytes in a KB.
const KB: u64 = 1000;

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
    /// Which nodes carry transfers, and over which hops
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = [Carriage::Transparent])]
    carriage: Vec<Carriage>,
    /// One-way delay between an end of the path and the node near it, in milliseconds
    #[arg(long, default_value_t = 2.0, value_name = "MS")]
    end: f64,
    /// When a node answers the client; chains are measured in early mode only
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
    /// Congestion control of hops between nodes [default: that of everybody]
    #[arg(long, value_name = "NAME")]
    hop_congestion: Option<String>,
    /// Size of the transfer over warm hops before each one that is timed, in KB, shared by all --clients; 0 for none
    #[arg(long, default_value_t = 0, value_name = "KB", value_parser = clap::value_parser!(u64).range(..=100_000))]
    primer: u64,
    /// Transfers at once; with more than one the model is what they would take if they shared the rate evenly
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    clients: u32,
    /// Initial window of the nodes, in segments
    #[arg(long, default_value_t = 10, value_name = "SEGMENTS")]
    initial_window: u32,
    /// Largest deviation of a median from the model in the early mode, in per cent
    #[arg(long, default_value_t = 3.0, value_name = "PERCENT")]
    tolerance: f64,
    /// Seed of the order of transfers
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Directory for the record and the charts
    #[arg(long, default_value = "lab-output", value_name = "DIR")]
    output: PathBuf,
}

/// What is varied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Configuration {
    way: Way,
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

    fn end(&self) -> Duration {
        Duration::from_secs_f64(self.end / 1e3)
    }

    fn hop_congestion(&self) -> &str {
        self.hop_congestion.as_ref().unwrap_or(&self.congestion)
    }

    /// The ways of one carriage in one mode, the fewest nodes first.
    fn ways(&self, family: Family, carriage: Carriage, mode: Mode) -> Vec<Way> {
        let way = |&nodes: &u32| Way::new(family, carriage, nodes, mode);
        let mut ways: Vec<Way> = self.nodes.iter().map(way).collect();
        ways.sort_unstable_by_key(|way| way.nodes);
        ways.dedup();
        ways
    }

    /// The modes that a carriage is measured in.
    fn modes_of(&self, carriage: Carriage) -> &[Mode] {
        match carriage {
            Carriage::Transparent => &self.modes,
            _ => &[Mode::Early],
        }
    }

    /// Every configuration once, smallest first.
    fn configurations(&self) -> Vec<Configuration> {
        let mut all = Vec::new();
        for &family in &self.family {
            for &carriage in &self.carriage {
                for &mode in self.modes_of(carriage) {
                    for way in self.ways(family, carriage, mode) {
                        let of = |&size: &u64| Configuration {
                            way,
                            bytes: size * KB,
                        };
                        all.extend(self.sizes.iter().map(of));
                    }
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
    let near_ends = args.carriage.iter().any(|carriage| carriage.is_ends());
    ensure!(
        !near_ends || (0.0..args.rtt / 4.0).contains(&args.end),
        "--end must be less than a quarter of --rtt"
    );
    let mut record = Record::start("transfer-times", args.seed);
    let setups = setups(args)?;
    let mut failures = Vec::new();
    let timings = measure(args, &setups, &mut failures)?;
    report::write(args, &setups, &timings, &failures, &mut record)
}

/// A setup for every layout that is needed.
type Setups = BTreeMap<Layout, Setup>;

fn setups(args: &Args) -> Result<Setups> {
    let configurations = args.configurations().into_iter();
    let layouts: BTreeSet<Layout> = configurations.map(|c| c.way.layout()).collect();
    let make = |layout: Layout| {
        let setup = Setup::new(args, layout);
        let setup = setup.with_context(|| format!("set up the network with {}", layout.describe()));
        Ok((layout, setup?))
    };
    layouts.into_iter().map(make).collect()
}

/// Runs all transfers, `repeats` times, each time in another order.
fn measure(args: &Args, setups: &Setups, failures: &mut Vec<String>) -> Result<Timings> {
    let mut timings = Timings::new();
    let configurations = args.configurations();
    // The first transfer of each kind also fills caches on its way and is not counted.
    let smallest = args.sizes.iter().min().copied().unwrap_or_default() * KB;
    for configuration in configurations.iter().filter(|c| c.bytes == smallest) {
        setups[&configuration.way.layout()]
            .fetch(args, *configuration)
            .with_context(|| format!("first transfer: {}", configuration.describe()))?;
    }
    let repeats = Repeats {
        experiment: "transfer-times",
        count: args.repeats,
        seed: args.seed,
    };
    repeats.run(&configurations, failures, |configuration| {
        let fetched = setups[&configuration.way.layout()].fetch(args, configuration);
        let more = fetched.with_context(|| configuration.describe())?;
        timings.entry(configuration).or_default().extend(more);
        Ok(())
    })?;
    Ok(timings)
}

impl Configuration {
    /// In words, for messages.
    fn describe(self) -> String {
        format!("{} KB over {}", self.bytes / KB, self.way.describe())
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
    fn chains_share_networks() {
        // No node, one node, and two and three of each kind.
        let all = [
            "--sizes",
            "10",
            "--modes",
            "early",
            "--carriage",
            "transparent,cold,warm",
        ];
        assert_eq!(args(&all).configurations().len(), 2 + 2 * 3);
        let ends = ["--sizes", "10", "--carriage", "cold-ends,warm-ends"];
        assert_eq!(args(&ends).configurations().len(), 1 + 2);
    }
}
