// SPDX-License-Identifier: Apache-2.0
//! TCP options in parts, and segments that compare equal if a receiver reads the same.

use std::hash::{DefaultHasher, Hash, Hasher};

use crate::segment::Segment;

/// An option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Opt {
    Mss(u16),
    Shift(u8),
    SackPermitted,
    Times(u32, u32),
    Blocks(Vec<u32>),
    Other(u8, Vec<u8>),
}

impl Opt {
    fn of(kind: u8, value: &[u8]) -> Self {
        let word = |at: usize| u32::from_be_bytes(value[at..at + 4].try_into().unwrap());
        match (kind, value.len()) {
            (2, 2) => Self::Mss(u16::from_be_bytes([value[0], value[1]])),
            (3, 1) => Self::Shift(value[0]),
            (4, 0) => Self::SackPermitted,
            (8, 8) => Self::Times(word(0), word(4)),
            (5, bytes) if bytes % 8 == 0 => {
                Self::Blocks((0..bytes / 4).map(|at| word(4 * at)).collect())
            }
            _ => Self::Other(kind, value.to_vec()),
        }
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        let (kind, value) = match self {
            Self::Mss(mss) => (2, mss.to_be_bytes().to_vec()),
            Self::Shift(shift) => (3, vec![*shift]),
            Self::SackPermitted => (4, vec![]),
            Self::Times(value, echo) => (8, [value.to_be_bytes(), echo.to_be_bytes()].concat()),
            Self::Blocks(edges) => (5, edges.iter().flat_map(|e| e.to_be_bytes()).collect()),
            Self::Other(kind, value) => (*kind, value.clone()),
        };
        let length = u8::try_from(value.len() + 2).unwrap();
        [&[kind, length][..], &value].concat()
    }
}

/// The options of a header in their order; `None` if they cannot be parsed.
pub(super) fn read(mut bytes: &[u8]) -> Option<Vec<Opt>> {
    let mut options = Vec::new();
    loop {
        match *bytes {
            [] | [0, ..] => return Some(options),
            [1, ref rest @ ..] => bytes = rest,
            [kind, length, ..] if (2..=bytes.len()).contains(&length.into()) => {
                let (option, rest) = bytes.split_at(length.into());
                options.push(Opt::of(kind, &option[2..]));
                bytes = rest;
            }
            _ => return None,
        }
    }
}

/// A segment, with its options in any layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Meaning {
    rest: Segment,
    options: Vec<Opt>,
    /// The length and a hash of the data, which a message has no room for.
    data: (usize, u64),
}

pub(super) fn meaning(segment: &Segment) -> Meaning {
    let mut hash = DefaultHasher::new();
    segment.data.hash(&mut hash);
    Meaning {
        data: (segment.data.len(), hash.finish()),
        options: read(&segment.options).expect("options of a node's own, or parsed before"),
        rest: Segment {
            options: Vec::new(),
            data: Vec::new(),
            ..segment.clone()
        },
    }
}

/// What a SYN offers, or a SYN-ACK grants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Offer {
    pub(super) mss: Option<u16>,
    pub(super) shift: Option<u8>,
    pub(super) sack: bool,
    pub(super) times: Option<(u32, u32)>,
}

impl Offer {
    /// `None` for options that the packet path leaves to the ends: unknown, repeated, malformed.
    pub(super) fn of(segment: &Segment) -> Option<Self> {
        let mut offer = Self::default();
        for option in read(&segment.options)? {
            let is_first = match option {
                Opt::Mss(mss) => offer.mss.replace(mss).is_none(),
                // RFC 7323 section 2.3.
                Opt::Shift(shift) => offer.shift.replace(shift.min(14)).is_none(),
                Opt::SackPermitted => !std::mem::replace(&mut offer.sack, true),
                Opt::Times(value, echo) => offer.times.replace((value, echo)).is_none(),
                Opt::Blocks(_) | Opt::Other(..) => return None,
            };
            if !is_first {
                return None;
            }
        }
        Some(offer)
    }
}
