// SPDX-License-Identifier: Apache-2.0
//! The numbers of chains: 24 bits, as labels carry them. Pure.
//!
//! They are given in turn: the one that was free the longest comes next. Who gives a number back has
//! seen to it that nobody uses it any more.

use std::ops::Range;

use posthaste_wire::header::RESOLVE;

use crate::message::ChainNumber;

/// The numbers of planned chains. Those below are left to the chains of configurations, and the last of
/// 24 bits is no chain's.
pub const NUMBERS: Range<ChainNumber> = 1 << 16..RESOLVE;

/// Which numbers are taken.
#[derive(Debug)]
pub(crate) struct Numbers {
    /// Those that are given.
    all: Range<ChainNumber>,
    /// A bit for each.
    taken: Vec<u64>,
    /// The one that is looked at next.
    next: ChainNumber,
    free: u32,
}

impl Numbers {
    /// None of these is taken, and the first that is given is as far from their first as `next`, or what
    /// that wraps to. There is one at least, and none is beyond [`NUMBERS`].
    pub(crate) fn new(all: Range<ChainNumber>, next: ChainNumber) -> Self {
        assert!(
            !all.is_empty() && all.end <= NUMBERS.end,
            "numbers of 24 bits"
        );
        let free = all.end - all.start;
        Self {
            next: all.start + next % free,
            taken: vec![0; all.end as usize / 64 + 1],
            free,
            all,
        }
    }

    /// How far from the first the one is that is looked at next.
    pub(crate) fn next(&self) -> ChainNumber {
        self.next - self.all.start
    }

    /// A number that nobody has, unless all are taken.
    pub(crate) fn give(&mut self) -> Option<ChainNumber> {
        if self.free == 0 {
            return None;
        }
        while !self.take(self.next) {
            self.step();
        }
        let number = self.next;
        self.step();
        Some(number)
    }

    /// Takes a number, unless it is taken or not one of ours.
    pub(crate) fn take(&mut self, number: ChainNumber) -> bool {
        if !self.all.contains(&number) {
            return false;
        }
        let (word, bit) = place(number);
        let is_free = self.taken[word] & bit == 0;
        self.taken[word] |= bit;
        self.free -= u32::from(is_free);
        is_free
    }

    /// Takes back a number that was given.
    pub(crate) fn take_back(&mut self, number: ChainNumber) {
        let (word, bit) = place(number);
        debug_assert!(self.taken[word] & bit != 0, "nobody has number {number}");
        self.free += u32::from(self.taken[word] & bit != 0);
        self.taken[word] &= !bit;
    }

    fn step(&mut self) {
        self.next += 1;
        if self.next == self.all.end {
            self.next = self.all.start;
        }
    }
}

fn place(number: ChainNumber) -> (usize, u64) {
    (number as usize / 64, 1 << (number % 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_turn() {
        let mut numbers = Numbers::new(100..1000, 0);
        assert_eq!(numbers.give(), Some(100));
        assert_eq!(numbers.give(), Some(101));
        numbers.take_back(100);
        assert_eq!(numbers.give(), Some(102));
        assert!(numbers.take(103));
        assert!(!numbers.take(103) && !numbers.take(99) && !numbers.take(1000));
        assert_eq!(numbers.give(), Some(104));
        let mut given = 4;
        while let Some(number) = numbers.give() {
            assert_ne!(number, 103);
            given += 1;
        }
        assert_eq!(given, 900);
        numbers.take_back(109);
        assert_eq!(numbers.give(), Some(109));
        assert_eq!(numbers.give(), None);
    }

    #[test]
    fn start_number_restored() {
        let mut numbers = Numbers::new(NUMBERS, NUMBERS.end);
        let first = numbers.give().unwrap();
        assert!(NUMBERS.contains(&first));
        assert_eq!(
            Numbers::new(NUMBERS, numbers.next()).give(),
            Some(first + 1)
        );
        let mut last = Numbers::new(NUMBERS, NUMBERS.end - NUMBERS.start - 1);
        assert_eq!(
            (last.give(), last.give()),
            (Some(NUMBERS.end - 1), Some(NUMBERS.start))
        );
    }
}
