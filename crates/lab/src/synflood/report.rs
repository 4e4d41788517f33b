// SPDX-License-Identifier: Apache-2.0
//! The report of `synflood`: samples, tables of times and of promises, and a chart.

use super::trial::{NodeCounts, Outcome};
use super::{Args, Case, SUBJECTS, Trials};
use crate::chart::{Across, Chart, Curve};
use crate::record::Record;
use crate::target::{Bound, Target};

const CONNECT: &str = "time to connect";
const FIRST_BYTE: &str = "time to first byte";

/// The labels of the conditions, which differ between rows of tables.
const CONDITIONS: [&str; 3] = ["delays", "family", "cookies"];

/// Counters of a trial; `None` for those of a node without one.
type Counter = (&'static str, fn(&Outcome) -> Option<u64>);

const COUNTERS: [Counter; 8] = [
    ("SYNs sent", |one| Some(one.sent)),
    ("handshakes completed at the server", |one| {
        Some(one.completed())
    }),
    ("most half-open at the server", |one| {
        Some(one.server.half_open)
    }),
    ("cookies accepted", |one| Some(one.server.cookies_received)),
    ("most half-open upstream", |one| {
        of_node(one, |node| node.half_open)
    }),
    ("SYN-ACKs held", |one| of_node(one, |node| node.held)),
    ("flows over budget", |one| {
        of_node(one, |node| node.over_budget)
    }),
    ("flows failed", |one| Some(one.failures().count() as u64)),
];

fn of_node(outcome: &Outcome, value: fn(&NodeCounts) -> u64) -> Option<u64> {
    outcome.node.as_ref().map(value)
}

/// Adds samples, tables, targets and chart to the record.
pub(super) fn fill(record: &mut Record, args: &Args, trials: &Trials) {
    record.parameter("rate", args.rate);
    record.parameter("seconds", args.seconds);
    record.parameter("flows", args.flows);
    record.parameter("budget", args.budget);
    for (case, outcome) in trials {
        sample(record, case, outcome);
        record.targets.extend(targets(case, outcome, args.budget));
    }
    let by = |more: &[&'static str]| [&CONDITIONS, more].concat();
    let title = "Legitimate flows of 10 KB";
    let rows = by(&["subject", "phase"]);
    record.table(title, |_| true, &rows, &[CONNECT, FIRST_BYTE]);
    let title = format!(
        "Spoofed SYNs, {} per second for {} s; budget {} half-open",
        args.rate, args.seconds, args.budget
    );
    record.table(
        &title,
        |_| true,
        &by(&["subject"]),
        &COUNTERS.map(|(name, _)| name),
    );
    record.charts.push(chart(args));
}

fn sample(record: &mut Record, case: &Case, outcome: &Outcome) {
    let (delays, family) = (case.delays.to_string(), case.family.to_string());
    let cookies = case.cookies.to_string();
    let conditions = [delays.as_str(), &family, &cookies];
    let mut labels: Vec<(&str, &str)> = CONDITIONS.into_iter().zip(conditions).collect();
    labels.push(("subject", case.subject()));
    for (quantity, value) in COUNTERS {
        let values = value(outcome).into_iter().map(|count| count as f64);
        record.sample(quantity, "", &labels, values.collect());
    }
    for (phase, flows) in [("before", &outcome.before), ("during", &outcome.during)] {
        let labels = [&labels[..], &[("phase", phase)]].concat();
        record.sample(CONNECT, "ms", &labels, flows.connect.clone());
        record.sample(FIRST_BYTE, "ms", &labels, flows.first_byte.clone());
        // The same before and during: a flood must not change the times.
        record.model(Some(case.delays.model(case.has_node)));
    }
}

/// The promises of a node. Plain forwarding promises nothing.
fn targets(case: &Case, outcome: &Outcome, budget: u64) -> Vec<Target> {
    let Some(node) = &outcome.node else {
        return Vec::new();
    };
    let promises = [
        (
            "spoofed handshakes completed at the server",
            outcome.completed(),
            0,
        ),
        ("half-open upstream connections", node.half_open, budget),
        // The server's own counter: it would be higher if a node dropped connections silently.
        (
            "half-open connections at the server",
            outcome.server.half_open,
            budget,
        ),
        ("half-open connections that outlast the flood", node.left, 0),
        ("failed flows", outcome.failures().count() as u64, 0),
    ];
    let target = |(what, count, most): (&str, u64, u64)| {
        let bound = Bound::AtMost(most as f64);
        Target::once(format!("{case}: {what}"), Some(count as f64), bound, "")
    };
    promises.map(target).to_vec()
}

/// The chart of the times.
fn chart(args: &Args) -> Chart {
    let curve = |(name, phase): (&str, &str)| {
        let labels = [("subject", name), ("phase", phase)];
        Curve::new(format!("{name}, {phase}"), FIRST_BYTE, &labels)
    };
    let phases = |(_, name)| ["before", "during"].map(|phase| (name, phase));
    let curves = SUBJECTS.into_iter().flat_map(phases);
    Chart {
        file: String::new(),
        title: "Legitimate flows under a flood of spoofed SYNs".to_owned(),
        subtitle: format!(
            "{} SYNs per second, {} flows of 10 KB",
            args.rate, args.flows
        ),
        across_label: "one-way delays client-node/node-server in ms, IP version, tcp_syncookies"
            .to_owned(),
        value_label: "time to first byte, ms".to_owned(),
        across: Across::Rows(CONDITIONS.map(str::to_owned).to_vec()),
        curves: curves.map(curve).collect(),
        note:
            "Model: direct 4D; early 2D + 2 max(X), D the one-way delay of the path, X of a link."
                .to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::DELAYS;
    use super::*;
    use crate::network::Family;

    #[test]
    fn broken_promises_are_missed() {
        let case = Case {
            has_node: true,
            family: Family::V4,
            cookies: 1,
            delays: DELAYS[0],
        };
        let missed = |outcome: &Outcome, budget| {
            let targets = targets(&case, outcome, budget);
            targets.iter().filter(|target| !target.is_met()).count()
        };
        let node = NodeCounts {
            half_open: 9,
            ..Default::default()
        };
        let mut outcome = Outcome {
            node: Some(node),
            ..Outcome::default()
        };
        assert_eq!(missed(&outcome, 9), 0);
        outcome.accepted = 1;
        assert_eq!(missed(&outcome, 8), 2);
        outcome.node = Some(NodeCounts { left: 1, ..node });
        assert_eq!(missed(&outcome, 8), 3);
        outcome.node = None;
        assert!(
            targets(&case, &outcome, 8).is_empty(),
            "plain forwarding promises nothing"
        );
    }
}
