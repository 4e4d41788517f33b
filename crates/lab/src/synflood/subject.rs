// SPDX-License-Identifier: Apache-2.0
//! The subjects of `synflood`: no node, or one in an accept mode.

use anyhow::{Context, Result};

use crate::link::Link;
use crate::names::{Named, named};
use crate::network::Network;
use crate::node::{Binary, Node};

named! {
    /// What carries the connections.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, clap::ValueEnum)]
    pub(super) enum Subject {
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

impl Subject {
    /// Builds a network of client, one node and server, and starts the node if there is one.
    pub(super) fn start(
        self,
        links: [Link; 2],
        binary: &Binary,
        seed: u64,
        more: &str,
    ) -> Result<Course> {
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
pub(super) struct Course {
    /// The node, if the subject has one. First, so that it ends before its network.
    pub(super) node: Option<Node>,
    /// The network: client, node, server.
    pub(super) network: Network,
}
