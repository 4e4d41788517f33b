// SPDX-License-Identifier: Apache-2.0
//! Bounds on the measuring intervals that a controller may request. Pure.

use std::collections::HashMap;
use std::time::Duration;

use posthaste_wire::header::NodeId;

/// Bounds for one link: reflectors limit the rate, and plans change.
const INTERVAL_MIN: Duration = Duration::from_millis(100);
const INTERVAL_MAX: Duration = Duration::from_secs(3600);
/// Bound on the probes of all links per second, 224 kbit/s over IPv4, whatever a controller
/// requests: beyond it all intervals are stretched.
const PROBES_PER_SECOND: f64 = 200.0;

/// The requested intervals within the bounds.
pub(super) fn bounded(mut wanted: HashMap<NodeId, Duration>) -> HashMap<NodeId, Duration> {
    for interval in wanted.values_mut() {
        // Before the sum: a controller may request an interval of 0, whose rate is infinite.
        *interval = (*interval).clamp(INTERVAL_MIN, INTERVAL_MAX);
    }
    let probes: f64 = wanted.values().map(|every| 1.0 / every.as_secs_f64()).sum();
    let stretch = probes / PROBES_PER_SECOND;
    if stretch > 1.0 {
        // All by one factor: links in use stay measured more often than others.
        for interval in wanted.values_mut() {
            *interval = interval.mul_f64(stretch);
        }
    }
    wanted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(intervals: impl IntoIterator<Item = u64>) -> HashMap<NodeId, Duration> {
        let ids = (1..).filter_map(NodeId::new);
        let intervals = intervals.into_iter().map(Duration::from_millis);
        bounded(ids.zip(intervals).collect())
    }

    fn of(intervals: &HashMap<NodeId, Duration>, number: u64) -> u128 {
        intervals[&NodeId::new(number).unwrap()].as_millis()
    }

    #[test]
    fn what_is_reasonable_is_done() {
        let intervals = all([1_000, 10_000, 300]);
        assert_eq!(
            [1, 2, 3].map(|number| of(&intervals, number)),
            [1_000, 10_000, 300]
        );
        let intervals = all([0, u64::MAX]);
        assert_eq!(
            [1, 2].map(|number| of(&intervals, number)),
            [100, 3_600_000]
        );
        assert!(all([]).is_empty());
    }

    // promise: E7
    #[test]
    fn all_links_bounded() {
        let intervals = all([1_000; 400]);
        assert_eq!(of(&intervals, 7), 2_000);
        let intervals = all([0; 1024]);
        let probes: f64 = intervals
            .values()
            .map(|every| 1.0 / every.as_secs_f64())
            .sum();
        assert!((199.9..200.1).contains(&probes), "{probes}");
    }
}
