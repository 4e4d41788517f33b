// SPDX-License-Identifier: Apache-2.0
//! What has failed recently, so that flows take other routes. The workers of a node share it: each has
//! a copy, which it renews at the start of its turn if another has changed it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use posthaste_wire::header::NodeId;
use posthaste_wire::hop::Reply;

use crate::black_holes::BlackHoles;
use crate::chain::{Chains, NextHop, Path};
use crate::intercept::Intercept;
use crate::opening::{Origin, Report, Trust, is_of_all_flows};
use crate::warm::WarmHops;

use super::Worker;

/// How long a route that failed is tried last.
const DOWN_FOR: Duration = Duration::from_secs(5);
/// What the first flow that tries it again has to show that it works.
const TRIAL: Duration = Duration::from_secs(2);
/// How long a route that failed is tried by one flow first, and not by all at once.
const REMEMBERED: Duration = Duration::from_secs(600);
/// How long a node that refuses requests of cold hops for their time is tried last: a clock that is
/// wrong stays so until an operator sets it.
const CLOCK_DOWN_FOR: Duration = Duration::from_secs(60);
/// Resets without a reply, one after the other, until a chain counts as failed.
const CONSECUTIVE_RESETS_MAX: u32 = 3;

/// Why such a node is shown as failing.
pub(super) const CLOCKS_DIFFER: &str =
    "it refuses requests, since its clock and that of this node differ";

/// What keeps a route from being taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Failure {
    /// A node does not answer.
    Peer(NodeId),
    /// A node behind the next one failed.
    Path(Path),
    /// A node refuses requests since its clock and ours differ. Hops that are open need none.
    Clock(NodeId),
}

/// The failures that the workers of a node remember.
#[derive(Debug, Default)]
pub struct SharedHealth {
    health: Mutex<Health>,
    /// That of `health`, which a worker compares in each of its turns.
    version: AtomicU64,
}

impl SharedHealth {
    /// Changes it; returns it as it is then.
    fn change(&self, change: impl FnOnce(&mut Health)) -> Health {
        let mut health = self.health.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut health);
        health.version += 1;
        self.version.store(health.version, Ordering::Release);
        health.clone()
    }

    /// What it is, if that is another version.
    fn other_than(&self, version: u64) -> Option<Health> {
        if self.version.load(Ordering::Acquire) == version {
            return None;
        }
        let health = self.health.lock();
        Some(health.unwrap_or_else(PoisonError::into_inner).clone())
    }
}

/// A worker's copy of the failures.
#[derive(Clone, Debug, Default)]
pub(super) struct Health {
    version: u64,
    /// Recent failures, and until when routes with them are tried last.
    down: HashMap<Failure, Duration>,
    /// Resets without a reply by chain: the number since the last reply, and the time of the last
    /// reset.
    resets: HashMap<Path, (u32, Duration)>,
    /// When a hop to a node last turned out to be dead or silent: others may be so, too.
    doubted: HashMap<NodeId, Duration>,
}

impl Health {
    /// Whether nothing is remembered, as nearly always.
    pub(super) fn is_clear(&self) -> bool {
        self.down.is_empty() && self.resets.is_empty()
    }

    /// Whether something is remembered that a connected flow disproves.
    fn is_against(&self, via: Path) -> bool {
        self.resets.contains_key(&via) || self.has_failed(via)
    }

    /// A hop to a node is dead or silent.
    fn doubt(&mut self, peer: NodeId, now: Duration) {
        // Bounds the table: peers change with every plan.
        self.doubted.retain(|_, at| *at + REMEMBERED > now);
        self.doubted.insert(peer, now);
    }

    /// The nodes that have been doubted since `former`.
    fn newly_doubted(&self, former: &Self) -> Vec<NodeId> {
        let doubted = self.doubted.iter();
        let new = doubted.filter(|(peer, at)| former.doubted.get(peer) != Some(at));
        new.map(|(peer, _)| *peer).collect()
    }

