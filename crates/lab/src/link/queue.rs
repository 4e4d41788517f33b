// SPDX-License-Identifier: Apache-2.0
//! Computes when packets leave a link. Pure arithmetic on virtual time.
//!
//! A [`Queue`] is one direction of a link. It fragments packets that are too long, passes each
//! packet's arrival time through its stages, Loss, then Rate, then Delay, and keeps the packet
//! until the resulting time. No stage lets packets overtake each other, so only the head of the
//! queue can be due.
//!
//! Times are durations since the ferry began. Nothing here reads a clock.

use std::collections::VecDeque;
use std::time::Duration;

use super::Emulation;
use super::fragment::Splitter;
use crate::rng::scramble;

/// Mean lateness of the ferry's wake-ups; subtracted from every delay to centre the error.
const WAKE_UP: Duration = Duration::from_micros(40);

/// One property of a link direction: maps the time a packet arrives to the time it leaves.
pub trait Stage: Send + std::fmt::Debug {
    /// When a packet of `bytes` leaves; `None` when it is lost. `arrival` never decreases.
    fn pass(&mut self, arrival: Duration, bytes: usize) -> Option<Duration>;
}

/// Loses packets at random, reproducibly.
#[derive(Debug)]
pub struct Loss {
    /// A packet is lost when the next random number is below this.
    threshold: u64,
    state: u64,
}

impl Loss {
    /// Loses with `probability` (0 to 1), in a sequence given by `seed`.
    pub fn new(probability: f64, seed: u64) -> Self {
        let scale = 2f64.powi(53);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a probability times 2^53 is a whole number in range"
        )]
        let threshold = (probability.clamp(0.0, 1.0) * scale) as u64;
        // Similar seeds must not give similar sequences; and zero would stay zero.
        Self {
            threshold,
            state: scramble(seed).max(1),
        }
    }

    fn next(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state >> 11
    }
}

impl Stage for Loss {
    fn pass(&mut self, arrival: Duration, _bytes: usize) -> Option<Duration> {
        (self.next() >= self.threshold).then_some(arrival)
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
}

impl Stage for Rate {
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

/// Delays every packet by the same time.
#[derive(Debug)]
struct Delay(Duration);

impl Stage for Delay {
    fn pass(&mut self, arrival: Duration, _bytes: usize) -> Option<Duration> {
        Some(arrival + self.0)
    }
}

/// One direction of a link: the packets in flight and when each is due at the other end.
#[derive(Debug)]
pub struct Queue {
    splitter: Option<Splitter>,
    stages: Vec<Box<dyn Stage>>,
    waiting: VecDeque<(Duration, Vec<u8>)>,
    dropped: u64,
    seed: u64,
}

impl Queue {
    /// A direction with the properties of `emulation`; `seed` determines its losses.
    pub fn new(emulation: &Emulation, seed: u64) -> Self {
        Self {
            splitter: emulation.fragment_bytes.map(Splitter::new),
            stages: Self::stages(emulation, seed),
            waiting: VecDeque::new(),
            dropped: 0,
            seed,
        }
    }

    /// Applies new properties to later packets. None overtakes an earlier one.
    pub fn change(&mut self, emulation: &Emulation) {
        self.splitter = emulation.fragment_bytes.map(Splitter::new);
        self.stages = Self::stages(emulation, self.seed);
    }

    fn stages(emulation: &Emulation, seed: u64) -> Vec<Box<dyn Stage>> {
        let mut stages: Vec<Box<dyn Stage>> = Vec::new();
        if emulation.loss > 0.0 {
            stages.push(Box::new(Loss::new(emulation.loss, seed)));
        }
        if let Some(bits_per_second) = emulation.rate {
            let queue_bytes = emulation.queue_bytes;
            stages.push(Box::new(Rate {
                bits_per_second,
                queue_bytes,
                // The time in the past means an idle link: the first packet is sent at once.
                free: Duration::ZERO,
            }));
        }
        stages.push(Box::new(Delay(emulation.delay.saturating_sub(WAKE_UP))));
        stages
    }

    /// Adds a packet at `now`.
    pub fn push(&mut self, now: Duration, packet: Vec<u8>) {
        match &mut self.splitter {
            Some(splitter) => {
                for fragment in splitter.split(packet) {
                    self.enqueue(now, fragment);
                }
            }
            None => self.enqueue(now, packet),
        }
    }

    fn enqueue(&mut self, now: Duration, packet: Vec<u8>) {
        let bytes = packet.len();
        let due = self
            .stages
            .iter_mut()
            .try_fold(now, |time, stage| stage.pass(time, bytes));
        match due {
            Some(due) => self.waiting.push_back((due, packet)),
            None => self.dropped += 1,
        }
    }

    /// The next packet that is due at `now`, with the time it was due.
    pub fn pop_ready(&mut self, now: Duration) -> Option<(Duration, Vec<u8>)> {
        if self.next_wake()? > now {
            return None;
        }
        self.waiting.pop_front()
    }

    /// When the next packet is due.
    pub fn next_wake(&self) -> Option<Duration> {
        self.waiting.front().map(|(due, _)| *due)
    }

    /// Packets lost or dropped so far.
    pub fn dropped(&self) -> u64 {
        self.dropped
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
            fragment_bytes: None,
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
        assert_eq!(queue.dropped(), 2);
        // Half a millisecond later half a packet has left: a small one fits again, a large one does
        // not.
        queue.push(MS / 2, vec![0; 1000]);
        queue.push(MS / 2, vec![0; 500]);
        assert_eq!(queue.dropped(), 3);
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
                    let before = queue.dropped();
                    queue.push(Duration::ZERO, Vec::new());
                    queue.dropped() > before
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
            let mut loss = Loss::new(probability, 5);
            let passed = (0..1000).filter_map(|_| loss.pass(MS, 1)).count();
            assert_eq!(passed, kept);
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
        assert_eq!((queue.dropped(), queue.next_wake()), (10, None));
    }
}
