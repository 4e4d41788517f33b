// SPDX-License-Identifier: Apache-2.0
//! `overlay`: a controller and a dozen nodes as far from each other as the regions of a cloud are.
//!
//! Repeats figure 4 of the MOSTO paper, with more pairs of client and server. Nodes measure their
//! links, the controller plans, and clients fetch objects of nginx over HTTP/1.1, each over a new
//! connection: from the server directly; over the chain that is chosen for the size, with cold hops
//! and with warm ones; and from a front near the client, which is nginx too and keeps its
//! connections to the server open. Links between places have the round-trip times of a published matrix;
//! a packet never takes a way around by itself.
//!
//! There are two overlays: one whose nodes keep no hops open, with a plan for cold hops, and one with
//! both warm. All transfers of a repeat are shuffled. Then a link of a chain gets worse, and another is
//! cut, while new connections are opened all the time and one long transfer goes on.

mod charts;
mod moves;
mod report;
mod testbed;
mod topology;
mod web;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::demo::web::find;
use crate::network::Family;
use crate::node::Binary;
use crate::record::Record;
use crate::repeats::Repeats;
use moves::Move;
use testbed::{Hops, Testbed, Way};
use topology::{Pair, Topology};
use web::Fetched;

/// Bytes in a KB.
const KB: u64 = 1000;
/// How long one transfer may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// Fetches of every kind before those that count: hops are warm then, and the front's connections
/// have grown.
const PRIMERS: u32 = 2;
/// After each of these, so that hops are opened for the next.
const PRIMER_PAUSE: Duration = Duration::from_millis(500);

/// Arguments of `posthaste-lab overlay`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    binary: Binary,
    /// Directory with cloud/aws21_cloudping_ms.tsv
    #[arg(long, default_value = "../shared/data", value_name = "DIR")]
    data: PathBuf,
    /// Places of the matrix, by row from 0
    #[arg(long, value_delimiter = ',', default_values_t = [0, 1, 2, 5, 6, 7, 9, 12, 16, 17, 19, 20], value_name = "ROW")]
    places: Vec<usize>,
    /// Pairs of client and server, by row
    #[arg(long, value_delimiter = ',', default_values = ["12-19", "9-7", "0-2"], value_name = "ROW-ROW")]
    pairs: Vec<String>,
    /// Sizes of objects, in KB of 1000 bytes
    #[arg(long, value_delimiter = ',', default_values_t = [10, 25, 100, 250, 500], value_name = "KB")]
    sizes: Vec<u64>,
    /// Round-trip time between an end and its place, in milliseconds
    #[arg(long, default_value_t = 2.0, value_name = "MS")]
    access: f64,
    /// Rate of every link, in Mbit/s; the emulation is faithful up to about 100
    #[arg(long, default_value_t = 100, value_name = "MBIT", value_parser = clap::value_parser!(u64).range(1..=1000))]
    rate: u64,
    /// IP version
    #[arg(long, value_enum, default_value_t = Family::V4, value_name = "VERSION")]
    family: Family,
    /// Transfers of each kind; the median counts
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    repeats: u32,
    /// How often a link gets worse, and how often one is cut
    #[arg(long, default_value_t = 1, value_name = "COUNT")]
    moves: u32,
    /// Congestion control everywhere
    #[arg(long, default_value = "cubic", value_name = "NAME")]
    congestion: String,
    /// Largest deviation of a median over cold hops from the model, in per cent
    #[arg(long, default_value_t = 10.0, value_name = "PERCENT")]
    tolerance: f64,
    /// By how much a median over warm hops may exceed the front's, in per cent
    #[arg(long, default_value_t = 5.0, value_name = "PERCENT")]
    behind: f64,
    /// Seed of the order of transfers
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Directory for the record and the charts
    #[arg(long, default_value = "lab-output", value_name = "DIR")]
    output: PathBuf,
}

/// Who carries a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Subject {
    Direct,
    Chain(Hops),
    ReverseProxy,
}

impl Subject {
    const ALL: [Self; 4] = [
        Self::Direct,
        Self::Chain(Hops::Cold),
        Self::Chain(Hops::Warm),
        Self::ReverseProxy,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Chain(Hops::Cold) => "chain, cold",
            Self::Chain(Hops::Warm) => "chain, warm",
            Self::ReverseProxy => "front",
        }
    }

    fn way(self) -> Way {
        match self {
            Self::Direct => Way::Around,
            Self::Chain(_) => Way::Through,
            Self::ReverseProxy => Way::ReverseProxy,
        }
    }

    /// In which overlay it is.
    fn hops(self) -> Hops {
        match self {
            Self::Chain(hops) => hops,
            Self::Direct | Self::ReverseProxy => Hops::Warm,
        }
    }
}

/// What is varied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Configuration {
    pair: Pair,
    size: u64,
    subject: Subject,
}

