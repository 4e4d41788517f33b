// SPDX-License-Identifier: Apache-2.0
//! A source block at its sender.

use bytes::Bytes;

use super::field;
use super::symbol::{HEADER_BYTES, Repair, factor};

/// Source symbols of a block. More of them need a smaller share of repair symbols, and fewer reach the
/// receiver earlier.
const SYMBOLS: usize = 64;

/// Bytes of a stream that repair symbols will follow.
#[derive(Debug)]
pub(crate) struct SourceBlock {
    offset: u64,
    symbol_bytes: usize,
    bytes: Vec<u8>,
}

impl SourceBlock {
    /// An empty one that begins at `offset` of a stream.
    pub(crate) fn new(offset: u64, symbol_bytes: usize) -> Self {
        Self {
            offset,
            symbol_bytes,
            bytes: Vec::new(),
        }
    }

    /// Takes the next bytes of the stream, as far as there is room; returns how many.
    pub(crate) fn add(&mut self, bytes: &[u8]) -> usize {
        let room = SYMBOLS * self.symbol_bytes - self.bytes.len();
        let taken = room.min(bytes.len());
        self.bytes.extend_from_slice(&bytes[..taken]);
        taken
    }

    /// Bytes of it.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether it has all its symbols.
    pub(crate) fn is_full(&self) -> bool {
        self.bytes.len() == SYMBOLS * self.symbol_bytes
    }

    /// Its repair symbols in datagrams of up to so many bytes, for a path that loses so many of a thousand
    /// packets.
    pub(crate) fn repairs(
        &self,
        stream: u64,
        is_last: bool,
        permille: u64,
        datagram_bytes: usize,
    ) -> Vec<Bytes> {
        // A block of less than a symbol is repaired by one as long as the block.
        let symbol_bytes = self.symbol_bytes.min(self.bytes.len()).max(1);
        let rows = rows(self.bytes.len().div_ceil(symbol_bytes), permille);
        let combinations = (0..rows).map(|row| self.combination(row, symbol_bytes));
        let bytes = Bytes::from(combinations.collect::<Vec<_>>().concat());
        let each = datagram_bytes.saturating_sub(HEADER_BYTES).max(1);
        let starts = (0..bytes.len()).step_by(each);
        let repairs = starts.map(|start| Repair {
            stream,
            offset: self.offset,
            length: self.bytes.len(),
            symbol_bytes,
            is_last,
            start,
            bytes: bytes.slice(start..bytes.len().min(start + each)),
        });
        repairs.map(|repair| repair.encode()).collect()
    }

    fn combination(&self, row: usize, symbol_bytes: usize) -> Vec<u8> {
        let mut sum = vec![0; symbol_bytes];
        for (column, symbol) in self.bytes.chunks(symbol_bytes).enumerate() {
            field::add_product(&mut sum, factor(row, column), symbol);
        }
        sum
    }
}

/// Repair symbols for so many source symbols: twice what is lost on average, and half of one. Of a full
/// block at 5 %, 98 in 100 are repaired by these.
fn rows(symbols: usize, permille: u64) -> usize {
    let lost = symbols as u64 * permille;
    let rows = (2 * lost + 500).div_ceil(1000).max(1);
    usize::try_from(rows).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repairs(length: usize, permille: u64) -> Vec<Repair> {
        let mut block = SourceBlock::new(7, 100);
        assert_eq!(block.add(&vec![9; length]), length);
        let repairs = block.repairs(4, false, permille, 90 + HEADER_BYTES);
        repairs
            .iter()
            .map(|datagram| Repair::parse(datagram).unwrap())
            .collect()
    }

    fn bytes(length: usize, permille: u64) -> usize {
        let repairs = repairs(length, permille);
        repairs.iter().map(|repair| repair.bytes.len()).sum()
    }

    #[test]
    fn full_block_takes_no_more() {
        let mut block = SourceBlock::new(0, 100);
        assert_eq!(block.add(&[1; 6399]), 6399);
        assert!(!block.is_full());
        assert_eq!(block.add(&[1; 6399]), 1);
        assert!(block.is_full());
    }

    #[test]
    fn more_loss_has_more_repairs() {
        let counts = [1, 10, 50, 150].map(|permille| bytes(6400, permille) / 100);
        assert_eq!(counts, [1, 2, 7, 20]);
        let counts = [1, 10, 50, 150].map(|permille| bytes(1000, permille) / 100);
        assert_eq!(counts, [1, 1, 2, 4]);
    }

    #[test]
    fn repair_symbols_are_cut_anywhere() {
        let repairs = repairs(1000, 50);
        let ranges = repairs.iter().map(|one| (one.start, one.bytes.len()));
        assert_eq!(ranges.collect::<Vec<_>>(), [(0, 90), (90, 90), (180, 20)]);
    }

    #[test]
    fn short_block_has_a_short_symbol() {
        let repairs = repairs(30, 50);
        assert_eq!(repairs.len(), 1);
        assert_eq!((repairs[0].length, repairs[0].bytes.len()), (30, 30));
        assert_eq!((repairs[0].symbol_bytes, repairs[0].offset), (30, 7));
    }
}
