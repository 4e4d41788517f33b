// SPDX-License-Identifier: Apache-2.0
//! A repair symbol as it is sent: the payload of a DATAGRAM frame (RFC 9221).

use bytes::{BufMut, Bytes, BytesMut};

use super::field;

/// Bytes before those of the repair symbols.
pub(crate) const HEADER_BYTES: usize = 27;
/// Source symbols of a block.
const SYMBOLS_MAX: usize = 128;
/// Repair symbols of a block.
const REPAIRS_MAX: u8 = 128;
/// The block ends its stream.
const FLAG_FIN: u8 = 1;

/// A part of the repair symbols of a block, and of which block. The parts are cut like those of a stream:
/// they need not start where symbols do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Repair {
    /// The number of the stream (RFC 9000 §2.1).
    pub(crate) stream: u64,
    /// Where in the stream the block begins.
    pub(crate) offset: u64,
    /// Bytes of the block. Its last source symbol is filled up with zeros.
    pub(crate) length: usize,
    /// Bytes of each symbol.
    pub(crate) symbol_bytes: usize,
    /// Whether the stream ends with the block.
    pub(crate) is_last: bool,
    /// Where these bytes are in the repair symbols of the block, one after the other.
    pub(crate) start: usize,
    /// At least one.
    pub(crate) bytes: Bytes,
}

/// Bytes of a symbol at the most: a packet's of a stream. Larger ones would take the receiver longer than
/// they take the path.
const SYMBOL_BYTES_MAX: usize = 1500;

impl Repair {
    /// Reads what a peer has sent. `None` if that is no repair symbol.
    pub(crate) fn parse(datagram: &Bytes) -> Option<Self> {
        let (stream, rest) = datagram.split_first_chunk::<8>()?;
        let (offset, rest) = rest.split_first_chunk::<8>()?;
        let (length, rest) = rest.split_first_chunk::<4>()?;
        let (symbol_bytes, rest) = rest.split_first_chunk::<2>()?;
        let ([flags], rest) = rest.split_first_chunk::<1>()?;
        let (start, rest) = rest.split_first_chunk::<4>()?;
        let repair = Self {
            stream: u64::from_be_bytes(*stream),
            offset: u64::from_be_bytes(*offset),
            length: usize::try_from(u32::from_be_bytes(*length)).ok()?,
            symbol_bytes: u16::from_be_bytes(*symbol_bytes).into(),
            is_last: flags & FLAG_FIN != 0,
            start: usize::try_from(u32::from_be_bytes(*start)).ok()?,
            bytes: datagram.slice_ref(rest),
        };
        let is_whole = !rest.is_empty()
            && repair.symbol_bytes <= SYMBOL_BYTES_MAX
            && repair.length >= repair.symbol_bytes.max(1)
            && repair.length <= repair.symbol_bytes * SYMBOLS_MAX
            && repair.start + rest.len() <= repair.symbol_bytes * usize::from(REPAIRS_MAX)
            && repair.offset.checked_add(repair.length as u64)? < 1 << 62;
        is_whole.then_some(repair)
    }

    /// As it is sent.
    pub(super) fn encode(&self) -> Bytes {
        let mut datagram = BytesMut::with_capacity(HEADER_BYTES + self.bytes.len());
        datagram.put_u64(self.stream);
        datagram.put_u64(self.offset);
        datagram.put_u32(u32::try_from(self.length).unwrap_or(u32::MAX));
        datagram.put_u16(u16::try_from(self.symbol_bytes).unwrap_or(u16::MAX));
        datagram.put_u8(if self.is_last { FLAG_FIN } else { 0 });
        datagram.put_u32(u32::try_from(self.start).unwrap_or(u32::MAX));
        datagram.put_slice(&self.bytes);
        datagram.freeze()
    }
}

/// What source symbol `column` counts for in repair symbol `row`: an element of a Cauchy matrix, each
/// square part of which can be inverted. Both are below 128.
pub(super) fn factor(row: usize, column: usize) -> u8 {
    let index = |at: usize| u8::try_from(at % usize::from(REPAIRS_MAX)).unwrap_or_default();
    field::inverse((REPAIRS_MAX | index(row)) ^ index(column))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repair() -> Repair {
        Repair {
            stream: 4,
            offset: 1 << 40,
            length: 9,
            symbol_bytes: 5,
            is_last: true,
            start: 7,
            bytes: Bytes::from_static(b"12345"),
        }
    }

    #[test]
    fn encoded_is_parsed() {
        assert_eq!(Repair::parse(&repair().encode()), Some(repair()));
        let sized = |symbol_bytes| Repair {
            length: symbol_bytes,
            symbol_bytes,
            ..repair()
        };
        let is_taken = |symbol_bytes| Repair::parse(&sized(symbol_bytes).encode()).is_some();
        assert!(is_taken(SYMBOL_BYTES_MAX) && !is_taken(SYMBOL_BYTES_MAX + 1));
    }

    #[test]
    fn fields_have_their_places() {
        let datagram = repair().encode();
        assert_eq!(
            datagram[..],
            *b"\0\0\0\0\0\0\0\x04\0\0\x01\0\0\0\0\0\0\0\0\x09\0\x05\x01\0\0\0\x0712345"
        );
    }

    #[test]
    fn impossible_ones_are_refused() {
        let refused = |change: fn(&mut Repair)| {
            let mut repair = repair();
            change(&mut repair);
            Repair::parse(&repair.encode()).is_none()
        };
        assert!(!refused(|repair| repair.start = 5 * 128 - 5));
        assert!(refused(|repair| repair.start = 5 * 128 - 4));
        assert!(refused(|repair| repair.length = 0));
        assert!(refused(|repair| repair.length = 4));
        assert!(!refused(|repair| repair.length = 5 * SYMBOLS_MAX));
        assert!(refused(|repair| repair.length = 5 * SYMBOLS_MAX + 1));
        assert!(refused(|repair| repair.symbol_bytes = 0));
        assert!(refused(|repair| repair.bytes = Bytes::new()));
        assert!(refused(|repair| repair.offset = u64::MAX));
        assert!(refused(|repair| repair.offset = (1 << 62) - 9));
        for length in 0..=HEADER_BYTES {
            assert!(Repair::parse(&repair().encode().slice(..length)).is_none());
        }
    }
}
