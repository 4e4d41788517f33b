// SPDX-License-Identifier: Apache-2.0
//! `senders`: what an answer of the node before that of the server means for those who send long.
//!
//! A client times its round trip by the handshake. Where the node answers packet by packet, that is the
//! way to the node alone, and the data go all the way: a congestion control that bounds by it what is in
//! flight (BBR) is slow until it has measured again.
//!
//! Uploads and downloads over one path, with a node at one of four places on it: *directly*, where it is a plain
//! router; by *packets* (`data_path = "packet"`); and by *default*, as users have it. Each transfer has a service of its
//! own, a port that the node has learned from short connections before. So the *first* transfer is answered
//! early if the node ever does that, and a *second* one shows what it has learned from the first. The
//! transfers of all ways are shuffled.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::chart::{Across, Chart, Curve};
use crate::ends::{Job, Servers};
use crate::link::Link;
use crate::network::{Family, Network};
use crate::node::{Binary, Node};
use crate::record::{Common, Record};
use crate::rng::shuffled;
use crate::stats::Spread;
use crate::target::{Bound, Target};

/// From the client to the node, of the whole path, in ms one way.
const PLACES: [u64; 4] = [1, 10, 20, 39];
const PATH: u64 = 40;
const RATE: u64 = 100_000_000;
/// What is in flight on the whole path, in bytes.
const QUEUE: u64 = RATE / 8 * 2 * PATH / 1000;
const CONGESTIONS: [&str; 3] = ["cubic", "reno", "bbr"];
const WAYS: [&str; 2] = ["down", "up"];
/// Subjects with the configurations of their nodes.
const SUBJECTS: [(&str, Option<&str>); 3] = [
    ("directly", None),
    (
        "packets",
        Some("[defaults]\nobserve = false\ndata_path = \"packet\"\n"),
    ),
    ("default", Some("")),
];
const TURNS: [&str; 2] = ["first", "second"];
const TAKEN: &str = "answered early";
/// Bytes of a connection from which the node learns a service, and how many there are at the most.
const SHORT: u64 = 1000;
const SHORT_MAX: u32 = 40;
const SHORT_PAUSE: Duration = Duration::from_millis(50);
/// The first of the ports of services.
const PORTS: u16 = 10_000;
/// The longest that a transfer takes beside the same one directly: what a node must not exceed that
/// answers before the server.
const GOAL: f64 = 1.1;
const FAILURES_MAX: usize = 5;

/// Arguments of `posthaste-lab senders`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    binary: Binary,
    /// Sizes in KB
    #[arg(long, value_delimiter = ',', default_values_t = [100, 1000, 6000])]
    sizes: Vec<u64>,
    /// Transfers of each kind
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    repeats: u32,
    #[command(flatten)]
    common: Common,
}

/// One kind of transfer over one network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Case {
    /// Indices of [`CONGESTIONS`], [`WAYS`] and [`SUBJECTS`].
    congestion: usize,
    way: usize,
    subject: usize,
    kilobytes: u64,
}

impl Case {
    fn describe(self) -> String {
        let Self { kilobytes, .. } = self;
        format!(
            "{kilobytes} KB {}, {}, {}",
            WAYS[self.way], CONGESTIONS[self.congestion], SUBJECTS[self.subject].0
        )
    }
}

/// The times of the first and the second transfer of a service in ms, round by round, and of which the node
/// answered the client.
#[derive(Debug, Default)]
struct Times([(Vec<f64>, Vec<f64>); 2]);

/// A path with a router on it, which may be a node.
struct Bed {
    network: Network,
    node: Option<Node>,
}

impl Bed {
    fn build(args: &Args, place: u64, config: Option<&str>) -> Result<Self> {
        let leg = |milliseconds| {
            Link::delay(Duration::from_millis(milliseconds))
                .rate(RATE)
                .queue(QUEUE)
        };
        let network = Network::line([place, PATH - place].map(leg))
            .seed(args.common.seed)
            .build()?;
        let start = |config| {
            let builder = Node::builder(network.node(0), args.binary.find()?);
            builder.config(config).start()
        };
        let node = config.map(start).transpose()?;
        Ok(Self { network, node })
    }

    /// How many clients the node has answered by packets.
    fn taken(&self) -> Result<u64> {
        let node = self.node.as_ref();
        node.map_or(Ok(0), |node| node.counter("packet_taken"))
    }

