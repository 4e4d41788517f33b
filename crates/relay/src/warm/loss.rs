// SPDX-License-Identifier: Apache-2.0
//! How much of what hops over TCP to a peer send and receive is lost, by which `transport = "auto"`
//! chooses what carries new flows.
//!
//! Flows that begin at once overrun a queue, also on a path that loses nothing. So what counts is the
//! least loss of the last windows of time, and both have to agree.

use std::time::Duration;

use crate::sys::Segments;

use super::path::whole;

/// The least that a window lasts, and the segments in it.
const WINDOW: Duration = Duration::from_secs(5);
const SEGMENTS_MIN: f64 = 500.0;
/// Shares of losses from which on tunnels carry flows, and below which TCP does again: repair symbols
/// halve the time of short flows from 0.5 % on (docs/design/0027).
const LOSSY: f64 = 0.005;
const CLEAN: f64 = 0.0025;
/// Age at which a window shows nothing any more.
const AGE_MAX: Duration = Duration::from_secs(600);
/// While tunnels carry flows, one of so many takes TCP: only hops over TCP show what is lost.
const TRIAL_EVERY: u32 = 16;
/// Segments that arrive in a round trip at the least, for one that pauses in between (RFC 6928).
const FLIGHT_MIN: f64 = 10.0;
/// Share of segments that arrived out of order above which no more can be concluded.
const OUT_OF_ORDER_MAX: f64 = 0.95;

/// What hops to a peer have lost of late.
#[derive(Clone, Debug, Default)]
pub(super) struct Losses {
    window: Window,
    /// The shares of the last two windows, and when the later one ended.
    shares: [Option<f64>; 2],
    ended: Duration,
    is_lossy: bool,
    /// Flows since the last one that took TCP.
    flows: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Window {
    began: Option<Duration>,
    segments: f64,
    lost: f64,
}

impl Losses {
    /// Adds what a hop has seen, at its end. Its flow lasted for `age`.
    pub(super) fn learn(&mut self, seen: &Segments, age: Duration, now: Duration) {
        self.forget(now);
        let window = &mut self.window;
        let began = *window.began.get_or_insert_with(|| now.saturating_sub(age));
        window.segments += f64::from(seen.sent) + f64::from(seen.received);
        window.lost += lost_of_sent(seen) + lost_of_received(seen, age);
        if now < began + WINDOW || window.segments < SEGMENTS_MIN {
            return;
        }
        let share = window.lost / window.segments;
        self.shares = [self.shares[1], Some(share)];
        (self.window, self.ended) = (Window::default(), now);
        if let [Some(former), Some(latter)] = self.shares {
            let (least, most) = (former.min(latter), former.max(latter));
            self.is_lossy = least >= LOSSY || (self.is_lossy && most >= CLEAN);
        }
    }

    /// Whether a flow that begins should not take TCP.
    pub(super) fn avoids_tcp(&mut self, now: Duration) -> bool {
        self.forget(now);
        self.flows = if self.is_lossy { self.flows + 1 } else { 0 };
        self.is_lossy && !self.flows.is_multiple_of(TRIAL_EVERY)
    }

    /// Whether tunnels carry most flows.
    pub(super) fn is_lossy(&self) -> bool {
        self.is_lossy
    }

    /// How many of a million segments are lost, if known.
    pub(super) fn in_million(&self) -> Option<u32> {
        let [former, latter] = self.shares;
        Some(whole(latter?.min(former.unwrap_or(1.0)) * 1e6))
    }

    fn forget(&mut self, now: Duration) {
        if self.shares[1].is_some() && now >= self.ended + AGE_MAX {
            *self = Self::default();
        }
    }
}

/// What was sent again, and not in vain.
fn lost_of_sent(seen: &Segments) -> f64 {
    f64::from(seen.retransmitted.saturating_sub(seen.needless))
}

/// A segment that is lost is missing for a round trip, and all that arrive meanwhile are out of order:
/// of `flight` in a round trip, a share of 1 - e^(-loss * flight).
fn lost_of_received(seen: &Segments, age: Duration) -> f64 {
    let received = f64::from(seen.received);
    if received == 0.0 {
        return 0.0;
    }
    let share = (f64::from(seen.out_of_order) / received).min(OUT_OF_ORDER_MAX);
    let rounds = age.as_secs_f64() / seen.round.as_secs_f64().max(1e-6);
    // Of fewer segments than a flight has, half follow a lost one on the average.
    let flight = (received / rounds.max(1.0))
        .max(FLIGHT_MIN)
        .min(received / 2.0);
    -(1.0 - share).ln() / flight.max(1.0) * received
}

#[cfg(test)]
mod tests {
    use posthaste_testkit::Rng;

