// SPDX-License-Identifier: Apache-2.0
//! When to dial a tunnel again that was lost or did not open. Pure.

use std::time::Duration;

use posthaste_tunnel::LostReason;

/// Waits while the peer's host answers: it may be starting.
const ANSWERED: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// Waits while nothing comes: the network does not let UDP through.
const SILENT: (Duration, Duration) = (Duration::from_secs(300), Duration::from_secs(3600));

/// The times of one tunnel.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Redial {
    /// Not before.
    next: Duration,
    /// The last wait of each kind, until the tunnel opens.
    answered: Option<Duration>,
    silent: Option<Duration>,
    /// Why the last one was lost or did not open, until the next opens.
    reason: Option<LostReason>,
}

impl Redial {
    /// When to dial.
    pub(super) fn due(self) -> Duration {
        self.next
    }

    /// Why it is not open, in words.
    pub(super) fn failure(self) -> Option<&'static str> {
        Some(match self.reason? {
            LostReason::TimedOut => "nothing answers by UDP",
            LostReason::Refused => "nothing listens there by UDP",
            LostReason::Rejected => "the handshake fails, as with another key",
            LostReason::Closed => "the peer has closed it",
            LostReason::Local => "this node has closed it",
        })
    }

    /// The tunnel is open.
    pub(super) fn on_up(&mut self) {
        *self = Self::default();
    }

    /// The tunnel is lost, or has not opened.
    pub(super) fn on_lost(&mut self, was_up: bool, reason: LostReason, now: Duration) {
        let is_silent = reason == LostReason::TimedOut && !was_up;
        let ((first, most), wait) = if is_silent {
            (SILENT, &mut self.silent)
        } else {
            (ANSWERED, &mut self.answered)
        };
        let next = wait.map_or(first, |wait| (wait * 2).min(most));
        *wait = Some(next);
        self.next = now + next;
        self.reason = Some(reason);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(lost: &[(bool, LostReason)]) -> Vec<u64> {
        let mut redial = Redial::default();
        let now = Duration::from_secs(100);
        let waits = lost.iter().map(|(was_up, reason)| {
            redial.on_lost(*was_up, *reason, now);
            (redial.due() - now).as_secs()
        });
        waits.collect()
    }

    // promise: K21
    #[test]
    fn blocked_udp_is_tried_at_doubling_intervals() {
        let blocked = [(false, LostReason::TimedOut); 6];
        assert_eq!(waits(&blocked), [300, 600, 1200, 2400, 3600, 3600]);
    }

    #[test]
    fn peer_that_answers_is_tried_soon() {
        let refused = [(false, LostReason::Refused); 8];
        assert_eq!(waits(&refused), [1, 2, 4, 8, 16, 32, 60, 60]);
        // Blocked in mid-run: one attempt shows it.
        let cut = [(true, LostReason::TimedOut), (false, LostReason::TimedOut)];
        assert_eq!(waits(&cut), [1, 300]);
    }

    #[test]
    fn tunnel_that_opens_begins_anew() {
        let mut redial = Redial::default();
        redial.on_lost(false, LostReason::TimedOut, Duration::from_secs(1));
        redial.on_up();
        redial.on_lost(true, LostReason::Closed, Duration::from_secs(10));
        assert_eq!(redial.due(), Duration::from_secs(11));
    }
}
