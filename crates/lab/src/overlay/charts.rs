// SPDX-License-Identifier: Apache-2.0
//! The charts of `overlay`.

use super::moves::BEFORE;
use super::report::Report;
use super::topology::Pair;
use super::{Configuration, Subject};
use crate::chart::{Across, Chart, Series, Spacing};
use crate::stats::percentile;

impl Report<'_> {
    /// One for each pair, and one of the links that changed.
    pub(super) fn charts(&self) -> Vec<(String, Chart)> {
        let pairs = self.topology.pairs.iter().zip(&self.args.pairs);
        let mut charts: Vec<(String, Chart)> = pairs
            .map(|(pair, rows)| (rows.clone(), self.times(*pair)))
            .collect();
        if !self.outcome.moves.is_empty() {
            charts.push(("moves".to_owned(), self.moving()));
        }
        charts
    }

    /// The paper's figure: a group for each size, a bar for each subject.
    fn times(&self, pair: Pair) -> Chart {
        let args = self.args;
        let rtt_ms = self.topology.rtt_ms(pair.client, pair.server);
        Chart {
            title: format!("Time to fetch an object: {}", self.pair_name(pair)),
            subtitle: format!(
                "{rtt_ms} ms round-trip time, {} ms more at either end, {} Mbit/s, {}, {}",
                args.access, args.rate, args.congestion, args.family
            ),
            x_label: "size, KB".to_owned(),
            y_label: "time from connect() to the last byte, ms".to_owned(),
            across: Across::Groups(args.sizes.iter().map(ToString::to_string).collect()),
            series: Subject::ALL
                .iter()
                .map(|one| self.bars(pair, *one))
                .collect(),
            model_name: "model".to_owned(),
            note: format!(
                "Front: nginx near the client that keeps connections to the server open. Medians of {}; \
                 whiskers: all.",
                args.repeats
            ),
        }
    }

    fn bars(&self, pair: Pair, subject: Subject) -> Series {
        let sizes = || self.args.sizes.iter().copied();
        let spread = |size| {
            let values = self.values(Configuration {
                pair,
                size,
                subject,
            });
            Some((percentile(&values, 0.0)?, percentile(&values, 100.0)?))
        };
        Series {
            name: subject.name().to_owned(),
            values: sizes()
                .map(|size| self.median(pair, size, subject))
                .collect(),
            spread: sizes().map(spread).collect(),
            model: sizes()
                .map(|size| self.model(pair, size, subject))
                .collect(),
        }
    }

    /// How long new connections took while a link changed.
    fn moving(&self) -> Chart {
        let events = &self.outcome.moves[..self.outcome.moves.len().min(2)];
        let longest = events.iter().map(|seen| seen.connections.len()).min();
        let began = events[0].connections.iter().map(|(began, _)| *began);
        let began = began.take(longest.unwrap_or(0)).collect();
        let line = |seen: &super::moves::Move| Series {
            name: seen.kind.name().to_owned(),
            values: seen
                .connections
                .iter()
                .take(longest.unwrap_or(0))
                .map(|(_, took)| *took)
                .collect(),
            ..Series::default()
        };
        Chart {
            title: "New connections while a link of their chain changes".to_owned(),
            subtitle: format!(
                "{}; the link changes after {} s",
                self.pair_name(self.topology.pairs[0]),
                BEFORE.as_secs()
            ),
            x_label: "when the connection was opened, s".to_owned(),
            y_label: format!("time to fetch {} KB, s", self.args.sizes[0]),
            across: Across::Numbers(began, Spacing::Linear),
            series: events.iter().map(line).collect(),
            model_name: String::new(),
            note: "One connection every 100 ms, over an overlay with warm hops.".to_owned(),
        }
    }
}
