// SPDX-License-Identifier: Apache-2.0
//! Senders that share a bottleneck: a rate that changes, a queue of limited length, loss at random.
//! Packets are the events; a schedule follows from its seed.

use std::collections::VecDeque;
use std::time::Duration;

use posthaste_testkit::{Rng, Timeline};

use super::*;

mod cubic;

use cubic::Cubic;

const PACKET: u64 = 1250;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Bytes per second of so many Mbit/s.
fn mbits(rate: u64) -> u64 {
    rate * 125_000
}

enum Rule {
    Own(Box<Control>),
    Cubic(Cubic),
}

/// A sender that always has something to send.
struct Sender {
    rule: Rule,
    starts: Duration,
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
}

impl Sender {
    fn new(rule: Rule, starts: Duration) -> Self {
        Self {
            rule,
            starts,
            outstanding: VecDeque::new(),
            next: 0,
            smoothed: ms(100),
            paced: starts,
            active: starts,
            delivered: 0,
        }
    }

    fn own(starts: Duration) -> Self {
        Self::new(Rule::Own(Box::new(Control::new(PACKET))), starts)
    }

    fn cubic(starts: Duration) -> Self {
        Self::new(Rule::Cubic(Cubic::default()), starts)
    }

    fn window(&self) -> u64 {
        match &self.rule {
            Rule::Own(control) => control.window(),
            Rule::Cubic(cubic) => cubic.window(),
        }
    }

    fn in_flight(&self) -> u64 {
        self.outstanding.len() as u64 * PACKET
    }

    /// Sends a packet if window and pacer permit; returns its number.
    fn send(&mut self, now: Duration) -> Option<u64> {
        if now < self.starts || self.in_flight() + PACKET > self.window() || now < self.paced {
            return None;
        }
        if let Rule::Own(control) = &mut self.rule {
            control.on_sent(now);
            // As the pacer of quinn-proto: 1.25 windows in a round trip.
            let step =
                self.smoothed.as_secs_f64() * PACKET as f64 / (control.window() as f64 * 1.25);
            self.paced = self.paced.max(now.saturating_sub(ms(2))) + Duration::from_secs_f64(step);
        }
        self.outstanding.push_back((self.next, now));
        self.active = now;
        self.next += 1;
        Some(self.next - 1)
    }

    fn on_ack(&mut self, number: u64, now: Duration) {
        let Some(place) = self.outstanding.iter().position(|one| one.0 == number) else {
            return;
        };
        let (_, sent) = self.outstanding.remove(place).unwrap();
        self.smoothed = (self.smoothed * 7 + (now - sent)) / 8;
        self.delivered += PACKET;
        self.active = now;
        // RFC 9002 §6.1.1: three packets behind it were acknowledged.
        let lost = self
            .outstanding
            .iter()
            .take_while(|one| one.0 + 3 <= number)
            .count();
        self.outstanding.drain(..lost);
        let in_flight = self.in_flight();
        match &mut self.rule {
            Rule::Own(control) => {
                control.on_ack(now, sent, PACKET);
                control.on_acks(now, in_flight, false);
                if lost > 0 {
                    control.on_loss(lost as u64 * PACKET, false);
                }
            }
            Rule::Cubic(cubic) => {
                if lost > 0 {
                    cubic.on_loss(now, sent);
                } else {
                    cubic.on_ack(now);
                }
            }
        }
    }

    /// Nothing was acknowledged for long: all is lost.
    fn on_time(&mut self, now: Duration) {
        if !self.outstanding.is_empty() && now > self.active + self.smoothed * 3 + ms(200) {
            let lost = self.in_flight();
            self.outstanding.clear();
            match &mut self.rule {
                Rule::Own(control) => control.on_loss(lost, false),
                Rule::Cubic(cubic) => cubic.on_loss(now, now),
            }
        }
    }
}

enum Event {
    Acked(usize, u64),
    Tick,
}

/// One bottleneck.
struct Path {
    rng: Rng,
    /// Bytes per second from a time on.
    rates: Vec<(Duration, u64)>,
    /// The round-trip time without a queue.
    round: Duration,
    queue_max: u64,
    /// Packets lost at random, in a thousand.
    loss: u64,
    senders: Vec<Sender>,
    free_at: Duration,
    sent: u64,
    dropped: u64,
    now: Duration,
    events: Timeline<Duration, Event>,
}

