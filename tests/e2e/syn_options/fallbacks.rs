// SPDX-License-Identifier: Apache-2.0
//! Options that do not arrive, or are not accepted: the flow is opened all the same.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use posthaste_lab::network::{Family, Network};
use posthaste_lab::node::Node;
use serde_json::Value;

use crate::chains::{Plan, line_of};
use crate::requests::start_all;
use crate::support::{
    PORT, Pair, counter, ended, firewall, firewall_text, listen, remove_firewall, until_ended,
};
use crate::watch::wait_for_line;

use super::{chain_of, exchange, syn_options};

/// How many a peer may leave ignored before it is sent none for a while.
const MISSES_MAX: u64 = 3;
/// What SYNs with an option of ours have.
const OPTION_EXISTS: &str = "tcp option 253 exists";

/// A chain of two nodes; what leaves the first is subject to `rule`.
fn behind(rule: &str) -> (Network, Vec<Node>) {
    let network = line_of(2);
    firewall(network.node(0), "middlebox", &[("output", rule)]);
    let nodes = start(&network, [chain_of(2), chain_of(2)]);
    (network, nodes)
}

/// Starts nodes of one worker each: each worker finds out for itself what a peer accepts.
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
    explained.expect("the node explains")["next_hops"]["candidates"][0].clone()
}

// promise: K11
#[test]
fn stripped_option_backs_off() {
    let (network, nodes) = behind("tcp flags syn reset tcp option 253");
    let started = Instant::now();
    for flows in 1..=5 {
        exchange(&network, Family::V4);
        until_ended(&nodes[1], "finished", flows);
    }
    // A pause ends after a minute.
    if started.elapsed() < Duration::from_secs(50) {
        assert_eq!(syn_options(&nodes[0]), [MISSES_MAX, 0, MISSES_MAX, 0, 0]);
        let way = explained(&nodes[0], &network, Family::V4);
        assert_eq!(way["header_in"], "stream", "{way}");
        assert_eq!(way["no_option"], "the peer did not accept the last ones");
    }
    assert_eq!(syn_options(&nodes[1]), [0; 5]);
    assert_eq!(counter(&nodes[0], "hops_failed"), 0);
    assert_eq!(counter(&nodes[1], "relays_opened"), 5);
}

// promise: K12
#[test]
fn accepted_option_resets_backoff() {
    let (network, nodes) = behind("tcp flags syn reset tcp option 253");
    for _ in 1..MISSES_MAX {
        exchange(&network, Family::V4);
    }
    remove_firewall(network.node(0), "middlebox");
    for _ in 0..MISSES_MAX {
        exchange(&network, Family::V4);
    }
    until_ended(&nodes[0], "finished", 2 * MISSES_MAX - 1);
    assert_eq!(syn_options(&nodes[0]), [5, 3, 2, 0, 0]);
    let way = explained(&nodes[0], &network, Family::V4);
    assert_eq!(
        (way["header_in"].as_str(), &way["no_option"]),
        (Some("syn-option"), &Value::Null)
    );
}

// promise: K11
#[test]
fn lost_syn_repeats_plain() {
    let (network, nodes) = behind(&format!("{OPTION_EXISTS} counter drop"));
    exchange(&network, Family::V4);
    until_ended(&nodes[0], "finished", 1);
    let dropped = firewall_text(network.node(0), "middlebox");
    assert!(dropped.contains("counter packets 1 "), "{dropped}");
    assert_eq!(syn_options(&nodes[0]), [1, 0, 1, 0, 0]);
    assert_eq!(counter(&nodes[0], "hops_cold"), 1, "the same connection");
}

// promise: K11
#[test]
fn refused_syn_repeats_plain() {
    let (network, nodes) = behind(&format!("{OPTION_EXISTS} counter reject with tcp reset"));
    exchange(&network, Family::V4);
    until_ended(&nodes[0], "finished", 1);
    assert_eq!(syn_options(&nodes[0]), [1, 0, 1, 0, 0]);
    assert_eq!(counter(&nodes[0], "hops_cold"), 2, "another connection");
    assert_eq!(counter(&nodes[0], "hops_failed"), 0);
}

