// SPDX-License-Identifier: Apache-2.0
//! The round trip time of one link, from all sources. Pure.

use std::time::Duration;

use super::series::{News, Series};

/// Weight of a new time in the smoothed values.
const GAIN: f64 = 0.25;

/// The source of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// TCP connections to the node: the path that flows take.
    Hops,
    /// STAMP.
    Stamp,
    /// TCP handshakes made to measure, where UDP does not pass.
    Handshake,
}

/// The round trip time of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Estimate {
    /// The shortest recent round trip, in microseconds.
    pub(crate) rtt_us: u32,
    /// Its source.
    pub(crate) source: Source,
    /// When it was last confirmed.
    pub(crate) at: Duration,
}

/// The times of one link.
#[derive(Clone, Debug)]
pub(super) struct Window {
    /// By source port: where a network spreads flows over several paths, each port has its own.
    ports: Vec<Series>,
    hops: Series,
    handshakes: Series,
    /// When the path of a port became longer or shorter.
    moved: Duration,
    /// Mean and mean deviation, in microseconds.
    smoothed: Option<(f64, f64)>,
}

impl Window {
    pub(super) fn new(ports: u8) -> Self {
        Self {
            ports: vec![Series::default(); usize::from(ports)],
            hops: Series::default(),
            handshakes: Series::default(),
            moved: Duration::ZERO,
            smoothed: None,
        }
    }

    /// Adds the round trip of a probe.
    pub(super) fn on_probe(&mut self, port: u8, rtt_us: u32, now: Duration) -> News {
        let Some(series) = self.ports.get_mut(usize::from(port)) else {
            return News::Usual;
        };
        let news = series.add(rtt_us, now);
        if news == News::Moved {
            // Hops measured before this may have taken the former path.
            self.moved = now;
            // The mean of the former path would make timeouts too long or too short.
            self.smoothed = None;
        }
        self.smooth(rtt_us);
        news
    }

    /// Adds the round trip of a TCP connection that flows use.
    pub(super) fn on_hop(&mut self, rtt_us: u32, now: Duration) -> News {
        self.hops.add(rtt_us, now)
    }

    /// Adds the round trip of a handshake made to measure.
    pub(super) fn on_handshake(&mut self, rtt_us: u32, now: Duration) -> News {
        self.smooth(rtt_us);
        self.handshakes.add(rtt_us, now)
    }

    /// The round trip time by measurements no older than `ttl`. Connections take precedence over
    /// probes, unless probes have detected a change since; handshakes come last.
    pub(super) fn estimate(&self, now: Duration, ttl: Duration) -> Option<Estimate> {
        let within = |series: &Series, source, ttl| {
            let (rtt_us, at) = series.level().zip(series.newest())?;
            let estimate = Estimate { rtt_us, source, at };
            (now < at + ttl).then_some(estimate)
        };
        let hops = within(&self.hops, Source::Hops, ttl).filter(|hops| hops.at >= self.moved);
        // Ports are probed in turn, so each is measured less often than the link.
        let turn = ttl * u32::try_from(self.ports.len()).unwrap_or(1);
        let ports = self.ports.iter();
        let ports = ports.filter_map(|series| within(series, Source::Stamp, turn));
        let shortest = || ports.reduce(shorter).filter(|known| now < known.at + ttl);
        let handshakes = || within(&self.handshakes, Source::Handshake, ttl);
        hops.or_else(shortest).or_else(handshakes)
    }

    /// Time of the last measurement from any source.
    pub(super) fn newest(&self) -> Option<Duration> {
        let others = [&self.hops, &self.handshakes];
        let all = self.ports.iter().chain(others);
        all.filter_map(Series::newest).max()
    }

    /// Mean and mean deviation of the times, in microseconds.
    pub(super) fn smoothed_us(&self) -> Option<(u32, u32)> {
        let (mean, deviation) = self.smoothed?;
        Some((whole(mean), whole(deviation)))
    }

