// SPDX-License-Identifier: Apache-2.0
//! The content of all transfers of the lab: a pattern by which both ends detect lost, repeated and
//! reordered bytes.

use std::sync::OnceLock;

use anyhow::{Result, ensure};

use crate::rng::scramble;

/// Period of the pattern in bytes: one more than a power of two, so that bytes shifted by a page or
/// a buffer do not match.
const PERIOD: usize = (1 << 20) + 1;

/// The pattern, once.
pub(crate) fn pattern() -> &'static [u8] {
    static PATTERN: OnceLock<Vec<u8>> = OnceLock::new();
    // A multiplication for each byte sent would be CPU time of the measured server.
    PATTERN.get_or_init(|| {
        let words = (0..=PERIOD as u64 / 8).flat_map(|word| scramble(word).to_le_bytes());
        words.take(PERIOD).collect()
    })
}

/// The pattern from an offset of the stream on, up to `bytes` or the end of the period.
pub(crate) fn part(offset: u64, bytes: u64) -> &'static [u8] {
    let place = usize::try_from(offset % PERIOD as u64).unwrap_or(0);
    let rest = &pattern()[place..];
    &rest[..rest.len().min(usize::try_from(bytes).unwrap_or(usize::MAX))]
}

/// Whether these bytes are the pattern's from an offset on.
pub(crate) fn matches(offset: u64, bytes: &[u8]) -> bool {
    let expected = part(offset, bytes.len() as u64);
    let (now, later) = bytes.split_at(expected.len());
    now == expected && (later.is_empty() || matches(offset + now.len() as u64, later))
}

/// The bytes of an object that have been received, each of which is checked.
#[derive(Debug)]
pub(crate) struct Received {
    bytes: u64,
    expected: u64,
}

impl Received {
    /// None yet, of so many.
    pub(crate) fn of(expected: u64) -> Self {
        Self { bytes: 0, expected }
    }

    /// Takes the next part, an empty one at the end of the stream. Returns the bytes so far.
    pub(crate) fn take(&mut self, part: &[u8]) -> Result<u64> {
        let (before, expected) = (self.bytes, self.expected);
        ensure!(matches(before, part), "wrong content behind byte {before}");
        self.bytes += part.len() as u64;
        let received = self.bytes;
        ensure!(
            received <= expected && (received == expected || !part.is_empty()),
            "{received} bytes came instead of {expected}"
        );
        Ok(received)
    }
}

/// Whether received bytes match the pattern, by their first and last few: comparing all would cost
/// a client more than receiving them.
pub(crate) fn fits(offset: u64, bytes: &[u8]) -> bool {
    const LOOKED_AT: usize = 64;
    // Lost or repeated bytes shift everything behind them, which the last few show.
    let tail = bytes.len().saturating_sub(LOOKED_AT);
    matches(offset, &bytes[..bytes.len().min(LOOKED_AT)])
        && matches(offset + tail as u64, &bytes[tail..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_whole() {
        let begun = || {
            let mut received = Received::of(100);
            assert_eq!(received.take(part(0, 60)).unwrap(), 60);
            received
        };
        let message = |part: &[u8]| begun().take(part).unwrap_err().to_string();
        assert_eq!(message(part(61, 40)), "wrong content behind byte 60");
        assert_eq!(message(part(60, 41)), "101 bytes came instead of 100");
        assert_eq!(message(&[]), "60 bytes came instead of 100");
        let mut whole = begun();
        assert_eq!(whole.take(part(60, 40)).unwrap(), 100);
        assert_eq!(whole.take(&[]).unwrap(), 100);
    }

    #[test]
    fn shifted_or_changed_bytes() {
        let pattern = pattern();
        let end = PERIOD - 100;
        let mut bytes: Vec<u8> = pattern[end..].to_vec();
        bytes.extend(&pattern[..4000]);
        assert!(fits(end as u64, &bytes), "across the repetition");
        assert!(fits((2 * PERIOD + end) as u64, &bytes));
        assert!(!fits(end as u64 + 4096, &bytes));
        assert!(!fits(0, &bytes));
        *bytes.last_mut().unwrap() ^= 1;
        assert!(!fits(end as u64, &bytes));
        assert!(fits(7, &[]), "nothing is never wrong");
    }

    #[test]
    fn every_byte_is_compared() {
        let end = PERIOD - 100;
        let mut bytes = [&pattern()[end..], &pattern()[..4000]].concat();
        assert!(matches(end as u64, &bytes), "across the repetition");
        for shift in [1, 251, 256, 1448, 64 * 1024] {
            assert!(!matches(end as u64 + shift, &bytes), "shift {shift}");
        }
        bytes[2000] ^= 1;
        assert!(!matches(end as u64, &bytes));
        assert!(fits(end as u64, &bytes), "which looks at the ends only");
    }
}
