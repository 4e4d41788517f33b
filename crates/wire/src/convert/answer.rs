// SPDX-License-Identifier: Apache-2.0
//! What a converter returns.

use super::tlv::{self, BadHeader, Tlv, TooLong, Writer, behind_zeros};
use super::{BYTES_MAX, ConvertError, HEADER_BYTES, VERSION, WORD};
use crate::Progress;
use crate::gather::Gather;

/// TCP options that a converter must not announce (RFC 8803 §6.2.4, §7): every
/// TCP has them, or they belong to one connection.
const UNANNOUNCED: [u8; 6] = [0, 1, 2, 3, 5, 29];

/// The answer to a [`Request`](super::Request). One without any TLV reports
/// that the connection to the server stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// The kinds of TCP options that the converter can send to servers
    /// (§6.2.4), if the request was for [them](super::Request::wants_extensions).
    pub extensions: Option<Vec<u8>>,
    /// The TCP options of the server's SYN-ACK as they were (§6.2.6), if the
    /// request was for [options](super::Connect::options).
    pub tcp_header: Option<Vec<u8>>,
    /// Why the request failed (§6.2.8). The client resets the connection.
    pub error: Option<ConvertError>,
}

impl Answer {
    /// The answer that a request failed.
    pub fn failure(error: ConvertError) -> Self {
        Self {
            error: Some(error),
            ..Self::default()
        }
    }

    /// As bytes. Kinds that must not be announced (0, 1, 2, 3, 5, 29) are
    /// left out, and all is padded with zeros to whole words.
    ///
    /// # Errors
    /// It does not fit into 1020 bytes.
    pub fn encode(&self) -> Result<Vec<u8>, TooLong> {
        let mut message = Writer::new();
        if let Some(kinds) = &self.extensions {
            message.tlv(tlv::SUPPORTED_TCP_EXTENSIONS, &[&[0; 2], &announced(kinds)])?;
        }
        if let Some(options) = &self.tcp_header {
            message.tlv(tlv::EXTENDED_TCP_HEADER, &[&[0; 2], options])?;
        }
        if let Some(error) = &self.error {
            error.write(&mut message)?;
        }
        Ok(message.finish())
    }

    /// Reads an answer from the front of `bytes`. Never needs more bytes than
    /// the answer has.
    ///
    /// # Errors
    /// It is none: the client resets the connection.
    pub fn parse(bytes: &[u8]) -> Result<Progress<Self>, BadAnswer> {
        tlv::body(bytes)?.try_map(|body| {
            let mut answer = Self::default();
            for tlv in tlv::Tlvs::new(body) {
                answer.take(tlv.map_err(|none| BadAnswer::Malformed { at: none.at })?)?;
            }
            Ok(answer)
        })
    }

    fn take(&mut self, tlv: Tlv<'_>) -> Result<(), BadAnswer> {
        let Tlv {
            at, kind, value, ..
        } = tlv;
        let before = match kind {
            tlv::SUPPORTED_TCP_EXTENSIONS => {
                // A converter must not announce some kinds; a client has no use for them.
                let kinds = announced(behind_zeros(value));
                self.extensions.replace(kinds).is_some()
            }
            tlv::EXTENDED_TCP_HEADER => {
                let options = behind_zeros(value).to_vec();
                self.tcp_header.replace(options).is_some()
            }
            tlv::ERROR => {
                let error = ConvertError::read(value).ok_or(BadAnswer::Malformed { at })?;
                self.error.replace(error).is_some()
            }
            kind => return Err(BadAnswer::Unexpected { at, kind }),
        };
        if before {
            return Err(BadAnswer::Twice { at, kind });
        }
        Ok(())
    }
}

/// Of a list of kinds, those that may be in it. Zeros are its padding.
fn announced(kinds: &[u8]) -> Vec<u8> {
    let mut kinds = kinds.to_vec();
    kinds.retain(|kind| !UNANNOUNCED.contains(kind));
    kinds
}

/// Reads an answer that arrives in pieces.
#[derive(Clone, Debug, Default)]
pub struct AnswerReader(Gather);

impl AnswerReader {
    /// Takes the answer's bytes from the front of `input`, and not one more.
    ///
    /// # Errors
    /// As [`Answer::parse`].
    pub fn feed(&mut self, input: &[u8]) -> Result<Progress<Answer>, BadAnswer> {
        self.0.feed(input, Answer::parse)
    }
}

/// What came back is no answer. The client resets the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadAnswer {
    /// The first bytes are those of something else.
    #[error("not the Convert protocol")]
    NotConvert,
    /// Its length is zero (§6.1).
    #[error("a Convert header without a length")]
    NoLength,
    /// Of a version that we do not have.
    #[error("version {0} of the Convert protocol, not {VERSION}")]
    Version(u8),
    /// A TLV without a length, or one that runs over the end.
    #[error("no TLV at byte {at}")]
    Malformed {
        /// Where, from the first byte of the fixed header.
        at: usize,
    },
    /// The reserved type 0 (§6.2.2), or one that converters do not return.
    #[error("a TLV of type {kind} at byte {at}, which no converter returns")]
    Unexpected {
        /// Where, from the first byte of the fixed header.
        at: usize,
        /// Its type.
        kind: u8,
    },
    /// A TLV may come once (§6.2.1).
    #[error("a second TLV of type {kind} at byte {at}")]
    Twice {
        /// Where, from the first byte of the fixed header.
        at: usize,
        /// Its type.
        kind: u8,
    },
}

impl From<BadHeader> for BadAnswer {
    fn from(header: BadHeader) -> Self {
        match header {
            BadHeader::NotConvert => Self::NotConvert,
            BadHeader::NoLength => Self::NoLength,
            BadHeader::Version(version) => Self::Version(version),
        }
    }
}

const _: () = assert!(BYTES_MAX == WORD * u8::MAX as usize && HEADER_BYTES == WORD);

#[cfg(test)]
mod tests;
