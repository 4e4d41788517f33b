// SPDX-License-Identifier: Apache-2.0
//! `overlay`: transfers over a controller's chains of a dozen nodes, at the distances of the
//! regions of a cloud.
//!
//! Repeats figure 4 of the MOSTO paper, with more pairs of client and server. Nodes measure their
//! links, the controller plans, and clients fetch objects of nginx over HTTP/1.1, each over a new
//! connection: from the server directly; over the chain that is chosen for the size, with cold hops
//! and with warm ones; and from a reverse proxy near the client, which is nginx too and keeps its
//! connections to the server open. Links between places have the round-trip times of a published
//! matrix, and packets take the link between two places, never another one.
//!
//! There are two overlays: one whose nodes keep no hops open, with a plan for cold hops, and one
//! with both warm. After the transfers a link of a chain gets slower, and another is cut, while
//! clients continuously open new connections and one long transfer runs.

mod events;
mod moves;
mod testbed;
mod topology;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::report::emulation_remark;
use super::{Case, Experiment, Goal, Group, KB, Moment, Subject};
use crate::chart::{Across, Chart, Curve};
use crate::model::{Hops, Path};
use crate::names::Named;
use crate::network::Family;
use crate::node::Binary;
use crate::record::{Common, Record};
use crate::transfer::Timing;
use crate::web;
use testbed::{Kind, Testbed};
use topology::{Pair, Topology};

/// Round-trip time between an end and its place, in milliseconds.
const ACCESS_MS: f64 = 2.0;
/// Rate of every link, in bits per second.
const RATE: u64 = 100_000_000;
/// The congestion control everywhere.
const CONGESTION: &str = "cubic";

/// Timeout of one transfer.
const PATIENCE: Duration = Duration::from_secs(30);
/// Fetches of every kind before the measured ones: they open warm hops, and grow the windows of the
/// reverse proxy's connections.
const PRIMERS: u32 = 2;
/// Pause after each of these, in which hops are opened for the next.
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
    /// IP version
    #[arg(long, value_enum, default_value_t = Family::V4, value_name = "VERSION")]
    family: Family,
    /// Transfers of each kind; the median counts
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    repeats: u32,
    /// How often a link gets worse, and how often one is cut
    #[arg(long, default_value_t = 1, value_name = "COUNT")]
    moves: u32,
    /// Largest deviation of a median over cold hops from the model, in per cent
    #[arg(long, default_value_t = 10.0, value_name = "PERCENT")]
    tolerance: f64,
    /// By how much a median over warm hops may exceed the reverse proxy's, in per cent
    #[arg(long, default_value_t = 5.0, value_name = "PERCENT")]
    behind: f64,
    #[command(flatten)]
    common: Common,
}

/// The kind of a subject, and the index of its pair.
fn kind_of(subject: usize) -> (Kind, usize) {
    (
        Kind::ALL[subject % Kind::ALL.len()],
        subject / Kind::ALL.len(),
    )
}

impl Args {
    fn check(&self) -> Result<()> {
        ensure!(
            self.sizes.is_sorted_by(|a, b| a < b)
                && self.sizes.iter().all(|size| (1..=10_000).contains(size))
                && self.sizes.len() <= 100,
            "--sizes must ascend, from 1 to 10000 KB, and be at most 100"
        );
        ensure!(
            (3..=24).contains(&self.places.len()),
            "--places must be 3 to 24"
        );
        Ok(())
    }

    /// The goals of a subject; `first` is the first subject of its pair.
    fn goals(&self, kind: Kind, first: usize) -> Vec<Goal> {
        match kind {
            Kind::Chain(Hops::Warm) => vec![Goal::Behind {
                subject: first + Kind::ALL.len() - 1,
                percent: self.behind,
            }],
            Kind::Chain(_) => vec![Goal::Model {
                moment: Moment::Complete,
                percent: self.tolerance,
                may_be_less: false,
            }],
            Kind::Direct | Kind::ReverseProxy => Vec::new(),
        }
    }

    fn experiment(&self, topology: &Topology) -> Experiment {
        let (mut subjects, mut groups) = (Vec::new(), Vec::new());
        for (pair, rows) in topology.pairs.iter().zip(&self.pairs) {
            let first = subjects.len();
            let name = topology.chain_name(&[pair.client, pair.server]);
            let rtt_ms = topology.rtt_ms(pair.client, pair.server);
            subjects.extend(Kind::ALL.map(|kind| Subject {
                name: kind.name().to_owned(),
                labels: vec![("pair", name.clone())],
                reference: (kind != Kind::Direct).then_some(first),
                goals: self.goals(kind, first),
            }));
            groups.push(Group {
                file: rows.clone(),
                title: format!("{name}, {rtt_ms} ms round-trip time"),
                subjects: (first..subjects.len()).collect(),
            });
        }
        Experiment {
            name: "overlay",
            subjects,
            groups,
            sizes: self.sizes.clone(),
            // nginx sends the header before an object in a packet of its own.
            head_bytes: u64::from(u32::from(crate::link::MTU) - self.family.header_bytes()),
            clients: 1,
            repeats: self.repeats,
            conditions: format!(
                "{ACCESS_MS} ms more at either end, {} Mbit/s, {CONGESTION}, {}",
                RATE / 1_000_000,
                self.family
            ),
            common: self.common.clone(),
        }
    }
}

