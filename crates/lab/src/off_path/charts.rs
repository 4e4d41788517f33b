// SPDX-License-Identifier: Apache-2.0
//! The charts of `off-path`.

use super::report::Report;
use super::{Args, Configuration, KB, Place, milliseconds};
use crate::chart::{Across, Chart, Series, Spacing};
use crate::stats::percentile;

impl Report<'_> {
    fn conditions(&self) -> String {
        let Args {
            rtt,
            rate,
            congestion,
            family,
            ..
        } = self.args;
        format!("{rtt} ms round-trip time without the node, {rate} Mbit/s, {congestion}, {family}")
    }

    /// The paper's figure: a group for each size, a bar for each distance.
    pub(super) fn times(&self) -> Chart {
        let args = self.args;
        Chart {
            title: "Time to complete a transfer by a node beside the path".to_owned(),
            subtitle: self.conditions(),
            x_label: "size, KB".to_owned(),
            y_label: "time from connect() to the last byte, ms".to_owned(),
            across: Across::Groups(args.sizes.iter().map(ToString::to_string).collect()),
            series: args
                .places()
                .iter()
                .map(|&place| self.bars(place))
                .collect(),
            model_name: "model".to_owned(),
            note: format!(
                "Delays are those between node and client, and node and server. Medians of {}; \
                 whiskers from the fastest to the slowest.",
                args.repeats
            ),
        }
    }

    fn bars(&self, place: Place) -> Series {
        let row = |&size: &u64| {
            let bytes = size * KB;
            Configuration { place, bytes }
        };
        let rows: Vec<_> = self.args.sizes.iter().map(row).collect();
        let spread = |row: &Configuration| {
            let values = self.values(*row);
            Some((percentile(&values, 0.0)?, percentile(&values, 100.0)?))
        };
        Series {
            name: place.to_string(),
            values: rows.iter().map(|&row| self.complete(row)).collect(),
            spread: rows.iter().map(spread).collect(),
            model: rows
                .iter()
                .map(|&row| Some(self.complete_by_model(row)))
                .collect(),
        }
    }

    /// Where the node stops being worth it: a line for each size, against the way without it.
    pub(super) fn ratios(&self) -> Chart {
        let args = self.args;
        // Distances from the path begin at zero, as the axis does.
        let aside = args.hops.iter().map(|hop| hop - args.rtt / 4.0).collect();
        let no_node = Series {
            name: "no node".to_owned(),
            values: vec![Some(100.0); args.hops.len()],
            ..Series::default()
        };
        let sizes = args.sizes.iter().map(|&size| self.line(size));
        Chart {
            title: "How far beside the path a node saves time".to_owned(),
            subtitle: self.conditions(),
            x_label: "one-way delay between path and node, ms".to_owned(),
            y_label: "time to completion, % of that without a node".to_owned(),
            across: Across::Numbers(aside, Spacing::Linear),
            series: std::iter::once(no_node).chain(sizes).collect(),
            model_name: "model".to_owned(),
            note: format!("Medians of {}.", args.repeats),
        }
    }

    fn line(&self, size: u64) -> Series {
        let row = |&hop: &f64| Configuration {
            place: Place::Hops(milliseconds(hop)),
            bytes: size * KB,
        };
        let rows = || self.args.hops.iter().map(row);
        let measured = |row| self.ratio(row, |c| self.complete(c));
        let model = |row| self.ratio(row, |c| Some(self.complete_by_model(c)));
        Series {
            name: format!("{size} KB"),
            values: rows().map(measured).collect(),
            spread: Vec::new(),
            model: rows().map(model).collect(),
        }
    }
}
