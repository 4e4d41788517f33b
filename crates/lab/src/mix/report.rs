// SPDX-License-Identifier: Apache-2.0
//! The report of `mix`: samples, figures by router and subject, and failures. Pure, but for reading counters.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::Result;

use super::ends::Life;
use super::plan::{CLIENTS, Connection, SERVICES};
use super::testbed::{DELAYS, Router, Subject, Testbed};
use super::{Args, Course, Round};
use crate::chart::{Across, Chart, Curve};
use crate::names::Named;
use crate::record::Record;
use crate::stats::{mean, median};
use crate::stream::End;
use crate::target::{Bound, Target};

/// Bound on failures described individually, of each subject and round.
const DESCRIBED: usize = 20;

/// The end of the axis of charts, in ms: most connections are complete by then.
const SHOWN_MS: f64 = 600.0;

/// Figures of the table.
const KNOWN: &str = "to a known service";
const EARLY: &str = "answered early";
const FIRST_BYTE: &str = "median first byte";
const SAVED: &str = "mean first byte saved";
const SAVED_END: &str = "mean completion saved";
const OF_SOCKETS: &str = "of what sockets save";
const FAILURES: &str = "failures that none has not";

/// What a node has counted: quantity, and the counter of its status.
const COUNTERS: [(&str, &str); 8] = [
    ("answered by packets", "packet_taken"),
    ("carried by packets", "packet_opened"),
    ("relayed", "relays_opened"),
    ("forwarded to learn", "packet_learning"),
    ("unknown", "packet_unlearned"),
    ("long answers", "packet_long"),
    ("unknown way back", "packet_client"),
    ("down before", "packet_bad"),
];

