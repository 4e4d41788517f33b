// SPDX-License-Identifier: Apache-2.0
//! Packets, well-formed unless a test wants otherwise.

use std::net::{IpAddr, SocketAddr};

pub(crate) const FIN: u8 = 0x01;
pub(crate) const SYN: u8 = 0x02;
pub(crate) const RST: u8 = 0x04;
pub(crate) const ACK: u8 = 0x10;

pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
pub(crate) const ICMP: u8 = 1;
pub(crate) const ICMPV6: u8 = 58;

/// A TCP segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    pub(crate) flags: u8,
    pub(crate) sequence: u32,
    pub(crate) acknowledgment: u32,
    pub(crate) window: u16,
    /// TTL or hop limit.
    pub(crate) hops: u8,
    /// A multiple of four bytes, 40 at the most.
    pub(crate) options: Vec<u8>,
    pub(crate) data: Vec<u8>,
}

impl Segment {
    pub(crate) fn new(from: SocketAddr, to: SocketAddr, flags: u8) -> Self {
        Self {
            from,
            to,
            flags,
            sequence: 0x0102_0304,
            acknowledgment: 0,
            window: 0xffff,
            hops: 64,
            options: vec![2, 4, 5, 0xb4],
            data: Vec::new(),
        }
    }

    pub(crate) fn syn(from: SocketAddr, to: SocketAddr) -> Self {
        Self::new(from, to, SYN)
    }

    pub(crate) fn sequence(self, sequence: u32) -> Self {
        Self { sequence, ..self }
    }

    /// With its headers up to IP.
    pub(crate) fn packet(&self) -> Vec<u8> {
        let mut packet = ip(self.from.ip(), self.to.ip(), TCP, &self.tcp());
        if self.from.is_ipv4() {
            packet[8] = self.hops;
            finish_ipv4(&mut packet);
        } else {
            packet[7] = self.hops;
        }
        packet
    }

    /// With an Ethernet header too.
    pub(crate) fn frame(&self) -> Vec<u8> {
        ethernet(&self.packet())
    }

    /// What a sender leaves in the checksum of a packet for its device to finish: the sum of the
    /// pseudo header, for an IP header of so many bytes.
    pub(crate) fn pseudo_sum(packet: &[u8], header: usize) -> u16 {
        let addresses = if header == 20 {
            &packet[12..20]
        } else {
            &packet[8..40]
        };
        let bytes = u16::try_from(packet.len() - header).unwrap().to_be_bytes();
        !checksum(&[addresses, &[0, TCP], &bytes])
    }

    /// What a frame shows, with its padding cut off; `None` unless it carries a segment without IP
    /// options. `partial`: its device completes the checksum.
    ///
    /// # Panics
    /// A length or checksum is wrong.
    pub(crate) fn read(frame: &[u8], partial: bool) -> Option<Self> {
        let (ip, v6) = match *frame {
            [_, _, _, _, _, _, _, _, _, _, _, _, 8, 0, ref ip @ ..] => (ip, false),
            [_, _, _, _, _, _, _, _, _, _, _, _, 0x86, 0xdd, ref ip @ ..] => (ip, true),
            _ => return None,
        };
        let (header, protocol, hops) = if v6 { (40, 6, 7) } else { (20, 9, 8) };
        if ip[protocol] != TCP || (!v6 && ip[0] != 0x45) {
            return None;
        }
        let half = |bytes: &[u8], at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let whole =
            |bytes: &[u8], at| u32::from(half(bytes, at)) << 16 | u32::from(half(bytes, at + 2));
        let length = usize::from(half(ip, if v6 { 4 } else { 2 })) + if v6 { 40 } else { 0 };
        let (ip, tcp) = ip[..length].split_at(header);
        let address = |at: usize| match v6 {
            true => IpAddr::from(<[u8; 16]>::try_from(&ip[at..at + 16]).unwrap()),
            false => IpAddr::from(<[u8; 4]>::try_from(&ip[at..at + 4]).unwrap()),
        };
        let (from, to) = if v6 {
            (address(8), address(24))
        } else {
            (address(12), address(16))
        };
        assert!(v6 || checksum(&[ip]) == 0, "checksum of IP");
        let pseudo = pseudo(from, to, TCP, tcp);
        if partial {
            assert_eq!(
                half(tcp, 16),
                !checksum(&[&pseudo]),
                "sum of the pseudo header"
            );
        } else {
            assert_eq!(checksum(&[&pseudo, tcp]), 0, "checksum of TCP");
        }
        let (head, data) = tcp.split_at(usize::from(tcp[12] >> 4) * 4);
        Some(Self {
            from: SocketAddr::new(from, half(tcp, 0)),
            to: SocketAddr::new(to, half(tcp, 2)),
            flags: tcp[13],
            sequence: whole(tcp, 4),
            acknowledgment: whole(tcp, 8),
            window: half(tcp, 14),
            hops: ip[hops],
            options: head[20..].to_vec(),
            data: data.to_vec(),
        })
    }

