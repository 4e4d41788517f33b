// SPDX-License-Identifier: Apache-2.0
//! The record, tables and charts of `transfer-times`.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::view::View;
use super::way::{Carriage, Layout, Way};
use super::{Args, Configuration, KB, Setup, Setups, Timings};
use crate::chart::{Across, Chart, Series};
use crate::model::Mode;
use crate::record::Record;
use crate::stats::{deviation_percent, median, percentile};
use crate::table::Table;
use crate::transfer::Timing;

/// A moment of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    Connect,
    FirstByte,
    Complete,
}

use Moment::{Complete, Connect, FirstByte};

impl Moment {
    const ALL: [Self; 3] = [Connect, FirstByte, Complete];

    fn name(self) -> &'static str {
        match self {
            Connect => "time to connect",
            FirstByte => "time to first byte",
            Complete => "time to completion",
        }
    }

    fn of(self, timing: &Timing) -> Duration {
        match self {
            Connect => timing.connect,
            FirstByte => timing.first_byte,
            Complete => timing.complete,
        }
    }
}

/// Prints and writes everything. Fails when a transfer failed or the early mode missed the model.
pub(super) fn write(
    args: &Args,
    setups: &Setups,
    timings: &Timings,
    failures: &[String],
    record: &mut Record,
) -> Result<()> {
    let report = Report { args, timings };
    report.parameters(record);
    report.samples(record);
    let views = View::all(args);
    record
        .tables
        .extend(views.iter().map(|view| report.table(view)));
    let mut misses = report.misses();
    let verdict = report.verdict(misses.len());
    let (reported, missed) = report.against_no_node();
    misses.extend(missed);
    let idle = report.unrelayed(setups)?;
    record.remarks.extend(verdict);
    record.remarks.extend(reported);
    record
        .remarks
        .extend(misses.iter().chain(&idle).chain(failures).cloned());
    record.remarks.extend(setups.iter().map(emulation_remark));
    let charts = views.iter().map(|view| (&view.file, report.chart(view)));
    record.publish(&args.output, charts)?;
    ensure!(failures.is_empty(), "{} transfers failed", failures.len());
    ensure!(misses.is_empty(), "{} targets were missed", misses.len());
    Ok(())
}

/// How exact the emulation was.
fn emulation_remark((layout, setup): (&Layout, &Setup)) -> String {
    let stats = setup.network.stats();
    format!(
        "Emulated links with {}: {} packets, {} dropped, {} more than 1 ms late, at \
         worst {:.1} ms.",
        layout.describe(),
        stats.packets,
        stats.dropped + stats.refused,
        stats.late,
        stats.lateness_us_max as f64 / 1e3
    )
}

pub(super) struct Report<'a> {
    pub(super) args: &'a Args,
    pub(super) timings: &'a Timings,
}

