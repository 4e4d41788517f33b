// SPDX-License-Identifier: Apache-2.0
//! `synflood`: spoofed SYNs against a server behind a node.
//!
//! Two promises are checked: no handshake with the server completes for a client that is not
//! validated, and half-open upstream connections stay within their budget. The experiment fails
//! when one is broken. The delay of legitimate flows by the half-open entries behind the first
//! promise is compared with plain forwarding and the model, before and during the flood, with the
//! client nearer to the node than the server and the other way round.

mod report;
mod trial;

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Result, ensure};

use self::trial::{Case, Outcome};
use crate::encapsulation::Encapsulation;
use crate::network::Family;
use crate::node::Binary;
use crate::record::{Common, Record};

/// Arguments of `posthaste-lab synflood`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    binary: Binary,
    /// Spoofed SYNs per second
    #[arg(long, default_value_t = 2000)]
    rate: u32,
    /// Seconds the flood lasts
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=60))]
    seconds: u32,
    /// Legitimate flows before the flood, and again during it
    #[arg(long, default_value_t = 20)]
    flows: u32,
    /// The node's budget of half-open upstream connections
    #[arg(long, default_value_t = 4096)]
    budget: u64,
    /// One-way delays client-node and node-server in ms
    #[arg(long, value_delimiter = ',', default_values_t = [Delays { client: 40, server: 10 }, Delays { client: 10, server: 40 }])]
    delays: Vec<Delays>,
    /// The server's tcp_syncookies: 1 when its queue is full, 2 always
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2])]
    cookies: Vec<u8>,
    /// IP versions
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["4", "6"])]
    families: Vec<Family>,
    /// What to compare
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Encapsulation::Direct, Encapsulation::Early])]
    subjects: Vec<Encapsulation>,
    #[command(flatten)]
    common: Common,
}

/// One-way delays of the two links in milliseconds, written `40/10`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delays {
    client: u64,
    server: u64,
}

impl FromStr for Delays {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let (client, server) = text
            .split_once('/')
            .context("expected CLIENT/SERVER, as in 40/10")?;
        let number = |text: &str| {
            text.parse()
                .with_context(|| format!("{text:?} is no number of ms"))
        };
        Ok(Self {
            client: number(client)?,
            server: number(server)?,
        })
    }
}

impl fmt::Display for Delays {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.client, self.server)
    }
}

impl Delays {
    /// The time to first byte in milliseconds, from the start of `connect()`, when the client sends
    /// first.
    ///
    /// Plain forwarding: a round trip of the whole path for the handshake and one for request and
    /// answer. A late node splits both, which changes neither sum. A strict one answers after the
    /// server has. An early one overlaps both handshakes, so the longer one counts, and the request
    /// follows at once.
    fn model(self, subject: Encapsulation) -> f64 {
        let path = self.client + self.server;
        let total = match subject {
            Encapsulation::Direct | Encapsulation::Strict | Encapsulation::Late => 4 * path,
            Encapsulation::Early => 2 * path + 2 * self.client.max(self.server),
        };
        total as f64
    }
}

/// Runs the experiment, prints its tables, writes record and chart. Fails when a promise is
/// broken.
pub fn run(args: &Args) -> Result<()> {
    let mut record = Record::start("synflood", args.common.seed);
    if args
        .subjects
        .iter()
        .any(|&subject| subject != Encapsulation::Direct)
    {
        record.parameter("node", args.binary.version()?);
    }
    let mut trials = Vec::new();
    for case in cases(args) {
        eprintln!("synflood: {}, {}", case.group(), case.subject.name());
        let outcome = trial::run(case, args);
        trials.push((
            case,
            outcome.with_context(|| format!("{}, {}", case.group(), case.subject.name()))?,
        ));
    }
    let broken = broken(&trials, args.budget);
    report::fill(&mut record, args, &trials);
    record
        .remarks
        .extend(broken.iter().map(|what| format!("BROKEN: {what}")));
    record.publish(
        &args.common.output,
        [("svg", report::chart(args, &trials).svg())],
    )?;
    ensure!(broken.is_empty(), "promises broken:\n{}", broken.join("\n"));
    Ok(())
}

impl Case {
    /// The common conditions of subjects that are compared.
    fn group(&self) -> String {
        format!(
            "{} ms, {}, cookies {}",
            self.delays, self.family, self.cookies
        )
    }
}

/// All combinations; subjects of a group one after the other.
fn cases(args: &Args) -> Vec<Case> {
    let mut cases = Vec::new();
    for &delays in &args.delays {
        for &family in &args.families {
            for &cookies in &args.cookies {
                let of = |&subject: &Encapsulation| Case {
                    subject,
                    family,
                    cookies,
                    delays,
                };
                cases.extend(args.subjects.iter().map(of));
            }
        }
    }
    cases
}

type Trials = [(Case, Outcome)];

fn broken(trials: &Trials, budget: u64) -> Vec<String> {
    let of = |(case, outcome): &(Case, Outcome)| {
        let name = format!("{}, {}", case.group(), case.subject.name());
        outcome
            .broken(budget)
            .into_iter()
            .map(move |what| format!("{name}: {what}"))
    };
    trials.iter().flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_are_parsed_and_shown() {
        let delays: Delays = "40/10".parse().unwrap();
        assert_eq!(
            delays,
            Delays {
                client: 40,
                server: 10
            }
        );
        assert_eq!(delays.to_string(), "40/10");
        assert!("40".parse::<Delays>().is_err() && "40/x".parse::<Delays>().is_err());
    }

    #[test]
    fn early_saves_shorter_handshake() {
        let delays = Delays {
            client: 40,
            server: 10,
        };
        assert_eq!(
            Encapsulation::ALL.map(|subject| delays.model(subject)),
            [200.0, 180.0, 200.0, 200.0]
        );
    }

    #[test]
    fn broken_promises_are_named() {
        let node = trial::NodeCounts {
            half_open: 9,
            released: true,
            ..Default::default()
        };
        let mut outcome = Outcome {
            node: Some(node),
            ..Outcome::default()
        };
        assert_eq!(outcome.broken(9), Vec::<String>::new());
        outcome.accepted = 1;
        assert_eq!(outcome.broken(8).len(), 2);
        outcome.node = None;
        assert!(
            outcome.broken(8).is_empty(),
            "plain forwarding promises nothing"
        );
    }
}
