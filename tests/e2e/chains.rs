// SPDX-License-Identifier: Apache-2.0
//! Flows that nodes carry together: the first is on the path of its clients, the others are asked.

use posthaste_lab::link::Link;
use posthaste_lab::network::{Family, Network};
use posthaste_lab::node::Node;

use crate::asking::{ALLOWED, explicit, peer, start_all};
use crate::payload;
use crate::support::{MODES, PORT, Pair, counter, listen, network, until_ended};

/// Client, `count` nodes and server in a line.
fn line_of(count: usize) -> Network {
    network((0..=count).map(|_| Link::Veth))
}

/// The configuration of the node number `node` of a chain of `count`.
fn member(network: &Network, node: usize, count: usize, family: Family, accept: &str) -> String {
    let names: Vec<String> = (1..count).map(|node| format!("\"node-{node}\"")).collect();
    let mut text = format!("[node]\nid = {}\n{ALLOWED}", node + 1);
    text += &format!("[defaults]\naccept = \"{accept}\"\n");
    for neighbour in [node.checked_sub(1), Some(node + 1)].into_iter().flatten() {
        if neighbour < count {
            text += &peer(network, neighbour, family);
        }
    }
    if count > 1 {
        text += &format!(
            "[[chain]]\nname = \"line\"\nnumber = 7\nnodes = [{}]\n",
            names.join(", ")
        );
    }
    if node == 0 {
        text += "[[route]]\nchains = [\"line\"]\ndirect = false\n";
    } else {
        text += &explicit(network, node);
    }
    text
}

fn start_chain(network: &Network, count: usize, family: Family, accept: &str) -> Vec<Node> {
    start_all(
        network,
        (0..count).map(|node| member(network, node, count, family, accept)),
    )
}

#[test]
fn a_chain_of_nodes_carries_flows_in_every_mode() {
    let network = line_of(3);
    for accept in MODES {
        for hops in Family::ALL {
            let nodes = start_chain(&network, 3, hops, accept);
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
}
