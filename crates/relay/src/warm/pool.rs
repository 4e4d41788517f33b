// SPDX-License-Identifier: Apache-2.0
//! What is to be done about the warm hops to one peer: how many are to wait,
//! which are to be pinged or closed, and whether the peer is there at all.
//!
//! No I/O and no clock: it is told what happened and when, and asked for its
//! next [`Action`]. What always holds:
//!
//! * No more than `max` hops wait or are dialed.
//! * A hop has no second ping before the pong.
//! * A peer that is down is dialed by one dial at a time, ever more rarely, and
//!   always again.
//!
//! A hop **rests**, or it has been **asked** whether it lives. When a hop dies
//! all others of the peer are **unverified**: they are pinged at once, and not
//! given to flows until they have answered.

mod orders;

use std::collections::VecDeque;
use std::time::Duration;

use crate::chain::PoolLimits;

use super::backoff::Backoff;
use super::demand::Demand;

/// A hop that is silent for so long is asked whether it lives.
const REST_MAX: Duration = Duration::from_secs(15);
/// While flows ask for the peer, something is heard from it so often.
const BEAT: Duration = Duration::from_millis(500);
/// Flows ask for the peer until so long after the last.
const BUSY_FOR: Duration = Duration::from_secs(10);
/// What a pong may take at the least, in time and in round trips. A lost
/// packet is repeated within it.
const PONG_MIN: Duration = Duration::from_secs(1);
const PONG_ROUND_TRIPS: u32 = 4;
/// What a dial may take until nothing at all is strange. A lost SYN is
/// repeated after a second.
const DIAL_MIN: Duration = Duration::from_millis(1500);
/// A hop that is lost sooner after its dial counts as a dial that failed.
const SETTLED: Duration = Duration::from_secs(1);
/// More hops than are wanted are kept for so long.
const SURPLUS_FOR: Duration = Duration::from_secs(10);
/// How often to see whether fewer are wanted.
const REVIEW: Duration = Duration::from_secs(5);
/// Dials under way, beyond twice the flows that have just come.
const DIALS_BASE: usize = 16;

/// What the owner of the sockets is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Ask the hop whether it lives.
    Ping(u64),
    /// Close the hop: it is dead.
    Bury(u64),
    /// Close the hop: nobody needs it.
    Dismiss(u64),
    /// Open one more, and say [`Pool::on_dial`] or [`Pool::on_dial_failed`].
    Dial,
}

/// Why a dial came to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The peer did not answer in time.
    Silence,
    /// The peer, the network, or what is in the peer's place, said no.
    Refusal,
    /// This host had no means, which says nothing about the peer.
    Means,
}

/// How a hop that waited came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The peer closed it in order.
    Closed,
    /// It was reset, or the peer said what it may not say.
    Broken,
}

/// Whether the peer is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Health {
    /// As far as anybody knows.
    Up,
    /// It did not answer. Any word from it changes that.
    Silent,
    /// It takes no new hops, or does not keep them. Only a dial changes that.
    Refusing,
}

/// A hop that waits and is believed to live.
#[derive(Clone, Copy, Debug)]
struct Resting {
    hop: u64,
    /// When it was dialed successfully.
    since: Duration,
    /// When the peer last said something over it.
    received: Duration,
}

/// A hop that has a ping unanswered.
#[derive(Clone, Copy, Debug)]
struct Pinged {
    hop: u64,
    since: Duration,
    at: Duration,
    unverified: bool,
}

/// The warm hops to one peer. Hops go by the owner's numbers.
#[derive(Debug)]
pub(super) struct Pool {
    limits: PoolLimits,
    demand: Demand,
    backoff: Backoff,
    health: Health,
    /// By when they were heard of, the latest at the back: it is taken first.
    resting: VecDeque<Resting>,
    /// To be asked at once.
    unverified: VecDeque<Resting>,
    /// By when they were asked, the earliest at the front.
    pinged: VecDeque<Pinged>,
    /// And when each was begun, the earliest at the front.
    dialing: VecDeque<(u64, Duration)>,
    /// The last flow.
    flow_seen: Option<Duration>,
    /// The last word of the peer, over any hop.
    received: Duration,
    rtt: Option<Duration>,
    /// Since when there have been more than are wanted.
    surplus: Option<Duration>,
    /// When the owner last asked what to do.
    seen: Duration,
}

impl Pool {
    /// Knows nothing of the peer yet, which is as good as being up. `seed` is
    /// for chance in waiting.
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

    /// Other bounds from now on. What is too much is closed in time.
    pub(super) fn set_limits(&mut self, limits: PoolLimits) {
        self.limits = limits;
    }

    /// A flow is to go to the peer, whether or not there is a hop for it.
    pub(super) fn on_flow(&mut self, now: Duration) {
        self.demand.on_flow(now);
        self.flow_seen = Some(now);
    }

    /// A hop to carry a flow; it no longer waits. The one heard of last: it is
    /// the most certain to live, and the others get old enough to be closed.
    /// One with a ping unanswered may be taken if nothing is wrong.
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

    /// A dial has become a hop, with this round trip time.
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
            // One that is heard of is there; the dial was unlucky.
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
        if self.health == Health::Silent {
            self.health = Health::Up;
        }
    }

    /// A hop that waited has ended, or one that was taken turned out to have.
    pub(super) fn on_lost(&mut self, hop: u64, end: End, now: Duration) {
        let since = self.remove(hop);
        if since.is_some_and(|since| now < since + SETTLED) {
            self.backoff.on_failure(now);
            self.lose(Health::Refusing);
        } else if end == End::Broken {
            self.check_all();
        }
    }

    /// How many hops wait.
    pub(super) fn waiting(&self) -> usize {
        self.resting.len() + self.unverified.len() + self.pinged.len()
    }

    /// How many are being dialed.
    pub(super) fn dialing(&self) -> usize {
        self.dialing.len()
    }

    /// How many are to wait.
    pub(super) fn target(&self, now: Duration) -> usize {
        let (min, max) = (self.limits.min.into(), usize::from(self.limits.max));
        let wanted = self.demand.wanted(now).max(min);
        // Room for the dial that finds out whether the peer takes hops again.
        let probe = usize::from(self.down());
        wanted.min(max.saturating_sub(probe))
    }

    /// Whether the last that is known of the peer is that it is not there.
    pub(super) fn down(&self) -> bool {
        self.health != Health::Up
    }

    /// When the peer last said something over a hop that waited.
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

    /// Takes a hop off whichever list it is on; when it was dialed.
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

    /// Something was wrong with a hop: who knows about the others.
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
