// SPDX-License-Identifier: Apache-2.0
//! Forbidden options and options with forbidden requests: the node opens nothing, counts each
//! under its reason, logs it, and keeps no state.

use std::net::{IpAddr, SocketAddr, SocketAddrV4};

use posthaste_lab::network::{Family, Network};
use posthaste_lab::node::Node;
use posthaste_wire::header::{ChainHeader, Endpoint, NodeId};
use posthaste_wire::segments::SegmentList;
use posthaste_wire::syn_option;

use crate::requests::{ALLOWED, ExplicitNode, KEY, explicit, fixture, listener};
use crate::support::{PORT, counter, kernel_counter, listen, until, until_ended};
use crate::watch;

use super::raw::send_syn;

/// A node that takes options from the client of the network, as if that was a peer.
fn config(network: &Network, callers: IpAddr) -> String {
    format!(
        "[node]\nid = 1\nworkers = 2\n[half_open]\nexpiry = \"1s\"\n{ALLOWED}\
         [[rule]]\nname = \"rest\"\n\
         [[rule]]\nname = \"never\"\naction = \"reject\"\nports = [81]\n\
         [[peer]]\nname = \"two\"\nid = 2\naddress = \"192.0.2.2:4480\"\nkey = \"{KEY}\"\n\
         pool_max = 0\nheader_in = \"syn-option\"\nsource_addresses = [\"{callers}\"]\n{}",
        explicit(network, 0)
    )
}

fn v4(address: SocketAddr) -> SocketAddrV4 {
    let SocketAddr::V4(address) = address else {
        panic!("{address} is not IPv4")
    };
    address
}

fn client(network: &Network, port: u16) -> SocketAddrV4 {
    v4(SocketAddr::new(network.client_address(Family::V4), port))
}

fn server(network: &Network, port: u16) -> SocketAddr {
    SocketAddr::new(network.server_address(Family::V4), port)
}

/// The option for a destination.
fn option(to: SocketAddr, segments: SegmentList) -> Vec<u8> {
    let mut header = ChainHeader::to(Endpoint::new(to).expect("an endpoint"));
    header.segments = segments;
    let mut option = Vec::new();
    syn_option::encode(&header, &mut option).expect("it is IPv4");
    option
}

/// A route to a node that is no peer.
fn unknown() -> SegmentList {
    SegmentList::of(NodeId::new(500)).expect("one node")
}

fn until_logged(listening: &ExplicitNode, from: SocketAddrV4, reason: &str) {
    until("line of the log", || {
        let lines = listening.node.log();
        lines.iter().map(|line| watch::fields(line)).any(|fields| {
            let is = |key: &str, value: &str| fields.get(key).is_some_and(|text| text == value);
            is("msg", "request denied")
                && is("from", &from.to_string())
                && is("header_in", "syn-option")
                && is("reason", reason)
        })
    });
}

/// Sends an option as the client, and expects it to be denied for a reason.
fn expect(
    reason: &str,
    callers: impl Fn(&Network) -> IpAddr,
    hostile: impl Fn(&Network) -> Vec<u8>,
) {
    let network = fixture();
    let listening = ExplicitNode::start(&network, &config(&network, callers(&network)));
    let node = v4(listener(&network, 0, Family::V4));
    let from = client(&network, 40_000);
    send_syn(network.client(), from, node, &hostile(&network));
    listening.until_denied(&network, reason, 1);
    until_logged(&listening, from, reason);
    assert_eq!(listening.settle(), 0, "no flow was begun");
}

/// The client itself is listed.
fn listed(network: &Network) -> IpAddr {
    network.client_address(Family::V4)
}

// promise: Q14
#[test]
fn unauthorized_option_opens_nothing() {
    let another = |_: &Network| IpAddr::from([192, 0, 2, 2]);
    expect("unauthorized", another, |network| {
        option(server(network, PORT), SegmentList::EMPTY)
    });
}

// promise: Q14
#[test]
fn unreadable_option_ignored() {
    let good = |network: &Network| option(server(network, PORT), unknown());
    let changed = |at: usize, bytes: &'static [u8]| {
        move |network: &Network| {
            let mut option = good(network);
            option[at..at + bytes.len()].copy_from_slice(bytes);
            option
        }
    };
    expect("malformed", listed, changed(1, &[18]));
    expect("malformed", listed, changed(16, &[0, 0, 0, 1]));
    expect("malformed", listed, changed(4, &[127, 0, 0, 1]));
    expect("malformed", listed, changed(8, &[0, 0]));
    let twice = |network: &Network| option(server(network, PORT), SegmentList::EMPTY).repeat(2);
    expect("malformed", listed, twice);
}

// promise: Q14
#[test]
fn denied_destination_not_contacted() {
    let metadata = |_: &Network| option("169.254.169.254:80".parse().unwrap(), SegmentList::EMPTY);
    expect("destination", listed, metadata);
    let private = |_: &Network| option("192.168.1.1:80".parse().unwrap(), SegmentList::EMPTY);
    expect("destination", listed, private);
}

// promise: Q14
#[test]
fn unknown_segment_ignored() {
    expect("segment", listed, |network| {
        option(server(network, PORT), unknown())
    });
}

// promise: Q14
#[test]
fn rejected_flow_not_opened() {
    expect("rule", listed, |network| {
        option(server(network, 81), SegmentList::EMPTY)
    });
}

/// Sends a node so many options in the name of a peer, and waits until it has them all.
fn forge(network: &Network, node: &Node, peer: IpAddr, count: u16) {
    let to = v4(listener(network, 0, Family::V4));
    for port in 0..count {
        let from = v4(SocketAddr::new(peer, 20_000 + port));
        let option = option(server(network, PORT), SegmentList::EMPTY);
        send_syn(network.client(), from, to, &option);
    }
    until("forged options", || {
        counter(node, "syn_options_received") == u64::from(count)
    });
}

/// An option with a forged peer address makes the node send a SYN to the server, and no more: it
/// completes no handshake, and the node resets it.
// promise: Q15
#[test]
fn forged_option_no_handshake() {
    let network = fixture();
    // The peer's address, which does not answer.
    let peer = IpAddr::from([10, 0, 99, 7]);
    let listening = ExplicitNode::start(&network, &config(&network, peer));
    let servers = listen(network.server(), PORT);
    forge(&network, &listening.node, peer, 50);
    assert_eq!(counter(&listening.node, "syn_options_opened"), 50);
    until_ended(&listening.node, "client_absent", 50);
    assert_eq!(kernel_counter(network.server(), "Tcp", "PassiveOpens"), 0);
    let resets = || kernel_counter(network.server(), "TcpExt", "EmbryonicRsts");
    // A repeated SYN that a reset overtakes is reset too.
    until("resets at the server", || resets() >= 50);
    assert_eq!(listening.settle(), 50);
    drop(servers);
}

// promise: Q15
#[test]
fn forged_options_within_budget() {
    let network = fixture();
    let peer = IpAddr::from([10, 0, 99, 7]);
    let config =
        config(&network, peer).replace("expiry = \"1s\"", "expiry = \"5s\"\nper_prefix = 8");
    let listening = ExplicitNode::start(&network, &config);
    forge(&network, &listening.node, peer, 100);
    let opened = counter(&listening.node, "syn_options_opened");
    assert!((8..=16).contains(&opened), "{opened} by two workers");
    assert_eq!(counter(&listening.node, "over_budget"), 100 - opened);
    listening.settle();
}
