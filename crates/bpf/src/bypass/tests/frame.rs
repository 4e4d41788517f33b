// SPDX-License-Identifier: Apache-2.0
//! Segments as frames, and what a frame shows.

use std::net::{Ipv6Addr, SocketAddr};

use posthaste_bypass::{Block, Header};
use posthaste_relay::flow::Flow;
use posthaste_testkit::Rng;

use super::LINK_BYTES;
use crate::layout::{bytes, packet_key};

const TCP_BYTES: usize = 20;
/// NOP, NOP, and the timestamps option.
const TIME_BYTES: usize = 12;

/// The addresses of a flow.
#[derive(Debug)]
pub(super) struct Frame {
    is_v6: bool,
    /// Of the client and the server.
    ips: [[u8; 16]; 2],
    ports: [u16; 2],
}

impl Frame {
    pub(super) fn new(rng: &mut Rng) -> Self {
        let is_v6 = rng.once_in(2);
        let ip = |last: u8| {
            let mut ip = [0; 16];
            if is_v6 {
                ip[..2].copy_from_slice(&[0xfd, 0]);
            } else {
                ip[10..13].copy_from_slice(&[255, 255, 10]);
            }
            ip[15] = last;
            ip
        };
        let ips = if rng.once_in(2) {
            [ip(1), ip(2)]
        } else {
            [ip(2), ip(1)]
        };
        let ports = [1 + rng.below(3_u16), 1 + rng.below(3_u16)];
        Self { is_v6, ips, ports }
    }

    pub(super) fn flow(&self) -> Flow {
        let [client, server] = [0, 1].map(|end: usize| {
            let ip = Ipv6Addr::from(self.ips[end]).to_canonical();
            SocketAddr::new(ip, self.ports[end])
        });
        Flow::new(client, server)
    }

    /// Whether the client is the second of the key.
    pub(super) fn is_turned(&self) -> bool {
        packet_key(&self.flow()).1
    }

    /// In the maps.
    pub(super) fn key(&self) -> Vec<u8> {
        bytes(&packet_key(&self.flow()).0).to_vec()
    }

    fn ip_bytes(&self) -> usize {
        if self.is_v6 { 40 } else { 20 }
    }

    /// The frame of a segment from an end, or with its addresses.
    pub(super) fn of(&self, e: usize, header: &Header, rng: &mut Rng) -> Vec<u8> {
        let mut tcp = self.tcp(e, header);
        tcp.extend(rng.bytes(usize::try_from(header.len).unwrap()));
        let sum = !self.sum(e, &tcp);
        tcp[16..18].copy_from_slice(&sum.to_be_bytes());
        let mut frame = vec![0; LINK_BYTES];
        frame[12..14].copy_from_slice(if self.is_v6 { &[0x86, 0xdd] } else { &[8, 0] });
        frame.extend(self.ip(e, tcp.len()));
        frame.extend(tcp);
        // The shortest that Ethernet carries.
        frame.resize(frame.len().max(60), 0);
        frame
    }

    /// The same frame with IP options or an extension header of eight bytes, sometimes.
    pub(super) fn around(&self, mut frame: Vec<u8>, rng: &mut Rng) -> Vec<u8> {
        if rng.once_in(4) {
            self.insert(&mut frame, 60, [6, 0, 1, 4, 0, 0, 0, 0]);
        }
        frame
    }

    /// The same frame as that of a first fragment.
    pub(super) fn as_fragment(&self, mut frame: Vec<u8>) -> Vec<u8> {
        if self.is_v6 {
            self.insert(&mut frame, 44, [6, 0, 0, 1, 1, 2, 3, 4]);
        } else {
            frame[LINK_BYTES + 6] |= 0x20;
            self.finish(&mut frame);
        }
        frame
    }

