// SPDX-License-Identifier: Apache-2.0
//! The time of our node from `exec` until the client has the first relayed byte back (see
//! [`probe`](crate::boot::probe)).

use std::net::SocketAddr;

use anyhow::{Result, ensure};

use super::load::BOOT;
use super::site::{NICE, PORT, READY, cpu_set};
use super::targets::EARLY;
use crate::boot::{self, probe};
use crate::echo::Echo;
use crate::link::Link;
use crate::network::{Family, Network};
use crate::node::{Binary, Node};
use crate::record::Record;
use crate::target::Bound;

/// Bounds on the median start of a node, in ms: the promised one, and the one aimed at.
const BOUNDS_MS: [f64; 2] = [5.0, 2.0];

/// The measured quantity.
const FIRST: &str = "exec to first relayed byte";

/// Numbers of workers and IP versions with which the node is started.
const VARIANTS: [(usize, Family); 4] = [
    (1, Family::V4),
    (1, Family::V6),
    (2, Family::V4),
    (2, Family::V6),
];

/// Starts the node `repeats` times in each variant, and adds samples, targets and their table to
/// the record.
pub(super) fn measure(
    cpus: &[usize],
    binary: &Binary,
    repeats: u32,
    record: &mut Record,
) -> Result<()> {
    let network = Network::line([Link::Veth, Link::Veth]).build()?;
    let _server = Echo::start(network.server(), PORT)?;
    let mut times = VARIANTS.map(|_| Vec::new());
    // Variants take turns, so that a disturbance on the machine affects all of them.
    for repeat in 0..=repeats {
        for ((workers, family), times) in VARIANTS.into_iter().zip(&mut times) {
            let took = time(&network, cpus, binary, workers, family)?;
            // The first is not counted: the program may not be in the page cache.
            times.extend((repeat > 0).then_some(took));
        }
    }
    for ((workers, family), times) in VARIANTS.into_iter().zip(times) {
        let (workers, family) = (workers.to_string(), family.to_string());
        let labels = [
            ("load", BOOT.0),
            ("subject", EARLY),
            ("threads", &workers),
            ("family", &family),
        ];
        record.sample(FIRST, "ms", &labels, times);
        for most in BOUNDS_MS {
            let what = format!("{FIRST}, workers: {workers}, {family}");
            record.target(what, Bound::AtMost(most));
        }
    }
    let rows = ["subject", "threads", "family"];
    record.table("Start of a relay", |_| true, &rows, &[FIRST]);
    Ok(())
}

/// Starts a node as operators do, almost without a configuration, and stops it. Returns the time in
/// ms.
fn time(
    network: &Network,
    cpus: &[usize],
    binary: &Binary,
    workers: usize,
    family: Family,
) -> Result<f64> {
    let target = SocketAddr::new(network.server_address(family), PORT);
    // Before every start: a forwarded byte taken for a relayed one would be a start of no time.
    network.client().run_in(|| probe::check_path(target))?;
    let mut took = 0.0;
    let mut node = Node::builder(network.node(0), binary.find()?)
        .relaying()
        .config(&format!("[node]\nworkers = {workers}\n"))
        // A process of the usual priority would measure the other work on the machine.
        .confined(cpu_set(cpus)?, NICE)
        .start_by(|name, command| {
            let (process, first) = boot::time_start(network, name, command, target)?;
            took = first.as_secs_f64() * 1e3;
            Ok(process)
        })?;
    // It is ready now. One that is stopped before that dies, and the next one waits until its guard
    // has cleaned up.
    let status = node.stop(READY)?;
    ensure!(status.success(), "the node ended with {status}");
    Ok(took)
}
