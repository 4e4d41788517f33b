// SPDX-License-Identifier: Apache-2.0
//! The state machine.

use crate::constants::{
    BETA, BETA_RANDOM, FIRST_SEGMENTS, HELD_MOST, PACING, PACING_REFILL, PACING_STARTUP,
    QUEUE_SHIFT, QUEUE_US, RTT_MAX_US, UNIT, WINDOW_MAX,
};
use crate::losses::Losses;
use crate::rival::Rival;

mod congestion;
mod delay;
mod growth;

/// What an acknowledgement shows.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ack {
    /// When it came, in milliseconds and in microseconds. Hosts with the same clock drain at the same time.
    pub now_ms: u32,
    pub now_us: u32,
    /// Bytes newly acknowledged, found lost, and acknowledged with a congestion mark.
    pub acked: u32,
    pub lost: u32,
    pub marked: u32,
    /// Bytes in flight before.
    pub former_in_flight: u32,
    /// The round trip of the newest packet in microseconds; 0 if unknown.
    pub rtt_us: u32,
    /// Bytes ever delivered, modulo 2^32: now, and when the newest packet was sent.
    pub delivered: u32,
    pub prior_delivered: u32,
    /// Whether the sender has nothing more to send.
    pub is_app_limited: bool,
}

/// What is known of a path before a connection begins.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// Bytes per millisecond that the connection may expect.
    pub rate: u32,
    /// The least round trip in microseconds.
    pub rtt_us: u32,
    /// Packets lost at random, of 65,536.
    pub loss: u16,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// Doubles in each round.
    Startup,
    /// Holds what the path takes.
    Steady,
    /// Little is in flight, so that the own queue empties.
    Drain,
    /// What a drain left room for is sent within a round, without a burst.
    Refill,
}

/// The control of a connection.
#[derive(Clone, Debug)]
pub struct Control {
    /// Bytes that may be in flight, and the same before a drain; in startup, those acknowledged in the round before.
    window: u32,
    former: u32,
    /// CUBIC's: the window at the last congestion, the time to reach it again, the start of its epoch and whether
    /// there is one, and the window that Reno would have.
    largest: u32,
    /// What the path carried at the last congestions, the earlier ones discounted: less is a low load. In startup, lost in the round before.
    carried: u32,
    k_ms: u32,
    epoch_ms: u32,
    reno: u32,
    /// The last congestion.
    congested_ms: u32,
    /// Least round trips: of two intervals, of the current one, of the current round and of the last one.
    least_us: u32,
    since_us: u32,
    round_us: u32,
    last_us: u32,
    /// The round ends, and a recovery with it, when a packet is acknowledged that was sent with so much delivered.
    round_ends: u32,
    round_at_us: u32,
    /// Bytes of this round.
    acked: u32,
    lost: u32,
    /// The greatest rates of a round: in the last interval and in this one.
    rate_before: u32,
    rate: u32,
    /// When the next drain begins, or this one ends.
    drain_ms: u32,
    losses: Losses,
    rival: Rival,
    /// Bytes of a segment.
    mss: u16,
    phase: Phase,
    /// Drains until another sender counts as gone.
    contended: u8,
    /// Rounds without a queue.
    free: u8,
    /// ACKs in a row that have seen one.
    queued: u8,
    /// Rounds in which a raised window left the round trip as it was, and one; 0: it is not raised.
    tried: u8,
    /// Rounds in a row with the same round trip, longer than explained.
    flat: u8,
    flags: u8,
}

/// The window was full in this round.
const LIMITED: u8 = 1;
/// A recovery lasts: what is lost was sent before the window was lowered.
const RECOVERING: u8 = 2;
/// CUBIC's epoch has begun.
const EPOCH: u8 = 4;
/// There was congestion.
const CONGESTED: u8 = 8;
/// The time of the next drain is set.
const SCHEDULED: u8 = 16;
/// The window may be raised to see whether the path has become longer.
const MAY_TRY: u8 = 32;
/// A drain has begun in this round.
const EARLIER: u8 = 64;
/// What is found lost in this round was too much of a fast growth, and shows nothing of other rounds.
const OVERSHOOT: u8 = 128;

