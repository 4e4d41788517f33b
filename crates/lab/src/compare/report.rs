// SPDX-License-Identifier: Apache-2.0
//! The report of `compare`: the targets, a table per load, the samples behind them, and charts.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::bench::Bench;
use super::figures::{Figure, Figures, Spread};
use super::load::{self, Load, Yield};
use super::subject::{self, Mode, Subject};
use super::targets::{self, Alone};
use super::{Results, scaling};
use crate::chart::{Across, Chart, Series};
use crate::record::Record;
use crate::table::Table;

/// Adds the samples and the tables made of them to the record.
pub(super) fn fill(bench: &mut Bench<'_>, alone: &[Alone]) {
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
    record.tables.extend(summary(loads, subjects, results));
    let verdicts = targets::table(loads, |load, name| figures(load, name, results), alone);
    record.tables.extend(verdicts);
    record.tables.extend(scaling(loads, subjects, results));
    for load in loads.iter() {
        record.tables.extend(table(load, subjects, results));
        for subject in subjects.iter() {
            keep(record, load, subject, results);
        }
    }
    for ((load, subject), rounds) in results.iter() {
        for problem in rounds.iter().flat_map(|measured| &measured.problems) {
            let remark = format!("NOT IN FULL: {load} by {subject}: {problem}.");
            record.remarks.push(remark);
        }
    }
}

/// The figures of a subject with a load, if measured.
fn figures(load: &Load, subject: &'static str, results: &Results) -> Option<Figures> {
    let of = |name: &'static str| results.get(&(load.name, name));
    Some(Figures::new(load.yields, of(subject)?, of("direct")?))
}

/// The gain of a second CPU; `None` unless both loads were measured.
fn scaling(loads: &[Load], subjects: &[Subject], results: &Results) -> Option<Table> {
    let load = |name| loads.iter().find(|load| load.name == name);
    let (one, two) = (load(load::ON_ONE)?, load(load::ON_TWO)?);
    let both = |name| Some([figures(one, name, results)?, figures(two, name, results)?]);
    scaling::table(subjects, both)
}

/// Adds every round's values to the record.
fn keep(record: &mut Record, load: &Load, subject: &Subject, results: &Results) {
    let Some(figures) = figures(load, subject.name, results) else {
        return;
    };
    let labels = [("load", load.name), ("subject", subject.name)];
    let mut sample = |quantity: &str, unit: &str, values: &[f64]| {
        if values.iter().all(|value| value.is_finite()) {
            record.sample(quantity, unit, &labels, values.to_vec());
        }
    };
    // The other figures are differences of these.
    let kept = Figure::ALL
        .into_iter()
        .filter(|figure| *figure < Figure::Marginal);
    for figure in kept {
        sample(figure.name(), unit(figure, load.yields), figures.of(figure));
    }
    let rounds = results.get(&(load.name, subject.name));
    let mut parties = BTreeMap::<&str, Vec<f64>>::new();
    for measured in rounds.into_iter().flatten() {
        for (party, seconds) in &measured.outcome.cpu_s {
            parties.entry(party).or_default().push(*seconds);
        }
    }
    for (party, seconds) in parties {
        sample(&format!("CPU time of {party} in the window"), "s", &seconds);
    }
}

fn unit(figure: Figure, yields: Yield) -> &'static str {
    match (figure, yields) {
        (Figure::Total | Figure::Marginal, Yield::Bytes) => "ms/GB",
        (Figure::Total | Figure::Marginal, Yield::Messages) => "us/message",
        (Figure::Total | Figure::Marginal, _) => "us/transaction",
        (Figure::Rate, Yield::Bytes) => "Gbit/s",
        (Figure::Rate, Yield::Messages) => "messages/s",
        (Figure::Rate, _) => "transactions/s",
        (Figure::ClientPackets | Figure::ServerPackets, _) => "packets",
        (Figure::Retransmitted, _) => "segments",
        _ => "us",
    }
}

