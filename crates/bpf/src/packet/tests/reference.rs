// SPDX-License-Identifier: Apache-2.0
//! A segment in parts, and its translation without a thought about speed: parts in, parts out, and
//! every checksum computed anew.

use crate::objects::types;

const ACK: u8 = 16;

/// A TCP segment with its IP header.
#[derive(Clone, Debug)]
pub(super) struct Segment {
    /// 4 or 16 bytes, as the other.
    pub(super) source: Vec<u8>,
    pub(super) destination: Vec<u8>,
    pub(super) ports: [u16; 2],
    pub(super) seq: u32,
    pub(super) ack: u32,
    pub(super) flags: u8,
    pub(super) window: u16,
    pub(super) urgent: u16,
    /// A multiple of four bytes, 40 at the most.
    pub(super) options: Vec<u8>,
    pub(super) payload: Vec<u8>,
    /// Whether its checksum is one too high.
    pub(super) corrupted: bool,
}

/// Numbers to add. The window is widened, then narrowed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Shift {
    pub(super) seq: u32,
    pub(super) ack: u32,
    pub(super) ts_value: u32,
    pub(super) ts_echo: u32,
    pub(super) widen: u8,
    pub(super) narrow: u8,
}

impl Segment {
    /// The same with other numbers.
    pub(super) fn translated(&self, by: &Shift) -> Self {
        let window = u64::from(self.window) << by.widen >> by.narrow;
        // An open one stays open.
        let window = window.clamp(u64::from(self.window).min(1), 0xffff);
        Self {
            seq: self.seq.wrapping_add(by.seq),
            ack: match self.flags & ACK {
                0 => self.ack,
                _ => self.ack.wrapping_add(by.ack),
            },
            window: window.try_into().unwrap(),
            options: translated(&self.options, by),
            ..self.clone()
        }
    }

    /// The key of its flow, and whether its source is the second of it.
    pub(super) fn key(&self) -> (types::packet_key, bool) {
        let [from, to] = [&self.source, &self.destination].map(|ip| mapped(ip));
        // The programs compare ports and addresses as they are in memory.
        let [from_port, to_port] = self.ports.map(u16::to_be);
        let ends = [(from, from_port), (to, to_port)];
        let turned = if from_port == to_port {
            from.word > to.word
        } else {
            from_port > to_port
        };
        let [first, second] = if turned { [ends[1], ends[0]] } else { ends };
        let key = types::packet_key {
            first: first.0,
            second: second.0,
            first_port: first.1,
            second_port: second.1,
        };
        (key, turned)
    }

    /// Bytes of its header and payload.
    pub(super) fn tcp_bytes(&self) -> usize {
        20 + self.options.len() + self.payload.len()
    }

    /// With the headers of IP and of a link layer.
    pub(super) fn frame(&self) -> Vec<u8> {
        let tcp = self.tcp();
        let mut frame = vec![0; 12];
        if self.source.len() == 4 {
            let total = u16::try_from(20 + tcp.len()).unwrap().to_be_bytes();
            let mut ip = vec![0x45, 8, total[0], total[1], 0, 9, 0x40, 0, 61, 6, 0, 0];
            ip.extend([self.source.clone(), self.destination.clone()].concat());
            let check = checksum(&ip).to_be_bytes();
            ip[10..12].copy_from_slice(&check);
            frame.extend([8, 0]);
            frame.extend(ip);
        } else {
            let bytes = u16::try_from(tcp.len()).unwrap().to_be_bytes();
            frame.extend([0x86, 0xdd, 0x61, 2, 3, 4, bytes[0], bytes[1], 6, 61]);
            frame.extend([self.source.clone(), self.destination.clone()].concat());
        }
        frame.extend(tcp);
        frame
    }

