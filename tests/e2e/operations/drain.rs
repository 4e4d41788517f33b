// SPDX-License-Identifier: Apache-2.0
//! A node that drains: it forwards new flows at once, lets open relays finish until the deadline,
//! resets the rest, and leaves nothing behind.

use std::time::Duration;

use nix::sys::signal::Signal;
use posthaste_lab::network::{Family, Network};
use posthaste_lab::node::Node;

use super::METRICS;
use crate::support::{
    PORT, Pair, SOON, binary, counter, expect_reset, line, listen, start, start_relaying, until,
};
use crate::watch::{assert_nothing_left, http_get, relay_lines, wait_for_line};

// promise: F6, W3
#[test]
fn drain_finishes_relays() {
    let network = line();
    let host = network.node(0);
    let listener = listen(network.server(), PORT);
    let mut node = Node::builder(host, binary())
        .relaying()
        .metrics(METRICS)
        .start()
        .unwrap();
    let mut open = Family::ALL.map(|family| Pair::open(&network, family, &listener));
    open.iter_mut().for_each(Pair::check);
    assert_eq!(http_get(host, METRICS, "/readyz"), (200, "ready\n".into()));
    node.process().signal(Signal::SIGTERM).unwrap();
    until("drain", || http_get(host, METRICS, "/readyz").0 == 503);
    assert_eq!(node.status().unwrap()["state"], "draining");
    for family in Family::ALL {
        let mut direct = Pair::open(&network, family, &listener);
        direct.check();
        direct.close_client_first();
    }
    assert_eq!(counter(&node, "relays_opened"), 2);
    open.iter_mut().for_each(Pair::check);
    let [first, second] = open;
    first.close_client_first();
    assert!(node.process_mut().ended().unwrap().is_none(), "one is open");
    second.close_server_first();
    let status = node.process_mut().wait(SOON).unwrap();
    assert_eq!(status.code(), Some(0));
    assert_nothing_left(host);
    assert!(!node.socket().exists());
    assert_eq!(codes(&node), ["--", "--"]);
}

/// The codes of ended relays, in the order of the log.
fn codes(node: &Node) -> Vec<String> {
    let lines = relay_lines(node);
    lines.iter().map(|line| line["code"].clone()).collect()
}

// promise: F6
#[test]
fn drain_deadline_resets() {
    let network = line();
    let mut node = start_relaying(&network, "[node]\ndrain_timeout = \"100ms\"\n");
    let open = open(&network);
    let status = node.stop(SOON).unwrap();
    ends_drained(&network, &node, status.code(), open);
}

/// Opens a relay of either family.
fn open(network: &Network) -> [Pair; 2] {
    let listener = listen(network.server(), PORT);
    Family::ALL.map(|family| {
        let mut pair = Pair::open(network, family, &listener);
        pair.check();
        pair
    })
}

fn ends_drained(network: &Network, node: &Node, code: Option<i32>, open: [Pair; 2]) {
    assert_eq!(code, Some(0), "{:#?}", node.log());
    for mut pair in open {
        expect_reset(&mut pair.client);
        expect_reset(&mut pair.server);
    }
    let lines = relay_lines(node);
    assert_eq!(lines.len(), 2);
    for line in lines {
        assert_eq!((&*line["outcome"], &*line["code"]), ("drained", "KF"));
    }
    assert_nothing_left(network.node(0));
}

// promise: F6
#[test]
fn drain_verb_deadline() {
    let network = line();
    let mut node = start_relaying(&network, "");
    let open = open(&network);
    let answer = node.admin_json("drain --timeout 0.1").unwrap();
    assert_eq!(answer["relays"], 2);
    let status = node.process_mut().wait(SOON).unwrap();
    ends_drained(&network, &node, status.code(), open);
}

// promise: F6
#[test]
fn second_signal_ends_drain() {
    let network = line();
    let mut node = start_relaying(&network, "[node]\ndrain_timeout = \"1h\"\n");
    let open = open(&network);
    node.process().signal(Signal::SIGTERM).unwrap();
    wait_for_line(&node, &["msg=\"the node drains\"", "deadline_s=3600"]);
    let status = node.stop(SOON).unwrap();
    ends_drained(&network, &node, status.code(), open);
}

// promise: F6
#[test]
fn idle_node_ends_at_once() {
    let network = line();
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut node = start(&network, "[node]\ndrain_timeout = \"1h\"\n");
        node.process().signal(signal).unwrap();
        let status = node.process_mut().wait(Duration::from_secs(60)).unwrap();
        assert_eq!(status.code(), Some(0));
        assert_nothing_left(network.node(0));
    }
}
