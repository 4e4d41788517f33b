// SPDX-License-Identifier: Apache-2.0
//! Nodes of a chain that die or fall silent.

use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use posthaste_lab::network::{Family, Network};
use posthaste_lab::node::Node;
use serde_json::Value;

use crate::requests::start_all;
use crate::support::{
    PORT, Pair, SOON, counter, dial, expect_reset, firewall, listen, remove_firewall, target, until,
};

use super::{Plan, line_of};

/// The second and the fourth node, else the third and the fourth.
const TWO_WAYS: &[&[usize]] = &[&[1, 3], &[2, 3]];

fn two_ways(accept: &str, warm: bool) -> Plan<'_> {
    Plan {
        nodes: 4,
        chains: TWO_WAYS,
        accept,
        warm,
        ..Plan::of(3)
    }
}

/// Opens a connection that works, and returns how many relays each node has opened so far.
fn open_and_check(network: &Network, family: Family, nodes: &[Node]) -> Vec<u64> {
    let listener = listen(network.server(), PORT);
    open_and_check_with(network, family, &listener, nodes)
}

fn open_and_check_with(
    network: &Network,
    family: Family,
    listener: &TcpListener,
    nodes: &[Node],
) -> Vec<u64> {
    let mut pair = Pair::open(network, family, listener);
    pair.check();
    pair.close_client_first();
    let opened = nodes.iter().map(|node| counter(node, "relays_opened"));
    opened.collect()
}

// promise: K3
#[test]
fn dead_node_resets_relays() {
    for (accept, warm) in [("early", false), ("strict", true), ("late", true)] {
        let network = line_of(4);
        let mut nodes = two_ways(accept, warm).start(&network);
        let listener = listen(network.server(), PORT);
        let mut pairs = Family::ALL.map(|family| Pair::open(&network, family, &listener));
        pairs.iter_mut().for_each(Pair::check);
        assert_eq!(counter(&nodes[1], "relays"), 2, "{accept}");
        nodes[1].kill().expect("it was there");
        for pair in &mut pairs {
            expect_reset(&mut pair.client);
            expect_reset(&mut pair.server);
        }
        drop(listener);
        let alive = nodes.remove(1);
        drop(alive);
        for (count, family) in (1..).zip([Family::V4, Family::V6, Family::V4]) {
            let opened = open_and_check(&network, family, &nodes);
            assert_eq!(opened, [2 + count, count, 2 + count], "{accept}");
        }
    }
}

/// A busy machine makes some deaths known later, none sooner: the best of some counts.
// promise: B15
#[test]
fn silent_node_with_warm_hops() {
    for family in Family::ALL {
        let network = line_of(3);
        let plan = Plan {
            nodes: 3,
            chains: &[&[1], &[2]],
            hops: family,
            warm: true,
            ..Plan::of(3)
        };
        // Each worker notices by flows of its own.
        let one_worker = |config: String| config.replacen("[node]\n", "[node]\nworkers = 1\n", 1);
        let configs = (0..3).map(|node| one_worker(plan.config(&network, node)));
        let nodes = start_all(&network, configs);
        let listener = listen(network.server(), PORT);
        let elsewhere = listen(network.server(), PORT + 1);
        let query = crate::requests::LISTENER_PORT;
        let input = format!("tcp dport {query} drop");
        let output = format!("tcp sport {query} drop");
        let soon = (0..10).any(|_| {
            until("the first chain is up", || !is_down(&nodes[0], "node-1"));
            until("hops wait", || waiting(&nodes[0], "node-1") > 1);
            let before = counter(&nodes[1], "relays_opened");
            let opened = open_and_check_with(&network, family, &listener, &nodes);
            assert_eq!(opened[1], before + 1);
            firewall(
                network.node(1),
                "silence",
                &[("input", &input), ("output", &output)],
            );
            let since = Instant::now();
            // Flows that begin meanwhile fail with their hop, or arrive late: on a port of their
            // own, where the test does not mistake them for others.
            let target = target(&network, family, &elsewhere);
            let mut lost = Vec::new();
            while !is_down(&nodes[0], "node-1") {
                assert!(since.elapsed() < SOON, "the node detects nothing");
                lost.push(dial(network.client(), target));
                thread::sleep(Duration::from_millis(20));
            }
            let took = since.elapsed();
            drop(lost);
            let before = counter(&nodes[2], "relays_opened");
            let opened = open_and_check_with(&network, family, &listener, &nodes);
            assert!(opened[2] > before, "by the other chain");
            remove_firewall(network.node(1), "silence");
            took < Duration::from_secs(2)
        });
        assert!(soon, "{family}");
    }
}

/// The health of a peer, as the node reports it.
fn is_down(node: &Node, peer: &str) -> bool {
    known_peer(node, peer)["health"]["usable"] == false
}

fn waiting(node: &Node, peer: &str) -> u64 {
    known_peer(node, peer)["waiting"]
        .as_u64()
        .expect("a number")
}

fn known_peer(node: &Node, name: &str) -> Value {
    let chains = node.admin_json("chains").expect("the node answers");
    let peers = chains["peers"].as_array().expect("a list");
    let named = peers.iter().find(|peer| peer["name"] == name);
    named.expect("it is listed").clone()
}
