// SPDX-License-Identifier: Apache-2.0
//! Estimates the bandwidth of the path to a peer, for flows that begin: TCP control block sharing
//! (RFC 9040) by hops to one peer.
//!
//! A hop has measured nothing of the path when its flow begins, having carried no data. Flows that
//! have ended have measured it. The rate of the best recent flow is kept (temporal sharing, §6) and
//! trusted less as it ages, until the estimate is the initial one again, by default
//! [`INITIAL_BANDWIDTH`]. A flow with less to send, or with a share of the path, does not show a
//! lower bandwidth; one that lost segments does.
//!
//! The rate decides how much a flow may have in flight in its first round trip, and how fast it may
//! send that. It is divided among the flows that start at the same time (ensemble sharing, §7);
//! flows that end within their first bytes, [`FREE_BYTES`], are too small to count.

use std::time::Duration;

use crate::sys::TcpInfo;

/// Assumed bandwidth of an unmeasured path between two nodes, in bytes per second: 100 Mbit/s.
/// Plans assume the same.
pub const INITIAL_BANDWIDTH: u32 = 12_500_000;
/// Bytes that every flow may send regardless of others that start: the largest initial window in
/// use by fast servers, 32 segments.
pub(crate) const FREE_BYTES: u64 = 32 * 1448;
/// A flow that sent fewer segments has not measured the bandwidth.
const SEGMENTS_MIN: u64 = 20;
/// The initial window of every connection, in segments (RFC 6928). Smaller windows are not paced:
/// spreading so few segments over a round trip only delays them.
pub(crate) const WINDOW_KERNEL: u32 = 10;
const SEGMENT_BYTES: f64 = 1448.0;
/// Half-life of an estimate.
const HALF_LIFE: Duration = Duration::from_secs(10);
/// Age at which an estimate is discarded.
const AGE_MAX: Duration = Duration::from_secs(60);
/// Lower bound on the factor that a loss applies to the rate. Usually the congestion control has
/// left the flow more.
const AFTER_LOSS: f64 = 0.5;
/// Pacing rate relative to the estimate: room to detect more bandwidth.
const PACE: f64 = 1.2;
/// Round trip time before it is measured.
const ROUND_UNKNOWN: Duration = Duration::from_millis(100);

/// How a flow continues after its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    /// Bytes per second for `SO_MAX_PACING_RATE`.
    pub(crate) pacing_rate: u32,
    /// How long the bound applies: a round trip, and one more for each doubling from the share to
    /// the whole. Then the kernel paces at the rate of its congestion control.
    pub(crate) hold: Duration,
}

/// The estimate of the path to a peer, in one direction.
#[derive(Clone, Debug)]
pub(crate) struct Path {
    /// In bytes per second; 0 if no assumption is allowed.
    assumed: f64,
    estimate: Option<Estimate>,
    /// When the rate was last cut.
    cut: Option<Duration>,
    /// Flows that are bound to a share.
    sharers: u32,
}

#[derive(Clone, Copy, Debug)]
struct Estimate {
    /// Bytes per second.
    rate: f64,
    at: Duration,
}

impl Path {
    /// A path with only the assumed bandwidth, in bytes per second.
    pub(crate) fn new(assumed: u32) -> Self {
        Self {
            assumed: assumed.into(),
            estimate: None,
            cut: None,
            sharers: 0,
        }
    }

    /// Records the throughput of a flow, at its end.
    pub(crate) fn learn(&mut self, info: &TcpInfo, now: Duration) {
        let Some(Shown { rate, bound, round }) = Shown::of(info) else {
            return;
        };
        let known = self.known(now);
        // Flows that end within a round trip have met the same loss.
        let is_new_loss = info.retransmitted_segments > info.needless_segments
            && self.cut.is_none_or(|cut| now >= cut + round);
        let rate = if rate >= known {
            rate
        } else if is_new_loss && bound < known {
            self.cut = Some(now);
            rate.max(bound).max(known * AFTER_LOSS)
        } else {
            return;
        };
        self.estimate = Some(Estimate { rate, at: now });
    }

    /// The estimated bandwidth, in bytes per second.
    pub(crate) fn rate(&self, now: Duration) -> u32 {
        whole(self.known(now))
    }

