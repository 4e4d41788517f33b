// SPDX-License-Identifier: Apache-2.0
//! The samples, tables, targets and charts of `planning`.

use anyhow::Result;

use super::quality::{Other, Qualities};
use super::runtime::Times;
use super::{Args, ROUNDS};
use crate::chart::{Across, Chart, Curve};
use crate::names::Named;
use crate::record::{Record, Samples};
use crate::stats::{Spread, mean, percentile};
use crate::target::Bound::{self, AtMost};
use crate::target::Target;

/// The paper's sizes, in the order of [`ROUNDS`].
const SIZES: [&str; 3] = ["15 KB", "450 KB", "14935 KB"];

/// A pair counts as equal up to this difference in percent, which the costs of needless nodes
/// cause.
const SAME_PERCENT: f64 = 0.1;

/// The largest excess in the charts, in percent.
const SHOWN_PERCENT: f64 = 100.0;

/// A figure of planning: name, unit and values.
type Figure = (&'static str, &'static str, fn(&Times) -> &Vec<f64>);

const SWEEP: Figure = ("sweep", "ms", |one| &one.sweep_ms);
const CHAINS: Figure = ("all chains", "ms", |one| &one.chains_ms);
const TABLES: Figure = ("and access links", "ms", |one| &one.tables_ms);
const LOOK_UP: Figure = ("look-up", "ns", |one| &one.look_up_ns);
const CHAINS_PER_PAIR: Figure = ("chains of a pair", "", |one| &one.chains);
const TABLE_BYTES: Figure = ("a table", "bytes", |one| &one.table_bytes);
const FIGURES: [Figure; 6] = [CHAINS_PER_PAIR, SWEEP, CHAINS, TABLES, LOOK_UP, TABLE_BYTES];

/// Targets of processor time: nodes, figure and bound.
const TARGETS: [(usize, Figure, Bound); 5] = [
    (115, SWEEP, AtMost(5.0)),
    (115, CHAINS, AtMost(10.0)),
    (115, LOOK_UP, AtMost(100.0)),
    (1000, SWEEP, AtMost(1000.0)),
    (1000, LOOK_UP, AtMost(100.0)),
];

/// Time beyond that of the best chain: a value for each percentile from 0 to 100 of all pairs.
const EXCESS: &str = "longer than over the best chain";
const MEAN: &str = "mean";
const WORSE: &str = "pairs worse";
/// Nodes between the ends of a chain, on average.
const NODES: &str = "nodes on average";

/// All results.
pub(super) struct Findings {
    /// The 54 graphs, as the paper counts rounds.
    pub(super) published: Qualities,
    /// The same, with the handshake.
    pub(super) counted: Qualities,
    /// A cloud's regions.
    pub(super) cloud: Qualities,
    pub(super) times: Vec<Times>,
    /// Number of graphs.
    pub(super) graphs: usize,
}

/// The sets of graphs, in the labels of samples: K counts rounds.
const PUBLISHED: &str = "graphs, K - 1 rounds of the longest hop, as published";
const COUNTED: &str = "graphs, K rounds of the longest hop, with the handshake";
const CLOUD: &str = "regions of a cloud, K rounds of the longest hop";

/// Prints and writes everything.
pub(super) fn write(args: &Args, findings: &Findings, mut record: Record) -> Result<()> {
    record.parameter("repeats", args.repeats);
    record.parameter("rounds", ROUNDS.to_vec());
    record.parameter("graphs", findings.graphs);
    for (set, qualities) in [
        (PUBLISHED, &findings.published),
        (COUNTED, &findings.counted),
        (CLOUD, &findings.cloud),
    ] {
        sample_quality(set, qualities, &mut record);
        let of_set = |one: &Samples| is_of(one, set);
        record.table(
            set,
            of_set,
            &["rounds", "chosen"],
            &[WORSE, MEAN, EXCESS, NODES],
        );
    }
    sample_times(&findings.times, &mut record);
    let figures = FIGURES.map(|(name, ..)| name);
    let title = "Processor time of planning, one thread, and its results";
    record.table(title, |_| true, &["matrix", "nodes"], &figures);
    record.targets = targets(&findings.times);
    record.remarks = REMARKS.map(str::to_owned).to_vec();
    let sizes = ROUNDS.into_iter().zip(SIZES);
    let charts = sizes.map(|(rounds, size)| distribution(rounds, size, findings.graphs));
    record.charts = charts.chain([times()]).collect();
    record.publish(&args.common.output)
}