    fn smooth(&mut self, rtt_us: u32) {
        let rtt = f64::from(rtt_us);
        self.smoothed = Some(match self.smoothed {
            None => (rtt, 0.0),
            Some((mean, deviation)) => {
                // As in RFC 6298 section 2.3, with a weight of 1/4 for both.
                let off = rtt - mean;
                (
                    mean + GAIN * off,
                    deviation + GAIN * (off.abs() - deviation),
                )
            }
        });
    }
}

/// The shorter of two, with the later time.
fn shorter(one: Estimate, other: Estimate) -> Estimate {
    Estimate {
        rtt_us: one.rtt_us.min(other.rtt_us),
        at: one.at.max(other.at),
        ..one
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a mean of numbers of 32 bits that are not negative"
)]
fn whole(micros: f64) -> u32 {
    micros.round() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(30);

    fn at(second: u64) -> Duration {
        Duration::from_secs(second)
    }

    fn known(window: &Window, second: u64) -> Option<(u32, Source)> {
        let estimate = window.estimate(at(second), TTL)?;
        Some((estimate.rtt_us, estimate.source))
    }

    #[test]
    fn nothing_measured_is_nothing_known() {
        let window = Window::new(4);
        assert_eq!(window.estimate(at(0), TTL), None);
        assert_eq!((window.newest(), window.smoothed_us()), (None, None));
    }

    #[test]
    fn shortest_path_counts() {
        let mut window = Window::new(3);
        for (port, rtt_us) in (0..).zip([30_000, 10_000, 20_000]) {
            window.on_probe(port, rtt_us, at(u64::from(port)));
        }
        assert_eq!(known(&window, 3), Some((10_000, Source::Stamp)));
        // The short path is gone; the next best one is left.
        assert_eq!(window.on_probe(1, 40_000, at(4)), News::Odd);
        assert_eq!(window.on_probe(1, 40_000, at(5)), News::Moved);
        assert_eq!(known(&window, 5), Some((20_000, Source::Stamp)));
    }

    #[test]
    fn connections_before_handshakes() {
        let mut window = Window::new(1);
        window.on_handshake(13_000, at(0));
        assert_eq!(known(&window, 1), Some((13_000, Source::Handshake)));
        window.on_probe(0, 12_000, at(1));
        assert_eq!(known(&window, 1), Some((12_000, Source::Stamp)));
        window.on_hop(11_000, at(2));
        assert_eq!(known(&window, 2), Some((11_000, Source::Hops)));
    }

    // promise: L5
    #[test]
    fn connections_before_change_ignored() {
        let mut window = Window::new(1);
        window.on_probe(0, 10_000, at(0));
        window.on_hop(10_000, at(1));
        window.on_probe(0, 50_000, at(2));
        assert_eq!(known(&window, 2), Some((10_000, Source::Hops)));
        window.on_probe(0, 50_000, at(3));
        assert_eq!(known(&window, 3), Some((50_000, Source::Stamp)));
    }

    // promise: L7
    #[test]
    fn old_is_unknown() {
        let mut window = Window::new(2);
        window.on_probe(0, 10_000, at(0));
        window.on_probe(1, 12_000, at(10));
        window.on_hop(9_000, at(5));
        assert_eq!(known(&window, 29), Some((9_000, Source::Hops)));
        assert_eq!(known(&window, 35), Some((10_000, Source::Stamp)));
        assert_eq!(known(&window, 40), None);
        window.on_probe(1, 12_000, at(59));
        assert_eq!(known(&window, 59), Some((10_000, Source::Stamp)));
        assert_eq!(known(&window, 60), Some((12_000, Source::Stamp)));
        assert_eq!(window.newest(), Some(at(59)));
    }

    #[test]
    fn means_follow_by_a_quarter() {
        let mut window = Window::new(1);
        window.on_probe(0, 10_000, at(0));
        window.on_probe(0, 10_800, at(1));
        assert_eq!(window.smoothed_us(), Some((10_200, 200)));
    }
}
