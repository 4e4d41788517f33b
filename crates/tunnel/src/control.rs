// SPDX-License-Identifier: Apache-2.0
//! How much of a connection may be in flight: a quarter more than the path holds at the rate at
//! which it delivers, by the model of BBR (draft-ietf-ccwg-bbr). Loss alone is no sign of
//! congestion. Pure: the rule is driven by the caller's times.
//!
//! docs/design/0025-tunnels.md has the reasons, and what the simulator beside this shows.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

mod adapter;
mod limit;
mod load;
mod path;
mod rates;
#[cfg(test)]
mod simulation;

pub(crate) use adapter::{Clock, ControlFactory, load_of};
pub(crate) use limit::{Limit, Slot};
pub(crate) use load::Load;
use path::{Mark, Member, Shown};
pub use path::{Path, Paths};
use rates::{Extremes, Rate};

/// Bytes in flight until there is a round-trip time, of packets of 1200 bytes.
const INITIAL_WINDOW: u64 = 32 * 1200;
/// Bytes per second that a path is assumed to carry before it has shown more: a third of what hops over TCP
/// assume, since a node has two connections to each peer. With half, one that joins CUBIC in the simulation
/// takes 2.3 times its share.
const ASSUMED_RATE: u64 = 4_000_000;
/// The least: enough for ACKs to return in pairs.
const MIN_WINDOW: u64 = 4 * 1200;
/// What may be in flight beyond the product, in packets: ACKs come in groups.
const EXTRA_PACKETS: u64 = 8;
/// In flight, in eighths of rate times round-trip time: usually; while another sender keeps the
/// queue filled; and while the round-trip time is measured.
const GAIN: u64 = 10;
const GAIN_CONTENDED: u64 = 14;
const GAIN_DRAIN: u64 = 6;
/// Interval of measurements of the round-trip time.
const DRAIN_INTERVAL: Duration = Duration::from_secs(5);
/// How long one takes beyond a round trip.
const DRAIN_TIME: Duration = Duration::from_millis(100);
/// How long a round-trip time counts as the least.
const SLACK: Duration = Duration::from_millis(2);
/// How long a round-trip time counts as the least.
const LEAST_FOR: Duration = Duration::from_secs(10);
/// Bytes that a packet of ACKs does not reach, which is reported as sent too and is not in flight. A packet with so
/// few of a stream needs no share of the path.
const ACKS_MAX: u64 = 256;
/// Round trips in which the rate must have grown by a quarter, or the start is over.
const START_ROUNDS: u32 = 3;
/// ACKs in a row behind a queue after which the start is over.
const START_QUEUED: u32 = 8;
/// Loss within a round trip beyond which less is sent, in percent: more than links lose at random.
const LOSS_MAX: u64 = 15;
/// The part of the window that such a round leaves, and what each other one gives back.
const LOSS_LEAVES: u64 = 85;
const LOSS_RETURNS: u64 = 5;

/// What was known when a packet was sent.
#[derive(Clone, Copy, Debug)]
struct Sent {
    at: Duration,
    /// Bytes delivered by then, and when the last of them were acknowledged.
    delivered: u64,
    acked_at: Duration,
    /// The same of all connections over the path.
    mark: Mark,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    /// Doubles in each round trip.
    Start {
        /// The rate before the rounds without growth, and how many there were.
        rate: u64,
        rounds: u32,
        /// ACKs in a row behind a queue.
        queued: u32,
    },
    /// Takes its share of what the path carries, until it has shown its own rate.
    Joined,
    Steady,
    /// The queue drains, so that the round-trip time is measured.
    Drain {
        until: Duration,
    },
}

const START: Stage = Stage::Start {
    rate: 0,
    rounds: 0,
    queued: 0,
};

/// The congestion control of a connection.
#[derive(Clone, Debug)]
pub struct Control {
    mtu: u64,
    stage: Stage,
    window: u64,
    sent: VecDeque<Sent>,
    delivered: u64,
    /// The same at the ACK before.
    delivered_before: u64,
    acked_at: Duration,
    /// Bytes in flight, about: what is lost is reported after the ACK that showed it.
    in_flight: u64,
    /// Of the newest packet in the ACK that is being taken.
    newest: Option<Sent>,
    rate: Rate,
    path: Member,
    /// Round-trip times in microseconds.
    rounds: Extremes,
    next_drain: Duration,
    /// Whether a queue was left when this connection had drained its own.
    is_contended: bool,
    /// The current round trip ends when a packet is acknowledged that was sent with so many bytes
    /// delivered.
    round_ends: u64,
    /// Bytes acknowledged and lost in this round trip.
    acked: u64,
    lost: u64,
    /// The part of the window that loss leaves, in percent.
    left: u64,
    /// The window was once that of the assumed rate.
    has_assumed: bool,
}

