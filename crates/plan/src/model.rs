// SPDX-License-Identifier: Apache-2.0
//! The model of a transfer's time over a chain, for planning and for comparison with measurements.
//!
//! The time from the client's SYN until it has the last byte of an answer of `S` bytes is
//!
//! ```text
//! T = sum(length_i) + sum(cost_n) + max(time_i(S))       over hops i and nodes n
//! ```
//!
//! * `length_i` is what every byte spends on a hop, there and back: its round-trip time `d_i` in
//!   early mode, and `2 d_i` in strict and late mode, in which handshakes follow one another.
//! * `time_i(S) = wait_i + pace_i(S)` is what the transfer would wait for that hop alone.
//!   The hops work at the same time, so only the slowest counts.
//! * `wait_i` is the handshake of a cold hop in early mode, `d_i`: all handshakes overlap with the
//!   request, and only the longest delays it. Warm hops are open.
//! * `pace_i(S)` is the time from the first byte to the last. The sender of a hop may send a window
//!   of segments, and twice as much in each following round trip: every round but the last takes
//!   `d_i`, or the window's sending time at the link's rate if that is longer, and the last takes
//!   its sending time. A cold hop begins with the initial window, a warm one with the window it has
//!   grown to. Between nodes that assume a bandwidth, both begin with the window that fills a round
//!   trip at that rate, and send at most twice as fast in each round trip ([`curve`]). Where
//!   packets are lost, the pace is bounded by congestion control, or losses are repaired after the
//!   last byte ([`Congestion`]).
//!
//! **Sources.** With `X_i` the one-way delay of a hop, `D` of the way, no loss and rates that do not
//! matter, early mode is the published model: `2D + 2 max(X_i)` to the first byte (equation 2 of the
//! Miniproxy paper, HotMiddlebox 2016), and `k` rounds of `2 max(X_i)` more to the last (equations 8
//! and 10); `T = sum(d_i) + K max(d_i)` with `K = k + 1` rounds. The chain planning of MOSTO (JSAC
//! 2017, section III-B) has `K - 1` for `K`: it counts from the first data packet, without the
//! handshake. Strict and late modes take `4D` to the first byte, and slow start is split
//! as in early mode. Loss and rate are the open problem of that paper's section VI.
//!
//! **Access links.** Client and server links are hops, too, which no plan can change: `max`
//! includes them, and a chain must not be lengthened for hops that are faster than these.
//!
//! **Limits.** Round trips are assumed constant: no queues, no delayed acknowledgements, no early
//! end of slow start. The longest handshake and the slowest pace are assumed to be of the same hop,
//! as in the published model.

mod curve;
mod loss;

pub use curve::Curve;
pub use loss::Congestion;

use crate::matrix::Link;

/// A bound above any transfer, 30 years: some tens of them can still be added up.
const MICROS_MAX: u64 = 1_000_000_000_000_000;

/// When a node answers the node before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// At once, while it opens the next hop.
    #[default]
    Early,
    /// After the server has answered.
    Strict,
    /// At once; it opens the next hop when this one is open.
    Late,
}

/// The parameters of nodes and senders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Model {
    /// When nodes answer.
    pub mode: Mode,
    /// The reaction of senders to loss.
    pub congestion: Congestion,
    /// Segments that a sender may send in the first round of a cold hop, at least one.
    pub initial_window: u32,
    /// Bytes of content in a full packet, at least one.
    pub segment_bytes: u32,
    /// Bytes of headers in a packet, which take sending time at the link's rate.
    pub header_bytes: u32,
}

impl Default for Model {
    /// Early mode, hops with the product's congestion control, ten segments (RFC 6928) in packets of 1500 bytes with the headers of
    /// IPv4 and of TCP with timestamps.
    fn default() -> Self {
        Self {
            mode: Mode::Early,
            congestion: Congestion::default(),
            initial_window: 10,
            segment_bytes: 1448,
            header_bytes: 52,
        }
    }
}

impl Model {
    /// The contribution of a hop over `link` to the time of every transfer, in microseconds.
    pub fn length_us(&self, link: &Link) -> u64 {
        match self.mode {
            Mode::Early => u64::from(link.rtt_us),
            Mode::Strict | Mode::Late => 2 * u64::from(link.rtt_us),
        }
    }

    /// How long a transfer of `bytes` would wait for a hop over `link` if it were the slowest, in
    /// microseconds.
    ///
    /// Never falls for a longer round trip, all else equal: so planning can compare round-trip
    /// times of links that differ in nothing else.
    pub fn time_us(&self, link: &Link, bytes: u64) -> u64 {
        self.wait_us(link) + self.pace_us(link, bytes)
    }

    /// How long a transfer of `bytes` would wait for a hop over `link`, as a function of the
    /// round-trip time, if it depends on nothing else.
    pub fn curve(&self, link: &Link, bytes: u64) -> Option<Curve> {
        if link.loss_ppm > 0 || link.rate.is_some() {
            return None;
        }
        // The wait is a multiple of the round trip; for one microsecond it is the factor.
        let trips = self.wait_us(&Link { rtt_us: 1, ..*link });
        Some(Curve::new(self, link, bytes, trips))
    }