    /// In IPv4, eight bytes of padding.
    fn insert(&self, frame: &mut Vec<u8>, kind: u8, extension: [u8; 8]) {
        let at = LINK_BYTES + self.ip_bytes();
        let ip = &mut frame[LINK_BYTES..];
        let length = if self.is_v6 { 4 } else { 2 };
        let bytes = u16::from_be_bytes([ip[length], ip[length + 1]]) + 8;
        ip[length..length + 2].copy_from_slice(&bytes.to_be_bytes());
        if self.is_v6 {
            ip[6] = kind;
            frame.splice(at..at, extension);
        } else {
            ip[0] = 0x47;
            frame.splice(at..at, [1; 8]);
            self.finish(frame);
        }
    }

    /// Computes the checksum of an IPv4 header anew.
    fn finish(&self, frame: &mut [u8]) {
        let ip = &mut frame[LINK_BYTES..];
        let header = usize::from(ip[0] & 15) * 4;
        ip[10..12].fill(0);
        let sum = !folded(&ip[..header]);
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
    }

    /// A frame that begins a connection of these addresses.
    pub(super) fn syn(&self, rng: &mut Rng) -> Vec<u8> {
        let mut frame = self.of(0, &Header::default(), rng);
        frame[LINK_BYTES + self.ip_bytes() + 13] = 2;
        frame
    }

    fn ip(&self, e: usize, payload: usize) -> Vec<u8> {
        let mut ip = vec![0; self.ip_bytes()];
        let (from, to) = (self.ips[e], self.ips[1 - e]);
        if self.is_v6 {
            ip[0] = 0x60;
            ip[4..6].copy_from_slice(&u16::try_from(payload).unwrap().to_be_bytes());
            (ip[6], ip[7]) = (6, 64);
            ip[8..24].copy_from_slice(&from);
            ip[24..].copy_from_slice(&to);
            return ip;
        }
        ip[0] = 0x45;
        ip[2..4].copy_from_slice(&u16::try_from(20 + payload).unwrap().to_be_bytes());
        (ip[8], ip[9]) = (64, 6);
        ip[12..16].copy_from_slice(&from[12..]);
        ip[16..].copy_from_slice(&to[12..]);
        let sum = !folded(&ip);
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        ip
    }

    fn tcp(&self, e: usize, header: &Header) -> Vec<u8> {
        let blocks: Vec<_> = shown(&header.sack).collect();
        let mut tcp = vec![0; TCP_BYTES];
        tcp[..2].copy_from_slice(&self.ports[e].to_be_bytes());
        tcp[2..4].copy_from_slice(&self.ports[1 - e].to_be_bytes());
        tcp[4..8].copy_from_slice(&header.seq.to_be_bytes());
        tcp[8..12].copy_from_slice(&header.ack.to_be_bytes());
        tcp[13] = 0x10 | u8::from(header.fin) | u8::from(header.rst) << 2;
        tcp[14..16].copy_from_slice(&header.window.to_be_bytes());
        tcp.extend([1, 1, 8, 10]);
        tcp.extend(header.ts_val.to_be_bytes());
        tcp.extend(header.ts_ecr.to_be_bytes());
        if !blocks.is_empty() {
            tcp.extend([1, 1, 5, u8::try_from(2 + 8 * blocks.len()).unwrap()]);
        }
        for (first, last) in blocks {
            tcp.extend(first.to_be_bytes());
            tcp.extend(last.to_be_bytes());
        }
        tcp[12] = u8::try_from(tcp.len() / 4).unwrap() << 4;
        tcp
    }

    /// That of the pseudo header and the segment.
    fn sum(&self, e: usize, tcp: &[u8]) -> u16 {
        let length = u32::try_from(tcp.len()).unwrap();
        let both = [self.ips[e], self.ips[1 - e]].concat();
        // The prefix of mapped addresses adds 0xffff: zero in one's complement.
        folded(&[&both, &length.to_be_bytes()[..], &[0, 0, 0, 6], tcp].concat())
    }