/// The node resets what a differing option opened, and grants the request.
// promise: Q16
#[test]
fn request_overrides_option() {
    // The port of the destination in the option, which is behind 20 bytes of others.
    let (network, nodes) = behind(&format!("{OPTION_EXISTS} @th,384,16 set 81"));
    exchange(&network, Family::V4);
    until_ended(&nodes[0], "finished", 1);
    assert_eq!(syn_options(&nodes[0]), [1, 0, 1, 0, 0]);
    until_ended(&nodes[1], "finished", 1);
    assert_eq!(syn_options(&nodes[1]), [0, 0, 0, 1, 1]);
    assert_eq!(ended(&nodes[1], "finished"), 1);
    assert_eq!(counter(&nodes[1], "relays_opened"), 2);
    assert_eq!(counter(&nodes[1], "half_open"), 0);
    wait_for_line(&nodes[1], &[":81 ", "outcome=client_absent"]);
    let log = nodes[1].log();
    let forsaken = |line: &&String| line.contains(":81 ") && line.contains("outcome=");
    assert_eq!(log.iter().filter(forsaken).count(), 1, "{log:?}");
}

// promise: K11
#[test]
fn lost_answers_open_once() {
    for lost in 1..=2 {
        let network = line_of(2);
        // A SYN-ACK has 60 bytes.
        let answers = format!(
            "tcp sport 4480 tcp flags & (syn | ack) == (syn | ack) quota until {} bytes counter drop",
            60 * lost
        );
        firewall(network.node(1), "losses", &[("output", &answers)]);
        let nodes = chain_of(2).start(&network);
        exchange(&network, Family::V4);
        for node in &nodes {
            until_ended(node, "finished", 1);
            assert_eq!(counter(node, "relays_opened"), 1, "{lost} lost");
        }
        let dropped = firewall_text(network.node(1), "losses");
        assert!(
            dropped.contains(&format!("counter packets {lost} ")),
            "{dropped}"
        );
        assert_eq!(syn_options(&nodes[0]), [1, 1, 0, 0, 0], "{lost} lost");
        assert_eq!(syn_options(&nodes[1]), [0, 0, 0, 1, 1], "{lost} lost");
    }
}

// promise: K11
#[test]
fn option_with_syn_cookies() {
    let network = line_of(3);
    for node in &network.nodes()[..3] {
        node.sysctl("net.ipv4.tcp_syncookies", "2")
            .expect("a namespace has its own");
    }
    let nodes = chain_of(3).start(&network);
    for flows in 1..=3 {
        exchange(&network, Family::V4);
        until_ended(&nodes[0], "finished", flows);
        assert_eq!(syn_options(&nodes[0]), [flows, flows, 0, 0, 0]);
        until_ended(&nodes[2], "finished", flows);
        assert_eq!(syn_options(&nodes[2]), [0, 0, 0, flows, flows]);
        assert_eq!(counter(&nodes[2], "relays_opened"), flows);
    }
}

// promise: K11
#[test]
fn unsupporting_peer_spared() {
    let network = line_of(2);
    let nodes = start(&network, [chain_of(2), Plan::of(2)]);
    for flows in 1..=MISSES_MAX {
        exchange(&network, Family::V4);
        until_ended(&nodes[0], "finished", flows);
    }
    assert_eq!(syn_options(&nodes[0]), [MISSES_MAX, 0, MISSES_MAX, 0, 0]);
    assert_eq!(counter(&nodes[1], "syn_options_opened"), 0);
    exchange(&network, Family::V4);
    until_ended(&nodes[1], "finished", MISSES_MAX + 1);
}

// promise: K11
#[test]
fn ipv6_without_option() {
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
            assert_eq!(syn_options(node), [0; 5], "{hops} {family}");
        }
        let way = explained(&nodes[0], &network, family);
        assert_eq!(way["no_option"], why, "{way}");
    }
}
