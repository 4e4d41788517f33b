// SPDX-License-Identifier: Apache-2.0
//! Computes the compared figures from measurements. Pure.

use std::collections::BTreeMap;

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

/// The figures of one subject with one load: a value per round.
#[derive(Clone, Debug, Default)]
pub(super) struct Figures(pub(super) BTreeMap<Figure, Vec<f64>>);

impl Figures {
    /// The figures of rounds, and of the direct link in the same rounds.
    pub(super) fn new(yields: Yield, rounds: &[Measured], direct: &[Measured]) -> Self {
        let mut figures = Self::default();
        // Both of the same round: other work on the machine changes between rounds.
        for (measured, direct) in rounds.iter().zip(direct) {
            let total = total(yields, measured);
            let (typical, slow) = latency(measured);
            let delay = measured.syn_delay_us;
            let [client, server] = measured.packets;
            for (figure, value) in [
                (Figure::Total, total),
                (Figure::Rate, rate(yields, measured)),
                (Figure::Typical, typical),
                (Figure::Slow, slow),
                (
                    Figure::SynDelay,
                    delay.map_or(f64::NAN, |[_, median, ..]| median),
                ),
                (Figure::ClientPackets, client),
                (Figure::ServerPackets, server),
                (Figure::Retransmitted, measured.retransmitted as f64),
                (Figure::Marginal, total - self::total(yields, direct)),
                // A message and its echo pass the relay once each.
                (Figure::Added, (typical - latency(direct).0) / 2.0),
            ] {
                figures.0.entry(figure).or_default().push(value);
            }
        }
        figures
    }

    /// The values of one figure.
    pub(super) fn of(&self, figure: Figure) -> &[f64] {
        self.0.get(&figure).map_or(&[], Vec::as_slice)
    }

    /// Those that this kind of load is about.
    pub(super) fn deciding(&self, yields: Yield) -> &[f64] {
        self.of(Figure::deciding(yields))
    }
}

impl Figure {
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

/// Transactions per second, or Gbit/s.
fn rate(yields: Yield, measured: &Measured) -> f64 {
    let outcome = &measured.outcome;
    match yields {
        Yield::Bytes => outcome.counted_bytes as f64 * 8.0 / 1e9 / outcome.window_s,
        _ => outcome.counted as f64 / outcome.window_s,
    }
}

fn latency(measured: &Measured) -> (f64, f64) {
    measured
        .outcome
        .latency_us
        .map_or((f64::NAN, f64::NAN), |[_, typical, _, slow]| {
            (typical, slow)
        })
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
        let figures = Figures::new(Yield::Transactions, &rounds, &direct);
        let near = |value: f64, expected: f64| assert!((value - expected).abs() < 1e-6, "{value}");
        near(figures.of(Figure::Marginal)[0], 50.0);
        near(figures.of(Figure::Marginal)[1], 70.0);
        near(figures.of(Figure::Rate)[0], 5000.0);
        near(figures.of(Figure::Added)[1], 8.0);
        let bytes = Figures::new(Yield::Bytes, &rounds, &direct);
        // 10 GB in 1.5 s of CPU time, and in 2 s of real time.
        near(bytes.of(Figure::Total)[0], 150.0);
        near(bytes.of(Figure::Rate)[0], 40.0);
    }
}
