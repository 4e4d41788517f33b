// SPDX-License-Identifier: Apache-2.0
//! posthaste as operators run it, without a log line per connection, as the others.
//!
//! Where clients address it, the server gets the relay's address, as with HAProxy. At a fixed
//! listener clients send nothing else; at an explicit one they send the destination with the
//! request, by RFC 8803.

use std::net::SocketAddr;

use anyhow::Result;

use crate::chain::{Chain, Member, Transport};
use crate::compare::site::{NICE, Running, Site, cpu_set};
use crate::network::{Family, Network};
use crate::node::{Builder, Node};

/// The port of the listener for clients.
const EXPLICIT_PORT: u16 = 4480;

/// Warm hops per worker: more than clients begin at once.
const POOL: u16 = 512;

pub(super) fn early(site: &Site<'_>) -> Result<Running> {
    transparent(site, "[defaults]\naccept = \"early\"\n")
}

/// Clients with Multipath TCP are answered by it, and the server gets TCP.
pub(super) fn multipath(site: &Site<'_>) -> Result<Running> {
    transparent(
        site,
        "[defaults]\naccept = \"early\"\nmultipath = \"convert\"\n",
    )
}

pub(super) fn late(site: &Site<'_>) -> Result<Running> {
    transparent(site, "[defaults]\naccept = \"late\"\n")
}

/// The first connection is forwarded: its SYN-ACK shows what the server grants.
pub(super) fn packet(site: &Site<'_>) -> Result<Running> {
    transparent(site, "[defaults]\ndata_path = \"packet\"\n")
}

/// The default data path: the first connections show how long answers are.
pub(super) fn auto(site: &Site<'_>) -> Result<Running> {
    transparent(site, "[defaults]\ndata_path = \"auto\"\n")
}

fn transparent(site: &Site<'_>, tables: &str) -> Result<Running> {
    let config = head(site) + tables;
    Ok(running(node(site, 0, &config)?, site.server(), config))
}

/// A node that clients address, with other tables than `[node]`.
fn listening(site: &Site<'_>, mode: &str, of_node: &str, more: &str) -> Result<Running> {
    let listener = SocketAddr::new(site.network.node_address(0, Family::V4), EXPLICIT_PORT);
    let config = format!(
        "{}{of_node}[transparent]\nenabled = false\n\
         [[listener]]\nmode = \"{mode}\"\naddress = \"{listener}\"\n{more}",
        head(site)
    );
    Ok(running(node(site, 0, &config)?, listener, config))
}

pub(super) fn fixed(site: &Site<'_>) -> Result<Running> {
    let destination = format!("destination = \"{}\"\n", site.server());
    listening(site, "fixed", "", &destination)
}

pub(super) fn explicit(site: &Site<'_>) -> Result<Running> {
    // The lab's addresses are private.
    let access = "[access]\nclients = [\"10.0.0.0/8\"]\ndestinations = [\"10.0.0.0/8\"]\n";
    Ok(Running {
        request_for: Some(site.server()),
        ..listening(site, "explicit", "id = 1\n", access)?
    })
}

fn running(node: Node, target: SocketAddr, config: String) -> Running {
    Running {
        nodes: vec![node],
        ..Running::bare(target, config)
    }
}

/// The chain of two nodes: the first on the path, the second behind it.
fn chain(network: &Network) -> Chain {
    let member = |node| Member {
        listener: network.node_address(node, Family::V4),
        source_addresses: network.calling_address(node, Family::V4),
    };
    Chain {
        nodes: (0..2).map(member).collect(),
        pool: POOL,
        transport: Transport::Tcp(network.congestion().to_owned()),
    }
}

/// Applies the settings for the namespaces of a chain's nodes.
pub(super) fn join(network: &Network) -> Result<()> {
    let mut nodes = network.nodes().iter();
    nodes.try_for_each(crate::chain::prepare)
}

pub(super) fn warm(site: &Site<'_>) -> Result<Running> {
    let chain = chain(site.network);
    let mut nodes = Vec::new();
    let mut configs = String::new();
    for place in 0..2 {
        // Extends the table at the start of the chain's part.
        let member = chain.config(place).replacen("[node]\n", &head(site), 1);
        nodes.push(node(site, place, &member)?);
        configs.push_str(&member);
    }
    chain.wait_until_full(&nodes)?;
    Ok(Running {
        nodes,
        ..Running::bare(site.server(), configs)
    })
}

/// The table `[node]`, which may be extended.
fn head(site: &Site<'_>) -> String {
    let threads = site.threads;
    format!("[node]\nworkers = {threads}\nlog_connections = false\n")
}

fn node(site: &Site<'_>, place: usize, config: &str) -> Result<Node> {
    builder(site, place, config)?.start()
}

fn builder<'a>(site: &Site<'a>, place: usize, config: &str) -> Result<Builder<'a>> {
    let node = Node::builder(site.network.node(place), site.binary.find()?).relaying();
    Ok(node.config(config).confined(cpu_set(site.cpus)?, NICE))
}
