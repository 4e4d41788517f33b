// SPDX-License-Identifier: Apache-2.0
//! The carrier of connections in experiments with posthaste alone: no node, or one in an accept
//! mode.

use anyhow::{Context, Result};

use crate::link::Link;
use crate::names::named;
use crate::network::Network;
use crate::node::{Binary, Node};

named! {
    /// The carrier of connections.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, clap::ValueEnum)]
    pub enum Encapsulation {
        /// Plain IP forwarding.
        Direct = "direct",
        /// A node that answers the client at once and opens upstream at its SYN.
        Early = "early",
        /// A node that answers the client when the server has answered.
        Strict = "strict",
        /// A node that opens upstream after the client's handshake.
        Late = "late",
    }
}

impl Encapsulation {
    /// Builds a network of client, one node and server, and starts the node if there is one.
    pub fn start(self, links: [Link; 2], binary: &Binary, seed: u64, more: &str) -> Result<Course> {
        let network = Network::line(links).seed(seed).build()?;
        if self == Self::Direct {
            return Ok(Course {
                node: None,
                network,
            });
        }
        let config = format!("{more}\n[defaults]\naccept = \"{}\"\n", self.name());
        let node = Node::builder(network.node(0), binary.find()?)
            .config(&config)
            .start();
        Ok(Course {
            node: Some(node.context("start the node")?),
            network,
        })
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
