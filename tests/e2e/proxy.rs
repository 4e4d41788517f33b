// SPDX-License-Identifier: Apache-2.0
//! Telling a server who its client is: the PROXY protocol, version 2. Its bytes are written here by
//! hand from its specification.

#![allow(clippy::unwrap_used, reason = "a test ends where it finds a failure")]

use std::net::{IpAddr, SocketAddr};

use posthaste_lab::network::Family;

use crate::chains::{Plan, line_of};
use crate::payload;
use crate::requests::{ExplicitNode, explicit, fixture, listener, read, send_to};
use crate::support::{MODES, PORT, Pair, deliver, line, listen, start_relaying, until_ended};

/// A rule that sends PROXY protocol headers to servers.
const RULE: &str = "[[rule]]\nname = \"proxy\"\nproxy_protocol = true\nsource_address = \"node\"\n";

/// The header of a connection.
fn header(client: SocketAddr, destination: SocketAddr) -> Vec<u8> {
    let mut bytes = b"\r\n\r\n\0\r\nQUIT\n".to_vec();
    let mut addresses = Vec::new();
    let both_v4 = client.is_ipv4() && destination.is_ipv4();
    for ip in [client.ip(), destination.ip()] {
        match ip {
            IpAddr::V4(ip) if both_v4 => addresses.extend_from_slice(&ip.octets()),
            IpAddr::V4(ip) => addresses.extend_from_slice(&ip.to_ipv6_mapped().octets()),
            IpAddr::V6(ip) => addresses.extend_from_slice(&ip.octets()),
        }
    }
    for port in [client.port(), destination.port()] {
        addresses.extend_from_slice(&port.to_be_bytes());
    }
    // Version 2, PROXY; TCP over IPv4 or IPv6; how much follows.
    let family = if both_v4 { 0x11 } else { 0x21 };
    let length = u16::try_from(addresses.len()).unwrap().to_be_bytes();
    bytes.extend_from_slice(&[0x21, family, length[0], length[1]]);
    [bytes, addresses].concat()
}

/// Asserts that the server receives the address of its client before any other byte, whichever end
/// sends first.
fn expect_header(mut pair: Pair, client: SocketAddr, destination: SocketAddr, server_first: bool) {
    if server_first {
        deliver(&mut pair.server, &mut pair.client, b"220 ready\r\n");
    } else {
        payload::send(&mut pair.client, 3, 50_000).unwrap();
    }
    let expected = header(client, destination);
    assert_eq!(read(&mut pair.server, expected.len()), expected);
    if !server_first {
        payload::receive(&mut pair.server, 3, 50_000).unwrap();
    }
    pair.check();
    pair.close_client_first();
}

// promise: Q13
#[test]
fn proxy_header_names_client() {
    let network = line();
    let servers = listen(network.server(), PORT);
    for mode in MODES {
        let node = start_relaying(&network, &format!("{RULE}accept = \"{mode}\"\n"));
        for (count, family) in (0..).zip(Family::ALL) {
            for server_first in [false, true] {
                let pair = Pair::open(&network, family, &servers);
                let client = pair.client_address();
                let destination = pair.client.peer_addr().unwrap();
                assert_ne!(pair.seen_by_server().ip(), client.ip());
                expect_header(pair, client, destination, server_first);
            }
            until_ended(&node, "finished", 2 * (count + 1));
        }
    }
}

// promise: Q13
#[test]
fn last_node_sends_header() {
    let network = line_of(3);
    let servers = listen(network.server(), PORT);
    for (hops, warm) in [(Family::V4, true), (Family::V6, false)] {
        for accept in MODES {
            let plan = Plan {
                accept,
                hops,
                warm,
                ..Plan::of(3)
            };
            // All nodes have the rule; only the last one has a server.
            let configs = (0..3).map(|node| {
                let rule = format!("{RULE}accept = \"{accept}\"\n");
                plan.config(&network, node) + &rule
            });
            let nodes = crate::requests::start_all(&network, configs);
            for family in Family::ALL {
                for server_first in [false, true] {
                    let pair = Pair::open(&network, family, &servers);
                    let client = pair.client_address();
                    let destination = pair.client.peer_addr().unwrap();
                    expect_header(pair, client, destination, server_first);
                }
            }
            for node in &nodes {
                until_ended(node, "finished", 4);
            }
        }
    }
}

// promise: Q13
#[test]
fn convert_client_in_header() {
    let network = fixture();
    let all = "[\"10.0.0.0/8\", \"fd00::/8\"]";
    let config = format!(
        "[node]\nid = 1\n[access]\nclients = {all}\ndestinations = {all}\n{}{RULE}",
        explicit(&network, 0)
    );
    let listening = ExplicitNode::start(&network, &config);
    let servers = listen(network.server(), PORT);
    let mut count = 0;
    for ours in Family::ALL {
        for theirs in Family::ALL {
            let destination = SocketAddr::new(network.server_address(theirs), PORT);
            let tlv = crate::convert::connect(destination, &[]);
            let request = crate::convert::message(&[&tlv]);
            let mut client = send_to(&network, listener(&network, 0, ours), &request);
            let (server, _) = crate::support::accept(&servers);
            assert_eq!(read(&mut client, 4), [1, 1, 0x22, 0x63]);
            let pair = Pair { client, server };
            let from = pair.client_address();
            expect_header(pair, from, destination, count % 2 == 0);
            count += 1;
            until_ended(&listening.node, "finished", count);
        }
    }
    assert_eq!(listening.settle(), 4);
}
