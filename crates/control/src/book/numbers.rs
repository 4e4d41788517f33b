// SPDX-License-Identifier: Apache-2.0
//! The numbers of chains: 24 bits, as labels carry them. Pure.
//!
//! They are given in turn: the one that was free the longest comes next. Who gives a number back has
//! seen to it that nobody uses it any more.

use crate::message::ChainNumber;

/// The first number of a planned chain. Those below are left to the chains of configurations.
pub const FIRST: ChainNumber = 1 << 16;

/// One more than the last.
const END: ChainNumber = 1 << 24;

/// Which numbers are taken.
#[derive(Debug)]
pub(crate) struct Numbers {
    /// A bit for each.
    taken: Vec<u64>,
    /// The one that is looked at next.
    next: ChainNumber,
    free: u32,
}

impl Numbers {
    /// None is taken, and the first that is given is `next`, or the one that it wraps to.
    pub(crate) fn new(next: ChainNumber) -> Self {
        Self {
            taken: vec![0; END as usize / 64],
            next: FIRST + next % (END - FIRST),
            free: END - FIRST,
        }
    }

    /// The one that is given next, if it is free.
    pub(crate) fn next(&self) -> ChainNumber {
        self.next - FIRST
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
        if !(FIRST..END).contains(&number) {
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
        if self.next == END {
            self.next = FIRST;
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
    fn numbers_are_given_in_turn_and_again_at_last() {
        let mut numbers = Numbers::new(0);
        assert_eq!(numbers.give(), Some(FIRST));
        assert_eq!(numbers.give(), Some(FIRST + 1));
        numbers.take_back(FIRST);
        assert_eq!(numbers.give(), Some(FIRST + 2));
        assert!(numbers.take(FIRST + 3));
        assert!(!numbers.take(FIRST + 3) && !numbers.take(FIRST - 1) && !numbers.take(END));
        assert_eq!(numbers.give(), Some(FIRST + 4));
        let mut given = 4;
        while let Some(number) = numbers.give() {
            assert_ne!(number, FIRST + 3);
            given += 1;
        }
        assert_eq!(given, END - FIRST);
        numbers.take_back(FIRST + 9);
        assert_eq!(numbers.give(), Some(FIRST + 9));
        assert_eq!(numbers.give(), None);
    }

    #[test]
    fn where_to_begin_can_be_kept() {
        let mut numbers = Numbers::new(END);
        let first = numbers.give().unwrap();
        assert!((FIRST..END).contains(&first));
        assert_eq!(Numbers::new(numbers.next()).give(), Some(first + 1));
    }
}