    fn tcp(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(self.from.port().to_be_bytes());
        bytes.extend(self.to.port().to_be_bytes());
        bytes.extend(self.sequence.to_be_bytes());
        bytes.extend(self.acknowledgment.to_be_bytes());
        let words = u8::try_from(5 + self.options.len() / 4).unwrap();
        bytes.extend([words << 4, self.flags]);
        bytes.extend(self.window.to_be_bytes());
        bytes.extend([0; 4]);
        bytes.extend(&self.options);
        bytes.extend(&self.data);
        let sum = checksum(&[&pseudo(self.from.ip(), self.to.ip(), TCP, &bytes), &bytes]);
        bytes[16..18].copy_from_slice(&sum.to_be_bytes());
        bytes
    }
}

/// An IP header without options before a payload.
pub(crate) fn ip(from: IpAddr, to: IpAddr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let total = u16::try_from(20 + payload.len()).unwrap().to_be_bytes();
            let mut bytes = vec![0x45, 0, total[0], total[1], 0, 0, 0, 0, 64, protocol, 0, 0];
            bytes.extend(from.octets());
            bytes.extend(to.octets());
            finish_ipv4(&mut bytes);
            bytes
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let length = u16::try_from(payload.len()).unwrap().to_be_bytes();
            let mut bytes = vec![0x60, 0, 0, 0, length[0], length[1], protocol, 64];
            bytes.extend(from.octets());
            bytes.extend(to.octets());
            bytes
        }
        _ => panic!("{from} and {to} are of one family"),
    };
    bytes.extend(payload);
    bytes
}

/// Computes the checksum of the IPv4 header at the start of `packet` anew.
pub(crate) fn finish_ipv4(packet: &mut [u8]) {
    let header = usize::from(packet[0] & 0x0f) * 4;
    packet[10..12].fill(0);
    let sum = checksum(&[&packet[..header]]);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
}

/// An ICMP error about a packet, of which it quotes everything.
pub(crate) fn icmp_error(
    offender: IpAddr,
    to: IpAddr,
    kind: u8,
    code: u8,
    about: &[u8],
) -> Vec<u8> {
    let mut bytes = vec![kind, code, 0, 0, 0, 0, 0, 0];
    bytes.extend(about);
    let protocol = if to.is_ipv4() { ICMP } else { ICMPV6 };
    let mut parts: Vec<&[u8]> = vec![&bytes];
    let pseudo = pseudo(offender, to, protocol, &bytes);
    if to.is_ipv6() {
        parts.push(&pseudo);
    }
    let sum = checksum(&parts);
    bytes[2..4].copy_from_slice(&sum.to_be_bytes());
    ip(offender, to, protocol, &bytes)
}

/// An Ethernet header before an IP packet.
pub(crate) fn ethernet(packet: &[u8]) -> Vec<u8> {
    let kind = if packet[0] >> 4 == 4 { 0x0800 } else { 0x86dd };
    ethernet_of(kind, packet)
}

/// An Ethernet header of any type before anything.
pub(crate) fn ethernet_of(kind: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    bytes.extend(kind.to_be_bytes());
    bytes.extend(payload);
    bytes
}

fn pseudo(from: IpAddr, to: IpAddr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => [from.octets(), to.octets()].concat(),
        (IpAddr::V6(from), IpAddr::V6(to)) => [from.octets(), to.octets()].concat(),
        _ => panic!("{from} and {to} are of one family"),
    };
    bytes.extend([0, protocol]);
    bytes.extend(u16::try_from(payload.len()).unwrap().to_be_bytes());
    bytes
}

/// The Internet checksum (RFC 1071) over `parts`, of which only the last may be of odd length.
pub(crate) fn checksum(parts: &[&[u8]]) -> u16 {
    let words = parts.iter().flat_map(|part| part.chunks(2));
    let mut sum: u32 = words
        .map(|word| u32::from(word[0]) << 8 | word.get(1).map_or(0, |low| u32::from(*low)))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap()
}