    /// Whether a route has failed, and connected no flow since then.
    fn has_failed(&self, path: Path) -> bool {
        let failures = [Failure::Peer(path.peer), Failure::Path(path)];
        !self.down.is_empty()
            && failures
                .iter()
                .any(|failure| self.down.contains_key(failure))
    }

    /// Makes flows that begin now use other routes for `time`.
    fn mark_down(&mut self, failure: Failure, time: Duration, now: Duration) {
        // Bounds the table: peers and paths change with every plan.
        self.down.retain(|_, until| *until + REMEMBERED > now);
        self.down.insert(failure, now + time);
    }

    /// Whether a route has failed, and the time is over in which flows take others.
    fn is_due(&self, path: Path, now: Duration) -> bool {
        let failures = [Failure::Peer(path.peer), Failure::Path(path)];
        let mut until = failures.iter().filter_map(|failure| self.down.get(failure));
        until.any(|until| *until <= now)
    }

    /// A flow takes a route that has failed before, the first since then: others wait for its
    /// result.
    fn try_out(&mut self, path: Path, now: Duration) {
        for failure in [Failure::Peer(path.peer), Failure::Path(path)] {
            if let Some(until) = self.down.get_mut(&failure)
                && *until <= now
            {
                *until = now + TRIAL;
            }
        }
    }

    /// A node has accepted a flow and then reset it without a reply. It may have replied, and the
    /// server reset the flow: a reply that is lost is not retransmitted after a reset. A node that
    /// never replies is detected by the next flows.
    fn on_reset(&mut self, via: Path, now: Duration) {
        let (count, last) = self.resets.get(&via).copied().unwrap_or((0, now));
        let count = if now < last + DOWN_FOR { count + 1 } else { 1 };
        self.resets.insert(via, (count, now));
        if count >= CONSECUTIVE_RESETS_MAX {
            self.resets.remove(&via);
            self.mark_down(Failure::Path(via), DOWN_FOR, now);
        }
    }

    /// The next node has connected a flow.
    fn on_connected(&mut self, via: Path) {
        self.resets.remove(&via);
        self.down.remove(&Failure::Path(via));
        self.down.remove(&Failure::Peer(via.peer));
    }
}

/// The worker's knowledge about routes, at one time.
pub(super) struct Standing<'a> {
    pub(super) health: &'a Health,
    pub(super) warm: Option<&'a WarmHops>,
    pub(super) chains: &'a Chains,
    pub(super) black_holes: &'a BlackHoles,
    pub(super) now: Duration,
}

impl Standing<'_> {
    /// Whether nothing is known against a route.
    pub(super) fn is_up(&self, next_hop: &NextHop) -> bool {
        let NextHop::Hop(path) = *next_hop else {
            return true;
        };
        let peer = path.peer;
        self.is_over(Failure::Peer(peer))
            && self.is_over(Failure::Path(path))
            && !self.black_holes.is_silent(path, self.now)
            && !self.of_hops_to(peer, WarmHops::down)
            && (self.is_over(Failure::Clock(peer)) || self.of_hops_to(peer, WarmHops::has_waiting))
    }

    /// How far a flow may rely on a route.
    pub(super) fn trust(&self, next_hop: &NextHop) -> Trust {
        if !self.is_up(next_hop) {
            return Trust::None;
        }
        match *next_hop {
            NextHop::Hop(path) if self.health.has_failed(path) => Trust::Doubt,
            _ => Trust::Full,
        }
    }

    fn is_over(&self, failure: Failure) -> bool {
        self.left(failure).is_none()
    }

    /// For how long a failure still counts, if it does.
    pub(super) fn left(&self, failure: Failure) -> Option<Duration> {
        let until = *self.health.down.get(&failure)?;
        // A node that answers pings again is back before the time is over.
        let is_back = match failure {
            Failure::Peer(peer) => self.has_spoken(peer, until.saturating_sub(DOWN_FOR)),
            // A ping reaches the next node only, and shows no more than that it runs.
            Failure::Path(_) | Failure::Clock(_) => false,
        };
        until
            .checked_sub(self.now)
            .filter(|left| !left.is_zero() && !is_back)
    }

    /// Whether a node has sent something over a hop without a flow since then.
    fn has_spoken(&self, peer: NodeId, since: Duration) -> bool {
        self.of_hops_to(peer, |warm, peer| warm.received(peer) > since)
    }

    fn of_hops_to(&self, peer: NodeId, is: impl Fn(&WarmHops, usize) -> bool) -> bool {
        self.warm
            .zip(self.chains.peer(peer))
            .is_some_and(|(warm, peer)| is(warm, peer))
    }
}

