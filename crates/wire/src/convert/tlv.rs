// SPDX-License-Identifier: Apache-2.0
//! The fixed header and the TLVs (RFC 8803 §6.1, §6.2.1), read and written.

use super::{BYTES_MAX, HEADER_BYTES, MAGIC, VERSION, WORD};
use crate::Progress;
use crate::bytes::Bytes;

/// The types of TLVs (§6.2.2).
pub(super) const INFO: u8 = 0x01;
pub(super) const CONNECT: u8 = 0x0a;
pub(super) const EXTENDED_TCP_HEADER: u8 = 0x14;
pub(super) const SUPPORTED_TCP_EXTENSIONS: u8 = 0x15;
pub(super) const COOKIE: u8 = 0x16;
pub(super) const ERROR: u8 = 0x1e;

/// What is wrong with a fixed header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BadHeader {
    NotConvert,
    NoLength,
    Version(u8),
}

/// The bytes of a whole message, which are all there: `Done` gives those
/// behind the fixed header.
pub(super) fn body(bytes: &[u8]) -> Result<Progress<&[u8]>, BadHeader> {
    let mut header = Bytes::new(bytes);
    let (Some(version), Some(words), Some(magic)) = (header.u8(), header.u8(), header.u16()) else {
        return Ok(Progress::NeedMore(HEADER_BYTES - bytes.len()));
    };
    // Before the version: only a peer of this protocol understands an answer about versions.
    if magic != MAGIC {
        return Err(BadHeader::NotConvert);
    }
    // The fixed header is a word itself, so no message is shorter (§6.1).
    if words == 0 {
        return Err(BadHeader::NoLength);
    }
    if version != VERSION {
        return Err(BadHeader::Version(version));
    }
    let consumed = usize::from(words) * WORD;
    Ok(match bytes.get(HEADER_BYTES..consumed) {
        Some(value) => Progress::Done { value, consumed },
        None => Progress::NeedMore(consumed - bytes.len()),
    })
}

/// One TLV.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tlv<'a> {
    /// Where it begins, counted from the fixed header's first byte.
    pub(super) at: usize,
    pub(super) kind: u8,
    /// What follows type and length.
    pub(super) value: &'a [u8],
    /// All of it.
    pub(super) whole: &'a [u8],
}

/// The TLVs of a message's body. An error holds the bytes that are none, and
/// nothing comes after it.
pub(super) struct Tlvs<'a> {
    at: usize,
    rest: &'a [u8],
}

impl<'a> Tlvs<'a> {
    pub(super) fn new(body: &'a [u8]) -> Self {
        Self {
            at: HEADER_BYTES,
            rest: body,
        }
    }

    fn tlv(&self) -> Option<Tlv<'a>> {
        let (&kind, &words) = (self.rest.first()?, self.rest.get(1)?);
        // A length of zero words has no type either: `whole.get(2..)` below refuses it, or the
        // iterator would stand still.
        let whole = self.rest.get(..usize::from(words) * WORD)?;
        let (at, value) = (self.at, whole.get(2..)?);
        Some(Tlv {
            at,
            kind,
            value,
            whole,
        })
    }
}

/// Where a TLV should be, and what is there instead.
#[derive(Clone, Copy, Debug)]
pub(super) struct NoTlv<'a> {
    pub(super) at: usize,
    pub(super) rest: &'a [u8],
}

impl<'a> Iterator for Tlvs<'a> {
    type Item = Result<Tlv<'a>, NoTlv<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let found = self.tlv();
        // Behind a broken TLV it is not known where the next one begins.
        let length = found.map_or(self.rest.len(), |tlv| tlv.whole.len());
        let (at, rest) = (self.at, self.rest);
        self.rest = rest.get(length..).unwrap_or_default();
        self.at += length;
        Some(found.ok_or(NoTlv { at, rest }))
    }
}

/// The value of a TLV whose first two bytes mean nothing (§6.2.3 to §6.2.7):
/// what follows them. RFC 8803 has the receiver ignore them.
pub(super) fn behind_zeros(value: &[u8]) -> &[u8] {
    value.get(2..).unwrap_or_default()
}

/// A list of which zero is no member, without its padding.
pub(super) fn unpadded(list: &[u8]) -> Vec<u8> {
    list.iter().copied().filter(|&member| member != 0).collect()
}

/// What was to be sent is longer than RFC 8803 has lengths for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the message would have more than {BYTES_MAX} bytes")]
pub struct TooLong;

/// A message that is being written.
pub(super) struct Writer(Vec<u8>);

impl Writer {
    pub(super) fn new() -> Self {
        let [high, low] = MAGIC.to_be_bytes();
        // `finish` writes the length, which is not known yet.
        Self(vec![VERSION, 0, high, low])
    }

    /// How much is written.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Appends a TLV whose value is `parts` and zeros up to a whole word.
    pub(super) fn tlv(&mut self, kind: u8, parts: &[&[u8]]) -> Result<(), TooLong> {
        let value: usize = parts.iter().map(|part| part.len()).sum();
        let words = (2 + value).div_ceil(WORD);
        // Before anything is written, so that a message never ends within a TLV.
        if self.0.len() + words * WORD > BYTES_MAX {
            return Err(TooLong);
        }
        let end = self.0.len() + words * WORD;
        self.0.push(kind);
        self.0.push(u8::try_from(words).map_err(|_| TooLong)?);
        for part in parts {
            self.0.extend_from_slice(part);
        }
        self.0.resize(end, 0);
        Ok(())
    }

    /// The whole message.
    pub(super) fn finish(mut self) -> Vec<u8> {
        let words = u8::try_from(self.0.len() / WORD);
        self.0[1] = words.expect("no TLV was taken that would make it longer");
        self.0
    }
}
