// SPDX-License-Identifier: Apache-2.0
//! `transfer-times`: transfers with no node, with one to three on the path or in chains, and with
//! one beside the path.
//!
//! Repeats figures 4 and 5 of the Miniproxy paper: a path with 100 ms of round-trip time and 100
//! Mbit/s, transfers of 10 to 500 KB (of 1000 bytes), and nodes on it or beside it, in early mode.
//! `--carriage` selects the configuration of nodes. `transparent` is the paper's: nodes without
//! configuration of each other; with `packet` they translate packets, which saves a round trip of
//! the handshake and divides no slow start. In a chain the first node is on the path and sends flows to the next,
//! over cold or warm hops; one node needs no chain and is the same in all. A node beside the path
//! makes the path longer and the hops shorter: three links meet at a router, so that the direct path
//! is unchanged, and a node beside the client sends its flows there.
//!
//! Every layout has its own network, all at the same time. A transfer leaves nothing for the next but
//! warm hops and the nodes' estimates: the bandwidth of the last flows between them. So cold hops may
//! beat the model, and only being slower counts as a failure. All pools are full before a transfer
//! begins.

mod testbed;
mod way;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, Result};

use super::report::emulation_remark;
use super::{Case, Experiment, Goal, Group, KB, Moment, Results, Subject, Topology};
use crate::model::Path;
use crate::names::Named;
use crate::network::Family;
use crate::node::Binary;
use crate::process::wait_until;
use crate::record::{Common, Record};
use crate::transfer::Timing;
use testbed::Testbed;
use way::{Carriage, Way};

/// The round-trip time of the published path.
const RTT: Duration = Duration::from_millis(100);

/// One-way delay between an end of the path and the node near it.
const END: Duration = Duration::from_millis(2);

/// One-way delays between a node beside the path and either end, in microseconds. A quarter of
/// [`RTT`] is on the path.
const ASIDE_US: [u64; 6] = [25_000, 27_500, 30_000, 32_500, 35_000, 37_500];

/// How long nodes may take to learn what a server grants; two transfers should do.
const OBSERVED: Duration = Duration::from_secs(30);

/// The congestion control of client, server and nodes.
const CONGESTION: &str = "cubic";

/// How much less time transfers over warm hops near the ends must take than without nodes, by size:
/// bytes, and percent.
const GAINS: &[(u64, f64)] = &[(25 * KB, 60.0), (100 * KB, 68.0), (500 * KB, 75.0)];

/// Arguments of `posthaste-lab transfer-times`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    binary: Binary,
    /// Rate of every link, in Mbit/s; the emulation is faithful up to about 200
    #[arg(long, default_value_t = 100, value_name = "MBIT", value_parser = clap::value_parser!(u64).range(1..=1000))]
    rate: u64,
    /// Sizes of transfers, in KB of 1000 bytes
    #[arg(long, value_delimiter = ',', default_values_t = [10, 25, 50, 100, 250, 500], value_name = "KB", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    sizes: Vec<u64>,
    /// Numbers of nodes on the path; 0 needs no node program
    #[arg(long, value_delimiter = ',', default_values_t = [0, 1, 2, 3], value_name = "COUNT", value_parser = clap::value_parser!(u32).range(0..=7))]
    nodes: Vec<u32>,
    /// Which nodes carry transfers, and over which hops
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = [Carriage::Transparent])]
    carriage: Vec<Carriage>,
    /// IP version
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = [Family::V4], value_name = "VERSION")]
    family: Vec<Family>,
    /// Transfers per configuration; the median counts
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..))]
    repeats: u32,
    /// Transfers at once; with more than one the model is what they would take if they shared the rate evenly
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    clients: u32,
    /// Largest deviation of a median from the model, in per cent
    #[arg(long, default_value_t = 3.0, value_name = "PERCENT")]
    tolerance: f64,
    #[command(flatten)]
    common: Common,
}

impl Args {
    fn bits_per_second(&self) -> u64 {
        self.rate * 1_000_000
    }

    /// The ways of one carriage, the fewest nodes first.
    fn ways(&self, family: Family, carriage: Carriage) -> Vec<Way> {
        if carriage == Carriage::OffPath {
            let aside = ASIDE_US.into_iter().map(Duration::from_micros);
            let ways = aside.map(|aside| Way::off_path(family, aside));
            return std::iter::once(Way::direct(family)).chain(ways).collect();
        }
        let way = |&nodes: &u32| Way::new(family, carriage, nodes);
        let mut ways: Vec<Way> = self.nodes.iter().map(way).collect();
        // The reference of a group comes first.
        ways.sort_unstable_by_key(|way| way.nodes);
        ways.dedup();
        ways
    }

