// SPDX-License-Identifier: Apache-2.0
//! What has failed of late, so that flows take other ways.

use std::time::Duration;

use posthaste_wire::header::NodeId;
use posthaste_wire::hop::Reply;

use crate::chain::{NextHop, Path};
use crate::intercept::Intercept;

use super::Worker;
use super::preface::is_of_all_flows;

/// How long a way that failed is tried last.
const DOWN_FOR: Duration = Duration::from_secs(5);
/// What the first flow that tries it again has to show that it works.
const TRIAL: Duration = Duration::from_secs(2);
/// A way that has failed is tried out first, and not by all flows at once, for so long.
const REMEMBERED: Duration = Duration::from_secs(600);
/// How long the requests of cold hops to a node that refuses them for the time they were made are tried
/// last: a clock that is wrong stays so until somebody sets it.
const CLOCK_DOWN_FOR: Duration = Duration::from_secs(60);
/// Resets without an answer, one after the other, until a chain counts as failed.
const CONSECUTIVE_RESETS_MAX: u32 = 3;

/// Why such a node is shown as failing.
pub(super) const CLOCKS_DIFFER: &str =
    "it refuses requests, since its clock and that of this node differ";

/// What keeps a way from being taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Failure {
    /// A node does not answer.
    Peer(NodeId),
    /// A node behind the next one failed.
    Path(Path),
    /// A node refuses requests since its clock and ours differ. Hops that are open need none.
    Clock(NodeId),
}

/// Where a flow began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    Here,
    /// A peer chose the path of the flow, so its failure is recorded against no path of this node: the
    /// peer could take one down, and paths that peers choose have no bound.
    Peer,
}

impl<I: Intercept> Worker<I> {
    /// Whether nothing is known against a way.
    pub(super) fn is_up(&self, next_hop: &NextHop) -> bool {
        let NextHop::Hop(path) = *next_hop else {
            return true;
        };
        let peer = path.peer;
        let is_fine = self.is_over(Failure::Peer(peer)) && self.is_over(Failure::Path(path));
        is_fine
            && !self.black_holes.is_silent(path, self.now)
            && !self.is_absent(peer)
            && (self.is_over(Failure::Clock(peer)) || self.has_warm(peer))
    }

    pub(super) fn is_over(&self, failure: Failure) -> bool {
        let Some(until) = self.down.get(&failure) else {
            return true;
        };
        let back = match failure {
            Failure::Peer(peer) => self.has_spoken(peer, until.saturating_sub(DOWN_FOR)),
            Failure::Path(_) | Failure::Clock(_) => false,
        };
        back || *until <= self.now
    }

    /// Whether a node has said something over a hop without a flow since then.
    fn has_spoken(&self, peer: NodeId, since: Duration) -> bool {
        let (Some(warm), Some(peer)) = (&self.warm, self.rules.chains().peer(peer)) else {
            return false;
        };
        warm.received(peer) > since
    }

    /// A flow takes a way that has failed before, the first since then: others wait for what becomes
    /// of it.
    pub(super) fn try_out(&mut self, next_hop: &NextHop) {
        let (NextHop::Hop(path), false) = (*next_hop, self.down.is_empty()) else {
            return;
        };
        for failure in [Failure::Peer(path.peer), Failure::Path(path)] {
            if self
                .down
                .get(&failure)
                .is_some_and(|until| *until <= self.now)
            {
                self.down.insert(failure, self.now + TRIAL);
            }
        }
    }

    /// Whoever a flow waited for has replied, unless it still waits.
    pub(super) fn record_replied(&mut self, key: u64) {
        let entry = self.entries.live(key);
        let preface = entry.and_then(|entry| entry.preface.as_deref());
        let replied =
            preface.filter(|preface| preface.expecting.is_none() && preface.failed.is_none());
        if let Some(via) = replied.and_then(|preface| preface.via) {
            self.record_success(via);
        }
    }

    /// Whether the last that is known of a node is that it is not there.
    fn is_absent(&self, peer: NodeId) -> bool {
        let (Some(warm), Some(peer)) = (&self.warm, self.rules.chains().peer(peer)) else {
            return false;
        };
        warm.down(peer)
    }

    /// Whether a hop to a node waits for a flow.
    fn has_warm(&self, peer: NodeId) -> bool {
        let (Some(warm), Some(peer)) = (&self.warm, self.rules.chains().peer(peer)) else {
            return false;
        };
        warm.has_waiting(peer)
    }

    /// Makes flows that begin now use another route, if the reply of a node holds for them too.
    pub(super) fn record_reply(&mut self, reply: Reply, via: Path, origin: Origin) {
        if reply == Reply::Clock {
            self.counters.hops_refused_for_clock.add(1);
            self.mark_down_for(Failure::Clock(via.peer), CLOCK_DOWN_FOR);
        } else if origin == Origin::Here && is_of_all_flows(reply) {
            self.mark_down(Failure::Path(via));
        }
    }

    /// Has flows that begin now go another way.
    pub(super) fn mark_down(&mut self, failure: Failure) {
        self.mark_down_for(failure, DOWN_FOR);
    }

    fn mark_down_for(&mut self, failure: Failure, time: Duration) {
        let now = self.now;
        self.down.retain(|_, until| *until + REMEMBERED > now);
        self.down.insert(failure, now + time);
    }

    /// A node has been silent about a flow that it was asked for at `since`. If it has said nothing
    /// else either, flows that begin now go another way, and its other hops are asked whether they
    /// live.
    pub(super) fn note_silence(&mut self, via: Path, since: Duration) {
        if self.has_spoken(via.peer, since) {
            return;
        }
        self.mark_down(Failure::Peer(via.peer));
        self.verify_hops(via.peer);
    }

    fn verify_hops(&mut self, peer: NodeId) {
        let peer = self.rules.chains().peer(peer);
        if let (Some(warm), Some(peer)) = (&mut self.warm, peer) {
            warm.verify_hops(peer, self.now);
        }
    }

    /// A node has accepted a flow and then reset it without an answer. It may have
    /// answered, and the server reset the flow: an answer that is lost on its way is
    /// not repeated after a reset. One that never answers is found out by the next
    /// flows.
    pub(super) fn record_reset(&mut self, via: Path, origin: Origin) {
        self.verify_hops(via.peer);
        if origin == Origin::Peer {
            return;
        }
        let now = self.now;
        let (count, last) = self.resets.get(&via).copied().unwrap_or((0, now));
        let count = if now < last + DOWN_FOR { count + 1 } else { 1 };
        self.resets.insert(via, (count, now));
        if count >= CONSECUTIVE_RESETS_MAX {
            self.resets.remove(&via);
            self.mark_down(Failure::Path(via));
        }
    }

    /// The next node has answered.
    pub(super) fn record_success(&mut self, via: Path) {
        if !self.resets.is_empty() {
            self.resets.remove(&via);
        }
        if !self.down.is_empty() {
            self.down.remove(&Failure::Path(via));
            self.down.remove(&Failure::Peer(via.peer));
        }
    }
}
