// SPDX-License-Identifier: Apache-2.0
//! The share of packets that a connection has lost lately.

/// Packets after which former ones count half.
const PACKETS: u64 = 1000;
/// The least of which a share is known.
const LOST_MIN: u64 = 2;
/// The greatest share that is reported: beyond it, losses are not the path's own.
const PERMILLE_MAX: u64 = 150;

/// Counts packets and losses, and forgets.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Loss {
    /// All that were sent and lost when it last looked.
    seen: (u64, u64),
    sent: u64,
    lost: u64,
}

impl Loss {
    /// So many packets were sent and lost since the connection began.
    pub(crate) fn on_totals(&mut self, sent: u64, lost: u64) {
        self.sent += sent.saturating_sub(self.seen.0);
        self.lost += lost.saturating_sub(self.seen.1);
        self.seen = (sent, lost);
        while self.sent > PACKETS {
            self.sent /= 2;
            self.lost /= 2;
        }
    }

    /// The share that is lost, in thousandths; 0 until it is known.
    pub(crate) fn permille(&self) -> u64 {
        if self.lost < LOST_MIN {
            return 0;
        }
        (self.lost * 1000 / self.sent.max(self.lost)).min(PERMILLE_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn share_is_that_of_recent_packets() {
        let mut loss = Loss::default();
        loss.on_totals(40, 1);
        assert_eq!(loss.permille(), 0, "one loss shows nothing");
        loss.on_totals(40, 2);
        assert_eq!(loss.permille(), 50);
        loss.on_totals(100_040, 2);
        assert_eq!(loss.permille(), 0, "that was long ago");
        loss.on_totals(101_040, 52);
        assert!((25..=50).contains(&loss.permille()), "{loss:?}");
    }

    #[test]
    fn share_is_bounded() {
        let mut loss = Loss::default();
        loss.on_totals(10, 10);
        assert_eq!(loss.permille(), PERMILLE_MAX);
    }
}
