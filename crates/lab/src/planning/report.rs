// SPDX-License-Identifier: Apache-2.0
//! The record and the tables of `planning`.

use anyhow::Result;

use super::charts::{self, SAME_PERCENT};
use super::quality::{Other, Qualities, Quality};
use super::runtime::Times;
use super::{Args, ROUNDS};
use crate::record::Record;
use crate::stats::{deviation_percent, mean, median, percentile};
use crate::table::{Table, cell_with};
use crate::target::Bound::{self, AtMost};

/// The paper's sizes, in the order of [`ROUNDS`].
const SIZES: [&str; 3] = ["15 KB", "450 KB", "14935 KB"];

/// A target: nodes, figure, its median, and the bound.
type Target = (usize, &'static str, fn(&Times) -> &Vec<f64>, Bound);

const TARGETS: [Target; 5] = [
    (115, "sweep, ms", |one| &one.sweep_ms, AtMost(5.0)),
    (115, "all chains, ms", |one| &one.chains_ms, AtMost(10.0)),
    (115, "look-up, ns", |one| &one.look_up_ns, AtMost(100.0)),
    (1000, "sweep, ms", |one| &one.sweep_ms, AtMost(1000.0)),
    (1000, "look-up, ns", |one| &one.look_up_ns, AtMost(100.0)),
];

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

/// Prints and writes everything.
pub(super) fn write(args: &Args, findings: &Findings, mut record: Record) -> Result<()> {
    record.parameter("repeats", args.repeats);
    record.parameter("rounds", ROUNDS.to_vec());
    record.parameter("graphs", findings.graphs);
    samples(findings, &mut record);
    let graphs = format!("{} graphs", findings.graphs);
    record.tables = vec![
        excesses(
            &format!("{graphs}, K - 1 rounds of the longest hop, as published"),
            &findings.published,
        ),
        excesses(
            &format!("{graphs}, K rounds of the longest hop, with the handshake"),
            &findings.counted,
        ),
        excesses(
            "21 regions of a cloud, K rounds of the longest hop",
            &findings.cloud,
        ),
        nodes(findings),
        times(&findings.times),
        targets(&findings.times),
    ];
    record.remarks = REMARKS.map(str::to_owned).to_vec();
    let mut charts = Vec::new();
    for (rounds, size) in ROUNDS.into_iter().zip(SIZES) {
        let quality = &findings.published[&rounds];
        let chart = charts::distribution(rounds, size, findings.graphs, quality);
        charts.push((format!("rounds-{rounds}.svg"), chart.svg()));
    }
    charts.push(("time.svg".to_owned(), charts::times(&findings.times).svg()));
    record.publish(&args.common.output, charts)?;
    Ok(())
}

/// Raw times; of the tens of thousands of pairs only every hundredth, as they can be recomputed in
/// seconds.
fn samples(findings: &Findings, record: &mut Record) {
    let sets = [
        ("graphs, as published", &findings.published),
        ("graphs, with the handshake", &findings.counted),
        ("cloud", &findings.cloud),
    ];
    for (set, qualities) in sets {
        for (rounds, quality) in qualities {
            for (other, excess) in &quality.excess {
                let parts = (0..=100).filter_map(|percent| percentile(excess, f64::from(percent)));
                let rounds = rounds.to_string();
                let labels = [("set", set), ("other", other.name()), ("rounds", &rounds)];
                let rounded = parts.map(|part| (part * 100.0).round() / 100.0).collect();
                record.sample(
                    "percentiles 0 to 100 of time beyond the best",
                    "%",
                    &labels,
                    rounded,
                );
            }
        }
    }
    for times in &findings.times {
        let nodes = times.nodes.to_string();
        let labels = [("matrix", times.matrix.as_str()), ("nodes", &nodes)];
        for (what, unit, values) in [
            ("the sweep", "ms", &times.sweep_ms),
            ("all chains", "ms", &times.chains_ms),
            ("all chains and access links", "ms", &times.tables_ms),
            ("a look-up", "ns", &times.look_up_ns),
        ] {
            let quantity = format!("processor time of {what}");
            record.sample(&quantity, unit, &labels, values.clone());
        }
    }
}

fn excesses(title: &str, qualities: &Qualities) -> Table {
    let rows = qualities.iter().flat_map(|(rounds, quality)| {
        let of = |other| (rounds, other, &quality.excess[&other]);
        Other::ALL.map(of)
    });
    let worse = |excess: &[f64]| {
        let worse = excess.iter().filter(|excess| **excess > SAME_PERCENT);
        worse.count() as f64 / excess.len() as f64 * 100.0
    };
    let part = |excess: &[f64], percent| per_cent(percentile(excess, percent));
    Table::of(
        format!("{title}: time beyond the best chain's"),
        rows,
        &[
            ("rounds", &|(rounds, ..)| rounds.to_string()),
            ("chosen", &|(_, other, _)| other.name().to_owned()),
            ("pairs worse", &|(.., excess)| per_cent(Some(worse(excess)))),
            ("mean", &|(.., excess)| per_cent(mean(excess))),
            ("median", &|(.., excess)| part(excess, 50.0)),
            ("p80", &|(.., excess)| part(excess, 80.0)),
            ("p90", &|(.., excess)| part(excess, 90.0)),
            ("p99", &|(.., excess)| part(excess, 99.0)),
        ],
    )
}

fn per_cent(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.1} %"))
}

