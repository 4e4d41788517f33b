// SPDX-License-Identifier: Apache-2.0
//! Servers and routers on a link of the node that do not answer ARP or neighbour discovery. The
//! node's kernel detects that, and sends the error to the source of the packet: the client,
//! because the upstream connection uses its address.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use posthaste_lab::network::{Network, TO_SERVER};
use posthaste_lab::node::Node;

use crate::support::{
    PORT, SOON, accepting, counter, dial, each_mode, errno, expect_accepted_and_reset, line,
    start_relaying, talkative, until, until_counter,
};
use crate::watch::relay_lines;

/// Unused addresses on the node's link to the server.
const ABSENT: [&str; 2] = ["10.0.1.7", "fd00:0:0:1::7"];
/// Addresses on that link with a stale neighbour entry.
const GONE: [&str; 2] = ["10.0.1.8", "fd00:0:0:1::8"];
/// Addresses behind a router that is absent.
const BEYOND: [&str; 2] = ["10.200.9.1", "fd00:200:9::1"];

fn address(text: &str) -> SocketAddr {
    SocketAddr::new(text.parse().expect("an address"), PORT)
}

/// Has the node believe in neighbours that are not there, and returns whom one cannot reach by them.
fn targets(network: &Network) -> Vec<SocketAddr> {
    let ip = |words: String| {
        let done = network.node(0).ip(&words);
        done.expect("a node has routes and neighbours of its own");
    };
    for ((absent, gone), beyond) in ABSENT.into_iter().zip(GONE).zip(BEYOND) {
        ip(format!(
            "route replace {beyond} via {absent} dev {TO_SERVER}"
        ));
        let link_address = "02:00:00:00:00:08";
        ip(format!(
            "neigh replace {gone} lladdr {link_address} dev {TO_SERVER} nud stale"
        ));
    }
    [ABSENT, GONE, BEYOND]
        .concat()
        .into_iter()
        .map(address)
        .collect()
}

/// Connects to all at once: the error number and the time of each attempt.
fn attempt_all(network: &Network, targets: &[SocketAddr]) -> Vec<(Option<i32>, Duration)> {
    thread::scope(|scope| {
        let attempt = |to: &SocketAddr| {
            let to = *to;
            scope.spawn(move || {
                let begin = Instant::now();
                (errno(&dial(network.client(), to)), begin.elapsed())
            })
        };
        let attempts: Vec<_> = targets.iter().map(attempt).collect();
        let finished = attempts.into_iter().map(thread::ScopedJoinHandle::join);
        finished.map(|result| result.expect("no panic")).collect()
    })
}

/// How relays end for want of an answer.
const OUTCOMES: [&str; 2] = ["connect_timeout", "upstream_unreachable"];

/// How the relays to a server ended, one after the other.
fn outcomes_to(node: &Node, server: SocketAddr) -> Vec<String> {
    let lines = relay_lines(node).into_iter();
    let those = lines.filter(|line| line["server"] == server.to_string());
    those.map(|line| line["outcome"].clone()).collect()
}

// promise: A4
#[test]
fn strict_with_silent_neighbour() {
    let network = line();
    talkative(network.nodes());
    let direct = attempt_all(&network, &targets(&network));
    let node = start_relaying(&network, &accepting("strict"));
    let targets = targets(&network);
    let relayed = attempt_all(&network, &targets);
    for ((to, direct), relayed) in targets.iter().zip(&direct).zip(&relayed) {
        assert_eq!(direct.0, Some(libc::EHOSTUNREACH), "{to} directly");
        assert_eq!(relayed.0, direct.0, "{to}: {relayed:?}, {direct:?}");
        // The client's own patience ends after two minutes.
        assert!(relayed.1 < direct.1 + SOON, "{to}: {relayed:?}, {direct:?}");
    }
    until_counter(&node, "relays", 0);
    for to in &targets {
        let outcomes = outcomes_to(&node, *to);
        if GONE.map(address).contains(to) {
            // The SYN went to a neighbour that was there before, and the kernel detects after
            // seconds that it is not. By then the node has given up the held SYN as unanswered.
            // Each SYN of the client that is not forwarded starts another relay, before or after
            // that: their number and outcomes depend on the kernels' timers.
            let is_expected = |outcome: &String| OUTCOMES.contains(&&**outcome);
            assert!(!outcomes.is_empty(), "{to}");
            assert!(outcomes.iter().all(is_expected), "{to}: {outcomes:?}");
        } else {
            assert_eq!(outcomes, ["upstream_unreachable"], "{to}");
        }
    }
    assert_eq!(
        counter(&node, "syns_forwarded"),
        counter(&node, "relays_opened")
    );
    assert_eq!(counter(&node, "half_open"), 0);
}

// promise: A4
#[test]
fn short_connect_timeout() {
    let network = line();
    talkative(network.nodes());
    let timeouts = "[defaults.timeouts]\nconnect = \"500ms\"\n";
    let node = start_relaying(&network, &format!("{}{timeouts}", accepting("strict")));
    let targets = targets(&network);
    for (to, (errno, _)) in targets.iter().zip(attempt_all(&network, &targets)) {
        assert_eq!(errno, Some(libc::EHOSTUNREACH), "{to}");
    }
    until_counter(&node, "relays", 0);
}

// promise: A2, A6
#[test]
fn silent_neighbour_resets_client() {
    let network = line();
    talkative(network.nodes());
    let timeouts = "[defaults.timeouts]\nconnect = \"10m\"\n";
    let node = start_relaying(&network, &format!("{timeouts}{}", each_mode()));
    for (mode, port) in [("early", 1080), ("late", 3080)] {
        let targets = ABSENT.map(|text| SocketAddr::new(address(text).ip(), port));
        thread::scope(|scope| {
            for to in targets {
                let client = network.client();
                scope.spawn(move || {
                    expect_accepted_and_reset(dial(client, to));
                    let again = dial(client, to);
                    if mode == "early" {
                        assert_eq!(errno(&again), Some(libc::EHOSTUNREACH), "{to}");
                    } else {
                        expect_accepted_and_reset(again);
                    }
                });
            }
        });
        until_counter(&node, "relays", 0);
        for to in targets {
            until("both are logged", || outcomes_to(&node, to).len() >= 2);
            let outcomes = outcomes_to(&node, to);
            assert_eq!(outcomes.len(), 2, "{mode} {to}: {outcomes:?}");
            assert_eq!(outcomes[0], "upstream_unreachable", "{mode} {to}");
            // Its SYN joins what waits for the neighbour since the first attempt. The kernel drops that
            // after three seconds, and the node may look before or behind that.
            assert!(
                OUTCOMES.contains(&&*outcomes[1]),
                "{mode} {to}: {outcomes:?}"
            );
        }
        // The destination of an early flow is remembered.
        assert_eq!(counter(&node, mode), if mode == "early" { 2 } else { 4 });
        assert_eq!(counter(&node, "half_open"), 0);
    }
}