impl Control {
    /// For packets of `mtu` bytes over a path.
    pub fn new(mtu: u64, path: &Arc<Path>) -> Self {
        Self {
            mtu,
            stage: START,
            window: INITIAL_WINDOW,
            sent: VecDeque::new(),
            delivered: 0,
            delivered_before: 0,
            acked_at: Duration::ZERO,
            in_flight: 0,
            newest: None,
            rate: Rate::default(),
            path: Member::of(path),
            rounds: Extremes::least(),
            next_drain: Duration::ZERO,
            is_contended: false,
            round_ends: 0,
            acked: 0,
            lost: 0,
            left: 100,
            has_assumed: false,
        }
    }

    /// Bytes that may be in flight.
    pub fn window(&self) -> u64 {
        let Stage::Joined = self.stage else {
            return self.window;
        };
        // It changes with each connection that joins.
        let share = self.path.share();
        share.map_or(self.window, |share| self.window_of(share))
    }

    /// Packets of so many bytes leave at `now`.
    pub fn on_sent(&mut self, now: Duration, bytes: u64) {
        // A sender that was idle has had no ACKs meanwhile.
        if self.in_flight == 0 && bytes >= ACKS_MAX {
            self.acked_at = now;
            self.path.join(now);
            self.take_share();
        }
        if bytes >= ACKS_MAX {
            self.in_flight += bytes;
        }
        if self.sent.back().is_none_or(|last| last.at < now) {
            self.sent.push_back(Sent {
                at: now,
                delivered: self.delivered,
                acked_at: self.acked_at,
                mark: self.path.mark(),
            });
        }
    }

    /// Begins with its share of what the path carries, if that is known, once there is a round-trip time.
    fn take_share(&mut self) {
        let has_round = self.least_micros() > 0;
        if let Some(share) = self.path.share().filter(|_| has_round) {
            self.stage = Stage::Joined;
            self.rate.begin(share);
        }
    }

    /// A packet that left at `sent` was acknowledged. [`Self::on_acks`] follows.
    pub fn on_ack(&mut self, now: Duration, sent: Duration, bytes: u64) {
        self.delivered += bytes;
        self.acked += bytes;
        let micros = micros(now.saturating_sub(sent)).max(1);
        self.rounds.add(now, micros, now.saturating_sub(LEAST_FOR));
        let place = self.sent.partition_point(|one| one.at < sent);
        if let Some(found) = self.sent.get(place).filter(|one| one.at == sent)
            && self.newest.is_none_or(|newest| newest.at < found.at)
        {
            self.newest = Some(*found);
        }
        if !std::mem::replace(&mut self.has_assumed, true) {
            self.window = self.window.max(product(ASSUMED_RATE, self.least()));
            self.take_share();
        }
    }

    /// All packets of an ACK were passed. `is_limited`: the application had no more to send.
    pub fn on_acks(&mut self, now: Duration, in_flight: u64, is_limited: bool) {
        self.set_in_flight(in_flight);
        let Some(newest) = self.newest.take() else {
            return;
        };
        // Neither a burst of packets nor one of ACKs counts as bandwidth.
        let within = (now - newest.at).max(now - newest.acked_at);
        let sample = rate_of(self.delivered - newest.delivered, within);
        self.acked_at = now;
        // What is older than a few rounds is lost, and its ACK would show nothing.
        while self.sent.front().is_some_and(|one| one.at < newest.at) {
            self.sent.pop_front();
        }
        let is_queued = now - newest.at > self.least() * 9 / 8 + SLACK;
        let acked = self.delivered - std::mem::replace(&mut self.delivered_before, self.delivered);
        // A window that is not used need not grow, and the ACK of a last packet is delayed.
        if let Stage::Start { queued, .. } = &mut self.stage
            && !is_limited
        {
            self.window += acked;
            *queued = if is_queued { *queued + 1 } else { 0 };
        }
        self.path.on_acks(
            now,
            &Shown {
                sent: newest.at,
                mark: newest.mark,
                acked,
                is_limited,
                is_queued: self.is_queued(now),
                round: self.least(),
            },
        );
        // A sender without data shows what it sent, and not what the path has room for.
        if !is_limited || sample >= self.rate.value() {
            let is_queued = self.is_queued(now);
            self.rate.add(now, sample, self.least(), is_queued);
        }
        if newest.delivered >= self.round_ends {
            self.round_ends = self.delivered;
            self.on_round(now, is_limited);
        }
        self.set_window(now);
    }

    fn set_in_flight(&mut self, bytes: u64) {
        self.in_flight = bytes;
        if bytes == 0 {
            self.path.leave();
        }
    }