    /// All ways by groups of comparison.
    fn groups(&self) -> Vec<(Group, Vec<Way>)> {
        let of = |&family: &Family| {
            let mut groups = Vec::new();
            for &carriage in self.carriage.iter().filter(|carriage| !carriage.is_ends()) {
                groups.push((heading(family, carriage), self.ways(family, carriage)));
            }
            groups.extend(self.ends(family));
            groups
        };
        self.family.iter().flat_map(of).collect()
    }

    /// Nodes near the ends, over all kinds of hops that are measured.
    fn ends(&self, family: Family) -> Option<(Group, Vec<Way>)> {
        let measured = self.carriage.iter().filter(|carriage| carriage.is_ends());
        let ways = measured.flat_map(|&carriage| self.ways(family, carriage));
        let ways: BTreeSet<Way> = ways.collect();
        let place = format!("two nodes, {END:?} from the ends");
        let group = group("ends", &place, family);
        (!ways.is_empty()).then(|| (group, ways.into_iter().collect()))
    }

    fn subject(&self, way: Way, reference: Option<usize>) -> Subject {
        Subject {
            name: way.name(),
            labels: way.labels(),
            reference: reference.filter(|_| way.nodes > 0),
            goals: self.goals(way),
        }
    }

    /// The model applies to one transfer at a time.
    fn goals(&self, way: Way) -> Vec<Goal> {
        let mut goals = Vec::new();
        // Several transfers share the rate unevenly, which no model describes.
        if self.clients == 1 {
            let is_exact = !way.carriage.is_chain() || way.carriage == Carriage::OffPath;
            let moments = [Moment::FirstByte, Moment::Complete];
            goals.extend(moments.map(|moment| Goal::Model {
                moment,
                percent: self.tolerance,
                may_be_less: !is_exact,
            }));
        }
        if way.carriage == Carriage::WarmEnds {
            goals.push(Goal::Saved {
                by_size: GAINS,
                tolerance: self.tolerance,
            });
        }
        goals
    }

    /// The experiment, and the ways of its subjects.
    fn experiment(&self) -> (Experiment, Vec<Way>) {
        let mut ways: Vec<Way> = Vec::new();
        let mut groups = Vec::new();
        for (mut group, of_group) in self.groups() {
            for way in of_group {
                let known = ways.iter().position(|one| *one == way);
                group.subjects.push(known.unwrap_or(ways.len()));
                ways.extend(known.is_none().then_some(way));
            }
            groups.push(group);
        }
        let direct = |way: &Way| ways.iter().position(|one| *one == Way::direct(way.family));
        let subjects = ways.iter().map(|way| self.subject(*way, direct(way)));
        let experiment = Experiment {
            name: "transfer-times",
            subjects: subjects.collect(),
            groups,
            sizes: self.sizes.clone(),
            head_bytes: 0,
            clients: self.clients,
            repeats: self.repeats,
            conditions: format!(
                "{RTT:?} round-trip time, {} Mbit/s, {CONGESTION}",
                self.rate
            ),
            common: self.common.clone(),
        };
        (experiment, ways)
    }
}

fn heading(family: Family, carriage: Carriage) -> Group {
    let title = match carriage {
        Carriage::Transparent => "evenly spaced nodes on the path".to_owned(),
        Carriage::Packet => "evenly spaced nodes on the path, which translate packets".to_owned(),
        Carriage::OffPath => "a node beside the path".to_owned(),
        _ => format!("chains of evenly spaced nodes, {} hops", carriage.name()),
    };
    group(carriage.name(), &title, family)
}

fn group(file: &str, what: &str, family: Family) -> Group {
    Group {
        file: format!("{file}-{family}").to_lowercase(),
        title: format!("{family}, {what}"),
        subjects: Vec::new(),
    }
}

/// Runs the experiment.
pub fn run(args: &Args) -> Result<()> {
    let mut record = Record::start("transfer-times", args.common.seed);
    record.parameter("tolerance_percent", args.tolerance);
    let (experiment, ways) = args.experiment();
    let line = Line {
        testbeds: testbeds(args, &ways)?,
        ways,
        args,
    };
    line.fill_caches()?;
    let results = experiment.run(&line)?;
    record.remarks = line.remarks(&results)?;
    results.publish(record, Vec::new())
}

/// A network for every layout, and the ways of the subjects.
struct Line<'a> {
    args: &'a Args,
    ways: Vec<Way>,
    testbeds: BTreeMap<Way, Testbed>,
}

