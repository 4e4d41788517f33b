// SPDX-License-Identifier: Apache-2.0
//! Clients and servers with Multipath TCP (RFC 8684) on one side of a node.

use posthaste_lab::network::Family;
use socket2::Protocol;

use crate::support::{MODES_BY_PORT, counter, each_mode, until_counter, until_ended};

mod ends;
mod hops;
mod joins;
mod listeners;
mod testbed;

use testbed::{TRANSFER, TwoPaths, address, multipath, transfer, until_joined};

/// A node that answers Multipath TCP in one accept mode.
fn converting(mode: &str) -> String {
    format!("[defaults]\naccept = {mode:?}\nmultipath = \"convert\"\n")
}

/// The same in each mode, by port.
fn converting_in_each_mode() -> String {
    format!("[defaults]\nmultipath = \"convert\"\n{}", each_mode())
}

// promise: MP1
#[test]
fn two_paths_to_a_server_with_tcp() {
    let bed = TwoPaths::new();
    let node = bed.node(&converting_in_each_mode());
    let mut count = 0;
    for (mode, port) in MODES_BY_PORT {
        for family in Family::ALL {
            count += 1;
            let listener = bed.listen_at(port, family, Protocol::TCP);
            let (client, mut server) = bed.connect(family, &listener);
            let from = server.peer_addr().expect("connected").ip();
            assert_eq!(from, address(family, 1, 2), "the server sees the client");
            until_joined(&bed.router, count);
            let mut client = transfer(client, &mut server, TRANSFER);
            transfer(server, &mut client, TRANSFER);
            drop(client);
            until_ended(&node, "finished", count);
            let opened = multipath(&bed.server, "MPCapableSYNRX");
            assert_eq!(opened, 0, "{mode}: the server gets TCP");
        }
        assert_eq!(counter(&node, mode), 2);
        assert_eq!(
            counter(&node, "relays_opened"),
            count,
            "{mode}: a join opens none"
        );
    }
    assert_eq!(counter(&node, "multipath_accepted"), count);
    assert_eq!(counter(&node, "multipath_joins"), count);
}

/// Joins arrive right behind the handshake, on any CPU, and none opens a connection.
// promise: MP2
#[test]
fn every_connection_gets_its_second_path() {
    const COUNT: u64 = 150;
    let bed = TwoPaths::new();
    let node = bed.node(&converting("early"));
    for family in Family::ALL {
        let before = multipath(&bed.router, "MPJoinAckRx");
        let listener = bed.listen(family, Protocol::TCP);
        for count in 1..=COUNT {
            let ends = bed.connect(family, &listener);
            until_joined(&bed.router, before + count);
            drop(ends);
        }
    }
    assert_eq!(counter(&node, "relays_opened"), 2 * COUNT);
    assert_eq!(counter(&node, "multipath_joins"), 2 * COUNT);
    assert_eq!(counter(&node, "multipath_joins_expired"), 0);
    assert_eq!(multipath(&bed.router, "MPJoinAckHMacFailure"), 0);
}

/// The default: a client whose other path may avoid the node keeps what it had.
// promise: MP3
#[test]
fn left_to_the_server_by_default() {
    let bed = TwoPaths::new();
    let node = bed.node("");
    for (count, family) in (1..).zip(Family::ALL) {
        let listener = bed.listen(family, Protocol::MPTCP);
        let (client, mut server) = bed.connect(family, &listener);
        until_joined(&bed.server, count);
        let mut client = transfer(client, &mut server, TRANSFER);
        transfer(server, &mut client, TRANSFER);
        until_counter(&node, "multipath_passed", count);
    }
    assert_eq!(counter(&node, "relays_opened"), 0);
}

/// A connection from before the node: its paths are its own, also while others convert.
// promise: MP3
#[test]
fn joins_of_others_forwarded() {
    let bed = TwoPaths::new();
    bed.client.ip("mptcp endpoint flush").expect("no endpoints");
    let listeners = Family::ALL.map(|family| (family, bed.listen(family, Protocol::MPTCP)));
    let before: Vec<_> = listeners
        .iter()
        .map(|(family, listener)| bed.connect(*family, listener))
        .collect();
    let node = bed.node(&converting("early"));
    // A connection that converts to the same destinations: joins are expected there.
    let converted: Vec<_> = listeners
        .iter()
        .map(|(family, listener)| bed.connect(*family, listener))
        .collect();
    for (count, family) in (1..).zip(Family::ALL) {
        let endpoint = format!(
            "mptcp endpoint add {} dev p2 subflow",
            address(family, 2, 2)
        );
        bed.client.ip(&endpoint).expect("an endpoint");
        until_joined(&bed.server, count);
        until_joined(&bed.router, count);
    }
    for (client, mut server) in before.into_iter().chain(converted) {
        let mut client = transfer(client, &mut server, TRANSFER);
        transfer(server, &mut client, TRANSFER);
    }
    assert_eq!(counter(&node, "relays_opened"), 2);
}