/// A row per subject and a column per load, with the medians of each load's main figure; `None`
/// without results.
fn summary(loads: &[Load], subjects: &[Subject], results: &Results) -> Option<Table> {
    let of = |load: &&Load| results.contains_key(&(load.name, "direct"));
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
            let shown = subject.name != "direct" || load.yields == Yield::Rate;
            let spread = Spread::of(figures?.deciding(load.yields));
            spread.filter(|_| shown).map(Spread::brief)
        };
        let cells = loads.iter().map(|load| cell(load).unwrap_or_else(dash));
        table.push(std::iter::once(subject.name.to_owned()).chain(cells));
    }
    (!loads.is_empty()).then_some(table)
}

/// The figures in a load's table.
fn columns(yields: Yield) -> &'static [Figure] {
    use Figure::*;
    match yields {
        Yield::Transactions => &[Rate, Marginal, Typical, Slow, ClientPackets, ServerPackets],
        Yield::Bytes => &[Rate, Marginal],
        Yield::Messages => &[Added, Marginal, Typical, Slow],
        Yield::SynDelay => &[SynDelay],
        Yield::Rate => &[Rate, Typical, Slow, ClientPackets, ServerPackets],
    }
}

fn heading(figure: Figure, yields: Yield) -> String {
    match figure {
        Figure::Rate => unit(figure, yields).to_owned(),
        Figure::Marginal => format!("marginal CPU, {}", unit(figure, yields)),
        Figure::Added => "added one way, us".to_owned(),
        Figure::SynDelay => "median delay, us".to_owned(),
        Figure::Typical => "median, us".to_owned(),
        Figure::Slow => "99 %, us".to_owned(),
        Figure::ClientPackets => "packets, client".to_owned(),
        Figure::ServerPackets => "packets, server".to_owned(),
        Figure::Total | Figure::Retransmitted => figure.name().to_owned(),
    }
}

/// The table of one load; `None` if it was not measured.
fn table(load: &Load, subjects: &[Subject], results: &Results) -> Option<Table> {
    let columns = columns(load.yields);
    let mut headings = vec!["subject"];
    let own = columns.iter().map(|figure| heading(*figure, load.yields));
    let own: Vec<String> = own.collect();
    headings.extend(own.iter().map(String::as_str));
    headings.extend(["x forwarding", "x HAProxy"]);
    let mut table = Table::new(format!("{} ({})", load.title, load.name), &headings);
    for subject in subjects {
        if let Some(figures) = figures(load, subject.name, results) {
            let cells = columns
                .iter()
                .map(|figure| cell(*figure, subject, &figures));
            let mut row = vec![subject.name.to_owned()];
            row.extend(cells);
            let against = |name| against(load, subject, &figures, name, results);
            row.extend([against("forwarding"), against(rival(subject.mode))]);
            table.push(row);
        }
    }
    (!table.rows.is_empty()).then_some(table)
}

fn cell(figure: Figure, subject: &Subject, figures: &Figures) -> String {
    // The direct link adds nothing to itself.
    let is_added = matches!(figure, Figure::Marginal | Figure::Added | Figure::SynDelay);
    let spread = Spread::of(figures.of(figure)).filter(|_| !is_added || subject.name != "direct");
    match spread {
        Some(spread) if is_added || figure == Figure::Rate => spread.to_string(),
        Some(spread) => format!("{:.1}", spread.median),
        None => dash(),
    }
}

/// The name of the subject with which those of a mode are compared.
fn rival(mode: Mode) -> &'static str {
    match mode {
        Mode::Transparent => "haproxy-transparent",
        Mode::Fixed | Mode::Reference => "haproxy",
    }
}

