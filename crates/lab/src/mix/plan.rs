// SPDX-License-Identifier: Apache-2.0
//! The plan of all connections. Pure: everything follows from the seed, so that all subjects get the same
//! connections at the same times.
//!
//! A visit is of a client to a service, both by Zipf's law, and has some connections one after the other. Visits
//! are a Poisson process. Answers have the sizes of files on web servers ([`sizes`]).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use crate::network::{Family, client_address};
use crate::rng::{Rng, scramble};
use crate::sizes;

/// Clients, each with an address of either family.
pub(super) const CLIENTS: u8 = 20;
/// Services, each with an address of its own of one of the families.
pub(super) const SERVICES: u16 = 4000;
/// Networks (a /24, or a /64) of the services: the most popular ones have one each, and share it with others.
const NETWORKS: u16 = 1500;

/// Ports of services that answer, of those that refuse, and of those whose host drops everything.
pub(super) const PORTS: [u16; 2] = [443, 80];
const REFUSED_PORT: u16 = 444;
pub(super) const SILENT_PORT: u16 = 445;

/// So many of the most popular services answer at once: a popular service is not down for long.
const RELIABLE: u16 = 20;
/// Of the others, in percent: those that drop everything, refuse, and are slow to answer.
const SILENT_PERCENT: u64 = 2;
const REFUSED_PERCENT: u64 = 2;
const SLOW_PERCENT: u64 = 5;
/// The longest that a slow service takes, in ms.
const SLOW_MS_MAX: u64 = 1500;
/// One service in so many takes large uploads, which one in so many of its connections is.
const STORAGE: u64 = 20;
const UPLOADS: u64 = 5;

/// The mean number of connections of a visit, the most, and the mean time between two, in seconds.
const VISIT_MEAN: f64 = 3.0;
const VISIT_MAX: u64 = 12;
const GAP_MEAN: f64 = 0.5;

/// How a service behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Kind {
    /// It answers at once, or soon.
    Answers { slow: bool },
    /// It refuses by a reset.
    Refuses,
    /// It is down: nothing comes back.
    Silent,
}

/// A service by its rank, from 0: the most popular one is first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Service {
    pub(super) rank: u16,
    pub(super) kind: Kind,
    /// Whether some of its clients send much.
    stores: bool,
    family: Family,
    port: u16,
}

impl Service {
    fn new(seed: u64, rank: u16) -> Self {
        let mut random = Rng::new(scramble(seed ^ 1) ^ u64::from(rank));
        let (chance, family, port) = (random.below(100), random.below(2), random.below(5));
        let kind = match chance {
            _ if rank < RELIABLE => Kind::Answers { slow: false },
            _ if chance < SILENT_PERCENT => Kind::Silent,
            _ if chance < SILENT_PERCENT + REFUSED_PERCENT => Kind::Refuses,
            _ => Kind::Answers {
                slow: chance < SILENT_PERCENT + REFUSED_PERCENT + SLOW_PERCENT,
            },
        };
        Self {
            rank,
            kind,
            stores: random.below(STORAGE) == 0,
            family: Family::ALL[usize::from(family == 0)],
            port: match kind {
                // Most of the web is encrypted.
                Kind::Answers { .. } => PORTS[usize::from(port == 0)],
                Kind::Refuses => REFUSED_PORT,
                Kind::Silent => SILENT_PORT,
            },
        }
    }

    pub(super) fn target(self) -> SocketAddr {
        let (network, host) = (self.rank % NETWORKS, 1 + self.rank / NETWORKS);
        let address: IpAddr = match self.family {
            // Within 10.128.0.0/9.
            Family::V4 => {
                let [high, low] = network.to_be_bytes();
                let [_, host] = host.to_be_bytes();
                Ipv4Addr::new(10, 128 + high, low, host).into()
            }
            Family::V6 => Ipv6Addr::new(0xfd00, 0x200, 0, network, 0, 0, 0, host).into(),
        };
        SocketAddr::new(address, self.port)
    }
}

/// One connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Connection {
    /// Its place in the plan.
    pub(super) number: u64,
    /// When it begins, since the start.
    pub(super) at: Duration,
    client: u8,
    pub(super) service: Service,
    /// Bytes from client to server, and back.
    pub(super) up: u64,
    pub(super) down: u64,
    /// How long the service takes to answer.
    pub(super) pause: Duration,
}

