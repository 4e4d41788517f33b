// SPDX-License-Identifier: Apache-2.0
//! `router-churn`: a day of an ordinary router in minutes, with and without a node.
//!
//! Two networks of many clients, a masquerading router with a firewall and many servers get the
//! same connections at the same time, and the same faults: rules and sets change, links lose
//! everything or go down, an address is removed and added. One of the routers has a node, which is
//! also killed, upgraded, drained and reloaded. Both ends of each connection compare all bytes and
//! record how it ended. The experiment fails when a connection ends differently with the node than
//! without it, and neither a cut link nor the documented reset at the node's death explains it, or
//! when a forbidden one passes.
//!
//! With `--path` the packets have a harder way instead of all these faults: see [`Path`].

mod clients;
mod ends;
mod keeper;
mod plan;
mod report;
mod testbed;
mod verdict;

use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

use self::clients::Clients;
use self::keeper::Keeper;
use self::plan::{Event, Plan};
use self::testbed::Testbed;
use self::verdict::{Pair, Span};
use crate::names::{Named, named};
use crate::node::Binary;
use crate::process::wait_until;
use crate::record::{Common, Record};
use crate::{socket, threads};

/// Bound on active clients per network: further ones wait.
const PLAYING_MAX: usize = 800;
const LOOK: Duration = Duration::from_millis(2);
/// How often progress is printed.
const PROGRESS: Duration = Duration::from_secs(10);
/// How long the last connections may take: enough for one that opens late and hangs.
const LAST: Duration = Duration::from_secs(60);

named! {
    /// How a node carries connections.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
    enum DataPath {
        /// By the sockets of relays
        Socket = "socket",
        /// By translating packets
        Packet = "packet",
        /// By the length of answers, the default of a node
        Auto = "auto",
    }
}

impl DataPath {
    /// Its line in the configuration.
    fn config(self) -> String {
        format!("data_path = {:?}\n", self.name())
    }

    /// What a node counts for each connection that it carries so.
    fn counters(self) -> &'static [&'static str] {
        match self {
            Self::Socket => &["relays_opened"],
            Self::Packet => &["packet_opened"],
            Self::Auto => &["relays_opened", "packet_opened"],
        }
    }
}

named! {
    /// What the networks do to packets.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
    enum Path {
        /// Nothing; all faults happen
        Plain = "plain",
        /// The router's interfaces join segments to lists (`rx-gro-list`); no faults
        Lists = "lists",
        /// The link to the servers fragments: a service whose clients send in fragments before its answer is
        /// only forwarded; no faults
        Fragments = "fragments",
        /// Three unlike servers share all addresses: one grants smaller segments and windows, and one,
        /// which is rarely met, none of the options; no faults
        Unlike = "unlike",
        /// The clients move between two interfaces of the router
        Moving = "moving",
        /// Links lose everything for up to two seconds
        Outages = "outages",
    }
}

/// Arguments of `posthaste-lab router-churn`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    binary: Binary,
    /// Connections in each network
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(20..=1_000_000))]
    connections: u64,
    /// Connections a second in each network, at the most
    #[arg(long, default_value_t = 250, value_parser = clap::value_parser!(u32).range(10..=5000))]
    rate: u32,
    /// Seconds after which no more connections begin
    #[arg(long, default_value_t = 540, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// How the node carries connections
    #[arg(long, value_enum, default_value_t = DataPath::Socket)]
    data_path: DataPath,
    /// What the networks do to packets
    #[arg(long, value_enum, default_value_t = Path::Plain)]
    path: Path,
    /// Percentage of packets that each link loses in each direction; then counts are compared, as the
    /// networks do not lose the same packets
    #[arg(long, default_value_t = 0.0, value_name = "PERCENT")]
    loss: f64,
    /// Ports of clients: few of them are soon reused
    #[arg(long, default_value_t = 28_000, value_parser = clap::value_parser!(u16).range(100..=28_000))]
    ports: u16,
    #[command(flatten)]
    common: Common,
}

/// The results of a run.
#[derive(Debug)]
struct Run {
    pairs: Vec<Pair>,
    spans: Vec<Span>,
    /// Number of connections that the node carried.
    relayed: u64,
    took: Duration,
    /// Failures of the experiment itself.
    troubles: Vec<String>,
    /// The output of nodes.
    log: Vec<String>,
}

/// Runs the experiment, prints its tables, writes the record. Fails when a promise is broken.
pub fn run(args: &Args) -> Result<()> {
    let mut record = Record::start("router-churn", args.common.seed);
    record.parameter("node", args.binary.version()?);
    let run = play(args)?;
    report::fill(&mut record, args, &run);
    let is_broken = |pair: &&Pair| pair.is_broken(args.loss > 0.0);
    let broken = run.pairs.iter().filter(is_broken);
    let broken = broken.map(|pair| pair.line(&run.log));
    // Otherwise the two networks would be alike, and the comparison would show nothing.
    let idle = (run.relayed == 0).then(|| "the node carried nothing".to_owned());
    let failures: Vec<String> = broken.chain(run.troubles).chain(idle).collect();
    record.finish(&args.common.output, &failures)
}

/// Both networks, the second with a node, with their clients and servers. Dropped in the order of
/// its fields.
struct Both {
    clients: [Clients; 2],
    keeper: Keeper,
    sites: [Testbed; 2],
    start: Instant,
}

