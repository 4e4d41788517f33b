// SPDX-License-Identifier: Apache-2.0
//! Links and chance.

/// `SplitMix64`.
#[derive(Debug)]
pub(super) struct Rng(pub(super) u64);

impl Rng {
    /// A number below `bound`.
    pub(super) fn below(&mut self, bound: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        u32::try_from(mixed % u64::from(bound)).expect("it is below")
    }

    /// True once in `times`, on average.
    pub(super) fn once_in(&mut self, times: u32) -> bool {
        self.below(times) == 0
    }
}

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
            delay: u64::from(1 + rng.below(40)),
            jitter: 1 + [0, 0, 3, 15][rng.below(4) as usize],
            loss: [0, 1, 10, 50, 100][rng.below(5) as usize],
            queue: 6 + rng.below(30) as usize,
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
        [Some(at), again.then(|| at + u64::from(rng.below(20)))]
    }
}
