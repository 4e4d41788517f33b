// SPDX-License-Identifier: Apache-2.0
//! Links that lose, delay, duplicate and reorder.

use posthaste_testkit::Rng;

/// One way of a link. Times are in milliseconds.
#[derive(Debug, Default)]
pub(super) struct Link {
    delay: u64,
    jitter: u32,
    /// Of 1000 packets.
    loss: u32,
    queue: usize,
    in_flight: Vec<u64>,
}

impl Link {
    pub(super) fn new(rng: &mut Rng) -> Self {
        Self {
            delay: 1 + rng.below(40),
            jitter: 1 + [0, 0, 3, 15][rng.below(4)],
            loss: [0, 1, 10, 50, 100][rng.below(5)],
            queue: 6 + rng.below(30),
            in_flight: Vec::new(),
        }
    }

    /// When the copies of a packet that is sent now arrive: none, one or two.
    pub(super) fn arrivals(&mut self, now: u64, rng: &mut Rng) -> [Option<u64>; 2] {
        self.in_flight.retain(|&at| at > now);
        if rng.below(1000) < self.loss || self.in_flight.len() >= self.queue {
            return [None; 2];
        }
        let at = now + self.delay + u64::from(rng.below(self.jitter));
        self.in_flight.push(at);
        let again = self.jitter > 1 && rng.once_in(50);
        [Some(at), again.then(|| at + rng.below(20))]
    }
}
