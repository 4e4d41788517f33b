// SPDX-License-Identifier: Apache-2.0
//! When to dial a tunnel again that was lost or did not open. Pure.

use std::time::Duration;

use posthaste_tunnel::LostReason;

/// The first wait, and the longest: meanwhile flows go without encryption, or not at all.
const WAITS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(5));

/// The times of one tunnel.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Redial {
    /// Not before.
    next: Duration,
    /// The last wait, until the tunnel opens.
    wait: Option<Duration>,
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
    pub(super) fn on_lost(&mut self, reason: LostReason, now: Duration) {
        let (first, most) = WAITS;
        let wait = self.wait.map_or(first, |wait| (wait * 2).min(most));
        self.wait = Some(wait);
        self.next = now + wait;
        self.reason = Some(reason);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: K21
    #[test]
    fn lost_tunnel_is_tried_again_within_seconds() {
        for reason in [LostReason::TimedOut, LostReason::Refused] {
            let mut redial = Redial::default();
            let now = Duration::from_secs(100);
            let waits = [(); 5].map(|()| {
                redial.on_lost(reason, now);
                (redial.due() - now).as_secs()
            });
            assert_eq!(waits, [1, 2, 4, 5, 5]);
        }
    }

    #[test]
    fn tunnel_that_opens_begins_anew() {
        let mut redial = Redial::default();
        redial.on_lost(LostReason::TimedOut, Duration::from_secs(1));
        redial.on_lost(LostReason::TimedOut, Duration::from_secs(5));
        redial.on_up();
        redial.on_lost(LostReason::Closed, Duration::from_secs(10));
        assert_eq!(redial.due(), Duration::from_secs(11));
    }
}
