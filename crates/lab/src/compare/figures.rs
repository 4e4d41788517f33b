// SPDX-License-Identifier: Apache-2.0
//! The compared figures of measurements. Pure.

use super::load::Yield;
use super::testbed::Measured;
use crate::names::named;

named! {
    /// A figure of a subject with a load. The names are those of samples in the record.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub(super) enum Figure {
        /// CPU time per unit of the load, of all participants: us, or ms per gigabyte.
        Total = "total CPU",
        /// Transactions per second, or Gbit/s.
        Rate = "rate",
        /// Median time of a transaction or message, in us.
        Typical = "median time",
        /// The 99th percentile of it.
        Slow = "99th percentile of time",
        /// Median time of a SYN through the relay, in us.
        SynDelay = "median delay of SYNs",
        /// Packets for each connection on the client's link.
        ClientPackets = "packets per connection, client's link",
        /// The same on the server's link.
        ServerPackets = "packets per connection, server's link",
        /// Segments that either end retransmitted.
        Retransmitted = "segments sent again",
        /// [`Self::Total`] less the direct link's.
        Marginal = "marginal CPU",
        /// Time added to a message one way, in us.
        Added = "added one way",
    }
}

impl Figure {
    /// Its value in each round; `direct` is the direct link.
    pub(super) fn values(
        self,
        yields: Yield,
        rounds: &[Measured],
        direct: &[Measured],
    ) -> Vec<f64> {
        // Both of the same round: other work on the machine changes between rounds.
        let rounds = rounds.iter().zip(direct);
        rounds
            .map(|(measured, direct)| self.value(yields, measured, direct))
            .collect()
    }

    fn value(self, yields: Yield, measured: &Measured, direct: &Measured) -> f64 {
        let outcome = &measured.outcome;
        match (self, yields) {
            (Self::Total, _) => total(yields, measured),
            (Self::Rate, Yield::Bytes) => {
                outcome.counted_bytes as f64 * 8.0 / 1e9 / outcome.window_s
            }
            (Self::Rate, _) => outcome.counted as f64 / outcome.window_s,
            (Self::Typical, _) => typical(measured),
            (Self::Slow, _) => outcome.latency_us.map_or(f64::NAN, |[.., slow]| slow),
            (Self::SynDelay, _) => {
                let delay = measured.syn_delay_us;
                delay.map_or(f64::NAN, |[_, median, ..]| median)
            }
            (Self::ClientPackets, _) => measured.packets[0],
            (Self::ServerPackets, _) => measured.packets[1],
            (Self::Retransmitted, _) => measured.retransmitted as f64,
            (Self::Marginal, _) => total(yields, measured) - total(yields, direct),
            // A message and its echo pass the relay once each.
            (Self::Added, _) => (typical(measured) - typical(direct)) / 2.0,
        }
    }

    /// The figure that a kind of load is about.
    pub(super) fn deciding(yields: Yield) -> Self {
        match yields {
            Yield::Transactions | Yield::Bytes => Self::Marginal,
            Yield::Messages => Self::Added,
            Yield::SynDelay => Self::SynDelay,
            Yield::Rate => Self::Rate,
        }
    }

    /// Whether it is what a subject adds to the direct link.
    pub(super) fn is_added(self) -> bool {
        matches!(self, Self::Marginal | Self::Added | Self::SynDelay)
    }

    /// Its unit with this kind of load.
    pub(super) fn unit(self, yields: Yield) -> &'static str {
        match (self, yields) {
            (Self::Total | Self::Marginal, Yield::Bytes) => "ms/GB",
            (Self::Total | Self::Marginal, Yield::Messages) => "us/message",
            (Self::Total | Self::Marginal, _) => "us/transaction",
            (Self::Rate, Yield::Bytes) => "Gbit/s",
            (Self::Rate, Yield::Messages) => "messages/s",
            (Self::Rate, _) => "transactions/s",
            (Self::ClientPackets | Self::ServerPackets | Self::Retransmitted, _) => "",
            _ => "us",
        }
    }
}

/// CPU time per unit, of all participants.
fn total(yields: Yield, measured: &Measured) -> f64 {
    let seconds: f64 = measured.outcome.cpu_s.values().sum();
    match yields {
        // Milliseconds per 10^9 bytes.
        Yield::Bytes => seconds * 1e3 / (measured.outcome.counted_bytes as f64 / 1e9),
        _ => seconds * 1e6 / measured.outcome.counted as f64,
    }
}

/// The median time of a transaction or message, in us.
fn typical(measured: &Measured) -> f64 {
    let latency = measured.outcome.latency_us;
    latency.map_or(f64::NAN, |[_, typical, ..]| typical)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Outcome;

    fn measured(cpu_s: f64, counted: u64, typical: f64) -> Measured {
        Measured {
            outcome: Outcome {
                counted,
                counted_bytes: counted * 1_000_000,
                window_s: 2.0,
                cpu_s: [
                    ("relay".to_owned(), cpu_s / 2.0),
                    ("client".to_owned(), cpu_s / 2.0),
                ]
                .into(),
                latency_us: Some([1.0, typical, 90.0, 99.0]),
                ..Outcome::default()
            },
            packets: [12.0, 12.5],
            retransmitted: 0,
            syn_delay_us: None,
            problems: Vec::new(),
        }
    }

    #[test]
    fn marginal_within_round() {
        let direct = [measured(1.0, 10_000, 20.0), measured(1.2, 10_000, 20.0)];
        let rounds = [measured(1.5, 10_000, 30.0), measured(1.9, 10_000, 36.0)];
        let value =
            |figure: Figure, yields, round: usize| figure.values(yields, &rounds, &direct)[round];
        let near = |value: f64, expected: f64| assert!((value - expected).abs() < 1e-6, "{value}");
        near(value(Figure::Marginal, Yield::Transactions, 0), 50.0);
        near(value(Figure::Marginal, Yield::Transactions, 1), 70.0);
        near(value(Figure::Rate, Yield::Transactions, 0), 5000.0);
        near(value(Figure::Added, Yield::Transactions, 1), 8.0);
        // 10 GB in 1.5 s of CPU time, and in 2 s of real time.
        near(value(Figure::Total, Yield::Bytes, 0), 150.0);
        near(value(Figure::Rate, Yield::Bytes, 0), 40.0);
    }
}
