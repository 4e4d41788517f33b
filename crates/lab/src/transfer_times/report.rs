// SPDX-License-Identifier: Apache-2.0
//! The record, tables and pictures of `transfer-times`.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::model::Mode;
use super::{Args, Configuration, KB, Setup, Timings};
use crate::chart::{Across, Chart, Series};
use crate::network::Family;
use crate::record::{self, Record};
use crate::stats::{deviation_percent, median, percentile};
use crate::table::Table;
use crate::transfer::Timing;

/// A moment of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
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
    setups: &BTreeMap<u32, Setup>,
    timings: &Timings,
    failures: &[String],
    record: &mut Record,
) -> Result<()> {
    let report = Report { args, timings };
    report.parameters(record);
    report.samples(record);
    let views = report.views();
    record
        .tables
        .extend(views.iter().map(|&view| report.table(view)));
    let misses = report.misses();
    let idle = report.unrelayed(setups)?;
    record.remarks.extend(report.verdict(&misses));
    record
        .remarks
        .extend(misses.iter().chain(&idle).chain(failures).cloned());
    record.remarks.extend(setups.iter().map(emulation_remark));
    for table in &record.tables {
        println!("{table}");
    }
    for remark in &record.remarks {
        println!("{remark}");
    }
    for view in views {
        let name = format!("{}-{}.svg", view.mode.name(), view.family);
        let path = record.path(&args.output, &name.to_lowercase());
        record::write_file(&path, &report.chart(view).svg())?;
        println!("Picture: {}", path.display());
    }
    println!("Record: {}", record.write(&args.output)?.display());
    ensure!(failures.is_empty(), "{} transfers failed", failures.len());
    ensure!(
        misses.is_empty(),
        "{} medians are too far from the model",
        misses.len()
    );
    Ok(())
}

/// How exact the emulation was.
fn emulation_remark((nodes, setup): (&u32, &Setup)) -> String {
    let stats = setup.network.stats();
    format!(
        "Emulated links with {nodes} nodes: {} packets, {} dropped, {} more than 1 ms late, at \
         worst {:.1} ms.",
        stats.packets,
        stats.dropped + stats.refused,
        stats.late,
        stats.lateness_us_max as f64 / 1e3
    )
}

/// What one table and one picture show.
#[derive(Clone, Copy, Debug)]
struct View {
    family: Family,
    mode: Mode,
}

struct Report<'a> {
    args: &'a Args,
    timings: &'a Timings,
}

