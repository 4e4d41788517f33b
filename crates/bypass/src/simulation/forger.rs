// SPDX-License-Identifier: Apache-2.0
//! Segments of one who sees none of the flow: any numbers, or a RST within the window.

use posthaste_testkit::Rng;

use crate::header::{Header, earlier};
use crate::machine::Pair;
use crate::tcp::MSS;

/// When it gives up, in milliseconds.
const LAST: u64 = 3000;

/// Forges segments in a quarter of the schedules, with random numbers of its own: the others are
/// what they were without it.
#[derive(Debug)]
pub(super) struct Forger {
    rng: Rng,
    at: u64,
}

impl Forger {
    /// One that begins at `start`, in milliseconds.
    pub(super) fn new(seed: u64, start: u64) -> Self {
        let mut rng = Rng::new(seed);
        let at = if rng.once_in(4) { start } else { u64::MAX };
        Self { rng, at }
    }

    /// When the next segment arrives, in milliseconds.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    /// A segment in the name of an end, if one is due.
    pub(super) fn segment(&mut self, now: u64, pair: &Pair) -> Option<(usize, Header)> {
        if now < self.at {
            return None;
        }
        let pause = 1 + self.rng.below(60);
        self.at = if now > LAST { u64::MAX } else { now + pause };
        let e = self.rng.below(2_usize);
        let data = &pair.directions[e];
        let rst = self.rng.once_in(2);
        let seq = if rst {
            let lowest = earlier(data.relay_ack, data.end_ack);
            let window = data.promised.wrapping_sub(lowest).max(1);
            lowest.wrapping_add(self.rng.below(window))
        } else {
            self.rng.below(u32::MAX)
        };
        // A guess that is right would end any connection.
        let is_right = [data.seen, data.relay_ack, data.end_ack].contains(&seq);
        let header = Header {
            seq,
            len: if rst { 0 } else { self.rng.below(2_u32) * MSS },
            fin: !rst && self.rng.once_in(3),
            rst,
            ack: self.rng.below(u32::MAX),
            window: u16::MAX,
            ts_val: self.rng.below(u32::MAX),
            ts_ecr: self.rng.below(u32::MAX),
            ..Header::default()
        };
        (!is_right).then_some((e, header))
    }
}