    /// One transfer: its time in ms, and whether the node answered.
    fn transfer(&self, servers: &Servers, job: &Job) -> Result<(f64, bool)> {
        let (before, begun) = (self.taken()?, Instant::now());
        let (_, (_, end)) = servers.transfer(self.network.client(), job)?;
        let time = begun.elapsed().as_secs_f64() * 1e3;
        end?;
        Ok((time, self.taken()? > before))
    }

    /// Makes the node know a service: it answers a short connection.
    fn learn(&self, servers: &Servers, job: Job) -> Result<()> {
        let short = Job {
            uploads: false,
            bytes: SHORT,
            ..job
        };
        for _ in 0..SHORT_MAX {
            let (_, answered) = self.transfer(servers, &short)?;
            if answered || self.node.is_none() {
                return Ok(());
            }
            std::thread::sleep(SHORT_PAUSE);
        }
        anyhow::bail!("the node answers no short connection")
    }

    /// Both transfers of a service.
    fn play(&self, case: Case, port: u16, times: &mut Times) -> Result<()> {
        let congestion = CONGESTIONS[case.congestion];
        let servers = Servers::start(self.network.server(), &[(port, congestion)])?;
        let job = Job {
            target: SocketAddr::new(self.network.server_address(Family::V4), port),
            congestion,
            uploads: case.way == 1,
            bytes: case.kilobytes * 1000,
            is_paced: false,
        };
        self.learn(&servers, job)?;
        for (values, answers) in &mut times.0 {
            let (time, answered) = self.transfer(&servers, &job)?;
            values.push(time);
            answers.push(if answered { 100.0 } else { 0.0 });
        }
        Ok(())
    }
}

/// Runs the experiment, prints its table, writes record and chart. Fails when a goal is missed.
pub fn run(args: &Args) -> Result<()> {
    let mut record = Record::start("senders", args.common.seed);
    record.parameter("node", args.binary.version()?);
    record.parameter("path in ms, one way", PATH);
    record.parameter("rate in Mbit/s", RATE / 1_000_000);
    record.parameter("queue in bytes", QUEUE);
    record.parameter("repeats", args.repeats);
    let mut worst = Worst::new();
    for place in PLACES {
        let (times, failures) = measure(args, place).with_context(|| format!("{place} ms"))?;
        record.remarks.extend(failures);
        let place = format!("{place} + {} ms", PATH - place);
        enter(&mut record, &place, &times, &mut worst);
    }
    finish(&mut record, &worst, args.sizes.iter().max());
    record.finish(&args.common.output, &[])
}

/// All transfers with the node at one place.
fn measure(args: &Args, place: u64) -> Result<(BTreeMap<Case, Times>, Vec<String>)> {
    let beds = SUBJECTS.map(|(_, config)| Bed::build(args, place, config));
    let beds = beds.into_iter().collect::<Result<Vec<_>>>()?;
    let (cases, next) = (cases(&args.sizes), Cell::new(PORTS));
    let (mut times, mut failures) = (BTreeMap::<Case, Times>::new(), Vec::new());
    for round in 0..args.repeats {
        eprintln!(
            "senders: {place} ms, repeat {} of {}",
            round + 1,
            args.repeats
        );
        for case in shuffled(&cases, args.common.seed, round) {
            let port = next.replace(next.get() + 1);
            let played = beds[case.subject].play(case, port, times.entry(case).or_default());
            if let Err(error) = played {
                let failure = format!("{place} ms, {}: {error:#}", case.describe());
                eprintln!("senders: {failure}");
                failures.push(failure);
            }
            ensure!(
                failures.len() <= FAILURES_MAX,
                "more than {FAILURES_MAX} transfers failed"
            );
        }
    }
    Ok((times, failures))
}

fn cases(sizes: &[u64]) -> Vec<Case> {
    let mut cases = Vec::new();
    for congestion in 0..CONGESTIONS.len() {
        for way in 0..WAYS.len() {
            for subject in 0..SUBJECTS.len() {
                cases.extend(sizes.iter().map(|&kilobytes| Case {
                    congestion,
                    way,
                    subject,
                    kilobytes,
                }));
            }
        }
    }
    cases
}

/// The name of a way to carry transfers, in tables and legends.
fn name(subject: usize, turn: usize) -> String {
    match subject {
        0 => SUBJECTS[0].0.to_owned(),
        _ => format!("{}, {}", SUBJECTS[subject].0, TURNS[turn]),
    }
}

/// The longest times beside those directly, over places and sizes: by direction, congestion control, subject and
/// turn.
type Worst = BTreeMap<[usize; 4], f64>;

