// SPDX-License-Identifier: Apache-2.0
//! `mix`: how many connections of a web-like mix a node accelerates, and how much time that saves.
//!
//! Twenty clients visit four thousand services through one router, which is plain, or masquerades with a
//! firewall that drops. Each subject has a network of its own: a router without a node, one with the default
//! configuration, and one that relays everything by sockets. All of them get the same connections at the same
//! times, so that what else happens on the machine meets all alike. Both ends of each connection compare all
//! bytes. The experiment fails when one fails that does not fail without a node.

mod ends;
mod plan;
mod report;
mod testbed;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use self::ends::Life;
use self::plan::Connection;
use self::report::Counts;
use self::testbed::{Router, Subject, Testbed};
use crate::names::Named;
use crate::node::Binary;
use crate::record::{Common, Record};
use crate::{socket, threads};

/// From the moment when all networks are ready until the first connection.
const LEAD: Duration = Duration::from_millis(100);

/// Arguments of `posthaste-lab mix`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    binary: Binary,
    /// Connections in each network
    #[arg(long, default_value_t = 3800, value_parser = clap::value_parser!(u32).range(10..=100_000))]
    connections: u32,
    /// Seconds within which they begin
    #[arg(long, default_value_t = 180, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    seconds: u32,
    /// Repeats, each with other connections and nodes that have learned nothing
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    repeats: u32,
    #[command(flatten)]
    common: Common,
}

/// What happened in one network.
#[derive(Debug)]
struct Course {
    lives: Vec<Life>,
    counts: Counts,
}

/// All connections over one kind of router, by subject.
#[derive(Debug)]
struct Round {
    router: Router,
    plan: Arc<Vec<Connection>>,
    /// In the order of [`Subject::ALL`].
    courses: Vec<Course>,
}

/// Runs the experiment, prints its table, writes record and charts. Fails when a connection fails that does
/// not fail without a node.
pub fn run(args: &Args) -> Result<()> {
    // Each connection takes two descriptors in each network.
    socket::raise_descriptor_limit()?;
    let mut record = Record::start("mix", args.common.seed);
    record.parameter("node", args.binary.version()?);
    let mut rounds = Vec::new();
    for repeat in 0..args.repeats {
        for router in Router::ALL {
            eprintln!(
                "mix: {}, repeat {} of {}",
                router.name(),
                repeat + 1,
                args.repeats
            );
            rounds.push(play(args, *router, repeat).context(router.name())?);
        }
    }
    report::fill(&mut record, args, &rounds);
    record.finish(&args.common.output, &report::failures(&rounds))
}

/// All subjects at the same time.
fn play(args: &Args, router: Router, repeat: u32) -> Result<Round> {
    let seed = args.common.seed + u64::from(repeat);
    let within = Duration::from_secs(args.seconds.into());
    let plan = plan::connections(seed, usize::try_from(args.connections)?, within);
    let plan = Arc::new(plan);
    let beds = Subject::ALL.iter();
    let beds = beds.map(|subject| Testbed::build(args, router, *subject));
    let beds = beds.collect::<Result<Vec<_>>>()?;
    let listeners = beds.iter().map(|bed| ends::serve(bed, &plan));
    let _listeners = listeners.collect::<Result<Vec<_>>>()?;
    let start = Instant::now() + LEAD;
    let courses = threads::at_once(u32::try_from(beds.len())?, |index| {
        let bed = &beds[index as usize];
        Ok(Course {
            lives: ends::play(bed, &plan, start)?,
            counts: Counts::read(bed)?,
        })
    });
    Ok(Round {
        router,
        plan,
        courses: courses.into_iter().collect::<Result<_>>()?,
    })
}