impl Report<'_> {
    fn parameters(&self, record: &mut Record) {
        let args = self.args;
        record.parameter("rtt_ms", args.rtt);
        record.parameter("rate_mbit", args.rate);
        record.parameter("repeats", args.repeats);
        record.parameter("congestion", args.congestion.as_str());
        record.parameter("initial_window", args.initial_window);
        record.parameter("tolerance_percent", args.tolerance);
    }

    fn samples(&self, record: &mut Record) {
        for &configuration in self.timings.keys() {
            let Configuration {
                family,
                nodes,
                mode,
                bytes,
            } = configuration;
            let (family, nodes_text) = (family.to_string(), nodes.to_string());
            let (mode, bytes) = (
                if nodes == 0 { "none" } else { mode.name() },
                bytes.to_string(),
            );
            let labels = [
                ("family", family.as_str()),
                ("nodes", &nodes_text),
                ("accept", mode),
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

    fn median(&self, configuration: Configuration, moment: Moment) -> Option<f64> {
        median(&self.values(configuration, moment))
    }

    fn model(&self, configuration: Configuration, moment: Moment) -> f64 {
        let path = self.args.path(configuration);
        let Configuration { mode, bytes, .. } = configuration;
        ms(match moment {
            Connect => path.connect(mode),
            FirstByte => path.first_byte(mode),
            Complete => path.complete(mode, bytes),
        })
    }

    /// How far the median of a moment is from the model, in per cent.
    fn deviation(&self, configuration: Configuration, moment: Moment) -> Option<f64> {
        let median = self.median(configuration, moment)?;
        Some(deviation_percent(median, self.model(configuration, moment)))
    }

    /// A view for every family and mode that was measured.
    fn views(&self) -> Vec<View> {
        // Without any node all modes would show the same.
        let no_node = self.args.nodes.iter().all(|&nodes| nodes == 0);
        let shown = if no_node {
            &[Mode::Early][..]
        } else {
            &self.args.modes
        };
        let modes = |&family: &Family| shown.iter().map(move |&mode| View { family, mode });
        let families = self.args.family.iter();
        families.flat_map(modes).collect()
    }

    /// The configurations of a view, by size and then by number of nodes.
    fn rows(&self, view: View) -> impl Iterator<Item = Configuration> {
        self.args.sizes.iter().flat_map(move |&size| {
            self.args
                .nodes
                .iter()
                .map(move |&nodes| self.configuration(view, nodes, size))
        })
    }

    fn configuration(&self, view: View, nodes: u32, size: u64) -> Configuration {
        let mode = if nodes == 0 { Mode::Early } else { view.mode };
        Configuration {
            family: view.family,
            nodes,
            mode,
            bytes: size * KB,
        }
    }

    fn table(&self, view: View) -> Table {
        let title = format!(
            "Accept mode {}, {}, medians in ms",
            view.mode.name(),
            view.family
        );
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
                row.nodes.to_string(),
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
        let direct = Configuration {
            nodes: 0,
            mode: Mode::Early,
            ..row
        };
        let direct = self.median(direct, Complete)?;
        (row.nodes > 0).then_some(deviation_percent(self.median(row, Complete)?, direct))
    }

    /// The medians of the early mode (and without nodes) that are too far from the model.
    fn misses(&self) -> Vec<String> {
        let mut misses = Vec::new();
        for &configuration in self.timings.keys().filter(|c| c.mode == Mode::Early) {
            for moment in [FirstByte, Complete] {
                let Some(off) = self.deviation(configuration, moment) else {
                    continue;
                };
                if off.abs() > self.args.tolerance {
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

    /// Nodes that relayed fewer connections than passed them: what was measured is not the node.
    fn unrelayed(&self, setups: &BTreeMap<u32, Setup>) -> Result<Vec<String>> {
        let mut complaints = Vec::new();
        for (&count, setup) in setups {
            let timed = self.timings.iter().filter(|(c, _)| c.nodes == count);
            let passed: usize = timed.map(|(_, timings)| timings.len()).sum();
            for (index, node) in setup.nodes.iter().enumerate() {
                let relayed = node.counter("relays_opened")?;
                if relayed < passed as u64 {
                    let place = index + 1;
                    complaints.push(format!(
                        "Node {place} of {count} relayed only {relayed} of {passed} connections."
                    ));
                }
            }
        }
        Ok(complaints)
    }

    fn verdict(&self, misses: &[String]) -> Option<String> {
        let early = self
            .timings
            .keys()
            .filter(|c| c.mode == Mode::Early)
            .count()
            * 2;
        let within = early - misses.len();
        let tolerance = self.args.tolerance;
        (early > 0).then(|| {
            format!("Early mode and no node: {within} of {early} medians within {tolerance} % of the model.")
        })
    }

    fn chart(&self, view: View) -> Chart {
        let args = self.args;
        Chart {
            title: "Time to complete a transfer".to_owned(),
            subtitle: format!(
                "{} ms round-trip time, {} Mbit/s, {}, {}, evenly spaced nodes, accept mode {}",
                args.rtt,
                args.rate,
                args.congestion,
                view.family,
                view.mode.name()
            ),
            x_label: "size, KB".to_owned(),
            y_label: "time from connect() to the last byte, ms".to_owned(),
            across: Across::Groups(args.sizes.iter().map(ToString::to_string).collect()),
            series: args
                .nodes
                .iter()
                .map(|&nodes| self.series(view, nodes))
                .collect(),
            model_name: "model".to_owned(),
            note: format!(
                "Medians of {}; whiskers from the fastest to the slowest.",
                args.repeats
            ),
        }
    }

    fn series(&self, view: View, nodes: u32) -> Series {
        let rows: Vec<Configuration> = self
            .args
            .sizes
            .iter()
            .map(|&size| self.configuration(view, nodes, size))
            .collect();
        let spread = |row: &Configuration| {
            let values = self.values(*row, Complete);
            Some((percentile(&values, 0.0)?, percentile(&values, 100.0)?))
        };
        Series {
            name: match nodes {
                0 => "no node".to_owned(),
                1 => "1 node".to_owned(),
                more => format!("{more} nodes"),
            },
            values: rows.iter().map(|&row| self.median(row, Complete)).collect(),
            spread: rows.iter().map(spread).collect(),
            model: rows
                .iter()
                .map(|&row| Some(self.model(row, Complete)))
                .collect(),
        }
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
