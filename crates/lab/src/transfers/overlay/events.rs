// SPDX-License-Identifier: Apache-2.0
//! Samples and table of link changes under an overlay.

use std::collections::BTreeSet;

use super::moves::{self, Change, Move};
use super::{Hops, Overlay};
use crate::names::Named;
use crate::record::Record;
use crate::target::Bound;

/// Bound on the time until the first new connection takes another route after a link got slower, in
/// seconds.
const MOVED_MAX_S: f64 = 3.0;

/// Durations of new connections, and when they began.
const TOOK: &str = "new connections";
const BEGAN: &str = "when they began";
/// When the first of them took another route, and when none took the old one any more.
const MOVED: &str = "first other way";
const SETTLED: &str = "all other ways";
const FAILED: &str = "new connections that failed";
const OPEN: &str = "open connection";

/// Changes links as often as configured, and adds the results to the record. Returns failures.
pub(super) fn observe(overlay: &Overlay<'_>, record: &mut Record) -> Vec<String> {
    let (mut seen, mut failures) = (Vec::new(), Vec::new());
    let count = overlay.args.moves;
    for number in 1..=count {
        eprintln!("overlay: link {number} of {count} gets worse, and is cut");
        let site = &overlay.sites[&Hops::Warm];
        if let Err(error) = moves::observe(overlay.args, &overlay.topology, site, &mut seen) {
            failures.push(format!("{error:#}"));
        }
    }
    for (place, one) in seen.iter().enumerate() {
        sample(overlay, record, place + 1, one);
    }
    let title = "A link of the first pair's chain gets worse, or is cut";
    let rows = ["event", "number", "before", "after"];
    let quantities = [MOVED, SETTLED, TOOK, FAILED, OPEN];
    record.table(title, |_| true, &rows, &quantities);
    failures
}

fn sample(overlay: &Overlay<'_>, record: &mut Record, number: usize, seen: &Move) {
    let names = |places: &BTreeSet<usize>| {
        let names = places.iter().map(|place| overlay.topology.name(*place));
        names.collect::<Vec<_>>().join(", ")
    };
    let number = number.to_string();
    let (before, after) = (names(&seen.before), names(&seen.after));
    let labels = [
        ("event", seen.change.name()),
        ("number", number.as_str()),
        ("before", &before),
        ("after", &after),
    ];
    let ended = seen.connections.iter();
    let ended = ended.filter_map(|(began, took)| Some((*began, (*took)?)));
    let (began, took): (Vec<f64>, Vec<f64>) = ended.unzip();
    let failed = (seen.connections.len() - took.len()) as f64;
    record.sample(MOVED, "s", &labels, seen.moved_s.into_iter().collect());
    if seen.change == Change::Worse {
        let what = "another way of a new connection after a link got worse";
        record.target(what, Bound::AtMost(MOVED_MAX_S));
    }
    record.sample(SETTLED, "s", &labels, seen.settled_s.into_iter().collect());
    record.sample(BEGAN, "s", &labels, began);
    record.sample(TOOK, "s", &labels, took);
    record.sample(FAILED, "", &labels, vec![failed]);
    record.sample(OPEN, "s", &labels, vec![seen.long_s]);
}
