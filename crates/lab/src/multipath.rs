// SPDX-License-Identifier: Apache-2.0
//! `multipath`: transfers between ends of which one has two paths, and the other TCP.
//!
//! The paths have 8 and 2 Mbit/s. Without a node the end with Multipath TCP falls back to TCP over
//! the faster one. A node between the two uses both. Further rows count
//! the connections that get their second path, and time how long a download stops when its faster
//! path fails or its client changes paths.

use anyhow::{Context, Result};
use socket2::Protocol;

use crate::chart::{Across, Chart, Curve};
use crate::netns::Namespace;
use crate::node::{Binary, Node};
use crate::record::{Common, Record};
use crate::target::Bound;

mod arrivals;
mod changes;
mod site;
mod subjects;

use site::{LIMIT, Site};
use subjects::Subject;

const GOODPUT: &str = "goodput";
const UNIT: &str = "Mbit/s";
/// The median must reach this where a node uses both paths.
const GOAL: f64 = 9.3;

/// Arguments of `posthaste-lab multipath`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    binary: Binary,
    /// Subjects by their names, without joins and failures; everything by default
    #[arg(long, value_delimiter = ';')]
    subjects: Vec<String>,
    /// Transfers of each subject
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeats: u32,
    /// Bytes of a transfer
    #[arg(long, default_value_t = 6_000_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    bytes: u64,
    /// Connections that must get their second path
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    joins: u32,
    /// Downloads whose faster path fails, in each way
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    failures: u32,
    /// Times that a client leaves one path for the other in one download
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=1000))]
    handovers: u32,
    #[command(flatten)]
    common: Common,
}

/// Runs the experiment, prints its table, writes record and chart. Fails when a goal is missed.
pub fn run(args: &Args) -> Result<()> {
    let mut record = Record::start("multipath", args.common.seed);
    record.parameter("node", args.binary.version()?);
    record.parameter("bytes", args.bytes);
    record.parameter("limit in Mbit/s", LIMIT);
    for subject in subjects::named(&args.subjects)? {
        eprintln!("multipath: {}", subject.name);
        let values = transfers(&subject, args).with_context(|| subject.name)?;
        record.sample(GOODPUT, UNIT, &[("subject", subject.name)], values);
        record.model(subject.has_goal().then_some(LIMIT));
        if subject.has_goal() {
            record.target(format!("goodput, {}", subject.name), Bound::AtLeast(GOAL));
        }
    }
    record.table(
        "Goodput over paths of 8 and 2 Mbit/s",
        |one| one.quantity == GOODPUT,
        &["subject"],
        &[GOODPUT],
    );
    if args.subjects.is_empty() {
        changes::run(args, &mut record)?;
    }
    record.charts.push(chart(args));
    record.finish(&args.common.output, &[])
}

fn transfers(subject: &Subject, args: &Args) -> Result<Vec<f64>> {
    let site = Site::build(subject.ends)?;
    if subject.config.is_none() && subject.server == Protocol::MPTCP {
        site.announce()?;
    }
    let _server = site.serve(subject.server)?;
    let far = subject.far.map(|config| node(&site.server, args, config));
    let far = far.transpose()?;
    let node = subject
        .config
        .map(|config| node(&site.router, args, config));
    let node = node.transpose()?;
    let values = (0..args.repeats).map(|_| {
        let elapsed = site.transfer(subject, args.bytes)?;
        Ok(args.bytes as f64 * 8.0 / elapsed.as_secs_f64() / 1e6)
    });
    let values = values.collect();
    drop((node, far));
    values
}

fn node(host: &Namespace, args: &Args, config: &str) -> Result<Node> {
    let builder = Node::builder(host, args.binary.find()?).relaying();
    builder.config(config).start()
}

fn chart(args: &Args) -> Chart {
    Chart {
        file: String::new(),
        title: "Transfers where one end has two paths".to_owned(),
        subtitle: format!(
            "paths of 8 and 2 Mbit/s, {} transfers of {} bytes",
            args.repeats, args.bytes
        ),
        across_label: "subject".to_owned(),
        value_label: "goodput, Mbit/s".to_owned(),
        across: Across::Rows(vec!["subject".to_owned()]),
        curves: vec![Curve::new(GOODPUT, GOODPUT, &[])],
        note: format!("Model: {LIMIT:.2} Mbit/s, both paths less headers."),
    }
}
