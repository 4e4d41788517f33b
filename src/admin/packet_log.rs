// SPDX-License-Identifier: Apache-2.0
//! Logs how many SYNs the packet path took and left, by reason.

use std::fmt::Display;
use std::time::{Duration, Instant};

use super::operations::Operations;

/// Time between two lines, if there is something to report.
const INTERVAL: Duration = Duration::from_mins(10);
/// The counters of the packet path.
const PREFIX: &str = "packet_";

/// What was logged before.
#[derive(Debug)]
pub(super) struct PacketLog {
    at: Instant,
    values: Vec<u64>,
}

impl PacketLog {
    pub(super) fn new() -> Self {
        Self {
            at: Instant::now(),
            values: Vec::new(),
        }
    }

    /// Logs the counts since the last line, if that is long ago.
    pub(super) fn look(&mut self, node: &dyn Operations) {
        if self.at.elapsed() >= INTERVAL {
            self.write(node);
        }
    }

    /// Logs the counts since the last line, unless all are zero.
    pub(super) fn write(&mut self, node: &dyn Operations) {
        self.at = Instant::now();
        let stats = node.redirect_stats();
        let of_packets = stats
            .iter()
            .filter_map(|(name, _, value)| Some((name.strip_prefix(PREFIX)?, *value)));
        let (names, values): (Vec<&str>, Vec<u64>) = of_packets.unzip();
        let before = self.values.iter().copied().chain(std::iter::repeat(0));
        let counts: Vec<u64> = values
            .iter()
            .zip(before)
            .map(|(now, then)| now.saturating_sub(then))
            .collect();
        let fields = names.iter().zip(&counts).filter(|(_, count)| **count > 0);
        let fields: Vec<(&str, &dyn Display)> = fields
            .map(|(name, count)| (*name, count as &dyn Display))
            .collect();
        if !fields.is_empty() {
            node.log().info("packet path", &fields);
        }
        self.values = values;
    }
}
