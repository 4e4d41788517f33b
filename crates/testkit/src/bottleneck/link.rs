// SPDX-License-Identifier: Apache-2.0
//! What the packets pass: a policer, a queue before a link whose rate and delay change, and losses.

use std::time::Duration;

use super::queue::{Packet, Queue};
use super::{NS_PER_S, PACKET, ns, product, time_for};
use crate::Rng;

const MILLION: u64 = 1_000_000;

/// Losses that the load of the path has no part in.
#[derive(Clone, Copy, Debug, Default)]
pub struct Loss {
    /// Packets lost in a million.
    per_million: u64,
    /// Packets lost in a row, on average (Gilbert's model); below 2: each by itself.
    burst: u64,
    is_bad: bool,
}

impl Loss {
    /// So many packets in a million, each by itself.
    pub fn random(per_million: u64) -> Self {
        Self::bursts(per_million, 1)
    }

    /// So many packets in a million, in bursts of so many on average.
    pub fn bursts(per_million: u64, burst: u64) -> Self {
        Self {
            per_million,
            burst,
            is_bad: false,
        }
    }

    fn loses(&mut self, rng: &mut Rng) -> bool {
        if self.per_million == 0 {
            return false;
        }
        if self.burst < 2 {
            return rng.below(MILLION) < self.per_million;
        }
        // The chance to begin makes the average right: p = begin / (begin + end).
        let changes = if self.is_bad {
            rng.once_in(self.burst)
        } else {
            rng.below((MILLION - self.per_million) * self.burst) < self.per_million
        };
        self.is_bad ^= changes;
        self.is_bad
    }
}

/// A token bucket that drops what it has no tokens for.
#[derive(Clone, Copy, Debug)]
pub struct Policer {
    rate: u64,
    burst: u64,
    /// Tokens in bytes times nanoseconds per second, so that no part is lost.
    tokens: u128,
    filled_ns: u64,
    dropped: u64,
}

impl Policer {
    /// One that lets `rate` bytes per second pass, and `burst` bytes at once.
    pub fn new(rate: u64, burst: u64) -> Self {
        Self {
            rate,
            burst,
            tokens: u128::from(burst) * u128::from(NS_PER_S),
            filled_ns: 0,
            dropped: 0,
        }
    }

    fn passes(&mut self, now: u64) -> bool {
        let most = u128::from(self.burst) * u128::from(NS_PER_S);
        let new = u128::from(self.rate) * u128::from(now - self.filled_ns);
        self.filled_ns = now;
        self.tokens = most.min(self.tokens + new);
        let cost = u128::from(PACKET) * u128::from(NS_PER_S);
        let passes = self.tokens >= cost;
        if passes {
            self.tokens -= cost;
        } else {
            self.dropped += 1;
        }
        passes
    }
}

/// The path's link.
#[derive(Debug)]
pub struct Link {
    /// Bytes per second from a time on.
    pub rates: Vec<(Duration, u64)>,
    /// The round-trip time without a queue, from a time on.
    pub rounds: Vec<(Duration, Duration)>,
    /// What waits for the link.
    pub queue: Queue,
    /// What limits the rate before the queue.
    pub policer: Option<Policer>,
    /// Losses behind the queue.
    pub loss: Loss,
    /// The longest further delay of a packet, which does not overtake others.
    pub jitter: Duration,
    /// Packets in a thousand that others overtake, and for how long.
    pub reordered: (u64, Duration),
    in_service: Option<Packet>,
    last_arrival_ns: u64,
}

impl Link {
    pub(super) fn new(rate: u64, round: Duration) -> Self {
        Self {
            rates: vec![(Duration::ZERO, rate)],
            rounds: vec![(Duration::ZERO, round)],
            queue: Queue::of_bytes(product(rate, round)),
            policer: None,
            loss: Loss::default(),
            jitter: Duration::ZERO,
            reordered: (0, Duration::ZERO),
            in_service: None,
            last_arrival_ns: 0,
        }
    }

    pub(super) fn dropped(&self) -> u64 {
        self.queue.dropped + self.policer.map_or(0, |policer| policer.dropped)
    }

    /// The round-trip time without a queue at a time.
    pub(super) fn round(&self, now: u64) -> u64 {
        at(&self.rounds, now).map_or(0, ns)
    }

    /// A packet comes. Whether the link is idle and has something to transmit.
    pub(super) fn offer(&mut self, now: u64, (sender, number): (usize, u64), is_ecn: bool) -> bool {
        if self.policer.as_mut().is_some_and(|one| !one.passes(now)) {
            return false;
        }
        self.queue.add(Packet {
            sender,
            number,
            added_ns: now,
            is_ecn,
            is_marked: false,
        }) && self.in_service.is_none()
    }

    /// Takes the next packet from the queue; returns how long its transmission takes.
    pub(super) fn transmit(&mut self, now: u64) -> Option<u64> {
        self.in_service = self.queue.take(now);
        self.in_service.as_ref()?;
        Some(time_for(PACKET, at(&self.rates, now).unwrap_or(0)))
    }

    /// The packet whose transmission has ended.
    pub(super) fn transmitted(&mut self) -> Packet {
        self.in_service.take().expect("the link transmits")
    }

    pub(super) fn loses(&mut self, rng: &mut Rng) -> bool {
        self.loss.loses(rng)
    }

    /// When a packet that is transmitted now arrives.
    pub(super) fn arrives(&mut self, now: u64, rng: &mut Rng) -> u64 {
        if self.reordered.0 > 0 && rng.below(1000_u64) < self.reordered.0 {
            return now + ns(self.reordered.1);
        }
        let jitter = ns(self.jitter);
        if jitter > 0 {
            self.last_arrival_ns = self.last_arrival_ns.max(now + rng.below(jitter));
            return self.last_arrival_ns;
        }
        now
    }
}

/// What holds at a time.
fn at<T: Copy>(schedule: &[(Duration, T)], now: u64) -> Option<T> {
    let begun = schedule.iter().rev().find(|(from, _)| ns(*from) <= now);
    begun.map(|(_, value)| *value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_come_as_often_as_configured() {
        for (per_million, burst) in [(10_000, 1), (50_000, 1), (10_000, 8), (50_000, 4)] {
            let mut loss = Loss::bursts(per_million, burst);
            let mut rng = Rng::new(1);
            let all: Vec<bool> = (0..400_000).map(|_| loss.loses(&mut rng)).collect();
            let lost = all.iter().filter(|one| **one).count();
            let bursts = all.windows(2).filter(|two| !two[0] && two[1]).count();
            let share = lost as f64 / 0.4 / per_million as f64;
            let length = lost as f64 / bursts as f64 / burst as f64;
            assert!(
                (0.9..1.1).contains(&share),
                "{per_million}, {burst}: {share}"
            );
            assert!(
                (0.9..1.1).contains(&length),
                "{per_million}, {burst}: {length}"
            );
        }
    }

    #[test]
    fn policer_passes_its_rate_and_a_burst() {
        let mut policer = Policer::new(125_000, 10 * PACKET);
        // Twice the rate for 10 s: 1000 packets by the rate, and the burst.
        let passed = (0..2000).filter(|n| policer.passes(n * 5_000_000)).count();
        assert!((1008..=1011).contains(&passed), "{passed}");
        assert_eq!(policer.dropped, 2000 - passed as u64);
    }
}
