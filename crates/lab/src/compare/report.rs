// SPDX-License-Identifier: Apache-2.0
//! The report of `compare`: samples, a table per load, the targets, and charts.

use std::collections::BTreeMap;

use super::Results;
use super::bench::Bench;
use super::figures::{Figure, Figures};
use super::load::{self, Load, Yield};
use super::subject::Subject;
use super::targets::{self, DIRECT, FORWARDING};
use crate::chart::{Across, Chart, Curve};
use crate::names::Named;
use crate::record::{Record, Samples};
use crate::stats::Spread;
use crate::table::Table;

/// Ratios to other subjects, round by round: forwarding, and HAProxy in the same mode.
const TO_FORWARDING: &str = "ratio to forwarding";
const TO_HAPROXY: &str = "ratio to HAProxy";
/// The gain of a second CPU: the same connections with everything on one, minutes apart.
const TO_ONE_CPU: &str = "ratio to one CPU";

/// Adds samples, and the tables, targets and charts of them, to the record.
pub(super) fn fill(bench: &mut Bench<'_>) {
    let Bench {
        args,
        loads,
        subjects,
        record,
        results,
        ..
    } = bench;
    record.parameter("rounds", args.rounds());
    record.parameter("window_s", args.times().window.as_secs_f64());
    record.parameter("warm_up_s", args.times().warm_up.as_secs_f64());
    for load in loads.iter() {
        for subject in subjects.iter() {
            sample(record, load, subject, results);
        }
    }
    record.tables.extend(summary(loads, subjects, results));
    for load in loads.iter() {
        let title = format!("{} ({})", load.title, load.name);
        let of = |one: &Samples| one.labels.get("load").is_some_and(|own| own == load.name);
        record.table(&title, of, &["subject"], &columns(load.yields));
    }
    let figures = |load: &Load, name| figures(load, name, results);
    record.targets = targets::all(loads, figures);
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

/// The figures of a subject with a load, if measured.
fn figures(load: &Load, subject: &'static str, results: &Results) -> Option<Figures> {
    let of = |name: &'static str| results.get(&(load.name, name));
    Some(Figures::new(load.yields, of(subject)?, of(DIRECT)?))
}

/// Adds every round's values to the record.
fn sample(record: &mut Record, load: &Load, subject: &Subject, results: &Results) {
    let Some(figures) = figures(load, subject.name, results) else {
        return;
    };
    let labels = [
        ("load", load.name),
        ("title", load.title),
        ("yields", load.yields.name()),
        ("subject", subject.name),
    ];
    let mut add = |quantity: &str, unit: &str, values: &[f64]| {
        if values.iter().all(|value| value.is_finite()) {
            record.sample(quantity, unit, &labels, values.to_vec());
        }
    };
    for &figure in Figure::ALL {
        // The direct link adds nothing to itself, and times of two CPUs cannot be subtracted.
        let is_sum = figure == Figure::Marginal && load.yields == Yield::Rate;
        if !is_sum && (subject.name != DIRECT || !figure.is_added()) {
            add(figure.name(), figure.unit(load.yields), figures.of(figure));
        }
    }
    for (quantity, other) in others(load, subject, results) {
        // A figure of a busy machine may come out as zero or less: there is no ratio to that.
        if other.iter().all(|other| *other > 0.0) {
            let rounds = figures.deciding(load.yields).iter().zip(&other);
            let ratios: Vec<f64> = rounds.map(|(own, other)| own / other).collect();
            add(quantity, "", &ratios);
        }
    }
    let rounds = results.get(&(load.name, subject.name));
    let mut parties = BTreeMap::<&str, Vec<f64>>::new();
    for measured in rounds.into_iter().flatten() {
        for (party, seconds) in &measured.outcome.cpu_s {
            parties.entry(party).or_default().push(*seconds);
        }
    }
    for (party, seconds) in parties {
        add(&format!("CPU time of {party} in the window"), "s", &seconds);
    }
}

/// The figures to which those of a subject are set in relation, round by round.
fn others(load: &Load, subject: &Subject, results: &Results) -> Vec<(&'static str, Vec<f64>)> {
    let of = |name| Some(figures(load, name, results)?.deciding(load.yields).to_vec());
    let references = [
        (TO_FORWARDING, FORWARDING),
        (TO_HAPROXY, subject.mode.rival()),
    ];
    let references = references
        .into_iter()
        .filter(|(_, other)| ![DIRECT, other].contains(&subject.name));
    let mut others: Vec<_> = references
        .filter_map(|(quantity, other)| Some((quantity, of(other)?)))
        .collect();
    // Client, subject and server double with the CPUs, so that twice the rate is the upper bound.
    let one = results.get(&(load::ON_ONE, subject.name));
    if let Some(one) = one.filter(|_| load.name == load::ON_TWO) {
        let figures = Figures::new(load.yields, one, one);
        others.push((TO_ONE_CPU, figures.of(Figure::Rate).to_vec()));
    }
    others
}

/// A row per subject and a column per load, with the medians of each load's main figure; `None`
/// without results.
fn summary(loads: &[Load], subjects: &[Subject], results: &Results) -> Option<Table> {
    let of = |load: &&Load| results.contains_key(&(load.name, DIRECT));
    let loads: Vec<&Load> = loads.iter().filter(of).collect();
    let mut columns = vec!["subject"];
    columns.extend(loads.iter().map(|load| load.name));
    let title = "What each adds: CPU time of a connection in us, of a gigabyte in ms (bulk); delay \
                 in us (ping-pong one way, syn, syn-far); or what it reaches: connections a second (split, \
                 two-cores)";
    let mut table = Table::new(title, &columns);
    for subject in subjects {
        let cell = |load: &&Load| {
            let figures = figures(load, subject.name, results);
            // Added figures of the direct link are zero by definition; its rate is the upper bound.
            let shown = subject.name != DIRECT || load.yields == Yield::Rate;
            let spread = Spread::of(figures?.deciding(load.yields));
            spread.filter(|_| shown).map(Spread::brief)
        };
        let cells = loads
            .iter()
            .map(|load| cell(load).unwrap_or_else(|| "-".to_owned()));
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

/// Whether the chart shows a subject: others are almost as HAProxy's usual ones, or have no marginal
/// CPU time.
fn is_shown(subject: &Subject) -> bool {
    subject.name != DIRECT && !subject.bulk_only
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
