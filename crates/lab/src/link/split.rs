// SPDX-License-Identifier: Apache-2.0
//! Fragments packets, as routers do with IPv4 packets (RFC 791), and as IPv4-to-IPv6 translators do
//! (RFC 7915).

use std::sync::atomic::{AtomicU32, Ordering};

/// `MF` of an IPv4 header.
const MORE_V4: u16 = 0x2000;
/// The offset bits of an IPv4 header, in units of eight bytes.
const OFFSET_V4: u16 = 0x1fff;
/// Bytes of an IPv6 header, and of the fragment header after it (RFC 8200 section 4.5).
const HEADER_V6: usize = 40;
const FRAGMENT_HEADER: usize = 8;
const FRAGMENT: u8 = 44;
/// The only fragmented protocol, so that tests can attribute fragments.
const TCP: u8 = 6;

/// The longest packet that stays whole, in bytes.
const BYTES_MAX: usize = 576;

/// The next identification of an IPv6 packet; IPv4 packets have their own.
static NEXT: AtomicU32 = AtomicU32::new(1);

/// The packet, or the fragments of a TCP packet of more than 576 bytes, in order. Ignores the
/// don't-fragment flag of IPv4.
///
/// # Panics
/// When the packet is no IP packet of less than 64 KiB.
pub fn split(packet: Vec<u8>) -> Vec<Vec<u8>> {
    match packet[0] >> 4 {
        _ if packet.len() <= BYTES_MAX => vec![packet],
        4 => split_v4(packet),
        6 => split_v6(packet),
        _ => vec![packet],
    }
}

fn split_v4(packet: Vec<u8>) -> Vec<Vec<u8>> {
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
    pieces(payload, BYTES_MAX - header).map(piece).collect()
}

fn split_v6(packet: Vec<u8>) -> Vec<Vec<u8>> {
    if packet[6] != TCP {
        return vec![packet];
    }
    // One identification for all fragments of a packet, another for the next (RFC 8200 section
    // 4.5).
    let id = NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes();
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
    let room = BYTES_MAX - HEADER_V6 - FRAGMENT_HEADER;
    pieces(payload, room).map(piece).collect()
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

/// The Internet checksum (RFC 1071) of a header of an even length, at most 60 bytes.
pub fn checksum(header: &[u8]) -> u16 {
    let words = header
        .chunks(2)
        .map(|pair| u16::from_be_bytes([pair[0], pair[1]]));
    let mut sum: u32 = words.map(u32::from).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    // It was folded.
    !u16::try_from(sum).unwrap_or_default()
}
