// SPDX-License-Identifier: Apache-2.0
//! Reports about links, made only on changes. Pure.

use posthaste_wire::header::NodeId;

use super::link::State;
use super::series::differs;
use super::window::Source;

/// Differences in loss below this are noise: lost probes per million.
const LOSS_NOISE_PPM: u32 = 20_000;

/// The state of one link, from this node to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// The peer.
    pub peer: NodeId,
    /// Whether the link is up.
    pub state: State,
    /// The shortest recent round trip, in microseconds, and its source. `None` unless the link is
    /// up and measured: never 0 for that.
    pub rtt_us: Option<u32>,
    /// See `rtt_us`.
    pub(crate) source: Option<Source>,
    /// Mean and mean deviation of the round trips, in microseconds.
    pub(crate) smoothed_us: Option<u32>,
    /// See `smoothed_us`.
    pub(crate) jitter_us: Option<u32>,
    /// Lost probes per million, in either direction. `None` after too few probes.
    pub loss_ppm: Option<u32>,
}

impl Report {
    /// Whether this differs from the last report.
    pub(super) fn is_news(&self, reported: Option<&Self>) -> bool {
        let Some(reported) = reported else {
            // Every link begins like that.
            return self.state != State::Unmeasured;
        };
        // Mean and jitter change with every probe: they go along, but cause no report.
        self.state != reported.state
            || is_other(self.rtt_us, reported.rtt_us, differs)
            || is_other(self.loss_ppm, reported.loss_ppm, loses_otherwise)
    }
}

fn is_other(now: Option<u32>, then: Option<u32>, differs: impl Fn(u32, u32) -> bool) -> bool {
    match (now, then) {
        (Some(now), Some(then)) => differs(now, then),
        (now, then) => now.is_some() != then.is_some(),
    }
}

/// By more than two percentage points, and a quarter of the former value.
fn loses_otherwise(now_ppm: u32, then_ppm: u32) -> bool {
    now_ppm.abs_diff(then_ppm) > (then_ppm / 4).max(LOSS_NOISE_PPM)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn up(rtt_us: u32, loss_ppm: Option<u32>) -> Report {
        Report {
            peer: NodeId::new(1).unwrap(),
            state: State::Up,
            rtt_us: Some(rtt_us),
            source: Some(Source::Stamp),
            smoothed_us: Some(rtt_us),
            jitter_us: Some(0),
            loss_ppm,
        }
    }

    #[test]
    fn state_change_is_news() {
        let unknown = Report {
            state: State::Unmeasured,
            rtt_us: None,
            ..up(1, None)
        };
        assert!(!unknown.is_news(None));
        assert!(up(1, None).is_news(None));
        assert!(unknown.is_news(Some(&up(1, None))));
        let dead = Report {
            state: State::Dead,
            ..unknown
        };
        assert!(dead.is_news(Some(&unknown)) && !dead.is_news(Some(&dead)));
    }

    #[test]
    fn moved_values_are_news() {
        let reported = up(50_000, Some(100_000));
        assert!(!up(55_000, Some(100_000)).is_news(Some(&reported)));
        assert!(up(55_001, Some(100_000)).is_news(Some(&reported)));
        assert!(!up(50_000, Some(125_000)).is_news(Some(&reported)));
        assert!(up(50_000, Some(125_001)).is_news(Some(&reported)));
        assert!(up(50_000, None).is_news(Some(&reported)));
        let reported = up(50_000, Some(0));
        assert!(!up(50_000, Some(20_000)).is_news(Some(&reported)));
        assert!(up(50_000, Some(20_001)).is_news(Some(&reported)));
    }
}
