// SPDX-License-Identifier: Apache-2.0
//! What may lie between the headers of IP and of TCP, and parts of segments.

use posthaste_testkit::Rng;

use super::reference::{Segment, checksum};

/// Bytes of a link layer header.
const LINK: usize = 14;
const TCP: u8 = 6;
const FRAGMENT: u8 = 44;
const SIGNED: u8 = 51;
/// Hop-by-hop options, a routing header that is at its end, destination options, mobility, HIP, SHIM6.
const EXTENSIONS: [u8; 6] = [0, 43, 60, 135, 139, 140];

/// How a segment comes.
#[derive(Clone, Debug)]
pub(super) enum Shape {
    Plain,
    /// IPv4 options of so many bytes, a multiple of four.
    Options(usize),
    /// IPv6 extension headers of these kinds, of eight bytes each.
    Extensions(Vec<u8>),
    /// An authentication header (RFC 4302).
    Signed,
    /// The first fragment, with so many bytes of the segment, a multiple of eight; and whether it has IPv4
    /// options, or an extension header, too.
    First(usize, bool),
}

impl Shape {
    pub(super) fn random(rng: &mut Rng, segment: &Segment) -> Self {
        let is_ipv6 = segment.source.len() == 16;
        match rng.below(8) {
            0 => Self::Plain,
            1 => Self::Signed,
            2..=4 => {
                let most = (segment.tcp_bytes() - 1) / 8;
                // Most begin with a whole header.
                let units = if rng.once_in(3) {
                    1 + rng.below(8_usize)
                } else {
                    1 + rng.below(most)
                };
                Self::First(8 * units.min(most), rng.once_in(3))
            }
            _ if is_ipv6 => {
                let count = 1 + rng.below(4_usize) * rng.below(4_usize);
                let mut kinds: Vec<u8> = (0..count)
                    .map(|_| EXTENSIONS[rng.below(EXTENSIONS.len())])
                    .collect();
                if rng.once_in(4) {
                    // A fragment that is the whole (RFC 6946).
                    kinds[count - 1] = FRAGMENT;
                }
                Self::Extensions(kinds)
            }
            _ => Self::Options(4 * (1 + rng.below(10_usize))),
        }
    }

    /// Whether all numbers of the segment are there.
    pub(super) fn has_header(&self, segment: &Segment) -> bool {
        match self {
            Self::First(bytes, _) => *bytes >= 20 + segment.options.len(),
            _ => true,
        }
    }

    /// Whether what lies between can be taken out.
    pub(super) fn is_separable(&self) -> bool {
        !matches!(self, Self::Signed | Self::First(..))
    }

    /// The frame of the segment in this shape.
    pub(super) fn frame(&self, segment: &Segment) -> Vec<u8> {
        let mut frame = segment.frame();
        match self {
            Self::Plain => return frame,
            Self::Options(bytes) => insert_options(&mut frame, *bytes),
            Self::Extensions(kinds) => {
                for kind in kinds.iter().rev() {
                    let padding = u8::from(*kind != FRAGMENT);
                    insert(&mut frame, *kind, &[0, padding, 0, 0, 0, 0, 0]);
                }
            }
            Self::Signed => insert(&mut frame, SIGNED, &[&[4][..], &[7; 22]].concat()),
            Self::First(bytes, more) => {
                let header = header_of(&frame);
                frame.truncate(header + bytes);
                if frame[LINK] >> 4 == 4 {
                    frame[LINK + 6] = 0x20;
                    if *more {
                        insert_options(&mut frame, 8);
                    }
                } else {
                    insert(&mut frame, FRAGMENT, &[0, 0, 1, 1, 2, 3, 4]);
                    if *more {
                        insert(&mut frame, EXTENSIONS[0], &[0, 1, 4, 0, 0, 0, 0]);
                    }
                }
            }
        }
        finish(&mut frame);
        frame
    }
}

/// A later fragment of the segment's packet: without its first, no host reads it.
pub(super) fn later(segment: &Segment, from: usize) -> Vec<u8> {
    let mut frame = segment.frame();
    let header = header_of(&frame);
    let units = u16::try_from(from / 8).unwrap();
    frame.drain(header..(header + from).min(frame.len()));
    if frame[LINK] >> 4 == 4 {
        frame[LINK + 6..LINK + 8].copy_from_slice(&units.to_be_bytes());
    } else {
        let [high, low] = (units << 3).to_be_bytes();
        insert(&mut frame, FRAGMENT, &[0, high, low, 1, 2, 3, 4]);
    }
    finish(&mut frame);
    frame
}

fn header_of(frame: &[u8]) -> usize {
    LINK + if frame[LINK] >> 4 == 4 { 20 } else { 40 }
}

fn insert_options(frame: &mut Vec<u8>, bytes: usize) {
    let header = header_of(frame);
    frame.splice(header..header, vec![1; bytes]);
    frame[LINK] += u8::try_from(bytes / 4).unwrap();
}

/// Puts a header with these bytes behind its first in front of all others.
fn insert(frame: &mut Vec<u8>, kind: u8, rest: &[u8]) {
    let is_ipv4 = frame[LINK] >> 4 == 4;
    let next = LINK + if is_ipv4 { 9 } else { 6 };
    let header = header_of(frame);
    let inner = std::mem::replace(&mut frame[next], kind);
    frame.splice(header..header, [&[inner][..], rest].concat());
    debug_assert!(inner == TCP || !is_ipv4);
}

/// Sets the lengths and the checksum of the IP header.
fn finish(frame: &mut [u8]) {
    let whole = u16::try_from(frame.len() - LINK).unwrap();
    let ip = &mut frame[LINK..];
    if ip[0] >> 4 == 6 {
        ip[4..6].copy_from_slice(&(whole - 40).to_be_bytes());
        return;
    }
    let header = usize::from(ip[0] & 15) * 4;
    ip[2..4].copy_from_slice(&whole.to_be_bytes());
    ip[10..12].fill(0);
    let check = checksum(&ip[..header]).to_be_bytes();
    ip[10..12].copy_from_slice(&check);
}
