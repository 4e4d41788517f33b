// SPDX-License-Identifier: Apache-2.0
//! Senders that share a bottleneck: a rate that changes, a queue of limited length, loss at random.
//! Packets are the events; a schedule follows from its seed.

use std::collections::VecDeque;
use std::time::Duration;

use crate::{Rng, Timeline};

mod cubic;

pub use cubic::Cubic;

/// Bytes of a packet.
pub const PACKET: u64 = 1250;

/// Bytes per second of so many Mbit/s.
pub fn mbits(rate: u64) -> u64 {
    rate * 125_000
}

/// Bytes that a rate in bytes per second carries in a time.
pub fn product(rate: u64, time: Duration) -> u64 {
    let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    rate.saturating_mul(micros) / 1_000_000
}

/// The part of what the path can deliver that was, in percent.
pub fn percent(delivered: u64, rate: u64, time: Duration) -> u64 {
    delivered * 100 / product(rate, time)
}

/// A packet that was acknowledged, and what its sender learned by that. In bytes.
#[derive(Clone, Copy, Debug)]
pub struct Acked {
    /// When it was sent.
    pub sent: Duration,
    /// What is lost.
    pub lost: u64,
    /// What is in flight now, and was before.
    pub in_flight: u64,
    pub former_in_flight: u64,
    /// Whether the sender has more to send.
    pub has_more: bool,
}

/// A congestion control.
pub trait Rule {
    /// Bytes that may be in flight.
    fn window(&self) -> u64;
    /// The time from one packet to the next, by the smoothed round-trip time.
    fn step(&self, smoothed: Duration) -> Duration {
        let _ = smoothed;
        Duration::ZERO
    }
    /// A packet is sent, with so many bytes in flight before.
    fn on_sent(&mut self, now: Duration, in_flight: u64) {
        let _ = (now, in_flight);
    }
    /// A packet was acknowledged.
    fn on_acked(&mut self, now: Duration, acked: Acked);
    /// Nothing was acknowledged for long: so many bytes are lost.
    fn on_time(&mut self, now: Duration, lost: u64);
}

impl<R: Rule + ?Sized> Rule for Box<R> {
    fn window(&self) -> u64 {
        (**self).window()
    }

    fn step(&self, smoothed: Duration) -> Duration {
        (**self).step(smoothed)
    }

    fn on_sent(&mut self, now: Duration, in_flight: u64) {
        (**self).on_sent(now, in_flight);
    }

    fn on_acked(&mut self, now: Duration, acked: Acked) {
        (**self).on_acked(now, acked);
    }

    fn on_time(&mut self, now: Duration, lost: u64) {
        (**self).on_time(now, lost);
    }
}

/// A sender of some bytes.
#[derive(Debug)]
pub struct Sender<R> {
    /// Its congestion control.
    pub rule: R,
    starts: Duration,
    /// Bytes to send.
    size: u64,
    /// Number, time of sending.
    outstanding: VecDeque<(u64, Duration)>,
    next: u64,
    /// The smoothed round-trip time.
    smoothed: Duration,
    /// When the pacer lets the next packet go.
    paced: Duration,
    /// When a packet was last sent or acknowledged.
    active: Duration,
    delivered: u64,
    /// When all of its bytes had been acknowledged.
    pub finished: Option<Duration>,
}

impl<R: Rule> Sender<R> {
    /// One that always has something to send, from a time on.
    pub fn new(rule: R, starts: Duration) -> Self {
        Self::of_bytes(rule, starts, u64::MAX)
    }

    /// One that sends so many bytes.
    pub fn of_bytes(rule: R, starts: Duration, size: u64) -> Self {
        Self {
            rule,
            starts,
            size,
            outstanding: VecDeque::new(),
            next: 0,
            smoothed: Duration::from_millis(100),
            paced: starts,
            active: starts,
            delivered: 0,
            finished: None,
        }
    }

    /// Gives it more bytes to send from now on.
    pub fn add(&mut self, now: Duration, bytes: u64) {
        self.size += bytes;
        self.starts = now;
        self.finished = None;
    }

    fn in_flight(&self) -> u64 {
        self.outstanding.len() as u64 * PACKET
    }

    fn has_more(&self) -> bool {
        self.delivered + self.in_flight() < self.size
    }

    /// Sends a packet if window and pacer permit; returns its number.
    fn send(&mut self, now: Duration) -> Option<u64> {
        let in_flight = self.in_flight();
        let may_send = now >= self.starts && now >= self.paced && self.has_more();
        // The first packet of a flight shows the rule that there is one.
        if !may_send || (in_flight > 0 && in_flight + PACKET > self.rule.window()) {
            return None;
        }
        self.rule.on_sent(now, in_flight);
        if in_flight + PACKET > self.rule.window() {
            return None;
        }
        let slack = Duration::from_millis(2);
        self.paced = self.paced.max(now.saturating_sub(slack)) + self.rule.step(self.smoothed);
        self.outstanding.push_back((self.next, now));
        self.active = now;
        self.next += 1;
        Some(self.next - 1)
    }

