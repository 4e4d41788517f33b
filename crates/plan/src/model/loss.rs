// SPDX-License-Identifier: Apache-2.0
//! Bounds on the sending rate where packets are lost.
//!
//! With `p` the share of lost packets and `d` the round-trip time, a sender has on average a window
//! of `W(p, d)` segments, and an occasional time-out. A segment costs
//!
//! ```text
//! d / W + T0 min(1, 3 sqrt(3p/8)) p (1 + 32 p^2)
//! ```
//!
//! which is the PFTK model (Padhye, Firoiu, Towsley and Kurose, SIGCOMM 1998, equation 30) with one
//! segment per acknowledgement, as Linux counts, and `T0 = d + 200 ms`, Linux's shortest time-out.
//! Only square roots are used, which give the same bits on every machine.

use super::{MICROS_MAX, Model};
use crate::matrix::Link;

/// Times that a packet is lost in a row beyond which it does not matter: loss of 15 % makes that one
/// of 10^13.
const REPAIRS_MAX: u32 = 16;
/// Part of a round trip that is not worth the computation.
const NEGLIGIBLE: f64 = 1e-4;
/// Linux's shortest retransmission time-out, less the round trip.
const TIMEOUT_US: f64 = 200_000.0;

/// The reaction of a sender to loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Congestion {
    /// Halves its window at a loss: `W = sqrt(3 / 2p)` (Mathis et al., CCR 1997).
    Reno,
    /// RFC 9438, section 5.1: `W = 1.054 (d / p)^(3/4)` with `d` in seconds, and no less
    /// than Reno's.
    Cubic,
    /// Keeps its rate despite loss, up to some 15 % (Cardwell et al., ACM Queue 2016, figure 8).
    Bbr,
    /// Likewise, and knows the rate of the path when a flow begins, so that only repairs are left:
    /// see [`Self::repair_us`]. The default of hops between nodes.
    #[default]
    Posthaste,
}

impl Congestion {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Reno, Self::Cubic, Self::Bbr, Self::Posthaste];

    /// The least time for `bytes` at the rate that loss allows, in microseconds; zero without loss.
    pub(super) fn pace_us(self, model: &Model, link: &Link, bytes: u64) -> u64 {
        // The windows below are divided by the loss.
        if link.loss_ppm == 0 {
            return 0;
        }
        let loss = f64::from(link.loss_ppm) / 1e6;
        let segment = match self {
            Self::Reno => segment_us(link, loss, reno_window(loss)),
            Self::Cubic => {
                let window = cubic_window(loss, f64::from(link.rtt_us));
                // The Reno-friendly region (RFC 9438 section 4.3).
                segment_us(link, loss, window.max(reno_window(loss)))
            }
            Self::Bbr | Self::Posthaste => tolerant_segment_us(model, link, loss),
        };
        whole(segments(model, bytes) as f64 * segment)
    }

    /// How long the receiver waits for packets to be sent again, in microseconds: a round trip for
    /// the first time, another if one of those is lost, and so on. With `p` the share of lost
    /// packets, `1 - (1 - p^k)^n` of transfers of `n` packets have one that is lost `k` times. The
    /// windows of the other controls contain it.
    pub(super) fn repair_us(self, model: &Model, link: &Link, bytes: u64) -> u64 {
        if self != Self::Posthaste {
            return 0;
        }
        let (loss, packets) = (f64::from(link.loss_ppm) / 1e6, segments(model, bytes));
        let (mut trips, mut lost) = (0.0, loss);
        for _ in 0..REPAIRS_MAX {
            let share = 1.0 - power(1.0 - lost, packets);
            trips += share;
            lost *= loss;
            if share < NEGLIGIBLE {
                break;
            }
        }
        whole(trips * f64::from(link.rtt_us))
    }
}

/// Packets that a transfer fills.
fn segments(model: &Model, bytes: u64) -> u64 {
    bytes.div_ceil(u64::from(model.segment_bytes.max(1)))
}

/// Microseconds as a number that can be added up.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "it is positive and bounded"
)]
fn whole(micros: f64) -> u64 {
    micros.min(MICROS_MAX as f64) as u64
}

/// By squares: not `powf`, whose last bits differ between machines.
fn power(base: f64, exponent: u64) -> f64 {
    let (mut result, mut square, mut left) = (1.0, base, exponent);
    while left > 0 {
        if left & 1 == 1 {
            result *= square;
        }
        square *= square;
        left >>= 1;
    }
    result
}

