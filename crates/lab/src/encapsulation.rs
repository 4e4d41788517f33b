// SPDX-License-Identifier: Apache-2.0
//! The carrier of connections in experiments with posthaste alone: no node, or one in an accept
//! mode.

use std::fmt;

use anyhow::{Context, Result};

use crate::link::Link;
use crate::network::Network;
use crate::node::{Binary, Node};

/// The carrier of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, clap::ValueEnum)]
pub enum Encapsulation {
    /// Plain IP forwarding.
    Direct,
    /// A node that answers the client at once and opens upstream at its SYN.
    Early,
    /// A node that answers the client when the server has answered.
    Strict,
    /// A node that opens upstream after the client's handshake.
    Late,
}

impl Encapsulation {
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

impl fmt::Display for Encapsulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A subject ready to run.
#[derive(Debug)]
pub struct Course {
    /// The node, if the subject has one. First, so that it ends before its network.
    pub node: Option<Node>,
    /// The network: client, node, server.
    pub network: Network,
}
