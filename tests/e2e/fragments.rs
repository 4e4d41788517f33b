// SPDX-License-Identifier: Apache-2.0
//! Connections with fragmented segments: from a router with a small MTU and senders without DF
//! (IPv4), and from translators between the families (IPv6).

use std::thread;

use posthaste_lab::link::{Link, split};
use posthaste_lab::netns::Namespace;
use posthaste_lab::network::{Family, Network, TO_CLIENT, TO_SERVER};
use posthaste_lab::node::Node;

use crate::payload;
use crate::support::{
    MODES_BY_PORT, PORT, Pair, counter, each_mode, kernel_counter, listen, network, start_relaying,
    start_relaying_in, until_ended,
};

/// Bytes sent each way.
const BYTES: u64 = 1_000_000;

/// Sends much in both directions at once, checks every byte of it, and closes.
fn exchange(network: &Network, family: Family, port: u16) {
    let listener = listen(network.server(), port);
    let pair = Pair::open(network, family, &listener);
    both_ways(&pair);
    pair.close_client_first();
}

/// Sends much in both directions at once, and checks every byte of it.
pub(crate) fn both_ways(pair: &Pair) {
    thread::scope(|scope| {
        for (mut from, mut to, seed) in [
            (&pair.client, &pair.server, 1),
            (&pair.server, &pair.client, 2),
        ] {
            scope.spawn(move || payload::send(&mut from, seed, BYTES).expect("bytes leave"));
            scope.spawn(move || payload::receive(&mut to, seed, BYTES).expect("bytes arrive"));
        }
    });
}

/// How many packets a host has put together from fragments.
pub(crate) fn reassembled(host: &Namespace, family: Family) -> u64 {
    if family == Family::V4 {
        return kernel_counter(host, "Ip", "ReasmOKs");
    }
    let read = || std::fs::read_to_string("/proc/thread-self/net/snmp6");
    let text = host.run_in(read).expect("the kernel shows its counters");
    let mut lines = text.lines();
    let value = lines.find_map(|line| line.strip_prefix("Ip6ReasmOKs"));
    value
        .expect("it is counted")
        .trim()
        .parse()
        .expect("a number")
}

/// Exchanges much by way of the node's host, which gets it in fragments from both sides.
fn exchange_in_fragments(network: &Network, host: &Namespace, family: Family, port: u16) {
    let before = reassembled(host, family);
    exchange(network, family, port);
    let count = reassembled(host, family) - before;
    assert!(
        u128::from(count) > u128::from(BYTES) / 1500,
        "{family}: {count}"
    );
}

fn expect_relayed(node: &Node, count: u64) {
    until_ended(node, "finished", count);
    assert_eq!(counter(node, "relays_opened"), count);
}

// promise: T17
#[test]
fn fragments_of_relayed_flow() {
    let small = Link::Veth.rewrites(split::split);
    let network = network([small.clone(), small]);
    let node = start_relaying(&network, &each_mode());
    let each = MODES_BY_PORT.map(|(_, port)| Family::ALL.map(|family| (port, family)));
    for (count, (port, family)) in (1..).zip(each.concat()) {
        exchange_in_fragments(&network, network.node(0), family, port);
        expect_relayed(&node, count);
    }
}

// promise: T17
#[test]
fn router_fragments_relayed() {
    let network = network([Link::Veth, Link::Veth, Link::Veth, Link::Veth]);
    for host in [network.client(), network.server()] {
        host.sysctl("net.ipv4.ip_no_pmtu_disc", "1")
            .expect("a namespace has its own way");
    }
    for (router, route) in [
        (0, format!("10.0.3.2 via 10.0.1.2 dev {TO_SERVER}")),
        (2, format!("10.0.0.1 via 10.0.2.1 dev {TO_CLIENT}")),
    ] {
        let host = network.node(router);
        host.ip(&format!("route add {route} mtu lock 700"))
            .expect("a route can be added");
    }
    let node = start_relaying_in(network.node(1), "");
    exchange_in_fragments(&network, network.node(1), Family::V4, PORT);
    expect_relayed(&node, 1);
}
