// SPDX-License-Identifier: Apache-2.0
//! The chain header as an option of the SYN: a shared experimental kind with
//! an identifier (RFC 6994 §3), for IPv4.
//!
//! 16 bytes at the last node of a chain, 20 with one or two [segments](SegmentList), beside
//! the usual options in the 40 that a TCP header has. It has no room for a [`LoopGuard`] or
//! an authentication tag: a node accepts it by the sender's address.
//!
//! [`LoopGuard`]: crate::header::LoopGuard

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

use crate::bytes::Bytes;
use crate::header::{ChainHeader, Endpoint, EndpointError};
use crate::segments::{SegmentError, SegmentList};
use crate::tcp_option::{BrokenOption, TcpOption, TcpOptions};

/// The experimental kind that is sent (RFC 4727). The other is read as well.
pub const KIND: u8 = 253;
/// The second experimental kind. Linux reads it itself for purposes of its
/// own, so it is not sent.
pub const KIND_OTHER: u8 = 254;
/// The experiment identifier: `PH`.
pub const EXPERIMENT: u16 = 0x5048;
/// Bytes of the option without segments.
pub const BYTES: usize = 16;
/// Bytes of the option with segments.
pub const BYTES_SEGMENTS: usize = 20;
/// The most segments that the option has room for.
pub const SEGMENTS_MAX: usize = 2;
/// Bytes of options that a TCP header can have (RFC 9293 §3.1).
pub const BLOCK_BYTES_MAX: usize = 40;

/// Kind, length and identifier.
const HEAD_BYTES: usize = 4;

/// Appends the option that carries `header` to `options`. Its
/// [guard](ChainHeader::guard) is left out.
///
/// # Errors
/// An address that is not IPv4 or more than [`SEGMENTS_MAX`] segments do not fit; `options`
/// is as it was.
pub fn encode(header: &ChainHeader, options: &mut Vec<u8>) -> Result<(), NotEncodable> {
    if header.segments.len() > SEGMENTS_MAX {
        return Err(NotEncodable::Segments);
    }
    // Before anything is written: after an error `options` must be as it was.
    let destination = ipv4(header.destination)?;
    let source = match header.source {
        Some(source) => ipv4(source)?,
        // Zeros cannot be mistaken: an endpoint has an address and a port.
        None => SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0),
    };
    let is_last = header.segments.is_empty();
    let length = if is_last { BYTES } else { BYTES_SEGMENTS };
    let length = u8::try_from(length).expect("at most 20");
    options.extend_from_slice(&[KIND, length]);
    options.extend_from_slice(&EXPERIMENT.to_be_bytes());
    for endpoint in [destination, source] {
        options.extend_from_slice(&endpoint.ip().octets());
        options.extend_from_slice(&endpoint.port().to_be_bytes());
    }
    if !is_last {
        let segments = header.segments.numbers();
        let sent = segments[..SEGMENTS_MAX].iter();
        options.extend(sent.flat_map(|number| number.to_be_bytes()));
    }
    Ok(())
}

/// The chain header among the options of a SYN. `None` when there is none.
///
/// # Errors
/// The options cannot be read, or the one that is ours is invalid.
/// To connect somewhere after that would be a guess.
pub fn find(options: &[u8]) -> Result<Option<ChainHeader>, SynOptionError> {
    // More cannot come from a TCP header, whose length has 4 bits and counts words.
    if options.len() > BLOCK_BYTES_MAX {
        return Err(SynOptionError::BlockTooLong);
    }
    let mut found = None;
    for option in TcpOptions::new(options) {
        let option = option?;
        let Some(header) = ours(&option)? else {
            continue;
        };
        // Neither counts: a middlebox may have added one, and nothing shows which.
        if found.replace(header).is_some() {
            return Err(SynOptionError::Twice { at: option.at });
        }
    }
    Ok(found)
}