    /// How long a transfer of `bytes` takes over consecutive hops, in microseconds, if their nodes
    /// cost `costs_us` in total. For zero bytes: the time to the first byte.
    pub fn transfer_us<'a>(
        &self,
        hops: impl Iterator<Item = &'a Link> + Clone,
        costs_us: u64,
        bytes: u64,
    ) -> u64 {
        let length: u64 = hops.clone().map(|hop| self.length_us(hop)).sum();
        let slowest = hops.map(|hop| self.time_us(hop, bytes)).max();
        length + costs_us + slowest.unwrap_or(0)
    }

    /// The rounds of slow start for `bytes`, from a window of `segments`; zero bytes take one.
    pub fn rounds(&self, bytes: u64, segments: u32) -> u32 {
        let (rounds, _) = slow_start(bytes, self.window_bytes(segments), |_| {});
        // `slow_start` counts full windows; the last round carries what is left.
        rounds + 1
    }

    /// The most bytes that `rounds` rounds of slow start carry on a cold hop.
    pub fn bytes_in(&self, rounds: u32) -> u64 {
        // Windows double, so `k` rounds carry 2^k - 1 first windows.
        let windows = 1u64.checked_shl(rounds).map_or(u64::MAX, |end| end - 1);
        windows.saturating_mul(self.window_bytes(self.initial_window))
    }

    fn wait_us(&self, link: &Link) -> u64 {
        // In the other modes handshakes follow one another, and are in the length of each hop.
        match (self.mode, link.window) {
            (Mode::Early, None) => u64::from(link.rtt_us),
            _ => 0,
        }
    }

    fn pace_us(&self, link: &Link, bytes: u64) -> u64 {
        let mut time = 0;
        let round = |window| time += self.sending_us(link, window).max(link.rtt_us.into());
        let (_, left) = slow_start(bytes, self.first_window(link), round);
        let slow_start = time + self.sending_us(link, left);
        let assumed = match link.assumed {
            Some(_) => Curve::new(self, link, bytes, 0).of(link.rtt_us),
            None => 0,
        };
        // Each is a bound on the rate, and the lowest rate decides.
        let lossy = self.congestion.pace_us(self, link, bytes);
        let repair = self.congestion.repair_us(self, link, bytes);
        slow_start.max(assumed).max(lossy) + repair
    }

    /// The initial window of a flow, in bytes.
    fn first_window(&self, link: &Link) -> u64 {
        let known = self.known_window(link);
        let filling = link.assumed.map_or(0, |assumed| {
            // Both have 32 bits, so their product fits.
            u64::from(assumed.get()) * u64::from(link.rtt_us) / 1_000_000
        });
        // Nodes set no window beyond that bound; one that a connection has grown to may be.
        known.max(filling.min(self.window_bytes(curve::SEGMENTS_MAX)))
    }

    /// The least initial window of a flow, in bytes, whatever the round trip.
    fn known_window(&self, link: &Link) -> u64 {
        self.window_bytes(link.window.map_or(self.initial_window, u32::from))
    }

    fn window_bytes(&self, segments: u32) -> u64 {
        // At least 1: a window of 0 never doubles, and slow start would not end.
        u64::from(segments.max(1)) * u64::from(self.segment_bytes.max(1))
    }

    /// The link's sending time for so many bytes of content and their headers, in microseconds.
    fn sending_us(&self, link: &Link, bytes: u64) -> u64 {
        let Some(rate) = link.rate else { return 0 };
        // In 128 bits: the largest transfer times eight million does not fit 64.
        let packets = bytes.div_ceil(u64::from(self.segment_bytes.max(1)));
        let on_the_wire = u128::from(bytes) + u128::from(packets) * u128::from(self.header_bytes);
        let micros = on_the_wire * 8_000_000 / u128::from(rate.get());
        u64::try_from(micros).map_or(MICROS_MAX, |micros| micros.min(MICROS_MAX))
    }
}

/// Calls `round` with the bytes of every full window, starting with `window`, while more are left;
/// returns the number of rounds and the bytes of the last one.
fn slow_start(bytes: u64, mut window: u64, mut round: impl FnMut(u64)) -> (u32, u64) {
    let (mut rounds, mut left) = (0, bytes);
    while left > window {
        round(window);
        rounds += 1;
        left -= window;
        window = window.saturating_mul(2);
    }
    (rounds, left)
}

#[cfg(test)]
mod tests {
    use std::num::{NonZeroU32, NonZeroU64};

    use super::*;

    const MS: u32 = 1000;

    fn hops(rtts_ms: &[u32]) -> Vec<Link> {
        rtts_ms.iter().map(|rtt| Link::of_rtt(rtt * MS)).collect()
    }

