// SPDX-License-Identifier: Apache-2.0
//! A source block at its receiver: what can be computed of its lost bytes, column by column.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use bytes::Bytes;

use super::field;
use super::symbol::factor;

/// A source block of which there are repair symbols.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) length: usize,
    pub(super) symbol_bytes: usize,
    /// Parts of the repair symbols, by their place.
    pub(super) repairs: BTreeMap<usize, Bytes>,
}

/// Columns in which the same symbols have lost their byte, and the repair symbols that are there have
/// theirs.
#[derive(Debug)]
pub(super) struct Lost {
    columns: Range<usize>,
    symbols: Vec<usize>,
    /// As many repair symbols.
    rows: Vec<usize>,
}

impl Block {
    /// The columns that can be repaired, if that of byte `next` is among them.
    pub(super) fn repairable(&self, gaps: &[Range<usize>], next: usize) -> Option<Vec<Lost>> {
        let gaps = self.by_symbol(gaps.iter().cloned());
        let parts = self.repairs.iter();
        let parts = self.by_symbol(parts.map(|(start, part)| *start..start + part.len()));
        let edges: BTreeSet<usize> = gaps
            .iter()
            .chain(&parts)
            .flat_map(|(_, columns)| [columns.start, columns.end])
            .collect();
        let mut lost = Vec::new();
        for (start, end) in edges.iter().zip(edges.iter().skip(1)) {
            let symbols = with_column(&gaps, *start);
            let mut rows = with_column(&parts, *start);
            if (1..=rows.len()).contains(&symbols.len()) {
                rows.truncate(symbols.len());
                lost.push(Lost {
                    columns: *start..*end,
                    symbols,
                    rows,
                });
            }
        }
        let column = next % self.symbol_bytes;
        let has_next = lost.iter().any(|lost| lost.columns.contains(&column));
        has_next.then_some(lost)
    }

    /// Cuts ranges of symbols, one after the other, where symbols end: the symbol and its columns.
    fn by_symbol(&self, ranges: impl Iterator<Item = Range<usize>>) -> Vec<(usize, Range<usize>)> {
        let mut parts = Vec::new();
        for range in ranges {
            let mut at = range.start;
            while at < range.end {
                let (symbol, column) = (at / self.symbol_bytes, at % self.symbol_bytes);
                let end = (column + range.end - at).min(self.symbol_bytes);
                parts.push((symbol, column..end));
                at += end - column;
            }
        }
        parts
    }

    /// Computes what is lost of the block's bytes, in which it is 0; returns where it is.
    pub(super) fn solve(&self, lost: &[Lost], bytes: &mut [u8]) -> Vec<Range<usize>> {
        let rows: BTreeSet<usize> = lost.iter().flat_map(|lost| lost.rows.clone()).collect();
        let reduced = rows.into_iter().map(|row| (row, self.reduced(row, bytes)));
        let reduced: BTreeMap<_, _> = reduced.collect();
        let mut solved = Vec::new();
        for Lost {
            columns,
            symbols,
            rows,
        } in lost
        {
            let factors = rows.iter();
            let factors = factors.map(|row| symbols.iter().map(|symbol| factor(*row, *symbol)));
            let mut factors: Vec<Vec<u8>> = factors.map(Iterator::collect).collect();
            let sums = rows
                .iter()
                .map(|row| reduced[row][columns.clone()].to_vec());
            let mut sums: Vec<_> = sums.collect();
            if !field::solve(&mut factors, &mut sums) {
                continue;
            }
            for (symbol, sum) in symbols.iter().zip(&sums) {
                let start = symbol * self.symbol_bytes + columns.start;
                bytes[start..start + sum.len()].copy_from_slice(sum);
                solved.push(start..start + sum.len());
            }
        }
        merged(solved)
    }

    /// What is there of a repair symbol, without what the known bytes count for in it.
    fn reduced(&self, row: usize, bytes: &[u8]) -> Vec<u8> {
        let mut sum = vec![0; self.symbol_bytes];
        for (start, part) in &self.repairs {
            copy_overlap(
                &mut sum,
                (row * self.symbol_bytes) as u64,
                *start as u64,
                part,
            );
        }
        for (column, symbol) in bytes.chunks(self.symbol_bytes).enumerate() {
            field::add_product(&mut sum, factor(row, column), symbol);
        }
        sum
    }
}

/// The symbols of which a column is in `parts`.
fn with_column(parts: &[(usize, Range<usize>)], column: usize) -> Vec<usize> {
    let here = parts
        .iter()
        .filter(|(_, columns)| columns.contains(&column));
    here.map(|(symbol, _)| *symbol).collect()
}

/// Ranges in their order; those that touch are one.
fn merged(mut ranges: Vec<Range<usize>>) -> Vec<Range<usize>> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut merged: Vec<Range<usize>> = Vec::new();
    for range in ranges {
        match merged.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => merged.push(range),
        }
    }
    merged
}

/// A range of a stream, from `offset` on.
pub(super) fn within(range: &Range<u64>, offset: u64) -> Range<usize> {
    let place = |at: u64| usize::try_from(at - offset).unwrap_or(usize::MAX);
    place(range.start)..place(range.end)
}

/// Copies the part of a piece at `start` that lies in `bytes`, which are at `offset`.
pub(super) fn copy_overlap(bytes: &mut [u8], offset: u64, start: u64, piece: &[u8]) {
    let (from, to) = (start.max(offset), start + piece.len() as u64);
    let to = to.min(offset + bytes.len() as u64);
    if from < to {
        bytes[within(&(from..to), offset)].copy_from_slice(&piece[within(&(from..to), start)]);
    }
}
