// SPDX-License-Identifier: Apache-2.0
//! Senders that share a bottleneck, packet by packet. A schedule follows from its seed.
//!
//! A packet passes the policer, waits in the queue, is transmitted, may be lost at random, and reaches its receiver.
//! All of the path's delay lies on the way back. What a sender does with acknowledgements ([`Sender`]) is what TCP and
//! QUIC have in common; what it does about congestion is a [`Rule`]. [`Cubic`], [`Reno`] and [`Bbr`] are models of
//! what others use. Times are in nanoseconds since the start, rates in bytes per second.

use std::fmt::Debug;
use std::time::Duration;

use crate::{Rng, Timeline};

mod bbr;
mod link;
mod loss_based;
mod queue;
mod receiver;
mod sender;
#[cfg(test)]
mod tests;
pub mod trials;

pub use bbr::Bbr;
pub use link::{Link, Loss, Policer};
pub use loss_based::{Cubic, Reno};
pub use queue::{Discipline, Queue};
pub use receiver::Acks;
pub use sender::{Acked, RateSample, Sender};

/// Bytes of a packet.
pub const PACKET: u64 = 1250;

const NS_PER_S: u64 = 1_000_000_000;

/// Bytes per second of so many Mbit/s.
pub fn mbits(rate: u64) -> u64 {
    rate * 125_000
}

/// Bytes that a rate in bytes per second carries in a time.
pub fn product(rate: u64, time: Duration) -> u64 {
    carried(rate, ns(time))
}

