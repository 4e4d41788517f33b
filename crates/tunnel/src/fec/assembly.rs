// SPDX-License-Identifier: Apache-2.0
//! The bytes of a stream at its receiver, in any order, and what is computed of those that are
//! missing.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;

use super::block::{Block, copy_overlap, within};
use super::symbol::Repair;

/// Bytes of repair symbols that are kept of a stream, and what one takes beside them.
const REPAIR_BYTES_MAX: usize = 512 << 10;
const REPAIR_OVERHEAD: usize = 100;

/// The bytes of a stream. Those that were read are kept for a while, since the lost ones of their block
/// follow from them.
#[derive(Debug)]
pub(crate) struct Assembly {
    /// What is read next.
    at: u64,
    /// What was received or repaired, by place; nothing twice.
    pieces: BTreeMap<u64, Bytes>,
    /// Nothing before it is kept.
    floor: u64,
    /// Nothing before it is kept once it is read.
    unneeded: u64,
    /// Where the highest piece ends.
    highest: u64,
    end: Option<u64>,
    blocks: BTreeMap<u64, Block>,
    repair_bytes: usize,
    /// Bytes of pieces since the last call of [`Self::take_added`], and those of them that were repaired.
    added: usize,
    repaired: usize,
}

/// Bytes of a stream do not fit what is known of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BeyondEnd;

impl Assembly {
    /// Of a stream of which so many bytes were read, and are not here.
    pub(crate) fn new(at: u64) -> Self {
        Self {
            at,
            pieces: BTreeMap::new(),
            floor: at,
            unneeded: at,
            highest: at,
            end: None,
            blocks: BTreeMap::new(),
            repair_bytes: 0,
            added: 0,
            repaired: 0,
        }
    }

    /// Bytes that are received and not read.
    pub(crate) fn unread(&self) -> u64 {
        self.highest - self.at
    }

    /// Bytes that were read.
    pub(crate) fn read_bytes(&self) -> u64 {
        self.at
    }

    /// Whether all was read.
    pub(crate) fn is_over(&self) -> bool {
        self.end == Some(self.at)
    }

    /// Where the highest piece ends, how many bytes were added since the last call, and how many of them
    /// were repaired.
    pub(crate) fn take_added(&mut self) -> (u64, usize, usize) {
        let added = std::mem::take(&mut self.added);
        (self.highest, added, std::mem::take(&mut self.repaired))
    }

    /// Takes bytes of the stream.
    ///
    /// # Errors
    /// The stream ends before them.
    pub(crate) fn insert(&mut self, offset: u64, bytes: &Bytes) -> Result<(), BeyondEnd> {
        let range = offset..offset + bytes.len() as u64;
        if self.end.is_some_and(|end| range.end > end) {
            return Err(BeyondEnd);
        }
        self.add(offset, bytes);
        Ok(())
    }

    /// Keeps what is not here of some bytes; returns how many that were.
    fn add(&mut self, offset: u64, bytes: &Bytes) -> usize {
        let end = offset + bytes.len() as u64;
        self.highest = self.highest.max(end);
        let mut added = 0;
        for gap in self.gaps(offset.max(self.floor)..end) {
            let piece = bytes.slice(within(&gap, offset));
            added += piece.len();
            self.pieces.insert(gap.start, piece);
        }
        self.added += added;
        added
    }

    /// All bytes of the stream were passed to [`Self::insert`].
    ///
    /// # Errors
    /// They are fewer than a repair symbol has reported.
    pub(crate) fn on_end(&mut self) -> Result<(), BeyondEnd> {
        let end = *self.end.get_or_insert(self.highest);
        (end == self.highest).then_some(()).ok_or(BeyondEnd)
    }

    /// Takes a repair symbol of the stream.
    pub(crate) fn on_repair(&mut self, repair: &Repair) {
        let end = repair.offset + repair.length as u64;
        let fits = match self.end {
            Some(known) => end <= known && (!repair.is_last || end == known),
            None => !repair.is_last || end >= self.highest,
        };
        let room = REPAIR_BYTES_MAX.saturating_sub(self.repair_bytes);
        if !fits || end < self.at || room < repair.bytes.len() + REPAIR_OVERHEAD {
            return;
        }
        if repair.is_last {
            self.end = Some(end);
        }
        let block = self.blocks.entry(repair.offset).or_insert_with(|| Block {
            length: repair.length,
            symbol_bytes: repair.symbol_bytes,
            repairs: BTreeMap::new(),
        });
        let is_same = block.length == repair.length && block.symbol_bytes == repair.symbol_bytes;
        if is_same && !block.repairs.contains_key(&repair.start) {
            self.repair_bytes += repair.bytes.len() + REPAIR_OVERHEAD;
            block.repairs.insert(repair.start, repair.bytes.clone());
        }
    }

