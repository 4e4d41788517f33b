// SPDX-License-Identifier: Apache-2.0
//! The report of `boot`: tables against the design's bounds, and a chart.

use std::fmt;

use super::memory::Usage;
use super::{Boots, Footprint};
use crate::chart::{Across, Chart, Series};
use crate::record::Record;
use crate::stats::{max, median, percentile};
use crate::table::Table;

/// The bounds of the design.
const BOOT_MS_MAX: f64 = 5.0;
const RESIDENT_MAX: f64 = 2.5e6;
const RELAY_BYTES_MAX: f64 = 512.0;
/// The Miniproxy paper's boot time at 2 GHz and more, in milliseconds.
const PAPER_BOOT_MS: f64 = 12.0;

impl Footprint {
    /// Resident memory of all idle processes together, in bytes. Pages that they share count
    /// once, which is what the proportional sizes add up to.
    fn proportional(&self) -> f64 {
        sum(&self.idle, |usage| usage.proportional)
    }

    /// User memory that one idle relay adds to the node, in bytes: private pages that it has
    /// written to, also those that it shared with its guard before.
    fn per_relay(&self) -> f64 {
        let dirty = |family: &[Usage]| family[0].dirty as f64;
        (dirty(&self.loaded) - dirty(&self.idle)) / self.relays as f64
    }
}

fn sum(family: &[Usage], of: fn(&Usage) -> u64) -> f64 {
    family.iter().map(of).sum::<u64>() as f64
}

impl fmt::Display for Boots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", workers(self.workers), self.family)
    }
}

fn workers(count: usize) -> String {
    if count == 1 {
        "1 worker".to_string()
    } else {
        format!("{count} workers")
    }
}

/// Puts the samples and the tables made of them into the record.
pub(super) fn fill(record: &mut Record, boots: &[Boots], footprints: &[Footprint]) {
    record.tables = vec![
        verdict_table(boots, footprints),
        boot_table(boots),
        memory_table(footprints),
    ];
    for boots in boots {
        let (workers, family) = (boots.workers.to_string(), boots.family.to_string());
        let labels = [("workers", workers.as_str()), ("family", &family)];
        record.sample(
            "boot to first relayed byte",
            "ms",
            &labels,
            boots.total.clone(),
        );
        record.sample("fork to exec", "ms", &labels, boots.fork.clone());
    }
    for footprint in footprints {
        let workers = footprint.workers.to_string();
        for (state, family) in [
            ("idle", &footprint.idle),
            ("with relays", &footprint.loaded),
        ] {
            for usage in family {
                let labels = [
                    ("workers", workers.as_str()),
                    ("state", state),
                    ("process", &usage.name),
                ];
                let mut keep = |quantity: &str, bytes: u64| {
                    record.sample(quantity, "bytes", &labels, vec![bytes as f64]);
                };
                keep("resident", usage.resident);
                keep("proportional", usage.proportional);
                keep("private", usage.private);
                keep("dirty", usage.dirty);
                keep("anonymous", usage.anonymous);
            }
        }
        let labels = [("workers", workers.as_str())];
        record.sample(
            "idle relays",
            "relays",
            &labels,
            vec![footprint.relays as f64],
        );
    }
}

