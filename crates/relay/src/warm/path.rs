// SPDX-License-Identifier: Apache-2.0
//! What flows to a peer have found the way to bear, for the next of them: TCP
//! control block sharing (RFC 9040) by hops to one peer.
//!
//! A warm hop is open, but nothing has gone over it: its window is the
//! kernel's initial one. A flow that ended a moment ago knows better. What it
//! achieved is remembered (temporal sharing, §6), doubted more and more as it
//! ages, since the way may have filled up meanwhile, and divided among the
//! flows that start at the same time (ensemble sharing, §7).
//!
//! A window of hundreds of segments must not leave at the rate of the network
//! card, so a pace comes with it, little above the rate that was achieved. It
//! is for the first round trips only: see [`Plan::pacing_rate`].

use std::time::Duration;

use crate::sys::TcpInfo;

/// No window is larger, in segments.
const WINDOW_MAX: f64 = 1024.0;
/// What every connection may send at once (RFC 6928). No plan for less.
const WINDOW_KERNEL: f64 = 10.0;
/// An estimate is worth half after so long.
const HALF_LIFE: Duration = Duration::from_secs(10);
/// And nothing after so long.
const AGE_MAX: Duration = Duration::from_secs(60);
/// A flow that sent fewer segments has not found out what the way bears.
const SEGMENTS_MIN: u64 = 20;
/// The pace, by the rate achieved: room to find that there is more.
const PACE: f64 = 1.2;
/// Ethernet, less headers and timestamps: for a socket that does not know.
const SEGMENT_BYTES: u32 = 1448;

/// How a flow is to start on a hop.
///
/// Linux takes an initial window only before a socket has sent any data, which
/// a hop that waits has (its hello): so the window is for the dial, and the
/// pace for the flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The congestion window to start with, in segments: more than the
    /// kernel's own 10, at most 1024, and never more than what a flow had in
    /// flight of late, by rate and round trip time.
    pub(crate) initial_window_segments: u32,
    /// Bytes per second for `SO_MAX_PACING_RATE` during the first round trips.
    /// It bounds a flow below what the way may bear by now, so it is to be
    /// lifted soon; the kernel then paces by what its congestion control says.
    pub(crate) pacing_rate: u32,
}

/// What is remembered of the way to a peer, in one direction.
#[derive(Clone, Debug, Default)]
pub(crate) struct Path {
    estimate: Option<Estimate>,
    /// The shortest round trip, and when it was last confirmed or replaced.
    min_rtt: Option<(Duration, Duration)>,
}

#[derive(Clone, Copy, Debug)]
struct Estimate {
    /// Bytes per second.
    rate: f64,
    /// Segments that the congestion control let be in flight.
    window: f64,
    segment_bytes: f64,
    at: Duration,
}

impl Path {
    /// Takes note of what a flow achieved, at its end.
    pub(crate) fn learn(&mut self, info: &TcpInfo, now: Duration) {
        if let Some(min_rtt) = info.min_rtt() {
            // The way may have become longer: the shortest of long ago is gone.
            let known = self.min_rtt.filter(|(_, at)| now < *at + AGE_MAX);
            if known.is_none_or(|(known, _)| min_rtt <= known) {
                self.min_rtt = Some((min_rtt, now));
            }
        }
        let segment_bytes = match info.send_mss_bytes {
            0 => SEGMENT_BYTES,
            bytes => bytes,
        };
        let rate =
            f64::from(u32::try_from(info.delivery_rate_bytes_per_second).unwrap_or(u32::MAX));
        if info.acked_bytes < SEGMENTS_MIN * u64::from(segment_bytes) || rate == 0.0 {
            return;
        }
        let next = Estimate {
            rate,
            window: info.cwnd_segments.into(),
            segment_bytes: segment_bytes.into(),
            at: now,
        };
        // A flow that had less to send, and lost nothing, does not show that
        // the way bears less.
        let met_its_bound = info.retransmitted_segments > 0;
        let known = self.estimate.map(|known| known.rate * known.worth(now));
        if met_its_bound || known.is_none_or(|known| rate >= known) {
            self.estimate = Some(next);
        }
    }

    /// How a flow is to start that shares the way with `sharers` in all.
    /// `None` when it had better start as any other.
    pub(crate) fn plan(&self, sharers: f64, now: Duration) -> Option<Plan> {
        let (estimate, (min_rtt, _)) = (self.estimate?, self.min_rtt?);
        let share = estimate.worth(now) / sharers.max(1.0);
        let in_flight = estimate.rate * min_rtt.as_secs_f64() / estimate.segment_bytes;
        let window = (in_flight.min(estimate.window) * share).min(WINDOW_MAX);
        (window > WINDOW_KERNEL).then(|| Plan {
            initial_window_segments: whole(window),
            pacing_rate: whole(estimate.rate * share * PACE),
        })
    }
}