fn is_of(samples: &Samples, set: &str) -> bool {
    samples.labels.get("set").is_some_and(|own| own == set)
}

/// Of the tens of thousands of pairs only every hundredth, as they can be recomputed in seconds.
fn sample_quality(set: &str, qualities: &Qualities, record: &mut Record) {
    for (rounds, quality) in qualities {
        let rounds = rounds.to_string();
        for other in Other::ALL {
            let labels = [("set", set), ("chosen", other.name()), ("rounds", &rounds)];
            let excess = &quality.excess[other];
            let parts = (0..=100).filter_map(|percent| percentile(excess, f64::from(percent)));
            // Hundredths of a percent: more digits would double the record.
            let rounded = parts.map(|part| (part * 100.0).round() / 100.0).collect();
            record.sample(EXCESS, "%", &labels, rounded);
            record.sample(MEAN, "%", &labels, mean(excess).into_iter().collect());
            let worse = excess.iter().filter(|excess| **excess > SAME_PERCENT);
            let worse = worse.count() as f64 / excess.len() as f64 * 100.0;
            record.sample(WORSE, "%", &labels, vec![worse]);
            record.sample(NODES, "", &labels, vec![quality.other_nodes[other]]);
        }
        let labels = [("set", set), ("chosen", "best"), ("rounds", &rounds)];
        record.sample(NODES, "", &labels, vec![quality.nodes]);
    }
}

fn sample_times(all: &[Times], record: &mut Record) {
    for times in all {
        let nodes = times.nodes.to_string();
        let labels = [("matrix", times.matrix.as_str()), ("nodes", &nodes)];
        for (name, unit, values) in FIGURES {
            record.sample(name, unit, &labels, values(times).clone());
        }
    }
}

fn targets(all: &[Times]) -> Vec<Target> {
    let targets = TARGETS
        .into_iter()
        .flat_map(|(nodes, (name, unit, values), bound)| {
            // Published and synthetic matrices of this size have the same bound.
            let of = all.iter().filter(move |times| times.nodes == nodes);
            of.map(move |times| Target {
                what: format!("{nodes} nodes, {}: {name}", times.matrix),
                measured: Spread::of(values(times)),
                bound,
                unit: unit.to_owned(),
            })
        });
    targets.collect()
}

/// The paper's figure: the share of pairs by how much longer their transfers take at most.
fn distribution(rounds: u64, kilobytes: &str, graphs: usize) -> Chart {
    let plural = if rounds == 1 { "" } else { "s" };
    let number = rounds.to_string();
    let curve = |other: &Other| {
        let labels = [
            ("set", PUBLISHED),
            ("chosen", other.name()),
            ("rounds", &number),
        ];
        Curve::new(other.name(), EXCESS, &labels)
    };
    Chart {
        file: format!("rounds-{rounds}"),
        title: format!("Cost of other ways to choose chains: {kilobytes}, {rounds} round{plural}"),
        subtitle: format!(
            "{graphs} graphs, all ordered pairs of nodes, by the model of MOSTO's section III-B"
        ),
        across_label: "longer than over the best chain, %".to_owned(),
        value_label: "pairs with no more than that, %".to_owned(),
        across: Across::Share(Some(SHOWN_PERCENT)),
        curves: Other::ALL.iter().map(curve).collect(),
        note: "Computed; no packet was sent.".to_owned(),
    }
}

/// Planning time by the number of nodes.
fn times() -> Chart {
    let curve = |(figure, matrix): (Figure, &str)| {
        Curve::new(
            format!("{}, {matrix}", figure.0),
            figure.0,
            &[("matrix", matrix)],
        )
    };
    let both = |figure| ["great circles", "detours"].map(|matrix| (figure, matrix));
    Chart {
        file: "time".to_owned(),
        title: "Time to plan".to_owned(),
        subtitle: "synthetic matrices, one thread".to_owned(),
        across_label: "nodes".to_owned(),
        value_label: "processor time, ms".to_owned(),
        across: Across::Label("nodes".to_owned()),
        curves: [SWEEP, CHAINS]
            .into_iter()
            .flat_map(both)
            .map(curve)
            .collect(),
        note: "Great circles: no link is worse than a way around it. Detours: most links are."
            .to_owned(),
    }
}

const REMARKS: [&str; 2] = [
    "The excesses are of the model, not of measured transfers; a chain of another was never faster.",
    "All chains: the sweep, and the chains of all ordered pairs for ten sizes, each with two to fall back on. Tables are for four access links as well.",
];