fn play(args: &Args) -> Result<Run> {
    // Each connection takes two descriptors in each network.
    socket::raise_descriptor_limit()?;
    let sites = [Testbed::new(args)?, Testbed::new(args)?];
    // Before the clients: the node observes from the first connection on.
    let keeper = Keeper::start(sites[1].router(), args.binary.find()?, args.data_path)?;
    let start = Instant::now();
    let clients = |testbed| Clients::start(testbed, args.common.seed, args.connections, start);
    let clients = [clients(&sites[0])?, clients(&sites[1])?];
    let mut both = Both {
        clients,
        keeper,
        sites,
        start,
    };
    both.play(args)
}

impl Both {
    fn play(&mut self, args: &Args) -> Result<Run> {
        let (faults, inbox) = mpsc::channel();
        let (clients, start) = (&self.clients, self.start);
        let (keeper, sites) = (&mut self.keeper, &self.sites);
        let (dialled, done) = thread::scope(|scope| {
            let thread = scope.spawn(move || carry_out(&inbox, keeper, sites, start));
            let dialled = dial_all(args, clients, start, |event| {
                // The thread receives them until the sender is dropped.
                let _ = faults.send(event);
            });
            // Ends the thread when it has carried out what is queued.
            drop(faults);
            (dialled, threads::join(thread))
        });
        let (spans, mut troubles) = done;
        // Connections that are active after that count as hung.
        let _ = wait_until("end of the last connections", LAST, || {
            playing(clients) == 0
        });
        if dialled < args.connections {
            troubles.push(format!(
                "only {dialled} connections began in {} s: give a lower --rate or more --seconds",
                args.seconds
            ));
        }
        let relayed = self.keeper.opened()?;
        self.keeper.tear_down(self.sites[1].router())?;
        let [direct, node] = [0, 1].map(|index: usize| clients[index].lives());
        let pairs = (0..dialled).zip(direct.into_iter().zip(node));
        let pairs = pairs.map(|(number, (direct, node))| {
            verdict::pair(Plan::new(args.common.seed, number), direct, node, &spans)
        });
        Ok(Run {
            pairs: pairs.collect(),
            relayed,
            took: start.elapsed(),
            spans,
            troubles,
            log: self.keeper.log(),
        })
    }
}

fn playing(clients: &[Clients; 2]) -> usize {
    clients.iter().map(Clients::playing).max().unwrap_or(0)
}

/// Starts all connections, each in both networks, and faults between them. Returns the number of
/// connections.
fn dial_all(args: &Args, clients: &[Clients; 2], start: Instant, begin: impl Fn(Event)) -> u64 {
    let events = plan::events(args.path, args.common.seed, args.connections, args.rate);
    let mut events = events.into_iter().peekable();
    let mut reported = Instant::now();
    for number in 0..args.connections {
        // A cut link leaves connections hanging for seconds; more threads than this would slow down
        // both networks.
        while playing(clients) >= PLAYING_MAX && start.elapsed().as_secs() < args.seconds {
            thread::sleep(LOOK);
        }
        if start.elapsed().as_secs() >= args.seconds {
            return number;
        }
        let due = Duration::from_secs(1).mul_f64(number as f64 / f64::from(args.rate));
        thread::sleep(due.saturating_sub(start.elapsed()));
        while let Some(event) = events.next_if(|event| event.before <= number) {
            begin(event);
        }
        // Both networks get a connection at the same time, so that a fault hits the same ones.
        clients.iter().for_each(|clients| clients.dial(number));
        if reported.elapsed() >= PROGRESS {
            reported = Instant::now();
            let (seconds, busy) = (start.elapsed().as_secs(), playing(clients));
            eprintln!("router-churn: {seconds} s, {number} connections, {busy} open");
        }
    }
    args.connections
}

/// Carries out faults one after the other: records their times, and failures.
fn carry_out(
    inbox: &Receiver<Event>,
    keeper: &mut Keeper,
    sites: &[Testbed; 2],
    start: Instant,
) -> (Vec<Span>, Vec<String>) {
    let (mut spans, mut troubles) = (Vec::new(), Vec::new());
    for Event { fault, lasts, .. } in inbox {
        let from = start.elapsed();
        // The routers first: faults of the node have no counterpart without it.
        let begun = at_once(sites, |testbed| testbed.begin(fault));
        let begun = begun.and_then(|()| keeper.begin(sites[1].router(), fault));
        let applied = start.elapsed();
        thread::sleep(lasts);
        let lifting = start.elapsed();
        let ended = at_once(sites, |testbed| testbed.end(fault));
        let ended = ended.and_then(|()| keeper.end(sites[1].router(), fault));
        for error in [begun, ended].into_iter().filter_map(Result::err) {
            troubles.push(format!("{} at {from:.1?}: {error:#}", fault.name()));
        }
        let to = start.elapsed();
        eprintln!("router-churn: {from:.3?} to {to:.3?}: {}", fault.name());
        spans.push(Span {
            fault,
            from,
            applied,
            lifting,
            to,
        });
    }
    (spans, troubles)
}

/// Runs `work` in both networks, as simultaneously as possible.
fn at_once(sites: &[Testbed; 2], work: impl Fn(&Testbed) -> Result<()> + Sync) -> Result<()> {
    let done = threads::at_once(2, |site| work(&sites[site as usize]));
    done.into_iter().collect()
}
