// SPDX-License-Identifier: Apache-2.0
//! How much of a connection may be in flight: a quarter more than the path holds at the rate at
//! which it delivers, by the model of BBR (draft-ietf-ccwg-bbr). Loss alone is no sign of
//! congestion. Pure: the rule is driven by the caller's times.
//!
//! docs/design/0025-tunnels.md has the reasons, and what the simulator beside this shows.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quinn_proto::RttEstimator;
use quinn_proto::congestion::{Controller, ControllerFactory};

mod load;
mod rates;
#[cfg(test)]
mod simulation;

pub(crate) use load::Load;
use rates::Extremes;

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
/// Round trips for which a rate counts: usually, and while there is a queue. Behind a queue, what
/// arrives is what the path gives, and a higher rate from before is out of date.
const RATE_ROUNDS: u32 = 10;
const RATE_ROUNDS_QUEUED: u32 = 3;
/// Round trips in which the rate must have grown by a quarter, or the start is over.
const START_ROUNDS: u32 = 3;
/// ACKs in a row behind a queue after which the start is over.
const START_QUEUED: u32 = 8;
/// Loss within a round trip beyond which less is sent, in percent: more than links lose at random.
const LOSS_MAX: u64 = 15;
/// The part of the window that such a round leaves, and what each other one gives back.
const LOSS_LEAVES: u64 = 85;
const LOSS_RETURNS: u64 = 5;

/// Makes the congestion control of each connection.
#[derive(Clone, Copy, Debug)]
pub struct ControlFactory {
    epoch: Instant,
    at_epoch: Duration,
}

impl ControlFactory {
    /// `at_epoch` is the time of the host's clock at `epoch`: connections of hosts whose clocks
    /// agree measure their round-trip times together.
    pub fn new(epoch: Instant, at_epoch: Duration) -> Self {
        Self { epoch, at_epoch }
    }
}

impl ControllerFactory for ControlFactory {
    fn build(self: Arc<Self>, _now: Instant, mtu: u16) -> Box<dyn Controller> {
        Box::new(Adapter {
            clock: *self,
            control: Control::new(mtu.into()),
            load: Arc::default(),
        })
    }
}

/// What was known when a packet was sent.
#[derive(Clone, Copy, Debug)]
struct Sent {
    at: Duration,
    /// Bytes delivered by then, and when the last of them were acknowledged.
    delivered: u64,
    acked_at: Duration,
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
    /// Nothing is in flight.
    is_idle: bool,
    /// Of the newest packet in the ACK that is being taken.
    newest: Option<Sent>,
    /// By active time.
    rates: Extremes,
    /// Bytes per second.
    rate: u64,
    /// Round-trip times in microseconds.
    rounds: Extremes,
    next_drain: Duration,
    /// Whether a queue was left when this connection had drained its own.
    is_contended: bool,
    /// The current round trip ends when a packet is acknowledged that was sent with so many bytes
    /// delivered.
    round_ends: u64,
    /// When a rate was last measured, and the time of this connection, of which at most a round trip passes between
    /// two ACKs: while its host stops a sender, it finds nothing out about the path.
    sampled_at: Duration,
    active: Duration,
    /// The path has shown the rate since the last pause.
    is_confirmed: bool,
    /// Bytes acknowledged and lost in this round trip.
    acked: u64,
    lost: u64,
    /// The part of the window that loss leaves, in percent.
    left: u64,
    /// The window was once that of the assumed rate.
    has_assumed: bool,
}

impl Control {
    /// For a path of packets of `mtu` bytes of which nothing is known.
    pub fn new(mtu: u64) -> Self {
        Self {
            mtu,
            stage: START,
            window: INITIAL_WINDOW,
            sent: VecDeque::new(),
            delivered: 0,
            delivered_before: 0,
            acked_at: Duration::ZERO,
            is_idle: true,
            newest: None,
            rates: Extremes::largest(),
            rate: 0,
            rounds: Extremes::least(),
            next_drain: Duration::ZERO,
            is_contended: false,
            round_ends: 0,
            sampled_at: Duration::ZERO,
            active: Duration::ZERO,
            is_confirmed: false,
            acked: 0,
            lost: 0,
            left: 100,
            has_assumed: false,
        }
    }

    /// Bytes that may be in flight.
    pub fn window(&self) -> u64 {
        self.window
    }

    /// Packets leave at `now`.
    pub fn on_sent(&mut self, now: Duration) {
        // A sender that was idle has had no ACKs meanwhile.
        if std::mem::take(&mut self.is_idle) {
            self.acked_at = now;
            self.resume();
        }
        if self.sent.back().is_none_or(|last| last.at < now) {
            self.sent.push_back(Sent {
                at: now,
                delivered: self.delivered,
                acked_at: self.acked_at,
            });
        }
    }

