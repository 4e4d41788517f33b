// SPDX-License-Identifier: Apache-2.0
//! Computes when packets leave a link. Pure arithmetic on virtual time.
//!
//! A [`Queue`] is one direction of a link. It rewrites packets if the link does, passes each
//! packet's arrival time through loss, then rate, then delay, and keeps the packet
//! until the resulting time. None of these lets packets overtake each other; then some are late, if the
//! link is so.
//!
//! Times are durations since the ferry began. Nothing here reads a clock.

use std::collections::VecDeque;
use std::time::Duration;

use super::{Emulation, Late, Rewrite};
use crate::rng::Rng;

/// Mean lateness of the ferry's wake-ups; subtracted from every delay to centre the error.
const WAKE_UP: Duration = Duration::from_micros(40);

/// Loses packets at random, reproducibly.
#[derive(Debug)]
struct Loss {
    probability: f64,
    random: Rng,
}

impl Loss {
    /// Whether the next packet is lost.
    fn loses(&mut self) -> bool {
        self.random.uniform() < self.probability
    }
}

/// Delays packets at random, reproducibly.
#[derive(Debug)]
struct Lateness {
    late: Late,
    random: Rng,
}

impl Lateness {
    /// By how much the next packet is late.
    fn next(&mut self) -> Duration {
        let is_late = self.random.uniform() < self.late.share;
        let part = if is_late { self.random.uniform() } else { 0.0 };
        self.late.at_most.mul_f64(part)
    }
}

/// Sends at a constant rate; packets beyond the limit are dropped at the tail.
#[derive(Debug)]
struct Rate {
    bits_per_second: u64,
    queue_bytes: u64,
    /// When the last accepted packet will have been sent.
    free: Duration,
}

impl Rate {
    fn sending_time(&self, bytes: u64) -> Duration {
        // 64 bits would overflow from 2.3 GB on.
        let nanos = u128::from(bytes) * 8 * 1_000_000_000 / u128::from(self.bits_per_second);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// Bytes not yet sent at `now`.
    fn backlog(&self, now: Duration) -> u64 {
        let nanos = self.free.saturating_sub(now).as_nanos();
        let bytes = nanos * u128::from(self.bits_per_second) / 8 / 1_000_000_000;
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    /// When a packet is sent; `None` when it is dropped.
    fn pass(&mut self, arrival: Duration, bytes: usize) -> Option<Duration> {
        let bytes = bytes as u64;
        // An idle link accepts any packet, however small its queue.
        let backlog = self.backlog(arrival);
        if backlog > 0 && backlog + bytes > self.queue_bytes {
            return None;
        }
        self.free = arrival.max(self.free) + self.sending_time(bytes);
        Some(self.free)
    }
}

/// One direction of a link: the packets in flight and when each is due at the other end.
#[derive(Debug)]
pub(super) struct Queue {
    properties: Properties,
    /// By the times at which they are due.
    waiting: VecDeque<(Duration, Vec<u8>)>,
    /// When the last packet was due that was not late.
    last: Duration,
    counts: Counts,
    seed: u64,
}

/// What a direction has been given so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Bytes of all packets.
    pub(super) bytes: u64,
    /// Packets lost or dropped.
    pub(super) dropped: u64,
    /// Those dropped by a full queue.
    pub(super) overflowed: u64,
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Arrives(Duration),
    Lost,
    Overflows,
}

/// How a direction treats packets, in this order.
#[derive(Debug)]
struct Properties {
    rewrite: Option<Rewrite>,
    loss: Option<Loss>,
    rate: Option<Rate>,
    delay: Duration,
    lateness: Option<Lateness>,
}

impl Properties {
    fn new(emulation: &Emulation, seed: u64) -> Self {
        Self {
            rewrite: emulation.rewrite,
            loss: (emulation.loss > 0.0).then(|| Loss {
                probability: emulation.loss,
                random: Rng::new(seed),
            }),
            rate: emulation.rate.map(|bits_per_second| Rate {
                bits_per_second,
                queue_bytes: emulation.queue_bytes,
                // The time in the past means an idle link: the first packet is sent at once.
                free: Duration::ZERO,
            }),
            delay: emulation.delay.saturating_sub(WAKE_UP),
            lateness: emulation.late.map(|late| Lateness {
                late,
                random: Rng::new(!seed),
            }),
        }
    }

