// SPDX-License-Identifier: Apache-2.0
//! The record, the tables and the chart of `fleet`.

use anyhow::{Result, ensure};

use super::Args;
use crate::chart::{Across, Chart, Series, Spacing};
use crate::record::Record;
use crate::stats::{max, median};
use crate::table::{Table, cell_with};

/// Resources used by the controller in an interval.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Interval {
    pub(super) seconds: f64,
    /// Seconds of processor time.
    pub(super) processor: f64,
    /// Bytes that nodes sent and received, including TLS.
    pub(super) sent: f64,
    pub(super) received: f64,
    /// Plans that differed from the one before.
    pub(super) plans: f64,
}

/// The effects of a failure.
#[derive(Clone, Debug)]
pub(super) struct Death {
    /// When each node had its new rows.
    pub(super) seconds: Vec<f64>,
    /// Routes of all nodes over the failed part.
    pub(super) routes: usize,
    pub(super) cost: Interval,
}

/// All measurements. Times are in seconds since all nodes began to join, one per node.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    /// When it was accepted, had rows, and had rows of a plan with all links.
    pub(super) joined: Vec<f64>,
    pub(super) first_update: Vec<f64>,
    pub(super) whole: Vec<f64>,
    pub(super) arrival: Interval,
    /// Bytes that one node received until then.
    pub(super) row_bytes: f64,
    pub(super) memory_at_first: f64,
    pub(super) changes: Interval,
    pub(super) links: Vec<Death>,
    pub(super) nodes: Vec<Death>,
    /// The controller's memory at the end, in bytes.
    pub(super) memory: f64,
    /// Errors of streams that ended unexpectedly, or of rejected rows.
    pub(super) losses: Vec<String>,
}

/// Prints and writes everything. Fails when a stream was lost.
pub(super) fn write(args: &Args, outcome: &Outcome, record: &mut Record) -> Result<()> {
    record.parameter("nodes", args.nodes);
    record.parameter("seconds", args.seconds);
    record.parameter("changes_percent", args.changes);
    record.parameter("deaths", args.deaths);
    samples(outcome, record);
    record.tables = vec![arrival(outcome), deaths(outcome), cost(outcome, args)];
    record.remarks = remarks(outcome);
    record.publish(&args.common.output, [("svg", chart(args, outcome).svg())])?;
    let losses = outcome.losses.len();
    ensure!(losses == 0, "{losses} streams were lost, or rows refused");
    Ok(())
}

fn samples(outcome: &Outcome, record: &mut Record) {
    for (quantity, seconds) in [
        ("let in", &outcome.joined),
        ("first rows", &outcome.first_update),
        ("rows of all links", &outcome.whole),
    ] {
        record.sample(quantity, "s", &[], seconds.clone());
    }
    for (what, deaths) in [("link", &outcome.links), ("node", &outcome.nodes)] {
        for (place, death) in deaths.iter().enumerate() {
            let place = (place + 1).to_string();
            let labels = [("dead", what), ("number", place.as_str())];
            let millis = death.seconds.iter().map(|seconds| seconds * 1e3);
            record.sample("new rows", "ms", &labels, millis.collect());
            let processor = vec![death.cost.processor * 1e3];
            record.sample("processor time", "ms", &labels, processor);
        }
    }
    let intervals = [("arrival", &outcome.arrival), ("changes", &outcome.changes)];
    for (what, interval) in intervals {
        let labels = [("during", what)];
        let values = [
            ("time", "s", interval.seconds),
            ("processor time", "s", interval.processor),
            ("sent by nodes", "bytes", interval.sent),
            ("received by nodes", "bytes", interval.received),
            ("plans", "plans", interval.plans),
        ];
        for (quantity, unit, value) in values {
            record.sample(quantity, unit, &labels, vec![value]);
        }
    }
    let memory = vec![outcome.memory_at_first, outcome.memory];
    record.sample("memory of the controller", "bytes", &[], memory);
}

fn first(times: &[f64]) -> Option<f64> {
    times.iter().copied().reduce(f64::min)
}

fn arrival(outcome: &Outcome) -> Table {
    let rows = [
        ("is let in", &outcome.joined),
        ("has rows", &outcome.first_update),
        ("has rows of a plan of all links", &outcome.whole),
    ];
    Table::of(
        "All nodes come at once: seconds until each",
        rows,
        &[
            ("", &|(name, _)| (*name).to_owned()),
            ("first", &|(_, seconds)| cell_with(first(seconds), 2)),
            ("median", &|(_, seconds)| cell_with(median(seconds), 2)),
            ("last", &|(_, seconds)| cell_with(max(seconds), 2)),
        ],
    )
}

