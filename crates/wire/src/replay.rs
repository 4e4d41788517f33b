// SPDX-License-Identifier: Apache-2.0
//! Each authentic message counts once, and only while it is fresh.

use std::collections::BTreeSet;

use crate::auth::{Authentic, Nonce};

/// Remembers the messages of the recent past.
///
/// Memory is bounded: when there are more than fit, the oldest are forgotten,
/// and no message is taken any more that is as old as they. The same holds
/// for those forgotten because they were no longer fresh, so setting the
/// clock back lets none of them in again.
#[derive(Debug)]
pub struct ReplayWindow {
    fresh_ms: u64,
    capacity: usize,
    // By time first, so that the oldest are forgotten without a search.
    seen: BTreeSet<(u64, Nonce)>,
    /// When the newest forgotten message was made.
    forgotten_ms: Option<u64>,
}

impl ReplayWindow {
    /// A message is fresh for `fresh_ms` milliseconds, and the sender's clock
    /// may be ahead of ours by as much. At most `capacity` messages are
    /// remembered, 24 bytes each and the tree that holds them; `capacity` is
    /// at least one.
    pub fn new(fresh_ms: u64, capacity: usize) -> Self {
        Self {
            fresh_ms,
            // With 0 the first message would have all others of its age refused.
            capacity: capacity.max(1),
            seen: BTreeSet::new(),
            forgotten_ms: None,
        }
    }

    /// Takes a message, at `now_ms` milliseconds since 1970.
    ///
    /// # Errors
    /// It is too old, too new, or was taken before.
    pub fn admit(&mut self, now_ms: u64, message: Authentic) -> Result<(), ReplayError> {
        // Also remembers how new the forgotten ones were, so a clock that is set back later does
        // not admit them again.
        self.forget_older_than(now_ms.saturating_sub(self.fresh_ms));
        let made_ms = message.timestamp_ms;
        if made_ms.saturating_add(self.fresh_ms) < now_ms {
            return Err(ReplayError::Stale);
        }
        if made_ms > now_ms.saturating_add(self.fresh_ms) {
            return Err(ReplayError::FromTheFuture);
        }
        // It may be a repetition of one that was forgotten: their nonces are gone.
        if self.forgotten_ms.is_some_and(|newest| made_ms <= newest) {
            return Err(ReplayError::Stale);
        }
        if !self.seen.insert((made_ms, message.nonce)) {
            return Err(ReplayError::Repeated);
        }
        // More messages than fit need a peer's key. Its own are refused then, as too old.
        if self.seen.len() > self.capacity {
            self.forget_first();
        }
        Ok(())
    }

    /// How many messages are remembered.
    pub fn len(&self) -> usize {
        self.seen.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.seen.is_empty()
    }

    fn forget_older_than(&mut self, oldest_ms: u64) {
        while self.seen.first().is_some_and(|first| first.0 < oldest_ms) {
            self.forget_first();
        }
    }

    fn forget_first(&mut self) {
        let forgotten = self.seen.pop_first().map(|first| first.0);
        self.forgotten_ms = self.forgotten_ms.max(forgotten);
    }
}

/// Why an authentic message does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    /// It is older than messages are fresh, or than what is remembered.
    #[error("the message is too old")]
    Stale,
    /// The sender's clock is ahead of ours by more than is allowed.
    #[error("the message is from the future: the clocks differ")]
    FromTheFuture,
    /// It was taken before.
    #[error("the message is a repetition")]
    Repeated,
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use posthaste_testkit::simulate;

    const FRESH_MS: u64 = 1_000;

    fn message(timestamp_ms: u64, nonce: u8) -> Authentic {
        Authentic {
            timestamp_ms,
            nonce: Nonce([nonce; 16]),
        }
    }

    #[test]
    fn a_message_counts_once() {
        let mut window = ReplayWindow::new(FRESH_MS, 8);
        assert_eq!(window.admit(5_000, message(5_000, 1)), Ok(()));
        let again = window.admit(5_001, message(5_000, 1));
        assert_eq!(again, Err(ReplayError::Repeated));
        assert_eq!(window.admit(5_001, message(5_000, 2)), Ok(()));
        assert_eq!(window.admit(5_001, message(5_001, 1)), Ok(()));
    }

    // promise: B8
    #[test]
    fn fresh_message_counts() {
        let mut window = ReplayWindow::new(FRESH_MS, 8);
        assert_eq!(window.admit(5_000, message(4_000, 1)), Ok(()));
        let old = window.admit(5_000, message(3_999, 2));
        assert_eq!(old, Err(ReplayError::Stale));
        assert_eq!(window.admit(5_000, message(6_000, 3)), Ok(()));
        let early = window.admit(5_000, message(6_001, 4));
        assert_eq!(early, Err(ReplayError::FromTheFuture));
        assert_eq!(
            window.admit(0, message(u64::MAX, 5)),
            Err(ReplayError::FromTheFuture)
        );
        assert_eq!(
            window.admit(u64::MAX, message(0, 6)),
            Err(ReplayError::Stale)
        );
    }

    // promise: B8
    #[test]
    fn forgotten_stays_refused() {
        let mut window = ReplayWindow::new(FRESH_MS, 8);
        assert_eq!(window.admit(5_000, message(5_000, 1)), Ok(()));
        assert_eq!(window.admit(9_000, message(9_000, 2)), Ok(()));
        assert_eq!(window.len(), 1);
        // The clock is set back.
        let again = window.admit(5_000, message(5_000, 1));
        assert_eq!(again, Err(ReplayError::Stale));
        assert_eq!(window.admit(5_000, message(5_001, 1)), Ok(()));
    }

    // promise: B8
    #[test]
    fn memory_bounded_oldest_first() {
        let mut window = ReplayWindow::new(FRESH_MS, 2);
        for nonce in 0..100 {
            assert_eq!(
                window.admit(5_000, message(5_000 + u64::from(nonce), nonce)),
                Ok(())
            );
            assert!(window.len() <= 2);
        }
        let again = window.admit(5_000, message(5_000, 0));
        assert_eq!(again, Err(ReplayError::Stale));
        let again = window.admit(5_000, message(5_099, 99));
        assert_eq!(again, Err(ReplayError::Repeated));
    }

    // promise: B8
    #[test]
    fn clock_changes_count_once() {
        simulate(500, |mut rng| {
            let mut window = ReplayWindow::new(50, 1 + rng.below(20));
            let mut taken = HashSet::new();
            let mut now_ms = 1_000;
            for _ in 0..400 {
                let step = u64::from(rng.byte());
                now_ms = if rng.below(4) == 0 {
                    now_ms - step.min(now_ms)
                } else {
                    now_ms + step / 3
                };
                let made_ms = (now_ms + u64::from(rng.byte()) / 2).saturating_sub(64);
                let nonce = rng.byte() % 4;
                if window.admit(now_ms, message(made_ms, nonce)).is_ok() {
                    assert!(taken.insert((made_ms, nonce)), "{made_ms} {nonce} twice");
                }
            }
            assert!(!taken.is_empty());
        });
    }
}
