// SPDX-License-Identifier: Apache-2.0
//! The predicted time of a transfer, for comparison with measurements. Pure.
//!
//! The model is that of planning, [`posthaste_plan::model`], in the terms of the lab: delays are
//! one way, every link has the same rate, there is no loss, and all times count from the start of
//! `connect()`.
//!
//! Nodes relay in early mode, which takes `2D + 2X` to the first byte: `D` is the one-way delay from
//! client to server and `X` that of the longest hop.
//!
//! **Warm hops** are open before the flow arrives, with larger windows than any transfer here
//! needs, so they add no wait. What remains are the client's hop and the server's. This is a lower
//! bound: no node can change these two.
//!
//! **Cold hops of chains** begin with the window of the bandwidth that nodes assume for a link
//! between them.
//!
//! **Several transfers at once** share the rate evenly. Otherwise half of them can finish sooner,
//! but not before half of the bytes are sent.

use std::num::{NonZeroU32, NonZeroU64};
use std::time::Duration;

use posthaste_plan::{Link, Model};

use crate::network::Family;

/// The hops between the nodes of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Hops {
    /// Nodes on the path without configuration of each other.
    Transparent,
    /// Such nodes that translate packets: only the handshake is divided.
    Packets,
    /// Hops of a chain that are opened for a flow, with the window that nodes assume.
    Cold,
    /// Hops of a chain that are idle and open.
    Warm,
}

/// A path from client to server.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Path {
    /// One-way delay of each hop.
    pub hops: Vec<Duration>,
    /// The hops between nodes.
    pub between: Hops,
    /// Rate of every link, in bits per second.
    pub rate: u64,
    /// Sets the size of headers, and with it of segments.
    pub family: Family,
}

impl Path {
    /// Hops with the given one-way delays, between transparent nodes.
    pub(crate) fn new(hops: Vec<Duration>, rate: u64, family: Family) -> Self {
        Self {
            hops,
            between: Hops::Transparent,
            rate,
            family,
        }
    }

    /// When `connect()` returns.
    pub(crate) fn connect(&self) -> Duration {
        self.hops.first().copied().unwrap_or_default() * 2
    }

    /// When the first byte of the answer arrives.
    pub(crate) fn first_byte(&self) -> Duration {
        self.complete(0)
    }

    /// When the last of `bytes` bytes arrives.
    pub(crate) fn complete(&self, bytes: u64) -> Duration {
        if self.between == Hops::Packets && bytes > 0 {
            let whole = Self::new(vec![self.hops.iter().sum()], self.rate, self.family);
            return self.first_byte() + whole.complete(bytes) - whole.first_byte();
        }
        let header_bytes = self.family.header_bytes();
        let model = Model {
            segment_bytes: u32::from(crate::link::MTU) - header_bytes,
            header_bytes,
            ..Model::default()
        };
        Duration::from_micros(model.transfer_us(self.links().iter(), 0, bytes))
    }

    /// The hops in terms of the planning model.
    fn links(&self) -> Vec<Link> {
        let last = self.hops.len() - 1;
        let link = |(place, hop): (usize, &Duration)| {
            let rtt_us = (*hop * 2 + Duration::from_nanos(500)).as_micros();
            let rtt_us = u32::try_from(rtt_us).unwrap_or(u32::MAX);
            let is_between = place != 0 && place != last;
            let link = match self.between {
                Hops::Cold if is_between => Link::of_nodes(rtt_us),
                Hops::Warm if is_between => Link {
                    window: Some(NonZeroU32::MAX),
                    ..Link::of_rtt(rtt_us)
                },
                _ => Link::of_rtt(rtt_us),
            };
            Link {
                rate: NonZeroU64::new(self.rate),
                ..link
            }
        };
        self.hops.iter().enumerate().map(link).collect()
    }

