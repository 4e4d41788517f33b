// SPDX-License-Identifier: Apache-2.0
//! The options of a TCP header (RFC 9293 §3.1), one after the other.

/// End of the option list.
pub const KIND_END: u8 = 0;
/// No operation: fills up.
pub const KIND_NOP: u8 = 1;

/// One option that has a length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpOption<'a> {
    /// Where it begins in the block, in bytes.
    pub at: usize,
    /// Its kind.
    pub kind: u8,
    /// What follows kind and length.
    pub value: &'a [u8],
}

/// A block of options cannot be read beyond this.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BrokenOption {
    /// There is a kind, and the block ends.
    #[error("the option at byte {at} has no length")]
    NoLength {
        /// Where the option begins.
        at: usize,
    },
    /// A length covers kind and length itself: less is none.
    #[error("the option at byte {at} has length {length}, and 2 is the least")]
    TooShort {
        /// Where the option begins.
        at: usize,
        /// Its length field.
        length: u8,
    },
    /// The option is longer than what is left of the block.
    #[error("the option at byte {at} has length {length}, and the block ends before")]
    TooLong {
        /// Where the option begins.
        at: usize,
        /// Its length field.
        length: u8,
    },
}

/// The options of a block up to its end or to [`KIND_END`], without
/// [`KIND_NOP`]. Nothing comes after an error.
#[derive(Clone, Debug)]
pub struct TcpOptions<'a> {
    block: &'a [u8],
    at: usize,
}

impl<'a> TcpOptions<'a> {
    /// Reads `block` from its first byte.
    pub fn new(block: &'a [u8]) -> Self {
        Self { block, at: 0 }
    }

    fn option_at(&self, at: usize, kind: u8) -> Result<TcpOption<'a>, BrokenOption> {
        let rest = self.block.get(at..).unwrap_or_default();
        let length = *rest.get(1).ok_or(BrokenOption::NoLength { at })?;
        // RFC 9293 §3.1: the length covers kind and length. Zero would also stop the iteration.
        if length < 2 {
            return Err(BrokenOption::TooShort { at, length });
        }
        let value = rest
            .get(2..usize::from(length))
            .ok_or(BrokenOption::TooLong { at, length })?;
        Ok(TcpOption { at, kind, value })
    }
}

impl<'a> Iterator for TcpOptions<'a> {
    type Item = Result<TcpOption<'a>, BrokenOption>;

    fn next(&mut self) -> Option<Self::Item> {
        let kind = loop {
            match *self.block.get(self.at)? {
                // It is a single byte, without a length (RFC 9293 section 3.1).
                KIND_NOP => self.at += 1,
                kind => break kind,
            }
        };
        // What follows the end of the list is padding and may be anything (RFC 9293 §3.1).
        let option = (kind != KIND_END).then(|| self.option_at(self.at, kind));
        self.at = match option {
            Some(Ok(option)) => self.at + 2 + option.value.len(),
            // Behind a broken option it is not known where the next one begins.
            _ => self.block.len(),
        };
        option
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(block: &[u8]) -> Vec<Result<u8, BrokenOption>> {
        let options = TcpOptions::new(block);
        options
            .map(|option| option.map(|option| option.kind))
            .collect()
    }

    #[test]
    fn options_between_fillers() {
        let block = [1, 1, 2, 4, 5, 0xb4, 1, 4, 2, 0, 3, 3, 7];
        assert_eq!(kinds(&block), [Ok(2), Ok(4)]);
        assert_eq!(kinds(&[]), []);
        assert_eq!(kinds(&[1, 1]), []);
    }

    #[test]
    fn broken_option_ends_list() {
        use BrokenOption::{NoLength, TooLong, TooShort};
        assert_eq!(kinds(&[1, 8]), [Err(NoLength { at: 1 })]);
        let short = TooShort { at: 0, length: 1 };
        assert_eq!(kinds(&[8, 1, 4, 2]), [Err(short)]);
        let long = TooLong { at: 2, length: 3 };
        assert_eq!(kinds(&[4, 2, 8, 3]), [Ok(4), Err(long)]);
    }
}