    fn ms(model: &Model, hops: &[Link], bytes: u64) -> f64 {
        model.transfer_us(hops.iter(), 0, bytes) as f64 / 1e3
    }

    // promise: G5
    #[test]
    fn published_first_byte_times() {
        let model = Model::default();
        let times = [hops(&[100]), hops(&[50, 50]), hops(&[25, 25, 25, 25])]
            .map(|hops| ms(&model, &hops, 0));
        assert_eq!(times, [200.0, 150.0, 125.0]);
    }

    // promise: G5
    #[test]
    fn the_published_rounds() {
        let model = Model::default();
        for (kilobytes, rounds) in [(15, 2), (14, 1), (448, 5), (14_813, 10)] {
            assert_eq!(model.rounds(kilobytes * 1000, 10), rounds, "{kilobytes} KB");
        }
        assert_eq!(model.rounds(model.bytes_in(5), 10), 5);
        assert_eq!(model.rounds(model.bytes_in(5) + 1, 10), 6);
        assert_eq!(model.rounds(0, 10), 1);
        // T = sum(d_i) + K max(d_i)
        assert_eq!(ms(&model, &hops(&[30, 40, 50]), model.bytes_in(5)), 370.0);
    }

    #[test]
    fn strict_and_late_slow_start() {
        for mode in [Mode::Strict, Mode::Late] {
            let model = Model {
                mode,
                ..Model::default()
            };
            assert_eq!(ms(&model, &hops(&[50, 50]), 0), 200.0);
            assert_eq!(ms(&model, &hops(&[50, 50]), 25_000), 250.0);
        }
    }

    #[test]
    fn warm_hop_window() {
        let model = Model::default();
        let warm = Link {
            window: NonZeroU32::new(100),
            ..Link::of_rtt(92 * MS)
        };
        let hops = [Link::of_rtt(4 * MS), warm, Link::of_rtt(4 * MS)];
        assert_eq!(ms(&model, &hops, 0), 104.0);
        assert_eq!(ms(&model, &hops, 100_000), 100.0 + 4.0 + 8.0);
        assert_eq!(ms(&model, &hops, 200_000), 100.0 + 92.0);
    }

    #[test]
    fn the_rate_bounds_every_round() {
        // 14480 bytes in 10 packets of 1500 bytes take 15 ms at 8 Mbit/s.
        let slow = [Link {
            rate: NonZeroU64::new(8_000_000),
            ..Link::of_rtt(10 * MS)
        }];
        let model = Model::default();
        assert_eq!(ms(&model, &slow, 14_480), 20.0 + 15.0);
        assert_eq!(ms(&model, &slow, 2 * 14_480), 20.0 + 30.0);
        let nodes_cost = model.transfer_us(slow.iter(), 700, 14_480);
        assert_eq!(nodes_cost, 35_700);
    }

    #[test]
    fn longer_rtt_never_faster() {
        for congestion in Congestion::ALL {
            for (loss_ppm, rate) in [
                (0, None),
                (500, None),
                (20_000, NonZeroU64::new(10_000_000)),
            ] {
                let model = Model {
                    congestion,
                    ..Model::default()
                };
                let time = |rtt_us| {
                    let link = Link {
                        rtt_us,
                        loss_ppm,
                        rate,
                        ..Link::default()
                    };
                    model.time_us(&link, 3_000_000)
                };
                let times: Vec<u64> = (0..400_000).step_by(997).map(time).collect();
                assert!(times.is_sorted(), "{congestion:?} {loss_ppm} ppm");
            }
        }
    }

    #[test]
    fn lossless_unlimited_curve() {
        let model = Model::default();
        for bytes in [0, 1, 100_000, 10_000_000] {
            for window in [None, NonZeroU32::new(50)] {
                for assumed in [None, Some(crate::matrix::INITIAL_BANDWIDTH)] {
                    let common = Link {
                        window,
                        assumed,
                        ..Link::default()
                    };
                    let curve = model.curve(&common, bytes).unwrap();
                    for rtt_us in [0, 777, 1158, 1159, 50_000, 400_000] {
                        let link = Link { rtt_us, ..common };
                        assert_eq!(model.time_us(&link, bytes), curve.of(rtt_us));
                    }
                }
            }
        }
        let lossy = Link {
            loss_ppm: 1,
            ..Link::default()
        };
        assert_eq!(model.curve(&lossy, 1), None);
    }

    #[test]
    fn extremes_neither_panic_nor_wrap() {
        let worst = Link {
            rtt_us: crate::matrix::TIME_MAX_US,
            loss_ppm: 1_000_000,
            rate: NonZeroU64::new(1),
            window: NonZeroU32::new(1),
            assumed: NonZeroU32::new(1),
        };
        for congestion in Congestion::ALL {
            let model = Model {
                congestion,
                initial_window: 0,
                segment_bytes: 0,
                ..Model::default()
            };
            assert!(model.time_us(&worst, u64::MAX) > model.time_us(&Link::default(), 1));
        }
    }
}