fn testbeds(args: &Args, ways: &[Way]) -> Result<BTreeMap<Way, Testbed>> {
    // All networks at once, as transfers of a repeat change between them.
    let layouts: BTreeSet<Way> = ways.iter().map(|way| way.layout()).collect();
    let make = |layout: Way| {
        let testbed = Testbed::new(args, layout);
        let testbed =
            testbed.with_context(|| format!("set up the network with {}", layout.describe()));
        Ok((layout, testbed?))
    };
    layouts.into_iter().map(make).collect()
}

impl Topology for Line<'_> {
    fn fetch(&self, case: Case) -> Result<Vec<Timing>> {
        let way = self.ways[case.subject];
        self.testbeds[&way.layout()].fetch(self.args, way, case.bytes)
    }

    fn path(&self, case: Case) -> Option<Path> {
        Some(self.ways[case.subject].path(self.args))
    }
}

impl Line<'_> {
    /// The first transfer of each kind also fills caches on the path and is not counted.
    fn fill_caches(&self) -> Result<()> {
        let bytes = self.args.sizes.iter().min().copied().unwrap_or(1) * KB;
        for (subject, way) in self.ways.iter().enumerate() {
            let first = self.fetch(Case { subject, bytes });
            first.with_context(|| format!("first transfer, {}", way.name()))?;
            if way.carriage == Carriage::Packet {
                self.observe(Case { subject, bytes })?;
            }
        }
        Ok(())
    }

    /// Repeats a transfer until all nodes have learned from one what the server grants.
    fn observe(&self, case: Case) -> Result<()> {
        let testbed = &self.testbeds[&self.ways[case.subject].layout()];
        let before = testbed.translated()?;
        let is_observed = || {
            let more = self.fetch(case).and_then(|_| testbed.translated());
            more.is_ok_and(|now| now > before)
        };
        wait_until("flows on the packet path", OBSERVED, is_observed)
    }

    /// The exactness of the emulation, and nodes that relayed fewer connections than expected, or
    /// not over the intended hops: then the record would be wrong.
    fn remarks(&self, results: &Results) -> Result<Vec<String>> {
        let mut remarks = Vec::new();
        for (layout, testbed) in &self.testbeds {
            let passed = results.timed(|subject| self.ways[subject].layout() == *layout);
            for (place, node) in testbed.nodes.iter().enumerate() {
                for (counter, is_expected) in layout.counters(place) {
                    let count = node.counter(counter)?;
                    // More than expected is right: first transfers pass as well.
                    if is_expected && count < passed || !is_expected && count > 0 {
                        remarks.push(format!(
                            "{passed} flows passed node {} of {}, whose {counter} is {count}.",
                            place + 1,
                            layout.describe()
                        ));
                    }
                }
            }
            remarks.push(emulation_remark(
                &layout.describe(),
                testbed.network.stats(),
            ));
        }
        Ok(remarks)
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

    fn subjects(words: &[&str]) -> usize {
        args(words).experiment().0.subjects.len()
    }

    fn files(words: &[&str]) -> Vec<String> {
        let (experiment, _) = args(words).experiment();
        experiment
            .groups
            .into_iter()
            .map(|group| group.file)
            .collect()
    }

    #[test]
    fn default_is_published_figure() {
        // No node, and one to three.
        assert_eq!(subjects(&[]), 1 + 3);
        assert_eq!(subjects(&["--nodes", "0", "--family", "4,6"]), 2);
        // No node and six distances.
        assert_eq!(subjects(&["--carriage", "off-path"]), 1 + 6);
    }

    #[test]
    fn chains_share_subjects() {
        // No node, one node, and two and three of each kind.
        let all = ["--carriage", "transparent,cold,warm"];
        assert_eq!(subjects(&all), 2 + 2 * 3);
        assert_eq!(subjects(&["--carriage", "cold-ends,warm-ends"]), 1 + 2);
    }

    #[test]
    fn chart_per_carriage() {
        assert_eq!(files(&[]), ["transparent-ipv4"]);
        assert_eq!(
            files(&["--carriage", "cold,cold-ends,off-path,warm-ends"]),
            ["cold-ipv4", "off-path-ipv4", "ends-ipv4"]
        );
        assert_eq!(files(&["--nodes", "0"]), ["transparent-ipv4"]);
    }

    #[test]
    fn near_end_nodes_compared() {
        let (experiment, _) = args(&["--carriage", "warm-ends,cold-ends"]).experiment();
        let subjects = experiment.groups[0].subjects.iter();
        let names: Vec<_> = subjects
            .map(|one| experiment.subjects[*one].name.as_str())
            .collect();
        assert_eq!(
            names,
            ["no node", "near the ends, cold", "near the ends, warm"]
        );
    }
}