fn deaths(outcome: &Outcome) -> Table {
    let kinds = [("link", &outcome.links), ("node", &outcome.nodes)];
    let rows = kinds.into_iter().flat_map(|(what, deaths)| {
        let named = move |(place, death)| (format!("{what} {}", place + 1), death);
        deaths.iter().enumerate().map(named)
    });
    let ms = |seconds: Option<f64>| cell_with(seconds.map(|seconds| seconds * 1e3), 0);
    let each = |death: &Death| death.cost.received / death.seconds.len().max(1) as f64;
    Table::of(
        "Milliseconds from a death until nodes have new rows",
        rows,
        &[
            ("dead", &|(name, _)| name.clone()),
            ("ways over it", &|(_, death)| death.routes.to_string()),
            ("first node", &|(_, death)| ms(first(&death.seconds))),
            ("median", &|(_, death)| ms(median(&death.seconds))),
            ("last node", &|(_, death)| ms(max(&death.seconds))),
            ("controller CPU", &|(_, death)| {
                format!("{} ms", ms(Some(death.cost.processor)))
            }),
            ("bytes a node", &|(_, death)| format!("{:.0}", each(death))),
        ],
    )
}

fn cost(outcome: &Outcome, args: &Args) -> Table {
    let changes = format!("{} % of links change in 10 s", args.changes);
    let rows = [
        ("all nodes come", &outcome.arrival),
        (changes.as_str(), &outcome.changes),
    ];
    Table::of(
        "What the controller costs",
        rows,
        &[
            ("", &|(name, _)| (*name).to_owned()),
            ("seconds", &|(_, one)| format!("{:.1}", one.seconds)),
            ("plans", &|(_, one)| one.plans.to_string()),
            ("CPU s", &|(_, one)| format!("{:.2}", one.processor)),
            ("CPU %", &|(_, one)| {
                format!("{:.0}", one.processor / one.seconds * 100.0)
            }),
            ("MB to nodes", &|(_, one)| {
                format!("{:.1}", one.received / 1e6)
            }),
            ("MB from nodes", &|(_, one)| {
                format!("{:.1}", one.sent / 1e6)
            }),
        ],
    )
}

fn remarks(outcome: &Outcome) -> Vec<String> {
    let last = |deaths: &[Death]| {
        let each = deaths.iter().filter_map(|death| max(&death.seconds));
        cell_with(max(&each.map(|s| s * 1e3).collect::<Vec<_>>()), 0)
    };
    let mut remarks = vec![
        format!(
            "The last node had new rows {} ms after a link died, at worst, and {} ms after a node \
             did.",
            last(&outcome.links),
            last(&outcome.nodes)
        ),
        format!(
            "Memory of the controller: {:.0} MB with the first plan of all links, {:.0} MB in the \
             end. A node received {:.0} KB until it had that plan.",
            outcome.memory_at_first / 1e6,
            outcome.memory / 1e6,
            outcome.row_bytes / 1e3
        ),
        "Nodes are played by one thread, beside the controller on the same host. A death is known \
         to those concerned at once."
            .to_owned(),
    ];
    remarks.extend(outcome.losses.iter().take(5).cloned());
    remarks
}

/// How many nodes have new rows, by the time since a failure.
fn chart(args: &Args, outcome: &Outcome) -> Chart {
    let all = || outcome.links.iter().chain(&outcome.nodes);
    let longest = all().flat_map(|death| &death.seconds).copied();
    let longest_ms = longest.fold(0.1, f64::max) * 1e3;
    let steps = 100;
    let grid: Vec<f64> = (0..=steps)
        // In this order the last step is the longest time exactly, and the line reaches 100 %.
        .map(|step| longest_ms * (f64::from(step) / f64::from(steps)))
        .collect();
    let share = |deaths: &[Death], name: &str| {
        let seconds: Vec<f64> = deaths.iter().flat_map(|d| d.seconds.clone()).collect();
        let at = |ms: &f64| {
            let served = seconds.iter().filter(|s| **s * 1e3 <= *ms).count();
            Some(served as f64 / seconds.len().max(1) as f64 * 100.0)
        };
        Series {
            name: name.to_owned(),
            values: grid.iter().map(at).collect(),
            ..Series::default()
        }
    };
    Chart {
        title: "Nodes that have new rows after a death".to_owned(),
        subtitle: format!("{} nodes and one controller, on one host", args.nodes),
        across_label: "since a link or a node died, ms".to_owned(),
        value_label: "nodes with new rows, %".to_owned(),
        series: vec![
            share(&outcome.links, "a link died"),
            share(&outcome.nodes, "a node died"),
        ],
        across: Across::Numbers(grid, Spacing::Linear),
        model_name: String::new(),
        note: format!("{} deaths of each kind.", args.deaths),
    }
}