/// Runs the experiment.
pub fn run(args: &Args) -> Result<()> {
    args.check()?;
    let mut record = Record::start("overlay", args.common.seed);
    record.parameter("tolerance_percent", args.tolerance);
    record.parameter("behind_percent", args.behind);
    let topology = Topology::read(args)?;
    record.parameter("places", topology.spots());
    let experiment = args.experiment(&topology);
    let mut overlay = Overlay {
        sites: sites(args, &topology)?,
        topology,
        chains: BTreeMap::new(),
        args,
    };
    // Before the first reading of counters: the first flows open the hops.
    overlay.warm_up(&experiment)?;
    let before = overlay.hops_taken()?;
    let results = experiment.run(&overlay)?;
    record.remarks = overlay.remarks(&before)?;
    record.charts.push(overlay.map());
    let failures = events::observe(&overlay, &mut record);
    results.publish(record, failures)
}

/// Overlays by their hops, and the chains of transfers.
struct Overlay<'a> {
    args: &'a Args,
    topology: Topology,
    sites: BTreeMap<Hops, Testbed>,
    /// The places on each chain.
    chains: BTreeMap<Case, Vec<usize>>,
}

fn sites(args: &Args, topology: &Topology) -> Result<BTreeMap<Hops, Testbed>> {
    let make = |hops| {
        let testbed = Testbed::new(args, topology, hops);
        let testbed = testbed.with_context(|| format!("set the {hops:?} overlay up"));
        Ok((hops, testbed?))
    };
    [Hops::Cold, Hops::Warm].into_iter().map(make).collect()
}

impl super::Topology for Overlay<'_> {
    fn fetch(&self, case: Case) -> Result<Vec<Timing>> {
        let (kind, _) = kind_of(case.subject);
        let (pair, size) = (self.pair(case), case.bytes / KB);
        let target = testbed::target(self.args, pair, size, kind);
        let client = self.sites[&kind.hops()].client(pair)?;
        Ok(vec![web::fetch(client, target, size, PATIENCE)?])
    }

    fn path(&self, case: Case) -> Option<Path> {
        let (kind, _) = kind_of(case.subject);
        let chain = match kind {
            // A reverse proxy has no model.
            Kind::ReverseProxy => return None,
            Kind::Direct => None,
            Kind::Chain(_) => Some(self.chains.get(&case)?.as_slice()),
        };
        let (pair, family) = (self.pair(case), self.args.family);
        Some(self.topology.path(family, pair, chain, kind.hops()))
    }

    fn way(&self, case: Case) -> Option<String> {
        Some(self.topology.chain_name(self.chains.get(&case)?))
    }
}

impl Overlay<'_> {
    fn pair(&self, case: Case) -> Pair {
        self.topology.pairs[kind_of(case.subject).1]
    }

    /// Opens hops and grows windows, and queries the controller for the chains.
    fn warm_up(&mut self, experiment: &Experiment) -> Result<()> {
        use super::Topology as _;
        eprintln!("overlay: everything is up; hops and connections grow");
        for _ in 0..PRIMERS {
            for case in experiment.cases() {
                let (kind, _) = kind_of(case.subject);
                // Without nodes and reverse proxies there is nothing to warm up.
                if kind == Kind::Direct {
                    continue;
                }
                let first = self.fetch(case);
                first.with_context(|| format!("first transfer, {}", experiment.describe(case)))?;
                // A pool is refilled after a flow has taken a hop of it.
                if kind == Kind::Chain(Hops::Warm) {
                    thread::sleep(PRIMER_PAUSE);
                }
            }
        }
        for case in experiment.cases() {
            // After the transfers that warm up: the plan may still have changed during them.
            if let (Kind::Chain(hops), _) = kind_of(case.subject) {
                let chain = self.sites[&hops].chain(self.pair(case), case.bytes)?;
                self.chains.insert(case, chain);
            }
        }
        Ok(())
    }

    /// By overlay, the number of flows over a warm hop, and over a cold one.
    fn hops_taken(&self) -> Result<BTreeMap<Hops, (u64, u64)>> {
        let sites = self.sites.iter();
        sites
            .map(|(hops, testbed)| Ok((*hops, testbed.hops_taken()?)))
            .collect()
    }

    /// The chains of the largest transfers over warm hops, on a map.
    fn map(&self) -> Chart {
        let largest = self.args.sizes.last().copied().unwrap_or(0).to_string();
        let kind = Kind::Chain(Hops::Warm).name();
        let pairs = self.topology.pairs.iter();
        let curve = |pair: &Pair| {
            let pair = self.topology.chain_name(&[pair.client, pair.server]);
            let labels = [("pair", pair.as_str()), ("subject", kind), ("KB", &largest)];
            Curve::new(pair.as_str(), Moment::Complete.name(), &labels)
        };
        Chart {
            file: "map".to_owned(),
            title: "Chains that the controller chose".to_owned(),
            subtitle: format!("transfers of {largest} KB over warm hops; dashed: the direct path"),
            across_label: String::new(),
            value_label: String::new(),
            across: Across::Map,
            curves: pairs.map(curve).collect(),
            note: "Places stand at their longitude and latitude; the links are emulated."
                .to_owned(),
        }
    }

    fn remarks(&self, before: &BTreeMap<Hops, (u64, u64)>) -> Result<Vec<String>> {
        let mut remarks = Vec::new();
        for (hops, (warm, cold)) in self.hops_taken()? {
            let (warm_before, cold_before) = before[&hops];
            let name = if hops == Hops::Warm { "warm" } else { "cold" };
            remarks.push(format!(
                "Overlay with {name} hops: {} hops had waited, {} were opened for their flows.",
                warm - warm_before,
                cold - cold_before
            ));
            let stats = self.sites[&hops].mesh.stats();
            remarks.push(emulation_remark(
                &format!("the overlay with {name} hops"),
                stats,
            ));
        }
        Ok(remarks)
    }
}