/// The ratio of a subject's figures to another's.
fn against(
    load: &Load,
    subject: &Subject,
    figures: &Figures,
    other: &'static str,
    results: &Results,
) -> String {
    if subject.name == "direct" || subject.name == other {
        return dash();
    }
    self::figures(load, other, results)
        .and_then(|other| {
            let [ours, others] = [figures, &other].map(|one| one.deciding(load.yields));
            Spread::of_ratio(ours, others)
        })
        .map_or_else(dash, |spread| spread.to_string())
}

fn dash() -> String {
    "-".to_owned()
}

/// Subjects omitted from charts: those that do not relay, and HAProxy where another row has the
/// same.
const LEFT_OUT: [&str; 3] = ["direct", "haproxy-transparent-1m", "posthaste-observing"];

/// Charts, with the names of their files.
pub(super) fn charts(bench: &Bench<'_>) -> Vec<(&'static str, Chart)> {
    let results = &bench.results;
    let kinds = [
        (
            "connections",
            ("What a new connection costs", "marginal CPU time, us"),
            Yield::Transactions,
            "haproxy-1m",
        ),
        (
            "bulk",
            ("What a gigabyte costs", "marginal CPU time, ms"),
            Yield::Bytes,
            "haproxy-transparent",
        ),
    ];
    let mut charts = Vec::new();
    for (name, titles, yields, left_out) in kinds {
        let of =
            |load: &&Load| load.yields == yields && results.contains_key(&(load.name, "direct"));
        let loads: Vec<&Load> = bench.loads.iter().filter(of).collect();
        let shown = bench
            .subjects
            .iter()
            .filter(|subject| is_shown(subject, left_out));
        let shown: Vec<&Subject> = shown.collect();
        if !loads.is_empty() {
            charts.push((name, chart(titles, &loads, &shown, results)));
        }
    }
    charts
}

fn is_shown(subject: &Subject, left_out: &str) -> bool {
    !LEFT_OUT.contains(&subject.name) && subject.name != left_out
}

fn chart(
    (title, y_label): (&str, &str),
    loads: &[&Load],
    subjects: &[&Subject],
    results: &Results,
) -> Chart {
    let series = subjects.iter().map(|subject| {
        let spread =
            |load: &&Load| Spread::of(figures(load, subject.name, results)?.deciding(load.yields));
        let spreads: Vec<Option<Spread>> = loads.iter().map(spread).collect();
        Series {
            name: subject.name.to_owned(),
            values: spreads.iter().map(|s| s.map(|s| s.median)).collect(),
            spread: spreads.iter().map(|s| s.map(|s| (s.low, s.high))).collect(),
            ..Series::default()
        }
    });
    Chart {
        title: title.to_owned(),
        subtitle: "added to a direct link; client, relay and server share one CPU".to_owned(),
        across_label: "load".to_owned(),
        value_label: y_label.to_owned(),
        across: Across::Rows(loads.iter().map(|load| load.title.to_owned()).collect()),
        series: series
            .filter(|series| series.values.iter().any(Option::is_some))
            .collect(),
        model_name: String::new(),
        note: "Whiskers: quartiles of the rounds.".to_owned(),
    }
}

/// All loads and subjects, for `--list`.
pub(super) fn listing() -> String {
    let loads = load::all().into_iter().map(|load| (load.name, load.title));
    let loads = loads.chain([load::MEMORY, load::BOOT]);
    let subjects = subject::ALL.iter().map(|one| (one.name, one.what));
    let mut text = String::from("loads:\n");
    for (name, what) in loads {
        let _ = writeln!(text, "  {name:24}{what}");
    }
    text.push_str("subjects:\n");
    for (name, what) in subjects {
        let _ = writeln!(text, "  {name:24}{what}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chart::SERIES_MAX;
    use crate::compare::subject::ALL;

    #[test]
    fn charts_have_room_for_all() {
        for left_out in ["haproxy-1m", "haproxy-transparent"] {
            let shown = ALL.iter().filter(|row| is_shown(row, left_out));
            assert!(shown.count() <= SERIES_MAX, "without {left_out}");
        }
    }
}
