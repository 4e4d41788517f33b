// SPDX-License-Identifier: Apache-2.0
//! Bounds on lines that remote hosts can cause. Pure.

use std::time::{Duration, Instant};

/// Lines per [`PERIOD`].
const LINES_MAX: u32 = 20;
const PERIOD: Duration = Duration::from_secs(10);

/// A bound on lines of one kind.
#[derive(Clone, Copy, Debug, Default)]
pub struct Quota {
    since: Option<Instant>,
    lines: u32,
    left_out: u64,
}

impl Quota {
    /// The number of lines suppressed since the last, if one more may be written now.
    pub fn take(&mut self, now: Instant) -> Option<u64> {
        if self.since.is_none_or(|since| now >= since + PERIOD) {
            (self.since, self.lines) = (Some(now), 0);
        }
        // Lines of a flood are counted, and the next line has their number.
        if self.lines == LINES_MAX {
            self.left_out = self.left_out.saturating_add(1);
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn omissions_on_next_line() {
        let (mut quota, start) = (Quota::default(), Instant::now());
        for _ in 0..LINES_MAX {
            assert_eq!(quota.take(start), Some(0));
        }
        for _ in 0..766 {
            assert_eq!(quota.take(start + PERIOD / 2), None);
        }
        assert_eq!(quota.take(start + PERIOD), Some(766));
        assert_eq!(quota.take(start + PERIOD), Some(0));
    }
}