/// Everything that was measured.
#[derive(Debug, Default)]
struct Outcome {
    timings: BTreeMap<Configuration, Vec<Fetched>>,
    /// The places of the chains.
    chains: BTreeMap<Configuration, Vec<usize>>,
    moves: Vec<Move>,
    failures: Vec<String>,
    remarks: Vec<String>,
}

impl Args {
    fn access_delay(&self) -> Duration {
        Duration::from_secs_f64(self.access / 2e3)
    }

    fn check(&self) -> Result<()> {
        ensure!(
            (0.0..=1000.0).contains(&self.access),
            "--access must be 0 to 1000 ms"
        );
        ensure!(
            self.sizes.iter().all(|size| (1..=10_000).contains(size)) && self.sizes.len() <= 100,
            "--sizes must be 1 to 10000 KB, and at most 100"
        );
        ensure!(
            (3..=24).contains(&self.places.len()),
            "--places must be 3 to 24"
        );
        Ok(())
    }

    fn configurations(&self, topology: &Topology) -> Vec<Configuration> {
        let mut all = Vec::new();
        for &pair in &topology.pairs {
            for &size in &self.sizes {
                all.extend(Subject::ALL.map(|subject| Configuration {
                    pair,
                    size,
                    subject,
                }));
            }
        }
        all
    }
}

/// Runs the experiment.
pub fn run(args: &Args) -> Result<()> {
    args.check()?;
    let mut record = Record::start("overlay", args.seed);
    let nginx = find("nginx", "nginx-light")?;
    let topology = Topology::read(args)?;
    let make = |hops| {
        let testbed = Testbed::new(args, &topology, hops, &nginx);
        Ok((
            hops,
            testbed.with_context(|| format!("set the {hops:?} overlay up"))?,
        ))
    };
    let sites = [Hops::Cold, Hops::Warm].map(make);
    let sites: BTreeMap<Hops, Testbed> = sites.into_iter().collect::<Result<_>>()?;
    let mut outcome = Outcome::default();
    measure(args, &topology, &sites, &mut outcome)?;
    for number in 0..args.moves {
        eprintln!(
            "overlay: link {} of {} gets worse, and is cut",
            number + 1,
            args.moves
        );
        if let Err(error) = moves::observe(args, &topology, &sites[&Hops::Warm], &mut outcome.moves)
        {
            outcome.failures.push(format!("{error:#}"));
        }
    }
    for (hops, testbed) in &sites {
        outcome.remarks.push(report::carried(*hops, testbed)?);
    }
    report::write(args, &topology, &outcome, &mut record)
}

/// Runs all transfers, `repeats` times, each time in another order.
fn measure(
    args: &Args,
    topology: &Topology,
    sites: &BTreeMap<Hops, Testbed>,
    outcome: &mut Outcome,
) -> Result<()> {
    let configurations = args.configurations(topology);
    let fetch = |one: &Configuration| {
        let Configuration {
            pair,
            size,
            subject,
        } = *one;
        let testbed = &sites[&subject.hops()];
        let target = testbed::target(args, pair, size, subject.way());
        web::fetch(testbed.client(pair)?, target, size, PATIENCE)
    };
    eprintln!("overlay: everything is up; hops and connections grow");
    for _ in 0..PRIMERS {
        // Without nodes and fronts nothing grows.
        let growing = |one: &&Configuration| one.subject != Subject::Direct;
        for one in configurations.iter().filter(growing) {
            fetch(one).with_context(|| format!("first transfer, {}", one.subject.name()))?;
            if one.subject == Subject::Chain(Hops::Warm) {
                std::thread::sleep(PRIMER_PAUSE);
            }
        }
    }
    let before = hops_taken(sites)?;
    for one in &configurations {
        if let Subject::Chain(hops) = one.subject {
            let chain = sites[&hops].chain(one.pair, one.size * KB)?;
            outcome.chains.insert(*one, chain);
        }
    }
    let repeats = Repeats {
        experiment: "overlay",
        count: args.repeats,
        seed: args.seed,
    };
    let (timings, failures) = (&mut outcome.timings, &mut outcome.failures);
    repeats.run(&configurations, failures, |one| {
        let fetched = fetch(&one).with_context(|| one.subject.name())?;
        timings.entry(one).or_default().push(fetched);
        Ok(())
    })?;
    let after = hops_taken(sites)?;
    for (hops, (warm, cold)) in after {
        let (warm_before, cold_before) = before[&hops];
        outcome.remarks.push(format!(
            "Overlay with {} hops: {} hops had waited, {} were opened for their flows.",
            if hops == Hops::Warm { "warm" } else { "cold" },
            warm - warm_before,
            cold - cold_before
        ));
    }
    Ok(())
}

fn hops_taken(sites: &BTreeMap<Hops, Testbed>) -> Result<BTreeMap<Hops, (u64, u64)>> {
    let each = sites
        .iter()
        .map(|(hops, testbed)| Ok((*hops, testbed.hops_taken()?)));
    each.collect()
}
