// SPDX-License-Identifier: Apache-2.0
//! The samples, tables and charts of `planning`.

use super::quality::{Other, Qualities};
use super::runtime::{CHAINS, FIGURES, SWEEP};
use crate::chart::{Across, Chart, Curve};
use crate::names::Named;
use crate::record::{Record, Samples};
use crate::stats::{mean, percentile};

/// A pair counts as equal up to this difference in percent, which the costs of needless nodes
/// cause.
const SAME_PERCENT: f64 = 0.1;

/// The largest excess in the chart, in percent.
const SHOWN_PERCENT: f64 = 100.0;

/// Time beyond that of the best chain: a value for each percentile from 0 to 100 of all pairs.
const EXCESS: &str = "longer than over the best chain";
const MEAN: &str = "mean";
const WORSE: &str = "pairs worse";
/// Nodes between the ends of a chain, on average.
const NODES: &str = "nodes on average";

/// The sets of graphs, in the labels of samples: K counts rounds.
pub(super) const PUBLISHED: &str = "graphs, K - 1 rounds of the longest hop, as published";
pub(super) const COUNTED: &str = "graphs, K rounds of the longest hop, with the handshake";
pub(super) const CLOUD: &str = "regions of a cloud, K rounds of the longest hop";

/// Adds the samples of a set of graphs, and their table. Of the tens of thousands of pairs only
/// every hundredth, as they can be recomputed in seconds.
pub(super) fn qualities(set: &str, qualities: &Qualities, record: &mut Record) {
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
    let of_set = |one: &Samples| one.labels.get("set").is_some_and(|own| own == set);
    let quantities = [WORSE, MEAN, EXCESS, NODES];
    record.table(set, of_set, &["rounds", "chosen"], &quantities);
}

/// Adds the table of times, remarks, and charts for so many graphs.
pub(super) fn fill(graphs: usize, record: &mut Record) {
    let title = "Processor time of planning, one thread, and its results";
    let figures = FIGURES.map(|(name, _)| name);
    record.table(title, |_| true, &["matrix", "nodes"], &figures);
    record.remarks = REMARKS.map(str::to_owned).to_vec();
    record.charts = vec![distribution(graphs), times()];
}

/// The paper's figure for 450 KB: the share of pairs by how much longer their transfers take at
/// most.
fn distribution(graphs: usize) -> Chart {
    let curve = |other: &Other| {
        let labels = [
            ("set", PUBLISHED),
            ("chosen", other.name()),
            ("rounds", "5"),
        ];
        Curve::new(other.name(), EXCESS, &labels)
    };
    Chart {
        file: "rounds-5".to_owned(),
        title: "Cost of other ways to choose chains: 450 KB, 5 rounds".to_owned(),
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
    let curve = |(figure, matrix): (&str, &str)| {
        Curve::new(format!("{figure}, {matrix}"), figure, &[("matrix", matrix)])
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
