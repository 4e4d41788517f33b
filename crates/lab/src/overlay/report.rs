// SPDX-License-Identifier: Apache-2.0
//! The record and the tables of `overlay`.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};

use super::moves::Kind;
use super::testbed::{Hops, Testbed};
use super::topology::{Pair, Topology};
use super::{Args, Configuration, Outcome, Subject};
use crate::record::Record;
use crate::stats::{deviation_percent, max, median, percentile};
use crate::table::Table;

/// Until the first new connection takes another way after a link got worse, in seconds.
const MOVED_MAX_S: f64 = 3.0;

/// What was measured, beside the model.
pub(super) struct Report<'a> {
    pub(super) args: &'a Args,
    pub(super) topology: &'a Topology,
    pub(super) outcome: &'a Outcome,
}

/// Prints and writes everything. Fails when something is not as it is to be.
pub(super) fn write(
    args: &Args,
    topology: &Topology,
    outcome: &Outcome,
    record: &mut Record,
) -> Result<()> {
    let report = Report {
        args,
        topology,
        outcome,
    };
    report.parameters(record);
    report.samples(record);
    record
        .tables
        .extend(topology.pairs.iter().map(|pair| report.table(*pair)));
    record.tables.push(report.moves());
    let misses = report.misses();
    record.remarks = report.verdicts();
    record.remarks.extend(misses.iter().cloned());
    record.remarks.extend(outcome.remarks.iter().cloned());
    record.remarks.extend(outcome.failures.iter().cloned());
    let charts = report.charts().into_iter();
    let charts = charts.map(|(name, chart)| (format!("{name}.svg"), chart));
    record.publish(&args.output, charts)?;
    let failures = outcome.failures.len();
    ensure!(failures == 0, "{failures} transfers failed");
    ensure!(misses.is_empty(), "{} targets missed", misses.len());
    Ok(())
}

/// What the links of an overlay carried.
pub(super) fn carried(hops: Hops, testbed: &Testbed) -> Result<String> {
    let stats = testbed.mesh.stats();
    Ok(format!(
        "Emulated links, overlay with {} hops: {} packets, {} dropped, {} more than 1 ms late, at \
         worst {:.1} ms.",
        if hops == Hops::Warm { "warm" } else { "cold" },
        stats.packets,
        stats.dropped + stats.refused,
        stats.late,
        stats.lateness_us_max as f64 / 1e3
    ))
}

