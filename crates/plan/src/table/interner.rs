// SPDX-License-Identifier: Apache-2.0
//! Interned rows of numbers.

use super::build::short;

/// An empty slot.
const FREE: u16 = u16::MAX;

/// Initial number of slots.
const SLOTS: usize = 64;

/// Rows of the same length, numbered in the order of their first use.
#[derive(Debug)]
pub(super) struct Interner<T> {
    length: usize,
    count: u16,
    /// One after the other.
    all: Vec<T>,
    /// Hash table of row numbers with linear probing. At least twice as many slots as rows.
    slots: Vec<u16>,
}

impl<T: Copy + Eq + Into<u64>> Interner<T> {
    /// For rows of this length.
    pub(super) fn new(length: usize) -> Self {
        Self {
            length,
            count: 0,
            all: Vec::new(),
            slots: vec![FREE; SLOTS],
        }
    }

    /// The number of a row, which is added if needed.
    pub(super) fn number(&mut self, row: &[T]) -> u16 {
        let slot = self.slot(row);
        if self.slots[slot] != FREE {
            return self.slots[slot];
        }
        let number = self.count;
        assert_ne!(number, FREE, "there are fewer rows than numbers");
        self.slots[slot] = number;
        self.all.extend_from_slice(row);
        self.count = short(usize::from(number) + 1);
        // Half full at the most: linear probing slows down steeply beyond.
        if usize::from(self.count) * 2 > self.slots.len() {
            self.grow();
        }
        number
    }

    /// All rows in the order of their numbers, one after the other.
    pub(super) fn into_all(self) -> Vec<T> {
        self.all
    }

    fn row(&self, number: u16) -> &[T] {
        &self.all[usize::from(number) * self.length..][..self.length]
    }

    /// The slot of a row, or the one where it belongs.
    fn slot(&self, row: &[T]) -> usize {
        let mask = self.slots.len() - 1;
        let mut slot = hash(row) & mask;
        while self.slots[slot] != FREE && self.row(self.slots[slot]) != row {
            slot = (slot + 1) & mask;
        }
        slot
    }

    fn grow(&mut self) {
        self.slots = vec![FREE; self.slots.len() * 2];
        for number in 0..self.count {
            let slot = self.slot(self.row(number));
            self.slots[slot] = number;
        }
    }
}

/// Deterministic. Colliding rows would require control over all links of a node.
fn hash<T: Copy + Into<u64>>(row: &[T]) -> usize {
    // Any odd number; this one is from the golden ratio.
    let word = |items: &[T]| {
        items
            .iter()
            .fold(0, |word, item| word << 16 | (*item).into())
    };
    let mix =
        |hash: u64, word: u64| (hash.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let (words, rest) = row.as_chunks::<4>();
    let hash = words
        .iter()
        .fold(word(rest), |hash, items| mix(hash, word(items)));
    let hash = mix(hash, 0);
    // Only the upper bits depend on all of a factor.
    (hash >> 40) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_numbered_in_order() {
        let mut interner = Interner::new(2);
        let row = |number: u16| [number % 1000 / 7, number % 1000 % 7];
        for _ in 0..2 {
            for number in 0..2000 {
                assert_eq!(interner.number(&row(number)), number % 1000);
            }
        }
        let all: Vec<u16> = (0..1000).flat_map(row).collect();
        assert_eq!(interner.into_all(), all);
    }
}
