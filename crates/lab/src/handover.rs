// SPDX-License-Identifier: Apache-2.0
//! `handover`: relays leave their connections in the middle of transfers over long paths.
//!
//! Many transfers run at once, up and down, with cubic and BBR at both ends, over legs of 20 and
//! 40 ms (one way) with a node between them. Their senders are paced, so that each takes 20 s if
//! nothing is lost. Every byte is checked. A transfer is *handed over* if the node's log reports that
//! its relay left, and has a *fault* if a byte was wrong or missing, or if it was reset or hung.
//! Each loss has a network of its own.
//!
//! Then single transfers with BBR run as fast as they can, to show what their senders make of the
//! longer round trip.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};

use crate::chart::{Across, Chart, Curve};
use crate::ends::{Job, Servers, Trace};
use crate::link::Link;
use crate::network::{Family, Network};
use crate::node::{Binary, Node};
use crate::record::{Common, Record};
use crate::rng::Rng;
use crate::target::{Bound, Target};
use crate::threads;

mod cost;
mod growth;

const CONFIG: &str = "[defaults]\nbypass = \"always\"\n";
/// Losses of each link and way, and the largest transfer of each in megabytes: with losses one
/// connection over the whole path is slow.
const LOSSES: [(f64, &str, u64); 3] = [(0.0, "0 %", 100), (0.001, "0.1 %", 30), (0.01, "1 %", 10)];
const CONGESTIONS: [&str; 2] = ["cubic", "bbr"];
/// Where the servers listen, by congestion control.
const PORTS: [u16; 2] = [8001, 8002];
const DIRECTIONS: [&str; 2] = ["down", "up"];
/// Sizes in megabytes, with their shares of the transfers in percent. A relay moves 1 MiB before it
/// leaves.
const SIZES: [(u64, u64); 5] = [(2, 15), (3, 25), (10, 35), (30, 20), (100, 5)];
/// Of each leg.
const DELAYS: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(40)];
/// The emulator carries some 500 Mbit/s in all; the transfers need less on average.
const RATE: u64 = 200_000_000;
const QUEUE: u64 = 2 << 20;
const GAP: &str = "longest gap";
const BEFORE: &str = "rate before";
const AFTER: &str = "rate after";
const RATIO: &str = "rate after/before";
/// Longest time without a byte around a hand-over, in seconds, as the median of transfers without
/// loss: a retransmission timeout of the whole path is longer.
const GAP_GOAL: f64 = 0.3;
/// Share of the transfers whose relays should leave.
const LEFT_GOAL: f64 = 0.5;

/// Arguments of `posthaste-lab handover`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    binary: Binary,
    /// Transfers in all
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(12..=100_000))]
    connections: u32,
    /// Transfers at a time
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=500))]
    at_once: u32,
    /// Measurements of CPU time of each subject
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Transfers with BBR of each leg and way
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    repeats: u32,
    #[command(flatten)]
    common: Common,
}

/// A transfer that has ended.
struct Done {
    job: Job,
    client: Option<SocketAddr>,
    trace: Trace,
    fault: Option<String>,
    /// When its relay left, in seconds since 1970.
    left: Option<f64>,
}

/// How many relays of a node have left their connections.
fn left(node: &Node) -> Result<u64> {
    let status = node.status()?;
    Ok(status["ended"]["bypassed"].as_u64().unwrap_or(0))
}

/// Runs the experiment, prints its table, writes record and chart. Fails when a goal is missed.
pub fn run(args: &Args) -> Result<()> {
    let mut record = Record::start("handover", args.common.seed);
    record.parameter("node", args.binary.version()?);
    record.parameter("connections", args.connections);
    record.parameter("at once", args.at_once);
    record.parameter("rate in Mbit/s", RATE / 1_000_000);
    let mut rng = Rng::new(args.common.seed);
    let (mut handed_over, mut faults) = (0, Vec::new());
    for (index, (loss, name, most)) in LOSSES.into_iter().enumerate() {
        let count = (args.connections as usize + index) / LOSSES.len();
        eprintln!("handover: {count} connections, loss {name}");
        let done = transfers(args, loss, most, count, &mut rng).with_context(|| name)?;
        handed_over += done.iter().filter(|one| one.left.is_some()).count();
        faults.extend(done.iter().filter_map(|one| describe(one, name)));
        enter(&mut record, &done, name);
    }
    growth::measure(args, &mut record)?;
    eprintln!("handover: CPU time");
    cost::measure(&mut record, &args.binary, args.rounds)?;
    finish(&mut record, args, handed_over, &faults);
    record.finish(&args.common.output, &[])
}