impl Estimate {
    /// From 1 when it is new to 0 when it says nothing any more.
    fn worth(&self, now: Duration) -> f64 {
        let age = now.saturating_sub(self.at);
        if age >= AGE_MAX {
            return 0.0;
        }
        (-age.as_secs_f64() / HALF_LIFE.as_secs_f64()).exp2()
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "never negative, and a float that is too large becomes the largest number"
)]
fn whole(number: f64) -> u32 {
    number as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1000);

    /// A flow that moved plenty at 50 ms, with as many segments in flight as
    /// its rate says.
    fn flow(rate: u64) -> TcpInfo {
        TcpInfo {
            min_rtt_us: 50_000,
            send_mss_bytes: 1000,
            acked_bytes: 10_000_000,
            delivery_rate_bytes_per_second: rate,
            cwnd_segments: u32::try_from(rate / 20_000).unwrap(),
            ..TcpInfo::default()
        }
    }

    fn after(seconds: u64) -> Duration {
        NOW + Duration::from_secs(seconds)
    }

    fn window(path: &Path, sharers: f64, now: Duration) -> u32 {
        let plan = path.plan(sharers, now);
        plan.map_or(0, |plan| plan.initial_window_segments)
    }

    #[test]
    fn a_flow_starts_as_the_last_one_went() {
        let mut path = Path::default();
        assert_eq!(path.plan(1.0, NOW), None);
        path.learn(&flow(10_000_000), NOW);
        let plan = Plan {
            initial_window_segments: 500,
            pacing_rate: 12_000_000,
        };
        assert_eq!(path.plan(1.0, NOW), Some(plan));
    }

    #[test]
    fn what_is_old_is_worth_less_and_then_nothing() {
        let mut path = Path::default();
        path.learn(&flow(10_000_000), NOW);
        assert_eq!(window(&path, 1.0, after(10)), 250);
        assert_eq!(window(&path, 1.0, after(20)), 125);
        assert_eq!(window(&path, 1.0, after(59)), 0, "less than the kernel's");
        path.learn(&flow(1_000_000_000), after(60));
        assert_eq!(window(&path, 1.0, after(60)), 1024);
        assert_ne!(window(&path, 1.0, after(119)), 0);
        assert_eq!(window(&path, 1.0, after(120)), 0);
    }

    #[test]
    fn flows_that_start_together_share() {
        let mut path = Path::default();
        path.learn(&flow(10_000_000), NOW);
        let plan = path.plan(10.0, NOW).unwrap();
        assert_eq!(plan.initial_window_segments, 50);
        assert_eq!(plan.pacing_rate, 1_200_000);
        assert_eq!(path.plan(60.0, NOW), None);
    }

    #[test]
    fn a_window_that_was_cut_is_not_gone_beyond() {
        let mut path = Path::default();
        path.learn(
            &TcpInfo {
                cwnd_segments: 30,
                ..flow(10_000_000)
            },
            NOW,
        );
        assert_eq!(window(&path, 1.0, NOW), 30);
    }

    #[test]
    fn a_flow_that_had_little_to_say_changes_nothing() {
        let mut path = Path::default();
        path.learn(&flow(10_000_000), NOW);
        let short = TcpInfo {
            acked_bytes: 19_999,
            ..flow(20_000_000)
        };
        path.learn(&short, NOW);
        path.learn(&flow(1_000_000), NOW);
        assert_eq!(window(&path, 1.0, NOW), 500);
    }

    #[test]
    fn a_flow_that_lost_segments_lowers_it() {
        let mut path = Path::default();
        path.learn(&flow(10_000_000), NOW);
        let lossy = TcpInfo {
            retransmitted_segments: 7,
            ..flow(1_000_000)
        };
        path.learn(&lossy, NOW);
        assert_eq!(window(&path, 1.0, NOW), 50);
    }

    #[test]
    fn a_way_that_has_become_longer_is_believed_in_the_end() {
        let mut path = Path::default();
        let far = TcpInfo {
            min_rtt_us: 100_000,
            cwnd_segments: 1000,
            ..flow(10_000_000)
        };
        path.learn(&flow(10_000_000), NOW);
        path.learn(&far, after(10));
        assert_eq!(window(&path, 1.0, after(10)), 500);
        path.learn(&far, after(60));
        assert_eq!(window(&path, 1.0, after(60)), 1000);
    }

    #[test]
    fn the_round_trip_of_a_socket_that_knows_none_is_not_believed() {
        let mut path = Path::default();
        for min_rtt_us in [0, u32::MAX] {
            let info = TcpInfo {
                min_rtt_us,
                ..flow(10_000_000)
            };
            path.learn(&info, NOW);
            assert_eq!(path.plan(1.0, NOW), None);
        }
    }
}
