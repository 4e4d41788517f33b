// SPDX-License-Identifier: Apache-2.0
//! The report of `router-churn`: tables by kind of connection and by fault, and the failures.

use std::collections::BTreeSet;

use super::clients::Life;
use super::ends::End;
use super::plan::{Fault, Kind};
use super::verdict::{Pair, Verdict, expected};
use super::{Args, Run};
use crate::names::Named;
use crate::record::Record;
use crate::stats::percentile;
use crate::table::{Table, cell};

/// Bound on connections described individually.
const DESCRIBED: usize = 20;
const PERCENTILES: [f64; 4] = [5.0, 50.0, 95.0, 99.0];

/// Adds tables, percentiles and remarks to the record.
pub(super) fn fill(record: &mut Record, args: &Args, run: &Run) {
    record.parameter("connections", args.connections);
    record.parameter("rate", args.rate);
    record.tables = vec![by_kind(&run.pairs), by_phase(run)];
    for (kind, _) in Kind::SHARES {
        for (node, life) in [("without", direct as fn(&Pair) -> &Life), ("with", with)] {
            let times = times(&run.pairs, kind, life);
            let values = PERCENTILES.map(|percent| percentile(&times, percent).unwrap_or(0.0));
            let labels = [("kind", kind.name()), ("node", node)];
            let quantity = "time, percentiles 5, 50, 95 and 99";
            record.sample(quantity, "ms", &labels, values.to_vec());
        }
    }
    record.remarks = remarks(run);
}

fn direct(pair: &Pair) -> &Life {
    &pair.direct
}

fn with(pair: &Pair) -> &Life {
    &pair.node
}

/// Durations of undisturbed connections of a kind, in ms.
fn times(pairs: &[Pair], kind: Kind, life: fn(&Pair) -> &Life) -> Vec<f64> {
    let of = pairs.iter().filter(|pair| {
        let ends = [direct(pair), with(pair)].map(Life::end);
        pair.plan.kind == kind && pair.timed && ends == [expected(kind); 2]
    });
    of.filter_map(|pair| life(pair).time())
        .map(|time| time.as_secs_f64() * 1000.0)
        .collect()
}

fn count(pairs: &[&Pair], check: impl Fn(&Pair) -> bool) -> String {
    pairs.iter().filter(|pair| check(pair)).count().to_string()
}

fn by_kind(pairs: &[Pair]) -> Table {
    type Row<'a> = (Kind, Vec<&'a Pair>);
    let of = |kind| pairs.iter().filter(|pair| pair.plan.kind == kind).collect();
    let median = |kind, life| cell(percentile(&times(pairs, kind, life), 50.0));
    let verdict = |of: &[&Pair], verdict| count(of, |pair| pair.verdict == verdict);
    let usual = |(kind, of): &Row<'_>, life: fn(&Pair) -> &Life| {
        count(of, |pair| life(pair).end() == expected(*kind))
    };
    Table::of(
        "Connections by kind, and medians of those that nothing disturbed",
        Kind::SHARES.map(|(kind, _)| -> Row<'_> { (kind, of(kind)) }),
        &[
            ("kind", &|(kind, _)| kind.name().to_owned()),
            ("connections", &|(_, of)| of.len().to_string()),
            ("as expected without node", &|row| usual(row, direct)),
            ("with", &|row| usual(row, with)),
            ("reset by its death", &|(_, of)| {
                verdict(of, Verdict::Killed)
            }),
            ("by a stale address", &|(_, of)| verdict(of, Verdict::Stale)),
            ("otherwise while a link is cut", &|(_, of)| {
                verdict(of, Verdict::Cut)
            }),
            ("BROKEN", &|(_, of)| {
                count(of, |pair| pair.verdict.is_broken())
            }),
            ("median without, ms", &|(kind, _)| median(*kind, direct)),
            ("with, ms", &|(kind, _)| median(*kind, with)),
        ],
    )
}

fn by_phase(run: &Run) -> Table {
    let name = |fault: Option<Fault>| fault.map_or("nothing", Fault::name);
    let faults = run.spans.iter().map(|span| span.fault.name());
    let phases: BTreeSet<&str> = faults.chain([name(None)]).collect();
    let row = |phase| {
        let of = run.pairs.iter().filter(|pair| name(pair.phase) == phase);
        (phase, of.collect::<Vec<&Pair>>())
    };
    let times = |phase: &str| {
        let spans = run.spans.iter().filter(|span| span.fault.name() == phase);
        spans.count().to_string()
    };
    let ended =
        |of: &[&Pair], life: fn(&Pair) -> &Life, end| count(of, |pair| life(pair).end() == end);
    let odd = |of: &[&Pair], life: fn(&Pair) -> &Life| {
        count(of, |pair| life(pair).end() != expected(pair.plan.kind))
    };
    Table::of(
        "Connections by what happened while they were open",
        phases.into_iter().map(row),
        &[
            ("meanwhile", &|(phase, _)| (*phase).to_owned()),
            ("times", &|(phase, _)| times(phase)),
            ("connections", &|(_, of)| of.len().to_string()),
            ("not as expected without node", &|(_, of)| odd(of, direct)),
            ("with", &|(_, of)| odd(of, with)),
            ("hung without", &|(_, of)| ended(of, direct, End::Hung)),
            ("with", &|(_, of)| ended(of, with, End::Hung)),
            ("reset without", &|(_, of)| ended(of, direct, End::Reset)),
            ("with", &|(_, of)| ended(of, with, End::Reset)),
            ("much longer without", &|(_, of)| {
                count(of, Pair::much_longer_without)
            }),
            ("with", &|(_, of)| count(of, Pair::much_longer_with)),
            ("BROKEN", &|(_, of)| {
                count(of, |pair| pair.verdict.is_broken())
            }),
        ],
    )
}

fn remarks(run: &Run) -> Vec<String> {
    let all: Vec<&Pair> = run.pairs.iter().collect();
    let ends = |life: fn(&Pair) -> &Life| {
        let some = End::ALL.iter().filter_map(|&end| {
            let count = all.iter().filter(|pair| life(pair).end() == end).count();
            (count > 0).then(|| format!("{count} {}", end.name()))
        });
        some.collect::<Vec<_>>().join(", ")
    };
    let share = run.relayed as f64 / (run.pairs.len().max(1) as f64) * 100.0;
    let mut remarks = vec![
        format!(
            "{} connections and {} faults in {:.0} s; the node relayed {} of the connections, {share:.0} %.",
            run.pairs.len(),
            run.spans.len(),
            run.took.as_secs_f64(),
            run.relayed,
        ),
        format!("Without node: {}.", ends(direct)),
        format!("With node: {}.", ends(with)),
        format!(
            "Undisturbed and much longer (3 times and 0.5 s) with the node: {}; without it: {}.",
            count(&all, Pair::much_longer_with),
            count(&all, Pair::much_longer_without)
        ),
    ];
    remarks.extend(run.troubles.iter().cloned());
    for (heading, check) in [
        (
            "BROKEN",
            (|pair| pair.verdict.is_broken()) as fn(&Pair) -> bool,
        ),
        ("By a stale address", |pair| pair.verdict == Verdict::Stale),
        ("Much longer", Pair::much_longer_with),
    ] {
        let of = all.iter().filter(|pair| check(pair));
        let lines = of.map(|pair| format!("{heading}: {}", pair.line(&run.log)));
        remarks.extend(lines.take(DESCRIBED));
    }
    remarks
}
