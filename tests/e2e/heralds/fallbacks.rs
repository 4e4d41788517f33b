// SPDX-License-Identifier: Apache-2.0
//! Options that do not arrive, or are not heeded: the flow is opened all the same.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use posthaste_lab::network::{Family, Network};
use posthaste_lab::node::Node;
use serde_json::Value;

use crate::asking::start_all;
use crate::chains::{Plan, line_of};
use crate::support::{
    PORT, Pair, counter, ended, firewall, firewall_text, listen, remove_firewall, until_ended,
};
use crate::watch::wait_for_line;

use super::{chain_of, exchange, heralds};

/// How many a peer may leave unheeded before it is sent none for a while.
const MISSES_MAX: u64 = 3;
/// What SYNs with an option of ours have.
const HERALD: &str = "tcp option 253 exists";

/// A chain of two nodes; what leaves the first is subject to `rule`.
fn behind(rule: &str) -> (Network, Vec<Node>) {
    let network = line_of(2);
    firewall(network.node(0), "middlebox", &[("output", rule)]);
    let nodes = start(&network, [chain_of(2), chain_of(2)]);
    (network, nodes)
}

/// Starts nodes of one worker each: each worker finds out for itself what a peer heeds.
fn start(network: &Network, plans: [Plan<'_>; 2]) -> Vec<Node> {
    let configs = [0, 1].map(|node| {
        let config = plans[node].config(network, node);
        config.replace("[node]\n", "[node]\nworkers = 1\n")
    });
    start_all(network, configs.into_iter())
}

/// The first node's own words on the way to the server.
fn explained(node: &Node, network: &Network, family: Family) -> Value {
    let to = SocketAddr::new(network.server_address(family), PORT);
    let explained = node.admin_json(&format!("chains explain {to}"));
    explained.expect("the node explains")["ways"]["candidates"][0].clone()
}

#[test]
fn an_option_that_is_stripped_costs_no_connection_and_is_not_sent_for_ever() {
    let (network, nodes) = behind("tcp flags syn reset tcp option 253");
    let started = Instant::now();
    for flows in 1..=5 {
        exchange(&network, Family::V4);
        until_ended(&nodes[1], "finished", flows);
    }
    // A pause ends after a minute.
    if started.elapsed() < Duration::from_secs(50) {
        assert_eq!(heralds(&nodes[0]), [MISSES_MAX, 0, MISSES_MAX, 0, 0]);
        let way = explained(&nodes[0], &network, Family::V4);
        assert_eq!(way["carrier"], "convert", "{way}");
        assert_eq!(way["no_option"], "the peer did not heed the last ones");
    }
    assert_eq!(heralds(&nodes[1]), [0; 5]);
    assert_eq!(counter(&nodes[0], "hops_failed"), 0);
    assert_eq!(counter(&nodes[1], "relays_opened"), 5);
}

#[test]
fn one_option_that_is_heeded_makes_up_for_those_that_were_not() {
    let (network, nodes) = behind("tcp flags syn reset tcp option 253");
    for _ in 1..MISSES_MAX {
        exchange(&network, Family::V4);
    }
    remove_firewall(network.node(0), "middlebox");
    for _ in 0..MISSES_MAX {
        exchange(&network, Family::V4);
    }
    until_ended(&nodes[0], "finished", 2 * MISSES_MAX - 1);
    assert_eq!(heralds(&nodes[0]), [5, 3, 2, 0, 0]);
    let way = explained(&nodes[0], &network, Family::V4);
    assert_eq!(
        (way["carrier"].as_str(), &way["no_option"]),
        (Some("option"), &Value::Null)
    );
}

#[test]
fn a_syn_that_is_lost_for_its_option_is_repeated_without() {
    let (network, nodes) = behind(&format!("{HERALD} counter drop"));
    exchange(&network, Family::V4);
    until_ended(&nodes[0], "finished", 1);
    let dropped = firewall_text(network.node(0), "middlebox");
    assert!(dropped.contains("counter packets 1 "), "{dropped}");
    assert_eq!(heralds(&nodes[0]), [1, 0, 1, 0, 0]);
    assert_eq!(counter(&nodes[0], "hops_cold"), 1, "the same connection");
}

#[test]
fn a_syn_that_is_refused_for_its_option_is_sent_again_without() {
    let (network, nodes) = behind(&format!("{HERALD} counter reject with tcp reset"));
    exchange(&network, Family::V4);
    until_ended(&nodes[0], "finished", 1);
    assert_eq!(heralds(&nodes[0]), [1, 0, 1, 0, 0]);
    assert_eq!(counter(&nodes[0], "hops_cold"), 2, "another connection");
    assert_eq!(counter(&nodes[0], "hops_failed"), 0);
}

/// What is opened at an option that says something else than the request is let go, and the request
/// granted.
#[test]
fn the_request_counts_and_not_the_option() {
    // The port of the destination in the option, which is behind 20 bytes of others.
    let (network, nodes) = behind(&format!("{HERALD} @th,384,16 set 81"));
    exchange(&network, Family::V4);
    until_ended(&nodes[0], "finished", 1);
    assert_eq!(heralds(&nodes[0]), [1, 0, 1, 0, 0]);
    until_ended(&nodes[1], "finished", 1);
    assert_eq!(heralds(&nodes[1]), [0, 0, 0, 1, 1]);
    assert_eq!(ended(&nodes[1], "finished"), 1);
    assert_eq!(counter(&nodes[1], "relays_opened"), 2);
    assert_eq!(counter(&nodes[1], "half_open"), 0);
    wait_for_line(&nodes[1], &[":81 ", "outcome=client_absent"]);
    let log = nodes[1].log();
    let forsaken = |line: &&String| line.contains(":81 ") && line.contains("outcome=");
    assert_eq!(log.iter().filter(forsaken).count(), 1, "{log:?}");
}

#[test]
fn a_lost_answer_to_an_option_costs_its_repetition_and_opens_nothing_twice() {
    let network = line_of(2);
    let answer =
        "tcp sport 4480 tcp flags & (syn | ack) == (syn | ack) quota until 100 bytes counter drop";
    firewall(network.node(1), "losses", &[("output", answer)]);
    let nodes = chain_of(2).start(&network);
    exchange(&network, Family::V4);
    for node in &nodes {
        until_ended(node, "finished", 1);
        assert_eq!(counter(node, "relays_opened"), 1);
    }
    let dropped = firewall_text(network.node(1), "losses");
    assert!(dropped.contains("counter packets 1 "), "{dropped}");
    assert_eq!(heralds(&nodes[0]), [1, 1, 0, 0, 0]);
    assert_eq!(heralds(&nodes[1]), [0, 0, 0, 1, 1]);
}

#[test]
fn syn_cookies_at_the_next_node_lose_no_option() {
    let network = line_of(3);
    for node in &network.nodes()[..3] {
        node.sysctl("net.ipv4.tcp_syncookies", "2")
            .expect("a namespace has its own");
    }
    let nodes = chain_of(3).start(&network);
    for flows in 1..=3 {
        exchange(&network, Family::V4);
        until_ended(&nodes[0], "finished", flows);
        assert_eq!(heralds(&nodes[0]), [flows, flows, 0, 0, 0]);
        until_ended(&nodes[2], "finished", flows);
        assert_eq!(heralds(&nodes[2]), [0, 0, 0, flows, flows]);
        assert_eq!(counter(&nodes[2], "relays_opened"), flows);
    }
}

#[test]
fn a_peer_that_does_not_take_options_is_asked_without_after_some() {
    let network = line_of(2);
    let nodes = start(&network, [chain_of(2), Plan::of(2)]);
    for flows in 1..=MISSES_MAX {
        exchange(&network, Family::V4);
        until_ended(&nodes[0], "finished", flows);
    }
    assert_eq!(heralds(&nodes[0]), [MISSES_MAX, 0, MISSES_MAX, 0, 0]);
    assert_eq!(counter(&nodes[1], "heralds_opened"), 0);
    exchange(&network, Family::V4);
    until_ended(&nodes[1], "finished", MISSES_MAX + 1);
}

#[test]
fn what_is_not_ipv4_is_carried_without() {
    for (hops, family, why) in [
        (Family::V4, Family::V6, "the destination is IPv6"),
        (Family::V6, Family::V4, "the address of the peer is IPv6"),
        (Family::V6, Family::V6, "the address of the peer is IPv6"),
    ] {
        let network = line_of(3);
        let nodes = Plan {
            hops,
            ..chain_of(3)
        }
        .start(&network);
        let listener = listen(network.server(), PORT);
        let mut pair = Pair::open(&network, family, &listener);
        pair.check();
        pair.close_client_first();
        for node in &nodes {
            until_ended(node, "finished", 1);
            assert_eq!(heralds(node), [0; 5], "{hops} {family}");
        }
        let way = explained(&nodes[0], &network, family);
        assert_eq!(way["no_option"], why, "{way}");
    }
}
