// SPDX-License-Identifier: Apache-2.0
//! How long contenders take from `exec` until the client has the first byte back that they
//! relayed (see [`probe`](crate::boot::probe)).

use anyhow::{Context, Result};

use super::bed::CONNECTIONS_MAX;
use super::contender::Contender;
use super::figures::Spread;
use super::site::{PORT, Site};
use crate::boot::{self, Launch, probe};
use crate::echo::Echo;
use crate::link::Link;
use crate::network::Network;
use crate::node::Binary;
use crate::record::Record;
use crate::table::Table;

/// What a node is to stay below, in ms.
const START_MAX_MS: f64 = 2.0;

/// The one of ours that is started as operators start it.
const OURS: &str = "posthaste-early";

/// A contender and how long its starts took, in ms.
pub(super) type Starts = (&'static str, Vec<f64>);

/// Starts every contender in turn, so many times. Those that are not one program are left out.
pub(super) fn measure(
    contenders: &[Contender],
    cpus: &[usize],
    binary: &Binary,
    repeats: u32,
) -> Result<Vec<Starts>> {
    let mut places = Vec::new();
    for contender in contenders {
        let network = Network::line([Link::Veth, Link::Veth]).build()?;
        contender.prepare(&network)?;
        let echo = Echo::start(network.server(), PORT)?;
        let place = Place {
            contender,
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
        .map(|(place, times)| (place.contender.name, times))
        .collect())
}

/// A contender's network, with a server behind it.
#[derive(Debug)]
struct Place<'a> {
    contender: &'a Contender,
    /// First, so that it ends before its network.
    #[expect(dead_code, reason = "serves as long as it is there")]
    echo: Echo,
    network: Network,
}

impl Place<'_> {
    /// Starts the contender once; the time in ms, if it can be timed.
    fn time(&self, cpus: &[usize], binary: &Binary) -> Result<Option<f64>> {
        let site = Site {
            network: &self.network,
            cpus,
            threads: 1,
            connections: CONNECTIONS_MAX,
            binary,
        };
        let name = self.contender.name;
        let took = if name == OURS {
            probe_is_deaf(&site)?;
            let mut launch = Launch::new(site.node(), &binary.find()?, 1)?;
            site.confine(&mut launch.command, None)?;
            launch.time(&self.network, site.server())?.0
        } else if let Some((command, _files, target)) = self.contender.launch(&site)? {
            let timed = boot::time_start(&self.network, command, target);
            timed.with_context(|| format!("start {name}"))?.1
        } else {
            return Ok(None);
        };
        Ok(Some(took.as_secs_f64() * 1e3))
    }
}

/// Makes sure that what is forwarded before the node has started is not taken for relayed.
fn probe_is_deaf(site: &Site<'_>) -> Result<()> {
    let client = site.network.client();
    client.run_in(|| probe::check_path(site.server()))
}

/// Puts what was found into the record.
pub(super) fn fill(record: &mut Record, starts: &[Starts]) {
    if starts.is_empty() {
        return;
    }
    let title = "From exec to the first relayed byte, ms";
    let mut table = Table::new(title, &["contender", "median and quartiles", "target"]);
    for (name, times) in starts {
        let labels = [("load", "boot"), ("contender", *name)];
        record.sample("exec to first relayed byte", "ms", &labels, times.clone());
        let Some(spread) = Spread::of(times) else {
            continue;
        };
        let verdict = match *name {
            OURS if spread.median <= START_MAX_MS => format!("<= {START_MAX_MS} met"),
            OURS => format!("<= {START_MAX_MS} MISSED"),
            _ => "-".to_owned(),
        };
        table.push([(*name).to_owned(), spread.to_string(), verdict]);
    }
    record.tables.push(table);
}
