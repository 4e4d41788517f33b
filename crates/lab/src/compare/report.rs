// SPDX-License-Identifier: Apache-2.0
//! What `compare` says: the targets, a table for each load, the samples behind them, and pictures.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::bench::Bench;
use super::contender::{self, Contender, Mode};
use super::figures::{Figures, Spread};
use super::judge::{self, Alone};
use super::load::{self, Load, Yield};
use super::{Results, scaling};
use crate::chart::{Across, Chart, Series};
use crate::record::Record;
use crate::table::Table;

/// Puts the samples and the tables made of them into the record.
pub(super) fn fill(record: &mut Record, bench: &Bench<'_>, results: &Results, alone: &[Alone]) {
    let Bench {
        args,
        loads,
        contenders,
        ..
    } = bench;
    record.parameter("rounds", args.rounds());
    record.parameter("window_s", args.times().window.as_secs_f64());
    record.parameter("warm_up_s", args.times().warm_up.as_secs_f64());
    record.tables.extend(summary(loads, contenders, results));
    let verdicts = judge::table(loads, |load, name| figures(load, name, results), alone);
    record.tables.extend(verdicts);
    record.tables.extend(scaling(loads, contenders, results));
    for load in loads {
        record.tables.extend(table(load, contenders, results));
        for contender in contenders {
            keep(record, load, contender, results);
        }
    }
    for ((load, contender), rounds) in results {
        for problem in rounds.iter().flat_map(|measured| &measured.problems) {
            let remark = format!("NOT IN FULL: {load} by {contender}: {problem}.");
            record.remarks.push(remark);
        }
    }
}

/// The figures of a contender at a load, if it had that.
fn figures(load: &Load, contender: &'static str, results: &Results) -> Option<Figures> {
    let of = |name: &'static str| results.get(&(load.name, name));
    Some(Figures::new(load.yields, of(contender)?, of("direct")?))
}

/// What a second CPU brings; none unless both loads were measured.
fn scaling(loads: &[Load], contenders: &[Contender], results: &Results) -> Option<Table> {
    let load = |name| loads.iter().find(|load| load.name == name);
    let (one, two) = (load(load::ON_ONE)?, load(load::ON_TWO)?);
    let both = |name| Some([figures(one, name, results)?, figures(two, name, results)?]);
    scaling::table(contenders, both)
}

/// Keeps every round's values.
fn keep(record: &mut Record, load: &Load, contender: &Contender, results: &Results) {
    let Some(figures) = figures(load, contender.name, results) else {
        return;
    };
    let labels = [("load", load.name), ("contender", contender.name)];
    let (cpu, rate) = units(load.yields);
    let mut sample = |quantity: &str, unit: &str, values: Vec<f64>| {
        if values.iter().all(|value| value.is_finite()) {
            record.sample(quantity, unit, &labels, values);
        }
    };
    sample("total CPU", cpu, figures.total);
    sample("rate", rate, figures.rate);
    sample("median time", "us", figures.typical);
    sample("99th percentile of time", "us", figures.slow);
    sample("median delay of SYNs", "us", figures.syn_delay);
    let [client, server] = figures.packets;
    sample("packets per connection, client's link", "packets", client);
    sample("packets per connection, server's link", "packets", server);
    sample("segments sent again", "segments", figures.retransmitted);
    let rounds = results.get(&(load.name, contender.name));
    let mut parties = BTreeMap::<&str, Vec<f64>>::new();
    for measured in rounds.into_iter().flatten() {
        for (party, seconds) in &measured.outcome.cpu_s {
            parties.entry(party).or_default().push(*seconds);
        }
    }
    for (party, seconds) in parties {
        sample(&format!("CPU time of {party} in the window"), "s", seconds);
    }
}

/// Units of CPU time and of rate.
fn units(yields: Yield) -> (&'static str, &'static str) {
    match yields {
        Yield::Bytes => ("ms/GB", "Gbit/s"),
        Yield::Messages => ("us/message", "messages/s"),
        _ => ("us/transaction", "transactions/s"),
    }
}

