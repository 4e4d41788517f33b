// SPDX-License-Identifier: Apache-2.0
//! Relays of which one side has failed while the other has yet to acknowledge its bytes. No event
//! reports acknowledgements, so the worker polls, at growing intervals; and every sweep records the
//! progress, since a relay waits for a slow reader as long as it acknowledges.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use crate::intercept::Intercept;
use crate::sys;

use super::Worker;
use super::entry::{Entry, State};

/// The first interval.
const FIRST: Duration = Duration::from_millis(5);
/// The interval as a fraction of the time since the failure, and its upper bound.
const SHARE: u32 = 4;
const MOST: Duration = Duration::from_millis(500);

/// Which relays to check, and when.
#[derive(Debug, Default)]
pub(super) struct Lingering(BinaryHeap<Reverse<(Duration, u64)>>);

impl Lingering {
    /// Checks the relay again later; its last byte or failure was at `active`.
    pub(super) fn add(&mut self, key: u64, active: Duration, now: Duration) {
        let pause = (now.saturating_sub(active) / SHARE).clamp(FIRST, MOST);
        self.0.push(Reverse((now + pause, key)));
    }

    /// When the next check is due.
    pub(super) fn deadline(&self) -> Option<Duration> {
        self.0.peek().map(|Reverse((due, _))| *due)
    }

    /// Takes a relay whose check is due.
    fn take(&mut self, now: Duration) -> Option<u64> {
        self.deadline().filter(|due| *due <= now)?;
        self.0.pop().map(|Reverse((_, key))| key)
    }
}

impl Entry {
    /// Whether one side has failed and the relay waits for the other.
    pub(super) fn lingers(&self) -> bool {
        matches!(&self.state, State::Open(relay) if relay.lingers_for().is_some())
    }

    /// Records how much the remaining side has yet to acknowledge: also for a relay that cannot
    /// write more to a slow reader, since no event reports its progress either.
    fn note_progress(&mut self, now: Duration) {
        let State::Open(relay) = &mut self.state else {
            return;
        };
        let socket = relay
            .lingers_for()
            .and_then(|side| self.sockets[side].as_ref());
        // This fails if that connection is gone.
        if let Some(Ok(bytes)) = socket.map(sys::unacked_bytes) {
            relay.note_unacknowledged(bytes, now);
        }
    }
}

impl<I: Intercept> Worker<I> {
    /// Records the progress of those among `keys` before their idle time is checked.
    pub(super) fn note_progress(&mut self, keys: &[u64]) {
        for key in keys {
            if let Some(entry) = self.entries.get_mut(*key) {
                entry.note_progress(self.now);
            }
        }
    }

    /// Gives a turn to the relays that are due.
    pub(super) fn look_at_lingering(&mut self) {
        while let Some(key) = self.lingering.take(self.now) {
            if let Some(entry) = self.entries.get_mut(key) {
                entry.queued = false;
                self.advance_with(key, &[]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_back_off() {
        let at = Duration::from_millis;
        let mut lingering = Lingering::default();
        lingering.add(1, at(0), at(1000));
        lingering.add(2, at(1000), at(1000));
        lingering.add(3, at(0), at(100_000));
        assert_eq!(lingering.deadline(), Some(at(1005)));
        assert_eq!(lingering.take(at(1004)), None);
        assert_eq!(lingering.take(at(1005)), Some(2));
        assert_eq!(lingering.deadline(), Some(at(1250)));
        assert_eq!(lingering.take(at(2000)), Some(1));
        assert_eq!(lingering.deadline(), Some(at(100_500)));
    }
}
