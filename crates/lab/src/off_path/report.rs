// SPDX-License-Identifier: Apache-2.0
//! The record and the tables of `off-path`.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::crossing::crossing;
use super::{Args, Configuration, KB, Place, Setups, Timings};
use crate::model::Mode;
use crate::record::Record;
use crate::stats::{deviation_percent, median};
use crate::table::Table;

/// Prints and writes everything. Fails when a transfer failed or a median missed the model.
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
    record.tables.extend([report.table(), report.crossovers()]);
    let misses = report.misses();
    let judged = timings.len() * 2;
    let (within, tolerance) = (judged - misses.len(), args.tolerance);
    record.remarks.push(format!(
        "{within} of {judged} medians within {tolerance} % of the model."
    ));
    record.remarks.extend(misses.iter().cloned());
    record.remarks.extend(failures.iter().cloned());
    record.remarks.extend(report.elsewhere(setups)?);
    let charts = [
        ("times.svg", report.times()),
        ("ratio.svg", report.ratios()),
    ];
    record.publish(&args.output, charts)?;
    ensure!(failures.is_empty(), "{} transfers failed", failures.len());
    ensure!(
        misses.is_empty(),
        "{} medians are too far from the model",
        misses.len()
    );
    Ok(())
}

/// What was measured, beside the model.
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
        record.parameter("family", args.family.to_string());
        record.parameter("tolerance_percent", args.tolerance);
    }

    fn samples(&self, record: &mut Record) {
        for (configuration, timings) in self.timings {
            let Configuration { place, bytes } = configuration;
            let (place, bytes) = (place.to_string(), bytes.to_string());
            let labels = [("hops", place.as_str()), ("bytes", &bytes)];
            let first = timings.iter().map(|timing| ms(timing.first_byte)).collect();
            record.sample("time to first byte", "ms", &labels, first);
            let values = self.values(*configuration);
            record.sample("time to completion", "ms", &labels, values);
        }
    }

    /// Times to completion, in milliseconds.
    pub(super) fn values(&self, configuration: Configuration) -> Vec<f64> {
        let timings = self.timings.get(&configuration).into_iter().flatten();
        timings.map(|timing| ms(timing.complete)).collect()
    }

    pub(super) fn complete(&self, configuration: Configuration) -> Option<f64> {
        median(&self.values(configuration))
    }

    fn first_byte(&self, configuration: Configuration) -> Option<f64> {
        let timings = self.timings.get(&configuration).into_iter().flatten();
        median(&timings.map(|t| ms(t.first_byte)).collect::<Vec<_>>())
    }

    fn first_byte_by_model(&self, configuration: Configuration) -> f64 {
        ms(self.args.path(configuration.place).first_byte(Mode::Early))
    }

    pub(super) fn complete_by_model(&self, configuration: Configuration) -> f64 {
        let Configuration { place, bytes } = configuration;
        ms(self.args.path(place).complete(Mode::Early, bytes))
    }

    /// A time as a part of what the transfer takes without a node, in per cent.
    pub(super) fn ratio(
        &self,
        configuration: Configuration,
        time: impl Fn(Configuration) -> Option<f64>,
    ) -> Option<f64> {
        let direct = Configuration {
            place: Place::Nowhere,
            ..configuration
        };
        Some(time(configuration)? / time(direct)? * 100.0)
    }

    fn table(&self) -> Table {
        let title = format!(
            "One node beside the path, {} ms, {}, medians in ms",
            self.args.rtt, self.args.family
        );
        let columns = [
            "KB",
            "hops",
            "first byte",
            "model",
            "off",
            "complete",
            "model",
            "off",
            "gain",
            "model",
        ];
        let mut table = Table::new(title, &columns);
        let shown = |value: Option<f64>| value.map_or_else(dash, |v| format!("{v:.1}"));
        let percent = |value: Option<f64>| value.map_or_else(dash, |v| format!("{v:+.1} %"));
        for &size in &self.args.sizes {
            for place in self.args.places() {
                let bytes = size * KB;
                let row = Configuration { place, bytes };
                let has_node = place != Place::Nowhere;
                let gain =
                    |ratio: Option<f64>| percent(ratio.filter(|_| has_node).map(|r| r - 100.0));
                let first = (self.first_byte(row), self.first_byte_by_model(row));
                let complete = (self.complete(row), self.complete_by_model(row));
                table.push([
                    size.to_string(),
                    place.to_string(),
                    shown(first.0),
                    shown(Some(first.1)),
                    percent(first.0.map(|time| deviation_percent(time, first.1))),
                    shown(complete.0),
                    shown(Some(complete.1)),
                    percent(complete.0.map(|time| deviation_percent(time, complete.1))),
                    gain(self.ratio(row, |c| self.complete(c))),
                    gain(self.ratio(row, |c| Some(self.complete_by_model(c)))),
                ]);
            }
        }
        table
    }

    /// How far the node may be.
    fn crossovers(&self) -> Table {
        let title = "One-way delay of the hops up to which the node saves time, in ms";
        let mut table = Table::new(title, &["KB", "measured", "model"]);
        for &size in &self.args.sizes {
            let measured = self.crossing(size, |c| self.complete(c));
            let model = self.crossing(size, |c| Some(self.complete_by_model(c)));
            table.push([size.to_string(), measured, model]);
        }
        table
    }

    fn crossing(&self, size: u64, time: impl Fn(Configuration) -> Option<f64>) -> String {
        let ratio = |hop: f64| {
            let place = Place::Hops(super::milliseconds(hop));
            let bytes = size * KB;
            self.ratio(Configuration { place, bytes }, &time)
        };
        let points = self.args.hops.iter().map(|&hop| Some((hop, ratio(hop)?)));
        let points = points.collect::<Option<Vec<_>>>();
        points.map_or_else(dash, |points| crossing(&points, 100.0).to_string())
    }

    fn misses(&self) -> Vec<String> {
        let mut misses = Vec::new();
        for &configuration in self.timings.keys() {
            let Configuration { place, bytes } = configuration;
            let first = (
                self.first_byte(configuration),
                self.first_byte_by_model(configuration),
            );
            let complete = (
                self.complete(configuration),
                self.complete_by_model(configuration),
            );
            for (what, (median, model)) in [("first byte", first), ("completion", complete)] {
                let off = median.map_or(0.0, |median| deviation_percent(median, model));
                if off.abs() > self.args.tolerance {
                    let size = bytes / KB;
                    misses.push(format!(
                        "Missed: {size} KB, {place}: time to {what} is {off:+.1} % off."
                    ));
                }
            }
        }
        misses
    }

    /// Nodes that carried fewer flows than they should have: what was measured is not the node.
    fn elsewhere(&self, setups: &Setups) -> Result<Vec<String>> {
        let mut complaints = Vec::new();
        for (place, setup) in setups {
            let timed = self.timings.iter().filter(|(c, _)| c.place == *place);
            let passed: usize = timed.map(|(_, timings)| timings.len()).sum();
            for node in &setup.nodes {
                let relayed = node.counter("relays_opened")?;
                if relayed < passed as u64 {
                    complaints.push(format!(
                        "A node at {place} relayed only {relayed} of {passed} flows."
                    ));
                }
            }
            let stats = setup.network.stats();
            complaints.push(format!(
                "Emulated links, {place}: {} packets, {} dropped, {} more than 1 ms late, at worst \
                 {:.1} ms.",
                stats.packets,
                stats.dropped + stats.refused,
                stats.late,
                stats.lateness_us_max as f64 / 1e3
            ));
        }
        Ok(complaints)
    }
}

fn dash() -> String {
    "-".to_owned()
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::off_path::tests::args;

    #[test]
    fn two_rounds_pay_off() {
        // A rate at which sending takes no time.
        let args = args(&["--rate", "1000", "--sizes", "10,25,50"]);
        let timings = Timings::new();
        let report = Report {
            args: &args,
            timings: &timings,
        };
        let model = |size| report.crossing(size, |c| Some(report.complete_by_model(c)));
        assert_eq!(model(10), "33.3");
        assert_eq!(model(25), "37.5 and more");
        assert_eq!(model(50), "37.5 and more");
        assert_eq!(report.crossing(10, |c| report.complete(c)), "-");
    }
}
