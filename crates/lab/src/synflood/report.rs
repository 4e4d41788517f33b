// SPDX-License-Identifier: Apache-2.0
//! The report of `synflood`: tables of times and promises, and a chart.

use super::trial::{NodeCounts, Outcome};
use super::{Args, Case, Trials};
use crate::chart::{Across, Chart, Series};
use crate::network::Family;
use crate::record::Record;
use crate::stats::{deviation_percent, max, median};
use crate::table::{Table, cell, percent_cell};

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
    let before = |outcome: &Outcome| median(&outcome.before.first_byte);
    let model = |case: &Case| case.delays.model(case.subject);
    Table::of(
        "Legitimate flows of 10 KB, medians in ms",
        trials,
        &[
            ("delays", &|(case, _)| case.delays.to_string()),
            ("family", &|(case, _)| case.family.to_string()),
            ("cookies", &|(case, _)| case.cookies.to_string()),
            ("subject", &|(case, _)| case.subject.name().to_owned()),
            ("connect before", &|(_, one)| {
                cell(median(&one.before.connect))
            }),
            ("connect during", &|(_, one)| {
                cell(median(&one.during.connect))
            }),
            ("first byte before", &|(_, one)| cell(before(one))),
            ("first byte during", &|(_, one)| {
                cell(median(&one.during.first_byte))
            }),
            ("during, max", &|(_, one)| cell(max(&one.during.first_byte))),
            ("model", &|(case, _)| cell(Some(model(case)))),
            ("before to model", &|(case, one)| {
                percent_cell(before(one).map(|time| deviation_percent(time, model(case))))
            }),
        ],
    )
}

fn promises_table(trials: &Trials, args: &Args) -> Table {
    let node = |outcome: &Outcome, value: fn(&NodeCounts) -> u64| {
        let node = outcome.node.as_ref();
        node.map_or_else(|| "-".to_owned(), |node| value(node).to_string())
    };
    let verdict = |one: &Outcome| match (&one.node, one.broken(args.budget).is_empty()) {
        (None, _) => "-",
        (Some(_), true) => "kept",
        (Some(_), false) => "BROKEN",
    };
    Table::of(
        format!(
            "Spoofed SYNs, {} per second for {} s; budget {} half-open; most seen at once",
            args.rate, args.seconds, args.budget
        ),
        trials,
        &[
            ("delays", &|(case, _)| case.delays.to_string()),
            ("family", &|(case, _)| case.family.to_string()),
            ("cookies", &|(case, _)| case.cookies.to_string()),
            ("subject", &|(case, _)| case.subject.name().to_owned()),
            ("SYNs sent", &|(_, one)| one.sent.to_string()),
            ("completed at server", &|(_, one)| {
                one.completed().to_string()
            }),
            ("half-open at server", &|(_, one)| {
                one.server.half_open.to_string()
            }),
            ("cookies accepted", &|(_, one)| {
                one.server.cookies_received.to_string()
            }),
            ("half-open upstream", &|(_, one)| {
                node(one, |node| node.half_open)
            }),
            ("held", &|(_, one)| node(one, |node| node.held)),
            ("over budget", &|(_, one)| {
                node(one, |node| node.over_budget)
            }),
            ("flows failed", &|(_, one)| {
                one.failures().count().to_string()
            }),
            ("promises", &|(_, one)| verdict(one).to_owned()),
        ],
    )
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
            name: format!("{}, before", subject.name()),
            values: values(|outcome| &outcome.before.first_byte),
            model: model.clone(),
            ..Series::default()
        });
        series.push(Series {
            name: format!("{}, during", subject.name()),
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