    /// A frame is the segment `header`, whose payload is the start of that of `input`.
    pub(super) fn assert_shows(&self, frame: &[u8], header: &Header, input: &[u8]) {
        let (ip, tcp) = self.split(frame);
        if !self.is_v6 {
            assert_eq!(folded(ip), 0xffff, "the sum of the IP header");
        }
        let e = usize::from(tcp[..2] != self.ports[0].to_be_bytes() || !self.is_from_client(ip));
        assert_eq!(self.sum(e, tcp), 0xffff, "the sum of the segment");
        let head = usize::from(tcp[12] >> 4) * 4;
        let payload = &tcp[head..];
        let (_, input) = self.split(input);
        let input = &input[usize::from(input[12] >> 4) * 4..];
        assert_eq!(payload, &input[..payload.len()]);
        let found = read(tcp, head);
        let expected = Header {
            sack: packed(&header.sack),
            ..*header
        };
        assert_eq!(found, expected);
    }

    /// A frame is the reset `header`, back to the sender of `input`.
    pub(super) fn assert_resets(&self, frame: &[u8], header: &Header, input: &[u8]) {
        assert_eq!(frame[..6], input[6..12]);
        let (ip, tcp) = self.split(frame);
        let (_, sent) = self.split(input);
        let e = usize::from(!self.is_from_client(ip));
        assert_eq!(self.sum(e, tcp), 0xffff, "the sum of the segment");
        assert_eq!((&tcp[..2], &tcp[2..4]), (&sent[2..4], &sent[..2]));
        assert_eq!(tcp[4..8], header.seq.to_be_bytes());
        assert_eq!(tcp[13], 4);
        assert_eq!(tcp.len(), usize::from(tcp[12] >> 4) * 4);
    }

    fn is_from_client(&self, ip: &[u8]) -> bool {
        let from = if self.is_v6 { &ip[8..24] } else { &ip[12..16] };
        self.ips[0].ends_with(from)
    }

    /// The IP header with what is behind it, and the segment without padding.
    fn split<'f>(&self, frame: &'f [u8]) -> (&'f [u8], &'f [u8]) {
        let ip = &frame[LINK_BYTES..];
        let (at, fixed, header) = match (self.is_v6, ip[6]) {
            (true, 60) => (4, 40, 48),
            (true, _) => (4, 40, 40),
            (false, _) => (2, 0, usize::from(ip[0] & 15) * 4),
        };
        let whole = fixed + usize::from(u16::from_be_bytes([ip[at], ip[at + 1]]));
        ip[..whole].split_at(header)
    }
}

fn read(tcp: &[u8], head: usize) -> Header {
    let at = |at: usize| u32::from_be_bytes(tcp[at..at + 4].try_into().unwrap());
    let mut sack = [Block::default(); 3];
    let mut options = TCP_BYTES + TIME_BYTES;
    while options < head {
        if tcp[options] == 1 {
            options += 1;
            continue;
        }
        assert_eq!(tcp[options], 5, "an option other than SACK");
        for (number, block) in sack.iter_mut().enumerate() {
            let from = options + 2 + 8 * number;
            if from + 8 <= options + usize::from(tcp[options + 1]) {
                *block = (at(from), at(from + 4));
            }
        }
        options += usize::from(tcp[options + 1]);
    }
    Header {
        seq: at(4),
        len: u32::try_from(tcp.len() - head).unwrap(),
        fin: tcp[13] & 1 != 0,
        rst: tcp[13] & 4 != 0,
        ack: at(8),
        sack,
        window: u16::from_be_bytes([tcp[14], tcp[15]]),
        ts_val: at(24),
        ts_ecr: at(28),
    }
}

fn shown(sack: &[Block; 3]) -> impl Iterator<Item = Block> {
    sack.iter().copied().filter(|block| block.0 != block.1)
}

/// The blocks without gaps between them.
fn packed(sack: &[Block; 3]) -> [Block; 3] {
    let mut blocks = [Block::default(); 3];
    for (to, block) in blocks.iter_mut().zip(shown(sack)) {
        *to = block;
    }
    blocks
}

/// The sum of RFC 1071.
fn folded(octets: &[u8]) -> u16 {
    let pair = |pair: &[u8]| u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0));
    let mut sum: u64 = octets.chunks(2).map(pair).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).unwrap()
}
