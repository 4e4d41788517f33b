// SPDX-License-Identifier: Apache-2.0
//! When `TCP_USER_TIMEOUT` applies (RFC 9293 section 3.8.3, RFC 5482).
//!
//! Once it is set, Linux also gives up a peer that keeps its window closed for that long although
//! it answers every probe: a reader that pauses. A sender must not do that (RFC 9293 section
//! 3.8.6.1). So the option is set only while bytes are in flight to a peer with an open window, or
//! when the peer has stopped answering probes; on an idle connection, keepalive decides.

use std::time::Duration;

use crate::intercept::Intercept;
use crate::side::Side;
use crate::sys::{self, Sending};

use super::Worker;
use super::entry::Entry;

/// Unanswered probes in a row after which the peer may be gone.
const UNANSWERED: u8 = 3;
/// A connection is checked this many times within its timeout.
const PARTS: u64 = 4;

/// Whether the option must be set on a connection in this state.
fn counts(sending: &Sending, user_timeout: Duration) -> bool {
    let in_flight = sending.unacked_segments > 0;
    if in_flight && sending.window_bytes > 0 {
        return true;
    }
    // If a receiver withdraws its window, the kernel gives up after two unanswered retransmissions
    // of the longest interval.
    let probes = !in_flight && sending.notsent_bytes > 0;
    probes && sending.probes_unanswered >= UNANSWERED && sending.since_ack >= user_timeout
}

impl<I: Intercept> Worker<I> {
    /// Whether this sweep checks a relay. A sweep takes at most a second.
    pub(super) fn is_watched(&self, key: u64, entry: &Entry) -> bool {
        let set = Side::BOTH.map(|side| self.user_timeout(entry, side));
        let shortest = set.into_iter().filter(|timeout| !timeout.is_zero()).min();
        let Some(shortest) = shortest.filter(|_| entry.is_open()) else {
            return false;
        };
        // Spread by key, so that not all relays are queried in the same sweep.
        (key + self.sweeps).is_multiple_of((shortest.as_secs() / PARTS).max(1))
    }

    /// Sets or clears the option on the sockets of a relay.
    pub(super) fn watch_sending(&mut self, key: u64) {
        for side in Side::BOTH {
            let Some(entry) = self.entries.live(key) else {
                return;
            };
            let timeout = self.user_timeout(entry, side);
            let Some(socket) = entry.sockets[side].as_ref().filter(|_| !timeout.is_zero()) else {
                continue;
            };
            let wanted = sys::sending(socket).is_ok_and(|sending| counts(&sending, timeout));
            // Nearly always unchanged, which saves the system call.
            if wanted != entry.timed[side] {
                // Best effort: without it the kernel's own limits apply.
                let _ = sys::set_user_timeout(socket, wanted.then_some(timeout));
            }
            if let Some(entry) = self.entries.live_mut(key) {
                entry.timed[side] = wanted;
            }
        }
    }

    fn user_timeout(&self, entry: &Entry, side: Side) -> Duration {
        let preface = entry.preface.as_deref();
        let options = self.rules.side_options(&entry.rule.rule, preface);
        options[side].user_timeout
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(10);

    fn sending(unacked_segments: u32, notsent_bytes: u32, window_bytes: u32) -> Sending {
        Sending {
            unacked_segments,
            notsent_bytes,
            window_bytes,
            probes_unanswered: 0,
            since_ack: Duration::ZERO,
        }
    }

    #[test]
    fn in_flight_timed_idle_not() {
        assert!(counts(&sending(1, 0, 1000), TIMEOUT));
        assert!(counts(&sending(1, 9000, 1000), TIMEOUT));
        assert!(!counts(&sending(0, 0, 1000), TIMEOUT));
    }

    #[test]
    fn zero_window_probes_answered() {
        for (window, probes, since_ack, expected) in [
            (0, 0, 100, false),
            // The kernel probes for less than a segment, too.
            (100, 1, 100, false),
            (0, 2, 100, false),
            (0, 3, 9, false),
            (0, 3, 10, true),
        ] {
            let closed = Sending {
                probes_unanswered: probes,
                since_ack: Duration::from_secs(since_ack),
                ..sending(0, 5000, window)
            };
            assert_eq!(counts(&closed, TIMEOUT), expected, "{closed:?}");
        }
        let not_accepting = Sending {
            since_ack: TIMEOUT,
            ..sending(3, 5000, 0)
        };
        assert!(!counts(&not_accepting, TIMEOUT));
    }
}
