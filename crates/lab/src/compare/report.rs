// SPDX-License-Identifier: Apache-2.0
//! The report of `compare`: samples, a table per load, the targets, and charts.

use std::collections::BTreeMap;

use super::Results;
use super::bench::Bench;
use super::figures::Figure;
use super::load::{self, Load, Yield};
use super::subject::{Loads, Subject};
use super::targets::{self, DIRECT, FORWARDING, MASQUERADING, MULTIPATH, PACKET_MASQUERADING};
use crate::chart::{Across, Chart, Curve};
use crate::names::Named;
use crate::record::{self, Record, Samples};
use crate::stats::Spread;
use crate::table::Table;

/// Ratios to other subjects, round by round: forwarding, and HAProxy in the same mode.
const TO_FORWARDING: &str = "ratio to forwarding";
const TO_HAPROXY: &str = "ratio to HAProxy";
/// The gain of a second CPU: the same connections with everything on one, minutes apart.
const TO_ONE_CPU: &str = "ratio to one CPU";

/// Adds samples, and the tables, targets and the chart of them, to the record.
pub(super) fn fill(bench: &mut Bench<'_>) {
    let Bench {
        args,
        loads,
        subjects,
        record,
        results,
        ..
    } = bench;
    record.parameter("rounds", args.rounds);
    record.parameter("window_s", args.window().as_secs_f64());
    for load in loads.iter() {
        for subject in subjects.iter() {
            sample(record, load, subject, results);
        }
        for subject in subjects.iter() {
            sample_ratios(record, load, subject);
        }
    }
    record.tables.extend(summary(loads, subjects, record));
    for load in loads.iter() {
        let title = format!("{} ({})", load.title, load.name);
        let of = |one: &Samples| one.labels.get("load").is_some_and(|own| own == load.name);
        record.table(&title, of, &["subject"], &columns(load.yields));
    }
    record.targets = targets::all(loads, record);
    for ((load, subject), rounds) in results.iter() {
        for problem in rounds.iter().flat_map(|measured| &measured.problems) {
            let remark = format!("NOT IN FULL: {load} by {subject}: {problem}.");
            record.remarks.push(remark);
        }
    }
    let chart = chart(subjects);
    if chart.has_samples(&record.samples) {
        record.charts.push(chart);
    }
}

/// The values of a figure of a subject with a load, round by round.
pub(super) fn values<'a>(
    record: &'a Record,
    figure: Figure,
    load: &str,
    subject: &str,
) -> Option<&'a [f64]> {
    let labels = record::labels(&[("load", load), ("subject", subject)]);
    let mut samples = record.samples.iter();
    let of = samples.find(|one| one.are(figure.name(), &labels));
    of.map(|one| one.values.as_slice())
}

/// Adds values without invalid ones to the record, under the labels of a load and a subject.
fn add(
    record: &mut Record,
    load: &Load,
    subject: &Subject,
    (quantity, unit): (&str, &str),
    values: Vec<f64>,
) {
    let labels = [
        ("load", load.name),
        ("title", load.title),
        ("yields", load.yields.name()),
        ("subject", subject.name),
    ];
    if values.iter().all(|value| value.is_finite()) {
        record.sample(quantity, unit, &labels, values);
    }
}

/// Adds every round's values to the record.
fn sample(record: &mut Record, load: &Load, subject: &Subject, results: &Results) {
    let of = |name: &'static str| results.get(&(load.name, name));
    let (Some(rounds), Some(direct)) = (of(subject.name), of(DIRECT)) else {
        return;
    };
    for &figure in Figure::ALL {
        // The direct link adds nothing to itself, and times of two CPUs cannot be subtracted.
        let is_sum = figure == Figure::Marginal && load.yields == Yield::Rate;
        if !is_sum && (subject.name != DIRECT || !figure.is_added()) {
            let values = figure.values(load.yields, rounds, direct);
            let quantity = (figure.name(), figure.unit(load.yields));
            add(record, load, subject, quantity, values);
        }
    }
    let mut parties = BTreeMap::<&str, Vec<f64>>::new();
    for (party, seconds) in rounds.iter().flat_map(|one| &one.outcome.cpu_s) {
        parties.entry(party).or_default().push(*seconds);
    }
    for (party, seconds) in parties {
        let quantity = format!("CPU time of {party} in the window");
        add(record, load, subject, (&quantity, "s"), seconds);
    }
}