fn nodes(findings: &Findings) -> Table {
    let sets = [
        ("graphs, K - 1", &findings.published),
        ("graphs, K", &findings.counted),
        ("cloud, K", &findings.cloud),
    ];
    let rows = sets.into_iter().flat_map(|(set, qualities)| {
        let of = move |(rounds, quality)| (set, rounds, quality);
        qualities.iter().map(of)
    });
    let fewer =
        |quality: &Quality, other| format!("{:.0} %", deviation_percent(quality.nodes, other));
    Table::of(
        "Nodes between the ends of a chain, on average",
        rows,
        &[
            ("set", &|(set, ..)| (*set).to_owned()),
            ("rounds", &|(_, rounds, _)| rounds.to_string()),
            ("best", &|(.., one)| format!("{:.2}", one.nodes)),
            ("minimax, shortest", &|(.., one)| {
                format!("{:.2}", one.minimax_nodes)
            }),
            ("fewer", &|(.., one)| fewer(one, one.minimax_nodes)),
            ("minimax, tree", &|(.., one)| {
                format!("{:.2}", one.tree_nodes)
            }),
            ("fewer", &|(.., one)| fewer(one, one.tree_nodes)),
        ],
    )
}

fn times(all: &[Times]) -> Table {
    let number = |values: &[f64]| cell_with(median(values), 2);
    Table::of(
        "Processor time of planning, one thread, medians",
        all,
        &[
            ("matrix", &|one| one.matrix.clone()),
            ("nodes", &|one| one.nodes.to_string()),
            ("chains a pair", &|one| format!("{:.1}", one.chains)),
            ("sweep, ms", &|one| number(&one.sweep_ms)),
            ("all chains, ms", &|one| number(&one.chains_ms)),
            ("and access links, ms", &|one| number(&one.tables_ms)),
            ("look-up, ns", &|one| number(&one.look_up_ns)),
            ("a table, KB", &|one| {
                format!("{:.1}", one.table_bytes as f64 / 1e3)
            }),
        ],
    )
}

fn targets(all: &[Times]) -> Table {
    let rows = TARGETS.into_iter().flat_map(|target| {
        let of = all.iter().filter(move |times| times.nodes == target.0);
        of.map(move |times| (&times.matrix, target, median((target.2)(times))))
    });
    Table::of(
        "Targets, medians",
        rows,
        &[
            ("matrix", &|(matrix, ..)| (*matrix).clone()),
            ("nodes", &|(_, (nodes, ..), _)| nodes.to_string()),
            ("figure", &|(_, (_, figure, ..), _)| (*figure).to_owned()),
            ("measured", &|(.., value)| cell_with(*value, 2)),
            ("target", &|(_, (.., bound), _)| bound.to_string()),
            ("verdict", &|(_, (.., bound), value)| {
                bound.verdict(*value).to_owned()
            }),
        ],
    )
}

const REMARKS: [&str; 2] = [
    "The excesses are of the model, not of measured transfers; a chain of another was never faster.",
    "All chains: the sweep, and the chains of all ordered pairs for ten sizes, each with two to fall back on. Tables are for four access links as well.",
];
