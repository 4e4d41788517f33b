// SPDX-License-Identifier: Apache-2.0
//! Which losses the load causes. Losses at random come as often at a low load, after the window was lowered or while
//! a drain lasts, as at a high one. Those of a full queue or of a policer come at a high load only.

use crate::constants::{
    EXCESS, EXCESS_PACKETS, LOSS_PACKETS, LOSSES_LEAST, RANDOM, RANDOM_MOST, RANDOM_STILL, UNIT,
};

/// Packets sent and lost.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    sent: u16,
    lost: u16,
}

impl Count {
    fn add(&mut self, sent: u64, lost: u64) {
        // Halved first, so that the newest counts most.
        while self.sent > LOSS_PACKETS {
            self.sent /= 2;
            self.lost /= 2;
        }
        let most = u64::from(LOSS_PACKETS);
        let (sent, lost) = if sent > most {
            (most, (lost * most).div_ceil(sent))
        } else {
            (sent, lost)
        };
        self.sent += u16::try_from(sent).unwrap_or(LOSS_PACKETS);
        self.lost += u16::try_from(lost).unwrap_or(LOSS_PACKETS);
    }
}

/// Losses at a low and at a high load.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Losses {
    low: Count,
    high: Count,
    are_random: bool,
}

impl Losses {
    /// What a path is known to lose, of 65,536 packets.
    pub(crate) fn known(share: u16) -> Self {
        let mut losses = Self::default();
        let sent = u64::from(LOSS_PACKETS / 2);
        losses.on_round(sent, (u64::from(share) * sent) >> 16, true);
        losses
    }

    /// The random share of 65,536 packets; 0 if losses are not random.
    pub(crate) fn share(&self) -> u16 {
        if !self.are_random {
            return 0;
        }
        let share = (u64::from(self.low.lost) << 16) / u64::from(self.low.sent).max(1);
        u16::try_from(share).unwrap_or(u16::MAX)
    }

    /// Packets of a round, sent and lost.
    pub(crate) fn on_round(&mut self, sent: u64, lost: u64, is_low: bool) {
        if is_low {
            self.low.add(sent, lost);
        } else {
            self.high.add(sent, lost);
        }
        let least = if self.are_random {
            RANDOM_STILL
        } else {
            RANDOM
        };
        let [low_sent, low_lost, high_sent, high_lost] =
            [self.low.sent, self.low.lost, self.high.sent, self.high.lost].map(u64::from);
        self.are_random = self.low.lost >= LOSSES_LEAST
            && low_lost * UNIT <= low_sent * RANDOM_MOST
            && low_lost * high_sent * UNIT >= high_lost * low_sent * least;
    }

    /// Whether the path loses as much at a low load.
    pub(crate) fn are_random(&self) -> bool {
        self.are_random
    }

    /// Whether so many lost packets in a round show congestion.
    pub(crate) fn show_congestion(&self, sent: u64, lost: u64) -> bool {
        if lost == 0 || !self.are_random {
            return lost > 0;
        }
        let random = u64::from(self.low.lost) * sent / u64::from(self.low.sent).max(1);
        lost > random * 3 / 2 + EXCESS_PACKETS + sent * EXCESS / UNIT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_at_any_load_are_random() {
        let mut losses = Losses::default();
        for round in 0..20 {
            losses.on_round(100, 5, round % 2 == 0);
        }
        assert!(losses.are_random());
        assert!((3000..3500).contains(&losses.share()), "{}", losses.share());
        assert!(!losses.show_congestion(100, 9));
        assert!(losses.show_congestion(100, 20));
    }

    #[test]
    fn losses_at_a_high_load_are_congestion() {
        let mut losses = Losses::default();
        for round in 0..200 {
            let is_low = round % 2 == 0;
            losses.on_round(100, if is_low { 0 } else { 2 }, is_low);
            assert!(losses.show_congestion(100, 1));
        }
        assert_eq!(losses.share(), 0);
    }

    /// A path that stops to lose is seen as such.
    #[test]
    fn random_losses_may_end() {
        let mut losses = Losses::known(3277);
        assert!(losses.are_random());
        for _ in 0..100 {
            losses.on_round(100, 0, true);
        }
        assert!(!losses.are_random());
    }
}