    /// Reads what is there in order; returns how much.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> usize {
        let mut filled = 0;
        while filled < buffer.len() {
            let piece = self.pieces.range(..=self.at).next_back();
            let rest = piece.and_then(|(start, piece)| {
                let skipped = usize::try_from(self.at - start).ok()?;
                piece.get(skipped..).filter(|rest| !rest.is_empty())
            });
            let Some(rest) = rest else {
                if self.repair() {
                    continue;
                }
                break;
            };
            let count = rest.len().min(buffer.len() - filled);
            buffer[filled..filled + count].copy_from_slice(&rest[..count]);
            filled += count;
            self.at += count as u64;
        }
        self.forget_blocks();
        self.forget_pieces();
        filled
    }

    /// Forgets the pieces up to `until`, as soon as they are read.
    pub(crate) fn forget(&mut self, until: u64) {
        self.unneeded = self.unneeded.max(until);
        self.forget_pieces();
    }

    fn forget_pieces(&mut self) {
        while let Some((start, piece)) = self.pieces.first_key_value() {
            let end = start + piece.len() as u64;
            if end > self.unneeded.min(self.at) {
                return;
            }
            self.floor = end;
            self.pieces.pop_first();
        }
    }

    /// What always holds: pieces do not overlap, and repair symbols are bounded.
    #[cfg(any(test, feature = "invariants"))]
    pub(super) fn check(&self) {
        let mut end = self.floor;
        for (start, piece) in &self.pieces {
            assert!(*start >= end && !piece.is_empty());
            end = start + piece.len() as u64;
        }
        assert!(end <= self.highest.max(self.floor) && self.at <= self.highest);
        let repairs = self
            .blocks
            .values()
            .flat_map(|block| block.repairs.values());
        let bytes: usize = repairs.map(|bytes| bytes.len() + REPAIR_OVERHEAD).sum();
        assert!(bytes == self.repair_bytes && bytes <= REPAIR_BYTES_MAX);
    }

    /// Forgets the blocks that were read.
    fn forget_blocks(&mut self) {
        while let Some((start, block)) = self.blocks.first_key_value()
            && start + block.length as u64 <= self.at
        {
            let repairs = block.repairs.values();
            self.repair_bytes -= repairs
                .map(|bytes| bytes.len() + REPAIR_OVERHEAD)
                .sum::<usize>();
            self.blocks.pop_first();
        }
    }

    /// Computes the byte that is read next, and others of its block. Returns whether that byte is there.
    fn repair(&mut self) -> bool {
        let Some((&offset, block)) = self.blocks.range(..=self.at).next_back() else {
            return false;
        };
        let range = offset..offset + block.length as u64;
        if !range.contains(&self.at) {
            return false;
        }
        let gaps = self.gaps(range.clone());
        let gaps: Vec<_> = gaps.iter().map(|gap| within(gap, offset)).collect();
        let next = usize::try_from(self.at - offset).unwrap_or(usize::MAX);
        let Some(lost) = block.repairable(&gaps, next) else {
            return false;
        };
        let mut bytes = vec![0; block.length.next_multiple_of(block.symbol_bytes)];
        for (start, piece) in self.pieces.range(..range.end) {
            copy_overlap(&mut bytes[..block.length], offset, *start, piece);
        }
        let solved = block.solve(&lost, &mut bytes);
        for solved in &solved {
            let piece = Bytes::copy_from_slice(&bytes[solved.clone()]);
            self.repaired += self.add(offset + solved.start as u64, &piece);
        }
        solved.iter().any(|solved| solved.contains(&next))
    }

    /// The parts of `range` that are not here.
    fn gaps(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut gaps = Vec::new();
        let mut at = range.start;
        let before = self.pieces.range(..range.start).next_back();
        let pieces = before
            .into_iter()
            .chain(self.pieces.range(range.start..range.end.max(range.start)));
        for (start, piece) in pieces {
            if at < *start {
                gaps.push(at..*start);
            }
            at = at.max(start + piece.len() as u64);
        }
        if at < range.end {
            gaps.push(at..range.end);
        }
        gaps
    }
}

#[cfg(test)]
mod tests;
