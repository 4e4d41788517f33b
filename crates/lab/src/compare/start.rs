// SPDX-License-Identifier: Apache-2.0
//! The time of subjects from `exec` until the client has the first relayed byte back (see
//! [`probe`](crate::boot::probe)).

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::load::BOOT;
use super::site::{NICE, PORT, READY, Site, cpu_set};
use super::subject::Subject;
use super::targets::EARLY;
use super::testbed::CONNECTIONS_MAX;
use crate::boot::{self, probe};
use crate::echo::Echo;
use crate::link::Link;
use crate::network::{Family, Network};
use crate::node::{Binary, Node};
use crate::record::Record;
use crate::stats::Spread;
use crate::target::{Bound, Target};

/// Bounds on the median start of a node, in ms: the promised one, and the one aimed at.
const BOUNDS_MS: [f64; 2] = [5.0, 2.0];

/// The measured quantity.
const FIRST: &str = "exec to first relayed byte";

/// Workers of our node; the others are started with one.
const WORKERS: [usize; 2] = [1, 2];

/// The start times of one subject, in ms.
#[derive(Clone, Debug)]
pub(super) struct Starts {
    subject: &'static str,
    threads: usize,
    family: Family,
    times: Vec<f64>,
}

/// Starts every subject in turn, `repeats` times. Those that are not one program are left out.
pub(super) fn measure(
    subjects: &[Subject],
    cpus: &[usize],
    binary: &Binary,
    repeats: u32,
) -> Result<Vec<Starts>> {
    let places = subjects.iter().map(Place::new);
    let places = places.collect::<Result<Vec<_>>>()?;
    let mut all = Vec::new();
    for place in &places {
        for (threads, family) in variants(place.subject) {
            let starts = Starts {
                subject: place.subject.name,
                threads,
                family,
                times: Vec::new(),
            };
            // Not counted: the program may not be in the page cache.
            if place.time(cpus, binary, &starts)?.is_some() {
                all.push((place, starts));
            }
        }
    }
    // Subjects take turns, so that a disturbance on the machine affects all of them.
    for _ in 0..repeats {
        for (place, starts) in &mut all {
            let took = place.time(cpus, binary, starts)?;
            starts.times.extend(took);
        }
    }
    Ok(all.into_iter().map(|(_, starts)| starts).collect())
}

/// Numbers of threads and IP versions with which a subject is started.
fn variants(subject: &Subject) -> Vec<(usize, Family)> {
    if subject.name != EARLY {
        return vec![(1, Family::V4)];
    }
    let families = [Family::V4, Family::V6];
    let of = |threads| families.map(|family| (threads, family));
    WORKERS.into_iter().flat_map(of).collect()
}

/// A subject's network, with a server behind it.
#[derive(Debug)]
struct Place<'a> {
    subject: &'a Subject,
    /// First, so that it ends before its network.
    #[expect(dead_code, reason = "serves as long as it is there")]
    echo: Echo,
    network: Network,
}

impl<'a> Place<'a> {
    fn new(subject: &'a Subject) -> Result<Self> {
        let network = Network::line([Link::Veth, Link::Veth]).build()?;
        subject.prepare(&network)?;
        Ok(Self {
            subject,
            echo: Echo::start(network.server(), PORT)?,
            network,
        })
    }

    /// Starts the subject once; the time in ms, if it can be measured.
    fn time(&self, cpus: &[usize], binary: &Binary, starts: &Starts) -> Result<Option<f64>> {
        let site = Site {
            network: &self.network,
            cpus,
            threads: starts.threads,
            connections: CONNECTIONS_MAX,
            binary,
        };
        let name = self.subject.name;
        let took = if name == EARLY {
            let target = SocketAddr::new(self.network.server_address(starts.family), PORT);
            // Before every start: a forwarded byte taken for a relayed one would be a start of no
            // time.
            probe_is_deaf(&site, target)?;
            time_node(&site, target)?
        } else if let Some(program) = self.subject.launch(&site)? {
            let timed = boot::time_start(site.network, name, program.command, program.target);
            timed.with_context(|| format!("start {name}"))?.1
        } else {
            return Ok(None);
        };
        Ok(Some(took.as_secs_f64() * 1e3))
    }
}

/// Starts a node as operators do, almost without a configuration, and stops it.
fn time_node(site: &Site<'_>, target: SocketAddr) -> Result<Duration> {
    let config = format!("[node]\nworkers = {}\n", site.threads);
    let mut took = Duration::ZERO;
    let builder = Node::builder(site.node(), site.binary.find()?).config(&config);
    // A process of the usual priority would measure the other work on the machine.
    let mut node = builder
        .confined(cpu_set(site.cpus)?, NICE)
        .start_by(|name, command| {
            let (process, first) = boot::time_start(site.network, name, command, target)?;
            took = first;
            Ok(process)
        })?;
    // It is ready now. One that is stopped before that dies, and the next one waits until its guard
    // has cleaned up.
    let status = node.stop(READY)?;
    ensure!(status.success(), "the node ended with {status}");
    Ok(took)
}

/// Verifies that packets forwarded before the node has started do not count as relayed.
fn probe_is_deaf(site: &Site<'_>, target: SocketAddr) -> Result<()> {
    site.network.client().run_in(|| probe::check_path(target))
}

/// Adds the results to the record.
pub(super) fn fill(record: &mut Record, starts: &[Starts]) {
    for one in starts {
        let (threads, family) = (one.threads.to_string(), one.family.to_string());
        let labels = [
            ("load", BOOT.0),
            ("subject", one.subject),
            ("threads", &threads),
            ("family", &family),
        ];
        record.sample(FIRST, "ms", &labels, one.times.clone());
    }
    let rows = ["subject", "threads", "family"];
    record.table("Start of a relay", |_| true, &rows, &[FIRST]);
}

/// The targets of our node.
pub(super) fn targets(starts: &[Starts]) -> Vec<Target> {
    let ours = starts.iter().filter(|one| one.subject == EARLY);
    let targets = ours.flat_map(|one| {
        BOUNDS_MS.map(|most| Target {
            what: format!("{FIRST}, workers: {}, {}", one.threads, one.family),
            measured: Spread::of(&one.times),
            bound: Bound::AtMost(most),
            unit: "ms".to_owned(),
        })
    });
    targets.collect()
}
