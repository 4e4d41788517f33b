// SPDX-License-Identifier: Apache-2.0
//! How long a transfer waits for a hop, by its round trip.
//!
//! Without an assumed bandwidth it is a number of round trips. Nodes that assume one begin with the
//! window that fills a round trip `d` at that rate, from the known window up to [`SEGMENTS_MAX`],
//! and spread it over the round trip. Acknowledgements spread later bytes likewise, at twice the
//! rate in each round. If the whole transfer takes `s` at the rate, and the window `w`,
//!
//! ```text
//! pace = k d + (s - (2^k - 1) w) / 2^k        with the least k for which (2^(k+1) - 1) w >= s
//! ```
//!
//! It never falls for a longer round trip. Nodes send a fifth faster than the rate, to detect more
//! bandwidth: then what fits the first window arrives up to a sixth sooner, and what is slightly
//! more waits a whole round trip for the first acknowledgement. This is the bound of both that does
//! not fall.

use super::{MICROS_MAX, Model, slow_start};
use crate::matrix::Link;

/// The largest window that fills a round trip: nodes set no larger one.
pub(super) const SEGMENTS_MAX: u32 = 1024;

/// The time for which a transfer of one size waits for hops that differ in their round trips only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Curve {
    /// Round trips before the first byte is sent.
    before: u64,
    /// Hops of at most this round trip, in microseconds, begin with the known window,
    known_up_to_us: u32,
    /// and so many round trips pass before the last one.
    known_rounds: u64,
    /// Sending time of the transfer at the assumed rate, in microseconds.
    sending_us: u64,
    /// Sending time of the largest window, in microseconds.
    window_max_us: u64,
}

impl Curve {
    pub(super) fn new(model: &Model, link: &Link, bytes: u64, before: u64) -> Self {
        let known = model.known_window(link);
        let (rounds, _) = slow_start(bytes, known, |_| {});
        let mut curve = Self {
            before,
            known_up_to_us: u32::MAX,
            known_rounds: rounds.into(),
            sending_us: 0,
            window_max_us: 0,
        };
        // Every hop begins with the known window then.
        let Some(assumed) = link.assumed else {
            return curve;
        };
        let largest = model.window_bytes(SEGMENTS_MAX);
        // Otherwise no window that fills a round trip is larger than the known one.
        if known < largest {
            let sending = |bytes| {
                let micros = u128::from(bytes) * 1_000_000 / u128::from(assumed.get());
                u64::try_from(micros).map_or(MICROS_MAX, |micros| micros.min(MICROS_MAX))
            };
            curve.known_up_to_us = u32::try_from(sending(known)).unwrap_or(u32::MAX);
            curve.sending_us = sending(bytes);
            curve.window_max_us = sending(largest);
        }
        curve
    }

    /// The number of round trips, if it is the same for every hop.
    pub fn rounds(&self) -> Option<u64> {
        (self.known_up_to_us == u32::MAX).then_some(self.before + self.known_rounds)
    }

    /// The time for a hop of this round trip, in microseconds.
    pub fn of(&self, rtt_us: u32) -> u64 {
        let rtt = u64::from(rtt_us);
        if rtt_us <= self.known_up_to_us {
            return (self.before + self.known_rounds) * rtt;
        }
        // The known window is smaller than both, so it is not zero.
        let window = rtt.min(self.window_max_us);
        // Mostly none or one iteration, and no division: a plan calls this a hundred million times.
        let (mut rounds, mut left, mut next) = (0u32, self.sending_us, window);
        while left > next {
            left -= next;
            next *= 2;
            rounds += 1;
        }
        // The rate has doubled in each round.
        (self.before + u64::from(rounds)) * rtt + (left >> rounds)
    }
}

#[cfg(test)]
mod tests {
    use std::num::{NonZeroU32, NonZeroU64};

    use super::*;

    const MS: u32 = 1000;

    /// The pace of a hop between nodes, in milliseconds.
    fn pace_ms(rtt_ms: u32, bytes: u64) -> f64 {
        let model = Model::default();
        let link = Link::of_nodes(rtt_ms * MS);
        let curve = model.curve(&link, bytes).unwrap();
        assert_eq!(curve.of(link.rtt_us), model.time_us(&link, bytes));
        (model.time_us(&link, bytes) - u64::from(link.rtt_us)) as f64 / 1e3
    }

    // promise: G5
    #[test]
    fn first_window_sending_time() {
        assert_eq!(pace_ms(50, 0), 0.0);
        assert_eq!(pace_ms(50, 125_000), 10.0);
        assert_eq!(pace_ms(50, 625_000), 50.0);
        assert_eq!(pace_ms(200, 625_000), 50.0);
    }

    #[test]
    fn rate_doubles_each_round() {
        assert_eq!(pace_ms(50, 750_000), 50.0 + 5.0);
        assert_eq!(pace_ms(50, 3 * 625_000), 50.0 + 50.0);
        assert_eq!(pace_ms(50, 3 * 625_000 + 500_000), 100.0 + 10.0);
    }

    #[test]
    fn windows_within_bounds() {
        // 14480 bytes are 1.16 ms at the rate.
        assert_eq!(pace_ms(1, 14_480), 0.0);
        assert_eq!(pace_ms(1, 7 * 14_480), 2.0);
        // 1024 segments are 118.6 ms: of 2 MB 517 KB are left, which take 20.7 ms.
        assert_eq!(pace_ms(300, 2_000_000), 300.0 + 20.69);
        let model = Model::default();
        let open = Link {
            window: NonZeroU32::new(2000),
            ..Link::of_nodes(100 * MS)
        };
        assert_eq!(model.time_us(&open, 2_896_000), 0);
        assert_eq!(model.time_us(&open, 2_896_001), u64::from(100 * MS));
    }

    #[test]
    fn open_hop_not_waited_for() {
        let model = Model::default();
        let cold = Link::of_nodes(50 * MS);
        let open = Link {
            window: NonZeroU32::new(10),
            ..cold
        };
        let time = |link| model.time_us(link, 500_000);
        assert_eq!(time(&cold), time(&open) + u64::from(50 * MS));
    }

    #[test]
    fn slow_link_takes_longer() {
        let model = Model::default();
        let thin = Link {
            rate: NonZeroU64::new(10_000_000),
            ..Link::of_nodes(50 * MS)
        };
        // 500 KB with headers at 10 Mbit/s.
        let pace = model.time_us(&thin, 500_000) - u64::from(50 * MS);
        assert_eq!(pace, 414_393);
    }

    #[test]
    fn longer_rtt_never_faster() {
        let model = Model::default();
        for assumed in [1, 999, 125_000, 1_234_567, 12_500_000, u32::MAX] {
            for bytes in [0, 1, 14_480, 14_481, 448_880, 3_000_000, 900_000_000] {
                let link = Link {
                    assumed: NonZeroU32::new(assumed),
                    ..Link::default()
                };
                let curve = model.curve(&link, bytes).unwrap();
                let short = (0..200_000).map(|rtt_us| curve.of(rtt_us));
                assert!(short.is_sorted(), "{assumed} bytes a second, {bytes} bytes");
                let long = (0..60_000_000).step_by(997).map(|rtt_us| curve.of(rtt_us));
                assert!(long.is_sorted(), "{assumed} bytes a second, {bytes} bytes");
            }
        }
    }
}