    use super::*;

    const ROUND: Duration = Duration::from_millis(100);

    fn after(secs: u64) -> Duration {
        Duration::from_secs(1000 + secs)
    }

    /// A flow that sent so many segments and some of them again.
    fn sent(sent: u32, retransmitted: u32) -> Segments {
        Segments {
            sent,
            retransmitted,
            round: ROUND,
            ..Segments::default()
        }
    }

    /// Flows in each second of a time, every tenth of which lost segments.
    fn learn(losses: &mut Losses, secs: std::ops::Range<u64>, retransmitted: u32) {
        for second in secs {
            for _ in 0..9 {
                losses.learn(&sent(100, 0), ROUND, after(second));
            }
            losses.learn(&sent(100, retransmitted), ROUND, after(second));
        }
    }

    #[test]
    fn tunnels_while_much_is_lost() {
        let mut losses = Losses::default();
        learn(&mut losses, 0..20, 1);
        assert!(!losses.avoids_tcp(after(20)), "0.1 %: {losses:?}");
        learn(&mut losses, 20..40, 10);
        assert!(losses.avoids_tcp(after(40)), "1 %: {losses:?}");
        learn(&mut losses, 40..60, 4);
        assert!(losses.avoids_tcp(after(60)), "0.4 % are too many to return");
        learn(&mut losses, 60..80, 2);
        assert!(!losses.avoids_tcp(after(80)), "0.2 %: {losses:?}");
    }

    #[test]
    fn burst_of_losses_changes_nothing() {
        let mut losses = Losses::default();
        for burst in 0..4 {
            learn(&mut losses, burst * 20..burst * 20 + 3, 500);
            learn(&mut losses, burst * 20 + 3..burst * 20 + 20, 0);
            assert!(!losses.is_lossy(), "{losses:?}");
        }
    }

    #[test]
    fn some_flows_find_out() {
        let mut losses = Losses::default();
        learn(&mut losses, 0..20, 50);
        let tunnels = (0..160).filter(|_| losses.avoids_tcp(after(20))).count();
        assert_eq!(tunnels, 150);
        assert!(!losses.avoids_tcp(after(700)), "nothing is known any more");
        assert_eq!(losses.in_million(), None);
    }

    #[test]
    fn needless_retransmissions_are_no_losses() {
        let needless = Segments {
            needless: 50,
            ..sent(100, 50)
        };
        assert_eq!(lost_of_sent(&needless), 0.0);
    }

    /// A receiver sees what is missing by what arrives behind it.
    #[test]
    fn losses_of_received_segments() {
        for (per_round, rounds, loss) in [
            (10, 1, 0.05),
            (100, 1, 0.01),
            (100, 50, 0.01),
            (800, 10, 0.005),
        ] {
            let (mut rng, mut out_of_order, mut lost) = (Rng::new(1), 0, 0);
            let mut received = 0_u32;
            // Many flows, since each is short.
            for _ in 0..200 {
                let mut missing_until = 0;
                for place in 0..per_round * rounds {
                    received += 1;
                    if rng.uniform() < loss {
                        lost += 1;
                        missing_until = place + per_round;
                    } else if place < missing_until {
                        out_of_order += 1;
                    }
                }
            }
            let flows = 200;
            let seen = Segments {
                received: received / flows,
                out_of_order: out_of_order / flows,
                round: ROUND,
                ..Segments::default()
            };
            let guess = lost_of_received(&seen, ROUND * rounds) * f64::from(flows);
            let ratio = guess / f64::from(lost);
            assert!(
                (0.5..2.0).contains(&ratio),
                "{per_round} in each of {rounds}, {loss}: {ratio}"
            );
        }
    }
}