    fn on_ack(&mut self, number: u64, now: Duration) {
        let Some(place) = self.outstanding.iter().position(|one| one.0 == number) else {
            return;
        };
        let former_in_flight = self.in_flight();
        let (_, sent) = self.outstanding.remove(place).expect("it was found");
        self.smoothed = (self.smoothed * 7 + (now - sent)) / 8;
        self.delivered += PACKET;
        self.active = now;
        // RFC 9002 section 6.1.1: three packets behind it were acknowledged.
        let is_lost = |one: &&(u64, Duration)| one.0 + 3 <= number;
        let lost = self.outstanding.iter().take_while(is_lost).count();
        self.outstanding.drain(..lost);
        let acked = Acked {
            sent,
            lost: lost as u64 * PACKET,
            in_flight: self.in_flight(),
            former_in_flight,
            has_more: self.has_more(),
        };
        self.rule.on_acked(now, acked);
        if self.delivered >= self.size && self.finished.is_none() {
            self.finished = Some(now);
        }
    }

    /// Nothing was acknowledged for long: all is lost.
    fn on_time(&mut self, now: Duration) {
        let patience = self.smoothed * 3 + Duration::from_millis(200);
        if !self.outstanding.is_empty() && now > self.active + patience {
            let lost = self.in_flight();
            self.outstanding.clear();
            self.rule.on_time(now, lost);
        }
    }
}

#[derive(Debug)]
enum Event {
    Acked(usize, u64),
    Tick,
}

/// One bottleneck, and the packets on it.
#[derive(Debug)]
pub struct Path<R> {
    rng: Rng,
    /// Bytes per second from a time on.
    pub rates: Vec<(Duration, u64)>,
    /// The round-trip time without a queue.
    round: Duration,
    /// Bytes that may wait.
    pub queue_max: u64,
    /// Packets lost at random, in a thousand.
    pub loss: u64,
    /// Who sends.
    pub senders: Vec<Sender<R>>,
    free_at: Duration,
    /// Packets sent, and those that had no place in the queue.
    pub sent: u64,
    pub dropped: u64,
    /// The time.
    pub now: Duration,
    events: Timeline<Duration, Event>,
}

impl<R: Rule> Path<R> {
    /// A path of `rate` bytes per second, with a queue of one product.
    pub fn new(seed: u64, rate: u64, round: Duration, senders: Vec<Sender<R>>) -> Self {
        let mut events = Timeline::default();
        events.add(Duration::ZERO, Event::Tick);
        Self {
            rng: Rng::new(seed),
            rates: vec![(Duration::ZERO, rate)],
            round,
            queue_max: product(rate, round),
            loss: 0,
            senders,
            free_at: Duration::ZERO,
            sent: 0,
            dropped: 0,
            now: Duration::ZERO,
            events,
        }
    }

    fn rate(&self) -> u64 {
        let begun = self.rates.iter().take_while(|(from, _)| *from <= self.now);
        begun.last().map_or(0, |(_, rate)| *rate)
    }

    fn transmit(&mut self, sender: usize, number: u64) {
        self.sent += 1;
        let waiting = product(self.rate(), self.free_at.saturating_sub(self.now));
        if waiting + PACKET > self.queue_max {
            self.dropped += 1;
            return;
        }
        let took = Duration::from_secs_f64(PACKET as f64 / self.rate() as f64);
        self.free_at = self.free_at.max(self.now) + took;
        if self.rng.below(1000_u64) >= self.loss {
            self.events
                .add(self.free_at + self.round, Event::Acked(sender, number));
        }
    }

    /// Runs for so long; returns the bytes that each sender has delivered meanwhile.
    pub fn run(&mut self, time: Duration) -> Vec<u64> {
        let before: Vec<u64> = self.senders.iter().map(|one| one.delivered).collect();
        let until = self.now + time;
        while self.events.first().is_some_and(|at| at <= until) {
            let (at, event) = self.events.pop().expect("there is one");
            self.now = at;
            match event {
                Event::Acked(sender, number) => {
                    self.senders[sender].on_ack(number, at);
                    self.send(sender);
                }
                Event::Tick => {
                    for sender in 0..self.senders.len() {
                        self.senders[sender].on_time(at);
                        self.send(sender);
                    }
                    self.events
                        .add(at + Duration::from_micros(500), Event::Tick);
                }
            }
        }
        self.now = until;
        let after = self.senders.iter().map(|one| one.delivered);
        after
            .zip(before)
            .map(|(after, before)| after - before)
            .collect()
    }

    fn send(&mut self, sender: usize) {
        while let Some(number) = self.senders[sender].send(self.now) {
            self.transmit(sender, number);
        }
    }
}
