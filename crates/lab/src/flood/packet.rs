// SPDX-License-Identifier: Apache-2.0
//! A SYN as bytes, IP header included.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Bytes of the TCP header with its options.
const TCP_BYTES: u8 = 40;
const PROTOCOL_TCP: u8 = 6;
const HOPS: u8 = 64;
const SYN: u8 = 0x02;

/// The options of a usual Linux SYN: MSS 1460, SACK permitted, timestamps
/// (value 1), window scale 7.
const OPTIONS: [u8; 20] = [
    2, 4, 0x05, 0xb4, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7,
];

/// A SYN of `source` to `target`, which must be of one family.
pub(super) fn syn(source: SocketAddr, target: SocketAddr, sequence: u32) -> Vec<u8> {
    let mut packet = match (source.ip(), target.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => ipv4_header(from, to),
        (IpAddr::V6(from), IpAddr::V6(to)) => ipv6_header(from, to),
        _ => unreachable!("a flood checks that both are of one family"),
    };
    packet.extend(tcp_header(source, target, sequence));
    packet
}

/// The kernel fills in the identification and the header's checksum.
fn ipv4_header(from: Ipv4Addr, to: Ipv4Addr) -> Vec<u8> {
    let mut header = vec![
        0x45,
        0,
        0,
        20 + TCP_BYTES,
        0,
        0,
        0x40,
        0,
        HOPS,
        PROTOCOL_TCP,
        0,
        0,
    ];
    header.extend(from.octets());
    header.extend(to.octets());
    header
}

fn ipv6_header(from: Ipv6Addr, to: Ipv6Addr) -> Vec<u8> {
    let mut header = vec![0x60, 0, 0, 0, 0, TCP_BYTES, PROTOCOL_TCP, HOPS];
    header.extend(from.octets());
    header.extend(to.octets());
    header
}

fn tcp_header(source: SocketAddr, target: SocketAddr, sequence: u32) -> Vec<u8> {
    let mut header = Vec::with_capacity(usize::from(TCP_BYTES));
    header.extend(source.port().to_be_bytes());
    header.extend(target.port().to_be_bytes());
    header.extend(sequence.to_be_bytes());
    header.extend([
        0,
        0,
        0,
        0,
        (TCP_BYTES / 4) << 4,
        SYN,
        0xfa,
        0xf0,
        0,
        0,
        0,
        0,
    ]);
    header.extend(OPTIONS);
    let checksum = checksum(&[
        &addresses(source, target),
        &[0, PROTOCOL_TCP, 0, TCP_BYTES],
        &header,
    ]);
    header[16..18].copy_from_slice(&checksum.to_be_bytes());
    header
}

fn addresses(source: SocketAddr, target: SocketAddr) -> Vec<u8> {
    let octets = |address: SocketAddr| match address.ip() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    [octets(source), octets(target)].concat()
}

/// The Internet checksum (RFC 1071) over `parts`, each of even length.
fn checksum(parts: &[&[u8]]) -> u16 {
    let words = parts.iter().flat_map(|part| part.chunks_exact(2));
    let sum = words.fold(0u32, |sum, word| {
        sum + u32::from(u16::from_be_bytes([word[0], word[1]]))
    });
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    !u16::try_from(folded).expect("two folds leave sixteen bits of fewer than 2^16 words")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Over a packet with its checksum in place the sum is zero.
    fn sums_to_zero(packet: &[u8], addresses: &[u8], header: usize) -> bool {
        checksum(&[
            addresses,
            &[0, PROTOCOL_TCP, 0, TCP_BYTES],
            &packet[header..],
        ]) == 0
    }

    #[test]
    fn syn_of_either_family() {
        let packet = syn(
            "198.18.0.1:1025".parse().unwrap(),
            "10.0.0.1:80".parse().unwrap(),
            7,
        );
        assert_eq!((packet.len(), packet[3], packet[9]), (60, 60, PROTOCOL_TCP));
        assert!(sums_to_zero(&packet, &packet[12..20], 20));
        assert_eq!((packet[22..24].to_vec(), packet[33]), (vec![0, 80], SYN));

        let packet = syn(
            "[2001:db8::1]:1025".parse().unwrap(),
            "[fd00::1]:80".parse().unwrap(),
            7,
        );
        assert_eq!((packet.len(), packet[5]), (80, 40));
        assert!(sums_to_zero(&packet, &packet[8..40], 40));
    }
}