/// A column: its heading, and what it shows of a contender's figures.
struct Column {
    heading: String,
    values: fn(&Figures) -> &[f64],
    /// Whether quartiles are shown with the median.
    spread: bool,
    /// Whether it says anything of the direct link.
    direct: bool,
}

/// One row a contender, one column a load, with the medians of what each load is about; none if
/// nothing was measured.
fn summary(loads: &[Load], contenders: &[Contender], results: &Results) -> Option<Table> {
    let of = |load: &&Load| results.contains_key(&(load.name, "direct"));
    let loads: Vec<&Load> = loads.iter().filter(of).collect();
    let mut columns = vec!["contender"];
    columns.extend(loads.iter().map(|load| load.name));
    let title = "What each adds: CPU time of a connection in us, of a gigabyte in ms (bulk); delay \
                 in us (ping-pong one way, syn, syn-far); or what it reaches: connections a second (split, \
                 two-cores)";
    let mut table = Table::new(title, &columns);
    for contender in contenders {
        let cell = |load: &&Load| {
            let figures = figures(load, contender.name, results);
            let shown = contender.name != "direct" || load.yields == Yield::Rate;
            let spread = Spread::of(figures?.deciding(load.yields));
            spread.filter(|_| shown).map(Spread::brief)
        };
        let cells = loads.iter().map(|load| cell(load).unwrap_or_else(dash));
        table.push(std::iter::once(contender.name.to_owned()).chain(cells));
    }
    (!loads.is_empty()).then_some(table)
}

/// The columns of figures that a load's table has.
fn columns(yields: Yield) -> Vec<Column> {
    let (cpu, rate) = units(yields);
    let column = |heading: &str, values| Column {
        heading: heading.to_owned(),
        values,
        spread: true,
        direct: true,
    };
    let brief = |heading: &str, values| Column {
        spread: false,
        ..column(heading, values)
    };
    let rate = column(rate, |figures| &figures.rate);
    let marginal = Column {
        direct: false,
        ..column(&format!("marginal CPU, {cpu}"), |figures| &figures.marginal)
    };
    let added = Column {
        direct: false,
        ..column("added one way, us", |figures| &figures.added)
    };
    let delay = Column {
        direct: false,
        ..column("median delay, us", |figures| &figures.syn_delay)
    };
    let typical = brief("median, us", |figures| &figures.typical);
    let slow = brief("99 %, us", |figures| &figures.slow);
    let client = brief("packets, client", |figures| &figures.packets[0]);
    let server = brief("packets, server", |figures| &figures.packets[1]);
    match yields {
        Yield::Transactions => vec![rate, marginal, typical, slow, client, server],
        Yield::Bytes => vec![rate, marginal],
        Yield::Messages => vec![added, marginal, typical, slow],
        Yield::SynDelay => vec![delay],
        Yield::Rate => vec![rate, typical, slow, client, server],
    }
}

/// The table of one load; none if it was not measured.
fn table(load: &Load, contenders: &[Contender], results: &Results) -> Option<Table> {
    let columns = columns(load.yields);
    let mut headings = vec!["contender"];
    headings.extend(columns.iter().map(|column| column.heading.as_str()));
    headings.extend(["x forwarding", "x HAProxy"]);
    let mut table = Table::new(format!("{} ({})", load.title, load.name), &headings);
    for contender in contenders {
        if let Some(figures) = figures(load, contender.name, results) {
            let cells = columns
                .iter()
                .map(|column| cell(column, contender, &figures));
            let mut row = vec![contender.name.to_owned()];
            row.extend(cells);
            let against = |name| against(load, contender, &figures, name, results);
            row.extend([against("forwarding"), against(rival(contender.mode))]);
            table.push(row);
        }
    }
    (!table.rows.is_empty()).then_some(table)
}