fn ours(option: &TcpOption<'_>) -> Result<Option<ChainHeader>, SynOptionError> {
    let mut bytes = Bytes::new(option.value);
    // Others share these kinds: the experiment's number decides (RFC 6994 section 3).
    let experimental = [KIND, KIND_OTHER].contains(&option.kind);
    if !experimental || bytes.u16() != Some(EXPERIMENT) {
        return Ok(None);
    }
    let length = option.value.len() + 2;
    if length != BYTES && length != BYTES_SEGMENTS {
        return Err(SynOptionError::Length {
            at: option.at,
            length,
        });
    }
    read(&mut bytes, option.at).map(Some)
}

/// Reads what follows the identifier.
fn read(bytes: &mut Bytes<'_>, at: usize) -> Result<ChainHeader, SynOptionError> {
    let length = bytes.rest().len() + HEAD_BYTES;
    let missing = SynOptionError::Length { at, length };
    let mut endpoint = || Some((bytes.array::<4>()?, bytes.u16()?));
    let (destination, source) = (endpoint().ok_or(missing)?, endpoint().ok_or(missing)?);
    // The long form has at least one segment: one header has one encoding.
    let segments = match (bytes.u16(), bytes.u16()) {
        (Some(0), _) => Err(SegmentError::Gap),
        (Some(first), Some(second)) => SegmentList::from_numbers(&[first, second]),
        _ => Ok(SegmentList::EMPTY),
    };
    let segments = segments.map_err(|error| SynOptionError::Segments { at, error })?;
    let endpoint = |(ip, port): ([u8; 4], u16)| {
        let address = SocketAddrV4::new(ip.into(), port);
        Endpoint::new(address.into()).map_err(|error| SynOptionError::Endpoint { at, error })
    };
    let no_source = source == ([0; 4], 0);
    Ok(ChainHeader {
        destination: endpoint(destination)?,
        source: if no_source {
            None
        } else {
            Some(endpoint(source)?)
        },
        segments,
        guard: None,
    })
}

fn ipv4(endpoint: Endpoint) -> Result<SocketAddrV4, NotEncodable> {
    match endpoint.address() {
        SocketAddr::V4(address) => Ok(address),
        SocketAddr::V6(_) => Err(NotEncodable::Ipv6),
    }
}

/// Why a header does not fit into the option.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotEncodable {
    /// The option carries IPv4 addresses only.
    #[error("an IPv6 address does not fit into the option of a SYN")]
    Ipv6,
    /// The chain has more nodes.
    #[error("more than {SEGMENTS_MAX} segments do not fit into the option of a SYN")]
    Segments,
}

