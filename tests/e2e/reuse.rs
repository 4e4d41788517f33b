// SPDX-License-Identifier: Apache-2.0
//! One client port used repeatedly, whichever end closes first: the resulting TIME_WAIT sockets on
//! the node, on either side, block no connection.

use std::net::SocketAddr;

use posthaste_lab::netns::Namespace;
use posthaste_lab::network::{Family, Network};

use crate::support::{
    MODES_BY_PORT, Pair, counter, dial_from, each_mode, expect_reset, kernel_counter, line, listen,
    reset, start_relaying, target, until, until_counter, until_ended,
};
use crate::watch::sockets;

/// Connections made in a row: fewer than show that the client is near, whose early flows then open late.
const TIMES: u64 = 15;

/// Repetitions that a busy machine may cause. What goes wrong systematically, does so each time.
const REPEATED_MAX: u64 = TIMES / 5;

/// SYNs that had to be sent again because nothing answered them for a second.
fn repeated_syns(network: &Network) -> u64 {
    let hosts = [network.client(), network.node(0)];
    let of = |host| kernel_counter(host, "TcpExt", "TCPSynRetrans");
    hosts.into_iter().map(of).sum()
}

/// Connects many times from the same port, and lets `close` end each connection.
fn connect_often(network: &Network, family: Family, port: u16, close: impl Fn(Pair)) {
    let listener = listen(network.server(), port);
    let to = target(network, family, &listener);
    let from = SocketAddr::new(network.client_address(family), 7777);
    let before = repeated_syns(network);
    for _ in 0..TIMES {
        let mut pair = Pair::of(dial_from(network.client(), from, to), &listener);
        pair.check();
        close(pair);
    }
    let repeated = repeated_syns(network) - before;
    assert!(repeated <= REPEATED_MAX, "{family}: {repeated} stalled");
}

/// Waits until the node's host has no socket in TIME_WAIT, where the kernel would keep it for a minute.
fn until_none_waits(network: &Network) {
    let waiting = || sockets(network.node(0), "time-wait");
    until("the end of TIME_WAIT", || waiting().is_empty());
}

/// A client that may use its ports again at once, whatever it closed before.
fn forgetful(client: &Namespace) {
    client
        .sysctl("net.ipv4.tcp_max_tw_buckets", "0")
        .expect("a namespace has its own limit");
}

fn without_timestamps(host: &Namespace) {
    host.sysctl("net.ipv4.tcp_timestamps", "0")
        .expect("a namespace has its own choice");
}

// promise: T11
#[test]
fn reuse_after_client_close() {
    let network = line();
    let node = start_relaying(&network, &each_mode());
    for (mode, port) in MODES_BY_PORT {
        for family in Family::ALL {
            connect_often(&network, family, port, Pair::close_client_first);
        }
        assert_eq!(counter(&node, mode), 2 * TIMES);
    }
    until_ended(&node, "finished", 6 * TIMES);
    assert_eq!(counter(&node, "port_fallbacks"), 0);
    until_none_waits(&network);
}

// promise: T11
#[test]
fn reuse_after_server_close() {
    let network = line();
    let node = start_relaying(&network, &each_mode());
    for (mode, port) in MODES_BY_PORT {
        for family in Family::ALL {
            connect_often(&network, family, port, Pair::close_server_first);
        }
        assert_eq!(counter(&node, mode), 2 * TIMES);
    }
    until_ended(&node, "finished", 6 * TIMES);
    assert_eq!(counter(&node, "port_fallbacks"), 0);
    until_none_waits(&network);
}

// promise: T11
#[test]
fn reuse_client_without_timestamps() {
    let network = line();
    forgetful(network.client());
    without_timestamps(network.client());
    let node = start_relaying(&network, &each_mode());
    for (_, port) in MODES_BY_PORT {
        for family in Family::ALL {
            connect_often(&network, family, port, Pair::close_client_first);
            connect_often(&network, family, port, Pair::close_server_first);
        }
    }
    until_ended(&node, "finished", 12 * TIMES);
    assert_eq!(counter(&node, "port_fallbacks"), 0);
}

// promise: T11
#[test]
fn reuse_server_without_timestamps() {
    let network = line();
    without_timestamps(network.server());
    let node = start_relaying(&network, &each_mode());
    for (_, port) in MODES_BY_PORT {
        for family in Family::ALL {
            connect_often(&network, family, port, |pair| {
                pair.close_client_first();
                // A client that reconnects before the socket is removed gets another port.
                until_none_waits(&network);
            });
        }
    }
    assert_eq!(counter(&node, "port_fallbacks"), 0);
    until_ended(&node, "finished", 6 * TIMES);
    until_counter(&node, "half_open", 0);
}

// promise: T11
#[test]
fn reuse_after_resets() {
    let network = line();
    let node = start_relaying(&network, &each_mode());
    for (_, port) in MODES_BY_PORT {
        for family in Family::ALL {
            connect_often(&network, family, port, |pair| {
                reset(pair.client);
                let mut server = pair.server;
                expect_reset(&mut server);
            });
            connect_often(&network, family, port, |pair| {
                reset(pair.server);
                let mut client = pair.client;
                expect_reset(&mut client);
            });
        }
    }
    until_ended(&node, "downstream_reset", 6 * TIMES);
    until_ended(&node, "upstream_reset", 6 * TIMES);
    assert_eq!(counter(&node, "port_fallbacks"), 0);
}
