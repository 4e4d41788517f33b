// SPDX-License-Identifier: Apache-2.0
//! Flows over several nodes: the first is on the path of its clients, the others receive requests.

mod churn;
mod clocks;
mod cuts;
mod failures;
mod late_validation;
mod lookup;
mod loops;
mod refusals;
mod reroutes;
mod source_address;

use posthaste_lab::link::Link;
use posthaste_lab::network::{Family, Network};
use posthaste_lab::node::Node;

use crate::payload;
use crate::requests::{ALLOWED, explicit, peer, start_all, syn_option_peers};
use crate::support::{MODES, PORT, Pair, counter, listen, network, until_ended};

/// Client, `count` nodes and server in a line.
pub(crate) fn line_of(count: usize) -> Network {
    network((0..=count).map(|_| Link::Veth))
}

/// Nodes and the chains between them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan<'a> {
    /// How many nodes there are, on the first hosts after the client.
    pub(crate) nodes: usize,
    /// Chains by the nodes after the first, the best first.
    pub(crate) chains: &'a [&'a [usize]],
    /// What is done when none of them is to be had.
    pub(crate) direct: bool,
    pub(crate) accept: &'a str,
    /// The family of the hops.
    pub(crate) hops: Family,
    /// Whether hops are open before there is a flow.
    pub(crate) warm: bool,
    /// How many of them wait for one, at the most, where it is not the default.
    pub(crate) pool_max: Option<usize>,
    /// What carries chain headers over cold hops.
    pub(crate) encapsulation: &'a str,
    /// Of every node.
    pub(crate) extra: &'a str,
}

impl Plan<'_> {
    /// All nodes in one chain, over cold hops.
    pub(crate) fn of(nodes: usize) -> Plan<'static> {
        let chains: &[&[usize]] = match nodes {
            2 => &[&[1]],
            3 => &[&[1, 2]],
            4 => &[&[1, 2, 3]],
            _ => panic!("no chain of {nodes} nodes"),
        };
        Plan {
            nodes,
            chains,
            direct: false,
            accept: "early",
            hops: Family::V4,
            warm: false,
            pool_max: None,
            encapsulation: "stream",
            extra: "",
        }
    }

    pub(crate) fn start(&self, network: &Network) -> Vec<Node> {
        let configs = (0..self.nodes).map(|node| self.config(network, node));
        start_all(network, configs)
    }

    pub(crate) fn config(&self, network: &Network, node: usize) -> String {
        let mut text = format!("[node]\nid = {}\n{ALLOWED}", node + 1);
        text += &format!("[defaults]\naccept = \"{}\"\n{}", self.accept, self.extra);
        for other in (0..self.nodes).filter(|other| *other != node) {
            text += &peer(network, other, self.hops);
            if self.encapsulation == "syn-option" {
                text += &syn_option_peers(network, other);
            }
            let pool_max = match self.pool_max {
                None if !self.warm => Some(0),
                given => given,
            };
            if let Some(most) = pool_max {
                text += &format!("pool_max = {most}\n");
            }
        }
        if node > 0 {
            return text + &explicit(network, node);
        }
        for (number, nodes) in (1..).zip(self.chains) {
            let names: Vec<String> = nodes
                .iter()
                .map(|node| format!("\"node-{node}\""))
                .collect();
            let names = names.join(", ");
            text += &format!("[[chain]]\nname = \"chain-{number}\"\nnodes = [{names}]\n");
        }
        let names = (1..=self.chains.len()).map(|number| format!("\"chain-{number}\""));
        let names = names.collect::<Vec<_>>().join(", ");
        text + &format!("[[route]]\nchains = [{names}]\ndirect = {}\n", self.direct)
    }
}

// promise: K1
#[test]
fn chain_in_every_mode() {
    let network = line_of(3);
    let [v4, v6] = Family::ALL;
    for (accept, hops) in MODES.into_iter().zip([v4, v6, v4]) {
        let plan = Plan {
            accept,
            hops,
            ..Plan::of(3)
        };
        let nodes = plan.start(&network);
        for (count, family) in (1..).zip(Family::ALL) {
            let listener = listen(network.server(), PORT);
            let mut pair = Pair::open(&network, family, &listener);
            payload::send(&mut pair.client, 1, 300_000).expect("bytes leave");
            payload::receive(&mut pair.server, 1, 300_000).expect("bytes arrive");
            payload::send(&mut pair.server, 2, 300_000).expect("bytes leave");
            payload::receive(&mut pair.client, 2, 300_000).expect("bytes arrive");
            pair.close_client_first();
            for node in &nodes {
                until_ended(node, "finished", count);
                assert_eq!(counter(node, "relays_opened"), count, "{accept} {hops}");
            }
            assert_eq!(counter(&nodes[0], "hops_cold"), count);
            assert_eq!(counter(&nodes[1], "hops_cold"), count);
            assert_eq!(counter(&nodes[2], "hops_cold"), 0);
        }
    }
}
