// SPDX-License-Identifier: Apache-2.0
//! The memory of subjects: idle after the start, and with many idle relays.

use anyhow::Result;

use super::ends::PATIENCE;
use super::site::Running;
use super::targets::{Alone, EARLY};
use super::testbed::Testbed;
use crate::boot::memory::{self, Usage};
use crate::process::wait_until;
use crate::record::Record;
use crate::socket;
use crate::table::Table;

/// Idle relays to open.
const RELAYS: usize = 10_000;

/// Descriptors of a relay besides two for each connection.
const SPARE_DESCRIPTORS: u64 = 1200;

/// A target: what, with how many workers, the figure, its upper bound, and the unit.
type Target = (
    &'static str,
    usize,
    fn(&Footprint) -> f64,
    f64,
    &'static str,
);

/// The targets of our node. Those with two workers have the promised bounds only.
const TARGETS: [Target; 6] = [
    (
        "resident when idle",
        1,
        |one| one.resident() / 1e3,
        2000.0,
        "KB",
    ),
    ("of an idle relay", 1, Footprint::per_relay, 256.0, "bytes"),
    (
        "resident with the guard, 1 worker",
        1,
        |one| one.together() / 1e3,
        2500.0,
        "KB",
    ),
    (
        "resident with the guard, 2 workers",
        2,
        |one| one.together() / 1e3,
        2500.0,
        "KB",
    ),
    (
        "dirty pages of an idle relay, 1 worker",
        1,
        Footprint::dirty_per_relay,
        512.0,
        "bytes",
    ),
    (
        "dirty pages of an idle relay, 2 workers",
        2,
        Footprint::dirty_per_relay,
        512.0,
        "bytes",
    ),
];

/// The memory of one subject.
#[derive(Clone, Debug)]
pub(super) struct Footprint {
    subject: &'static str,
    threads: usize,
    idle: Vec<Usage>,
    loaded: Vec<Usage>,
    relays: usize,
}

impl Footprint {
    /// Resident memory of the largest process when idle, in bytes.
    fn resident(&self) -> f64 {
        let sizes = self.idle.iter().map(|usage| usage.resident as f64);
        sizes.fold(0.0, f64::max)
    }

    /// Memory of all processes when idle, in bytes; shared pages count once.
    fn together(&self) -> f64 {
        self.idle
            .iter()
            .map(|usage| usage.proportional as f64)
            .sum()
    }

    /// Bytes of user memory that each relay adds.
    fn per_relay(&self) -> f64 {
        let anonymous = |family: &[Usage]| family.iter().map(|usage| usage.anonymous).sum();
        self.added(anonymous)
    }

    /// Bytes of private dirty pages that each relay adds to the first process. Includes pages that
    /// it shared with its guard before it wrote to them.
    fn dirty_per_relay(&self) -> f64 {
        self.added(|family| family[0].dirty)
    }

    fn added(&self, of: impl Fn(&[Usage]) -> u64) -> f64 {
        (of(&self.loaded) as f64 - of(&self.idle) as f64) / self.relays as f64
    }
}

/// The number of idle relays that the limit of open files allows, up to the requested number.
pub(super) fn relays() -> Result<usize> {
    let descriptors = socket::raise_descriptor_limit()?;
    let possible = usize::try_from(descriptors.saturating_sub(SPARE_DESCRIPTORS) / 2)?;
    Ok(possible.min(RELAYS))
}

/// Starts a subject, measures it, opens connections through it and measures it again.
pub(super) fn measure(testbed: &Testbed, relays: usize) -> Result<Footprint> {
    let running = testbed.start(relays)?;
    let idle = usage(&running)?;
    let client = testbed.hold(&running, relays)?;
    for node in &running.nodes {
        // The server may have accepted a connection before the node has counted its relay.
        let all_open = || {
            node.counter("relays")
                .is_ok_and(|open| open == relays as u64)
        };
        wait_until("relays of all connections", PATIENCE, all_open)?;
    }
    let loaded = usage(&running)?;
    drop(client);
    running.stop()?;
    Ok(Footprint {
        subject: testbed.subject.name,
        threads: testbed.threads,
        idle,
        loaded,
        relays,
    })
}

fn usage(running: &Running) -> Result<Vec<Usage>> {
    memory::settled(|| running.pids()?.into_iter().map(memory::of).collect())
}

/// Adds the results to the record.
pub(super) fn fill(record: &mut Record, footprints: &[Footprint]) {
    let Some(first) = footprints.first() else {
        return;
    };
    if first.relays < RELAYS {
        let remark = format!(
            "{} idle relays, not {RELAYS}: the limit of open files allows no more.",
            first.relays
        );
        record.remarks.push(remark);
    }
    let title = "Memory: idle, and what each idle relay adds";
    for footprint in footprints {
        let threads = footprint.threads.to_string();
        let labels = [
            ("load", "memory"),
            ("subject", footprint.subject),
            ("threads", &threads),
        ];
        let mut keep =
            |quantity: &str, value| record.sample(quantity, "bytes", &labels, vec![value]);
        keep("resident, idle", footprint.resident());
        keep("proportional, idle, all processes", footprint.together());
        keep("user memory per idle relay", footprint.per_relay());
        keep(
            "private dirty pages per idle relay",
            footprint.dirty_per_relay(),
        );
    }
    record.tables.push(Table::of(
        title,
        footprints,
        &[
            ("subject", &|one| one.subject.to_owned()),
            ("threads", &|one| one.threads.to_string()),
            ("relays", &|one| one.relays.to_string()),
            ("resident, KB", &|one| {
                format!("{:.0}", one.resident() / 1e3)
            }),
            ("all processes, KB", &|one| {
                format!("{:.0}", one.together() / 1e3)
            }),
            ("user bytes per relay", &|one| {
                format!("{:.0}", one.per_relay())
            }),
            ("dirty bytes per relay", &|one| {
                format!("{:.0}", one.dirty_per_relay())
            }),
        ],
    ));
}

/// The targets of our node.
pub(super) fn targets(footprints: &[Footprint]) -> Vec<Alone> {
    let ours = footprints.iter().filter(|one| one.subject == EARLY);
    let targets = ours.flat_map(|ours| {
        let of = TARGETS
            .into_iter()
            .filter(|target| target.1 == ours.threads);
        of.map(|(what, _, value, most, unit)| Alone {
            load: "memory",
            what: what.to_owned(),
            value: value(ours),
            most,
            unit,
        })
    });
    targets.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_memory_is_shared() {
        let usage = |resident, anonymous| Usage {
            resident,
            anonymous,
            proportional: resident / 2,
            ..Usage::default()
        };
        let footprint = Footprint {
            subject: "posthaste-early",
            threads: 1,
            idle: vec![usage(1_900_000, 300_000), usage(500_000, 100_000)],
            loaded: vec![usage(3_000_000, 800_000), usage(500_000, 100_000)],
            relays: 1000,
        };
        assert_eq!(footprint.per_relay(), 500.0);
        assert_eq!(footprint.together(), 1_200_000.0);
        let figures: Vec<f64> = targets(&[footprint]).iter().map(|one| one.value).collect();
        assert_eq!(figures, [1900.0, 500.0, 1200.0, 0.0]);
    }
}