/// What is wrong with the options of a SYN, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SynOptionError {
    /// More than a TCP header can have.
    #[error("more than {BLOCK_BYTES_MAX} bytes of options")]
    BlockTooLong,
    /// The list of options itself.
    #[error(transparent)]
    Broken(#[from] BrokenOption),
    /// Ours has neither of the two lengths.
    #[error("the chain header at byte {at} has {length} bytes, not {BYTES} or {BYTES_SEGMENTS}")]
    Length {
        /// Where the option begins.
        at: usize,
        /// Its bytes, with kind and length.
        length: usize,
    },
    /// Ours has an invalid segment list.
    #[error("the chain header at byte {at} has {error}")]
    Segments {
        /// Where the option begins.
        at: usize,
        /// What is wrong with it.
        error: SegmentError,
    },
    /// Ours has an address that no connection can have.
    #[error("the chain header at byte {at} names {error}")]
    Endpoint {
        /// Where the option begins.
        at: usize,
        /// What is wrong with it.
        error: EndpointError,
    },
    /// There are two of ours.
    #[error("a second chain header at byte {at}")]
    Twice {
        /// Where the second begins.
        at: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draw::Draw;
    use posthaste_testkit::{Rng, simulate};

    fn header(rng: &mut Rng) -> ChainHeader {
        ChainHeader {
            destination: rng.endpoint_v4(),
            source: rng.perhaps(Rng::endpoint_v4),
            segments: rng.segments(SEGMENTS_MAX),
            guard: None,
        }
    }

    fn encoded(header: &ChainHeader) -> Vec<u8> {
        let mut bytes = Vec::new();
        encode(header, &mut bytes).unwrap();
        bytes
    }

    // promise: B3
    #[test]
    fn option_beside_others() {
        simulate(2_000, |mut rng| {
            let header = header(&mut rng);
            let usual = [
                2, 4, 5, 0xb4, 4, 2, 8, 10, 1, 2, 3, 4, 0, 0, 0, 0, 1, 3, 3, 7,
            ];
            let (before, after) = usual.split_at(rng.pick(&[0, 4, 6, 16, 17, 20]));
            let mut block = before.to_vec();
            encode(&header, &mut block).unwrap();
            block.extend_from_slice(after);
            assert!(block.len() <= BLOCK_BYTES_MAX);
            assert_eq!(find(&block), Ok(Some(header)));
        });
    }

    #[test]
    fn the_lengths_are_those_promised() {
        let mut header = ChainHeader::to(Endpoint::new("192.0.2.1:80".parse().unwrap()).unwrap());
        assert_eq!(encoded(&header).len(), BYTES);
        header.segments = SegmentList::RESOLVE;
        assert_eq!(encoded(&header).len(), BYTES_SEGMENTS);
    }

    #[test]
    fn long_list_does_not_fit() {
        let node = crate::header::NodeId::MAX;
        let mut header = ChainHeader::to(Endpoint::new("192.0.2.1:80".parse().unwrap()).unwrap());
        header.segments = SegmentList::of([node; SEGMENTS_MAX + 1]).unwrap();
        let mut options = Vec::new();
        assert_eq!(encode(&header, &mut options), Err(NotEncodable::Segments));
        assert!(options.is_empty());
    }

    #[test]
    fn ipv6_does_not_fit() {
        let v6 = Endpoint::new("[2001:db8::1]:80".parse().unwrap()).unwrap();
        let v4 = Endpoint::new("192.0.2.1:80".parse().unwrap()).unwrap();
        let mut options = Vec::new();
        let mut header = ChainHeader::to(v6);
        assert_eq!(encode(&header, &mut options), Err(NotEncodable::Ipv6));
        header.destination = v4;
        header.source = Some(v6);
        assert_eq!(encode(&header, &mut options), Err(NotEncodable::Ipv6));
        assert!(options.is_empty());
    }

    // promise: B3
    #[test]
    fn foreign_experiments_ignored() {
        for option in [
            &[253, 4, 0xf9, 0x89][..],
            &[254, 2],
            &[253, 3, 0x50],
            &[30, 2],
        ] {
            assert_eq!(find(option), Ok(None), "{option:?}");
        }
    }

    // promise: B3
    #[test]
    fn invalid_option_has_place() {
        let good = encoded(&ChainHeader {
            segments: SegmentList::RESOLVE,
            ..ChainHeader::to(Endpoint::new("192.0.2.1:80".parse().unwrap()).unwrap())
        });
        let with = |at: usize, bytes: &[u8]| {
            let mut block = vec![1];
            block.extend_from_slice(&good);
            block[1 + at..][..bytes.len()].copy_from_slice(bytes);
            find(&block).unwrap_err()
        };
        let (at, length) = (1, 18);
        assert_eq!(with(1, &[18]), SynOptionError::Length { at, length });
        let error = SegmentError::Gap;
        assert_eq!(with(16, &[0, 0]), SynOptionError::Segments { at, error });
        let error = SegmentError::ResolveNotAlone;
        assert_eq!(with(18, &[0, 1]), SynOptionError::Segments { at, error });
        let error = EndpointError::Loopback;
        assert_eq!(with(4, &[127]), SynOptionError::Endpoint { at, error });
        let error = EndpointError::Unspecified;
        assert_eq!(with(14, &[0, 1]), SynOptionError::Endpoint { at, error });
        let twice = [&good[..], &good[..]].concat();
        assert_eq!(find(&twice), Err(SynOptionError::Twice { at: 20 }));
        assert_eq!(find(&[1; 41]), Err(SynOptionError::BlockTooLong));
        let cut = BrokenOption::TooLong { at: 0, length: 20 };
        assert_eq!(find(&good[..19]), Err(SynOptionError::Broken(cut)));
    }
}