fn cell(column: &Column, contender: &Contender, figures: &Figures) -> String {
    let spread = Spread::of((column.values)(figures));
    match spread.filter(|_| column.direct || contender.name != "direct") {
        Some(spread) if column.spread => spread.to_string(),
        Some(spread) => format!("{:.1}", spread.median),
        None => dash(),
    }
}

/// The name of the contender that those of a mode are compared with.
fn rival(mode: Mode) -> &'static str {
    match mode {
        Mode::Transparent => "haproxy-transparent",
        Mode::Fixed | Mode::Reference => "haproxy",
    }
}

/// The ratio of a contender's figures to another's.
fn against(
    load: &Load,
    contender: &Contender,
    figures: &Figures,
    other: &'static str,
    results: &Results,
) -> String {
    if contender.name == "direct" || contender.name == other {
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

/// Contenders that charts have no room for: what relays nothing, two nodes, and HAProxy where it is as in
/// another form.
const LEFT_OUT: [&str; 4] = [
    "direct",
    "haproxy-transparent-1m",
    "posthaste-observing",
    "posthaste-warm",
];

/// Pictures, with the names of their files.
pub(super) fn charts(bench: &Bench<'_>, results: &Results) -> Vec<(&'static str, Chart)> {
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
        // Large objects would make all others look like nothing.
        let of = |load: &&Load| {
            load.yields == yields
                && load.name != "1m"
                && results.contains_key(&(load.name, "direct"))
        };
        let loads: Vec<&Load> = bench.loads.iter().filter(of).collect();
        let shown = bench
            .contenders
            .iter()
            .filter(|contender| is_shown(contender, left_out));
        let shown: Vec<&Contender> = shown.collect();
        if !loads.is_empty() {
            charts.push((name, chart(titles, &loads, &shown, results)));
        }
    }
    charts
}

fn is_shown(contender: &Contender, left_out: &str) -> bool {
    !LEFT_OUT.contains(&contender.name) && contender.name != left_out
}

fn chart(
    (title, y_label): (&str, &str),
    loads: &[&Load],
    contenders: &[&Contender],
    results: &Results,
) -> Chart {
    let series = contenders.iter().map(|contender| {
        let spread = |load: &&Load| {
            Spread::of(figures(load, contender.name, results)?.deciding(load.yields))
        };
        let spreads: Vec<Option<Spread>> = loads.iter().map(spread).collect();
        Series {
            name: contender.name.to_owned(),
            values: spreads.iter().map(|s| s.map(|s| s.median)).collect(),
            spread: spreads.iter().map(|s| s.map(|s| (s.low, s.high))).collect(),
            ..Series::default()
        }
    });
    Chart {
        title: title.to_owned(),
        subtitle: "what each contender adds to a direct link; client, relay and server on one CPU"
            .to_owned(),
        x_label: "load".to_owned(),
        y_label: y_label.to_owned(),
        across: Across::Groups(loads.iter().map(|load| load.name.to_owned()).collect()),
        series: series
            .filter(|series| series.values.iter().any(Option::is_some))
            .collect(),
        model_name: String::new(),
        note: "Whiskers: quartiles of the rounds.".to_owned(),
    }
}

/// What there is, for `--list`.
pub(super) fn listing() -> String {
    let loads = load::all().into_iter().map(|load| (load.name, load.title));
    let loads = loads.chain([load::MEMORY, load::BOOT]);
    let contenders = contender::ALL.iter().map(|one| (one.name, one.what));
    let mut text = String::from("loads:\n");
    for (name, what) in loads {
        let _ = writeln!(text, "  {name:24}{what}");
    }
    text.push_str("contenders:\n");
    for (name, what) in contenders {
        let _ = writeln!(text, "  {name:24}{what}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chart::SERIES_MAX;
    use crate::compare::contender::ALL;

    #[test]
    fn charts_have_room_for_all() {
        for left_out in ["haproxy-1m", "haproxy-transparent"] {
            let shown = ALL.iter().filter(|row| is_shown(row, left_out));
            assert!(shown.count() <= SERIES_MAX, "without {left_out}");
        }
    }
}
