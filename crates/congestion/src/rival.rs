// SPDX-License-Identifier: Apache-2.0
//! Whether a sender with BBR fills the queue. It takes no loss for congestion, so a sender that does leaves the path to it.
//! Every 10 s it has next to nothing in flight for 200 ms, to see the least round trip: the queue is empty, and at once
//! as full as before. Senders with CUBIC let it empty too, and fill it again much later or much more often.

use crate::constants::{
    NO_QUEUE_SHIFT, NO_QUEUE_US, RIVAL_DIP_MS, RIVAL_DIP_ROUNDS, RIVAL_DIPS, RIVAL_EMPTIES,
    RIVAL_FULL, RIVAL_GONE_MS, RIVAL_LEAST_MS, UNIT,
};

/// Dips of a queue. Times are the lower 16 bits of milliseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rival {
    /// When the queue became empty, and when it was full again the last time.
    empty_ms: u16,
    dip_ms: u16,
    /// Dips at intervals as of BBR.
    dips: u8,
    /// Rounds since the queue was full; 0: it is.
    rounds: u8,
    is_empty: bool,
}

impl Rival {
    pub(crate) fn is_there(&self) -> bool {
        self.dips >= RIVAL_DIPS
    }

    /// The queue empties by what the sender itself does.
    pub(crate) fn on_drain(&mut self) {
        self.rounds = RIVAL_EMPTIES;
        self.is_empty = false;
    }

    /// A round has ended, with its least round trip.
    pub(crate) fn on_round(&mut self, now_ms: u32, us: u32, least_us: u32) {
        let now = low(now_ms);
        let passed = now.wrapping_sub(self.dip_ms);
        if self.dips > 0 && passed > RIVAL_GONE_MS {
            self.dips = 0;
        }
        if u64::from(us) * UNIT > u64::from(least_us) * RIVAL_FULL {
            let most = RIVAL_DIP_MS + RIVAL_DIP_ROUNDS * (least_us / 1000);
            let lasted = now.wrapping_sub(self.empty_ms);
            if self.is_empty && u32::from(lasted) <= most {
                let is_early = self.dips > 0 && passed < RIVAL_LEAST_MS;
                self.dips = if is_early {
                    0
                } else {
                    RIVAL_DIPS.min(self.dips + 1)
                };
                self.dip_ms = now;
            }
            self.is_empty = false;
            self.rounds = 0;
            return;
        }
        self.rounds = self.rounds.saturating_add(1);
        let is_empty = us <= least_us + (least_us >> NO_QUEUE_SHIFT) + NO_QUEUE_US;
        if is_empty && !self.is_empty && self.rounds <= RIVAL_EMPTIES {
            self.is_empty = true;
            self.empty_ms = now;
        }
    }
}

fn low(ms: u32) -> u16 {
    u16::try_from(ms & u32::from(u16::MAX)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Round trips of 20 ms and of 40 ms with a queue, which is empty for so long at an interval.
    fn dips(interval_ms: u32, empty_ms: u32) -> bool {
        let mut rival = Rival::default();
        for now_ms in (0..40_000).step_by(30) {
            let is_empty = now_ms % interval_ms < empty_ms;
            rival.on_round(now_ms, if is_empty { 20_000 } else { 40_000 }, 20_000);
        }
        rival.is_there()
    }

    #[test]
    fn bbr_is_seen_by_its_intervals() {
        assert!(dips(10_200, 240));
        // As CUBIC: often, or for long.
        assert!(!dips(2000, 240));
        assert!(!dips(10_200, 2000));
        assert!(!dips(50_000, 0));
    }

    #[test]
    fn bbr_that_leaves_is_forgotten() {
        let mut rival = Rival::default();
        for now_ms in (0..60_000).step_by(30) {
            let is_empty = now_ms < 25_000 && now_ms % 10_200 < 240;
            rival.on_round(now_ms, if is_empty { 20_000 } else { 40_000 }, 20_000);
            assert!(now_ms < 48_000 || !rival.is_there(), "{now_ms}");
        }
    }
}
