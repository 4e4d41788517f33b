// SPDX-License-Identifier: Apache-2.0
//! What the node sends for a SYN of the packet path: to the server and to the client.

use std::net::SocketAddrV4;

use super::forged::{CLAIMED, MSS, expect_claimed};
use super::*;
use crate::capture::{Capture, Segment};
use crate::syn_options::raw::{send_ecn_syn, send_syn};

/// A SYN that is looped passes far more often.
const LOOPED: usize = 10;
/// For a SYN, and for the one that the node repeats.
const SYN_ACKS_MAX: usize = 2;

/// The host at [`CLAIMED`], and the address of a server.
fn ends(network: &Network, listener: &TcpListener) -> [SocketAddrV4; 2] {
    let server = target(network, Family::V4, listener).to_string();
    [CLAIMED, &server].map(|end| end.parse().expect("an IPv4 address"))
}

/// The SYNs and SYN-ACKs of a handshake of the host at [`CLAIMED`], as `seen`.
fn of_claimed(seen: &Capture) -> Vec<Segment> {
    let ends_there = |segment: &Segment| {
        [segment.from, segment.to]
            .iter()
            .any(|end| end.to_string() == CLAIMED)
    };
    seen.segments().into_iter().filter(ends_there).collect()
}

// promise: PK2
/// The node's SYN-ACK has no ECN, so the server must not be asked for it.
#[test]
fn ecn_is_requested_of_no_server() {
    let network = line();
    let (node, listener) = ready(&network);
    expect_claimed(&network);
    let [client, server] = ends(&network, &listener);
    let seen = [network.client(), network.server()].map(Capture::start);
    let taken = redirect(&node, "packet_taken");
    send_ecn_syn(network.client(), client, server, &MSS);
    until("the SYN", || redirect(&node, "packet_taken") > taken);
    until("both", || {
        seen.iter().all(|seen| !of_claimed(seen).is_empty())
    });
    let [at_client, at_server] = seen.each_ref().map(of_claimed);
    let sent = at_client.iter().filter(|segment| segment.is_syn());
    assert!(sent.clone().all(Segment::is_ecn), "{at_client:?}");
    assert!(sent.count() > 0, "{at_client:?}");
    let answers = at_client.iter().filter(|segment| !segment.is_syn());
    assert!(!answers.clone().any(Segment::is_ecn), "{at_client:?}");
    assert!(!at_server.iter().any(Segment::is_ecn), "{at_server:?}");
}

// promise: PK4
/// Two routers that send a SYN to each other: the first does not answer it each time that it passes.
#[test]
fn looped_syns_are_not_multiplied() {
    let network = network([Link::Veth, Link::Veth, Link::Veth]);
    let (node, listener) = ready(&network);
    expect_claimed(&network);
    let [client, server] = ends(&network, &listener);
    let back = network.calling_address(0, Family::V4);
    let wrong = format!("route replace {}/32 via {back}", server.ip());
    network.node(1).ip(&wrong).expect("a route");
    let [at_client, at_router] = [network.client(), network.node(1)].map(Capture::start);
    let taken = redirect(&node, "packet_taken");
    send_syn(network.client(), client, server, &MSS);
    until("the SYN", || redirect(&node, "packet_taken") > taken);
    // Longer than until the node repeats the SYN.
    std::thread::sleep(Duration::from_secs(4));
    let [passed, seen] = [at_router, at_client].map(|seen| of_claimed(&seen));
    assert!(passed.len() > LOOPED, "no loop: {passed:?}");
    let answers = seen.iter().filter(|segment| !segment.is_syn());
    assert!(answers.count() <= SYN_ACKS_MAX, "{seen:?}");
}