fn segment_us(link: &Link, loss: f64, window: f64) -> f64 {
    let rtt = f64::from(link.rtt_us);
    let timeouts = (3.0 * (3.0 * loss / 8.0).sqrt()).min(1.0) * loss * (1.0 + 32.0 * loss * loss);
    rtt / window + (rtt + TIMEOUT_US) * timeouts
}

fn reno_window(loss: f64) -> f64 {
    (1.5 / loss).sqrt()
}

fn cubic_window(loss: f64, rtt_us: f64) -> f64 {
    let ratio = rtt_us / 1e6 / loss;
    // Not `powf`, whose last bits differ between machines: two controllers must agree.
    let root = ratio.sqrt();
    // The power of 3/4.
    1.054 * root * root.sqrt()
}

/// Lost packets are retransmitted, which uses up a part of the rate.
fn tolerant_segment_us(model: &Model, link: &Link, loss: f64) -> f64 {
    let Some(rate) = link.rate else { return 0.0 };
    let bits = 8.0 * (f64::from(model.segment_bytes) + f64::from(model.header_bytes));
    // Infinite if all is lost: the caller bounds it.
    bits * 1e6 / rate.get() as f64 / (1.0 - loss)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::*;

    fn link(rtt_us: u32, loss_ppm: u32) -> Link {
        Link {
            rtt_us,
            loss_ppm,
            ..Link::default()
        }
    }

    /// Megabits of content a second.
    fn rate(congestion: Congestion, link: &Link) -> f64 {
        let bytes = 1_000_000_000;
        let micros = congestion.pace_us(&Model::default(), link, bytes);
        bytes as f64 * 8.0 / micros as f64
    }

    // promise: G5
    #[test]
    fn reno_follows_the_square_root() {
        // 1448 bytes x 1.2247 / (100 ms x sqrt(1e-4)) are 14.2 Mbit/s, time-outs aside.
        let mbits = rate(Congestion::Reno, &link(100_000, 100));
        assert!((13.8..14.2).contains(&mbits), "{mbits}");
        // At 2 %, time-outs take more time than windows: d/W = 11.5 ms, T0 ... = 1.6 ms.
        let lossy = rate(Congestion::Reno, &link(100_000, 20_000));
        assert!((0.85..0.95).contains(&lossy), "{lossy}");
    }

    #[test]
    fn cubic_beats_reno_long() {
        // RFC 9438, table 2: at 100 ms and a loss of 1e-5 CUBIC's window is 1053 segments... with d
        // in seconds: 1.054 (0.1 / 1e-5)^(3/4) = 1054, Reno's 387.
        let long = link(100_000, 10);
        assert!((cubic_window(1e-5, 100_000.0) - 1054.0).abs() < 1.0);
        assert!(rate(Congestion::Cubic, &long) > 2.5 * rate(Congestion::Reno, &long));
        let short = link(5_000, 10_000);
        let (cubic, reno) = (
            rate(Congestion::Cubic, &short),
            rate(Congestion::Reno, &short),
        );
        assert!((cubic - reno).abs() < 1e-9, "{cubic} {reno}");
    }

    #[test]
    fn repairs_take_round_trips() {
        let model = Model::default();
        let trips = |loss_ppm, bytes| {
            let micros = Congestion::Posthaste.repair_us(&model, &link(1_000_000, loss_ppm), bytes);
            micros as f64 / 1e6
        };
        assert!(trips(0, 5_000_000) < 1e-9);
        // One packet, lost once in twenty.
        assert!((trips(50_000, 1000) - 0.05 - 0.0025 - 0.000_125).abs() < 1e-4);
        // Of 69 packets 97 % of transfers lose one, and 16 % lose one twice.
        assert!((trips(50_000, 100_000) - 1.14).abs() < 0.01);
        assert!((trips(50_000, 5_000_000) - 2.37).abs() < 0.01);
    }

    #[test]
    fn bbr_pays_for_retransmission() {
        let lossy = Link {
            rate: NonZeroU64::new(100_000_000),
            ..link(100_000, 10_000)
        };
        let mbits = rate(Congestion::Bbr, &lossy);
        assert!(
            (mbits - 100.0 * 0.99 * 1448.0 / 1500.0).abs() < 0.1,
            "{mbits}"
        );
        assert_eq!(
            Congestion::Bbr.pace_us(&Model::default(), &link(1, 10_000), 1_000_000),
            0
        );
    }
}
