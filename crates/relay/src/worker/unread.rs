// SPDX-License-Identifier: Apache-2.0
//! How much a sender may send ahead of the other side: bounds the receive buffers of sides that are faster than
//! the other. The kernel widens a receive buffer by what is read from it in a round trip. The first
//! bytes of a relay go into buffers and show no rate, and a buffer that was widened for them fills and stays full.

use std::collections::HashMap;
use std::time::Duration;

use crate::intercept::Intercept;
use crate::side::Side;
use crate::sys;

use super::Worker;
use super::entry::State;

/// Bytes that a side has sent before its buffer is bounded: as much as it may send before the kernel widens it.
const MOVED_MIN: u64 = 64 << 10;
/// Bytes of a buffer, about two thirds of them for the sender's: a spliced load, and room for bursts.
pub(super) const BUFFER_MIN: u64 = 1 << 20;
/// What is taken in a round trip of its sender takes so much of a buffer: twice that with all overhead, so that a
/// sender which doubles its rate in each round trip finds room.
const BUFFERS_PER_ROUND: u64 = 4;
/// The least time over which a rate is measured: the other side takes bytes in bursts.
const MEASURED_MIN: Duration = Duration::from_millis(10);

/// The buffers that are bounded, by flow and the side that is read from.
#[derive(Debug, Default)]
pub(super) struct Unread(HashMap<(u64, Side), Bound>);

/// A bounded buffer.
#[derive(Clone, Copy, Debug)]
struct Bound {
    bytes: u64,
    /// How many bytes had been moved when it was computed, and when that was.
    moved: u64,
    at: Duration,
    /// The sender's round-trip time then.
    round: Duration,
}

impl Bound {
    /// What it is from now on, with the sender's round-trip time.
    fn next(self, moved: u64, now: Duration, round: Duration) -> Self {
        let (bytes, lasted) = (moved.saturating_sub(self.moved), now - self.at);
        let in_a_round = u128::from(bytes) * round.as_micros() / lasted.as_micros().max(1);
        let needed =
            BUFFERS_PER_ROUND.saturating_mul(u64::try_from(in_a_round).unwrap_or(u64::MAX));
        Self {
            bytes: needed.max(BUFFER_MIN),
            moved,
            at: now,
            round,
        }
    }

    /// Whether so much has been moved since, for so long, that it may need another value.
    fn is_due(self, moved: u64, now: Duration) -> bool {
        let is_enough = moved < self.moved || moved - self.moved >= self.bytes / 8;
        is_enough && now >= self.at + self.round.max(MEASURED_MIN)
    }
}

impl Unread {
    /// Forgets a flow.
    pub(super) fn forget(&mut self, key: u64) {
        Side::BOTH.iter().for_each(|side| {
            self.0.remove(&(key, *side));
        });
    }
}

impl<I: Intercept> Worker<I> {
    /// Bounds what a flow's sides may have sent that the other side has not taken.
    pub(super) fn bound_unread(&mut self, key: u64) {
        let Some(entry) = self.entries.live(key) else {
            return;
        };
        let State::Open(relay) = &entry.state else {
            return;
        };
        for side in Side::BOTH {
            let moved = relay.moved_from(side);
            let former = self.unread.0.get(&(key, side)).copied();
            let is_due = former.map_or(moved >= MOVED_MIN, |former| former.is_due(moved, self.now));
            let (true, Some(socket)) = (is_due, &entry.sockets[side]) else {
                continue;
            };
            let preface = entry.preface.as_deref();
            let options = self.rules.side_options(&entry.rule.rule, preface);
            let is_automatic = options[side].receive_buffer_bytes.is_none();
            // A relay that leaves has its own bound.
            if !is_automatic || self.leaving.has_begun(key) {
                continue;
            }
            let round = sys::receive_round(socket);
            let first = Bound {
                bytes: BUFFER_MIN,
                moved,
                at: self.now,
                round,
            };
            let next = former.map_or(first, |former| former.next(moved, self.now, round));
            // Best effort: the kernel bounds it too, by `tcp_rmem`.
            let _ = sys::bound_receive_buffer(socket, next.bytes);
            self.unread.0.insert((key, side), next);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn bound_follows_the_rate_of_delivery() {
        let first = Bound {
            bytes: BUFFER_MIN,
            moved: 0,
            at: Duration::ZERO,
            round: 20 * MS,
        };
        assert!(!first.is_due(BUFFER_MIN / 8 - 1, 200 * MS));
        assert!(!first.is_due(BUFFER_MIN / 8, 19 * MS));
        assert!(first.is_due(BUFFER_MIN / 8, 20 * MS));
        // 10 Mbit/s with 20 ms need less than the least.
        let slow = first.next(250_000, 200 * MS, 20 * MS);
        assert_eq!(slow.bytes, BUFFER_MIN);
        // 400 Mbit/s with 100 ms.
        let fast = slow.next(5_250_000, 300 * MS, 100 * MS);
        assert_eq!(fast.bytes, 20_000_000);
        // Another hop has begun anew.
        assert!(fast.is_due(0, 600 * MS));
        assert_eq!(fast.next(0, 600 * MS, 100 * MS).bytes, BUFFER_MIN);
    }
}
