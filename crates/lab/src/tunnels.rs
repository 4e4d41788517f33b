// SPDX-License-Identifier: Apache-2.0
//! `tunnels`: transfers between two nodes with a long lossy link between them, by what carries them
//! over it.
//!
//! Client and server are next to the nodes. All subjects are built at once for each rate and loss,
//! and take turns. A first transfer, which is not counted, lets each learn the path. Every byte is
//! checked. *Wire* is what the link was given in both directions, headers, ACKs and retransmissions
//! included, per byte of content.

use anyhow::{Context, Result};

use crate::chain::Transport;
use crate::chart::{Across, Chart, Curve};
use crate::node::Binary;
use crate::record::{Common, Record};

mod bed;
mod changes;
mod loads;
mod targets;
mod udt;

use bed::Bed;
use loads::{LOADS, Load, Outcome};

const TIME: &str = "completion time";
const WIRE: &str = "wire";
const DROPS: &str = "drops";
const CPU: &str = "CPU";

/// What carries transfers from node to node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Subject {
    /// The server's connection, with cubic
    DirectCubic,
    /// The server's connection, with BBR
    DirectBbr,
    /// Warm hops with cubic
    Cubic,
    /// Warm hops with BBR
    Bbr,
    /// Warm hops with the product's own congestion control
    Posthaste,
    /// Streams of QUIC
    Quic,
    /// Streams of QUIC while warm hops lose much
    Auto,
    /// UDT proxies, as published
    Udt,
}

impl Subject {
    const ALL: [Self; 8] = [
        Self::DirectCubic,
        Self::DirectBbr,
        Self::Cubic,
        Self::Bbr,
        Self::Posthaste,
        Self::Quic,
        Self::Auto,
        Self::Udt,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::DirectCubic => "direct, cubic",
            Self::DirectBbr => "direct, BBR",
            Self::Cubic => "hops, cubic",
            Self::Bbr => "hops, BBR",
            Self::Posthaste => "hops, posthaste",
            Self::Quic => "hops, QUIC",
            Self::Auto => "hops, auto",
            Self::Udt => "UDT proxies",
        }
    }

    /// What carries flows over the long link, between nodes.
    fn transport(self) -> Transport {
        match self {
            Self::Quic => Transport::Quic,
            Self::Auto => Transport::Auto,
            Self::Posthaste => Transport::Tcp("posthaste".to_owned()),
            Self::Bbr | Self::DirectBbr => Transport::Tcp("bbr".to_owned()),
            Self::Cubic | Self::DirectCubic | Self::Udt => Transport::Tcp("cubic".to_owned()),
        }
    }

    /// The congestion control of client and server: next to the nodes it has nothing to do.
    fn congestion_of_ends(self) -> &'static str {
        if self == Self::DirectBbr {
            "bbr"
        } else {
            "cubic"
        }
    }

    /// Whether it has the targets.
    fn is_own(self) -> bool {
        matches!(self, Self::Posthaste | Self::Quic | Self::Auto)
    }

    fn is_direct(self) -> bool {
        matches!(self, Self::DirectCubic | Self::DirectBbr)
    }

    fn has_nodes(self) -> bool {
        !self.is_direct() && self != Self::Udt
    }
}

/// Arguments of `posthaste-lab tunnels`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    binary: Binary,
    /// Rates of the link in Mbit/s
    #[arg(long, value_delimiter = ',', default_values_t = [100, 400], value_parser = clap::value_parser!(u32).range(1..=450))]
    rate: Vec<u32>,
    /// Losses of the link, each way, in percent
    #[arg(long, value_delimiter = ',', default_values_t = [0.0, 0.1, 1.0, 5.0])]
    loss: Vec<f64>,
    /// Most by which three of ten packets are late, each way, in milliseconds
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1000))]
    late: u32,
    /// Queue of the link, in percent of its rate times its round-trip time
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    queue: u32,
    /// What carries the transfers; everything by default
    #[arg(long, value_delimiter = ',', value_enum)]
    subjects: Vec<Subject>,
    /// Loads by their names; everything by default
    #[arg(long, value_delimiter = ';')]
    loads: Vec<String>,
    /// Rounds, in each of which every subject has every load
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    repeats: u32,
    /// Leave out fairness and changes of the rate
    #[arg(long)]
    only_loads: bool,
    #[command(flatten)]
    common: Common,
}

/// A link that the transfers cross.
#[derive(Clone, Copy, Debug)]
struct Path {
    /// Mbit/s
    rate: u32,
    /// Percent
    loss: f64,
}