/// The part of what the path can deliver that was, in percent.
pub fn percent(delivered: u64, rate: u64, time: Duration) -> u64 {
    delivered * 100 / product(rate, time)
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Bytes that a rate carries in nanoseconds.
fn carried(rate: u64, ns: u64) -> u64 {
    let bytes = u128::from(rate) * u128::from(ns) / u128::from(NS_PER_S);
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// Nanoseconds that a rate needs for bytes.
fn time_for(bytes: u64, rate: u64) -> u64 {
    bytes.saturating_mul(NS_PER_S) / rate.max(1)
}

/// A congestion control.
pub trait Rule: Debug {
    /// Bytes that may be in flight.
    fn window(&self) -> u64;
    /// Bytes per second at which packets may leave, by the smoothed round-trip time; 0: as the window permits.
    fn pacing(&self, smoothed_ns: u64) -> u64 {
        let _ = smoothed_ns;
        0
    }
    /// A packet is about to be sent, with so many bytes in flight before.
    fn on_sent(&mut self, now_ns: u64, in_flight: u64) {
        let _ = (now_ns, in_flight);
    }
    /// An acknowledgement came.
    fn on_acked(&mut self, acked: &Acked);
    /// Nothing was acknowledged for long: so many bytes, all that were in flight, are lost.
    fn on_timeout(&mut self, now_ns: u64, lost: u64);
}

impl<R: Rule + ?Sized> Rule for Box<R> {
    fn window(&self) -> u64 {
        (**self).window()
    }

    fn pacing(&self, smoothed_ns: u64) -> u64 {
        (**self).pacing(smoothed_ns)
    }

    fn on_sent(&mut self, now_ns: u64, in_flight: u64) {
        (**self).on_sent(now_ns, in_flight);
    }

    fn on_acked(&mut self, acked: &Acked) {
        (**self).on_acked(acked);
    }

    fn on_timeout(&mut self, now_ns: u64, lost: u64) {
        (**self).on_timeout(now_ns, lost);
    }
}

#[derive(Debug)]
enum Event {
    /// The link has transmitted a packet.
    Transmitted,
    /// A packet reaches the receiver of a sender.
    Arrives(usize, receiver::Arrival),
    /// A receiver has waited for a second packet for long enough.
    AckDelayed(usize),
    /// An acknowledgement of the next so many arrivals reaches a sender.
    Acked(usize, usize),
    /// A timer of a sender.
    Wake(usize),
}

/// One bottleneck, the packets on it, and who sends them.
#[derive(Debug)]
pub struct Path<R> {
    rng: Rng,
    /// What packets pass.
    pub link: Link,
    /// How receivers acknowledge.
    pub acks: Acks,
    /// Who sends.
    pub senders: Vec<Sender<R>>,
    receivers: Vec<receiver::Receiver>,
    /// Packets sent.
    pub sent: u64,
    /// The time.
    pub now: Duration,
    events: Timeline<u64, Event>,
}

impl<R: Rule> Path<R> {
    /// A path of `rate` bytes per second, with a queue of one product that drops its tail.
    pub fn new(seed: u64, rate: u64, round: Duration, senders: Vec<Sender<R>>) -> Self {
        Self {
            rng: Rng::new(seed),
            link: Link::new(rate, round),
            acks: Acks::default(),
            senders,
            receivers: Vec::new(),
            sent: 0,
            now: Duration::ZERO,
            events: Timeline::default(),
        }
    }

    /// Packets that the path has dropped for want of room, in the queue or by the policer.
    pub fn dropped(&self) -> u64 {
        self.link.dropped()
    }

    /// Runs for so long; returns the bytes that each sender has delivered meanwhile.
    pub fn run(&mut self, time: Duration) -> Vec<u64> {
        let before: Vec<u64> = self.senders.iter().map(Sender::delivered).collect();
        self.receivers
            .resize_with(self.senders.len(), receiver::Receiver::default);
        for sender in 0..self.senders.len() {
            self.act(sender, ns(self.now));
        }
        let until = self.now + time;
        self.link.queue.begin(ns(self.now));
        while self.events.first().is_some_and(|at| at <= ns(until)) {
            let (at, event) = self.events.pop().expect("there is one");
            self.on_event(at, event);
        }
        self.link.queue.count(ns(until));
        self.now = until;
        let after = self.senders.iter().map(Sender::delivered);
        after.zip(before).map(|(to, from)| to - from).collect()
    }

    fn on_event(&mut self, now: u64, event: Event) {
        match event {
            Event::Transmitted => self.on_transmitted(now),
            Event::Arrives(to, arrival) => self.on_arrival(now, to, arrival),
            Event::AckDelayed(of) => {
                if self.receivers[of].is_delayed(now) {
                    self.acknowledge(now, of);
                }
            }
            Event::Acked(sender, count) => {
                let arrivals = self.receivers[sender].acknowledged(count);
                self.senders[sender].on_ack(now, arrivals);
                self.act(sender, now);
            }
            Event::Wake(sender) => {
                if self.senders[sender].on_wake(now) {
                    self.act(sender, now);
                }
            }
        }
    }

    /// Sends what window and pacer permit, and sets the timer.
    fn act(&mut self, sender: usize, now: u64) {
        while let Some(number) = self.senders[sender].send(now) {
            self.sent += 1;
            let is_ecn = self.senders[sender].is_ecn;
            let is_idle = self.link.offer(now, (sender, number), is_ecn);
            if is_idle {
                self.transmit(now);
            }
        }
        if let Some(at) = self.senders[sender].next_wake(now) {
            self.events.add(at, Event::Wake(sender));
        }
    }

    fn transmit(&mut self, now: u64) {
        if let Some(took) = self.link.transmit(now) {
            self.events.add(now + took, Event::Transmitted);
        }
    }

    fn on_transmitted(&mut self, now: u64) {
        let packet = self.link.transmitted();
        self.transmit(now);
        if self.link.loses(&mut self.rng) {
            return;
        }
        let arrival = receiver::Arrival {
            number: packet.number,
            is_marked: packet.is_marked,
        };
        match self.link.arrives(now, &mut self.rng) {
            at if at > now => self.events.add(at, Event::Arrives(packet.sender, arrival)),
            _ => self.on_arrival(now, packet.sender, arrival),
        }
    }

    fn on_arrival(&mut self, now: u64, to: usize, arrival: receiver::Arrival) {
        match self.receivers[to].on_arrival(now, arrival, &self.acks) {
            receiver::Reaction::Acknowledge => self.acknowledge(now, to),
            receiver::Reaction::Delay(until) => self.events.add(until, Event::AckDelayed(to)),
            receiver::Reaction::Wait => {}
        }
    }

    fn acknowledge(&mut self, now: u64, of: usize) {
        let round = self.link.round(now) + self.senders[of].further_ns;
        let (at, count) = self.receivers[of].acknowledge(now + round, &self.acks);
        self.events.add(at, Event::Acked(of, count));
    }
}
