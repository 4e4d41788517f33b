// SPDX-License-Identifier: Apache-2.0
//! What clients send first: requests, and RFC 8803's messages for a converter.

use std::net::{IpAddr, SocketAddr};

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
    /// So many bytes of the pattern from the client, then a FIN.
    Upload(u64),
}

impl Request {
    /// The request on the wire: kind and size, each as 8 bytes in network byte order.
    pub(crate) fn encode(self) -> [u8; REQUEST_BYTES] {
        let (kind, size) = match self {
            Self::Object(size) => (1_u64, size),
            Self::Stream => (2, 0),
            Self::Echo => (3, 0),
            Self::Upload(size) => (4, size),
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
            4 => Some(Self::Upload(number(&bytes[8..]))),
            _ => None,
        }
    }
}

/// The first message to a converter, requesting a connection to `server`: the fixed header (RFC
/// 8803, section 6.1) and a Connect TLV (section 6.2.5).
pub(crate) fn request_for(server: SocketAddr) -> Vec<u8> {
    let address = match server.ip() {
        // The TLV has an IPv6 address; IPv4 is mapped (RFC 8803 section 6.2.5).
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
pub(crate) fn answer_bytes(front: [u8; 2]) -> Option<usize> {
    (front[0] == 1 && front[1] > 0).then(|| usize::from(front[1]) * 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_as_written() {
        for request in [
            Request::Object(8192),
            Request::Stream,
            Request::Echo,
            Request::Upload(8192),
        ] {
            assert_eq!(Request::decode(request.encode()), Some(request));
        }
        assert_eq!(Request::decode([7; REQUEST_BYTES]), None);
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
