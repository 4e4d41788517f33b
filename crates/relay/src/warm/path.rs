// SPDX-License-Identifier: Apache-2.0
//! What the way to a peer bears, for flows that begin: TCP control block sharing
//! (RFC 9040) by hops to one peer.
//!
//! A hop knows nothing of the way when its flow comes: nothing has gone over it.
//! Flows that have ended know better. The rate of the best of late is remembered
//! (temporal sharing, §6) and doubted more and more as it ages, until the way is
//! taken to bear what it was taken to bear at first: [`INITIAL_BANDWIDTH`]. A flow with
//! less to send, or with a part of the way, does not show that it bears less; one
//! that lost segments does.
//!
//! The rate says how much a flow may have in flight in its first round trip, and
//! how fast that may leave. It is divided among the flows that start at the same
//! time (ensemble sharing, §7); those that end within their first bytes,
//! [`FREE_BYTES`], are too small to count.

use std::time::Duration;

use crate::sys::TcpInfo;

/// What a way between two nodes is taken to bear while nobody knows, in bytes per
/// second: 100 Mbit/s. Plans reckon with the same.
pub const INITIAL_BANDWIDTH: u32 = 12_500_000;
/// What every flow may send without regard to others that start: as much as servers
/// that are known to be in a hurry send in one window, 32 segments.
pub(crate) const FREE_BYTES: u64 = 32 * 1448;
/// A flow that sent fewer segments has not found out what the way bears.
const SEGMENTS_MIN: u64 = 20;
/// What every connection may send at once, in segments (RFC 6928). Nobody is paced for
/// less: to spread so few over a round trip only makes them late.
pub(crate) const WINDOW_KERNEL: u32 = 10;
const SEGMENT_BYTES: f64 = 1448.0;
/// What is known is worth half after so long.
const HALF_LIFE: Duration = Duration::from_secs(10);
/// And nothing after so long.
const AGE_MAX: Duration = Duration::from_secs(60);
/// What is left of the rate after a loss at the least. As a rule more is: what the
/// congestion control has left to the flow.
const AFTER_LOSS: f64 = 0.5;
/// The pace, by the rate: room to find that there is more.
const PACE: f64 = 1.2;
/// A round trip, while none is known.
const ROUND_UNKNOWN: Duration = Duration::from_millis(100);

/// How a flow goes on after its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    /// Bytes per second for `SO_MAX_PACING_RATE`.
    pub(crate) pacing_rate: u32,
    /// How long it holds: a round trip, and one more for each doubling that it takes
    /// to the whole. Then the kernel paces by what its congestion control says.
    pub(crate) hold: Duration,
}

/// What is known of the way to a peer, in one direction.
#[derive(Clone, Debug)]
pub(crate) struct Path {
    /// In bytes per second; 0 if nothing is to be taken for granted.
    assumed: f64,
    estimate: Option<Estimate>,
    /// When the rate was last cut.
    cut: Option<Duration>,
    /// Flows that are held to a share.
    sharers: u32,
}

#[derive(Clone, Copy, Debug)]
struct Estimate {
    /// Bytes per second.
    rate: f64,
    at: Duration,
}

impl Path {
    /// Knows nothing but what is assumed, in bytes per second.
    pub(crate) fn new(assumed: u32) -> Self {
        Self {
            assumed: assumed.into(),
            estimate: None,
            cut: None,
            sharers: 0,
        }
    }

    /// Takes note of what a flow achieved, at its end.
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

    /// What the way is taken to bear, in bytes per second.
    pub(crate) fn rate(&self, now: Duration) -> u32 {
        whole(self.known(now))
    }

    /// The pace of a flow's first bytes, in bytes per second, with a round trip time
    /// if it is known. None where the kernel's own window would do, or nothing is
    /// known.
    pub(crate) fn first_pace(&self, round: Option<Duration>, now: Duration) -> Option<u32> {
        let rate = self.known(now);
        let window = rate * round.unwrap_or(ROUND_UNKNOWN).as_secs_f64();
        (window > f64::from(WINDOW_KERNEL) * SEGMENT_BYTES).then(|| whole(rate * PACE))
    }

    /// The pace of a flow that has sent its first bytes. It shares until
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

    /// A flow has ended, or is held no longer.
    pub(crate) fn unshare(&mut self) {
        self.sharers = self.sharers.saturating_sub(1);
    }

    fn known(&self, now: Duration) -> f64 {
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

/// What a flow that had something to send shows.
struct Shown {
    /// The rate that it achieved, in bytes per second.
    rate: f64,
    /// No more than this goes within the window that its congestion control has left it.
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
fn whole(number: f64) -> u32 {
    number as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1000);
    const ROUND: Option<Duration> = Some(Duration::from_millis(50));

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
