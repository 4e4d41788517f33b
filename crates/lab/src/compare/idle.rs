// SPDX-License-Identifier: Apache-2.0
//! The memory of our node: idle after the start, and with many idle relays.

use anyhow::Result;

use super::ends::PATIENCE;
use super::load::MEMORY;
use super::site::Running;
use super::testbed::Testbed;
use crate::boot::memory::{self, Usage};
use crate::process::wait_until;
use crate::record::Record;
use crate::socket;
use crate::target::Bound;

/// Idle relays to open, and those of a node with several workers: each has its share of the node's
/// limit, and the kernel distributes unevenly.
const RELAYS: usize = 10_000;
const RELAYS_OF_SEVERAL: usize = 2000;

/// Descriptors of a relay besides two for each connection.
const SPARE_DESCRIPTORS: u64 = 1200;

/// A figure of memory, and the target for it.
struct Figure {
    /// The name of its samples.
    name: &'static str,
    unit: &'static str,
    /// Bytes in a unit.
    bytes: f64,
    /// The upper bound.
    most: f64,
    /// Whether the bound is one of one worker. Those for any number are promised.
    of_one: bool,
    value: fn(&Footprint) -> f64,
}

const FIGURES: [Figure; 4] = [
    Figure {
        name: "resident, idle",
        unit: "KB",
        bytes: 1e3,
        most: 2000.0,
        of_one: true,
        value: |one| one.idle[0].resident as f64,
    },
    // Shared pages count once.
    Figure {
        name: "proportional, idle, all processes",
        unit: "KB",
        bytes: 1e3,
        most: 2500.0,
        of_one: false,
        value: |one| one.idle.iter().map(|usage| usage.proportional as f64).sum(),
    },
    Figure {
        name: "user memory per idle relay",
        unit: "bytes",
        bytes: 1.0,
        most: 256.0,
        of_one: true,
        value: |one| one.added(|family| family.iter().map(|usage| usage.anonymous).sum()),
    },
    // The first process relays; its guard holds no relays. Includes pages that it shared with its
    // guard before it wrote to them.
    Figure {
        name: "private dirty pages per idle relay",
        unit: "bytes",
        bytes: 1.0,
        most: 512.0,
        of_one: false,
        value: |one| one.added(|family| family[0].dirty),
    },
];

/// The memory of a node and its guard, in this order.
#[derive(Clone, Debug)]
struct Footprint {
    idle: Vec<Usage>,
    loaded: Vec<Usage>,
    relays: usize,
}

impl Footprint {
    /// Bytes that each relay adds.
    fn added(&self, of: impl Fn(&[Usage]) -> u64) -> f64 {
        (of(&self.loaded) as f64 - of(&self.idle) as f64) / self.relays as f64
    }
}

/// Starts a node, measures it, opens connections through it and measures it again. Adds samples and
/// targets to the record.
pub(super) fn measure(testbed: &Testbed, record: &mut Record) -> Result<()> {
    let descriptors = socket::raise_descriptor_limit()?;
    // Two descriptors for each relay: the client's side and the server's.
    let possible = usize::try_from(descriptors.saturating_sub(SPARE_DESCRIPTORS) / 2)?;
    let wanted = match testbed.threads {
        1 => RELAYS,
        _ => RELAYS_OF_SEVERAL,
    };
    let relays = possible.min(wanted);
    if relays < wanted {
        let remark = "idle relays: the limit of open files allows no more.";
        let remark = format!("{relays}, not {wanted} {remark}");
        record.remarks.push(remark);
    }
    let footprint = footprint(testbed, relays)?;
    let (threads, relays) = (testbed.threads.to_string(), relays.to_string());
    let labels = [
        ("load", MEMORY.0),
        ("subject", testbed.subject.name),
        ("threads", &threads),
        ("relays", &relays),
    ];
    for figure in FIGURES {
        let value = (figure.value)(&footprint) / figure.bytes;
        record.sample(figure.name, figure.unit, &labels, vec![value]);
        if !figure.of_one || testbed.threads == 1 {
            let what = format!("memory, workers: {threads}: {}", figure.name);
            record.target(what, Bound::AtMost(figure.most));
        }
    }
    Ok(())
}

fn footprint(testbed: &Testbed, relays: usize) -> Result<Footprint> {
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
        idle,
        loaded,
        relays,
    })
}

fn usage(running: &Running) -> Result<Vec<Usage>> {
    memory::settled(|| running.pids()?.into_iter().map(memory::of).collect())
}

/// Adds the table of the samples to the record.
pub(super) fn table(record: &mut Record) {
    let title = "Memory: idle, and for each idle relay";
    let figures = FIGURES.map(|figure| figure.name);
    record.table(title, |_| true, &["subject", "threads", "relays"], &figures);
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
            idle: vec![usage(1_900_000, 300_000), usage(500_000, 100_000)],
            loaded: vec![usage(3_000_000, 800_000), usage(500_000, 100_000)],
            relays: 1000,
        };
        let values = FIGURES.map(|figure| (figure.value)(&footprint));
        assert_eq!(values, [1_900_000.0, 1_200_000.0, 500.0, 0.0]);
    }
}
