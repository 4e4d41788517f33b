// SPDX-License-Identifier: Apache-2.0
//! The samples, the tables and the chart of `fleet`.

use super::Args;
use crate::chart::{Across, Chart, Curve};
use crate::record::{self, Record, Samples};
use crate::stats::max;

/// Quantities of the record. Times are since all nodes began to join, or since a death, and have a
/// value for each living node.
pub(super) const JOINED: &str = "accepted";
pub(super) const FIRST_ROWS: &str = "first rows";
pub(super) const ALL_ROWS: &str = "rows of all links";
const NEW_ROWS: &str = "new rows";
const ROUTES: &str = "routes over it";
/// With the first plan of all links, and in the end.
pub(super) const MEMORY: &str = "memory of the controller";
const BYTES: &str = "received by a node";
const PROCESSOR: &str = "controller CPU time";
const TIME: &str = "time";
const PLANS: &str = "plans";
const SENT: &str = "sent by nodes";
const RECEIVED: &str = "received by nodes";

/// What an interval costs, and its unit: the controller's resources, and the bytes of nodes including
/// TLS.
pub(super) const COST: [(&str, &str); 5] = [
    (TIME, "s"),
    (PROCESSOR, "ms"),
    (SENT, "bytes"),
    (RECEIVED, "bytes"),
    // That differed from the one before.
    (PLANS, ""),
];

/// Adds the cost of an interval to the record.
pub(super) fn sample_interval(record: &mut Record, during: &str, cost: [f64; 5]) {
    for ((quantity, unit), value) in COST.into_iter().zip(cost) {
        record.sample(quantity, unit, &[("during", during)], vec![value]);
    }
}

/// Adds a death to the record: when each living node had new rows, in seconds, how many routes there
/// were over the dead part, and the cost.
pub(super) fn sample_death(
    record: &mut Record,
    labels: &[(&str, &str)],
    times: &[f64],
    routes: usize,
    [_, processor_ms, _, received, _]: [f64; 5],
) {
    let millis = times.iter().map(|seconds| seconds * 1e3).collect();
    record.sample(NEW_ROWS, "ms", labels, millis);
    record.sample(ROUTES, "", labels, vec![routes as f64]);
    // Of the living nodes only: dead ones receive nothing.
    let each = (received / times.len().max(1) as f64).round();
    record.sample(BYTES, "bytes", labels, vec![each]);
    record.sample(PROCESSOR, "ms", labels, vec![processor_ms]);
}

/// Adds tables, remarks and the chart to the record.
pub(super) fn fill(args: &Args, losses: &[String], record: &mut Record) {
    let title = "All nodes connect at once: time until each has";
    record.table(title, |_| true, &[], &[JOINED, FIRST_ROWS, ALL_ROWS]);
    let title = "A link or a node dies: time until nodes have new rows, and cost";
    let quantities = [NEW_ROWS, ROUTES, BYTES, PROCESSOR];
    let is_death = |one: &Samples| one.labels.contains_key("dead");
    record.table(title, is_death, &["dead", "number"], &quantities);
    let title = "Cost of the controller; links change: 1 % in 10 s";
    let quantities = COST.map(|(name, _)| name);
    let is_interval = |one: &Samples| one.labels.contains_key("during");
    record.table(title, is_interval, &["during"], &quantities);
    record.remarks = remarks(record);
    // The first few: one cause usually breaks the streams of many nodes.
    record.remarks.extend(losses.iter().take(5).cloned());
    record.charts.push(chart(args));
}

fn remarks(record: &Record) -> Vec<String> {
    let values = |quantity: &str, labels: &[(&str, &str)]| -> Vec<f64> {
        let labels = record::labels(labels);
        let of = record.samples.iter();
        let of = of.filter(|one| one.are(quantity, &labels));
        of.flat_map(|one| one.values.clone()).collect()
    };
    let last = |quantity, labels: &[_], unit: f64| {
        let last = max(&values(quantity, labels));
        last.map_or_else(|| "-".to_owned(), |last| format!("{:.1}", last / unit))
    };
    let received: f64 = values(RECEIVED, &[("during", "arrival")]).iter().sum();
    let each = received / values(JOINED, &[]).len().max(1) as f64;
    let memory = values(MEMORY, &[]);
    vec![
        format!(
            "All nodes connect at once: the last one is accepted after {} s, has rows after {} s, \
             and rows of all links after {} s.",
            last(JOINED, &[], 1.0),
            last(FIRST_ROWS, &[], 1.0),
            last(ALL_ROWS, &[], 1.0)
        ),
        format!(
            "The last node had new rows {} s after a link died, at worst, and {} s after a node \
             did.",
            last(NEW_ROWS, &[("dead", "link")], 1e3),
            last(NEW_ROWS, &[("dead", "node")], 1e3)
        ),
        format!(
            "Memory of the controller: {:.0} MB with the first plan of all links, {:.0} MB in the \
             end. A node received {:.0} KB until it had that plan.",
            memory[0] / 1e6,
            memory[1] / 1e6,
            each / 1e3
        ),
        "One thread plays all nodes, beside the controller on the same host. The ends of a link, and \
         the peers of a node, detect its death at once."
            .to_owned(),
    ]
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
