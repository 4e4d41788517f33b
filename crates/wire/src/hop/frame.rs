// SPDX-License-Identifier: Apache-2.0
//! What both ends send after the handshake: a type, a zero and a length, and so
//! many bytes.

use crate::Progress;
use crate::bytes::Bytes;
use crate::convert;

pub(super) const PING: u8 = 1;
pub(super) const PONG: u8 = 2;
pub(super) const OPEN: u8 = 3;
pub(super) const REPLY: u8 = 4;
pub(super) const VALIDATED: u8 = 5;
pub(super) const ACCEPTED: u8 = 6;
pub(super) const WORKING: u8 = 7;

/// Bytes of type, zero and length.
pub(super) const HEAD_BYTES: usize = 4;
/// Bytes of the number that a ping carries and its pong returns.
pub(super) const TOKEN_BYTES: usize = 4;

/// One frame, its length checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) kind: u8,
    pub(super) payload: Vec<u8>,
}

impl Frame {
    /// Reads one from the front of `bytes`. What cannot be a frame is refused
    /// by its first four bytes.
    pub(super) fn parse(bytes: &[u8]) -> Result<Progress<Self>, FrameError> {
        let mut head = Bytes::new(bytes);
        let (Some(kind), Some(zero), Some(length)) = (head.u8(), head.u8(), head.u16()) else {
            return Ok(Progress::NeedMore(HEAD_BYTES - bytes.len()));
        };
        let length = usize::from(length);
        // By type, before the payload is waited for: a peer cannot have the receiver store more
        // than the longest message of that type.
        let lengths = match kind {
            PING | PONG => TOKEN_BYTES..=TOKEN_BYTES,
            OPEN => convert::HEADER_BYTES..=convert::BYTES_MAX,
            REPLY => super::reply::BYTES..=super::reply::BYTES,
            VALIDATED | ACCEPTED | WORKING => 0..=0,
            kind => return Err(FrameError::Kind(kind)),
        };
        if !lengths.contains(&length) {
            return Err(FrameError::Length { kind, length });
        }
        if zero != 0 {
            return Err(FrameError::NotZero { kind });
        }
        let consumed = HEAD_BYTES + length;
        Ok(match bytes.get(HEAD_BYTES..consumed) {
            None => Progress::NeedMore(consumed - bytes.len()),
            Some(payload) => Progress::Done {
                value: Self {
                    kind,
                    payload: payload.to_vec(),
                },
                consumed,
            },
        })
    }
}

/// Bytes that are no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Of a type that is not known.
    #[error("a frame of type {0}, which is unknown")]
    Kind(u8),
    /// Of a length that its type does not have.
    #[error("a frame of type {kind} and {length} bytes")]
    Length {
        /// Its type.
        kind: u8,
        /// Bytes behind the first four.
        length: usize,
    },
    /// With something where zero should be.
    #[error("a frame of type {kind} with something where zero should be")]
    NotZero {
        /// Its type.
        kind: u8,
    },
}
