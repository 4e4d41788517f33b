// SPDX-License-Identifier: Apache-2.0
//! Decides what to do about the warm hops to one peer: how many to keep, which to ping or close,
//! and whether the peer is down.
//!
//! No I/O and no clock: the owner reports events with their times, and polls for the next
//! [`Action`]. Invariants:
//!
//! * No more than `max` hops are idle or being dialed.
//! * A hop gets no second ping before the pong.
//! * A peer that is down is dialed by one dial at a time, at growing intervals, and never given up.
//!
//! A hop is **resting**, or **pinged** and unanswered. When a hop dies all others of the peer
//! become **unverified**: they are pinged at once, and carry no flow until they have answered.

mod orders;

use std::collections::VecDeque;
use std::time::Duration;

use crate::chain::PoolLimits;

use super::backoff::Backoff;
use super::demand::Demand;

/// A hop that is silent for this long is pinged.
const REST_MAX: Duration = Duration::from_secs(15);
/// While flows use the peer, the pool needs an answer at this interval.
const BEAT: Duration = Duration::from_millis(500);
/// A peer counts as in use for this long after the last flow.
const BUSY_FOR: Duration = Duration::from_secs(10);
/// Lower bounds on the wait for a pong, in time and in round trips. A lost packet is retransmitted
/// within it.
const PONG_MIN: Duration = Duration::from_secs(1);
const PONG_ROUND_TRIPS: u32 = 4;
/// How long a dial may stay without any answer before the peer is suspect. A lost SYN is
/// retransmitted after one second.
const DIAL_MIN: Duration = Duration::from_millis(1500);
/// A hop lost within this time after its dial counts as a failed dial.
const SETTLED: Duration = Duration::from_secs(1);
/// Surplus hops are kept for this long.
const SURPLUS_FOR: Duration = Duration::from_secs(10);
/// Interval of the check for surplus hops.
const REVIEW: Duration = Duration::from_secs(5);
/// Dials under way, beyond twice the recent flows.
const DIALS_BASE: usize = 16;

/// What the owner of the sockets must do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Ping the hop.
    Ping(u64),
    /// Close the hop: it is dead.
    Bury(u64),
    /// Close the hop: it is surplus.
    Dismiss(u64),
    /// Open one more, and call [`Pool::on_dial`] or [`Pool::on_dial_failed`].
    Dial,
}

/// Why a dial failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The peer did not answer in time.
    Silence,
    /// The peer, the network, or another host in the peer's place refused.
    Refusal,
    /// This host lacked resources, which shows nothing about the peer.
    Means,
}

/// How an idle hop ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The peer closed it with a FIN.
    Closed,
    /// It was reset, or the peer sent an invalid message.
    Broken,
}

/// The health of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Health {
    /// No failure is known.
    Up,
    /// It did not answer. Any answer ends this state.
    Silent,
    /// It refuses or drops new hops. Only a successful dial ends this state.
    Refusing,
}

/// An idle hop that is assumed to live.
#[derive(Clone, Copy, Debug)]
struct Resting {
    hop: u64,
    /// When it was dialed successfully.
    since: Duration,
    /// When the peer last sent bytes over it.
    received: Duration,
}

/// A hop with an unanswered ping.
#[derive(Clone, Copy, Debug)]
struct Pinged {
    hop: u64,
    since: Duration,
    at: Duration,
    unverified: bool,
}

/// The warm hops to one peer, by the owner's keys.
#[derive(Debug)]
pub(super) struct Pool {
    limits: PoolLimits,
    demand: Demand,
    backoff: Backoff,
    health: Health,
    /// In the order of the last answers, the latest at the back: it is taken first.
    resting: VecDeque<Resting>,
    /// To be pinged at once.
    unverified: VecDeque<Resting>,
    /// In the order of their pings, the earliest at the front.
    pinged: VecDeque<Pinged>,
    /// With the start of each dial, the earliest at the front.
    dialing: VecDeque<(u64, Duration)>,
    /// Time of the last flow.
    flow_seen: Option<Duration>,
    /// Time of the last answer of the peer, over any hop.
    received: Duration,
    rtt: Option<Duration>,
    /// Since when there are surplus hops.
    surplus: Option<Duration>,
    /// When the owner last polled.
    seen: Duration,
}

impl Pool {
    /// The peer counts as up until a failure. `seed` is for the random part of waits.
    pub(super) fn new(limits: PoolLimits, seed: u64, now: Duration) -> Self {
        Self {
            limits,
            demand: Demand::new(now),
            backoff: Backoff::new(seed),
            health: Health::Up,
            resting: VecDeque::new(),
            unverified: VecDeque::new(),
            pinged: VecDeque::new(),
            dialing: VecDeque::new(),
            flow_seen: None,
            received: Duration::ZERO,
            rtt: None,
            surplus: None,
            seen: now,
        }
    }

    /// Replaces the limits. Surplus hops are closed in time.
    pub(super) fn set_limits(&mut self, limits: PoolLimits) {
        self.limits = limits;
    }

