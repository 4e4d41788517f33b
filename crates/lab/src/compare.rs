// SPDX-License-Identifier: Apache-2.0
//! `compare`: measures the cost of posthaste and of its alternatives, with the same loads in the
//! same run.
//!
//! The measure is *marginal* CPU time: that of client, relay, server and the kernel's softirq
//! threads per transaction or gigabyte, less that of the same load over a direct link. All of them
//! are pinned to one CPU at a raised priority. There packets are handled where they are sent, on
//! top of the sender, so that the processes' own clocks include everything, and other processes on
//! the machine do not count, though they may evict cache lines.
//!
//! Subjects take turns within each round, in a changing order. Figures are compared within a round;
//! medians and quartiles over the rounds are reported.

mod bench;
mod counts;
mod ends;
mod figures;
mod idle;
mod integrity;
mod load;
mod report;
mod site;
mod start;
mod subject;
mod syn_watch;
mod targets;
mod testbed;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::builder::{PossibleValue, PossibleValuesParser};
use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;

use self::bench::Bench;
use self::subject::Subject;
use self::testbed::Measured;
use crate::node::Binary;
use crate::record::{Common, Record};
use crate::socket;

/// Arguments of `posthaste-lab compare`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    binary: Binary,
    /// Loads; all if none is named
    #[arg(long, value_delimiter = ',', value_name = "NAME", value_parser = load_names())]
    loads: Vec<String>,
    /// Subjects; all if none is named. The direct link is always among them
    #[arg(long, value_delimiter = ',', value_name = "NAME", value_parser = subject_names())]
    subjects: Vec<String>,
    /// How often every load is put through every subject
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Seconds that a load is measured for
    #[arg(long, default_value_t = 0.4, value_name = "SECONDS")]
    window: f64,
    #[command(flatten)]
    common: Common,
}

impl Args {
    fn window(&self) -> Duration {
        Duration::from_secs_f64(self.window.clamp(0.1, 60.0))
    }
}

/// The results of every load with every subject by name, a value per round.
type Results = BTreeMap<(&'static str, &'static str), Vec<Measured>>;

/// All loads, with their titles.
fn load_names() -> PossibleValuesParser {
    let loads = load::all().into_iter().map(|load| (load.name, load.title));
    named(loads.chain([load::MEMORY, load::BOOT]))
}

/// All subjects, with their descriptions.
fn subject_names() -> PossibleValuesParser {
    named(subject::ALL.iter().map(|one| (one.name, one.what)))
}

fn named(names: impl Iterator<Item = (&'static str, &'static str)>) -> PossibleValuesParser {
    let values = names.map(|(name, what)| PossibleValue::new(name).help(what));
    PossibleValuesParser::new(values)
}

/// Whether one with this name was requested.
fn is_wanted(wanted: &[String], name: &str) -> bool {
    wanted.is_empty() || wanted.iter().any(|one| one == name)
}

/// Runs the benchmark, prints its tables, writes record and charts. Fails when a load was not
/// carried in full.
pub fn run(args: &Args) -> Result<()> {
    // The duration shows whether a run was disturbed: an idle machine takes a quarter of an hour.
    let start = Instant::now();
    // Child processes inherit the limit, so that all have the same number of connections.
    socket::raise_descriptor_limit()?;
    let mut record = Record::start("compare", args.common.seed);
    let loads = load::all().into_iter();
    let mut bench = Bench {
        args,
        loads: loads
            .filter(|load| is_wanted(&args.loads, load.name))
            .collect(),
        subjects: available(args, &mut record)?,
        cpus: cpus()?,
        record,
        results: Results::new(),
        failed: BTreeSet::new(),
    };
    bench.put_through();
    report::fill(&mut bench);
    bench.measure_node()?;
    bench.record.parameter("cpus", bench.cpus.clone());
    bench.record.parameter("seconds", start.elapsed().as_secs());
    bench.finish()
}

/// The requested subjects whose programs are installed. The others are reported.
fn available(args: &Args, record: &mut Record) -> Result<Vec<Subject>> {
    let mut found = Vec::new();
    for subject in subject::ALL {
        // All others are compared with the direct link.
        if !is_wanted(&args.subjects, subject.name) && subject.name != targets::DIRECT {
            continue;
        }
        match subject.version() {
            Ok(version) => {
                if let Some(version) = version {
                    record.parameter(&format!("version of {}", subject.name), version);
                }
                found.push(*subject);
            }
            Err(error) => {
                let what = format!("Missing: {}: {error:#}.", subject.name);
                eprintln!("compare: {what}");
                record.remarks.push(what);
            }
        }
    }
    if found.iter().any(Subject::is_ours) {
        record.parameter("node", args.binary.version()?);
    }
    Ok(found)
}

/// The CPUs that this process may use, the last first: the first CPU of a machine usually has the
/// most other work.
fn cpus() -> Result<Vec<usize>> {
    // Those of this process: a container may have fewer than the machine.
    let set = sched_getaffinity(Pid::from_raw(0)).context("read the CPU affinity")?;
    let count = CpuSet::count();
    Ok((0..count)
        .rev()
        .filter(|&cpu| set.is_set(cpu).unwrap_or(false))
        .collect())
}