fn enter(record: &mut Record, place: &str, times: &BTreeMap<Case, Times>, worst: &mut Worst) {
    for (case, Times(turns)) in times {
        let size = case.kilobytes.to_string();
        let (congestion, way) = (CONGESTIONS[case.congestion], WAYS[case.way]);
        let labels = [
            ("way", way),
            ("congestion", congestion),
            ("place", place),
            ("KB", &size),
        ];
        let direct = Case {
            subject: 0,
            ..*case
        };
        let directly = times.get(&direct).map_or(&[][..], |times| &times.0[0].0);
        for (turn, (values, answers)) in turns.iter().enumerate() {
            // Directly both are the same.
            if values.is_empty() || case.subject == 0 && turn > 0 {
                continue;
            }
            record.sample(&name(case.subject, turn), "ms", &labels, values.clone());
            if case.subject == 0 {
                continue;
            }
            let of = [
                ("subject", SUBJECTS[case.subject].0),
                ("transfer", TURNS[turn]),
            ];
            let all = [&labels[..], &of].concat();
            record.sample(TAKEN, "%", &all, answers.clone());
            if let Some(ratio) = Spread::of_ratio(values, directly) {
                let longest = worst.entry([case.way, case.congestion, case.subject, turn]);
                let longest = longest.or_insert(ratio.median);
                *longest = longest.max(ratio.median);
            }
        }
    }
}

fn finish(record: &mut Record, worst: &Worst, largest: Option<&u64>) {
    let names: Vec<String> = (0..SUBJECTS.len())
        .flat_map(|subject| (0..TURNS.len()).map(move |turn| name(subject, turn)))
        .collect();
    let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
    names.dedup();
    let rows = ["way", "congestion", "place", "KB"];
    record.table("Times", |one| one.unit == "ms", &rows, &names);
    for ([way, congestion, subject, turn], longest) in worst {
        record.targets.push(Target::once(
            format!(
                "{} {}, {}: the longest beside directly",
                CONGESTIONS[*congestion],
                WAYS[*way],
                name(*subject, *turn)
            ),
            Some(*longest),
            Bound::AtMost(GOAL),
            "",
        ));
    }
    let size = largest.copied().unwrap_or_default().to_string();
    let labels = [("way", "up"), ("KB", size.as_str())];
    let curves = names.iter().map(|name| Curve::new(*name, name, &labels));
    record.charts.push(Chart {
        file: String::new(),
        title: format!("Uploads of {size} KB"),
        subtitle: format!(
            "{PATH} ms one way, {} Mbit/s, a node at four places",
            RATE / 1_000_000
        ),
        across_label: "congestion control of the client, way from it to the node and on".to_owned(),
        value_label: "ms to completion".to_owned(),
        across: Across::Rows(["congestion", "place"].map(str::to_owned).to_vec()),
        curves: curves.collect(),
        note: "The first and the second upload to a service that the node knows from short connections."
            .to_owned(),
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(first: f64, second: f64) -> Times {
        Times([first, second].map(|time| (vec![time; 3], vec![100.0; 3])))
    }

    #[test]
    fn longest_beside_directly() {
        let case = |subject, kilobytes| Case {
            congestion: 2,
            way: 1,
            subject,
            kilobytes,
        };
        let mut record = Record::default();
        let mut worst = Worst::new();
        let measured = [
            (case(0, 100), times(400.0, 900.0)),
            (case(1, 100), times(380.0, 400.0)),
            (case(0, 6000), times(1000.0, 1000.0)),
            (case(1, 6000), times(9000.0, 1050.0)),
        ];
        enter(&mut record, "10 + 30 ms", &measured.into(), &mut worst);
        assert_eq!(worst[&[1, 2, 1, 0]], 9.0);
        assert_eq!(worst[&[1, 2, 1, 1]], 1.05);
        finish(&mut record, &worst, Some(&6000));
        let verdicts = record.targets.iter().map(Target::is_met);
        assert_eq!(verdicts.collect::<Vec<_>>(), [false, true]);
        assert_eq!(record.tables[0].rows.len(), 2);
        let text = record.markdown();
        assert!(text.contains("bbr up, packets, first"), "{text}");
    }

    #[test]
    fn every_kind_once() {
        let all = cases(&[100, 6000]);
        let mut kinds = all.clone();
        kinds.sort_unstable();
        kinds.dedup();
        assert_eq!((all.len(), kinds.len()), (36, 36));
    }
}
