// SPDX-License-Identifier: Apache-2.0
//! Flows that nodes carry together: the first is on the path of its clients, the others are asked.

use std::net::SocketAddr;

use posthaste_lab::link::Link;
use posthaste_lab::network::{Family, Network};
use posthaste_lab::node::Node;

use crate::payload;
use crate::support::{MODES, PORT, Pair, counter, listen, network, start_in, until_ended};

/// Where nodes are asked for flows.
const ASK_PORT: u16 = 4480;
const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
/// The networks of the tests.
const ALLOWED: &str = "[access]\ndestinations = [\"10.0.0.0/8\", \"fd00::/8\"]\n";

/// Client, `count` nodes and server in a line.
fn line_of(count: usize) -> Network {
    network((0..=count).map(|_| Link::Veth))
}

fn listener(network: &Network, node: usize, family: Family) -> SocketAddr {
    SocketAddr::new(network.node_address(node, family), ASK_PORT)
}

/// What a node says of the next one: number, address, and that the two share a key.
fn peer(network: &Network, node: usize, family: Family) -> String {
    let address = listener(network, node, family);
    format!(
        "[[peer]]\nname = \"node-{node}\"\nid = {id}\naddress = \"{address}\"\nkey = \"{KEY}\"\n\
         pool_max = 0\n",
        id = node + 1,
    )
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
        text += "[transparent]\nenabled = false\n";
        for family in Family::ALL {
            let address = listener(network, node, family);
            text += &format!("[[listener]]\nmode = \"explicit\"\naddress = \"{address}\"\n");
        }
    }
    text
}

fn start_chain(network: &Network, count: usize, family: Family, accept: &str) -> Vec<Node> {
    let configs = (0..count).map(|node| member(network, node, count, family, accept));
    let nodes = configs.enumerate();
    nodes
        .map(|(node, config)| start_in(network.node(node), &config))
        .collect()
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