impl<I: Intercept> Worker<I> {
    /// The worker's knowledge about routes now.
    pub(super) fn standing(&self) -> Standing<'_> {
        Standing {
            health: &self.health,
            warm: self.warm.as_ref(),
            chains: self.rules.chains(),
            black_holes: &self.black_holes,
            now: self.now,
        }
    }

    /// A flow takes a next hop.
    pub(super) fn try_out(&mut self, next_hop: &NextHop) {
        let now = self.now;
        if let NextHop::Hop(path) = *next_hop
            && self.health.is_due(path, now)
        {
            self.share(|health| health.try_out(path, now));
        }
    }

    /// Records what a flow has shown of a node, for flows that begin now.
    pub(super) fn on_report(&mut self, report: Report) {
        let now = self.now;
        match report {
            Report::Unreached(peer) => self.mark_down(Failure::Peer(peer), DOWN_FOR),
            Report::Connected(via) if self.health.is_against(via) => {
                self.share(|health| health.on_connected(via));
            }
            Report::Connected(_) => {}
            // A node that has crashed resets all its hops: the pool must not hand out others.
            Report::Reset(via, origin) => self.share(|health| {
                health.doubt(via.peer, now);
                if origin == Origin::Here {
                    health.on_reset(via, now);
                }
            }),
            Report::Replied(Reply::Clock, via, _) => {
                self.counters.hops_refused_for_clock.add(1);
                self.mark_down(Failure::Clock(via.peer), CLOCK_DOWN_FOR);
            }
            Report::Replied(reply, via, Origin::Here) if is_of_all_flows(reply) => {
                self.mark_down(Failure::Path(via), DOWN_FOR);
            }
            Report::Replied(..) => {}
            // A node that has sent anything else since is alive: then only this flow is late.
            Report::Silent(via, since) if !self.standing().has_spoken(via.peer, since) => {
                self.share(|health| {
                    health.mark_down(Failure::Peer(via.peer), DOWN_FOR, now);
                    health.doubt(via.peer, now);
                });
            }
            Report::Silent(..) => {}
        }
    }

    fn mark_down(&mut self, failure: Failure, time: Duration) {
        let now = self.now;
        self.share(|health| health.mark_down(failure, time, now));
    }

    /// Changes what the workers of the node remember.
    fn share(&mut self, change: impl FnOnce(&mut Health)) {
        let changed = self.common.health.change(change);
        self.adopt_health(changed);
    }

    /// Learns what other workers have found.
    pub(super) fn renew_health(&mut self) {
        if let Some(changed) = self.common.health.other_than(self.health.version) {
            self.adopt_health(changed);
        }
    }

    fn adopt_health(&mut self, changed: Health) {
        let former = std::mem::replace(&mut self.health, changed);
        for peer in self.health.newly_doubted(&former) {
            self.verify_hops(peer);
        }
    }

    /// Checks whether the idle hops to a node live.
    fn verify_hops(&mut self, peer: NodeId) {
        let peer = self.rules.chains().peer(peer);
        if let (Some(warm), Some(peer)) = (&mut self.warm, peer) {
            warm.verify_hops(peer, self.now);
        }
    }

    /// Records that a flow's next node has replied, unless the flow still waits.
    pub(super) fn record_replied(&mut self, key: u64) {
        let entry = self.entries.live(key);
        let preface = entry.and_then(|entry| entry.preface.as_deref());
        let replied =
            preface.filter(|preface| preface.expecting.is_none() && preface.failed.is_none());
        if let Some(via) = replied.and_then(|preface| preface.via) {
            self.on_report(Report::Connected(via));
        }
    }
}
