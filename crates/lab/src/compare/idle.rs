// SPDX-License-Identifier: Apache-2.0
//! The memory of subjects: idle after the start, and with many idle relays.

use anyhow::Result;

use super::ends::PATIENCE;
use super::load::MEMORY;
use super::site::Running;
use super::targets::EARLY;
use super::testbed::Testbed;
use crate::boot::memory::{self, Usage};
use crate::names::{Named, named};
use crate::process::wait_until;
use crate::record::Record;
use crate::socket;
use crate::target::{Bound, Target};

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
            // The first process relays; its guard holds no relays.
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
    // Two descriptors for each relay: the client's side and the server's.
    let possible = usize::try_from(descriptors.saturating_sub(SPARE_DESCRIPTORS) / 2)?;
    Ok(possible.min(RELAYS))
}

/// Starts a subject, measures it, opens connections through it and measures it again.
pub(super) fn measure(testbed: &Testbed, relays: usize) -> Result<Footprint> {
    let running = testbed.start(relays)?;
    let idle = usage(&running)?;
    // The connections stay open until the client is dropped, after the second reading.
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
    for footprint in footprints {
        let threads = footprint.threads.to_string();
        let relays = footprint.relays.to_string();
        let labels = [
            ("load", MEMORY.0),
            ("subject", footprint.subject),
            ("threads", &threads),
            ("relays", &relays),
        ];
        for &figure in Figure::ALL {
            let (unit, bytes) = figure.unit();
            let value = vec![footprint.of(figure) / bytes];
            record.sample(figure.name(), unit, &labels, value);
        }
    }
    let title = "Memory: idle, and for each idle relay";
    let figures: Vec<&str> = Figure::ALL.iter().map(|figure| figure.name()).collect();
    record.table(title, |_| true, &["subject", "threads", "relays"], &figures);
}

/// The targets of our node.
pub(super) fn targets(footprints: &[Footprint]) -> Vec<Target> {
    let ours = footprints.iter().filter(|one| one.subject == EARLY);
    let targets = ours.flat_map(|ours| {
        let of = TARGETS
            .into_iter()
            .filter(|(.., any, _)| *any || ours.threads == 1);
        of.map(|(figure, what, _, most)| {
            let (unit, bytes) = figure.unit();
            let what = format!("memory, workers: {}: {what}", ours.threads);
            Target::once(
                what,
                Some(ours.of(figure) / bytes),
                Bound::AtMost(most),
                unit,
            )
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
        let targets = targets(&[footprint]);
        let figures = targets.iter().filter_map(|one| Some(one.measured?.median));
        let figures: Vec<f64> = figures.collect();
        assert_eq!(figures, [1900.0, 500.0, 1200.0, 0.0]);
    }
}
