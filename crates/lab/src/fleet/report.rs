// SPDX-License-Identifier: Apache-2.0
//! The samples, the tables and the chart of `fleet`.

use anyhow::{Result, ensure};

use super::Args;
use crate::chart::{Across, Chart, Curve};
use crate::record::Record;
use crate::stats::max;

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

/// Quantities of the record.
const JOINED: &str = "accepted";
const FIRST_ROWS: &str = "first rows";
const ALL_ROWS: &str = "rows of all links";
const NEW_ROWS: &str = "new rows";
const ROUTES: &str = "routes over it";
const BYTES: &str = "received by a node";
const PROCESSOR: &str = "controller CPU time";
const TIME: &str = "time";
const PLANS: &str = "plans";
const SENT: &str = "sent by nodes";
const RECEIVED: &str = "received by nodes";

/// Prints and writes everything. Fails when a stream was lost.
pub(super) fn write(args: &Args, outcome: &Outcome, record: &mut Record) -> Result<()> {
    record.parameter("nodes", args.nodes);
    record.parameter("seconds", args.seconds);
    record.parameter("changes_percent", args.changes);
    record.parameter("deaths", args.deaths);
    samples(outcome, record);
    let arrival = [JOINED, FIRST_ROWS, ALL_ROWS];
    record.table(
        "All nodes connect at once: time until each has",
        |_| true,
        &[],
        &arrival,
    );
    let death = [NEW_ROWS, ROUTES, BYTES, PROCESSOR];
    let title = "A link or a node dies: time until nodes have new rows, and cost";
    record.table(
        title,
        |one| one.labels.contains_key("dead"),
        &["dead", "number"],
        &death,
    );
    let title = format!(
        "Cost of the controller; links change: {} % in 10 s",
        args.changes
    );
    let cost = [TIME, PLANS, PROCESSOR, SENT, RECEIVED];
    record.table(
        &title,
        |one| one.labels.contains_key("during"),
        &["during"],
        &cost,
    );
    record.remarks = remarks(outcome);
    record.charts.push(chart(args));
    record.publish(&args.common.output)?;
    let losses = outcome.losses.len();
    ensure!(losses == 0, "{losses} streams were lost, or rows refused");
    Ok(())
}

fn samples(outcome: &Outcome, record: &mut Record) {
    for (quantity, seconds) in [
        (JOINED, &outcome.joined),
        (FIRST_ROWS, &outcome.first_update),
        (ALL_ROWS, &outcome.whole),
    ] {
        record.sample(quantity, "s", &[], seconds.clone());
    }
    for (what, deaths) in [("link", &outcome.links), ("node", &outcome.nodes)] {
        for (place, death) in deaths.iter().enumerate() {
            let place = (place + 1).to_string();
            let labels = [("dead", what), ("number", place.as_str())];
            let millis = death.seconds.iter().map(|seconds| seconds * 1e3);
            record.sample(NEW_ROWS, "ms", &labels, millis.collect());
            // Of the living nodes only: dead ones receive nothing.
            let each = death.cost.received / death.seconds.len().max(1) as f64;
            for (quantity, unit, value) in [
                (ROUTES, "", death.routes as f64),
                (BYTES, "bytes", each.round()),
                (PROCESSOR, "ms", death.cost.processor * 1e3),
            ] {
                record.sample(quantity, unit, &labels, vec![value]);
            }
        }
    }
    for (what, interval) in [("arrival", &outcome.arrival), ("changes", &outcome.changes)] {
        for (quantity, unit, value) in [
            (TIME, "s", interval.seconds),
            (PROCESSOR, "ms", interval.processor * 1e3),
            (SENT, "bytes", interval.sent),
            (RECEIVED, "bytes", interval.received),
            (PLANS, "", interval.plans),
        ] {
            record.sample(quantity, unit, &[("during", what)], vec![value]);
        }
    }
    let memory = vec![outcome.memory_at_first, outcome.memory];
    record.sample("memory of the controller", "bytes", &[], memory);
}

/// The largest number, with one decimal digit; a dash without numbers.
fn latest(seconds: &[f64]) -> String {
    max(seconds).map_or_else(|| "-".to_owned(), |seconds| format!("{seconds:.1}"))
}

fn remarks(outcome: &Outcome) -> Vec<String> {
    let last = |deaths: &[Death]| {
        let all = deaths.iter().flat_map(|death| death.seconds.clone());
        latest(&all.collect::<Vec<_>>())
    };
    let mut remarks = vec![
        format!(
            "All nodes connect at once: the last one is accepted after {} s, has rows after {} s, \
             and rows of all links after {} s.",
            latest(&outcome.joined),
            latest(&outcome.first_update),
            latest(&outcome.whole)
        ),
        format!(
            "The last node had new rows {} s after a link died, at worst, and {} s after a node \
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
        "One thread plays all nodes, beside the controller on the same host. The ends of a link, and \
         the peers of a node, detect its death at once."
            .to_owned(),
    ];
    // The first few: one cause usually breaks the streams of many nodes.
    remarks.extend(outcome.losses.iter().take(5).cloned());
    remarks
}

/// The share of nodes that have new rows, by the time since a failure.
fn chart(args: &Args) -> Chart {
    let curve = |dead: &str| Curve::new(format!("a {dead} died"), NEW_ROWS, &[("dead", dead)]);
    Chart {
        file: String::new(),
        title: "Nodes that have new rows after a death".to_owned(),
        subtitle: format!("{} nodes and one controller, on one host", args.nodes),
        across_label: "since a link or a node died, ms".to_owned(),
        value_label: "nodes with new rows, %".to_owned(),
        across: Across::Share(None),
        curves: ["link", "node"].map(curve).to_vec(),
        note: format!("{} deaths of each kind.", args.deaths),
    }
}
