// SPDX-License-Identifier: Apache-2.0
//! The time of subjects from `exec` until the client has the first relayed byte back (see
//! [`probe`](crate::boot::probe)).

use anyhow::{Context, Result};

use super::figures::Spread;
use super::site::{PORT, Site};
use super::subject::Subject;
use super::targets::{Alone, EARLY};
use super::testbed::CONNECTIONS_MAX;
use crate::boot::{self, Launch, probe};
use crate::echo::Echo;
use crate::link::Link;
use crate::network::Network;
use crate::node::Binary;
use crate::record::Record;
use crate::table::Table;

/// Bound on the start of a node, in ms.
const START_MAX_MS: f64 = 2.0;

/// A subject and its start times, in ms.
pub(super) type Starts = (&'static str, Vec<f64>);

/// Starts every subject in turn, `repeats` times. Those that are not one program are left out.
pub(super) fn measure(
    subjects: &[Subject],
    cpus: &[usize],
    binary: &Binary,
    repeats: u32,
) -> Result<Vec<Starts>> {
    let mut places = Vec::new();
    for subject in subjects {
        let network = Network::line([Link::Veth, Link::Veth]).build()?;
        subject.prepare(&network)?;
        let echo = Echo::start(network.server(), PORT)?;
        let place = Place {
            subject,
            echo,
            network,
        };
        // Not counted: the program may not be in the page cache.
        if place.time(cpus, binary)?.is_some() {
            places.push((place, Vec::new()));
        }
    }
    for _ in 0..repeats {
        for (place, times) in &mut places {
            times.extend(place.time(cpus, binary)?);
        }
    }
    let starts = places.into_iter();
    Ok(starts
        .map(|(place, times)| (place.subject.name, times))
        .collect())
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

impl Place<'_> {
    /// Starts the subject once; the time in ms, if it can be measured.
    fn time(&self, cpus: &[usize], binary: &Binary) -> Result<Option<f64>> {
        let site = Site {
            network: &self.network,
            cpus,
            threads: 1,
            connections: CONNECTIONS_MAX,
            binary,
        };
        let name = self.subject.name;
        let took = if name == EARLY {
            // As operators start it, without a configuration.
            probe_is_deaf(&site)?;
            let mut launch = Launch::new(site.node(), &binary.find()?, 1)?;
            site.confine(&mut launch.command, None)?;
            launch.time(&self.network, site.server())?.0
        } else if let Some((command, _files, target)) = self.subject.launch(&site)? {
            let timed = boot::time_start(&self.network, command, target);
            timed.with_context(|| format!("start {name}"))?.1
        } else {
            return Ok(None);
        };
        Ok(Some(took.as_secs_f64() * 1e3))
    }
}

/// Verifies that packets forwarded before the node has started do not count as relayed.
fn probe_is_deaf(site: &Site<'_>) -> Result<()> {
    let client = site.network.client();
    client.run_in(|| probe::check_path(site.server()))
}

/// Adds the results to the record.
pub(super) fn fill(record: &mut Record, starts: &[Starts]) {
    if starts.is_empty() {
        return;
    }
    let title = "From exec to the first relayed byte, ms";
    let mut table = Table::new(title, &["subject", "median and quartiles"]);
    for (name, times) in starts {
        let labels = [("load", "boot"), ("subject", *name)];
        record.sample("exec to first relayed byte", "ms", &labels, times.clone());
        if let Some(spread) = Spread::of(times) {
            table.push([(*name).to_owned(), spread.to_string()]);
        }
    }
    record.tables.push(table);
}

/// The targets of our node.
pub(super) fn targets(starts: &[Starts]) -> Vec<Alone> {
    let ours = starts.iter().find(|(name, _)| *name == EARLY);
    let spread = ours.and_then(|(_, times)| Spread::of(times));
    let target = spread.map(|spread| Alone {
        load: "boot",
        what: "median",
        value: spread.median,
        most: START_MAX_MS,
        unit: "ms",
    });
    target.into_iter().collect()
}