    /// When a packet of `bytes` arrives at the other end, if it does. `now` never decreases.
    fn pass(&mut self, now: Duration, bytes: usize) -> Fate {
        if self.loss.as_mut().is_some_and(Loss::loses) {
            return Fate::Lost;
        }
        let sent = self
            .rate
            .as_mut()
            .map_or(Some(now), |rate| rate.pass(now, bytes));
        sent.map_or(Fate::Overflows, |sent| Fate::Arrives(sent + self.delay))
    }
}

impl Queue {
    /// A direction with the properties of `emulation`; `seed` determines its losses.
    pub(super) fn new(emulation: &Emulation, seed: u64) -> Self {
        Self {
            properties: Properties::new(emulation, seed),
            waiting: VecDeque::new(),
            last: Duration::ZERO,
            counts: Counts::default(),
            seed,
        }
    }

    /// Applies new properties to later packets. None overtakes an earlier one.
    pub(super) fn change(&mut self, emulation: &Emulation) {
        // The rate limiter begins idle again: packets that wait keep the times they have.
        self.properties = Properties::new(emulation, self.seed);
    }

    /// Adds a packet at `now`.
    pub(super) fn push(&mut self, now: Duration, packet: Vec<u8>) {
        let parts = match self.properties.rewrite {
            Some(rewrite) => rewrite(packet),
            None => vec![packet],
        };
        for part in parts {
            let fate = self.properties.pass(now, part.len());
            self.counts.bytes += part.len() as u64;
            self.counts.overflowed += u64::from(fate == Fate::Overflows);
            match fate {
                Fate::Arrives(due) => self.insert(due, part),
                Fate::Lost | Fate::Overflows => self.counts.dropped += 1,
            }
        }
    }

    fn insert(&mut self, due: Duration, packet: Vec<u8>) {
        // Also after a change to a shorter delay.
        self.last = self.last.max(due);
        let lateness = self.properties.lateness.as_mut();
        let due = self.last + lateness.map_or(Duration::ZERO, Lateness::next);
        let place = self.waiting.partition_point(|(other, _)| *other <= due);
        self.waiting.insert(place, (due, packet));
    }

    /// The next packet that is due at `now`, with the time it was due.
    pub(super) fn pop_ready(&mut self, now: Duration) -> Option<(Duration, Vec<u8>)> {
        if self.next_wake()? > now {
            return None;
        }
        self.waiting.pop_front()
    }

    /// When the next packet is due.
    pub(super) fn next_wake(&self) -> Option<Duration> {
        self.waiting.front().map(|(due, _)| *due)
    }

