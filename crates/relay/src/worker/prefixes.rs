// SPDX-License-Identifier: Apache-2.0
//! The client prefixes that have completed a handshake, and how near their clients are.
//!
//! Early mode saves a round trip to the client and costs an event, a wake-up and a held SYN-ACK. It
//! gains next to nothing for a near client, so the redirection opens the flows of near prefixes
//! late, except a sample by which the distance is measured again. Clients of one prefix may differ:
//! one handshake that takes long makes it far at once, and only many fast ones in a row make it
//! near.

use std::collections::HashMap;
use std::time::Duration;

/// Bound on the prefixes; the table is cleared when it is full.
const PREFIXES_MAX: usize = 4096;
/// A handshake that takes less is fast.
pub(super) const FAST: Duration = Duration::from_millis(1);
/// Fast handshakes in a row after which a prefix is near.
const NEAR_AFTER: u8 = 16;

/// After a slow handshake so many more are not measured.
const UNMEASURED: u8 = 31;

/// Client prefixes that have completed a handshake.
#[derive(Debug, Default)]
pub(super) struct Prefixes(HashMap<[u8; 8], Distance>);

/// What the last handshakes of a prefix showed.
#[derive(Clone, Copy, Debug, Default)]
struct Distance {
    /// How many were fast, in a row.
    fast: u8,
    /// How many more are not measured.
    unmeasured: u8,
}

impl Prefixes {
    /// A client of this prefix has completed a handshake. Whether it is the first.
    pub(super) fn add(&mut self, prefix: [u8; 8]) -> bool {
        if self.0.contains_key(&prefix) {
            return false;
        }
        if self.0.len() == PREFIXES_MAX {
            self.0.clear();
        }
        self.0.insert(prefix, Distance::default());
        true
    }

    /// Whether to measure the handshake of a flow that opened early.
    pub(super) fn is_due(&mut self, prefix: [u8; 8]) -> bool {
        let Some(distance) = self.0.get_mut(&prefix) else {
            return false;
        };
        let is_due = distance.unmeasured == 0;
        distance.unmeasured = distance.unmeasured.saturating_sub(1);
        is_due
    }

    /// The handshake of a flow that opened early was fast or not. Returns whether the prefix is
    /// near, if that has to be reported: also when it was near before, since flows of such a prefix
    /// open early when the redirection has forgotten it, and rarely otherwise.
    pub(super) fn note(&mut self, prefix: [u8; 8], fast: bool) -> Option<bool> {
        let distance = self.0.get_mut(&prefix)?;
        let was_near = distance.fast == NEAR_AFTER;
        *distance = if fast {
            Distance {
                fast: NEAR_AFTER.min(distance.fast + 1),
                unmeasured: 0,
            }
        } else {
            Distance {
                fast: 0,
                unmeasured: UNMEASURED,
            }
        };
        let is_near = distance.fast == NEAR_AFTER;
        (is_near || was_near).then_some(is_near)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: [u8; 8] = [1; 8];

    #[test]
    fn near_after_many_fast_ones() {
        let mut prefixes = Prefixes::default();
        assert!(prefixes.add(HERE));
        assert!(!prefixes.add(HERE));
        for _ in 1..NEAR_AFTER {
            assert!(prefixes.is_due(HERE));
            assert_eq!(prefixes.note(HERE, true), None);
        }
        assert_eq!(prefixes.note(HERE, true), Some(true));
        assert_eq!(prefixes.note(HERE, true), Some(true), "forgotten there");
        assert_eq!(prefixes.note([2; 8], true), None, "it has no handshake");
        assert!(!prefixes.is_due([2; 8]));
    }

    #[test]
    fn far_after_a_slow_one() {
        let mut prefixes = Prefixes::default();
        prefixes.add(HERE);
        for fast in [[true; NEAR_AFTER as usize].as_slice(), &[false]].concat() {
            prefixes.note(HERE, fast);
        }
        for _ in 1..NEAR_AFTER {
            assert_eq!(prefixes.note(HERE, true), None);
        }
        assert_eq!(prefixes.note(HERE, false), None, "it was not near");
        assert_eq!(prefixes.note(HERE, true), None, "it counts anew");
    }

    #[test]
    fn far_ones_are_rarely_measured() {
        let mut prefixes = Prefixes::default();
        prefixes.add(HERE);
        assert!(prefixes.is_due(HERE));
        prefixes.note(HERE, false);
        for _ in 0..UNMEASURED {
            assert!(!prefixes.is_due(HERE));
        }
        assert!(prefixes.is_due(HERE));
        prefixes.note(HERE, false);
        prefixes.note(HERE, true);
        assert!(prefixes.is_due(HERE), "it may have come near");
    }

    #[test]
    fn bounded() {
        let mut prefixes = Prefixes::default();
        for number in 0..2 * PREFIXES_MAX as u64 {
            assert!(prefixes.add(number.to_be_bytes()));
            assert!(prefixes.0.len() <= PREFIXES_MAX);
        }
    }
}
