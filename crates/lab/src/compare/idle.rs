// SPDX-License-Identifier: Apache-2.0
//! The memory of subjects: idle after the start, and with many idle relays.

use anyhow::Result;

use super::ends::PATIENCE;
use super::site::Running;
use super::targets::{Alone, EARLY};
use super::testbed::Testbed;
use crate::boot::memory::{self, Usage};
use crate::names::named;
use crate::process::wait_until;
use crate::record::Record;
use crate::socket;
use crate::table::Table;

/// Idle relays to open.
const RELAYS: usize = 10_000;

/// Descriptors of a relay besides two for each connection.
const SPARE_DESCRIPTORS: u64 = 1200;

named! {
    /// A figure of memory. The names are those of samples in the record.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Figure {
        /// Resident memory of the largest process when idle, in bytes.
        Resident = "resident, idle",
        /// Memory of all processes when idle, in bytes; shared pages count once.
        Together = "proportional, idle, all processes",
        /// Bytes of user memory that each relay adds.
        PerRelay = "user memory per idle relay",
        /// Bytes of private dirty pages that each relay adds to the first process. Includes pages
        /// that it shared with its guard before it wrote to them.
        Dirty = "private dirty pages per idle relay",
    }
}

impl Figure {
    /// Its unit in tables, with the number of bytes.
    fn unit(self) -> (&'static str, f64) {
        match self {
            Self::Resident | Self::Together => ("KB", 1e3),
            Self::PerRelay | Self::Dirty => ("bytes", 1.0),
        }
    }
}

/// The targets of our node: figure, name, whether it holds for any number of workers or for one,
/// and upper bound. Those for any number have the promised bounds.
const TARGETS: [(Figure, &str, bool, f64); 4] = [
    (Figure::Resident, "resident when idle", false, 2000.0),
    (Figure::PerRelay, "of an idle relay", false, 256.0),
    (Figure::Together, "resident with the guard", true, 2500.0),
    (Figure::Dirty, "dirty pages of an idle relay", true, 512.0),
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
    fn of(&self, figure: Figure) -> f64 {
        let idle = self.idle.iter();
        match figure {
            Figure::Resident => idle.map(|one| one.resident as f64).fold(0.0, f64::max),
            Figure::Together => idle.map(|one| one.proportional as f64).sum(),
            Figure::PerRelay => {
                self.added(|family| family.iter().map(|usage| usage.anonymous).sum())
            }
            Figure::Dirty => self.added(|family| family[0].dirty),
        }
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
        for figure in Figure::ALL {
            let value = vec![footprint.of(figure)];
            record.sample(figure.name(), "bytes", &labels, value);
        }
    }
    let cell = |one: &Footprint, figure: Figure| format!("{:.0}", one.of(figure) / figure.unit().1);
    record.tables.push(Table::of(
        title,
        footprints,
        &[
            ("subject", &|one| one.subject.to_owned()),
            ("threads", &|one| one.threads.to_string()),
            ("relays", &|one| one.relays.to_string()),
            ("resident, KB", &|one| cell(one, Figure::Resident)),
            ("all processes, KB", &|one| cell(one, Figure::Together)),
            ("user bytes per relay", &|one| cell(one, Figure::PerRelay)),
            ("dirty bytes per relay", &|one| cell(one, Figure::Dirty)),
        ],
    ));
}

/// The targets of our node.
pub(super) fn targets(footprints: &[Footprint]) -> Vec<Alone> {
    let ours = footprints.iter().filter(|one| one.subject == EARLY);
    let targets = ours.flat_map(|ours| {
        let of = TARGETS
            .into_iter()
            .filter(|(.., any, _)| *any || ours.threads == 1);
        of.map(|(figure, what, any, most)| {
            let (unit, bytes) = figure.unit();
            let workers = match (any, ours.threads) {
                (false, _) => String::new(),
                (true, 1) => ", 1 worker".to_owned(),
                (true, count) => format!(", {count} workers"),
            };
            Alone {
                load: "memory",
                what: format!("{what}{workers}"),
                value: ours.of(figure) / bytes,
                most,
                unit,
            }
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
        assert_eq!(footprint.of(Figure::PerRelay), 500.0);
        assert_eq!(footprint.of(Figure::Together), 1_200_000.0);
        let figures: Vec<f64> = targets(&[footprint]).iter().map(|one| one.value).collect();
        assert_eq!(figures, [1900.0, 500.0, 1200.0, 0.0]);
    }
}