    /// The pacing rate of a flow's first bytes, in bytes per second, for a round trip time if
    /// known. `None` if the kernel's default window is enough, or without an estimate.
    pub(crate) fn first_pace(&self, round: Option<Duration>, now: Duration) -> Option<u32> {
        let rate = self.known(now);
        let window = rate * round.unwrap_or(ROUND_UNKNOWN).as_secs_f64();
        (window > f64::from(WINDOW_KERNEL) * SEGMENT_BYTES).then(|| whole(rate * PACE))
    }

    /// The pacing rate of a flow that has sent its first bytes. The flow counts until
    /// [`Self::unshare`].
    pub(crate) fn share(&mut self, round: Option<Duration>, now: Duration) -> Share {
        let round = round.unwrap_or(ROUND_UNKNOWN);
        self.sharers += 1;
        let sharers = f64::from(self.sharers);
        Share {
            pacing_rate: whole(self.known(now) * PACE / sharers),
            hold: round.mul_f64(1.0 + sharers.log2()),
        }
    }

    /// A flow has ended, or is no longer bound.
    pub(crate) fn unshare(&mut self) {
        self.sharers = self.sharers.saturating_sub(1);
    }

    fn known(&self, now: Duration) -> f64 {
        // Other traffic comes and goes: an older estimate is worth less.
        let worth = |estimate: &Estimate| {
            let age = now.saturating_sub(estimate.at);
            if age >= AGE_MAX {
                return 0.0;
            }
            (-age.as_secs_f64() / HALF_LIFE.as_secs_f64()).exp2()
        };
        let of = |estimate: Estimate| (estimate.rate - self.assumed) * worth(&estimate);
        self.assumed + self.estimate.map_or(0.0, of)
    }
}

/// The measurement of a flow that had something to send.
struct Shown {
    /// Its throughput, in bytes per second.
    rate: f64,
    /// Upper bound by its last congestion window, in bytes per second.
    bound: f64,
    round: Duration,
}

