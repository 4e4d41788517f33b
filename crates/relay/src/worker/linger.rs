// SPDX-License-Identifier: Apache-2.0
//! Relays of which a side has failed while the other has yet to acknowledge what came from
//! it. No event tells when it has, so the worker looks, ever less often; and every sweep notes how much
//! that is, since a slow reader is waited for as long as it acknowledges.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use crate::intercept::Intercept;
use crate::sys;

use super::Worker;
use super::entry::{Entry, State};

/// How soon to look first.
const FIRST: Duration = Duration::from_millis(5);
/// How much of the time since the failure may pass between two looks, and the most.
const SHARE: u32 = 4;
const MOST: Duration = Duration::from_millis(500);

/// When to look at which relays.
#[derive(Debug, Default)]
pub(super) struct Lingering(BinaryHeap<Reverse<(Duration, u64)>>);

impl Lingering {
    /// The relay is to be looked at again; its last byte or failure was at `active`.
    pub(super) fn add(&mut self, key: u64, active: Duration, now: Duration) {
        let pause = (now.saturating_sub(active) / SHARE).clamp(FIRST, MOST);
        self.0.push(Reverse((now + pause, key)));
    }

    /// When the next is due.
    pub(super) fn deadline(&self) -> Option<Duration> {
        self.0.peek().map(|Reverse((due, _))| *due)
    }

    /// Takes one that is due.
    fn take(&mut self, now: Duration) -> Option<u64> {
        self.deadline().filter(|due| *due <= now)?;
        self.0.pop().map(|Reverse((_, key))| key)
    }
}

impl Entry {
    /// Whether a side has failed and the other is waited for.
    pub(super) fn lingers(&self) -> bool {
        matches!(&self.state, State::Open(relay) if relay.lingers_for().is_some())
    }

    /// Notes how much the side that is waited for has yet to acknowledge: also of a relay that can
    /// write nothing more to a slow reader, which no event tells either.
    fn note_progress(&mut self, now: Duration) {
        let State::Open(relay) = &mut self.state else {
            return;
        };
        let socket = relay
            .lingers_for()
            .and_then(|side| self.sockets[side].as_ref());
        // That of a connection that is gone is asked in vain.
        if let Some(Ok(bytes)) = socket.map(sys::unacked_bytes) {
            relay.note_unacknowledged(bytes, now);
        }
    }
}

impl<I: Intercept> Worker<I> {
    /// Notes the progress of those among `keys`, before it is judged how long they were quiet.
    pub(super) fn note_progress(&mut self, keys: &[u64]) {
        for key in keys {
            if let Some(entry) = self.entries.get_mut(*key) {
                entry.note_progress(self.now);
            }
        }
    }

    /// Looks at the relays that are due.
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