    /// A flow needs a hop to the peer, whether or not there is one.
    pub(super) fn on_flow(&mut self, now: Duration) {
        self.demand.on_flow(now);
        self.flow_seen = Some(now);
    }

    /// Takes a hop for a flow: the one with the latest answer, which is the most certain to live;
    /// the others age until they are closed. A pinged hop is taken unless it is unverified.
    pub(super) fn take(&mut self) -> Option<u64> {
        if let Some(resting) = self.resting.pop_back() {
            return Some(resting.hop);
        }
        let trusted = self.pinged.iter().rposition(|pinged| !pinged.unverified)?;
        Some(self.pinged.remove(trusted)?.hop)
    }

    /// A dial has begun.
    pub(super) fn on_dial(&mut self, hop: u64, now: Duration) {
        self.dialing.push_back((hop, now));
    }

    /// A dial completed, with this round trip time.
    pub(super) fn on_ready(&mut self, hop: u64, rtt: Duration, now: Duration) {
        if let Some(began) = self.end_dial(hop) {
            self.demand.on_replaced(now.saturating_sub(began));
        }
        self.rtt = Some(rtt);
        self.received = now;
        self.health = Health::Up;
        self.backoff.on_success(now);
        self.resting.push_back(Resting {
            hop,
            since: now,
            received: now,
        });
    }

    /// A dial failed; `None` if it failed before it began.
    pub(super) fn on_dial_failed(&mut self, hop: Option<u64>, failure: Failure, now: Duration) {
        let began = hop.and_then(|hop| self.end_dial(hop)).unwrap_or(now);
        self.backoff.on_failure(now);
        match failure {
            Failure::Refusal => self.lose(Health::Refusing),
            // The peer has answered since: only the dial was unlucky.
            Failure::Silence if self.health == Health::Up && self.received <= began => {
                self.lose(Health::Silent);
            }
            Failure::Silence | Failure::Means => {}
        }
    }

    /// The peer answered a ping.
    pub(super) fn on_pong(&mut self, hop: u64, now: Duration) {
        let Some(at) = self.pinged.iter().position(|pinged| pinged.hop == hop) else {
            return;
        };
        if let Some(pinged) = self.pinged.remove(at) {
            self.resting.push_back(Resting {
                hop,
                since: pinged.since,
                received: now,
            });
        }
        self.received = now;
        // Not if it refuses: an answer over an open hop shows nothing about new ones.
        if self.health == Health::Silent {
            self.health = Health::Up;
        }
    }

    /// An idle hop has ended, or a taken one turned out to be closed.
    pub(super) fn on_lost(&mut self, hop: u64, end: End, now: Duration) {
        let since = self.remove(hop);
        // Otherwise a peer that accepts hops and drops them at once would be dialed without a
        // pause.
        if since.is_some_and(|since| now < since + SETTLED) {
            self.backoff.on_failure(now);
            self.lose(Health::Refusing);
        // A FIN is the peer's decision about one hop. A reset may come from a host that has
        // restarted.
        } else if end == End::Broken {
            self.check_all();
        }
    }

    /// Number of idle hops.
    pub(super) fn waiting(&self) -> usize {
        self.resting.len() + self.unverified.len() + self.pinged.len()
    }

    /// Number of dials under way.
    pub(super) fn dialing(&self) -> usize {
        self.dialing.len()
    }

    /// Number of idle hops wanted.
    pub(super) fn target(&self, now: Duration) -> usize {
        let (min, max) = (self.limits.min.into(), usize::from(self.limits.max));
        let wanted = self.demand.wanted(now).max(min);
        // Leaves room for the dial that tests whether the peer accepts hops again.
        let probe = usize::from(self.down());
        wanted.min(max.saturating_sub(probe))
    }

    /// Whether the peer is down by the latest information.
    pub(super) fn down(&self) -> bool {
        self.health != Health::Up
    }

    /// When the peer last sent bytes over an idle hop.
    pub(super) fn received(&self) -> Duration {
        self.received
    }

    /// The round trip time to the peer, once known.
    pub(super) fn rtt(&self) -> Option<Duration> {
        self.rtt
    }

    fn end_dial(&mut self, hop: u64) -> Option<Duration> {
        let at = self.dialing.iter().position(|(dial, _)| *dial == hop)?;
        Some(self.dialing.remove(at)?.1)
    }

    /// Removes a hop from its list; returns when it was dialed.
    fn remove(&mut self, hop: u64) -> Option<Duration> {
        for list in [&mut self.resting, &mut self.unverified] {
            if let Some(at) = list.iter().position(|resting| resting.hop == hop) {
                return Some(list.remove(at)?.since);
            }
        }
        let at = self.pinged.iter().position(|pinged| pinged.hop == hop)?;
        Some(self.pinged.remove(at)?.since)
    }

    fn lose(&mut self, health: Health) {
        self.health = health;
        self.check_all();
    }

    /// A hop failed: the others must be verified.
    pub(super) fn check_all(&mut self) {
        self.unverified.append(&mut self.resting);
        for pinged in &mut self.pinged {
            pinged.unverified = true;
        }
    }
}

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
