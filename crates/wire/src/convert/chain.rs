// SPDX-License-Identifier: Apache-2.0
//! The TLV of ours: what the chain header has and RFC 8803 has not.
//!
//! Every field has its place, whether it is used or not; what is not used is
//! zero. With an authentication tag the TLV is longer.

use super::{Connect, WORD};
use crate::auth::{Claim, MAC_BYTES, Nonce};
use crate::bytes::Bytes;
use crate::header::{ChainHeader, Endpoint, LoopGuard, NodeId};
use crate::segments::{SEGMENTS_MAX, SegmentError, SegmentList};

/// Its type, of the range for private use (RFC 8803 §10.2.2).
pub(super) const KIND: u8 = 0xc8;
/// The version of the layout.
const VERSION: u8 = 1;
const BYTES: usize = 10 * WORD;
const BYTES_AUTHENTICATED: usize = 21 * WORD;
const FLAG_SOURCE: u8 = 1;
const FLAG_GUARD: u8 = 2;
const FLAG_UNVALIDATED: u8 = 4;
/// Where the code is in the TLV.
pub(super) const MAC_AT: usize = BYTES_AUTHENTICATED - MAC_BYTES;

/// What the TLV holds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chain {
    pub(super) source: Option<Endpoint>,
    pub(super) segments: SegmentList,
    pub(super) guard: Option<LoopGuard>,
    pub(super) validated: bool,
    pub(super) claim: Option<Claim>,
}

impl Chain {
    /// `None` when there is nothing that needs it.
    pub(super) fn of(connect: &Connect, claim: Option<Claim>) -> Option<Self> {
        let &ChainHeader {
            source,
            segments,
            guard,
            ..
        } = &connect.header;
        let message = source.is_some() || !segments.is_empty() || guard.is_some();
        // Other converters reject a private TLV, so a request that can do without has none.
        let needed = message || claim.is_some() || !connect.validated;
        needed.then_some(Self {
            source,
            segments,
            guard,
            validated: connect.validated,
            claim,
        })
    }

    /// What follows type and length. The code is zero.
    pub(super) fn value(&self) -> Vec<u8> {
        let mut flags = 0;
        flags |= if self.source.is_some() {
            FLAG_SOURCE
        } else {
            0
        };
        flags |= if self.guard.is_some() { FLAG_GUARD } else { 0 };
        flags |= if self.validated { 0 } else { FLAG_UNVALIDATED };
        let mut value = vec![VERSION, flags];
        let segments = self.segments.numbers();
        value.extend(segments.into_iter().flat_map(u16::to_be_bytes));
        value.extend(self.guard.map_or([0; 2], |guard| guard.origin.to_bytes()));
        // The second byte is reserved: receivers refuse another value.
        value.extend([self.guard.map_or(0, |guard| guard.hop_limit), 0]);
        value.extend(self.source.map_or(0, Endpoint::port).to_be_bytes());
        value.extend(self.source.map_or([0; 16], Endpoint::mapped_ip));
        if let Some(claim) = self.claim {
            value.extend(claim.key_id.to_be_bytes());
            value.extend(claim.timestamp_ms.to_be_bytes());
            value.extend(claim.nonce.0);
            // The code covers the whole request, this field included, so it is zero until then.
            value.extend([0; MAC_BYTES]);
        }
        value
    }

    /// Reads what follows type and length. An error describes what is wrong.
    pub(super) fn read(value: &[u8]) -> Result<Self, &'static str> {
        const SHORT: &str = "a chain TLV of a wrong length";
        let authenticated = match value.len() + 2 {
            BYTES => false,
            BYTES_AUTHENTICATED => true,
            _ => return Err(SHORT),
        };
        let mut bytes = Bytes::new(value);
        if bytes.u8() != Some(VERSION) {
            return Err("a chain TLV of an unknown version");
        }
        let flags = bytes.u8().ok_or(SHORT)?;
        // A flag of a later version may change what the request means: refusing is safe.
        if flags & !(FLAG_SOURCE | FLAG_GUARD | FLAG_UNVALIDATED) != 0 {
            return Err("a chain TLV with unknown flags");
        }
        let segments = read_segments(&mut bytes).ok_or(SHORT)??;
        let guard = (bytes.u16().ok_or(SHORT)?, bytes.u8().ok_or(SHORT)?);
        if bytes.u8() != Some(0) {
            return Err("a chain TLV with something where zero should be");
        }
        let source = (bytes.u16().ok_or(SHORT)?, bytes.array().ok_or(SHORT)?);
        Ok(Self {
            source: read_source(flags & FLAG_SOURCE != 0, source)?,
            segments,
            guard: read_guard(flags & FLAG_GUARD != 0, guard)?,
            validated: flags & FLAG_UNVALIDATED == 0,
            claim: if authenticated {
                Some(claim(&mut bytes).ok_or(SHORT)?)
            } else {
                None
            },
        })
    }
}

/// `None` if there are too few bytes.
fn read_segments(bytes: &mut Bytes<'_>) -> Option<Result<SegmentList, &'static str>> {
    let mut numbers = [0; SEGMENTS_MAX];
    for number in &mut numbers {
        *number = bytes.u16()?;
    }
    Some(SegmentList::from_numbers(&numbers).map_err(SegmentError::what))
}

fn read_guard(is_set: bool, guard: (u16, u8)) -> Result<Option<LoopGuard>, &'static str> {
    match (is_set, guard) {
        (false, (0, 0)) => Ok(None),
        // One spelling for each request: ignored bytes would be passed on, and differ between
        // versions.
        (false, _) => Err("a loop guard that is not announced"),
        (true, (origin, hop_limit)) => {
            let origin = NodeId::new(origin.into()).ok_or("a loop guard without a node")?;
            Ok(Some(LoopGuard { origin, hop_limit }))
        }
    }
}

fn read_source(is_set: bool, source: (u16, [u8; 16])) -> Result<Option<Endpoint>, &'static str> {
    match (is_set, source) {
        (false, (0, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])) => Ok(None),
        (false, _) => Err("a source that is not announced"),
        (true, (port, ip)) => Endpoint::from_mapped(ip, port)
            .map(Some)
            .map_err(|_| "a source that no connection can have"),
    }
}

fn claim(bytes: &mut Bytes<'_>) -> Option<Claim> {
    Some(Claim {
        key_id: bytes.u32()?,
        timestamp_ms: bytes.u64()?,
        nonce: Nonce(bytes.array()?),
    })
}
