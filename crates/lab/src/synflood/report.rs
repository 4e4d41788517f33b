// SPDX-License-Identifier: Apache-2.0
//! The report of `synflood`: tables of times and promises, and a chart.

use super::trial::{NodeCounts, Outcome};
use super::{Args, Case, Trials};
use crate::chart::{Across, Chart, Series};
use crate::network::Family;
use crate::record::Record;
use crate::stats::{deviation_percent, max, median};
use crate::table::Table;

/// Adds the samples and the tables made of them to the record.
pub(super) fn fill(record: &mut Record, args: &Args, trials: &Trials) {
    record.parameter("rate", args.rate);
    record.parameter("seconds", args.seconds);
    record.parameter("flows", args.flows);
    record.parameter("budget", args.budget);
    record.tables = vec![times_table(trials), promises_table(trials, args)];
    for (case, outcome) in trials {
        let (delays, family) = (case.delays.to_string(), case.family.to_string());
        let cookies = case.cookies.to_string();
        for (phase, flows) in [("before", &outcome.before), ("during", &outcome.during)] {
            let labels = [
                ("delays", delays.as_str()),
                ("family", &family),
                ("cookies", &cookies),
                ("subject", case.subject.name()),
                ("phase", phase),
            ];
            record.sample("connect", "ms", &labels, flows.connect.clone());
            record.sample("first byte", "ms", &labels, flows.first_byte.clone());
        }
    }
}

fn times_table(trials: &Trials) -> Table {
    let columns = [
        "delays",
        "family",
        "cookies",
        "subject",
        "connect before",
        "connect during",
        "first byte before",
        "first byte during",
        "during, max",
        "model",
        "before to model",
    ];
    let mut table = Table::new("Legitimate flows of 10 KB, medians in ms", &columns);
    for (case, outcome) in trials {
        let model = case.delays.model(case.subject);
        let before = median(&outcome.before.first_byte);
        let mut row = vec![
            case.delays.to_string(),
            case.family.to_string(),
            case.cookies.to_string(),
            case.subject.to_string(),
        ];
        row.extend(
            [
                median(&outcome.before.connect),
                median(&outcome.during.connect),
                before,
                median(&outcome.during.first_byte),
                max(&outcome.during.first_byte),
                Some(model),
            ]
            .map(|time| time.map_or_else(|| "-".to_string(), |time| format!("{time:.1}"))),
        );
        let deviation = before.map(|time| format!("{:+.1} %", deviation_percent(time, model)));
        row.push(deviation.unwrap_or_else(|| "-".to_string()));
        table.push(row);
    }
    table
}

fn promises_table(trials: &Trials, args: &Args) -> Table {
    let columns = [
        "delays",
        "family",
        "cookies",
        "subject",
        "SYNs sent",
        "completed at server",
        "half-open at server",
        "cookies accepted",
        "half-open upstream",
        "held",
        "over budget",
        "flows failed",
        "promises",
    ];
    let mut table = Table::new(
        format!(
            "Spoofed SYNs, {} per second for {} s; budget {} half-open; most seen at once",
            args.rate, args.seconds, args.budget
        ),
        &columns,
    );
    for (case, outcome) in trials {
        let node = |value: fn(&NodeCounts) -> u64| {
            outcome
                .node
                .as_ref()
                .map_or_else(|| "-".to_string(), |node| value(node).to_string())
        };
        let verdict = match (&outcome.node, outcome.broken(args.budget).is_empty()) {
            (None, _) => "-",
            (Some(_), true) => "kept",
            (Some(_), false) => "BROKEN",
        };
        let failed = outcome.before.failures.len() + outcome.during.failures.len();
        table.push([
            case.delays.to_string(),
            case.family.to_string(),
            case.cookies.to_string(),
            case.subject.to_string(),
            outcome.sent.to_string(),
            outcome
                .completed
                .max(outcome.accepted)
                .max(outcome.extra_opens)
                .to_string(),
            outcome.server_half_open.to_string(),
            outcome.cookies_received.to_string(),
            node(|node| node.half_open),
            node(|node| node.held),
            node(|node| node.over_budget),
            failed.to_string(),
            verdict.to_string(),
        ]);
    }
    table
}

/// The chart of the times.
pub(super) fn chart(args: &Args, trials: &Trials) -> Chart {
    let mut series = Vec::new();
    for &subject in &args.subjects {
        let mine: Vec<&(Case, Outcome)> = trials
            .iter()
            .filter(|(case, _)| case.subject == subject)
            .collect();
        let model: Vec<_> = mine
            .iter()
            .map(|(case, _)| Some(case.delays.model(subject)))
            .collect();
        let values = |of: fn(&Outcome) -> &[f64]| mine.iter().map(|(_, o)| median(of(o))).collect();
        series.push(Series {
            name: format!("{subject}, before"),
            values: values(|outcome| &outcome.before.first_byte),
            model: model.clone(),
            ..Series::default()
        });
        series.push(Series {
            name: format!("{subject}, during"),
            values: values(|outcome| &outcome.during.first_byte),
            model,
            ..Series::default()
        });
    }
    let groups = trials
        .iter()
        .filter(|(case, _)| case.subject == args.subjects[0]);
    let name = |(case, _): &(Case, Outcome)| {
        let family = if case.family == Family::V4 {
            "v4"
        } else {
            "v6"
        };
        format!("{} {family} c{}", case.delays, case.cookies)
    };
    Chart {
        title: "Legitimate flows under a flood of spoofed SYNs".to_string(),
        subtitle: format!(
            "{} SYNs per second, 10 KB flows, medians of {}",
            args.rate, args.flows
        ),
        across_label:
            "one-way delays client-node/node-server in ms, IP version, server's tcp_syncookies"
                .to_string(),
        value_label: "time to first byte, ms".to_string(),
        across: Across::Rows(groups.map(name).collect()),
        series,
        model_name: "model".to_string(),
        note:
            "Model: direct 4D; early 2D + 2 max(X), D the one-way delay of the path, X of a link."
                .to_string(),
    }
}
