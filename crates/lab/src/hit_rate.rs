// SPDX-License-Identifier: Apache-2.0
//! `hit-rate`: computes the share of a web-like mix of connections that a node relays if it
//! observes first, by the scope of its profiles. No network: the mix is synthetic, and shows how
//! shares compare rather than what they are for real traffic.
//!
//! Clients visit pages at intervals. A page has one service of its own and several shared ones;
//! both are chosen by Zipf's law. To each service a page opens connections at the same moment, so
//! that none of them benefits from another's profile.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use clap::Args as Arguments;

use crate::record::Record;
use crate::rng::Rng;
use crate::table::Table;

/// Seconds of a working day.
const DAY: u64 = 8 * 3600;
/// Number of services, and the exponent of their popularity.
const SERVICES: usize = 20_000;
const ZIPF: f64 = 1.0;
/// Bound on the shared services of a page.
const OTHERS_MAX: u64 = 16;
/// Connections to one service: mostly one (HTTP/2), else up to six (HTTP/1.1).
const CONNECTIONS_MAX: u64 = 6;
const SINGLE: f64 = 0.7;
/// Clients per prefix of a wide profile.
const NEIGHBOURS: usize = 250;

/// Arguments of `posthaste-lab hit-rate`.
#[derive(Arguments, Debug)]
pub struct Args {
    /// Clients behind the node
    #[arg(long, value_delimiter = ',', default_values_t = [10, 100, 1000])]
    clients: Vec<usize>,
    /// Seconds between two pages of a client, on average
    #[arg(long, default_value_t = 60)]
    think_time: u64,
    /// Seconds that a profile counts
    #[arg(long, default_value_t = 3600)]
    ttl: u64,
    /// Profiles that are kept
    #[arg(long, default_value_t = 32_768)]
    profiles: usize,
    /// Seed of the mix
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where the record goes
    #[arg(long, value_name = "DIR", default_value = "lab-output")]
    output: PathBuf,
}

/// The scope of a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Width {
    Client,
    Prefix,
}

/// The fate of connections.
#[derive(Clone, Copy, Debug, Default)]
struct Shares {
    forwarded: u64,
    trials: u64,
    relayed: u64,
}

/// Runs it.
///
/// # Errors
/// The record cannot be written.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let mut record = Record::start("hit-rate", args.seed);
    record.parameter("think_time_seconds", args.think_time);
    record.parameter("ttl_seconds", args.ttl);
    record.parameter("profiles", args.profiles);
    let columns = [
        "clients",
        "a profile is of",
        "connections",
        "forwarded",
        "trial",
        "relayed",
    ];
    let mut table = Table::new("Shares of connections over eight hours, %", &columns);
    for &clients in &args.clients {
        for (width, name) in [
            (Width::Client, "one client, one service"),
            (Width::Prefix, "a /24 of clients, one service"),
        ] {
            let shares = day(args, clients, width);
            let all = shares.forwarded + shares.trials + shares.relayed;
            let percent = |count: u64| format!("{:.1}", 100.0 * count as f64 / all as f64);
            table.push([
                clients.to_string(),
                name.to_owned(),
                all.to_string(),
                percent(shares.forwarded),
                percent(shares.trials),
                percent(shares.relayed),
            ]);
        }
    }
    record.tables.push(table);
    record.publish(&args.output, std::iter::empty::<(&str, String)>())
}

/// A profile: when it was learned, and whether a relay has worked since.
#[derive(Clone, Copy, Debug)]
struct Profile {
    learned: u64,
    validated: bool,
}

/// The profiles; the least recently used ones are evicted.
#[derive(Debug, Default)]
struct Profiles {
    known: HashMap<(usize, usize), (Profile, u64)>,
    order: BTreeMap<u64, (usize, usize)>,
    uses: u64,
}

impl Profiles {
    fn get(&self, key: (usize, usize), now: u64, ttl: u64) -> Option<Profile> {
        let (profile, _) = self.known.get(&key)?;
        (now - profile.learned < ttl).then_some(*profile)
    }

    fn put(&mut self, key: (usize, usize), profile: Profile, most: usize) {
        self.uses += 1;
        if let Some((_, used)) = self.known.insert(key, (profile, self.uses)) {
            self.order.remove(&used);
        }
        self.order.insert(self.uses, key);
        if self.known.len() > most
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.known.remove(&oldest);
        }
    }
}

/// A day of all clients.
fn day(args: &Args, clients: usize, width: Width) -> Shares {
    let mut random = Rng::new(args.seed);
    let popularity = popularity();
    let mut profiles = Profiles::default();
    let mut shares = Shares::default();
    let pages = clients as u64 * DAY / args.think_time.max(1);
    for page in 0..pages {
        let now = page * DAY / pages;
        let client = usize::try_from(random.below(clients as u64)).unwrap_or(0);
        let who = match width {
            Width::Client => client,
            Width::Prefix => client / NEIGHBOURS,
        };
        for _ in 0..=random.below(OTHERS_MAX + 1) {
            let chosen = random.uniform();
            let service = popularity.partition_point(|below| *below < chosen);
            let connections = if random.uniform() < SINGLE {
                1
            } else {
                1 + random.below(CONNECTIONS_MAX)
            };
            let key = (who, service);
            let (part, next) = match profiles.get(key, now, args.ttl) {
                None => (
                    &mut shares.forwarded,
                    Profile {
                        learned: now,
                        validated: false,
                    },
                ),
                Some(profile) if !profile.validated => (
                    &mut shares.trials,
                    Profile {
                        validated: true,
                        ..profile
                    },
                ),
                Some(profile) => (&mut shares.relayed, profile),
            };
            *part += connections;
            profiles.put(key, next, args.profiles);
        }
    }
    shares
}

/// By service, the probability that one at least as popular is chosen.
fn popularity() -> Vec<f64> {
    let weights = (1..=SERVICES).map(|rank| (rank as f64).powf(-ZIPF));
    let mut sum = 0.0;
    let sums: Vec<f64> = weights
        .map(|weight| {
            sum += weight;
            sum
        })
        .collect();
    sums.iter().map(|part| part / sum).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wider_profiles_hit_more_often() {
        let args = Args {
            clients: vec![20],
            think_time: 60,
            ttl: 3600,
            profiles: 16_384,
            seed: 1,
            output: PathBuf::new(),
        };
        let [narrow, wide] = [Width::Client, Width::Prefix].map(|width| day(&args, 20, width));
        assert!(wide.relayed > narrow.relayed, "{narrow:?} {wide:?}");
        assert!(narrow.relayed > 0 && narrow.trials > 0);
        let few = Args {
            profiles: 10,
            ..args
        };
        assert!(day(&few, 20, Width::Client).relayed < narrow.relayed);
    }
}
