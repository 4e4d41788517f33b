// SPDX-License-Identifier: Apache-2.0
//! A network of a subject: clients, a router with or without a node, services.

use std::time::Duration;

use anyhow::Result;

use super::Args;
use super::plan::{CLIENTS, SILENT_PORT};
use crate::link::Link;
use crate::names::named;
use crate::network::{Family, Network, add_addresses, client_address, fabric};
use crate::node::Node;

/// One-way delays from client to router, and on to the servers.
pub(super) const DELAYS: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(30)];

/// Where all services are.
const SERVICES: [&str; 2] = ["10.128.0.0/9", "fd00:200::/32"];

named! {
    /// What the router does with all packets.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) enum Router {
        /// It forwards them.
        Plain = "plain",
        /// It gives clients its own address, and drops what does not belong to connections of theirs.
        Masquerading = "masquerading",
    }
}

named! {
    /// What the router has.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) enum Subject {
        /// Nothing.
        None = "none",
        /// A node with the default configuration.
        Default = "default",
        /// A node that relays each connection by sockets, the first to a service too: the most that can be had.
        Sockets = "sockets",
    }
}

/// A network with its node, if there is one. Dropped in the order of its fields.
#[derive(Debug)]
pub(super) struct Testbed {
    pub(super) node: Option<Node>,
    pub(super) network: Network,
}

impl Testbed {
    pub(super) fn build(args: &Args, router: Router, subject: Subject) -> Result<Self> {
        let network = Network::line(DELAYS.map(Link::delay));
        let network = network.seed(args.common.seed).build()?;
        add_addresses(network.client(), client_address, CLIENTS)?;
        // All addresses of the services are the server's, without an entry for each.
        let local = SERVICES.map(|prefix| format!("route add local {prefix} dev lo"));
        network.server().ip_batch(&local)?;
        network.server().nft(&format!(
            "table inet down {{
            chain input {{
            type filter hook input priority 0;
            tcp dport {SILENT_PORT} drop
            }}
            }}"
        ))?;
        let server = Family::ALL.map(|family| network.server_address(family));
        let routes = SERVICES.iter().zip(server);
        let routes = routes.map(|(prefix, via)| format!("route replace {prefix} via {via}"));
        network.node(0).ip_batch(&routes.collect::<Vec<_>>())?;
        if router == Router::Masquerading {
            fabric::masquerade(network.node(0))?;
        }
        let builder = Node::builder(network.node(0), args.binary.find()?);
        let builder = match subject {
            Subject::None => None,
            Subject::Default => Some(builder),
            Subject::Sockets => Some(builder.relaying()),
        };
        let node = builder.map(crate::node::Builder::start).transpose()?;
        Ok(Self { node, network })
    }
}