    /// The earliest time at which half of `clients` can have finished that each fetch `bytes`
    /// bytes, all at once: none finishes before a single one would, and half of all bytes have to
    /// be sent.
    pub(crate) fn half_complete(&self, bytes: u64, clients: u32) -> Duration {
        let half = bytes * u64::from(clients.div_ceil(2));
        let header_bytes = u64::from(self.family.header_bytes());
        let segments = half.div_ceil(u64::from(crate::link::MTU) - header_bytes);
        let micros = (half + segments * header_bytes).saturating_mul(8_000_000) / self.rate;
        let sending = Duration::from_micros(micros);
        self.complete(bytes).max(self.first_byte() + sending)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// `nodes` nodes that divide a path of round-trip time `rtt` evenly.
    fn even(rtt: Duration, nodes: u32, rate: u64, family: Family) -> Path {
        Path::new(
            vec![rtt / 2 / (nodes + 1); nodes as usize + 1],
            rate,
            family,
        )
    }

    /// A rate at which sending takes no time.
    fn path(nodes: u32) -> Path {
        even(100 * MS, nodes, u64::MAX, Family::V4)
    }

    fn ms(time: Duration) -> f64 {
        (time.as_secs_f64() * 1e4).round() / 10.0
    }

    #[test]
    fn packets_divide_the_handshake() {
        let packets = Path {
            between: Hops::Packets,
            ..path(1)
        };
        assert_eq!(ms(packets.first_byte()), 150.0);
        // The next window takes a round trip of the whole path.
        let gain = path(0).complete(25_000) - packets.complete(25_000);
        assert_eq!(ms(gain), 50.0);
    }

    #[test]
    fn published_first_byte_times() {
        let times: Vec<f64> = (0..4).map(|nodes| ms(path(nodes).first_byte())).collect();
        assert_eq!(times, [200.0, 150.0, 133.3, 125.0]);
    }

    #[test]
    fn round_trips_without_node() {
        assert_eq!(path(0).connect(), 100 * MS);
        assert_eq!(path(0).first_byte(), 200 * MS);
    }

    #[test]
    fn longest_hop_counts() {
        let uneven = Path {
            hops: vec![12 * MS, 13 * MS, 25 * MS],
            ..path(0)
        };
        assert_eq!(uneven.connect(), 24 * MS);
        assert_eq!(uneven.first_byte(), 150 * MS);
        assert_eq!(uneven.complete(25_000), 200 * MS);
    }

    #[test]
    fn warm_hops_add_no_wait() {
        let warm = Path {
            hops: vec![2 * MS, 46 * MS, 2 * MS],
            between: Hops::Warm,
            ..path(0)
        };
        assert_eq!(warm.connect(), 4 * MS);
        assert_eq!(warm.first_byte(), 104 * MS);
        assert_eq!(warm.complete(25_000), 108 * MS);
        let uneven = Path {
            hops: vec![2 * MS, 38 * MS, 10 * MS],
            ..warm.clone()
        };
        assert_eq!(uneven.first_byte(), 120 * MS);
        let cold = Path {
            between: Hops::Transparent,
            ..warm
        };
        assert_eq!(cold.first_byte(), 192 * MS);
    }

    #[test]
    fn off_path_node_two_rounds() {
        // The published case: two hops of up to 37.5 ms instead of one of 50 ms.
        let aside = Path::new(
            vec![Duration::ZERO, 75 * MS / 2, 75 * MS / 2],
            u64::MAX,
            Family::V4,
        );
        let gains = [10_000, 25_000, 50_000, 500_000]
            .map(|bytes| ms(path(0).complete(bytes)) - ms(aside.complete(bytes)));
        assert_eq!(gains, [-25.0, 0.0, 25.0, 100.0]);
    }

    #[test]
    fn rounds_follow_the_size() {
        // Windows of 14480 bytes, twice as much each round.
        for (bytes, rounds) in [
            (10_000, 0),
            (14_480, 0),
            (14_481, 1),
            (25_000, 1),
            (50_000, 2),
            (100_000, 2),
            (250_000, 4),
            (500_000, 5),
        ] {
            let expected = 200 * MS + 100 * MS * rounds;
            assert_eq!(path(0).complete(bytes), expected, "{bytes} bytes");
        }
    }

    #[test]
    fn half_wait_for_half() {
        let warm = Path {
            hops: vec![2 * MS, 46 * MS, 2 * MS],
            between: Hops::Warm,
            rate: 100_000_000,
            ..path(0)
        };
        let of = |bytes, clients| ms(warm.half_complete(bytes, clients));
        assert_eq!(of(25_000, 1), ms(warm.complete(25_000)));
        // 25 times 25 KB, and the headers of 432 segments.
        assert_eq!(of(25_000, 50), 155.8);
        assert_eq!(of(25_000, 2), ms(warm.complete(25_000)));
    }

    #[test]
    fn segments_are_smaller_in_ipv6() {
        let path = Path {
            family: Family::V6,
            ..path(0)
        };
        assert_eq!(path.complete(14_480), 300 * MS);
    }

    #[test]
    fn the_rate_bounds_every_round() {
        // 14480 bytes in 10 packets of 1500 bytes take 15 ms at 8 Mbit/s.
        let slow = Path {
            rate: 8_000_000,
            ..even(10 * MS, 0, 1, Family::V4)
        };
        assert_eq!(slow.complete(14_480), 20 * MS + 15 * MS);
        assert_eq!(slow.complete(2 * 14_480), 20 * MS + 15 * MS + 15 * MS);
    }
}
