// SPDX-License-Identifier: Apache-2.0
//! `compare`: what posthaste costs next to what one would use instead, on the same loads in the
//! same run.
//!
//! The measure is *marginal* CPU time: that of client, relay, server and the kernel's threads for
//! softirqs, for each transaction or gigabyte, less that of the same load over a direct link. All
//! of them are pinned to one CPU at a raised priority. There packets are handled where they are
//! sent, on top of the sender, so that the processes' own clocks hold everything and whatever else
//! runs on the machine does not count, though it may push things out of caches.
//!
//! Contenders take turns within each round, in an order that changes. Figures are compared within
//! a round; medians and quartiles over the rounds are shown.

mod bed;
mod contender;
mod counts;
mod figures;
mod integrity;
mod judge;
mod load;
mod report;
mod sizes;
mod syn_watch;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sched::sched_getaffinity;
use nix::unistd::Pid;

use self::bed::{Bed, Measured, Times};
use self::contender::Contender;
use self::load::{Load, Placement, Yield};
use crate::node::Binary;
use crate::record::{self, Record};
use crate::shuffle::shuffled;

/// Arguments of `posthaste-lab compare`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    binary: Binary,
    /// Loads, by name; all if none is named
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    loads: Vec<String>,
    /// Contenders, by name; all if none is named. The direct link is always among them
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    contenders: Vec<String>,
    /// How often every load is put through every contender
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Seconds that a load is measured for
    #[arg(long, value_name = "SECONDS")]
    window: Option<f64>,
    /// Fewer rounds and shorter loads: for a first look
    #[arg(long)]
    quick: bool,
    /// Say what the loads and contenders are, and do nothing
    #[arg(long)]
    list: bool,
    /// Seed of the order of contenders
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where the record and the pictures go
    #[arg(long, value_name = "DIR", default_value = "lab-output")]
    output: PathBuf,
}

impl Args {
    fn rounds(&self) -> u32 {
        self.rounds.unwrap_or(if self.quick { 2 } else { 5 })
    }

    fn times(&self) -> Times {
        let seconds = self.window.unwrap_or(if self.quick { 0.4 } else { 0.8 });
        Times {
            warm_up: Duration::from_millis(if self.quick { 100 } else { 200 }),
            window: Duration::from_secs_f64(seconds.clamp(0.1, 60.0)),
        }
    }
}

/// What every load found with every contender, a value for each round, by their names.
type Results = BTreeMap<(&'static str, &'static str), Vec<Measured>>;

/// Runs the benchmark, prints its tables, writes record and pictures. Fails when a load was not
/// carried in full.
pub fn run(args: &Args) -> Result<()> {
    if args.list {
        print!("{}", report::listing());
        return Ok(());
    }
    let start = Instant::now();
    let loads = chosen(load::all(), &args.loads, |load| load.name)?;
    let mut record = Record::start("compare", args.seed);
    let contenders = available(args, &mut record)?;
    let cpus = cpus()?;
    record.parameter("cpus", cpus.clone());
    let mut results = Results::new();
    for placement in Placement::ALL {
        let of: Vec<&Load> = loads.iter().filter(|l| l.placement == placement).collect();
        let Some(cpus) = cpus.get(..placement.cpus()).filter(|_| !of.is_empty()) else {
            let names: Vec<_> = of.iter().map(|load| load.name).collect();
            if !names.is_empty() {
                record
                    .remarks
                    .push(format!("Not measured for want of CPUs: {names:?}."));
            }
            continue;
        };
        measure_all(
            args,
            placement,
            cpus,
            &of,
            &contenders,
            &mut results,
            &mut record,
        )?;
    }
    record.parameter("seconds", start.elapsed().as_secs());
    report::fill(&mut record, args, &loads, &contenders, &results);
    finish(args, &record, &loads, &contenders, &results)
}

