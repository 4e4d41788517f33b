// SPDX-License-Identifier: Apache-2.0
//! The report of `synflood`: samples, promises, and tables of both.

use super::trial::{NodeCounts, Outcome};
use super::{Args, BUDGET, Case};
use crate::record::Record;
use crate::target::Bound;

const CONNECT: &str = "time to connect";
const FIRST_BYTE: &str = "time to first byte";

/// Bound on the errors of flows in the remarks.
const FAILURES_SHOWN: usize = 5;

/// The labels of the conditions, which differ between rows of tables.
const CONDITIONS: [&str; 3] = ["delays", "family", "cookies"];

/// A counter of a trial: its value, which is `None` for a node's without one, and the largest that a
/// node promises.
type Counter = (&'static str, fn(&Outcome) -> Option<u64>, Option<u64>);

const COUNTERS: [Counter; 9] = [
    ("SYNs sent", |one| Some(one.sent), None),
    (
        "handshakes completed at the server",
        |one| Some(one.completed()),
        Some(0),
    ),
    // The server's own counter: it would be higher if a node dropped connections silently.
    (
        "most half-open at the server",
        |one| Some(one.server.half_open),
        Some(BUDGET),
    ),
    (
        "cookies accepted",
        |one| Some(one.server.cookies_received),
        None,
    ),
    (
        "most half-open upstream",
        |one| of_node(one, |node| node.half_open),
        Some(BUDGET),
    ),
    (
        "half-open after the flood",
        |one| of_node(one, |node| node.left),
        Some(0),
    ),
    ("SYN-ACKs held", |one| of_node(one, |node| node.held), None),
    (
        "flows over budget",
        |one| of_node(one, |node| node.over_budget),
        None,
    ),
    (
        "flows failed",
        |one| Some(one.failures().count() as u64),
        Some(0),
    ),
];

fn of_node(outcome: &Outcome, value: fn(&NodeCounts) -> u64) -> Option<u64> {
    outcome.node.as_ref().map(value)
}

/// Adds the samples of a trial, and the promises of its node. Plain forwarding promises nothing.
pub(super) fn sample(record: &mut Record, case: &Case, outcome: &Outcome) {
    let (delays, family) = (case.delays.to_string(), case.family.to_string());
    let cookies = case.cookies.to_string();
    let conditions = [delays.as_str(), &family, &cookies];
    let mut labels: Vec<(&str, &str)> = CONDITIONS.into_iter().zip(conditions).collect();
    labels.push(("subject", case.subject()));
    for (name, value, most) in COUNTERS {
        let values = value(outcome).into_iter().map(|count| count as f64);
        record.sample(name, "", &labels, values.collect());
        if let Some(most) = most.filter(|_| case.has_node) {
            record.target(format!("{case}: {name}"), Bound::AtMost(most as f64));
        }
    }
    for (phase, flows) in [("before", &outcome.before), ("during", &outcome.during)] {
        let labels = [&labels[..], &[("phase", phase)]].concat();
        for (quantity, times) in [(CONNECT, &flows.connect), (FIRST_BYTE, &flows.first_byte)] {
            record.sample(quantity, "ms", &labels, times.clone());
        }
        // The same before and during: a flood must not change the times.
        record.model(Some(case.delays.model(case.has_node)));
    }
    let room = FAILURES_SHOWN.saturating_sub(record.remarks.len());
    record
        .remarks
        .extend(outcome.failures().take(room).cloned());
}

/// Adds parameters, and the tables of all samples.
pub(super) fn fill(record: &mut Record, args: &Args) {
    record.parameter("rate", args.rate);
    record.parameter("seconds", args.seconds);
    record.parameter("flows", args.flows);
    record.parameter("budget", BUDGET);
    let by = |more: &[&'static str]| [&CONDITIONS, more].concat();
    let title = "Legitimate flows of 10 KB";
    let rows = by(&["subject", "phase"]);
    record.table(title, |_| true, &rows, &[CONNECT, FIRST_BYTE]);
    let title = format!(
        "Spoofed SYNs, {} per second for {} s; budget {BUDGET} half-open",
        args.rate, args.seconds
    );
    let counters = COUNTERS.map(|(name, ..)| name);
    record.table(&title, |_| true, &by(&["subject"]), &counters);
}

#[cfg(test)]
mod tests {
    use super::super::DELAYS;
    use super::*;
    use crate::network::Family;

    #[test]
    fn broken_promises_are_missed() {
        let missed = |outcome: &Outcome| {
            let case = Case {
                has_node: outcome.node.is_some(),
                family: Family::V4,
                cookies: 1,
                delays: DELAYS[0],
            };
            let mut record = Record::start("test", 1);
            sample(&mut record, &case, outcome);
            let missed = record.targets.iter().filter(|target| !target.is_met());
            (record.targets.len(), missed.count())
        };
        let node = NodeCounts {
            half_open: BUDGET,
            ..Default::default()
        };
        let mut outcome = Outcome {
            node: Some(node),
            ..Outcome::default()
        };
        assert_eq!(missed(&outcome), (5, 0));
        outcome.accepted = 1;
        outcome.node = Some(NodeCounts {
            half_open: BUDGET + 1,
            ..node
        });
        assert_eq!(missed(&outcome), (5, 2));
        outcome.node = Some(NodeCounts { left: 1, ..node });
        assert_eq!(missed(&outcome), (5, 2));
        outcome.node = None;
        assert_eq!(
            missed(&outcome),
            (0, 0),
            "plain forwarding promises nothing"
        );
    }
}
