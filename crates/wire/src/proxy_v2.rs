// SPDX-License-Identifier: Apache-2.0
//! The PROXY protocol, version 2, which reports the client's address to a server when
//! the connection does not come from the client's address (HAProxy's
//! `proxy-protocol.txt`, §2.2).

use std::net::{IpAddr, SocketAddr};

use crate::header::mapped;

const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// Version 2, command PROXY.
const VERSION_AND_COMMAND: u8 = 0x21;
/// Stream over IPv4, and over IPv6.
const TCP_OVER_IPV4: u8 = 0x11;
const TCP_OVER_IPV6: u8 = 0x21;
/// Bytes of two addresses and two ports.
const ADDRESSES_IPV4: u16 = 12;
const ADDRESSES_IPV6: u16 = 36;

/// Appends the header that goes before the first byte for the server: `client`
/// connected to `destination`. When they are of different families both are
/// given as IPv6, the IPv4 one v4-mapped.
pub fn encode(client: SocketAddr, destination: SocketAddr, to: &mut Vec<u8>) {
    to.extend_from_slice(&SIGNATURE);
    to.push(VERSION_AND_COMMAND);
    // The header has one family for both addresses.
    match (client.ip().to_canonical(), destination.ip().to_canonical()) {
        (IpAddr::V4(client), IpAddr::V4(destination)) => {
            to.push(TCP_OVER_IPV4);
            to.extend_from_slice(&ADDRESSES_IPV4.to_be_bytes());
            to.extend_from_slice(&client.octets());
            to.extend_from_slice(&destination.octets());
        }
        (client, destination) => {
            to.push(TCP_OVER_IPV6);
            to.extend_from_slice(&ADDRESSES_IPV6.to_be_bytes());
            to.extend_from_slice(&mapped(client));
            to.extend_from_slice(&mapped(destination));
        }
    }
    // Behind both addresses, in either family (§2.2).
    to.extend_from_slice(&client.port().to_be_bytes());
    to.extend_from_slice(&destination.port().to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(client: &str, destination: &str) -> Vec<u8> {
        let mut bytes = vec![0xee];
        encode(
            client.parse().unwrap(),
            destination.parse().unwrap(),
            &mut bytes,
        );
        assert_eq!(bytes.remove(0), 0xee, "what was there stays");
        bytes
    }

    #[test]
    fn mixed_families_as_ipv6() {
        let bytes = encoded("[2001:db8::1]:1", "192.0.2.1:2");
        assert_eq!(bytes[12..16], [0x21, 0x21, 0, 36]);
        assert_eq!(bytes[32..48], mapped("192.0.2.1".parse().unwrap()));
        assert_eq!(bytes[48..], [0, 1, 0, 2]);
        assert_eq!(bytes.len(), 16 + 36);
    }

    #[test]
    fn a_mapped_address_is_ipv4() {
        let plain = encoded("192.0.2.1:1", "192.0.2.2:2");
        assert_eq!(
            encoded("[::ffff:192.0.2.1]:1", "[::ffff:192.0.2.2]:2"),
            plain
        );
        assert_eq!(plain.len(), 16 + 12);
    }
}