/// The fault of a transfer, for the record.
fn describe(one: &Done, loss: &str) -> Option<String> {
    let fault = one.fault.as_ref()?;
    let relay = if one.left.is_some() {
        "had left"
    } else {
        "was there"
    };
    let way = DIRECTIONS[usize::from(one.job.uploads)];
    Some(format!(
        "{} bytes {way}, {}, loss {loss}, whose relay {relay}: {fault}",
        one.job.bytes, one.job.congestion
    ))
}

fn finish(record: &mut Record, args: &Args, handed_over: usize, faults: &[String]) {
    record.table(
        "Transfers",
        |one| one.unit == "transfers",
        &["loss", "congestion", "way"],
        &["handed over", "stayed a relay", "faults"],
    );
    record.table(
        "Around the hand-over",
        |one| one.labels.contains_key("way"),
        &["loss", "congestion", "way"],
        &[GAP, BEFORE, AFTER, RATIO],
    );
    // Relays may stay, but the experiment is about those that leave.
    record.targets.push(Target::once(
        "handed over",
        Some(handed_over as f64),
        Bound::AtLeast(f64::from(args.connections) * LEFT_GOAL),
        "transfers",
    ));
    record.targets.push(Target::once(
        "faults",
        Some(faults.len() as f64),
        Bound::AtMost(0.0),
        "transfers",
    ));
    record.remarks.extend_from_slice(faults);
    record.charts.push(Chart {
        file: String::new(),
        title: "Rates of transfers before and after their relay left".to_owned(),
        subtitle: "legs of 20 and 40 ms one way".to_owned(),
        across_label: "loss, congestion control and direction".to_owned(),
        value_label: "Mbit/s".to_owned(),
        across: Across::Rows(["loss", "congestion", "way"].map(str::to_owned).to_vec()),
        curves: vec![
            Curve::new("before", BEFORE, &[]),
            Curve::new("after", AFTER, &[]),
        ],
        note: "Before: the 2 s until the hand-over; after: from 1 to 5 s behind it.".to_owned(),
    });
}

/// Chooses transfers: each combination as often as any other, the sizes by chance.
fn jobs(network: &Network, most: u64, count: usize, rng: &mut Rng) -> Vec<Job> {
    let job = |number: usize| {
        let mut chance = rng.below(100);
        let size = SIZES.iter().find(|(_, share)| {
            let found = chance < *share;
            chance = chance.saturating_sub(*share);
            found
        });
        let family = Family::ALL[number / 4 % 2];
        Job {
            target: SocketAddr::new(network.server_address(family), PORTS[number % 2]),
            congestion: CONGESTIONS[number % 2],
            uploads: number / 2 % 2 == 1,
            bytes: size.map_or(1, |(size, _)| *size).min(most) * 1_000_000,
            is_paced: true,
        }
    };
    (0..count).map(job).collect()
}

/// Runs transfers over one network.
fn transfers(args: &Args, loss: f64, most: u64, count: usize, rng: &mut Rng) -> Result<Vec<Done>> {
    let leg = |delay| Link::delay(delay).rate(RATE).queue(QUEUE).loss(loss);
    let network = Network::line(DELAYS.map(leg))
        .seed(args.common.seed)
        .build()?;
    let builder = Node::builder(network.node(0), args.binary.find()?).relaying();
    let mut node = builder.config(CONFIG).start()?;
    let ports = [0, 1].map(|number| (PORTS[number], CONGESTIONS[number]));
    let servers = Servers::start(network.server(), &ports)?;
    let jobs = jobs(&network, most, count, rng);
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    threads::at_once(args.at_once, |_| {
        while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
            let one = transfer(&servers, &network, job);
            done.lock().expect("no panic").push(one);
        }
    });
    node.stop(Duration::from_secs(60))?;
    let times = times_of_leaving(&node.log())?;
    let mut done = done.into_inner().expect("no panic");
    for one in &mut done {
        one.left = one.client.and_then(|client| times.get(&client).copied());
    }
    Ok(done)
}