    /// An ICMP error to its sender that quotes it: a packet was too big (RFC 1191, RFC 8201).
    pub(super) fn too_big(&self) -> Vec<u8> {
        const NEXT_MTU: [u8; 2] = [5, 20];
        let quoted = &self.frame()[14..];
        let router = vec![0x21; self.source.len()];
        let mut frame = vec![0; 12];
        if self.source.len() == 4 {
            let mut icmp = [&[3, 4, 0, 0, 0, 0], &NEXT_MTU[..], quoted].concat();
            let check = checksum(&icmp).to_be_bytes();
            icmp[2..4].copy_from_slice(&check);
            let total = u16::try_from(20 + icmp.len()).unwrap().to_be_bytes();
            let mut ip = vec![0x45, 0, total[0], total[1], 0, 9, 0, 0, 61, 1, 0, 0];
            ip.extend([router, self.source.clone()].concat());
            let check = checksum(&ip).to_be_bytes();
            ip[10..12].copy_from_slice(&check);
            frame.extend([8, 0]);
            frame.extend([ip, icmp].concat());
        } else {
            let mut icmp = [&[2, 0, 0, 0, 0, 0], &NEXT_MTU[..], quoted].concat();
            let length = u32::try_from(icmp.len()).unwrap().to_be_bytes();
            let ends = [router, self.source.clone()].concat();
            let pseudo = [&ends[..], &length, &[0, 0, 0, 58], &icmp].concat();
            icmp[2..4].copy_from_slice(&checksum(&pseudo).to_be_bytes());
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, length[2], length[3], 58, 61]);
            frame.extend([ends, icmp].concat());
        }
        frame
    }

    fn tcp(&self) -> Vec<u8> {
        let mut tcp = self.ports.map(u16::to_be_bytes).concat();
        tcp.extend(self.seq.to_be_bytes());
        tcp.extend(self.ack.to_be_bytes());
        tcp.push(u8::try_from(20 + self.options.len()).unwrap() << 2);
        tcp.push(self.flags);
        tcp.extend(self.window.to_be_bytes());
        tcp.extend([0, 0]);
        tcp.extend(self.urgent.to_be_bytes());
        tcp.extend(&self.options);
        tcp.extend(&self.payload);
        let length = u32::try_from(tcp.len()).unwrap().to_be_bytes();
        let pseudo = [&self.source[..], &self.destination, &length, &[0, 0, 0, 6]].concat();
        let mut check = checksum(&[pseudo, tcp.clone()].concat());
        if self.corrupted {
            // One's complement has two zeros: which one a correction leaves is not specified.
            check = ones_complement_sum(&[check, 1]) % 0xffff;
        }
        tcp[16..18].copy_from_slice(&check.to_be_bytes());
        tcp
    }
}

/// Options with other numbers, up to the end of the list or the first that is malformed.
fn translated(options: &[u8], by: &Shift) -> Vec<u8> {
    let (head, rest) = match *options {
        [1, ref rest @ ..] => (vec![1], rest),
        [kind, length, ..] if kind != 0 && (2..=options.len()).contains(&length.into()) => {
            let (option, rest) = options.split_at(length.into());
            (option_of(kind, option, by), rest)
        }
        _ => return options.to_vec(),
    };
    [head, translated(rest, by)].concat()
}

fn option_of(kind: u8, option: &[u8], by: &Shift) -> Vec<u8> {
    let (head, numbers) = option.split_at(2);
    let (words, rest) = numbers.as_chunks::<4>();
    let mut words: Vec<u32> = words.iter().map(|word| u32::from_be_bytes(*word)).collect();
    match (kind, &mut words[..]) {
        (8, [value, echo]) if rest.is_empty() => {
            *value = value.wrapping_add(by.ts_value);
            if *echo != 0 {
                *echo = echo.wrapping_add(by.ts_echo);
            }
        }
        // Four blocks have room.
        (5, edges) => {
            for edge in edges.iter_mut().take(8) {
                *edge = edge.wrapping_add(by.ack);
            }
        }
        _ => {}
    }
    let words: Vec<u8> = words.into_iter().flat_map(u32::to_be_bytes).collect();
    [head, &words, rest].concat()
}

/// An address as the maps have it.
fn mapped(ip: &[u8]) -> types::address {
    let octets = match *ip {
        [a, b, c, d] => [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d],
        _ => ip.try_into().unwrap(),
    };
    crate::layout::address(octets)
}

/// The Internet checksum (RFC 1071).
pub(super) fn checksum(bytes: &[u8]) -> u16 {
    let words: Vec<u16> = bytes
        .chunks(2)
        .map(|pair| u16::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u16::from(*low)))
        .collect();
    !ones_complement_sum(&words)
}

fn ones_complement_sum(words: &[u16]) -> u16 {
    let mut sum: u32 = words.iter().map(|word| u32::from(*word)).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum.try_into().unwrap()
}