fn verdict_table(boots: &[Boots], footprints: &[Footprint]) -> Table {
    let columns = ["what", "configuration", "measured", "bound", "verdict"];
    let mut table = Table::new("Boot and memory against the design's bounds", &columns);
    let mut row = |what: &str, configuration: String, value: f64, bound: f64, scale: f64| {
        let verdict = if value <= bound { "met" } else { "MISSED" };
        let shown = |value: f64| format!("{:.2}", value / scale);
        table.push([
            what.to_string(),
            configuration,
            shown(value),
            shown(bound),
            verdict.to_string(),
        ]);
    };
    for boots in boots {
        let time = median(&boots.total).unwrap_or(f64::INFINITY);
        row(
            "exec to first relayed byte, median, ms",
            boots.to_string(),
            time,
            BOOT_MS_MAX,
            1.0,
        );
    }
    for footprint in footprints {
        let (name, node) = (
            workers(footprint.workers),
            footprint.idle[0].resident as f64,
        );
        row(
            "resident, idle, the node, MB",
            name.clone(),
            node,
            RESIDENT_MAX,
            1e6,
        );
        let all = footprint.proportional();
        row(
            "resident, idle, with its guard, shared pages once, MB",
            name,
            all,
            RESIDENT_MAX,
            1e6,
        );
    }
    for footprint in footprints {
        let name = format!(
            "{}, {} relays",
            workers(footprint.workers),
            footprint.relays
        );
        row(
            "user memory per idle relay, bytes",
            name,
            footprint.per_relay(),
            RELAY_BYTES_MAX,
            1.0,
        );
    }
    table
}

fn boot_table(boots: &[Boots]) -> Table {
    let columns = [
        "configuration",
        "starts",
        "median",
        "p10",
        "p90",
        "max",
        "fork to exec",
    ];
    let mut table = Table::new("From exec to the first relayed byte, ms", &columns);
    for boots in boots {
        let of = |percent| percentile(&boots.total, percent);
        let times = [
            of(50.0),
            of(10.0),
            of(90.0),
            max(&boots.total),
            median(&boots.fork),
        ];
        let mut cells = vec![boots.to_string(), boots.total.len().to_string()];
        let shown =
            |time: Option<f64>| time.map_or_else(|| "-".to_string(), |time| format!("{time:.2}"));
        cells.extend(times.map(shown));
        table.push(cells);
    }
    table
}

fn memory_table(footprints: &[Footprint]) -> Table {
    let columns = [
        "workers",
        "state",
        "process",
        "resident",
        "proportional",
        "private",
        "anonymous",
    ];
    let mut table = Table::new("Memory by process, KB (1000 bytes)", &columns);
    for footprint in footprints {
        let loaded = format!("{} idle relays", footprint.relays);
        for (state, family) in [
            ("idle", &footprint.idle),
            (loaded.as_str(), &footprint.loaded),
        ] {
            for usage in family {
                let sizes = [
                    usage.resident,
                    usage.proportional,
                    usage.private,
                    usage.anonymous,
                ];
                let mut cells = vec![
                    footprint.workers.to_string(),
                    state.to_string(),
                    usage.name.clone(),
                ];
                cells.extend(sizes.map(|bytes| format!("{:.0}", bytes as f64 / 1000.0)));
                table.push(cells);
            }
        }
    }
    table
}

/// The chart of the boot times.
pub(super) fn chart(boots: &[Boots]) -> Chart {
    let spread = |boots: &Boots| percentile(&boots.total, 10.0).zip(percentile(&boots.total, 90.0));
    let posthaste = Series {
        name: "posthaste, median".to_string(),
        values: boots.iter().map(|boots| median(&boots.total)).collect(),
        spread: boots.iter().map(spread).collect(),
        model: boots.iter().map(|_| Some(BOOT_MS_MAX)).collect(),
    };
    let paper = Series {
        name: "Miniproxy, from its paper".to_string(),
        values: boots.iter().map(|_| Some(PAPER_BOOT_MS)).collect(),
        ..Series::default()
    };
    Chart {
        title: "From exec to the first relayed byte".to_string(),
        subtitle: format!(
            "program in the page cache, {} starts each",
            boots[0].total.len()
        ),
        across_label: "workers, IP version".to_string(),
        value_label: "time, ms".to_string(),
        across: Across::Rows(boots.iter().map(ToString::to_string).collect()),
        series: vec![paper, posthaste],
        model_name: "bound".to_string(),
        note: "Whiskers: 10th to 90th percentile. The paper's figure is from other hardware."
            .to_string(),
    }
}