fn transfer(servers: &Servers, network: &Network, job: &Job) -> Done {
    let (client, (trace, end)) = match servers.transfer(network.client(), job) {
        Ok((client, arrived)) => (Some(client), arrived),
        Err(error) => (None, (Trace::default(), Err(error))),
    };
    Done {
        job: *job,
        client,
        trace,
        fault: end.err().map(|error| format!("{error:#}")),
        left: None,
    }
}

/// When the relays of clients left, by the node's log.
fn times_of_leaving(log: &[String]) -> Result<HashMap<SocketAddr, f64>> {
    let left = log.iter().filter(|line| line.contains("outcome=bypassed"));
    left.map(|line| {
        let field = |name: &str| {
            let mut words = line.split(' ');
            words.find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
        };
        let entry = field("client").zip(field("time"));
        let (client, time) = entry.with_context(|| format!("a log line without times: {line}"))?;
        let time = humantime::parse_rfc3339(time).context("read a time of the log")?;
        let time = time.duration_since(SystemTime::UNIX_EPOCH)?.as_secs_f64();
        Ok((client.parse().context("read an address of the log")?, time))
    })
    .collect()
}

/// Enters counts and figures of the transfers of one loss.
fn enter(record: &mut Record, done: &[Done], loss: &str) {
    for congestion in CONGESTIONS {
        for (way, name) in DIRECTIONS.into_iter().enumerate() {
            let labels = [("loss", loss), ("congestion", congestion), ("way", name)];
            let these = done.iter().filter(|one| {
                one.job.congestion == congestion && usize::from(one.job.uploads) == way
            });
            let these: Vec<&Done> = these.collect();
            let count =
                |is: fn(&Done) -> bool| vec![these.iter().filter(|one| is(one)).count() as f64];
            record.sample(
                "handed over",
                "transfers",
                &labels,
                count(|one| one.left.is_some()),
            );
            record.sample(
                "stayed a relay",
                "transfers",
                &labels,
                count(|one| one.left.is_none()),
            );
            record.sample(
                "faults",
                "transfers",
                &labels,
                count(|one| one.fault.is_some()),
            );
            enter_figures(record, &these, &labels);
        }
    }
}

/// Enters what happened around the hand-overs.
fn enter_figures(record: &mut Record, these: &[&Done], labels: &[(&str, &str)]) {
    let left: Vec<(&Trace, f64)> = these
        .iter()
        .filter_map(|one| Some((&one.trace, one.left?)))
        .collect();
    let gaps: Vec<f64> = left
        .iter()
        .filter_map(|(trace, at)| trace.longest_gap(at - 0.5, at + 1.0))
        .collect();
    let rates: Vec<(f64, f64)> = left
        .iter()
        .filter_map(|(trace, at)| {
            Some((trace.rate(at - 2.0, *at)?, trace.rate(at + 1.0, at + 5.0)?))
        })
        .collect();
    if !gaps.is_empty() {
        if labels[0].1 == LOSSES[0].1 {
            record.targets.push(Target {
                what: format!("{GAP} at a hand-over, {} {}", labels[1].1, labels[2].1),
                measured: crate::stats::Spread::of(&gaps),
                bound: Bound::AtMost(GAP_GOAL),
                unit: "s".to_owned(),
            });
        }
        record.sample(GAP, "s", labels, gaps);
    }
    if !rates.is_empty() {
        record.sample(
            BEFORE,
            "Mbit/s",
            labels,
            rates.iter().map(|rates| rates.0).collect(),
        );
        record.sample(
            AFTER,
            "Mbit/s",
            labels,
            rates.iter().map(|rates| rates.1).collect(),
        );
        let moved = rates.iter().filter(|rates| rates.0 > 0.0);
        record.sample(
            RATIO,
            "",
            labels,
            moved.map(|(before, after)| after / before).collect(),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_lines_of_left_relays() {
        let lines = [
            "time=1970-01-01T00:00:02.500Z level=info msg=relay id=1 client=10.0.0.1:99 outcome=bypassed",
            "time=1970-01-01T00:00:03.500Z level=info msg=relay id=2 client=10.0.0.1:98 outcome=finished",
        ];
        let times = times_of_leaving(&lines.map(str::to_owned)).unwrap();
        assert_eq!(times.len(), 1);
        assert!((times[&"10.0.0.1:99".parse().unwrap()] - 2.5).abs() < 1e-9);
        assert!(times_of_leaving(&["outcome=bypassed".to_owned()]).is_err());
    }
}
