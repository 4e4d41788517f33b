// SPDX-License-Identifier: Apache-2.0
//! What receives: it acknowledges each packet, every second, few of many, or many at once.

use std::collections::VecDeque;
use std::time::Duration;

use super::ns;

/// How receivers acknowledge.
#[derive(Clone, Copy, Debug)]
pub struct Acks {
    /// After so many packets, or out of order,
    pub every: u32,
    /// or so long after the first of them.
    pub delay: Duration,
    /// The path back delivers only at multiples of this time, as wireless links do; zero: at once.
    pub interval: Duration,
}

impl Default for Acks {
    fn default() -> Self {
        Self {
            every: 2,
            delay: Duration::from_millis(40),
            interval: Duration::ZERO,
        }
    }
}

/// A packet that arrived.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    pub(super) number: u64,
    pub(super) is_marked: bool,
}

/// What follows from an arrival.
pub(super) enum Reaction {
    Acknowledge,
    Delay(u64),
    Wait,
}

#[derive(Debug, Default)]
pub(super) struct Receiver {
    /// What has arrived and the sender does not know; the last of them have no ACK under way.
    arrivals: VecDeque<Arrival>,
    pending: u32,
    expected: u64,
    /// When the pending ones are acknowledged at the latest.
    due_ns: u64,
    /// ACKs do not overtake each other.
    last_ack_ns: u64,
}

impl Receiver {
    pub(super) fn on_arrival(&mut self, now: u64, arrival: Arrival, acks: &Acks) -> Reaction {
        let is_in_order = arrival.number == self.expected;
        self.expected = self.expected.max(arrival.number + 1);
        self.arrivals.push_back(arrival);
        self.pending += 1;
        if self.pending >= acks.every || !is_in_order {
            return Reaction::Acknowledge;
        }
        if self.pending > 1 {
            return Reaction::Wait;
        }
        self.due_ns = now + ns(acks.delay);
        Reaction::Delay(self.due_ns)
    }

    pub(super) fn is_delayed(&self, now: u64) -> bool {
        self.pending > 0 && now >= self.due_ns
    }

    /// Sends an ACK, which would arrive at a time; returns when it does, and for how many packets it is.
    pub(super) fn acknowledge(&mut self, at: u64, acks: &Acks) -> (u64, usize) {
        let at = at.max(self.last_ack_ns);
        self.last_ack_ns = match ns(acks.interval) {
            0 => at,
            interval => at.next_multiple_of(interval),
        };
        let count = std::mem::take(&mut self.pending);
        (self.last_ack_ns, count as usize)
    }

    /// An ACK for the next so many packets has reached the sender.
    pub(super) fn acknowledged(&mut self, count: usize) -> impl Iterator<Item = Arrival> {
        self.arrivals.drain(..count)
    }
}
