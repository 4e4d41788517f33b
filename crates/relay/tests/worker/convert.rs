// SPDX-License-Identifier: Apache-2.0
//! The 0-RTT TCP Convert Protocol as a client of another make sees it. Its bytes are written here by
//! hand from RFC 8803, so that a mistake of ours does not stand on both sides.

mod access;
mod failures;
mod refusals;

use std::io::Write;
use std::net::{IpAddr, SocketAddr};

use posthaste_relay::outcome::Outcome;

use crate::host::{Family, Host};
use crate::node::Setup;
use crate::streams::{Pair, Received, accept, read, receive_all, send_to};

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

/// A request for a connection to the server.
pub(crate) fn good(family: Family) -> Vec<u8> {
    message(&[&connect(family.server(), &[])])
}

/// An Error TLV (§6.2.8) and the end.
fn error(value: &[u8]) -> Received {
    let mut tlv = vec![30, 0];
    tlv.extend_from_slice(value);
    tlv.resize(tlv.len().next_multiple_of(4), 0);
    tlv[1] = u8::try_from(tlv.len() / 4).unwrap();
    Received::and_closed(&message(&[&tlv]))
}

/// The server has answered.
pub(crate) const CONNECTED: [u8; 4] = [1, 1, 0x22, 0x63];
/// Supported TCP Extensions (§6.2.4): SACK and timestamps.
const EXTENSIONS: [u8; 8] = [21, 2, 0, 0, 4, 8, 0, 0];
const INFO: [u8; 4] = [1, 1, 0, 0];

// promise: Q1
#[test]
fn request_byte_by_byte() {
    let host = Host::enter();
    let (node, servers) = (Setup::of(0).start(&host), host.listen());
    for family in Family::ALL {
        let request = good(family);
        let (first, rest) = request.split_at(1);
        let mut client = send_to(family.node(0), first);
        for byte in rest {
            client.write_all(&[*byte]).unwrap();
        }
        let server = accept(&servers);
        assert_eq!(read(&mut client, 4), CONNECTED);
        let mut pair = Pair { client, server };
        pair.check();
        pair.close_server_first();
    }
    node.until_ended(Outcome::Finished, 2);
    assert_eq!(host.settle(&node), 2);
}

// promise: Q3
#[test]
fn supported_options_reported() {
    let host = Host::enter();
    let node = Setup::of(0).start(&host);
    for family in Family::ALL {
        let mut client = send_to(family.node(0), &message(&[&INFO]));
        let expected = Received::and_closed(&message(&[&EXTENSIONS]));
        assert_eq!(receive_all(&mut client), expected);
    }
    assert_eq!(host.settle(&node), 0);
}

// promise: Q3
#[test]
fn connection_with_options() {
    let host = Host::enter();
    let (node, servers) = (Setup::of(0).start(&host), host.listen());
    for family in Family::ALL {
        let request = message(&[&INFO, &connect(family.server(), &[])]);
        let mut client = send_to(family.node(0), &request);
        let server = accept(&servers);
        assert_eq!(read(&mut client, 12), message(&[&EXTENSIONS]));
        let mut pair = Pair { client, server };
        pair.check();
        pair.close_client_first();
    }
    node.until_ended(Outcome::Finished, 2);
    assert_eq!(host.settle(&node), 2);
}

// promise: Q3
#[test]
fn server_options_reported() {
    let host = Host::enter();
    let (node, servers) = (Setup::of(0).start(&host), host.listen());
    for family in Family::ALL {
        // SACK permitted, without a value; maximum segment size, which is passed over (§7.1).
        let options = [4, 2, 2, 4, 1, 0];
        let request = message(&[&connect(family.server(), &options)]);
        let mut client = send_to(family.node(0), &request);
        let server = accept(&servers);
        let head = read(&mut client, 4);
        let tlv = read(&mut client, 4 * usize::from(head[1]) - 4);
        // Extended TCP Header (§6.2.6).
        assert_eq!((head[0], &head[2..], tlv[0]), (1, &[0x22, 0x63][..], 20));
        assert_eq!(usize::from(tlv[1]) * 4, tlv.len(), "nothing but that TLV");
        let mss: u16 = if family == Family::V4 { 1460 } else { 1440 };
        let [high, low] = mss.to_be_bytes();
        let options = &tlv[4..];
        for option in [&[2, 4, high, low][..], &[4, 2]] {
            let found = options.windows(option.len()).any(|some| some == option);
            assert!(found, "{option:?} in {options:?}");
        }
        let mut pair = Pair { client, server };
        pair.check();
        pair.close_client_first();
    }
    node.until_ended(Outcome::Finished, 2);
    assert_eq!(host.settle(&node), 2);
}
