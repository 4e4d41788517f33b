// SPDX-License-Identifier: Apache-2.0
//! What round trips show: an own queue, another sender, a longer path. And the drains that show which.

use super::{
    Ack, CONGESTED, Control, EARLIER, EPOCH, MAY_TRY, OVERSHOOT, Phase, RECOVERING, bounded, scale,
};
use crate::constants::{
    CONTENDED_DRAINS, CONTENDED_INTERVAL_MS, CONTENDED_SHIFT, DELAY, DRAIN, DRAIN_INTERVAL_MS,
    DRAIN_MS, FLAT_ROUNDS, FOREIGN, LEAST_SEGMENTS, QUEUE_US, SAME_SHIFT, TRIED_ROUNDS, TRY, UNIT,
};

impl Control {
    /// What the round trips of a round show.
    pub(super) fn judge_delay(&mut self, now_ms: u32) {
        let us = self.round_us;
        if self.tried > 0 {
            self.judge_trial(us);
            return;
        }
        if !self.sees_queue(us) {
            self.free = self.free.saturating_add(1);
            return;
        }
        if self.grows_fast(now_ms) {
            self.flags |= OVERSHOOT;
        }
        self.free = 0;
        let rate = u64::from(self.rate.max(self.rate_before)).max(1);
        let explained = u64::from(self.window) * 1000 / rate;
        let is_foreign = u64::from(us) * UNIT > explained * FOREIGN
            && u64::from(us) * UNIT > u64::from(self.least_us) * FOREIGN;
        if is_foreign {
            self.consider_trial(us);
            return;
        }
        let most = u64::from(self.least_us) * (UNIT + DELAY) / UNIT + u64::from(QUEUE_US);
        if self.contended == 0 && u64::from(us) > most {
            self.largest = self.window;
            self.flags &= !EPOCH;
            self.settle(us);
        }
    }

    /// The same round trip whatever is in flight, at a change of the path or during a drain and afterwards, is that of
    /// a longer path.
    fn consider_trial(&mut self, us: u32) {
        if !is_same(us, self.last_us) {
            self.flat = 0;
            if self.contended > 0 {
                self.flags &= !MAY_TRY;
            }
            return;
        }
        self.flat = self.flat.saturating_add(1);
        if self.flat < FLAT_ROUNDS || self.flags & MAY_TRY == 0 {
            return;
        }
        self.flags &= !MAY_TRY;
        self.flat = 0;
        self.former = self.window;
        self.window = bounded(scale(self.window, TRY));
        self.tried = 1;
    }

    /// The window was raised while the round trip was longer than explained. If that stays the same, the path has become
    /// longer, and has room. Else there is a queue, which is another sender's.
    fn judge_trial(&mut self, us: u32) {
        // The first round after a change still shows the former window.
        self.tried += 1;
        if self.tried <= TRIED_ROUNDS {
            return;
        }
        self.tried = 0;
        if is_same(us, self.last_us) {
            self.least_us = us;
            self.since_us = us;
            self.contended = 0;
            self.window = bounded(self.held().max(self.window.into()));
        } else {
            self.window = self.former;
            self.contended = self.contended.max(1);
        }
    }

    /// Begins a drain that is due, or ends it.
    pub(super) fn turn_drain(&mut self, ack: &Ack) {
        if self.phase == Phase::Drain {
            if ack.rtt_us / 2 > self.last_us {
                // The path has become longer meanwhile.
                self.last_us = ack.rtt_us;
                self.round_us = ack.rtt_us;
                self.drain_ms = ack.now_ms.wrapping_add(drain_time(ack.rtt_us));
                return;
            }
            self.end_drain(ack.now_ms);
            if self.phase == Phase::Refill {
                self.begin_round(ack);
            }
            return;
        }
        if self.tried > 0 || self.flags & RECOVERING != 0 {
            return;
        }
        self.count_losses();
        let us = self.last_us.max(self.least_us);
        self.former = self.window;
        let held = self.without_queue(self.window, us).min(self.held()) * DRAIN / UNIT;
        self.window = bounded(held.max(LEAST_SEGMENTS * u64::from(self.mss)));
        self.phase = Phase::Drain;
        self.rival.on_drain();
        self.drain_ms = ack.now_ms.wrapping_add(drain_time(us));
        self.begin_round(ack);
        // What was sent before is found lost in this round.
        self.flags |= EARLIER;
    }

    fn end_drain(&mut self, now_ms: u32) {
        self.phase = Phase::Steady;
        let left = if self.round_us > 0 {
            self.round_us
        } else {
            self.last_us
        };
        let most = self.least_us + (self.least_us >> CONTENDED_SHIFT) + QUEUE_US;
        self.window = self.former;
        if left > most {
            if self.contended == 0 && self.flags & CONGESTED == 0 {
                // What was left to the other sender, for a queue of the own, returns.
                self.window = self.window.max(self.largest);
            }
            self.contended = CONTENDED_DRAINS;
        } else {
            self.contended = self.contended.saturating_sub(1);
            // Else the least may be the other sender's queue.
            self.least_us = if self.since_us > 0 {
                self.since_us
            } else {
                self.least_us
            };
        }
        self.since_us = 0;
        self.flat = 0;
        self.last_us = left;
        let is_recent = now_ms.wrapping_sub(self.congested_ms) < DRAIN_INTERVAL_MS;
        if self.flags & CONGESTED == 0 || !is_recent {
            self.flags |= MAY_TRY;
        }
        self.rate_before = std::mem::take(&mut self.rate);
        self.drain_ms = self.next_drain(now_ms);
        self.free = 0;
        if self.contended == 0 {
            self.phase = Phase::Refill;
        }
    }

    /// The next multiple of the interval, for all hosts with this clock. Beside another sender's queue the window
    /// falls far, so drains are fewer.
    pub(super) fn next_drain(&self, now_ms: u32) -> u32 {
        let interval = if self.contended > 0 {
            CONTENDED_INTERVAL_MS
        } else {
            DRAIN_INTERVAL_MS
        };
        now_ms.wrapping_add(interval - now_ms % interval)
    }
}

/// The first round still shows the former window.
fn drain_time(us: u32) -> u32 {
    us / 1000 * 5 / 2 + DRAIN_MS
}

fn is_same(us: u32, before: u32) -> bool {
    us.abs_diff(before) <= (before >> SAME_SHIFT) + 1000
}