impl Control {
    /// For segments of `mss` bytes, over a path of which something may be known.
    pub fn new(mss: u16, known: Option<Known>) -> Self {
        let first = FIRST_SEGMENTS * u64::from(mss);
        let mut control = Self {
            window: bounded(first),
            former: 0,
            largest: 0,
            carried: 0,
            k_ms: 0,
            epoch_ms: 0,
            reno: 0,
            congested_ms: 0,
            least_us: 0,
            since_us: 0,
            round_us: 0,
            last_us: 0,
            round_ends: 0,
            round_at_us: 0,
            acked: 0,
            lost: 0,
            rate_before: 0,
            rate: 0,
            drain_ms: 0,
            losses: Losses::default(),
            rival: Rival::default(),
            mss,
            phase: Phase::Startup,
            contended: 0,
            free: 0,
            queued: 0,
            tried: 0,
            flat: 0,
            flags: 0,
        };
        if let Some(known) = known {
            control.least_us = known.rtt_us.min(RTT_MAX_US);
            control.last_us = control.least_us;
            control.rate = known.rate;
            control.losses = Losses::known(known.loss);
            control.window = bounded(control.held().max(first));
            control.phase = Phase::Steady;
        }
        control
    }

    /// Bytes that may be in flight.
    pub fn window(&self) -> u32 {
        self.window
    }

    /// Bytes per millisecond at which they may leave; 0 until there is a round trip.
    pub fn pacing_rate(&self) -> u32 {
        let gain = match self.phase {
            Phase::Startup => PACING_STARTUP,
            Phase::Steady => PACING,
            Phase::Drain => UNIT,
            Phase::Refill => PACING_REFILL,
        };
        let rate = scale(self.window, gain) * 1000 / u64::from(self.last_us).max(1);
        if self.last_us == 0 {
            0
        } else {
            narrow(rate).max(1)
        }
    }

    /// What the connection has learned, for others over the path: nothing before it has filled that.
    pub fn known(&self) -> Option<Known> {
        (self.phase != Phase::Startup).then(|| Known {
            rate: self.rate.max(self.rate_before),
            rtt_us: self.least_us,
            loss: self.losses.share(),
        })
    }

    /// Whether another sender keeps the queue filled.
    pub fn is_contended(&self) -> bool {
        self.contended > 0
    }

    /// An acknowledgement came.
    pub fn on_ack(&mut self, ack: &Ack) {
        let ack = &Ack {
            rtt_us: ack.rtt_us.min(RTT_MAX_US),
            ..*ack
        };
        if self.flags & SCHEDULED == 0 {
            self.flags |= SCHEDULED;
            self.drain_ms = self.next_drain(ack.now_ms);
            self.begin_round(ack);
        }
        self.acked = self.acked.saturating_add(ack.acked);
        self.lost = self.lost.saturating_add(ack.lost);
        self.on_round_trip(ack);
        self.see_limit(ack);
        if self.flags & RECOVERING == 0 {
            if ack.marked > 0 {
                self.on_congestion(ack, BETA);
            } else if ack.lost > 0 && self.is_congested() {
                let random = self.losses.are_random();
                self.on_congestion(ack, if random { BETA_RANDOM } else { BETA });
            } else {
                self.grow(ack);
            }
        }
        if !is_before(ack.prior_delivered, self.round_ends) {
            self.on_round(ack);
        }
        if self.phase != Phase::Startup && !is_before(ack.now_ms, self.drain_ms) {
            self.turn_drain(ack);
        }
    }

    /// Nothing was acknowledged for long; all that was in flight is lost.
    pub fn on_timeout(&mut self, now_ms: u32) {
        if self.phase == Phase::Drain {
            self.phase = Phase::Steady;
            self.window = self.former;
        }
        self.lower(now_ms, BETA);
        self.flags &= !RECOVERING;
    }