impl Path {
    fn labels(self) -> [(&'static str, String); 2] {
        [
            ("rate", format!("{} Mbit/s", self.rate)),
            ("loss", format!("{} %", self.loss)),
        ]
    }
}

/// Runs the experiment, prints its tables, writes record and chart. Fails when a goal is missed.
pub fn run(args: &Args) -> Result<()> {
    let subjects = match args.subjects.as_slice() {
        [] => Subject::ALL.to_vec(),
        some => some.to_vec(),
    };
    let loads = loads::named(&args.loads)?;
    let mut record = Record::start("tunnels", args.common.seed);
    record.parameter("node", args.binary.version()?);
    record.parameter("repeats", args.repeats);
    record.parameter("late, ms", args.late);
    for rate in args.rate.iter().copied() {
        for loss in args.loss.iter().copied() {
            let path = Path { rate, loss };
            measure(args, path, &subjects, &loads, &mut record)
                .with_context(|| format!("{rate} Mbit/s, loss {loss} %"))?;
        }
    }
    if !args.only_loads {
        changes::measure(args, &subjects, &mut record)?;
    }
    finish(&mut record, args, &loads);
    record.finish(&args.common.output, &[])
}

/// All subjects with all loads over one kind of link, in turns.
fn measure(
    args: &Args,
    path: Path,
    subjects: &[Subject],
    loads: &[Load],
    record: &mut Record,
) -> Result<()> {
    let beds = subjects
        .iter()
        .map(|subject| Bed::build(args, *subject, path));
    let beds: Vec<Bed> = beds.collect::<Result<_>>()?;
    for bed in &beds {
        bed.warm_up()?;
    }
    let mut outcomes = vec![Vec::new(); beds.len() * loads.len()];
    for round in 0..args.repeats {
        let (rate, loss) = (path.rate, path.loss);
        eprintln!(
            "tunnels: {rate} Mbit/s, loss {loss} %, round {} of {}",
            round + 1,
            args.repeats
        );
        for (number, load) in loads.iter().enumerate() {
            for (place, bed) in beds.iter().enumerate() {
                let outcome = bed
                    .run(*load)
                    .with_context(|| format!("{}, {}", bed.subject.name(), load.name))?;
                outcomes[place * loads.len() + number].push(outcome);
            }
        }
    }
    let mut cells = outcomes.chunks(loads.len()).zip(&beds);
    cells.try_for_each(|(outcomes, bed)| {
        loads.iter().zip(outcomes).try_for_each(|(load, outcomes)| {
            enter(record, path, bed.subject, *load, outcomes);
            Ok(())
        })
    })
}

/// Enters what a subject did with a load, and the targets for it.
fn enter(record: &mut Record, path: Path, subject: Subject, load: Load, outcomes: &[Outcome]) {
    let path_labels = path.labels();
    let mut labels: Vec<(&str, &str)> = path_labels
        .iter()
        .map(|(key, value)| (*key, value.as_str()))
        .collect();
    labels.extend([("load", load.name), ("subject", subject.name())]);
    let values = |of: fn(&Outcome) -> f64| outcomes.iter().map(of).collect::<Vec<f64>>();
    type Figure = (&'static str, &'static str, fn(&Outcome) -> f64);
    let figures: [Figure; 4] = [
        (TIME, "s", |one| one.seconds),
        (WIRE, "", |one| one.wire),
        (DROPS, "packets", |one| one.drops),
        (CPU, "s/GB", |one| one.cpu),
    ];
    for (quantity, unit, of) in figures {
        if quantity == CPU && subject.is_direct() {
            continue;
        }
        record.sample(quantity, unit, &labels, values(of));
        if quantity == TIME {
            record.model(load.ideal(path));
        }
    }
    if subject.is_own() {
        targets::enter(record, (path, subject), load, outcomes);
    }
}

fn finish(record: &mut Record, args: &Args, loads: &[Load]) {
    for load in loads {
        let name = load.name;
        record.table(
            name,
            |one| one.labels.get("load").is_some_and(|load| load == name),
            &["rate", "loss", "subject"],
            &[TIME, WIRE, DROPS, CPU],
        );
    }
    record.charts.push(Chart {
        file: String::new(),
        title: "A transfer of 5 MB between two nodes".to_owned(),
        subtitle: format!(
            "round trip 100 ms, queue of {} % of the bandwidth-delay product, {} repeats",
            args.queue, args.repeats
        ),
        across_label: "rate and loss of the link".to_owned(),
        value_label: "completion time, s".to_owned(),
        across: Across::Rows(["rate", "loss"].map(str::to_owned).to_vec()),
        curves: Subject::ALL
            .iter()
            .map(|one| {
                Curve::new(
                    one.name(),
                    TIME,
                    &[("load", LOADS[1].name), ("subject", one.name())],
                )
            })
            .collect(),
        note: "Model: one round trip, and the time that the link takes for content and headers."
            .to_owned(),
    });
}