impl Shown {
    fn of(info: &TcpInfo) -> Option<Self> {
        let round = info.min_rtt()?;
        let segment = match info.send_mss_bytes {
            0 => SEGMENT_BYTES,
            bytes => bytes.into(),
        };
        let delivered =
            f64::from(u32::try_from(info.delivery_rate_bytes_per_second).unwrap_or(u32::MAX));
        let enough = info.acked_bytes >= SEGMENTS_MIN * u64::from(whole(segment));
        let bound = f64::from(info.cwnd_segments) * segment / round.as_secs_f64();
        (enough && delivered > 0.0).then(|| Self {
            // Acknowledgements that arrive at once make the kernel's rate too high; a window in
            // each round trip bounds it.
            rate: delivered.min(bound),
            bound,
            round,
        })
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "never negative, and a float that is too large becomes the largest number"
)]
pub(super) fn whole(number: f64) -> u32 {
    number as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1000);
    const ROUND: Option<Duration> = Some(Duration::from_millis(50));

    /// A flow that moved plenty at 50 ms, with a window that matches its rate.
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

    fn path() -> Path {
        Path::new(1_000_000)
    }

    fn after(seconds: u64) -> Duration {
        NOW + Duration::from_secs(seconds)
    }

    #[test]
    fn initial_then_measured_bandwidth() {
        let mut path = path();
        assert_eq!(path.rate(NOW), 1_000_000);
        assert_eq!(path.first_pace(ROUND, NOW), Some(1_200_000));
        path.learn(&flow(10_000_000), NOW);
        assert_eq!(path.rate(NOW), 10_000_000);
        assert_eq!(path.first_pace(ROUND, NOW), Some(12_000_000));
    }

    #[test]
    fn no_pacing_before_measurement() {
        let mut path = Path::new(0);
        assert_eq!((path.rate(NOW), path.first_pace(ROUND, NOW)), (0, None));
        path.learn(&flow(10_000_000), NOW);
        assert_eq!(path.rate(NOW), 10_000_000);
        assert_eq!(path.first_pace(ROUND, after(60)), None);
    }

    // promise: B16
    #[test]
    fn old_estimates_decay() {
        let mut path = path();
        path.learn(&flow(9_000_000), NOW);
        assert_eq!(path.rate(after(10)), 5_000_000);
        assert_eq!(path.rate(after(20)), 3_000_000);
        assert!(path.rate(after(59)) > 1_000_000);
        assert_eq!(path.rate(after(60)), 1_000_000);
        path.learn(&flow(4_000_000), after(20));
        assert_eq!(path.rate(after(20)), 4_000_000, "less than before, and new");
    }

    #[test]
    fn short_flow_changes_nothing() {
        let mut path = path();
        path.learn(&flow(10_000_000), NOW);
        let short = TcpInfo {
            acked_bytes: 19_999,
            ..flow(20_000_000)
        };
        path.learn(&short, NOW);
        path.learn(&flow(2_000_000), NOW);
        assert_eq!(path.rate(NOW), 10_000_000);
    }

    // promise: B16
    #[test]
    fn window_bounds_estimate() {
        let mut path = path();
        let cut = TcpInfo {
            cwnd_segments: 200,
            ..flow(10_000_000)
        };
        path.learn(&cut, NOW);
        assert_eq!(path.rate(NOW), 4_000_000);
    }

    // promise: B16
    #[test]
    fn loss_cuts_estimate() {
        let mut path = path();
        path.learn(&flow(10_000_000), NOW);
        let lossy = TcpInfo {
            retransmitted_segments: 7,
            cwnd_segments: 350,
            ..flow(500_000)
        };
        path.learn(&lossy, NOW);
        assert_eq!(path.rate(NOW), 7_000_000);
    }

    // promise: B16
    #[test]
    fn one_cut_per_round_trip() {
        let mut path = path();
        path.learn(&flow(10_000_000), NOW);
        let lossy = TcpInfo {
            retransmitted_segments: 7,
            ..flow(500_000)
        };
        path.learn(&lossy, NOW);
        assert_eq!(path.rate(NOW), 5_000_000);
        path.learn(&lossy, NOW + Duration::from_millis(49));
        assert!(path.rate(NOW + Duration::from_millis(49)) > 4_900_000);
        for rounds in 1..9 {
            path.learn(&lossy, NOW + Duration::from_millis(50) * rounds);
        }
        let rate = path.rate(after(1));
        assert!((500_000..600_000).contains(&rate), "{rate}: what was shown");
        assert_eq!(path.rate(after(61)), 1_000_000, "and what is assumed again");
    }

    #[test]
    fn spurious_retransmission_no_loss() {
        let mut path = path();
        path.learn(&flow(10_000_000), NOW);
        let needless = TcpInfo {
            retransmitted_segments: 7,
            needless_segments: 7,
            ..flow(500_000)
        };
        path.learn(&needless, NOW);
        let unhurt = TcpInfo {
            retransmitted_segments: 7,
            cwnd_segments: 500,
            ..flow(500_000)
        };
        path.learn(&unhurt, NOW);
        assert_eq!(path.rate(NOW), 10_000_000);
    }

    #[test]
    fn faster_lossy_flow_raises() {
        let mut path = path();
        let lossy = TcpInfo {
            retransmitted_segments: 7,
            ..flow(3_000_000)
        };
        path.learn(&lossy, NOW);
        assert_eq!(path.rate(NOW), 3_000_000);
    }

    // promise: B16
    #[test]
    fn simultaneous_flows_share() {
        let mut path = path();
        path.learn(&flow(10_000_000), NOW);
        let alone = path.share(ROUND, NOW);
        let whole = Share {
            pacing_rate: 12_000_000,
            hold: Duration::from_millis(50),
        };
        assert_eq!(alone, whole);
        let shares: Vec<Share> = (0..3).map(|_| path.share(ROUND, NOW)).collect();
        assert_eq!(shares[0].pacing_rate, 6_000_000);
        assert_eq!(shares[0].hold, Duration::from_millis(100));
        assert_eq!(shares[2].pacing_rate, 3_000_000);
        assert_eq!(shares[2].hold, Duration::from_millis(150));
        (0..4).for_each(|_| path.unshare());
        assert_eq!(path.share(ROUND, NOW), whole);
    }

    #[test]
    fn short_path_not_paced() {
        let path = Path::new(INITIAL_BANDWIDTH);
        assert_eq!(path.first_pace(Some(Duration::from_millis(1)), NOW), None);
        let pace = path.first_pace(Some(Duration::from_millis(2)), NOW);
        assert_eq!(pace, Some(15_000_000));
        assert_eq!(path.first_pace(None, NOW), pace);
    }

    #[test]
    fn unknown_rtt_ignored() {
        let mut path = path();
        for min_rtt_us in [0, u32::MAX] {
            let info = TcpInfo {
                min_rtt_us,
                ..flow(10_000_000)
            };
            path.learn(&info, NOW);
            assert_eq!(path.rate(NOW), 1_000_000);
        }
    }
}