    /// Sends again after a pause. The other connections with the peer may do the same, and know the same rate,
    /// so this one starts anew from a third of it.
    fn resume(&mut self) {
        if matches!(self.stage, Stage::Start { .. }) || !std::mem::take(&mut self.is_confirmed) {
            return;
        }
        self.rate /= 3;
        self.rates.clear();
        self.rates.add(self.active, self.rate, Duration::ZERO);
        self.window = (self.window / 3).max(MIN_WINDOW);
        self.stage = START;
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
        }
    }

    /// All packets of an ACK were passed. `is_limited`: the application had no more to send.
    pub fn on_acks(&mut self, now: Duration, in_flight: u64, is_limited: bool) {
        self.is_idle = in_flight == 0;
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
        // A sender without data shows what it sent, and not what the path has room for.
        if !is_limited || sample >= self.rate {
            self.on_sample(now, sample);
        }
        if newest.delivered >= self.round_ends {
            self.round_ends = self.delivered;
            self.on_round(is_limited);
        }
        self.set_window(now);
    }

    fn on_sample(&mut self, now: Duration, sample: u64) {
        self.is_confirmed |= sample >= self.rate;
        let round = self.least();
        self.active += now.saturating_sub(self.sampled_at).min(round);
        self.sampled_at = now;
        let since = |rounds| self.active.saturating_sub(round * rounds);
        self.rates.add(self.active, sample, since(RATE_ROUNDS));
        let rounds = if self.is_queued(now) {
            RATE_ROUNDS_QUEUED
        } else {
            RATE_ROUNDS
        };
        self.rate = self.rates.since(since(rounds)).unwrap_or(sample);
    }

    /// A round trip has ended.
    fn on_round(&mut self, is_limited: bool) {
        let (acked, lost) = (
            std::mem::take(&mut self.acked),
            std::mem::take(&mut self.lost),
        );
        if lost * 100 > (acked + lost) * LOSS_MAX {
            self.left = (self.left * LOSS_LEAVES / 100).max(10);
        } else {
            self.left = (self.left + LOSS_RETURNS).min(100);
        }
        let now_rate = self.rate;
        if let Stage::Start { rate, rounds, .. } = &mut self.stage {
            if now_rate > *rate + *rate / 4 {
                (*rate, *rounds) = (now_rate, 0);
            } else if !is_limited {
                *rounds += 1;
            }
        }
    }

    fn set_window(&mut self, now: Duration) {
        let gain = match self.stage {
            Stage::Start { rounds, queued, .. } => {
                if rounds < START_ROUNDS && queued < START_QUEUED {
                    return;
                }
                self.stage = Stage::Steady;
                self.next_drain = next_drain(now);
                GAIN
            }
            Stage::Drain { until } if now >= until => {
                self.stage = Stage::Steady;
                self.next_drain = next_drain(now);
                self.is_contended = self.latest(now) > self.least() * 9 / 8 + SLACK;
                GAIN
            }
            Stage::Drain { .. } => GAIN_DRAIN,
            Stage::Steady if now >= self.next_drain => {
                let until = now + self.latest(now) * 3 / 2 + DRAIN_TIME;
                self.stage = Stage::Drain { until };
                GAIN_DRAIN
            }
            Stage::Steady if self.is_contended => GAIN_CONTENDED,
            Stage::Steady => GAIN,
        };
        let product = product(self.rate, self.least());
        let window = product * gain / 8 + EXTRA_PACKETS * self.mtu;
        self.window = (window * self.left / 100).max(MIN_WINDOW);
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
        if is_persistent {
            self.rates.clear();
            (self.stage, self.window) = (START, INITIAL_WINDOW);
            (self.rate, self.left) = (0, 100);
        }
    }
}

/// What the control of a connection shows. There is no shorter way from the trait to its type.
pub(crate) fn load_of(controller: &dyn Controller) -> Arc<Load> {
    let adapter = controller.clone_box().into_any().downcast::<Adapter>();
    adapter.map(|adapter| adapter.load).unwrap_or_default()
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

/// The rule as quinn-proto calls it.
#[derive(Clone, Debug)]
struct Adapter {
    clock: ControlFactory,
    control: Control,
    load: Arc<Load>,
}

impl Adapter {
    fn time(&self, at: Instant) -> Duration {
        self.clock.at_epoch + at.saturating_duration_since(self.clock.epoch)
    }
}

impl Controller for Adapter {
    fn on_sent(&mut self, now: Instant, bytes: u64, _last: u64) {
        let now = self.time(now);
        self.control.on_sent(now);
        self.load.on_sent(bytes);
    }

    fn on_ack(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        _app_limited: bool,
        _rtt: &RttEstimator,
    ) {
        let (now, sent) = (self.time(now), self.time(sent));
        self.control.on_ack(now, sent, bytes);
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, app_limited: bool, _: Option<u64>) {
        let now = self.time(now);
        self.control.on_acks(now, in_flight, app_limited);
        self.load
            .on_acks(in_flight, app_limited, self.control.window());
    }

    fn on_congestion_event(
        &mut self,
        _now: Instant,
        _sent: Instant,
        is_persistent: bool,
        lost: u64,
    ) {
        self.control.on_loss(lost, is_persistent);
        self.load.on_loss(self.control.window());
    }

    fn on_mtu_update(&mut self, mtu: u16) {
        self.control.mtu = mtu.into();
    }

    fn window(&self) -> u64 {
        self.control.window()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        INITIAL_WINDOW
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
