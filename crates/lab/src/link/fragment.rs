// SPDX-License-Identifier: Apache-2.0
//! Fragments packets, as routers do with IPv4 packets (RFC 791), and as IPv4-to-IPv6 translators do
//! (RFC 7915). Pure.

/// `MF` of an IPv4 header.
const MORE_V4: u16 = 0x2000;
/// The offset bits of an IPv4 header, in units of eight bytes.
const OFFSET_V4: u16 = 0x1fff;
/// Bytes of an IPv6 header, and of the fragment header after it (RFC 8200 section 4.5).
const HEADER_V6: usize = 40;
const FRAGMENT_HEADER: usize = 8;
const FRAGMENT: u8 = 44;
/// The smallest limit: the longest IPv4 header and eight bytes (RFC 791).
const BYTES_MAX_MIN: usize = 68;
/// The only fragmented protocol, so that tests can attribute fragments.
const TCP: u8 = 6;

/// Fragments TCP packets that are longer than a limit.
#[derive(Debug)]
pub(super) struct Splitter {
    /// The longest packet that stays whole, in bytes.
    bytes_max: usize,
    /// The next identification of an IPv6 packet; IPv4 packets have their own.
    id: u32,
}

impl Splitter {
    pub(super) fn new(bytes_max: usize) -> Self {
        assert!(bytes_max >= BYTES_MAX_MIN, "no room for a fragment");
        Self { bytes_max, id: 1 }
    }

    /// The packet, or its fragments in order. Ignores the don't-fragment flag of IPv4.
    pub(super) fn split(&mut self, packet: Vec<u8>) -> Vec<Vec<u8>> {
        if packet.len() <= self.bytes_max {
            return vec![packet];
        }
        match packet[0] >> 4 {
            4 => self.split_v4(packet),
            6 => self.split_v6(packet),
            _ => vec![packet],
        }
    }

    fn split_v4(&self, packet: Vec<u8>) -> Vec<Vec<u8>> {
        let header = usize::from(packet[0] & 15) * 4;
        let field = u16::from_be_bytes([packet[6], packet[7]]);
        if packet[9] != TCP || field & (MORE_V4 | OFFSET_V4) != 0 {
            return vec![packet];
        }
        let (head, payload) = packet.split_at(header);
        let piece = |(offset, bytes, more): (u16, &[u8], bool)| {
            let mut piece = [head, bytes].concat();
            let total = u16::try_from(piece.len()).expect("a part of a packet");
            piece[2..4].copy_from_slice(&total.to_be_bytes());
            let field = offset | if more { MORE_V4 } else { 0 };
            piece[6..8].copy_from_slice(&field.to_be_bytes());
            // The checksum covers its own field as zero (RFC 791).
            piece[10..12].fill(0);
            let sum = checksum(&piece[..header]);
            piece[10..12].copy_from_slice(&sum.to_be_bytes());
            piece
        };
        pieces(payload, self.bytes_max - header)
            .map(piece)
            .collect()
    }

    fn split_v6(&mut self, packet: Vec<u8>) -> Vec<Vec<u8>> {
        if packet[6] != TCP {
            return vec![packet];
        }
        // One identification for all fragments of a packet, another for the next (RFC 8200 section
        // 4.5).
        let id = self.id.to_be_bytes();
        self.id = self.id.wrapping_add(1);
        let (head, payload) = packet.split_at(HEADER_V6);
        let piece = |(offset, bytes, more): (u16, &[u8], bool)| {
            let [high, low] = (offset << 3 | u16::from(more)).to_be_bytes();
            let extension = [TCP, 0, high, low, id[0], id[1], id[2], id[3]];
            let mut piece = [head, &extension, bytes].concat();
            piece[6] = FRAGMENT;
            let length = u16::try_from(piece.len() - HEADER_V6).expect("a part of a packet");
            piece[4..6].copy_from_slice(&length.to_be_bytes());
            piece
        };
        let room = self.bytes_max - HEADER_V6 - FRAGMENT_HEADER;
        pieces(payload, room).map(piece).collect()
    }
}

/// Parts of at most `room` bytes: the offset of each in units of eight bytes, and whether more
/// follow.
fn pieces(payload: &[u8], room: usize) -> impl Iterator<Item = (u16, &[u8], bool)> {
    // Offsets count units of eight bytes, so every piece but the last is a multiple of that.
    let units = room / 8;
    let count = payload.len().div_ceil(units * 8);
    let parts = payload.chunks(units * 8).enumerate();
    parts.map(move |(index, bytes)| {
        let offset = u16::try_from(index * units).expect("less than a packet");
        (offset, bytes, index + 1 < count)
    })
}

/// The Internet checksum (RFC 1071) of a header, whose length is even.
fn checksum(header: &[u8]) -> u16 {
    let words = header
        .chunks(2)
        .map(|pair| u16::from_be_bytes([pair[0], pair[1]]));
    let mut sum: u32 = words.map(u32::from).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).expect("it was folded")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A packet with a payload of 100 bytes that count.
    fn packet(version: u8, protocol: u8) -> Vec<u8> {
        let mut packet = match version {
            4 => vec![0x45, 0, 0, 120, 0x12, 0x34, 0x40, 0, 64, protocol, 0, 0],
            _ => vec![0x60, 0, 0, 0, 0, 100, protocol, 64],
        };
        packet.resize(if version == 4 { 20 } else { 40 }, 7);
        packet.extend(0..100);
        packet
    }

    #[test]
    fn ipv4_fragments_reassemble() {
        let pieces = Splitter::new(68).split(packet(4, TCP));
        let fields: Vec<_> = pieces.iter().map(|piece| [piece[6], piece[7]]).collect();
        assert_eq!(fields, [[0x20, 0], [0x20, 6], [0, 12]]);
        let payload: Vec<u8> = pieces
            .iter()
            .flat_map(|piece| piece[20..].to_vec())
            .collect();
        assert_eq!(payload, packet(4, TCP)[20..]);
        for piece in &pieces {
            assert_eq!(usize::from(piece[3]), piece.len());
            assert_eq!(piece[4..6], [0x12, 0x34], "one identification");
            assert_eq!(checksum(&piece[..20]), 0, "a checksum that holds");
        }
    }

    #[test]
    fn ipv6_fragments_reassemble() {
        let mut splitter = Splitter::new(96);
        for id in [1, 2] {
            let pieces = splitter.split(packet(6, TCP));
            let fields: Vec<_> = pieces.iter().map(|piece| [piece[42], piece[43]]).collect();
            assert_eq!(fields, [[0, 1], [0, 49], [0, 96]]);
            let payload: Vec<u8> = pieces
                .iter()
                .flat_map(|piece| piece[48..].to_vec())
                .collect();
            assert_eq!(payload, packet(6, TCP)[40..]);
            for piece in &pieces {
                assert_eq!((piece[6], piece[40]), (FRAGMENT, TCP));
                assert_eq!(usize::from(piece[5]) + 40, piece.len());
                assert_eq!(piece[44..48], [0, 0, 0, id]);
            }
        }
    }

    #[test]
    fn fitting_packets_stay_whole() {
        for version in [4, 6] {
            let whole = packet(version, TCP);
            assert_eq!(Splitter::new(whole.len()).split(whole.clone()), [whole]);
            let other = packet(version, 17);
            assert_eq!(Splitter::new(96).split(other.clone()), [other]);
        }
        let fragment = Splitter::new(100).split(packet(4, TCP)).remove(0);
        assert_eq!(Splitter::new(68).split(fragment.clone()), [fragment]);
    }
}
