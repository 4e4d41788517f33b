// SPDX-License-Identifier: Apache-2.0
//! `synflood`: spoofed SYNs against a server behind a node.
//!
//! Two promises are checked: no handshake with the server completes for a client that is not
//! validated, and half-open upstream connections stay within their budget. The experiment fails
//! when one is broken. The delay of legitimate flows by the half-open entries behind the first
//! promise is compared with plain forwarding and the model, before and during the flood, with the
//! client nearer to the node than the server and the other way round.

mod report;
mod subject;
mod trial;

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Result, ensure};

use self::trial::{Case, Outcome};
use crate::names::Named;
use crate::network::Family;
use crate::node::Binary;
use crate::record::{Common, Record};
use subject::Subject;

/// Bound on the errors of flows in the remarks.
const FAILURES_SHOWN: usize = 5;

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
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Subject::Direct, Subject::Early])]
    subjects: Vec<Subject>,
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
    fn model(self, subject: Subject) -> f64 {
        let path = self.client + self.server;
        let total = match subject {
            Subject::Direct | Subject::Strict | Subject::Late => 4 * path,
            Subject::Early => 2 * path + 2 * self.client.max(self.server),
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
        .any(|&subject| subject != Subject::Direct)
    {
        record.parameter("node", args.binary.version()?);
    }
    let mut trials = Vec::new();
    // One after the other: floods at the same time would compete for the CPU.
    for case in cases(args) {
        eprintln!("synflood: {}, {}", case.group(), case.subject.name());
        let outcome = trial::run(case, args);
        trials.push((
            case,
            outcome.with_context(|| format!("{}, {}", case.group(), case.subject.name()))?,
        ));
    }
    report::fill(&mut record, args, &trials);
    let failures = trials.iter().flat_map(|(_, outcome)| outcome.failures());
    record.remarks = failures.take(FAILURES_SHOWN).cloned().collect();
    record.publish(&args.common.output)?;
    let broken = record.missed();
    ensure!(broken == 0, "{broken} promises are broken");
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
                let of = |&subject: &Subject| Case {
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
            Subject::ALL
                .iter()
                .map(|subject| delays.model(*subject))
                .collect::<Vec<_>>(),
            [200.0, 180.0, 200.0, 200.0]
        );
    }
}
