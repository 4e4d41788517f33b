// SPDX-License-Identifier: Apache-2.0
//! Servers learn who their client is: the PROXY protocol, version 2. Its bytes are written here by
//! hand from its specification.

use std::io::Write;
use std::net::{IpAddr, SocketAddr};

use posthaste_relay::accept_mode::AcceptMode;
use posthaste_relay::chain::PoolLimits;
use posthaste_relay::outcome::Outcome;
use posthaste_relay::policy::SourceAddress;

use crate::convert::{CONNECTED, good};
use crate::host::{Family, Host};
use crate::node::{Setup, start_all};
use crate::streams::{Pair, accept, content, read, send_to, transfer};

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
fn expect_header(mut pair: Pair, theirs: Family, server_first: bool) {
    if server_first {
        transfer(&mut pair.server, &mut pair.client, b"220 ready\r\n");
    }
    let expected = header(pair.client.local_addr().unwrap(), theirs.server());
    if server_first {
        assert_eq!(read(&mut pair.server, expected.len()), expected);
    } else {
        let request = content(50_000);
        pair.client.write_all(&request).unwrap();
        assert_eq!(read(&mut pair.server, expected.len()), expected);
        assert!(read(&mut pair.server, request.len()) == request);
    }
    pair.check();
    pair.close_client_first();
}

/// A node that sends it to servers.
fn with_header(node: u8) -> Setup {
    let mut setup = Setup::of(node);
    setup.policy.rules[0].proxy_protocol = true;
    setup.policy.rules[0].source_address = SourceAddress::Node;
    setup
}

// promise: Q13
#[test]
fn convert_client_in_header() {
    let host = Host::enter();
    let (node, servers) = (with_header(0).start(&host), host.listen());
    for (ours, server_first) in Family::ALL.into_iter().zip([true, false]) {
        for theirs in Family::ALL {
            let mut client = send_to(ours.node(0), &good(theirs));
            let server = accept(&servers);
            assert_eq!(read(&mut client, 4), CONNECTED);
            expect_header(Pair { client, server }, theirs, server_first);
        }
    }
    node.until_ended(Outcome::Finished, 4);
    assert_eq!(host.settle(&node), 4);
}

/// All nodes have the rule; only the last one has a server.
// promise: Q13
#[test]
fn last_node_sends_header() {
    for (hops, pool) in [(Family::V4, 4), (Family::V6, 0)] {
        let host = Host::enter();
        let pool = PoolLimits {
            min: pool,
            max: pool,
        };
        let member = |node, others: [u8; 2]| {
            others.into_iter().fold(with_header(node), |setup, other| {
                setup.peer_with(other, hops, |peer| {
                    // Each dials those behind it.
                    if other > node {
                        peer.pool = pool;
                    }
                })
            })
        };
        let first = member(0, [1, 2]).chain(&[1, 2]);
        let nodes = start_all(&host, [first, member(1, [0, 2]), member(2, [0, 1])]);
        let servers = host.listen();
        for mode in AcceptMode::all() {
            for theirs in Family::ALL {
                for server_first in [false, true] {
                    nodes[0].until_all_waiting();
                    let pair = nodes[0].open(mode, theirs, &servers);
                    expect_header(pair, theirs, server_first);
                }
            }
        }
        for node in &nodes {
            node.until_ended(Outcome::Finished, 12);
        }
        let warm = nodes[0].count(|counters| counters.hops_warm.read());
        assert_eq!(warm, if pool.min > 0 { 12 } else { 0 });
    }
}