/// Adds the ratios of a subject's main figure to those of others, round by round.
fn sample_ratios(record: &mut Record, load: &Load, subject: &Subject) {
    let figure = Figure::deciding(load.yields);
    let rival = subject.mode.rival();
    // Client, subject and server double with the CPUs, so that twice the rate is the upper bound.
    let on_one = (load.name == load::ON_TWO).then_some(load::ON_ONE);
    for (quantity, of, other) in [
        (TO_FORWARDING, load.name, FORWARDING),
        (TO_HAPROXY, load.name, rival),
        (TO_ONE_CPU, on_one.unwrap_or_default(), subject.name),
    ] {
        let is_itself = [DIRECT, other].contains(&subject.name) && quantity != TO_ONE_CPU;
        let own = values(record, figure, load.name, subject.name);
        let ratios = own
            .zip(values(record, figure, of, other))
            .map(|(own, other)| {
                let ratios = own.iter().zip(other).map(|(own, other)| own / other);
                // A figure of a busy machine may come out as zero or less: there is no ratio to that.
                let is_valid = other.iter().all(|other| *other > 0.0);
                is_valid.then(|| ratios.collect::<Vec<f64>>())
            });
        if let Some(ratios) = ratios.flatten().filter(|_| !is_itself) {
            add(record, load, subject, (quantity, ""), ratios);
        }
    }
}

/// A row per subject and a column per load, with the medians of each load's main figure; `None`
/// without results.
fn summary(loads: &[Load], subjects: &[Subject], record: &Record) -> Option<Table> {
    let median = |load: &Load, subject: &Subject| {
        let values = values(
            record,
            Figure::deciding(load.yields),
            load.name,
            subject.name,
        )?;
        Spread::of(values).map(Spread::brief)
    };
    let is_measured = |load: &&Load| subjects.iter().any(|one| median(load, one).is_some());
    let loads: Vec<&Load> = loads.iter().filter(is_measured).collect();
    let mut columns = vec!["subject"];
    columns.extend(loads.iter().map(|load| load.name));
    let title = "What each adds: CPU time of a connection in us, of a gigabyte in ms (bulk); delay \
                 in us (ping-pong one way, syn, syn-far); or what it reaches: connections a second (split, \
                 two-cores)";
    let mut table = Table::new(title, &columns);
    for subject in subjects {
        // The direct link adds nothing, but its rate is the upper bound.
        let cells = loads
            .iter()
            .map(|load| median(load, subject).unwrap_or_else(|| "-".to_owned()));
        table.push(std::iter::once(subject.name.to_owned()).chain(cells));
    }
    (!loads.is_empty()).then_some(table)
}

/// The quantities in a load's table.
fn columns(yields: Yield) -> Vec<&'static str> {
    use Figure::*;
    let figures: &[Figure] = match yields {
        Yield::Transactions => &[Rate, Marginal, Typical, Slow, ClientPackets, ServerPackets],
        Yield::Bytes => &[Rate, Marginal],
        Yield::Messages => &[Added, Marginal, Typical, Slow],
        Yield::SynDelay => &[SynDelay],
        Yield::Rate => &[Rate, Typical, Slow, ClientPackets, ServerPackets],
    };
    let names = figures.iter().map(|figure| figure.name());
    names
        .chain([TO_FORWARDING, TO_HAPROXY, TO_ONE_CPU])
        .collect()
}

/// Whether the chart shows a subject: others are almost as HAProxy's usual ones, have no marginal CPU
/// time, or do more than the others, or twice.
fn is_shown(subject: &Subject) -> bool {
    let others = [DIRECT, MASQUERADING, MULTIPATH, PACKET_MASQUERADING];
    !others.contains(&subject.name) && subject.loads == Loads::All && subject.nodes == 1
}

/// The CPU time of connections.
fn chart(subjects: &[Subject]) -> Chart {
    let shown = subjects.iter().filter(|one| is_shown(one));
    let curve = |one: &Subject| {
        // A chart has one unit, which depends on what a load yields.
        let labels = [
            ("subject", one.name),
            ("yields", Yield::Transactions.name()),
        ];
        Curve::new(one.name, Figure::Marginal.name(), &labels)
    };
    Chart {
        file: Yield::Transactions.name().to_owned(),
        title: "CPU time of a new connection".to_owned(),
        subtitle: "added to a direct link; client, relay and server share one CPU".to_owned(),
        across_label: "load".to_owned(),
        value_label: "marginal CPU time, us".to_owned(),
        across: Across::Rows(vec!["title".to_owned()]),
        curves: shown.map(curve).collect(),
        note: String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chart::SERIES_MAX;
    use crate::compare::subject::ALL;

    #[test]
    fn chart_has_room_for_all() {
        assert!(ALL.iter().filter(|row| is_shown(row)).count() <= SERIES_MAX);
    }
}
