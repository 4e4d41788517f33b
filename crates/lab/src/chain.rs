// SPDX-License-Identifier: Apache-2.0
//! Chains of nodes: the first is on the path of its clients, the others get requests for flows.
//!
//! This module has the configurations of their members and the settings of their namespaces; an
//! experiment starts the nodes. All nodes share one key, which need not be secret: they communicate
//! inside namespaces only.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::netns::Namespace;
use crate::node::Node;
use crate::process::wait_for;

/// Port of the explicit listeners.
pub(crate) const PORT: u16 = 4480;

/// The shared key.
const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

/// Bound on the time to fill pools; a fraction of a second is usual.
const FULL_WITHIN: Duration = Duration::from_secs(30);

/// Settings of hosts with nodes that have peers: listeners accept data in a SYN, hops keep their
/// grown windows, and the receiver does not bound the first round trips. `posthaste doctor`
/// recommends all of them.
const SETTINGS: &[(&str, &str)] = &[
    ("net.ipv4.tcp_fastopen", "3"),
    ("net.ipv4.tcp_slow_start_after_idle", "0"),
    ("net.ipv4.tcp_rmem", "4096 4194304 16777216"),
    ("net.ipv4.tcp_wmem", "4096 4194304 16777216"),
];

/// A node of a chain, as its neighbours reach it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member {
    /// The address of its explicit listener, unless it is the first.
    pub listener: IpAddr,
    /// The source address of its hops to the next node, unless it is the last. Peers are identified
    /// by this address, and measurements for it apply to their hops.
    pub source_addresses: IpAddr,
}

/// What carries flows from node to node.
#[derive(Clone, Debug)]
pub(crate) enum Transport {
    /// TCP with this congestion control.
    Tcp(String),
    Quic,
    /// The one or the other, as the nodes choose.
    Auto,
}

/// A chain.
#[derive(Clone, Debug)]
pub(crate) struct Chain {
    /// In order.
    pub nodes: Vec<Member>,
    /// Warm hops that each worker keeps open to the next node; 0 for cold hops.
    pub pool: u16,
    pub transport: Transport,
}

impl Chain {
    /// The configuration tables of member number `place` of the chain.
    pub(crate) fn config(&self, place: usize) -> String {
        self.config_with(place, "")
    }

    /// The same, with more keys of `[node]`.
    pub(crate) fn config_with(&self, place: usize, of_node: &str) -> String {
        let mut toml = format!("[node]\nid = {}\n{of_node}", place + 1);
        // The lab's addresses are private.
        toml.push_str("[access]\ndestinations = [\"10.0.0.0/8\", \"fd00::/8\"]\n");
        if let Some(previous) = place.checked_sub(1) {
            // Flows arrive from there; no hops are kept open toward it.
            toml.push_str(&self.peer(previous, self.nodes[previous].source_addresses, 0));
        }
        if place + 1 < self.nodes.len() {
            let next = place + 1;
            toml.push_str(&self.peer(next, self.nodes[next].listener, self.pool));
        }
        if place == 0 {
            // Only the node on the path chooses the way of a flow; the others get it with the
            // request.
            toml.push_str(&self.listing());
            // A flow that cannot take the chain is to fail, not to be measured without it.
            toml.push_str("[[route]]\nchains = [\"lab\"]\ndirect = false\n");
        } else {
            toml.push_str(&format!(
                "[transparent]\nenabled = false\n\
                 [[listener]]\nmode = \"explicit\"\naddress = \"{}\"\n",
                SocketAddr::new(self.nodes[place].listener, PORT)
            ));
        }
        toml
    }

    /// The chain itself: a peer, and the nodes behind it.
    fn listing(&self) -> String {
        let others = (2..self.nodes.len()).map(|place| format!(", {}", place + 1));
        let (next, others) = (name(1), others.collect::<String>());
        format!("[[chain]]\nname = \"lab\"\nnodes = [\"{next}\"{others}]\n")
    }

    /// The entry of member number `place` in another one's configuration.
    fn peer(&self, place: usize, address: IpAddr, pool: u16) -> String {
        let (name, id) = (name(place), place + 1);
        let address = SocketAddr::new(address, PORT);
        let transport = match &self.transport {
            Transport::Tcp(congestion) => format!("[peer.socket]\ncongestion = {congestion:?}\n"),
            Transport::Quic => "transport = \"quic\"\n".to_owned(),
            Transport::Auto => "transport = \"auto\"\n".to_owned(),
        };
        format!(
            "[[peer]]\nname = \"{name}\"\nid = {id}\naddress = \"{address}\"\nkey = \"{KEY}\"\n\
             pool_min = {pool}\npool_max = {pool}\n{transport}"
        )
    }

