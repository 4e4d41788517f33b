// SPDX-License-Identifier: Apache-2.0
//! Hops over QUIC: flows as streams of the connections of two nodes.

use std::io::ErrorKind;
use std::net::Shutdown;

use posthaste_relay::accept_mode::AcceptMode;
use posthaste_relay::chain::{PoolLimits, Transport};
use posthaste_relay::control::SideInfo;
use posthaste_relay::outcome::Outcome;
use posthaste_wire::auth::Key;

use crate::host::{Family, Host, until};
use crate::node::{Node, Setup, start_all};
use crate::streams::{content, expect_end, expect_reset, reset, transfer};

/// Two nodes that reach each other by this family.
fn setups(hops: Family) -> [Setup; 2] {
    let member = |node: u8| {
        Setup::of(node).peer_with(1 - node, hops, |peer| {
            peer.transport = Transport::Quic;
            peer.pool = PoolLimits {
                min: 0,
                max: if node == 0 { 4 } else { 0 },
            };
        })
    };
    [member(0).chain(&[1]), member(1)]
}

fn start(host: &Host, hops: Family) -> [Node; 2] {
    let nodes = start_all(host, setups(hops));
    until("tunnels", || nodes[0].known().peers[0].tunnels == 2);
    nodes
}

fn all_ended(nodes: &[Node], outcome: Outcome, count: u64) {
    nodes
        .iter()
        .for_each(|node| node.until_ended(outcome, count));
}

/// Flows that left over streams, and over sockets.
fn hops(node: &Node) -> [u64; 2] {
    let streams = node.count(|counters| counters.hops_quic.read());
    let sockets = node.count(|counters| counters.hops_warm.read() + counters.hops_cold.read());
    [streams, sockets]
}

// promise: K20
#[test]
fn flows_take_streams() {
    for family in Family::ALL {
        let host = Host::enter();
        let (nodes, servers) = (start(&host, family), host.listen());
        let flows = AcceptMode::all().flat_map(|mode| Family::ALL.map(|theirs| (mode, theirs)));
        for (count, (mode, theirs)) in (1..).zip(flows) {
            let mut pair = nodes[0].open(mode, theirs, &servers);
            pair.check_much();
            let relay = nodes[0].relay();
            let Some(SideInfo::Stream(stream)) = relay.upstream else {
                panic!("{relay:?} has no stream");
            };
            assert_eq!(stream.remote, family.node(1));
            match theirs {
                Family::V4 => pair.close_client_first(),
                Family::V6 => pair.close_server_first(),
            }
            all_ended(&nodes, Outcome::Finished, count);
            assert_eq!(hops(&nodes[0]), [count, 0], "{mode:?} {family}");
        }
    }
}

// promise: K20
#[test]
fn half_closed_flow_goes_on() {
    let host = Host::enter();
    let (nodes, servers) = (start(&host, Family::V6), host.listen());
    let mut pair = nodes[0].open(AcceptMode::LATE, Family::V6, &servers);
    pair.client.shutdown(Shutdown::Write).unwrap();
    expect_end(&mut pair.server);
    transfer(&mut pair.server, &mut pair.client, &content(300_000));
    drop(pair.server);
    expect_end(&mut pair.client);
    all_ended(&nodes, Outcome::Finished, 1);
}

// promise: K20
#[test]
fn resets_pass_over_streams() {
    let host = Host::enter();
    let (nodes, servers) = (start(&host, Family::V4), host.listen());
    let open = || {
        let mut pair = nodes[0].open(AcceptMode::EARLY, Family::V4, &servers);
        pair.check();
        pair
    };
    let mut pair = open();
    reset(pair.client);
    expect_reset(&mut pair.server);
    let mut pair = open();
    reset(pair.server);
    expect_reset(&mut pair.client);
    all_ended(&nodes, Outcome::DownstreamReset, 1);
    all_ended(&nodes, Outcome::UpstreamReset, 1);
}

// promise: K20
#[test]
fn refusals_pass_over_streams() {
    let host = Host::enter();
    let nodes = start(&host, Family::V4);
    for family in Family::ALL {
        let refused = nodes[0].dial(AcceptMode::STRICT, family).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused, "{family}");
    }
    all_ended(&nodes, Outcome::UpstreamRefused, 2);
    assert_eq!(hops(&nodes[0]), [2, 0]);
}

#[test]
fn reason_of_a_tunnel_that_does_not_open() {
    let differ: [(fn(&mut Setup), _); 2] = [
        (
            |other| other.peers[0].key = Some(Key::new([0x55; 32])),
            "the handshake fails, as with another key",
        ),
        (
            |other| other.peers[0].transport = Transport::Tcp,
            "nothing listens there by UDP",
        ),
    ];
    for (differ, why) in differ {
        let host = Host::enter();
        let [first, mut second] = setups(Family::V4);
        differ(&mut second);
        let nodes = start_all(&host, [first, second]);
        until(why, || {
            nodes[0].known().peers[0].tunnel_failure == Some(why)
        });
    }
}