    fn on_round_trip(&mut self, ack: &Ack) {
        let us = ack.rtt_us;
        if us == 0 {
            return;
        }
        self.least_us = least(self.least_us, us);
        self.since_us = least(self.since_us, us);
        self.round_us = least(self.round_us, us);
        if self.last_us == 0 {
            self.last_us = us;
        }
        self.queued = if self.sees_queue(us) {
            self.queued.saturating_add(1)
        } else {
            0
        };
    }

    /// The window counts as full with two segments to go, which bursts leave, and in startup by half.
    fn see_limit(&mut self, ack: &Ack) {
        let used = match self.phase {
            Phase::Startup => 2 * u64::from(ack.former_in_flight),
            _ => u64::from(ack.former_in_flight) + 2 * u64::from(self.mss),
        };
        if used >= u64::from(self.window) {
            self.flags |= LIMITED;
        }
    }

    fn sees_queue(&self, us: u32) -> bool {
        us > self.least_us + (self.least_us >> QUEUE_SHIFT) + QUEUE_US
    }

    /// Bytes per millisecond acknowledged in this round.
    fn rate_of_round(&self, ack: &Ack) -> u32 {
        let us = ack.now_us.wrapping_sub(self.round_at_us).max(1);
        narrow(u64::from(self.acked) * 1000 / u64::from(us))
    }

    /// Bytes that the path holds at the rate at which it delivered.
    fn held(&self) -> u64 {
        u64::from(self.rate.max(self.rate_before)) * u64::from(self.least_us) / 1000
    }

    /// The most in flight where losses are no bound.
    fn most(&self) -> u64 {
        self.held() * HELD_MOST / UNIT + 4 * u64::from(self.mss)
    }

    /// The part of bytes in flight that is not in a queue, if a round trip takes so long.
    fn without_queue(&self, bytes: u32, us: u32) -> u64 {
        u64::from(bytes) * u64::from(self.least_us) / u64::from(us.max(self.least_us)).max(1)
    }

    fn packets(&self, bytes: u32) -> u64 {
        u64::from(bytes) / u64::from(self.mss)
    }

    fn on_round(&mut self, ack: &Ack) {
        let rate = self.rate_of_round(ack);
        let grows = u64::from(rate) * 2 > u64::from(self.rate) * 3;
        if self.phase == Phase::Startup {
            self.count_startup(grows);
        } else if self.flags & OVERSHOOT == 0 {
            self.count_losses();
        }
        if !ack.is_app_limited || rate > self.rate {
            self.rate = self.rate.max(rate);
        }
        self.flags &= !(RECOVERING | EARLIER | OVERSHOOT);
        if self.phase == Phase::Steady && self.round_us > 0 {
            self.rival
                .on_round(ack.now_ms, self.round_us, self.least_us);
            if self.flags & LIMITED != 0 {
                self.judge_delay(ack.now_ms);
            }
        }
        if self.phase == Phase::Refill {
            self.phase = Phase::Steady;
        }
        self.begin_round(ack);
    }

    fn begin_round(&mut self, ack: &Ack) {
        if self.round_us > 0 {
            self.last_us = self.round_us;
        }
        self.round_us = 0;
        self.round_ends = ack.delivered;
        self.round_at_us = ack.now_us;
        (self.acked, self.lost) = (0, 0);
        self.flags &= !LIMITED;
    }
}

/// The lesser, of which 0 is unknown.
fn least(known: u32, us: u32) -> u32 {
    if known == 0 { us } else { known.min(us) }
}

/// Of numbers that wrap.
fn is_before(one: u32, other: u32) -> bool {
    other.wrapping_sub(one).wrapping_sub(1) < u32::MAX / 2
}

fn scale(bytes: u32, gain: u64) -> u64 {
    u64::from(bytes) * gain / UNIT
}

fn bounded(bytes: u64) -> u32 {
    narrow(bytes.min(WINDOW_MAX))
}

fn narrow(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
