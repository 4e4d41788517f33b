// SPDX-License-Identifier: Apache-2.0
//! What `compare` says: a table for each load, the samples behind it, and pictures.

use std::fmt::Write;

use super::contender::{self, Contender, Mode};
use super::figures::{Figures, Spread};
use super::load::{self, Load, Yield};
use super::{Args, Results};
use crate::chart::{Across, Chart, Series};
use crate::record::Record;
use crate::table::Table;

/// Puts the samples and the tables made of them into the record.
pub(super) fn fill(
    record: &mut Record,
    args: &Args,
    loads: &[Load],
    contenders: &[Contender],
    results: &Results,
) {
    record.parameter("rounds", args.rounds());
    record.parameter("window_s", args.times().window.as_secs_f64());
    record.parameter("warm_up_s", args.times().warm_up.as_secs_f64());
    for load in loads {
        if let Some(table) = table(load, contenders, results) {
            record.tables.push(table);
        }
        for contender in contenders {
            keep(record, load, contender, results);
        }
    }
    for ((load, contender), rounds) in results {
        for problem in rounds.iter().flat_map(|measured| &measured.problems) {
            record
                .remarks
                .push(format!("NOT IN FULL: {load} by {contender}: {problem}."));
        }
    }
}

/// The figures of a contender at a load, if it had that.
pub(super) fn figures(load: &Load, contender: &str, results: &Results) -> Option<Figures> {
    let of = |name: &'static str| results.get(&(load.name, name));
    let name = contender::ALL
        .iter()
        .find(|other| other.name == contender)?
        .name;
    Some(Figures::new(load.yields, of(name)?, of("direct")?))
}

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
    let [client, server] = figures.packets;
    sample("packets per connection, client's link", "packets", client);
    sample("packets per connection, server's link", "packets", server);
    let rounds = results
        .get(&(load.name, contender.name))
        .into_iter()
        .flatten();
    let mut parties = std::collections::BTreeMap::<&str, Vec<f64>>::new();
    for (party, seconds) in rounds.flat_map(|measured| &measured.outcome.cpu_s) {
        parties.entry(party).or_default().push(*seconds);
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

/// The name of the contender that those of a mode are compared with.
pub(super) fn rival(mode: Mode) -> &'static str {
    match mode {
        Mode::Transparent => "haproxy-transparent",
        Mode::Fixed | Mode::Reference => "haproxy",
    }
}

/// The table of one load; none if it was not measured.
fn table(load: &Load, contenders: &[Contender], results: &Results) -> Option<Table> {
    let (cpu, rate) = units(load.yields);
    let columns = [
        "contender",
        rate,
        &format!("marginal CPU, {cpu}"),
        "added one way, us",
        "median, us",
        "99 %, us",
        "packets, client",
        "packets, server",
        "x forwarding",
        "x HAProxy",
    ]
    .map(str::to_owned);
    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
    let mut table = Table::new(format!("{} ({})", load.title, load.name), &columns);
    for contender in contenders {
        if let Some(figures) = figures(load, contender.name, results) {
            table.push(row(load, contender, &figures, results));
        }
    }
    (!table.rows.is_empty()).then_some(table)
}

fn row(load: &Load, contender: &Contender, figures: &Figures, results: &Results) -> Vec<String> {
    let show = |values: &[f64]| Spread::of(values).map_or_else(dash, |spread| spread.to_string());
    let only = |shown: bool, values: &[f64]| if shown { show(values) } else { dash() };
    let middle = |values: &[f64]| {
        Spread::of(values).map_or_else(dash, |spread| format!("{:.1}", spread.median))
    };
    let against = |name: &str| {
        let reference = contender.mode == Mode::Reference && name != "forwarding";
        let other = self::figures(load, name, results).filter(|_| !reference);
        let deciding = figures.deciding(load.yields);
        other
            .and_then(|other| Spread::of_ratio(deciding, other.deciding(load.yields)))
            .map_or_else(dash, |spread| spread.to_string())
    };
    let is_direct = contender.name == "direct";
    vec![
        contender.name.to_owned(),
        show(&figures.rate),
        only(!is_direct && load.yields != Yield::Rate, &figures.marginal),
        only(!is_direct && load.yields == Yield::Messages, &figures.added),
        middle(&figures.typical),
        middle(&figures.slow),
        middle(&figures.packets[0]),
        middle(&figures.packets[1]),
        if is_direct {
            dash()
        } else {
            against("forwarding")
        },
        against(rival(contender.mode)),
    ]
}

fn dash() -> String {
    "-".to_owned()
}

/// Pictures, with the names of their files.
pub(super) fn charts(
    loads: &[Load],
    contenders: &[Contender],
    results: &Results,
) -> Vec<(&'static str, Chart)> {
    let of = |yields: Yield| -> Vec<&Load> {
        let measured = |load: &&Load| results.contains_key(&(load.name, "direct"));
        let these = loads.iter().filter(|load| load.yields == yields);
        these.filter(measured).collect()
    };
    let kinds = [
        (
            "connections",
            "New connections",
            "marginal CPU time, us per transaction",
            Yield::Transactions,
        ),
        ("bulk", "Bulk", "marginal CPU time, ms per GB", Yield::Bytes),
    ];
    kinds
        .into_iter()
        .filter_map(|(name, title, y_label, yields)| {
            let loads = of(yields);
            (!loads.is_empty()).then(|| (name, chart(title, y_label, &loads, contenders, results)))
        })
        .collect()
}

fn chart(
    title: &str,
    y_label: &str,
    loads: &[&Load],
    contenders: &[Contender],
    results: &Results,
) -> Chart {
    let shown = contenders
        .iter()
        .filter(|contender| contender.name != "direct");
    let series = shown.map(|contender| {
        let spreads: Vec<Option<Spread>> = loads
            .iter()
            .map(|load| Spread::of(figures(load, contender.name, results)?.deciding(load.yields)))
            .collect();
        Series {
            name: contender.name.to_owned(),
            values: spreads.iter().map(|s| s.map(|s| s.median)).collect(),
            spread: spreads.iter().map(|s| s.map(|s| (s.low, s.high))).collect(),
            ..Series::default()
        }
    });
    Chart {
        title: title.to_owned(),
        subtitle: "client, relay and server on one CPU; what the relay adds to a direct link"
            .to_owned(),
        x_label: "load".to_owned(),
        y_label: y_label.to_owned(),
        across: Across::Groups(loads.iter().map(|load| load.name.to_owned()).collect()),
        series: series
            .filter(|series| series.values.iter().any(Option::is_some))
            .take(7)
            .collect(),
        model_name: String::new(),
        note: "Whiskers: quartiles of the rounds.".to_owned(),
    }
}

/// What there is, for `--list`.
pub(super) fn listing() -> String {
    let mut text = String::from("loads:\n");
    for load in load::all() {
        let _ = writeln!(text, "  {:24}{}", load.name, load.title);
    }
    text.push_str("contenders:\n");
    for contender in contender::ALL {
        let _ = writeln!(text, "  {:24}{}", contender.name, contender.what);
    }
    text
}