impl Connection {
    pub(super) fn source(&self) -> IpAddr {
        client_address(self.service.family, self.client)
    }

    /// Offsets in the pattern at which both directions begin.
    pub(super) fn offsets(&self) -> (u64, u64) {
        let number = 2 * self.number;
        (scramble(number) >> 8, scramble(number + 1) >> 8)
    }

    fn new(random: &mut Rng, at: Duration, client: u8, service: Service) -> Self {
        let is_slow = service.kind == Kind::Answers { slow: true };
        let up = match service.stores && random.below(UPLOADS) == 0 {
            true => between(random, 100_000, 2_000_000),
            false => between(random, 200, 10_000),
        };
        Self {
            number: 0,
            at,
            client,
            service,
            up,
            // Half of a step off the ends of the range, which have no size.
            down: sizes::web_like_at(random.uniform().clamp(1e-9, 1.0 - 1e-9)),
            pause: match is_slow {
                true => Duration::from_millis(100 + random.below(SLOW_MS_MAX - 100)),
                false => Duration::ZERO,
            },
        }
    }
}

/// A number of bytes from `least` to `most`, each order of magnitude as likely as another.
fn between(random: &mut Rng, least: u64, most: u64) -> u64 {
    let ratio = most as f64 / least as f64;
    let bytes = least as f64 * ratio.powf(random.uniform());
    format!("{bytes:.0}").parse().unwrap_or(least)
}

/// All connections of a run, in the order of their beginnings.
pub(super) fn connections(seed: u64, count: usize, within: Duration) -> Vec<Connection> {
    let mut random = Rng::new(seed);
    let (clients, services) = (Zipf::new(CLIENTS.into()), Zipf::new(SERVICES));
    let mut plan = Vec::with_capacity(count);
    while plan.len() < count {
        let client = 1 + u8::try_from(clients.draw(&mut random)).unwrap_or(0);
        let service = Service::new(seed, services.draw(&mut random));
        // Of a Poisson process with a known number of events each is anywhere with the same probability.
        let mut at = within.mul_f64(random.uniform());
        for _ in 0..visit_length(&mut random) {
            plan.push(Connection::new(&mut random, at, client, service));
            at += Duration::from_secs_f64(exponential(&mut random, GAP_MEAN));
            if at >= within {
                break;
            }
        }
    }
    plan.truncate(count);
    plan.sort_by_key(|connection| connection.at);
    for (number, connection) in (0..).zip(&mut plan) {
        connection.number = number;
    }
    plan
}

/// The number of connections of a visit: each may be the last with the same probability.
fn visit_length(random: &mut Rng) -> u64 {
    let is_last = |random: &mut Rng| random.uniform() < 1.0 / VISIT_MEAN;
    (1..VISIT_MAX)
        .find(|_| is_last(random))
        .unwrap_or(VISIT_MAX)
}

fn exponential(random: &mut Rng, mean: f64) -> f64 {
    -mean * (1.0 - random.uniform()).ln()
}

/// Ranks whose probability is inversely proportional to them, counted from 1.
struct Zipf {
    /// The sums of the weights up to each rank.
    sums: Vec<f64>,
}

impl Zipf {
    fn new(count: u16) -> Self {
        let sum = |sum: &mut f64, rank: u16| {
            *sum += 1.0 / f64::from(rank);
            Some(*sum)
        };
        Self {
            sums: (1..=count).scan(0.0, sum).collect(),
        }
    }

