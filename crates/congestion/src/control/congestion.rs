// SPDX-License-Identifier: Apache-2.0
//! Which losses are congestion, and what it leaves of the window.

use super::{
    Ack, CONGESTED, Control, EARLIER, EPOCH, MAY_TRY, OVERSHOOT, Phase, RECOVERING, bounded,
    narrow, scale,
};
use crate::constants::{
    BETA, BETA_RANDOM, CARRIED, FREE_ROUNDS, LEAST_SEGMENTS, LOW_LOAD, NO_QUEUE_SHIFT, NO_QUEUE_US,
    OVERSHOT, QUEUED_ACKS, RIVAL_LOSS, STARTUP_LOSS, STARTUP_LOSSES, TINY_SEGMENTS, UNIT,
};

impl Control {
    /// Whether the losses of this round are the load's.
    pub(super) fn is_congested(&self) -> bool {
        let (sent, lost) = self.sent_and_lost();
        if self.phase == Phase::Startup && self.queued < QUEUED_ACKS {
            let is_little = lost <= STARTUP_LOSSES || lost * UNIT <= sent * STARTUP_LOSS;
            return !is_little;
        }
        if self.rival.is_there() {
            return lost * UNIT > sent * RIVAL_LOSS;
        }
        self.losses.show_congestion(sent, lost)
    }

    pub(super) fn on_congestion(&mut self, ack: &Ack, beta: u64) {
        let grew = self.phase == Phase::Startup
            || self.flags & OVERSHOOT != 0
            || self.grows_fast(ack.now_ms);
        if !grew {
            let were_random = self.losses.are_random();
            self.count_losses();
            if ack.marked == 0 && self.losses.are_random() && !were_random {
                self.begin_round(ack);
                return;
            }
        }
        if self.phase == Phase::Drain {
            self.window = self.former;
            self.drain_ms = self.next_drain(ack.now_ms);
        }
        let former = self.window;
        self.lower(ack.now_ms, beta);
        if grew && self.held() > 0 {
            self.settle_for_held(former);
        }
        // What was sent before is found lost in this round.
        self.begin_round(ack);
        self.flags |= RECOVERING;
        if grew {
            self.flags |= OVERSHOOT;
        }
    }

    /// Whether the window grows fast, into a path that seems free.
    pub(super) fn grows_fast(&self, now_ms: u32) -> bool {
        self.free > FREE_ROUNDS && !self.follows_cubic(now_ms)
    }

    /// The window grew fast into a free path: what that has delivered shows how much was too much.
    fn settle_for_held(&mut self, former: u32) {
        let least = u64::from(self.window) / 2;
        let held = (self.held() * OVERSHOT / UNIT).clamp(least, scale(former, OVERSHOT));
        self.window = bounded(held);
        self.largest = bounded(held * UNIT / BETA);
        self.carried = bounded(self.held());
    }

    /// What the path carried at this congestion, or at former ones.
    fn carried(&self) -> u32 {
        let now = match self.held() {
            0 => self.window,
            held => bounded(held.min(self.window.into())),
        };
        match self.phase {
            Phase::Startup => now,
            _ => now.max(narrow(scale(self.carried, CARRIED))),
        }
    }

    pub(super) fn lower(&mut self, now_ms: u32, beta: u64) {
        self.carried = self.carried();
        // RFC 9438 section 4.7, fast convergence.
        self.largest = if self.window < self.largest {
            narrow(scale(self.window, (UNIT + beta) / 2))
        } else {
            self.window
        };
        let lowered = scale(self.window, beta).max(LEAST_SEGMENTS * u64::from(self.mss));
        self.window = bounded(lowered);
        self.phase = Phase::Steady;
        self.congested_ms = now_ms;
        self.flags = (self.flags | CONGESTED) & !(EPOCH | MAY_TRY | EARLIER);
        (self.free, self.tried) = (0, 0);
    }

    /// Packets of this round: sent, and of these lost.
    pub(super) fn sent_and_lost(&self) -> (u64, u64) {
        let lost = self.packets(self.lost);
        (self.packets(self.acked) + lost, lost)
    }

    /// Counts the losses of this round. Those of the load itself, in a recovery, show nothing of others.
    pub(super) fn count_losses(&mut self) {
        let were_random = self.losses.are_random();
        if were_random && self.flags & RECOVERING != 0 {
            return;
        }
        let (sent, lost) = self.sent_and_lost();
        self.losses.on_round(sent, lost, self.is_load_low());
        if self.losses.are_random() && !were_random && self.phase == Phase::Steady {
            // What was lowered for them returns.
            let former = self.held() * BETA_RANDOM / UNIT;
            self.window = bounded(former.max(self.window.into()));
        }
    }

    /// The round before had a low load if this one delivers much faster.
    pub(super) fn count_startup(&mut self, grows: bool) {
        if grows {
            let lost = self.packets(self.carried);
            let sent = self.packets(self.former) + lost;
            self.losses.on_round(sent, lost, true);
        }
        (self.former, self.carried) = (self.acked, self.lost);
    }

    /// Whether there was neither a queue nor a window at which there was congestion.
    fn is_load_low(&self) -> bool {
        // What is found lost in these rounds was sent before the window was lowered.
        if self.flags & (RECOVERING | EARLIER) != 0 {
            return false;
        }
        let is_less = match self.phase {
            Phase::Startup | Phase::Refill => false,
            Phase::Drain => true,
            Phase::Steady => {
                u64::from(self.window) <= scale(self.carried, LOW_LOAD)
                    || self.packets(self.window) <= TINY_SEGMENTS
            }
        };
        let most = self.least_us + (self.least_us >> NO_QUEUE_SHIFT) + NO_QUEUE_US;
        is_less && self.round_us > 0 && self.round_us <= most
    }
}
