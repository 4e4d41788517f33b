// SPDX-License-Identifier: Apache-2.0
//! Record, table and chart of link changes under an overlay.

use std::collections::BTreeSet;

use super::moves::{self, BEFORE, Change, Move};
use super::{Findings, Hops, Overlay};
use crate::chart::{Across, Chart, Series, Spacing};
use crate::record::Record;
use crate::stats::max;
use crate::table::{Table, cell};

/// Bound on the time until the first new connection takes another route after a link got slower, in
/// seconds.
const MOVED_MAX_S: f64 = 3.0;

/// Changes links as often as configured, and reports the results.
pub(super) fn observe(overlay: &Overlay<'_>, record: &mut Record, findings: &mut Findings) {
    let mut seen = Vec::new();
    let count = overlay.args.moves;
    for number in 1..=count {
        eprintln!("overlay: link {number} of {count} gets worse, and is cut");
        let site = &overlay.sites[&Hops::Warm];
        if let Err(error) = moves::observe(overlay.args, &overlay.topology, site, &mut seen) {
            findings.failures.push(format!("{error:#}"));
        }
    }
    for (place, one) in seen.iter().enumerate() {
        sample(record, place + 1, one);
    }
    record.tables.push(table(overlay, &seen));
    findings.misses.extend(seen.iter().filter_map(missed));
    if !seen.is_empty() {
        let chart = chart(overlay, &seen[..seen.len().min(2)]);
        findings.charts.push(("moves.svg".to_owned(), chart.svg()));
    }
}

fn sample(record: &mut Record, number: usize, seen: &Move) {
    let number = number.to_string();
    let labels = [("event", seen.change.name()), ("number", number.as_str())];
    record.sample("moved", "s", &labels, seen.moved_s.into_iter().collect());
    record.sample("open connection", "s", &labels, vec![seen.long_s]);
    record.sample("new connections", "s", &labels, seen.times());
}

fn missed(seen: &Move) -> Option<String> {
    let is_late = seen.moved_s.is_none_or(|moved| moved > MOVED_MAX_S);
    (seen.change == Change::Worse && is_late).then(|| {
        let after = seen
            .moved_s
            .map_or_else(|| "never".to_owned(), |s| format!("after {s:.1} s"));
        format!("a new connection took another way {after}")
    })
}

fn table(overlay: &Overlay<'_>, seen: &[Move]) -> Table {
    let title = "A link of the first pair's chain gets worse, or is cut; times in s";
    let columns = [
        "event",
        "before",
        "after",
        "first other way",
        "all other ways",
        "slowest new connection",
        "failed",
        "open connection",
    ];
    let mut table = Table::new(title, &columns);
    let names = |places: &BTreeSet<usize>| {
        let names: Vec<&str> = places
            .iter()
            .map(|place| overlay.topology.name(*place))
            .collect();
        names.join(", ")
    };
    for one in seen {
        let times = one.times();
        table.push([
            one.change.name().to_owned(),
            names(&one.before),
            names(&one.after),
            cell(one.moved_s),
            cell(one.settled_s),
            cell(max(&times)),
            (one.connections.len() - times.len()).to_string(),
            format!("{:.1}", one.long_s),
        ]);
    }
    table
}

/// Durations of new connections while a link changed.
fn chart(overlay: &Overlay<'_>, seen: &[Move]) -> Chart {
    let longest = seen
        .iter()
        .map(|one| one.connections.len())
        .min()
        .unwrap_or(0);
    let began = seen[0].connections.iter().map(|(began, _)| *began);
    let line = |one: &Move| Series {
        name: one.change.name().to_owned(),
        values: one
            .connections
            .iter()
            .take(longest)
            .map(|(_, took)| *took)
            .collect(),
        ..Series::default()
    };
    let pair = overlay.topology.pairs[0];
    Chart {
        title: "New connections while a link of their chain changes".to_owned(),
        subtitle: format!(
            "{}; the link changes after {} s",
            overlay.topology.chain_name(&[pair.client, pair.server]),
            BEFORE.as_secs()
        ),
        across_label: "when the connection was opened, s".to_owned(),
        value_label: format!("time to fetch {} KB, s", overlay.args.sizes[0]),
        across: Across::Numbers(began.take(longest).collect(), Spacing::Linear),
        series: seen.iter().map(line).collect(),
        model_name: String::new(),
        note: "One connection every 100 ms, over an overlay with warm hops.".to_owned(),
    }
}
