// SPDX-License-Identifier: Apache-2.0
//! Segments of who is not on the path of an open connection.

use std::net::{SocketAddr, SocketAddrV4};

use super::*;
use crate::support::plain;
use crate::syn_options::raw::{send_segment, send_syn, send_syn_ack};

/// FIN and ACK, RST, RST and ACK.
const ENDS: [u8; 3] = [0x11, 4, 0x14];

/// A maximum segment size of 1460 bytes (RFC 9293 section 3.7.1).
pub(super) const MSS: [u8; 4] = [2, 4, 5, 0xb4];

/// The node's neighbour of [`CLAIMED`], up to its link address.
const NEIGHBOUR: &str = "neigh replace 10.0.0.77 dev c0 nud permanent lladdr";
/// An address on the client's link that no host has.
pub(super) const CLAIMED: &str = "10.0.0.77:4242";

/// The node takes the client for the host with that address.
pub(super) fn expect_claimed(network: &Network) {
    let own = network.client().ip_output("link show");
    let own = own.expect("its interfaces");
    let (_, own) = own.split_once("link/ether ").expect("an address");
    let own = own.split_whitespace().next().expect("a word");
    let neighbour = network.node(0).ip(&format!("{NEIGHBOUR} {own}"));
    neighbour.expect("a neighbour");
}

/// The client's and the server's address of an IPv4 connection.
pub(super) fn v4_ends(pair: &Pair) -> [SocketAddrV4; 2] {
    let server = pair.client.peer_addr().expect("it is connected");
    [pair.client_address(), server].map(v4)
}

/// An IPv4 address, also in the form that dual-stack sockets give it.
pub(super) fn v4(address: SocketAddr) -> SocketAddrV4 {
    match plain(address) {
        SocketAddr::V4(address) => address,
        SocketAddr::V6(address) => panic!("{address} is not of IPv4"),
    }
}

// promise: PK4
/// A SYN-ACK ends only a flow whose client has sent another SYN, which it acknowledges.
#[test]
fn forged_syn_acks_end_no_flow() {
    let network = line();
    let (node, listener) = ready(&network);
    let taken = redirect(&node, "packet_taken");
    let mut pair = Pair::open(&network, Family::V4, &listener);
    pair.check();
    assert_eq!(redirect(&node, "packet_taken"), taken + 1);
    let [client, server] = v4_ends(&pair);
    send_syn_ack(network.server(), server, client);
    pair.check();
    let busy = redirect(&node, "packet_busy");
    send_syn(network.client(), client, server, &MSS);
    until("the SYN", || redirect(&node, "packet_busy") > busy);
    send_syn_ack(network.server(), server, client);
    pair.check();
    pair.close_client_first();
}

// promise: PK4
/// Who claims the address of another host of the link gets no answer: it would go to that host.
#[test]
fn claimed_addresses_get_no_answer() {
    let network = line();
    let (node, listener) = ready(&network);
    let server = target(&network, Family::V4, &listener).to_string();
    let [claimed, server] = [CLAIMED, &server].map(|end| end.parse().expect("an address"));
    let [taken, client] = ["packet_taken", "packet_client"].map(|name| redirect(&node, name));
    let other = format!("{NEIGHBOUR} 02:00:00:00:00:77");
    network.node(0).ip(&other).expect("a neighbour");
    send_syn(network.client(), claimed, server, &MSS);
    until("the SYN", || redirect(&node, "packet_client") > client);
    assert_eq!(redirect(&node, "packet_taken"), taken);
    // It is answered where the answer goes.
    expect_claimed(&network);
    send_syn(network.client(), claimed, server, &MSS);
    until("the answer", || redirect(&node, "packet_taken") > taken);
}

// promise: PK4
/// Ends with guessed numbers, of which some are near the right ones, do not let the node forget a flow
/// that is idle.
#[test]
fn forged_ends_end_no_flow() {
    let network = line();
    let (node, listener) = ready(&network);
    let mut pair = Pair::open(&network, Family::V4, &listener);
    pair.check();
    let [client, server] = v4_ends(&pair);
    let ends = [
        (network.client(), client, server),
        (network.server(), server, client),
    ];
    for number in 0..1 << 13 {
        let numbers = [number << 19, number << 7];
        for (host, from, to) in ends {
            send_segment(host, from, to, numbers, ENDS[number as usize % 3]);
        }
    }
    // Longer than the node remembers a flow that has ended.
    std::thread::sleep(Duration::from_secs(17));
    pair.check();
    assert_eq!(redirect(&node, "packet_opened"), 1);
    pair.close_client_first();
}

// promise: PK4
/// Who pretends that a number was acknowledged cannot end the flow with it, and have its place.
#[test]
fn forged_acknowledgements_end_no_flow() {
    let network = line();
    let (node, listener) = ready(&network);
    let mut pair = Pair::open(&network, Family::V4, &listener);
    pair.check();
    let [client, server] = v4_ends(&pair);
    let busy = redirect(&node, "packet_busy");
    for number in [1 << 20, 1 << 30, 3 << 30] {
        for (host, from, to, flags) in [
            (network.server(), server, client, 0x10),
            (network.client(), client, server, 4),
            (network.client(), client, server, 0x11),
            (network.client(), client, server, 0x10),
            (network.server(), server, client, 4),
            (network.server(), server, client, 0x11),
        ] {
            send_segment(host, from, to, [number; 2], flags);
        }
    }
    send_syn(network.client(), client, server, &MSS);
    until("the SYN", || redirect(&node, "packet_busy") > busy);
    pair.check();
    let listed = node.admin_json("relays list").expect("the flows");
    assert_eq!(listed["packet_flows"][0]["bytes_up"], 20, "{listed}");
    pair.close_client_first();
}
