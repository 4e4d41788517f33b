// SPDX-License-Identifier: Apache-2.0
//! What a sender with BBR makes of its longer round trip: one transfer at a time, as fast as the
//! path takes it, whose relay leaves.

use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use anyhow::{Context, Result};

use super::{Args, CONFIG, DIRECTIONS, times_of_leaving, transfer};
use crate::ends::{Job, Servers};
use crate::link::Link;
use crate::network::{Family, Network};
use crate::node::Node;
use crate::record::Record;
use crate::stats;

/// Legs of client and server in milliseconds, one way.
const LEGS: [[u64; 2]; 3] = [[20, 20], [20, 40], [10, 40]];
const RATE: u64 = 100_000_000;
/// Of a transfer: it lasts half a minute, and its relay leaves after some seconds.
const BYTES: u64 = 400_000_000;
const PORT: u16 = 8002;
const GROWTH: &str = "growth";
/// How long the rate counts before the relay leaves, and which seconds count behind that.
const BEFORE_SECONDS: f64 = 1.0;
const AFTER_SECONDS: Range<u8> = 1..9;
const LOWEST: &str = "lowest second";
/// Quantities of their own: the chart is of the other transfers.
const BEFORE: &str = "BBR's rate before";
const AFTER: &str = "BBR's rate after";
const RATIO: &str = "BBR's rate after/before";

/// Measures all, and adds the results.
pub(super) fn measure(args: &Args, record: &mut Record) -> Result<()> {
    for legs in LEGS {
        for (way, name) in DIRECTIONS.into_iter().enumerate() {
            let sender = legs[1 - way];
            let growth = (legs[0] + legs[1]) as f64 / sender as f64;
            let growth = format!("{sender} ms, {growth:.2} times");
            eprintln!("handover: a sender {growth}");
            let rates = (0..args.repeats).map(|_| once(args, legs, way == 1));
            let rates = rates.collect::<Result<Vec<_>>>().context(name)?;
            let labels = [(GROWTH, growth.as_str())];
            let each = |of: fn(&Rates) -> f64| rates.iter().map(of).collect::<Vec<_>>();
            record.sample(BEFORE, "Mbit/s", &labels, each(|rates| rates.before));
            record.sample(AFTER, "Mbit/s", &labels, each(|rates| rates.after));
            record.sample(LOWEST, "Mbit/s", &labels, each(|rates| rates.lowest));
            record.sample(RATIO, "", &labels, each(|rates| rates.after / rates.before));
        }
    }
    record.table(
        "Senders with BBR, by their leg and how often its round trip the whole path has",
        |one| one.labels.contains_key(GROWTH),
        &[GROWTH],
        &[BEFORE, AFTER, LOWEST, RATIO],
    );
    Ok(())
}

/// Rates of a transfer around the hand-over, in Mbit/s.
struct Rates {
    before: f64,
    after: f64,
    /// Of the seconds behind it.
    lowest: f64,
}

fn once(args: &Args, legs: [u64; 2], uploads: bool) -> Result<Rates> {
    let milliseconds = legs[0] + legs[1];
    let queue = RATE / 8 * 2 * milliseconds / 1000;
    let leg = |milliseconds| {
        Link::delay(Duration::from_millis(milliseconds))
            .rate(RATE)
            .queue(queue)
    };
    let network = Network::line(legs.map(leg))
        .seed(args.common.seed)
        .build()?;
    let builder = Node::builder(network.node(0), args.binary.find()?).relaying();
    let mut node = builder.config(CONFIG).start()?;
    let servers = Servers::start(network.server(), &[(PORT, "bbr")])?;
    let job = Job {
        target: SocketAddr::new(network.server_address(Family::V4), PORT),
        congestion: "bbr",
        uploads,
        bytes: BYTES,
        is_paced: false,
    };
    let done = transfer(&servers, &network, &job);
    node.stop(Duration::from_secs(60))?;
    let times = times_of_leaving(&node.log())?;
    let left = done.client.and_then(|client| times.get(&client).copied());
    let left = left.context("the relay has not left")?;
    let rate = |from: f64, to: f64| {
        let rate = done.trace.rate(left + from, left + to);
        rate.context("the transfer was too short")
    };
    let seconds = AFTER_SECONDS.map(|second| rate(second.into(), f64::from(second) + 1.0));
    let seconds = seconds.collect::<Result<Vec<_>>>()?;
    Ok(Rates {
        before: rate(-BEFORE_SECONDS, 0.0)?,
        after: stats::mean(&seconds).unwrap_or(0.0),
        lowest: seconds.into_iter().fold(f64::INFINITY, f64::min),
    })
}
