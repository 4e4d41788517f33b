// SPDX-License-Identifier: Apache-2.0
//! The 0-RTT TCP Convert Protocol (RFC 8803): the chain header as the first
//! bytes of a stream, and the answer to it.
//!
//! A client sends a [`Request`], a converter returns an [`Answer`]; both are a
//! fixed header and TLVs, 1020 bytes at most. What RFC 8803 has no place for
//! is in one TLV of the range for private use, which clients of others do not
//! send and converters of others refuse.
//!
//! Where the RFC has an error echo "the message", it means one TLV (§6.2.1).

mod answer;
mod chain;
mod cookie;
mod error;
mod head;
mod request;
mod tlv;

pub use answer::{Answer, AnswerReader, BadAnswer};
pub use cookie::{cookie, is_cookie_of};
pub use error::ConvertError;
pub use head::{Head, HeadReader, Problem, Refusal};
pub use request::{Connect, Request, TcpRequest};
pub use tlv::TooLong;

/// The version of the protocol (§6.1).
pub const VERSION: u8 = 1;
/// What distinguishes the protocol from any other (§6.1).
pub const MAGIC: u16 = 0x2263;
/// Bytes of the fixed header (§6.1).
pub const HEADER_BYTES: usize = 4;
/// What the protocol can take of the front of a stream: its length is counted
/// in words of 4 bytes, and in one byte (§6.1).
pub const BYTES_MAX: usize = 1020;

/// Bytes of a word: everything is counted in words.
const WORD: usize = 4;