    /// What it has been given so far.
    pub(super) fn counts(&self) -> Counts {
        self.counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn emulation(delay_ms: u32) -> Emulation {
        Emulation {
            delay: MS * delay_ms + WAKE_UP,
            rate: None,
            queue_bytes: 3000,
            loss: 0.0,
            late: None,
            rewrite: None,
        }
    }

    fn due_times(queue: &mut Queue) -> Vec<Duration> {
        std::iter::from_fn(|| queue.pop_ready(Duration::MAX))
            .map(|(due, _)| due)
            .collect()
    }

    #[test]
    fn packet_due_after_delay() {
        let mut queue = Queue::new(&emulation(25), 1);
        queue.push(MS, vec![7; 100]);
        assert_eq!(queue.next_wake(), Some(MS * 26));
        assert_eq!(queue.pop_ready(MS * 26 - Duration::from_nanos(1)), None);
        assert_eq!(queue.pop_ready(MS * 26), Some((MS * 26, vec![7; 100])));
        assert_eq!(queue.next_wake(), None);
    }

    #[test]
    fn limited_link_serializes() {
        // 1000 bytes at 8 Mbit/s take one millisecond.
        let mut queue = Queue::new(
            &Emulation {
                rate: Some(8_000_000),
                ..emulation(10)
            },
            1,
        );
        for _ in 0..3 {
            queue.push(Duration::ZERO, vec![0; 1000]);
        }
        queue.push(MS * 20, vec![0; 500]);
        let expected = [MS * 11, MS * 12, MS * 13, MS * 30 + MS / 2];
        assert_eq!(due_times(&mut queue), expected);
    }

    #[test]
    fn some_packets_are_late() {
        let late = Late {
            share: 0.25,
            at_most: MS * 4,
        };
        let some = Emulation {
            late: Some(late),
            ..emulation(10)
        };
        let mut queue = Queue::new(&some, 1);
        for number in 0..1000 {
            queue.push(MS * number, number.to_le_bytes().to_vec());
        }
        let (mut before, mut overtaken) = (0, 0);
        while let Some((due, packet)) = queue.pop_ready(Duration::MAX) {
            let number = u32::from_le_bytes(packet.try_into().unwrap());
            let usual = MS * (number + 10);
            assert!((usual..usual + late.at_most).contains(&due));
            overtaken += u32::from(number < before);
            before = number;
        }
        assert!((150..250).contains(&overtaken), "{overtaken}");
    }

    #[test]
    fn full_queue_drops_tail() {
        let mut queue = Queue::new(
            &Emulation {
                rate: Some(8_000_000),
                ..emulation(0)
            },
            1,
        );
        for _ in 0..5 {
            queue.push(Duration::ZERO, vec![0; 1000]);
        }
        assert_eq!(queue.counts().dropped, 2);
        // Half a millisecond later half a packet has left: a small one fits again, a large one does
        // not.
        queue.push(MS / 2, vec![0; 1000]);
        queue.push(MS / 2, vec![0; 500]);
        assert_eq!(queue.counts().dropped, 3);
        assert_eq!(due_times(&mut queue).len(), 4);
    }

    #[test]
    fn idle_link_sends_large_packet() {
        let tiny = Emulation {
            rate: Some(8_000_000),
            queue_bytes: 10,
            ..emulation(0)
        };
        let mut queue = Queue::new(&tiny, 1);
        queue.push(Duration::ZERO, vec![0; 1000]);
        assert_eq!(due_times(&mut queue), [MS]);
    }

    #[test]
    fn loss_rate_by_seed() {
        let lost = |seed| {
            let mut queue = Queue::new(
                &Emulation {
                    loss: 0.03,
                    ..emulation(0)
                },
                seed,
            );
            (0..100_000)
                .filter(|_| {
                    let before = queue.counts().dropped;
                    queue.push(Duration::ZERO, Vec::new());
                    queue.counts().dropped > before
                })
                .collect::<Vec<_>>()
        };
        let first = lost(1);
        assert!((2_800..3_200).contains(&first.len()), "{}", first.len());
        assert_eq!(first, lost(1));
        assert_ne!(first, lost(2));
    }

    #[test]
    fn loss_of_all_or_none() {
        for (probability, kept) in [(0.0, 1000), (1.0, 0)] {
            let random = Rng::new(5);
            let mut loss = Loss {
                probability,
                random,
            };
            assert_eq!((0..1000).filter(|_| !loss.loses()).count(), kept);
        }
    }

    #[test]
    fn lost_packet_takes_no_rate() {
        let all = Emulation {
            loss: 1.0,
            rate: Some(8_000_000),
            ..emulation(0)
        };
        let mut queue = Queue::new(&all, 1);
        for _ in 0..10 {
            queue.push(Duration::ZERO, vec![0; 1000]);
        }
        assert_eq!((queue.counts().dropped, queue.next_wake()), (10, None));
    }
}