impl Report<'_> {
    fn parameters(&self, record: &mut Record) {
        let args = self.args;
        record.parameter("rtt_ms", args.rtt);
        record.parameter("rate_mbit", args.rate);
        record.parameter("repeats", args.repeats);
        record.parameter("congestion", args.congestion.as_str());
        record.parameter("hop_congestion", args.hop_congestion());
        record.parameter("initial_window", args.initial_window);
        record.parameter("clients", args.clients);
        record.parameter("primer_kb", args.primer);
        record.parameter("end_ms", args.end);
        record.parameter("tolerance_percent", args.tolerance);
    }

    fn samples(&self, record: &mut Record) {
        for &configuration in self.timings.keys() {
            let Configuration { way, bytes } = configuration;
            let (family, nodes, bytes) = (
                way.family.to_string(),
                way.nodes.to_string(),
                bytes.to_string(),
            );
            let has_nodes = way.nodes > 0;
            let named = |name: &'static str| if has_nodes { name } else { "none" };
            let labels = [
                ("family", family.as_str()),
                ("nodes", &nodes),
                ("carriage", named(way.carriage.name())),
                ("accept", named(way.mode.name())),
                ("bytes", &bytes),
            ];
            for moment in Moment::ALL {
                record.sample(
                    moment.name(),
                    "ms",
                    &labels,
                    self.values(configuration, moment),
                );
            }
        }
    }

    /// The samples of one moment, in milliseconds.
    fn values(&self, configuration: Configuration, moment: Moment) -> Vec<f64> {
        let timings = self.timings.get(&configuration).into_iter().flatten();
        timings.map(|timing| ms(moment.of(timing))).collect()
    }

    pub(super) fn median(&self, configuration: Configuration, moment: Moment) -> Option<f64> {
        median(&self.values(configuration, moment))
    }

    pub(super) fn model(&self, configuration: Configuration, moment: Moment) -> f64 {
        let Configuration { way, bytes } = configuration;
        let path = way.path(self.args);
        ms(match moment {
            Connect => path.connect(way.mode),
            FirstByte => path.first_byte(way.mode),
            Complete => path.complete(way.mode, bytes),
        })
    }

    /// How far the median of a moment is from the model, in per cent.
    fn deviation(&self, configuration: Configuration, moment: Moment) -> Option<f64> {
        let median = self.median(configuration, moment)?;
        Some(deviation_percent(median, self.model(configuration, moment)))
    }

    /// The configurations of a view, by size and then by number of nodes.
    fn rows(&self, view: &View) -> impl Iterator<Item = Configuration> {
        self.args.sizes.iter().flat_map(move |&size| {
            let of = move |&way: &Way| Configuration {
                way,
                bytes: size * KB,
            };
            view.ways.iter().map(of)
        })
    }

    fn table(&self, view: &View) -> Table {
        let clients = match self.args.clients {
            1 => String::new(),
            more => format!(", {more} transfers at once"),
        };
        let title = format!("{}{clients}, medians in ms", view.title);
        let mut table = Table::new(
            title,
            &[
                "KB",
                "nodes",
                "connect",
                "model",
                "first byte",
                "model",
                "off",
                "complete",
                "model",
                "off",
                "gain",
            ],
        );
        let dash = || "-".to_owned();
        for row in self.rows(view) {
            let number = |value: Option<f64>| value.map_or_else(dash, |v| format!("{v:.1}"));
            let percent = |value: Option<f64>| value.map_or_else(dash, |v| format!("{v:+.1} %"));
            table.push([
                (row.bytes / KB).to_string(),
                row.way.name_in_table(),
                number(self.median(row, Connect)),
                number(Some(self.model(row, Connect))),
                number(self.median(row, FirstByte)),
                number(Some(self.model(row, FirstByte))),
                percent(self.deviation(row, FirstByte)),
                number(self.median(row, Complete)),
                number(Some(self.model(row, Complete))),
                percent(self.deviation(row, Complete)),
                percent(self.gain(row)),
            ]);
        }
        table
    }

    /// How much longer the transfer took than without a node, in per cent.
    fn gain(&self, row: Configuration) -> Option<f64> {
        let Way { family, .. } = row.way;
        let direct = Configuration {
            way: Way::direct(family),
            ..row
        };
        let direct = self.median(direct, Complete)?;
        (row.way.nodes > 0).then_some(deviation_percent(self.median(row, Complete)?, direct))
    }

    /// The medians of the early mode (and without nodes) that are too far from the model.
    fn misses(&self) -> Vec<String> {
        let mut misses = Vec::new();
        for configuration in self.judged() {
            for moment in [FirstByte, Complete] {
                let Some(off) = self.deviation(configuration, moment) else {
                    continue;
                };
                // Nodes of a chain remember what hops bear, cold ones as well, and may beat the
                // model, whose cold hops begin with the usual window.
                let may_be_less = configuration.way.carriage != Carriage::Transparent;
                let off_by = if may_be_less { off } else { off.abs() };
                if off_by > self.args.tolerance {
                    let what = configuration.describe();
                    misses.push(format!(
                        "Missed: {what}: {} is {off:+.1} % off.",
                        moment.name()
                    ));
                }
            }
        }
        misses
    }

    /// What the model is for: the early mode, and one transfer at a time.
    fn judged(&self) -> impl Iterator<Item = Configuration> {
        let early = |c: &&Configuration| c.way.mode == Mode::Early && self.args.clients == 1;
        self.timings.keys().filter(early).copied()
    }

    /// Nodes that relayed fewer connections than passed them, or not over the hops that are
    /// meant: what was measured is something else.
    fn unrelayed(&self, setups: &Setups) -> Result<Vec<String>> {
        let mut complaints = Vec::new();
        for (&layout, setup) in setups {
            let timed = self.timings.iter();
            let timed = timed.filter(|(c, _)| c.way.layout() == layout);
            let passed = timed.map(|(_, timings)| timings.len() as u64).sum::<u64>();
            for (place, node) in setup.nodes.iter().enumerate() {
                let expected = layout.counters(place);
                for (counter, is_expected) in expected {
                    let count = node.counter(counter)?;
                    if is_expected && count < passed || !is_expected && count > 0 {
                        complaints.push(format!(
                            "{passed} flows passed node {} of {}, whose {counter} is {count}.",
                            place + 1,
                            layout.describe()
                        ));
                    }
                }
            }
        }
        Ok(complaints)
    }

    fn verdict(&self, misses: usize) -> Option<String> {
        let early = self.judged().count() * 2;
        let within = early - misses;
        let tolerance = self.args.tolerance;
        (early > 0).then(|| {
            format!(
                "Early mode and no node: {within} of {early} medians within {tolerance} % of the \
                 model; of chains, no slower than that."
            )
        })
    }

    fn chart(&self, view: &View) -> Chart {
        let args = self.args;
        Chart {
            title: "Time to complete a transfer".to_owned(),
            subtitle: format!(
                "{} ms round-trip time, {} Mbit/s, {}, {}",
                args.rtt, args.rate, args.congestion, view.subtitle
            ),
            x_label: "size, KB".to_owned(),
            y_label: "time from connect() to the last byte, ms".to_owned(),
            across: Across::Groups(args.sizes.iter().map(ToString::to_string).collect()),
            series: view.ways.iter().map(|&way| self.series(way)).collect(),
            model_name: "model".to_owned(),
            note: self.note(),
        }
    }

    fn note(&self) -> String {
        let Args {
            repeats, clients, ..
        } = self.args;
        let whiskers = "whiskers from the fastest to the slowest.";
        match clients {
            1 => format!("Medians of {repeats}; {whiskers}"),
            _ => format!(
                "{clients} transfers at once, {repeats} times, medians; {whiskers} \
                 The model shares the rate evenly."
            ),
        }
    }

    fn series(&self, way: Way) -> Series {
        let of = |&size: &u64| Configuration {
            way,
            bytes: size * KB,
        };
        let rows: Vec<Configuration> = self.args.sizes.iter().map(of).collect();
        let spread = |row: &Configuration| {
            let values = self.values(*row, Complete);
            Some((percentile(&values, 0.0)?, percentile(&values, 100.0)?))
        };
        Series {
            name: way.series_name(),
            values: rows.iter().map(|&row| self.median(row, Complete)).collect(),
            spread: rows.iter().map(spread).collect(),
            model: rows
                .iter()
                .map(|&row| Some(self.model(row, Complete)))
                .collect(),
        }
    }
}

pub(super) fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
