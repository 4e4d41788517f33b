// SPDX-License-Identifier: Apache-2.0
//! What nodes near the ends are to gain, against no node, alone and with many transfers at once.

use super::report::{Moment, Report, ms};
use super::way::{Carriage, Way};
use super::{Configuration, KB};
use crate::stats::deviation_percent;

/// How much less time transfers over warm hops are to take than without a node, by size, with
/// the delays that are usual here: bytes, and per cent.
const GAINS: [(u64, f64); 3] = [(25 * KB, 60.0), (100 * KB, 68.0), (500 * KB, 75.0)];

impl Report<'_> {
    /// How much chains near the ends gain, in words, and what of it is too little.
    pub(super) fn against_no_node(&self) -> (Vec<String>, Vec<String>) {
        let ends = self.timings.keys().filter(|c| c.way.carriage.is_ends());
        let lines: Vec<_> = ends.filter_map(|&c| self.gain_of(c)).collect();
        let missed = lines.iter().filter(|(_, is_met)| !is_met);
        let missed = missed.map(|(line, _)| format!("Missed: {line}")).collect();
        let reported = lines.into_iter().filter(|(_, is_met)| *is_met);
        (reported.map(|(line, _)| line).collect(), missed)
    }

    /// What a configuration gains, and whether that is enough.
    fn gain_of(&self, configuration: Configuration) -> Option<(String, bool)> {
        let direct = Configuration {
            way: Way::direct(configuration.way.family),
            ..configuration
        };
        let taken = self.median(configuration, Moment::Complete)?;
        let without = self.median(direct, Moment::Complete)?;
        let gain = -deviation_percent(taken, without);
        let mut line = format!(
            "{}: {gain:.1} % less than without",
            configuration.describe()
        );
        let floor = self.floor(configuration);
        let may_gain = -deviation_percent(floor, without);
        if self.args.clients > 1 {
            line += &format!(
                "; {taken:.1} ms, where {floor:.1} ms are the least for the median, and {:.1} ms \
                 even shares",
                self.model(configuration, Moment::Complete)
            );
        }
        match self.target(configuration) {
            None => Some((line, true)),
            Some(target) if may_gain >= target => {
                Some((format!("{line}, {target} % wanted."), gain >= target))
            }
            Some(target) => {
                // The links bound it, and how transfers share them is their business.
                let even = self.model(configuration, Moment::Complete);
                let is_met = deviation_percent(taken, even) <= self.args.tolerance;
                line += &format!(", {target} % wanted and {may_gain:.1} % possible.");
                Some((line, is_met))
            }
        }
    }

    /// The least time that the median can take, in milliseconds.
    fn floor(&self, configuration: Configuration) -> f64 {
        let Configuration { way, bytes } = configuration;
        let path = way.path_alone(self.args);
        ms(path.half_complete(way.mode, bytes, self.args.clients))
    }

    /// What a configuration is to gain, in per cent, if anything is said about that.
    fn target(&self, configuration: Configuration) -> Option<f64> {
        let args = self.args;
        let is_usual = (args.rtt - 100.0).abs() < 0.1 && (args.end - 2.0).abs() < 0.1;
        let is_warm = configuration.way.carriage == Carriage::WarmEnds;
        let found = GAINS
            .iter()
            .find(|(bytes, _)| *bytes == configuration.bytes);
        found.filter(|_| is_usual && is_warm).map(|(_, gain)| *gain)
    }
}
