// SPDX-License-Identifier: Apache-2.0
//! What is compared: no node, or one node in each accept mode, on the same network.

use std::fmt;
use std::process::Command;

use anyhow::{Context, Result};

use crate::link::Link;
use crate::network::Network;
use crate::node::{Binary, Node};

/// What carries the connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, clap::ValueEnum)]
pub enum Contender {
    /// Plain IP forwarding.
    Direct,
    /// A node that answers the client at once and opens upstream at its SYN.
    Early,
    /// A node that answers the client when the server has answered.
    Strict,
    /// A node that opens upstream after the client's handshake.
    Late,
}

impl Contender {
    /// All of them, the reference first.
    pub const ALL: [Self; 4] = [Self::Direct, Self::Early, Self::Strict, Self::Late];

    /// The name in configurations, tables and records.
    pub fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Early => "early",
            Self::Strict => "strict",
            Self::Late => "late",
        }
    }

    /// Builds a network of client, one node and server, and starts the node if there is one.
    pub fn start(self, links: [Link; 2], binary: &Binary, seed: u64, more: &str) -> Result<Course> {
        let network = Network::line(links).seed(seed).build()?;
        if self == Self::Direct {
            return Ok(Course {
                node: None,
                network,
            });
        }
        let config = format!("{more}\n[defaults]\naccept = \"{self}\"\n");
        let node = Node::builder(network.node(0), binary.find()?)
            .config(&config)
            .start();
        Ok(Course {
            node: Some(node.context("start the node")?),
            network,
        })
    }
}

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A contender ready to run.
#[derive(Debug)]
pub struct Course {
    /// The node, if the contender has one. First, so that it ends before its network.
    pub node: Option<Node>,
    /// The network: client, node, server.
    pub network: Network,
}

/// A counter of a node, over all its workers.
pub fn counter(node: &Node, name: &str) -> Result<u64> {
    let status = node.status()?;
    let value = status["counters"][name].as_u64();
    value.with_context(|| format!("posthaste status has no counter {name}: {status}"))
}

/// What the product's program says about its version.
pub fn version(binary: &Binary) -> Result<String> {
    let program = binary.find()?;
    let output = Command::new(&program).arg("--version").output();
    let output = output.with_context(|| format!("run {} --version", program.display()))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_string())
}