impl Report<'_> {
    fn parameters(&self, record: &mut Record) {
        let args = self.args;
        record.parameter("places", self.topology.places());
        record.parameter("access_rtt_ms", args.access);
        record.parameter("rate_mbit", args.rate);
        record.parameter("repeats", args.repeats);
        record.parameter("congestion", args.congestion.as_str());
        record.parameter("family", args.family.to_string());
        record.parameter("tolerance_percent", args.tolerance);
        record.parameter("behind_percent", args.behind);
    }

    fn samples(&self, record: &mut Record) {
        for one in self.outcome.timings.keys() {
            let (pair, bytes) = (self.pair_name(one.pair), (one.size * 1000).to_string());
            let labels = [
                ("pair", pair.as_str()),
                ("bytes", &bytes),
                ("subject", one.subject.name()),
            ];
            let first = self.outcome.timings[one]
                .iter()
                .map(|t| t.first_byte.as_secs_f64() * 1e3);
            record.sample("time to first byte", "ms", &labels, first.collect());
            record.sample("time to completion", "ms", &labels, self.values(*one));
        }
        for (place, seen) in self.outcome.moves.iter().enumerate() {
            let number = (place + 1).to_string();
            let labels = [("event", seen.kind.name()), ("number", number.as_str())];
            record.sample("moved", "s", &labels, seen.moved_s.into_iter().collect());
            record.sample("open connection", "s", &labels, vec![seen.long_s]);
            let times = seen.connections.iter().filter_map(|(_, took)| *took);
            record.sample("new connections", "s", &labels, times.collect());
        }
    }

    pub(super) fn pair_name(&self, pair: Pair) -> String {
        self.topology.chain_name(&[pair.client, pair.server])
    }

    pub(super) fn values(&self, one: Configuration) -> Vec<f64> {
        let timings = self.outcome.timings.get(&one).into_iter().flatten();
        timings.map(|t| t.complete.as_secs_f64() * 1e3).collect()
    }

    pub(super) fn median(&self, pair: Pair, size: u64, subject: Subject) -> Option<f64> {
        median(&self.values(Configuration {
            pair,
            size,
            subject,
        }))
    }

    /// Of everything but the front, of which there is no model.
    pub(super) fn model(&self, pair: Pair, size: u64, subject: Subject) -> Option<f64> {
        let one = Configuration {
            pair,
            size,
            subject,
        };
        let chain = match subject {
            Subject::ReverseProxy => return None,
            Subject::Direct => None,
            Subject::Chain(hops) => Some((self.outcome.chains.get(&one)?.as_slice(), hops)),
        };
        Some(self.topology.model_ms(self.args, pair, chain, size))
    }

    fn off(&self, pair: Pair, size: u64, subject: Subject) -> Option<f64> {
        let model = self.model(pair, size, subject)?;
        Some(deviation_percent(self.median(pair, size, subject)?, model))
    }

    /// How far warm hops are behind the front, in per cent.
    fn behind(&self, pair: Pair, size: u64) -> Option<f64> {
        let warm = self.median(pair, size, Subject::Chain(Hops::Warm))?;
        Some(deviation_percent(
            warm,
            self.median(pair, size, Subject::ReverseProxy)?,
        ))
    }

    fn table(&self, pair: Pair) -> Table {
        let rtt_ms = self.topology.rtt_ms(pair.client, pair.server);
        let title = format!("{}, {rtt_ms} ms, medians in ms", self.pair_name(pair));
        let columns = [
            "KB",
            "direct",
            "model",
            "cold",
            "model",
            "off",
            "warm",
            "model",
            "off",
            "front",
            "warm to front",
            "cold chain",
            "warm chain",
        ];
        let mut table = Table::new(title, &columns);
        let ms = |value: Option<f64>| value.map_or_else(dash, |v| format!("{v:.1}"));
        let percent = |value: Option<f64>| value.map_or_else(dash, |v| format!("{v:+.1} %"));
        let [cold, warm] = [Hops::Cold, Hops::Warm].map(Subject::Chain);
        for &size in &self.args.sizes {
            let median = |subject| ms(self.median(pair, size, subject));
            let model = |subject| ms(self.model(pair, size, subject));
            let chain = |subject| {
                let chain = self.outcome.chains.get(&Configuration {
                    pair,
                    size,
                    subject,
                });
                chain.map_or_else(dash, |chain| self.topology.chain_name(chain))
            };
            table.push([
                size.to_string(),
                median(Subject::Direct),
                model(Subject::Direct),
                median(cold),
                model(cold),
                percent(self.off(pair, size, cold)),
                median(warm),
                model(warm),
                percent(self.off(pair, size, warm)),
                median(Subject::ReverseProxy),
                percent(self.behind(pair, size)),
                chain(cold),
                chain(warm),
            ]);
        }
        table
    }

    fn moves(&self) -> Table {
        let title = "A link of the first pair's chain gets worse, or is cut";
        let columns = [
            "event",
            "before",
            "after",
            "first other way",
            "all other ways",
            "slowest new connection",
            "failed",
            "open connection",
        ];
        let mut table = Table::new(title, &columns);
        let seconds = |value: Option<f64>| value.map_or_else(dash, |v| format!("{v:.1} s"));
        let names = |places: &BTreeSet<usize>| {
            let names: Vec<&str> = places
                .iter()
                .map(|place| self.topology.name(*place))
                .collect();
            names.join(", ")
        };
        for seen in &self.outcome.moves {
            let took: Vec<f64> = seen
                .connections
                .iter()
                .filter_map(|(_, took)| *took)
                .collect();
            let failed = seen.connections.len() - took.len();
            table.push([
                seen.kind.name().to_owned(),
                names(&seen.before),
                names(&seen.after),
                seconds(seen.moved_s),
                seconds(seen.settled_s),
                seconds(max(&took)),
                failed.to_string(),
                format!("whole in {:.1} s", seen.long_s),
            ]);
        }
        table
    }

    fn all(&self) -> impl Iterator<Item = (Pair, u64)> {
        let sizes = |pair: &Pair| {
            self.args
                .sizes
                .iter()
                .map(|size| (*pair, *size))
                .collect::<Vec<_>>()
        };
        self.topology.pairs.iter().flat_map(sizes)
    }

    fn verdicts(&self) -> Vec<String> {
        let cold = Subject::Chain(Hops::Cold);
        let off: Vec<f64> = self
            .all()
            .filter_map(|(p, s)| self.off(p, s, cold))
            .collect();
        let behind: Vec<f64> = self.all().filter_map(|(p, s)| self.behind(p, s)).collect();
        let range = |values: &[f64]| {
            let [low, middle, high] =
                [0.0, 50.0, 100.0].map(|p| percentile(values, p).unwrap_or(0.0));
            format!("{low:+.1} to {high:+.1} %, median {middle:+.1} %")
        };
        vec![
            format!("Cold chains against the model: {}.", range(&off)),
            format!("Warm chains against the front: {}.", range(&behind)),
        ]
    }

    fn misses(&self) -> Vec<String> {
        let mut misses = Vec::new();
        for (pair, size) in self.all() {
            let name = self.pair_name(pair);
            let off = self
                .off(pair, size, Subject::Chain(Hops::Cold))
                .unwrap_or(0.0);
            if off.abs() > self.args.tolerance {
                misses.push(format!(
                    "Missed: {name}, {size} KB: cold is {off:+.1} % off the model."
                ));
            }
            let behind = self.behind(pair, size).unwrap_or(0.0);
            if behind > self.args.behind {
                misses.push(format!(
                    "Missed: {name}, {size} KB: warm is {behind:+.1} % behind the front."
                ));
            }
        }
        let worse = self
            .outcome
            .moves
            .iter()
            .filter(|seen| seen.kind == Kind::Worse);
        for seen in worse.filter(|seen| seen.moved_s.is_none_or(|s| s > MOVED_MAX_S)) {
            let took = seen
                .moved_s
                .map_or_else(|| "never".to_owned(), |s| format!("after {s:.1} s"));
            misses.push(format!("Missed: a new connection took another way {took}."));
        }
        misses
    }
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Worse => "three times as long",
            Self::Cut => "cut",
        }
    }
}

fn dash() -> String {
    "-".to_owned()
}
