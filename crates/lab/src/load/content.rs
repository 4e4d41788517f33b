// SPDX-License-Identifier: Apache-2.0
//! The content of connections: requests, the pattern of all answers, and RFC 8803's messages for a
//! converter.

use std::net::{IpAddr, SocketAddr};

use crate::rng::scramble;

/// Period of the pattern in bytes: one more than a power of two, so that bytes shifted by a page or
/// a buffer do not match.
pub(super) const PERIOD: usize = (1 << 20) + 1;

/// Bytes of a request on the wire.
pub(super) const REQUEST_BYTES: usize = 16;

/// A client's request to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// So many bytes of the pattern, then a FIN.
    Object(u64),
    /// Bytes of the pattern until the client's FIN, then a FIN.
    Stream,
    /// An echo of every further byte, and a FIN after the client's.
    Echo,
}

impl Request {
    /// The request on the wire: kind and size, each as 8 bytes in network byte order.
    pub(super) fn encode(self) -> [u8; REQUEST_BYTES] {
        let (kind, size) = match self {
            Self::Object(size) => (1_u64, size),
            Self::Stream => (2, 0),
            Self::Echo => (3, 0),
        };
        let mut bytes = [0; REQUEST_BYTES];
        bytes[..8].copy_from_slice(&kind.to_be_bytes());
        bytes[8..].copy_from_slice(&size.to_be_bytes());
        bytes
    }

    /// Parses a request; `None` if it is invalid.
    pub(super) fn decode(bytes: [u8; REQUEST_BYTES]) -> Option<Self> {
        let number = |part: &[u8]| part.iter().fold(0, |n, &byte| n << 8 | u64::from(byte));
        match number(&bytes[..8]) {
            1 => Some(Self::Object(number(&bytes[8..]))),
            2 => Some(Self::Stream),
            3 => Some(Self::Echo),
            _ => None,
        }
    }
}

/// The pattern, once.
pub(crate) fn pattern() -> Vec<u8> {
    let words = (0..=PERIOD as u64 / 8).flat_map(|word| scramble(word).to_le_bytes());
    words.take(PERIOD).collect()
}

/// The part of the pattern from an offset of the stream on, up to the end of the period.
pub(crate) fn from(pattern: &[u8], offset: u64) -> &[u8] {
    let place = usize::try_from(offset % PERIOD as u64).unwrap_or(0);
    &pattern[place..]
}

/// Whether received bytes match the pattern, by their first and last few.
pub(super) fn fits(pattern: &[u8], offset: u64, bytes: &[u8]) -> bool {
    const LOOKED_AT: usize = 64;
    let same = |offset: u64, bytes: &[u8]| {
        let expected = from(pattern, offset);
        let length = bytes.len().min(expected.len());
        bytes[..length] == expected[..length]
    };
    let tail = bytes.len().saturating_sub(LOOKED_AT);
    same(offset, &bytes[..bytes.len().min(LOOKED_AT)]) && same(offset + tail as u64, &bytes[tail..])
}

/// The first message to a converter, requesting a connection to `server`: the fixed header (RFC
/// 8803, section 6.1) and a Connect TLV (section 6.2.5).
pub(super) fn request_for(server: SocketAddr) -> Vec<u8> {
    let address = match server.ip() {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    // Version 1, six words of four bytes in all, the magic number; type 10, five words.
    let mut bytes = vec![1, 6, 0x22, 0x63, 10, 5];
    bytes.extend(server.port().to_be_bytes());
    bytes.extend(address.octets());
    bytes
}

/// The length of the converter's answer, by its first two bytes (RFC 8803, section 6.1); `None` if
/// they are invalid.
pub(super) fn answer_bytes(front: [u8; 2]) -> Option<usize> {
    (front[0] == 1 && front[1] > 0).then(|| usize::from(front[1]) * 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_as_written() {
        for request in [Request::Object(8192), Request::Stream, Request::Echo] {
            assert_eq!(Request::decode(request.encode()), Some(request));
        }
        assert_eq!(Request::decode([7; REQUEST_BYTES]), None);
    }

    #[test]
    fn shifted_or_changed_bytes() {
        let pattern = pattern();
        let end = PERIOD - 100;
        let mut bytes: Vec<u8> = pattern[end..].to_vec();
        bytes.extend(&pattern[..4000]);
        assert!(fits(&pattern, end as u64, &bytes), "across the repetition");
        assert!(fits(&pattern, (2 * PERIOD + end) as u64, &bytes));
        assert!(!fits(&pattern, end as u64 + 4096, &bytes));
        assert!(!fits(&pattern, 0, &bytes));
        *bytes.last_mut().unwrap() ^= 1;
        assert!(!fits(&pattern, end as u64, &bytes));
        assert!(fits(&pattern, 7, &[]), "nothing is never wrong");
    }

    #[test]
    fn convert_request_bytes() {
        let bytes = request_for("10.0.1.2:8000".parse().unwrap());
        assert_eq!(bytes.len(), 24);
        assert_eq!(bytes[..8], [1, 6, 0x22, 0x63, 10, 5, 0x1f, 0x40]);
        assert_eq!(bytes[18..], [0xff, 0xff, 10, 0, 1, 2]);
        assert_eq!(answer_bytes([1, 1]), Some(4));
        assert_eq!(answer_bytes([2, 1]), None);
    }
}
