// SPDX-License-Identifier: Apache-2.0
//! Clients behind one node with paths of different MTU, where ICMP errors may be filtered.

use std::net::SocketAddr;

use crate::operations::interfaces::{attached, plug_in, servers};

use super::*;

/// A client on a cable of its own, beside the one of the network.
fn second_client(network: &Network) -> Namespace {
    let client = Namespace::new().expect("a namespace");
    plug_in(&client, network.node(0), "late0");
    client
}

/// Connects until the packet path carries a connection; the size of its client's segments.
fn segment_size(node: &Node, client: &Namespace, to: SocketAddr, listener: &TcpListener) -> u32 {
    let mut size = 0;
    until("a flow is carried", || {
        let taken = redirect(node, "packet_taken");
        let mut pair = Pair::of(dial(client, to), listener);
        pair.check();
        size = SockRef::from(&pair.client).tcp_mss().expect("a size");
        pair.close_client_first();
        redirect(node, "packet_taken") > taken
    });
    size
}

// promise: PK2
/// A firewall clamps the segments of one client's connections: the others' SYN-ACKs show nothing about it.
#[test]
fn clamped_clients_are_promised_what_they_are_granted() {
    let network = line();
    let other = second_client(&network);
    let clamp = "oifname late0 tcp flags & syn == syn tcp option maxseg size set 1000";
    firewall(network.node(0), "clamp", &[("forward", clamp)]);
    let listener = listen(network.server(), PORT);
    let node = Node::builder(network.node(0), binary()).config(CONFIG);
    let node = node.start().expect("the node starts");
    until("attachment", || attached(&node, "late0"));
    for to in servers(&network) {
        for _ in 0..2 {
            let sizes =
                [network.client(), &other].map(|client| segment_size(&node, client, to, &listener));
            assert!(sizes[0] > 1400 && sizes[1] <= 1000, "{to}: {sizes:?}");
        }
    }
}

// promise: PK2
/// The answer to a client that is not known promises no longer segments than its interface carries.
#[test]
fn segments_fit_the_interface_of_their_client() {
    let network = line();
    let other = second_client(&network);
    network
        .node(0)
        .ip("link set late0 mtu 1300")
        .expect("an MTU");
    let (node, listener) = ready(&network);
    until("attachment", || attached(&node, "late0"));
    for to in servers(&network) {
        let taken = redirect(&node, "packet_taken");
        let sizes =
            [&other, network.client()].map(|client| segment_size(&node, client, to, &listener));
        assert!(sizes[0] <= 1260 && sizes[1] > 1400, "{to}: {sizes:?}");
        assert_eq!(redirect(&node, "packet_taken"), taken + 2, "{to}");
    }
}
