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

use anyhow::{Context, Result};

use self::trial::Case;
use crate::network::Family;
use crate::node::Binary;
use crate::record::{Common, Record};

/// The node's budget of half-open upstream connections.
const BUDGET: u64 = 4096;

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
    /// The server's tcp_syncookies: 1 when its queue is full, 2 always
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2])]
    cookies: Vec<u8>,
    /// IP versions
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["4", "6"])]
    families: Vec<Family>,
    #[command(flatten)]
    common: Common,
}

/// One-way delays of the links from client to node and from node to server, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Delays {
    client: u64,
    server: u64,
}

/// The client farther from the node than the server, and the other way round.
const DELAYS: [Delays; 2] = [
    Delays {
        client: 40,
        server: 10,
    },
    Delays {
        client: 10,
        server: 40,
    },
];

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
    /// answer. A node overlaps both handshakes, so the longer one counts, and the request follows at
    /// once.
    fn model(self, has_node: bool) -> f64 {
        let path = self.client + self.server;
        let handshake = match has_node {
            true => self.client.max(self.server),
            false => path,
        };
        (2 * path + 2 * handshake) as f64
    }
}

/// Runs the experiment, prints its tables, writes the record. Fails when a promise is broken.
pub fn run(args: &Args) -> Result<()> {
    let mut record = Record::start("synflood", args.common.seed);
    record.parameter("node", args.binary.version()?);
    // One after the other: floods at the same time would compete for the CPU.
    for case in cases(args) {
        eprintln!("synflood: {case}");
        let outcome = trial::run(case, args).with_context(|| case.to_string())?;
        report::sample(&mut record, &case, &outcome);
    }
    report::fill(&mut record, args);
    record.finish(&args.common.output, &[])
}

impl Case {
    fn subject(&self) -> &'static str {
        if self.has_node { "early" } else { "direct" }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (delays, family, cookies) = (self.delays, self.family, self.cookies);
        let subject = self.subject();
        write!(f, "{delays} ms, {family}, cookies {cookies}, {subject}")
    }
}

/// All combinations; subjects that are compared one after the other.
fn cases(args: &Args) -> Vec<Case> {
    let mut cases = Vec::new();
    for delays in DELAYS {
        for &family in &args.families {
            for &cookies in &args.cookies {
                cases.extend([false, true].map(|has_node| Case {
                    has_node,
                    family,
                    cookies,
                    delays,
                }));
            }
        }
    }
    cases
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_saves_shorter_handshake() {
        for delays in DELAYS {
            let models = [false, true].map(|has_node| delays.model(has_node));
            assert_eq!(models, [200.0, 180.0]);
        }
        assert_eq!(DELAYS[0].to_string(), "40/10");
    }
}