impl Path {
    fn new(seed: u64, rate: u64, round: Duration, senders: Vec<Sender>) -> Self {
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
    fn run(&mut self, time: Duration) -> Vec<u64> {
        let before: Vec<u64> = self.senders.iter().map(|one| one.delivered).collect();
        let until = self.now + time;
        while self.events.first().is_some_and(|at| at <= until) {
            let (at, event) = self.events.pop().unwrap();
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

/// The part of what the path can deliver that was, in percent.
fn percent(delivered: u64, rate: u64, time: Duration) -> u64 {
    delivered * 100 / product(rate, time)
}

/// A path of 100 Mbit/s and 100 ms with a queue of one product.
fn path(senders: Vec<Sender>) -> Path {
    Path::new(1, mbits(100), ms(100), senders)
}

#[test]
fn random_loss_costs_what_it_takes() {
    for (loss, least) in [(0, 96), (10, 95), (50, 90), (100, 83)] {
        let mut path = path(vec![Sender::own(ms(0))]);
        path.loss = loss;
        path.run(ms(3000));
        let (sent, dropped) = (path.sent, path.dropped);
        let got = percent(path.run(ms(8000))[0], mbits(100), ms(8000));
        assert!(got >= least, "{loss} in 1000 lost: {got} %");
        assert_eq!(path.dropped, dropped, "of {}", path.sent - sent);
    }
}

#[test]
fn start_overruns_a_queue_by_little() {
    let mut path = path(vec![Sender::own(ms(0))]);
    let got = percent(path.run(ms(2000))[0], mbits(100), ms(2000));
    assert!(got >= 65, "{got} %");
    assert!(
        path.dropped * 100 < path.sent * 2,
        "{} of {}",
        path.dropped,
        path.sent
    );
}

// promise: K23
#[test]
fn change_of_rate_followed_within_a_second() {
    let mut path = path(vec![Sender::own(ms(0))]);
    path.rates = vec![
        (ms(0), mbits(100)),
        (ms(7000), mbits(20)),
        (ms(11000), mbits(100)),
    ];
    path.run(ms(7000));
    let (sent, dropped) = (path.sent, path.dropped);
    path.run(ms(1000));
    let slow = percent(path.run(ms(3000))[0], mbits(20), ms(3000));
    path.run(ms(1000));
    let fast = percent(path.run(ms(1000))[0], mbits(100), ms(1000));
    assert!(slow >= 85 && fast >= 90, "{slow} % and {fast} %");
    let (sent, dropped) = (path.sent - sent, path.dropped - dropped);
    assert!(dropped * 100 < sent * 2, "{dropped} of {sent}");
}

// promise: K23
#[test]
fn fair_to_its_like() {
    for count in [2, 8] {
        let senders = (0..count).map(|place| Sender::own(ms(1000 * place)));
        let mut path = path(senders.collect());
        path.run(ms(1000 * count + 20_000));
        let dropped = path.dropped;
        let got = path.run(ms(15_000));
        let (least, most) = (got.iter().min().unwrap(), got.iter().max().unwrap());
        assert!(*most < least * 2, "{got:?}");
        assert_eq!(path.dropped, dropped);
    }
}

// promise: K23
#[test]
fn fair_to_cubic() {
    // The queue in halves of the product.
    for (own, cubic, rate, queue) in [
        (0, 5000, 100, 2),
        (5000, 0, 100, 2),
        (0, 5000, 100, 4),
        (0, 5000, 20, 2),
    ] {
        let senders = vec![Sender::own(ms(own)), Sender::cubic(ms(cubic))];
        let mut path = Path::new(1, mbits(rate), ms(100), senders);
        path.queue_max = path.queue_max * queue / 2;
        path.run(ms(12_000));
        let got = path.run(ms(40_000));
        let ratio = got[0] as f64 / got[1] as f64;
        assert!(
            (0.5..=2.0).contains(&ratio),
            "{rate} Mbit/s, queue {queue}: {ratio:.2}"
        );
    }
}

#[test]
fn loss_of_a_sixth_sends_less() {
    let mut path = path(vec![Sender::own(ms(0))]);
    path.loss = 300;
    path.run(ms(4000));
    let got = percent(path.run(ms(4000))[0], mbits(100), ms(4000));
    assert!(got < 60, "{got} %");
}
