// SPDX-License-Identifier: Apache-2.0
//! The record and the tables of `planning`.

use anyhow::Result;

use super::charts::{self, SAME_PERCENT};
use super::quality::{Other, Qualities};
use super::runtime::Times;
use super::{Args, ROUNDS};
use crate::record::Record;
use crate::stats::{deviation_percent, mean, median, percentile};
use crate::table::Table;

/// The paper's sizes, in the order of [`ROUNDS`].
const SIZES: [&str; 3] = ["15 KB", "450 KB", "14935 KB"];

/// Targets: nodes, and the times of the sweep and of the sweep with all chains stored, in
/// milliseconds.
const TARGETS_MS: [(usize, f64, f64); 2] = [(115, 5.0, 10.0), (1000, 1000.0, f64::INFINITY)];
const LOOK_UP_TARGET_NS: f64 = 100.0;

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
    ];
    record.remarks = remarks(&findings.times);
    let mut charts = Vec::new();
    for (rounds, size) in ROUNDS.into_iter().zip(SIZES) {
        let quality = &findings.published[&rounds];
        let chart = charts::distribution(rounds, size, findings.graphs, quality);
        charts.push((format!("rounds-{rounds}.svg"), chart.svg()));
    }
    charts.push(("time.svg".to_owned(), charts::times(&findings.times).svg()));
    record.publish(&args.output, charts)?;
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
        record.sample(
            "processor time of the sweep",
            "ms",
            &labels,
            times.sweep_ms.clone(),
        );
        record.sample(
            "processor time with all chains",
            "ms",
            &labels,
            times.chains_ms.clone(),
        );
        record.sample(
            "processor time with all chains and access links",
            "ms",
            &labels,
            times.tables_ms.clone(),
        );
        record.sample(
            "processor time of a look-up",
            "ns",
            &labels,
            times.look_up_ns.clone(),
        );
    }
}

fn excesses(title: &str, qualities: &Qualities) -> Table {
    let columns = [
        "rounds",
        "chosen",
        "pairs worse",
        "mean",
        "median",
        "p80",
        "p90",
        "p99",
    ];
    let mut table = Table::new(format!("{title}: time beyond the best chain's"), &columns);
    for (rounds, quality) in qualities {
        for other in Other::ALL {
            let excess = &quality.excess[&other];
            let worse = excess
                .iter()
                .filter(|excess| **excess > SAME_PERCENT)
                .count();
            let worse = worse as f64 / excess.len() as f64 * 100.0;
            let part = |percent| per_cent(percentile(excess, percent));
            table.push([
                rounds.to_string(),
                other.name().to_owned(),
                per_cent(Some(worse)),
                per_cent(mean(excess)),
                part(50.0),
                part(80.0),
                part(90.0),
                part(99.0),
            ]);
        }
    }
    table
}

fn per_cent(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.1} %"))
}

fn nodes(findings: &Findings) -> Table {
    let columns = [
        "set",
        "rounds",
        "best",
        "minimax, shortest",
        "fewer",
        "minimax, tree",
        "fewer",
    ];
    let mut table = Table::new("Nodes between the ends of a chain, on average", &columns);
    let sets = [
        ("graphs, K - 1", &findings.published),
        ("graphs, K", &findings.counted),
        ("cloud, K", &findings.cloud),
    ];
    for (set, qualities) in sets {
        for (rounds, quality) in qualities {
            let fewer = |other| format!("{:.0} %", deviation_percent(quality.nodes, other));
            table.push([
                set.to_owned(),
                rounds.to_string(),
                format!("{:.2}", quality.nodes),
                format!("{:.2}", quality.minimax_nodes),
                fewer(quality.minimax_nodes),
                format!("{:.2}", quality.tree_nodes),
                fewer(quality.tree_nodes),
            ]);
        }
    }
    table
}

fn times(all: &[Times]) -> Table {
    let columns = [
        "matrix",
        "nodes",
        "chains a pair",
        "sweep, ms",
        "all chains, ms",
        "and access links, ms",
        "look-up, ns",
        "a table, KB",
    ];
    let mut table = Table::new("Processor time of planning, one thread, medians", &columns);
    for times in all {
        let number =
            |values: &[f64]| median(values).map_or_else(String::new, |ms| format!("{ms:.2}"));
        table.push([
            times.matrix.clone(),
            times.nodes.to_string(),
            format!("{:.1}", times.chains),
            number(&times.sweep_ms),
            number(&times.chains_ms),
            number(&times.tables_ms),
            number(&times.look_up_ns),
            format!("{:.1}", times.table_bytes as f64 / 1e3),
        ]);
    }
    table
}

fn remarks(all: &[Times]) -> Vec<String> {
    let mut remarks = vec![
        "The excesses are of the model, not of measured transfers; a chain of another was never faster.".to_owned(),
        "All chains: the sweep, and the chains of all ordered pairs for ten sizes, each with two to fall back on. Tables are for four access links as well.".to_owned(),
    ];
    for (nodes, sweep_ms, chains_ms) in TARGETS_MS {
        for times in all.iter().filter(|times| times.nodes == nodes) {
            let sweep = median(&times.sweep_ms).unwrap_or(f64::NAN);
            let chains = median(&times.chains_ms).unwrap_or(f64::NAN);
            let look_up = median(&times.look_up_ns).unwrap_or(f64::NAN);
            let verdict = |value: f64, target: f64| if value < target { "met" } else { "missed" };
            let name = &times.matrix;
            remarks.push(format!(
                "{name}, {nodes} nodes: sweep under {sweep_ms} ms {}, look-up under {LOOK_UP_TARGET_NS} ns {}{}.",
                verdict(sweep, sweep_ms),
                verdict(look_up, LOOK_UP_TARGET_NS),
                if chains_ms.is_finite() {
                    format!(", all chains under {chains_ms} ms {}", verdict(chains, chains_ms))
                } else {
                    String::new()
                }
            ));
        }
    }
    remarks
}