/// Puts the loads of one placement through all contenders, round by round.
fn measure_all(
    args: &Args,
    placement: Placement,
    cpus: &[usize],
    loads: &[&Load],
    contenders: &[Contender],
    results: &mut Results,
    record: &mut Record,
) -> Result<()> {
    let mut beds = Vec::new();
    for &contender in contenders {
        let bed = Bed::new(contender, placement, cpus, &args.binary);
        let bed = bed.with_context(|| format!("prepare {}", contender.name))?;
        if !contender.bulk_only || loads.iter().any(|load| !skips(load, &contender)) {
            let running = bed.start()?;
            let key = format!("{}, {placement:?}", contender.name);
            record.parameter(&key, running.configuration.clone());
            running.stop()?;
        }
        beds.push(bed);
    }
    let order: Vec<usize> = (0..beds.len()).collect();
    for round in 0..args.rounds() {
        for load in loads {
            eprintln!(
                "compare: round {} of {}: {}",
                round + 1,
                args.rounds(),
                load.name
            );
            for index in shuffled(&order, args.seed, round) {
                let bed = &beds[index];
                if skips(load, &bed.contender) {
                    continue;
                }
                let name = bed.contender.name;
                let measured = bed.measure(load, args.times());
                let measured = measured.with_context(|| format!("{} by {name}", load.name))?;
                for problem in &measured.problems {
                    eprintln!("compare: {} by {name}: {problem}", load.name);
                }
                results.entry((load.name, name)).or_default().push(measured);
            }
        }
    }
    Ok(())
}

/// Whether a contender has nothing of its own to show at a load.
fn skips(load: &Load, contender: &Contender) -> bool {
    let much = ["bulk-1", "bulk-16", "1m", "mixed"].contains(&load.name);
    // Flows over warm hops have no SYN between the nodes.
    let no_syn = load.yields == Yield::SynDelay && contender.nodes > 1;
    contender.bulk_only && !much || no_syn
}

/// Those that were asked for by name, or all; in their own order.
fn chosen<T>(all: Vec<T>, names: &[String], name: impl Fn(&T) -> &'static str) -> Result<Vec<T>> {
    for wanted in names {
        if !all.iter().any(|item| name(item) == wanted) {
            let known: Vec<_> = all.iter().map(&name).collect();
            bail!("no {wanted:?}; there are {}", known.join(", "));
        }
    }
    let wanted = |item: &T| names.is_empty() || names.iter().any(|wanted| name(item) == wanted);
    Ok(all.into_iter().filter(wanted).collect())
}

/// The contenders asked for whose programs there are. The others are named.
fn available(args: &Args, record: &mut Record) -> Result<Vec<Contender>> {
    let mut names = args.contenders.clone();
    if !names.is_empty() {
        // Everything is measured against it.
        names.push("direct".to_owned());
    }
    let mut found = Vec::new();
    for contender in chosen(contender::ALL.to_vec(), &names, |contender| contender.name)? {
        match contender.version() {
            Ok(version) => {
                if let Some(version) = version {
                    record.parameter(&format!("version of {}", contender.name), version);
                }
                found.push(contender);
            }
            Err(_) => {
                let what = format!(
                    "Missing: {}. `make setup-bench` installs it.",
                    contender.name
                );
                eprintln!("compare: {what}");
                record.remarks.push(what);
            }
        }
    }
    record.parameter("node", crate::contender::version(&args.binary)?);
    Ok(found)
}

/// The CPUs that this process may use, the last first: the first one of a machine has most else
/// to do.
fn cpus() -> Result<Vec<usize>> {
    let set = sched_getaffinity(Pid::from_raw(0)).context("read the CPU affinity")?;
    let count = nix::sched::CpuSet::count();
    Ok((0..count)
        .rev()
        .filter(|&cpu| set.is_set(cpu).unwrap_or(false))
        .collect())
}

fn finish(
    args: &Args,
    record: &Record,
    loads: &[Load],
    contenders: &[Contender],
    results: &Results,
) -> Result<()> {
    print!("{}", record.markdown());
    for (name, chart) in report::charts(loads, contenders, results) {
        let path = record.path(&args.output, &format!("{name}.svg"));
        record::write_file(&path, &chart.svg())?;
        println!("picture: {}", path.display());
    }
    println!("record:  {}", record.write(&args.output)?.display());
    let problems: usize = results.values().flatten().map(|m| m.problems.len()).sum();
    ensure!(
        problems == 0,
        "{problems} times a load was not carried in full: see the record"
    );
    Ok(())
}