    /// Waits until the running nodes of the chain have all their warm hops.
    pub(crate) fn wait_until_full(&self, nodes: &[Node]) -> Result<()> {
        let dialers = nodes.iter().enumerate().take(self.nodes.len() - 1);
        for (place, node) in dialers.filter(|_| self.pool > 0) {
            let next = name(place + 1);
            let mut answer = Value::Null;
            let full = wait_for(FULL_WITHIN, || {
                answer = node.admin_json("chains")?;
                Ok(is_full(&answer, &next).then_some(()))
            })?;
            full.with_context(|| {
                let (place, known) = (name(place), find_peer(&answer, &next));
                format!("{place} has no full pool of warm hops to {next}: {known}")
            })?;
        }
        Ok(())
    }
}

/// Applies the settings for the namespace of a node with peers.
pub(crate) fn prepare(namespace: &Namespace) -> Result<()> {
    let mut settings = SETTINGS.iter();
    settings.try_for_each(|(key, value)| namespace.sysctl(key, value))
}

fn name(place: usize) -> String {
    format!("node-{place}")
}

fn find_peer<'a>(answer: &'a Value, name: &str) -> &'a Value {
    let peers = answer["peers"].as_array().into_iter().flatten();
    let mut named = peers.filter(|peer| peer["name"] == name);
    named.next().unwrap_or(&Value::Null)
}

/// Whether every worker of a node has all its warm hops to a peer, by the node's report.
fn is_full(answer: &Value, peer: &str) -> bool {
    let peer = find_peer(answer, peer);
    let number = |name: &str| peer[name].as_u64().unwrap_or_default();
    let workers = peer["health"]["known_to"].as_u64().unwrap_or_default();
    // A worker that has not answered would be missing in the sums below.
    answer["incomplete"] == false
        && workers > 0
        // A hop that is being opened during a transfer would compete with it for the rate.
        && number("dialing") == 0
        && number("waiting") >= number("pool_min") * workers
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn chain(pool: u16) -> Chain {
        let member = |node| Member {
            listener: [10, 0, node, 2].into(),
            source_addresses: [10, 0, node + 1, 1].into(),
        };
        Chain {
            nodes: (0..3).map(member).collect(),
            pool,
            transport: Transport::Tcp("cubic".to_owned()),
        }
    }

    #[test]
    fn member_configuration() {
        let middle = chain(4).config(1);
        for part in [
            "id = 2\n",
            "name = \"node-0\"\nid = 1\naddress = \"10.0.1.1:4480\"",
            "name = \"node-2\"\nid = 3\naddress = \"10.0.2.2:4480\"",
            "address = \"10.0.1.2:4480\"\n",
        ] {
            assert!(middle.contains(part), "{part} in {middle}");
        }
        assert_eq!(middle.matches("pool_min = 4").count(), 1);
        assert_eq!(middle.matches("pool_max = 0").count(), 1);
        assert!(!middle.contains("[[route]]") && !middle.contains("[[chain]]"));
        let first = chain(4).config(0);
        assert!(first.contains("nodes = [\"node-1\", 3]"), "{first}");
        assert!(first.contains("[[route]]") && !first.contains("[[listener]]"));
    }

    #[test]
    fn pool_full_per_worker() {
        let answer = |waiting: u64, dialing: u64, known_to: u64| {
            json!({"incomplete": false, "peers": [
                {"name": "a", "pool_min": 9, "waiting": 0, "dialing": 0, "health": {"known_to": 2}},
                {"name": "b", "pool_min": 4, "waiting": waiting, "dialing": dialing,
                 "health": {"known_to": known_to}},
            ]})
        };
        assert!(is_full(&answer(8, 0, 2), "b"));
        assert!(!is_full(&answer(8, 0, 2), "a"));
        assert!(!is_full(&answer(7, 0, 2), "b"));
        assert!(!is_full(&answer(8, 1, 2), "b"));
        assert!(!is_full(&answer(0, 0, 0), "b"), "nobody knows");
        assert!(!is_full(&answer(8, 0, 2), "c"));
    }
}