    /// A round trip has ended.
    fn on_round(&mut self, now: Duration, is_limited: bool) {
        let (acked, lost) = (
            std::mem::take(&mut self.acked),
            std::mem::take(&mut self.lost),
        );
        if lost * 100 > (acked + lost) * LOSS_MAX {
            self.left = (self.left * LOSS_LEAVES / 100).max(10);
        } else {
            self.left = (self.left + LOSS_RETURNS).min(100);
        }
        let now_rate = self.rate.value();
        match &mut self.stage {
            Stage::Start { rate, rounds, .. } if now_rate > *rate + *rate / 4 => {
                (*rate, *rounds) = (now_rate, 0);
            }
            Stage::Start { rounds, .. } if !is_limited => *rounds += 1,
            Stage::Joined if !is_limited => self.leave_share(now),
            _ => {}
        }
    }

    /// Has more to send than its share. Alone, it looks for the rate of the path, which may have grown, from there
    /// on. Others would have to give way.
    fn leave_share(&mut self, now: Duration) {
        let share = self.path.share().unwrap_or_else(|| self.rate.value());
        self.rate.begin(share);
        self.window = self.window_of(share);
        self.stage = if self.path.is_alone() {
            START
        } else {
            Stage::Steady
        };
        self.next_drain = next_drain(now);
    }

    fn set_window(&mut self, now: Duration) {
        match self.stage {
            Stage::Start { rounds, queued, .. } => {
                if rounds < START_ROUNDS && queued < START_QUEUED {
                    return;
                }
                self.path.on_found();
                self.stage = Stage::Steady;
                self.next_drain = next_drain(now);
            }
            Stage::Drain { until } if now >= until => {
                self.stage = Stage::Steady;
                self.next_drain = next_drain(now);
                // The window grows in two steps.
                self.is_contended = false;
                self.window = self.window_of(self.rate.value());
                self.is_contended = self.latest(now) > self.least() * 9 / 8 + SLACK;
                return;
            }
            Stage::Steady if now >= self.next_drain => {
                let until = now + self.latest(now) * 3 / 2 + DRAIN_TIME;
                self.stage = Stage::Drain { until };
            }
            Stage::Drain { .. } | Stage::Joined | Stage::Steady => {}
        }
        self.window = self.window_of(self.rate.value());
    }

    /// The window for a rate.
    fn window_of(&self, rate: u64) -> u64 {
        let gain = match self.stage {
            Stage::Drain { .. } => GAIN_DRAIN,
            _ if self.is_contended => GAIN_CONTENDED,
            _ => GAIN,
        };
        let window = product(rate, self.least()) * gain / 8 + EXTRA_PACKETS * self.mtu;
        (window * self.left / 100).max(MIN_WINDOW)
    }

    /// Whether packets have found a queue for the last round trip.
    fn is_queued(&self, now: Duration) -> bool {
        self.latest(now) > self.least() * 27 / 20 + Duration::from_millis(2)
    }

    /// The least round-trip time.
    fn least(&self) -> Duration {
        Duration::from_micros(self.least_micros())
    }

    fn least_micros(&self) -> u64 {
        self.rounds.since(Duration::ZERO).unwrap_or(0)
    }

    /// The least of the last round trip.
    fn latest(&self, now: Duration) -> Duration {
        let least = self.least();
        let recent = self.rounds.since(now.saturating_sub(least));
        recent.map_or(least, Duration::from_micros)
    }

    /// Packets were lost.
    pub fn on_loss(&mut self, bytes: u64, is_persistent: bool) {
        self.lost += bytes;
        // Repair symbols are not sent again, so no ACK may follow.
        self.set_in_flight(self.in_flight.saturating_sub(bytes));
        if is_persistent {
            self.path.forget();
            self.rate = Rate::default();
            (self.stage, self.window) = (START, INITIAL_WINDOW);
            self.left = 100;
        }
    }
}

/// The same for all senders with one clock, so that they drain the queue together.
fn next_drain(now: Duration) -> Duration {
    let interval = u64::try_from(DRAIN_INTERVAL.as_nanos()).unwrap_or(u64::MAX);
    let past = u64::try_from(now.as_nanos() % u128::from(interval)).unwrap_or(0);
    now + DRAIN_INTERVAL - Duration::from_nanos(past)
}

/// Bytes per second.
fn rate_of(bytes: u64, within: Duration) -> u64 {
    bytes.saturating_mul(1_000_000) / micros(within).max(1)
}

/// Bytes that a path with this rate holds.
fn product(rate: u64, round: Duration) -> u64 {
    rate.saturating_mul(micros(round)) / 1_000_000
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
