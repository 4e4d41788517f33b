// SPDX-License-Identifier: Apache-2.0
//! Telling a server who its client is: the PROXY protocol, version 2. Its bytes are written here by
//! hand from its specification.

#![allow(clippy::unwrap_used, reason = "a test ends where it finds a failure")]

use std::net::{IpAddr, SocketAddr};

use posthaste_lab::network::Family;

use crate::payload;
use crate::requests::read;
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
