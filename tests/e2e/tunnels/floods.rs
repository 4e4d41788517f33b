// SPDX-License-Identifier: Apache-2.0
//! Datagrams from anyone to the port of tunnels.

use std::net::UdpSocket;

use super::*;

/// Datagrams of one look at the counter.
const BATCH: u32 = 2_000;

/// A first packet (RFC 9000 section 17.2.2) that nothing decrypts.
fn first_packet(number: u32) -> Vec<u8> {
    let mut packet = vec![0xc3, 0, 0, 0, 1, 8];
    packet.extend([0xab; 4]);
    packet.extend(number.to_be_bytes());
    packet.extend([8]);
    packet.extend([0xcd; 8]);
    // No token, and the length of the rest.
    packet.extend([0, 0x44, 0x82]);
    packet.resize(1200, 0x5a);
    packet
}

/// What is too much is dropped unseen, and tunnels are used and dialed meanwhile.
// promise: B18
#[test]
fn flood_leaves_tunnels_to_peers() {
    let network = network([Link::Veth, Link::Veth, Link::Veth]);
    let (mut nodes, servers) = ready(&network, "early", Family::V4);
    let to = listener(&network, 1, Family::V4);
    let socket = network.client().run_in(|| UdpSocket::bind("0.0.0.0:0"));
    let socket = socket.expect("a port is free");
    let mut number = 0;
    let mut flood = |nodes: &[Node]| {
        let before = counter(&nodes[1], "tunnel_initials_dropped");
        until("some are dropped", || {
            for _ in 0..BATCH {
                number += 1;
                // What the kernel has no room for is lost.
                let _ = socket.send_to(&first_packet(number), to);
            }
            counter(&nodes[1], "tunnel_initials_dropped") > before
        });
    };
    let mut pair = Pair::open(&network, Family::V4, &servers);
    pair.check();
    flood(&nodes);
    pair.check();
    pair.close_client_first();
    until_ended(&nodes[0], "finished", 1);
    nodes[0].stop(SOON).expect("it ends");
    nodes[0] = start_relaying_in(network.node(0), &member(&network, 0, "early", Family::V4));
    flood(&nodes);
    until("tunnels are up", || counter(&nodes[0], "tunnels_up") == 2);
    let before = counter(&nodes[0], "hops_quic");
    Pair::open(&network, Family::V4, &servers).check();
    assert_eq!(counter(&nodes[0], "hops_quic"), before + 1);
}