/// A time of a connection: the quantity of its samples, and where it is.
type Time = (&'static str, fn(&Life) -> Option<Duration>);

const COMPLETION: &str = "completion";
const TIMES: [Time; 3] = [
    ("time to connect", |life| life.connected),
    ("first byte", |life| life.first_byte),
    (COMPLETION, |life| life.complete),
];

/// What the node of a network has counted since its start, in the order of [`COUNTERS`]; nothing without a
/// node.
#[derive(Clone, Debug, Default)]
pub(super) struct Counts(Vec<u64>);

impl Counts {
    pub(super) fn read(bed: &Testbed) -> Result<Self> {
        let counters = bed.node.iter().flat_map(|node| {
            let count = move |(_, name): (&str, &str)| node.counter(name);
            COUNTERS.into_iter().map(count)
        });
        counters.collect::<Result<_>>().map(Self)
    }
}

/// Adds parameters, samples, table, targets and charts to the record.
pub(super) fn fill(record: &mut Record, args: &Args, rounds: &[Round]) {
    record.parameter("connections", args.connections);
    record.parameter("seconds", args.seconds);
    record.parameter("repeats", args.repeats);
    record.parameter("clients", CLIENTS);
    record.parameter("services", SERVICES);
    let delays = DELAYS.map(ms);
    record.parameter("delays in ms, one way", delays.to_vec());
    for router in Router::ALL {
        let of = rounds.iter().filter(|round| round.router == *router);
        let of: Vec<&Round> = of.collect();
        for (index, subject) in Subject::ALL.iter().enumerate() {
            sample(record, *router, *subject, &of, index);
        }
        record.charts.push(chart(*router));
    }
    let figures = [
        KNOWN, EARLY, FIRST_BYTE, SAVED, SAVED_END, OF_SOCKETS, FAILURES,
    ];
    let counters = COUNTERS.map(|(quantity, _)| quantity);
    let rows = ["router", "subject"];
    record.table("Connections", |_| true, &rows, &figures);
    record.table("What nodes have counted", |_| true, &rows, &counters);
}

/// Adds the samples of one subject behind one router: `index` is that of its courses.
fn sample(record: &mut Record, router: Router, subject: Subject, of: &[&Round], index: usize) {
    let labels = [("router", router.name()), ("subject", subject.name())];
    for (quantity, time) in TIMES {
        let values = of.iter().flat_map(|round| times(round, index, time));
        record.sample(quantity, "ms", &labels, values.collect());
    }
    let rounds = of.iter().map(|round| figures(round, index));
    let rounds: Vec<Vec<Figure>> = rounds.collect();
    let first = rounds.first().into_iter().flatten();
    for (place, (quantity, unit, _)) in first.enumerate() {
        let values = rounds.iter().map(|figures| figures[place].2);
        record.sample(quantity, unit, &labels, values.collect());
    }
    if subject == Subject::None {
        return;
    }
    for (place, (quantity, _)) in COUNTERS.into_iter().enumerate() {
        let counts = of.iter().map(|round| &round.courses[index].counts.0);
        let values = counts.map(|counts| counts[place] as f64);
        record.sample(quantity, "", &labels, values.collect());
    }
    let failed: usize = of.iter().map(|round| failed(round, index).count()).sum();
    record.targets.push(Target::once(
        format!("{}, {}: {FAILURES}", router.name(), subject.name()),
        Some(failed as f64),
        Bound::AtMost(0.0),
        "",
    ));
}

/// The times of the connections that ended as planned with all subjects.
fn times(
    round: &Round,
    index: usize,
    time: fn(&Life) -> Option<Duration>,
) -> impl Iterator<Item = f64> {
    let numbers = 0..round.plan.len();
    let planned = numbers.filter(|number| {
        let mut lives = round.courses.iter().map(|course| &course.lives[*number]);
        lives.all(|life| life.end == End::Planned)
    });
    // Hundredths: a record has tens of thousands of them.
    let lives = planned.filter_map(move |number| time(&round.courses[index].lives[number]));
    lives.map(|time| (ms(time) * 100.0).round() / 100.0)
}

/// A figure: quantity, unit, value.
type Figure = (&'static str, &'static str, f64);

/// The figures of a subject in a round; the same ones in each.
fn figures(round: &Round, index: usize) -> Vec<Figure> {
    let course = &round.courses[index];
    let share = |count: usize| count as f64 / round.plan.len() as f64 * 100.0;
    let early = course.lives.iter().filter(|life| is_early(life));
    let first: Vec<f64> = times(round, index, |life| life.first_byte).collect();
    let mut figures = vec![
        (KNOWN, "%", share(known(&round.plan, &course.lives))),
        (EARLY, "%", share(early.count())),
        (FIRST_BYTE, "ms", median(&first).unwrap_or(f64::NAN)),
    ];
    if index == NONE {
        return figures;
    }
    let saved = saved(round, index, |life| life.first_byte);
    figures.push((SAVED, "ms", saved));
    let end = self::saved(round, index, |life| life.complete);
    figures.push((SAVED_END, "ms", end));
    let most = self::saved(round, SOCKETS, |life| life.first_byte);
    figures.push((OF_SOCKETS, "%", saved / most * 100.0));
    figures.push((FAILURES, "", failed(round, index).count() as f64));
    figures
}

/// The places of subjects in [`Subject::ALL`].
const NONE: usize = Subject::None as usize;
const SOCKETS: usize = Subject::Sockets as usize;

/// By how many ms connections reach a time sooner than without a node, on average.
fn saved(round: &Round, index: usize, time: fn(&Life) -> Option<Duration>) -> f64 {
    let [without, with] = [NONE, index].map(|index| times(round, index, time));
    let all: Vec<f64> = without
        .zip(with)
        .map(|(without, with)| without - with)
        .collect();
    mean(&all).unwrap_or(f64::NAN)
}

/// How many connections can gain: an earlier one to the same service had ended as planned when they began,
/// and so did they.
fn known(plan: &[Connection], lives: &[Life]) -> usize {
    let planned = || {
        let all = plan.iter().zip(lives);
        all.filter(|(_, life)| life.end == End::Planned)
    };
    let mut since = HashMap::<u16, Duration>::new();
    for (connection, life) in planned() {
        let end = connection.at + life.complete.unwrap_or(Duration::MAX / 2);
        let first = since.entry(connection.service.rank).or_insert(end);
        *first = end.min(*first);
    }
    planned()
        .filter(|(connection, _)| since[&connection.service.rank] <= connection.at)
        .count()
}

/// Whether it was connected sooner than the server can answer.
fn is_early(life: &Life) -> bool {
    // Halfway between the round trip to the router and that to the server.
    let least = DELAYS[0] * 2 + DELAYS[1];
    life.connected.is_some_and(|connected| connected < least)
}

/// The connections that did not end as planned, although they did without a node.
fn failed(round: &Round, index: usize) -> impl Iterator<Item = (&Connection, End)> {
    let Course { lives, .. } = &round.courses[index];
    let without = &round.courses[NONE].lives;
    let all = round.plan.iter().zip(lives.iter().zip(without));
    all.filter(|(_, (with, without))| without.end == End::Planned && with.end != End::Planned)
        .map(|(connection, (with, _))| (connection, with.end))
}

/// What breaks the experiment, a line each.
pub(super) fn failures(rounds: &[Round]) -> Vec<String> {
    let mut lines = Vec::new();
    for round in rounds {
        for (index, subject) in Subject::ALL
            .iter()
            .enumerate()
            .filter(|(index, _)| *index != NONE)
        {
            let place = format!("{}, {}", round.router.name(), subject.name());
            lines.extend(failed(round, index).take(DESCRIBED).map(|(connection, end)| {
                let (source, target) = (connection.source(), connection.service.target());
                let Connection { number, at, up, down, .. } = connection;
                format!(
                    "{place}: connection {number} at {at:.3?} from {source} to {target}, {up} bytes up, \
                     {down} down: {}",
                    end.name()
                )
            }));
            // Otherwise the networks would be alike, and the comparison would show nothing.
            if !round.courses[index].lives.iter().any(is_early) {
                lines.push(format!("{place}: no connection was answered early"));
            }
        }
    }
    lines
}

fn chart(router: Router) -> Chart {
    let labels = |subject: &Subject| [("router", router.name()), ("subject", subject.name())];
    let curve = |subject: &Subject| Curve::new(subject.name(), COMPLETION, &labels(subject));
    Chart {
        file: router.name().to_owned(),
        title: format!("Connections of a web-like mix, {} router", router.name()),
        subtitle: format!(
            "{} ms one way from clients to the router, {} ms on to servers",
            ms(DELAYS[0]),
            ms(DELAYS[1])
        ),
        across_label: "time to completion, ms".to_owned(),
        value_label: "connections, %".to_owned(),
        across: Across::Share(Some(SHOWN_MS)),
        curves: Subject::ALL.iter().map(curve).collect(),
        note: "none: forwarding; default: a node; sockets: a node that relays all, the first to a service too."
            .to_owned(),
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::mix::plan::connections;

    const fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn life(connected: u64) -> Life {
        Life {
            connected: Some(at(connected)),
            first_byte: Some(at(connected + 80)),
            complete: Some(at(connected + 90)),
            end: End::Planned,
        }
    }

    fn round(changed: Life) -> Round {
        let plan = connections(1, 10, Duration::from_secs(1000));
        let course = |connected, count| Course {
            lives: vec![life(connected); plan.len()],
            counts: Counts(vec![7; count]),
        };
        let mut courses = vec![course(80, 0), course(80, 8), course(20, 8)];
        courses[1].lives[9] = changed;
        Round {
            router: Router::Plain,
            plan: Arc::new(plan),
            courses,
        }
    }

    fn value(figures: &[Figure], quantity: &str) -> f64 {
        figures
            .iter()
            .find(|figure| figure.0 == quantity)
            .unwrap()
            .2
    }

    #[test]
    fn one_of_ten_is_early() {
        let round = round(life(20));
        let [default, sockets] = [1, 2].map(|index| figures(&round, index));
        assert_eq!(value(&default, EARLY), 10.0);
        assert_eq!(value(&default, SAVED), 6.0);
        assert_eq!(value(&default, OF_SOCKETS), 10.0);
        assert_eq!(value(&sockets, SAVED), 60.0);
        assert_eq!(value(&sockets, FIRST_BYTE), 100.0);
        assert_eq!(failures(&[round]), Vec::<String>::new());
    }

    #[test]
    fn failures_with_a_node_only() {
        let hung = Life {
            end: End::Hung,
            ..life(20)
        };
        let mut round = round(hung);
        assert_eq!(value(&figures(&round, 1), FAILURES), 1.0);
        assert_eq!(value(&figures(&round, 1), SAVED), 0.0, "of all others");
        assert_eq!(failures(std::slice::from_ref(&round)).len(), 1);
        let args = <Arguments as clap::Parser>::parse_from(["lab"]).args;
        let mut record = Record::default();
        fill(&mut record, &args, std::slice::from_ref(&round));
        let verdicts = record.targets.iter().map(Target::is_met);
        let of_plain: Vec<bool> = verdicts.take(2).collect();
        assert_eq!(of_plain, [false, true]);
        round.courses[0].lives[9].end = End::Hung;
        assert_eq!(failed(&round, 1).count(), 0, "it hangs without a node too");
        round.courses[1].lives[9] = life(80);
        assert_eq!(failures(&[round]).len(), 1, "nothing is early");
    }

    #[derive(Debug, clap::Parser)]
    struct Arguments {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn known_once_one_has_ended() {
        let mut plan = connections(1, 4, Duration::from_secs(1));
        let service = plan[0].service;
        for (connection, begins) in plan.iter_mut().zip([0, 100, 200, 300]) {
            (connection.service, connection.at) = (service, at(begins));
        }
        let mut lives = vec![life(80); 4];
        assert_eq!(known(&plan, &lives), 2, "the first ends at 170 ms");
        lives[0].end = End::Reset;
        assert_eq!(known(&plan, &lives), 1, "the second at 270 ms");
        lives[3].end = End::Reset;
        assert_eq!(known(&plan, &lives), 0);
    }
}