    /// A rank, from 0.
    fn draw(&self, random: &mut Rng) -> u16 {
        let all = self.sums.last().copied().unwrap_or_default();
        let drawn = random.uniform() * all;
        let rank = self.sums.partition_point(|sum| *sum <= drawn);
        u16::try_from(rank).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use super::*;

    const WITHIN: Duration = Duration::from_secs(180);

    fn plan() -> Vec<Connection> {
        connections(1, 20_000, WITHIN)
    }

    fn share(plan: &[Connection], is_one: impl Fn(&Connection) -> bool) -> f64 {
        plan.iter().filter(|one| is_one(one)).count() as f64 / plan.len() as f64
    }

    #[test]
    fn the_seed_decides_everything() {
        let of = |seed| connections(seed, 500, WITHIN);
        assert_eq!(of(7), of(7));
        assert_ne!(of(7), of(8));
        let plan = of(7);
        assert_eq!(plan.len(), 500);
        assert!(plan.iter().all(|one| one.at < WITHIN));
        assert!(plan.is_sorted_by_key(|one| one.at));
        assert!((0..).zip(&plan).all(|(number, one)| one.number == number));
    }

    #[test]
    fn popularity_by_zipf() {
        let (zipf, mut random) = (Zipf::new(SERVICES), Rng::new(1));
        let mut counts = HashMap::<u16, f64>::new();
        for _ in 0..100_000 {
            *counts.entry(zipf.draw(&mut random)).or_default() += 1.0;
        }
        // The harmonic number of 4000 is 8.87.
        for (rank, share) in [(0, 0.1127), (1, 0.0564), (9, 0.0113)] {
            let drawn = counts[&rank] / 100_000.0;
            assert!((drawn / share - 1.0).abs() < 0.1, "{rank}: {drawn}");
        }
        assert!(counts.keys().all(|rank| *rank < SERVICES));
        assert!(counts.len() > 3000, "{}", counts.len());
    }

    #[test]
    fn arrivals_are_poisson() {
        let plan = connections(1, 60_000, WITHIN);
        let mut visits = HashMap::<u64, f64>::new();
        let mut seen = HashSet::new();
        // The first connections of the pairs of clients and services are nearly independent of each other.
        for one in &plan {
            if seen.insert((one.client, one.service.rank)) {
                *visits.entry(one.at.as_secs()).or_default() += 1.0;
            }
        }
        let late: Vec<f64> = (90..180).map(|second| visits[&second]).collect();
        let mean = late.iter().sum::<f64>() / late.len() as f64;
        let variance = late.iter().map(|n| (n - mean).powi(2)).sum::<f64>() / late.len() as f64;
        assert!((0.5..2.0).contains(&(variance / mean)), "{variance} {mean}");
    }

    #[test]
    fn sizes_as_on_the_web() {
        let plan = plan();
        let mut sizes: Vec<u64> = plan.iter().map(|one| one.down).collect();
        sizes.sort_unstable();
        assert!(
            (10_000..15_000).contains(&sizes[10_000]),
            "{}",
            sizes[10_000]
        );
        assert!(sizes[19_999] > 1_000_000 && sizes[19_999] <= 4_194_304);
        let large = share(&plan, |one| one.up >= 100_000);
        assert!((0.002..0.03).contains(&large), "{large}");
        let is_between =
            |one: &Connection| (10_001..100_000).contains(&one.up) || one.up > 2_000_000;
        assert_eq!(share(&plan, is_between), 0.0);
        assert!(plan.iter().all(|one| one.up >= 200));
    }

    #[test]
    fn services_of_every_kind() {
        let of = |kind| move |one: &Connection| one.service.kind == kind;
        let plan = plan();
        for kind in [Kind::Silent, Kind::Refuses, Kind::Answers { slow: true }] {
            let share = share(&plan, of(kind));
            assert!((0.005..0.06).contains(&share), "{kind:?}: {share}");
        }
        for family in Family::ALL {
            let share = share(&plan, |one| one.service.family == family);
            assert!(share > 0.3, "{family}: {share}");
        }
        let slow = |one: &Connection| one.service.kind == Kind::Answers { slow: true };
        assert!(plan.iter().all(|one| slow(one) != one.pause.is_zero()));
    }

    #[test]
    fn addresses_of_their_own() {
        let targets = (0..SERVICES).map(|rank| Service::new(1, rank).target().ip());
        assert_eq!(targets.collect::<HashSet<_>>().len(), usize::from(SERVICES));
        // Both families of it, whatever the seed chooses.
        for family in Family::ALL {
            let last = Service {
                rank: SERVICES - 1,
                family,
                ..Service::new(1, 0)
            };
            let ends = ["10.131.231.3", "fd00:200:0:3e7::3"].map(str::parse::<IpAddr>);
            assert!(ends.contains(&Ok(last.target().ip())), "{}", last.target());
        }
    }

    #[test]
    fn clients_come_again() {
        let plan = plan();
        let mut seen = HashSet::new();
        let first = plan
            .iter()
            .filter(|one| seen.insert((one.client, one.service.rank)));
        let again = 1.0 - first.count() as f64 / plan.len() as f64;
        assert!((0.5..0.9).contains(&again), "{again}");
    }
}
