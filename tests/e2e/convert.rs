// SPDX-License-Identifier: Apache-2.0
//! The 0-RTT TCP Convert Protocol as a client of another make sees it. Its bytes are written here by
//! hand from RFC 8803, so that a mistake of ours does not stand on both sides.

#![allow(clippy::unwrap_used, reason = "a test ends where it finds a failure")]

mod failures;
mod interop;
mod refusals;
mod syn;

use std::net::{IpAddr, SocketAddr};

use posthaste_lab::network::{Family, Network};

use crate::payload;
use crate::requests::{ExplicitNode, explicit, fixture, listener, read, send_to};
use crate::support::{PORT, Pair, accept, listen, until_ended};

/// A node for the test's clients and servers.
pub(crate) fn converter(network: &Network) -> String {
    let all = "[\"10.0.0.0/8\", \"fd00::/8\"]";
    format!(
        "[node]\nid = 1\n[access]\nclients = {all}\ndestinations = {all}\n{}",
        explicit(network, 0)
    )
}

/// The fixed header (§6.1) and what it counts.
pub(crate) fn message(tlvs: &[&[u8]]) -> Vec<u8> {
    let body = tlvs.concat();
    assert_eq!(body.len() % 4, 0, "whole words");
    let words = u8::try_from(1 + body.len() / 4).unwrap();
    [&[1, words, 0x22, 0x63][..], &body].concat()
}

/// The Connect TLV (§6.2.5).
pub(crate) fn connect(to: SocketAddr, options: &[u8]) -> Vec<u8> {
    let ip = match to.ip() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    let mut tlv = vec![10, 0];
    tlv.extend_from_slice(&to.port().to_be_bytes());
    tlv.extend_from_slice(&ip.octets());
    tlv.extend_from_slice(options);
    tlv.resize(tlv.len().next_multiple_of(4), 0);
    tlv[1] = u8::try_from(tlv.len() / 4).unwrap();
    tlv
}

/// The server has answered.
const CONNECTED: [u8; 4] = [1, 1, 0x22, 0x63];

fn server(network: &Network, family: Family) -> SocketAddr {
    SocketAddr::new(network.server_address(family), PORT)
}

// promise: Q1
#[test]
fn families_of_client_and_server() {
    let network = fixture();
    let listening = ExplicitNode::start(&network, &converter(&network));
    let servers = listen(network.server(), PORT);
    let mut count = 0;
    for ours in Family::ALL {
        for theirs in Family::ALL {
            let mut request = message(&[&connect(server(&network, theirs), &[])]);
            request.extend_from_slice(b"sent early");
            let client = send_to(&network, listener(&network, 0, ours), &request);
            let (server, from) = accept(&servers);
            assert_eq!(from.is_ipv4(), theirs == Family::V4, "{ours} to {theirs}");
            let mut pair = Pair { client, server };
            assert_eq!(read(&mut pair.server, 10), b"sent early");
            assert_eq!(read(&mut pair.client, 4), CONNECTED, "{ours} to {theirs}");
            payload::send(&mut pair.server, 1, 200_000).unwrap();
            payload::receive(&mut pair.client, 1, 200_000).unwrap();
            payload::send(&mut pair.client, 2, 200_000).unwrap();
            payload::receive(&mut pair.server, 2, 200_000).unwrap();
            pair.close_client_first();
            count += 1;
            until_ended(&listening.node, "finished", count);
        }
    }
    assert_eq!(listening.settle(), 4);
}
