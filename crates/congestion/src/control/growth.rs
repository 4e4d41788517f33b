// SPDX-License-Identifier: Apache-2.0
//! How the window grows: twofold in startup, by the law of CUBIC beside others, and fast into a path that is free.

use super::{
    Ack, CONGESTED, Control, EPOCH, LIMITED, OVERSHOOT, Phase, RECOVERING, bounded, narrow,
};
use crate::constants::{
    ALPHA, CUBIC_KS, CUBIC_MS, FIRST_SEGMENTS, FREE_ROUNDS, QUEUED_ACKS, STEP_LEAST_US, STEP_US,
    UNIT,
};
use crate::cubic;

impl Control {
    pub(super) fn grow(&mut self, ack: &Ack) {
        if ack.acked == 0 || self.flags & LIMITED == 0 {
            return;
        }
        match self.phase {
            Phase::Startup => self.start_up(ack),
            Phase::Steady if self.tried > 0 => {}
            Phase::Steady if self.follows_cubic(ack.now_ms) && !self.rival.is_there() => {
                self.grow_as_cubic(ack);
            }
            Phase::Steady => self.grow_freely(ack),
            Phase::Drain | Phase::Refill => {}
        }
    }

    fn start_up(&mut self, ack: &Ack) {
        if self.queued < QUEUED_ACKS {
            self.window = bounded(u64::from(self.window) + u64::from(ack.acked));
        } else {
            self.end_startup(ack);
        }
    }

    /// Begins with what the path holds. ACKs come at its rate: the round trip lags behind the queue.
    fn end_startup(&mut self, ack: &Ack) {
        self.largest = self.window;
        self.carried = 0;
        self.rate = self.rate.max(self.rate_of_round(ack));
        let held = self.held().max(FIRST_SEGMENTS * u64::from(self.mss));
        self.settle(ack.rtt_us);
        self.window = self.window.min(bounded(held));
        self.drain_ms = self.next_drain(ack.now_ms);
        self.flags &= !EPOCH;
        self.begin_round(ack);
        self.flags |= RECOVERING | OVERSHOOT;
    }

    /// Leaves what the path holds without the queue.
    pub(super) fn settle(&mut self, us: u32) {
        let held = self.without_queue(self.window, us);
        self.window = bounded(held.max(FIRST_SEGMENTS / 2 * u64::from(self.mss)));
        self.phase = Phase::Steady;
        self.free = 0;
    }

    /// Another sender takes losses or a full queue for congestion, as CUBIC does.
    pub(super) fn follows_cubic(&self, now_ms: u32) -> bool {
        let long = CUBIC_MS.max(self.k_ms.saturating_mul(CUBIC_KS));
        let is_recent =
            self.flags & CONGESTED != 0 && now_ms.wrapping_sub(self.congested_ms) < long;
        self.contended > 0 || (is_recent && !self.losses.are_random())
    }

    fn grow_as_cubic(&mut self, ack: &Ack) {
        let mss = u64::from(self.mss);
        let window = u64::from(self.window);
        if self.flags & EPOCH == 0 {
            self.flags |= EPOCH;
            self.epoch_ms = ack.now_ms;
            self.largest = self.largest.max(self.window);
            let missing = u64::from(self.largest - self.window) * UNIT / mss;
            self.k_ms = narrow(cubic::time_to_grow(missing));
            self.reno = self.window;
        }
        let since = u64::from(ack.now_ms.wrapping_sub(self.epoch_ms));
        let since = since + u64::from(self.last_us / 1000);
        let largest = u64::from(self.largest) * UNIT / mss;
        let target = cubic::window(largest, u64::from(self.k_ms), since) * mss / UNIT;
        let target = target.clamp(window, window * 3 / 2);
        let alpha = if self.reno < self.largest {
            ALPHA
        } else {
            UNIT
        };
        let acked = u64::from(ack.acked);
        let reno = u64::from(self.reno) + alpha * mss * acked / window / UNIT;
        self.reno = bounded(reno);
        let grown = window + (target - window) * acked / window;
        let mut grown = grown.max(reno);
        if self.losses.are_random() {
            grown = grown.min(self.most().max(window));
        }
        self.window = bounded(grown);
    }

    /// By as many bytes in a round for all senders with this round trip, so that their windows become equal, and twice
    /// as many in each round without a queue.
    fn grow_freely(&mut self, ack: &Ack) {
        let (window, mss) = (u64::from(self.window), u64::from(self.mss));
        let step = mss * u64::from(self.least_us.max(STEP_LEAST_US)) / STEP_US;
        let doublings = match self.queued {
            0..QUEUED_ACKS => self.free.saturating_sub(FREE_ROUNDS).min(20),
            _ => 0,
        };
        let step = (step << doublings).min(window / 4);
        let grown = window + (step * u64::from(ack.acked) / window).max(1);
        self.window = bounded(grown.min(self.most().max(window)));
    }
}
