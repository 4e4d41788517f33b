// SPDX-License-Identifier: Apache-2.0
//! What has failed of late, so that flows take other ways.

use std::time::Duration;

use posthaste_wire::header::NodeId;
use posthaste_wire::hop::Reply;

use crate::chain::Way;
use crate::intercept::Intercept;

use super::Worker;
use super::prologue::{Via, is_of_all_flows};

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
const DOUBTS_MAX: u32 = 3;

/// Why such a node is shown as failing.
pub(super) const CLOCKS_DIFFER: &str =
    "it refuses requests, since its clock and that of this node differ";

/// What keeps a way from being taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Fault {
    /// A node does not answer.
    Peer(NodeId),
    /// A node beyond the next one failed, by number of the chain.
    Chain(u32),
    /// A node refuses requests since its clock and ours differ. Hops that are open need none.
    Clock(NodeId),
}

impl<I: Intercept> Worker<I> {
    /// Whether nothing is known against a way.
    pub(super) fn is_up(&self, way: &Way) -> bool {
        let Way::Hop { peer, chain, .. } = *way else {
            return true;
        };
        let is_fine = self.is_over(Fault::Peer(peer)) && self.is_over(Fault::Chain(chain));
        is_fine
            && !self.black_holes.is_silent(chain, self.now)
            && !self.is_absent(peer)
            && (self.is_over(Fault::Clock(peer)) || self.has_warm(peer))
    }

    pub(super) fn is_over(&self, fault: Fault) -> bool {
        let Some(until) = self.down.get(&fault) else {
            return true;
        };
        let back = match fault {
            Fault::Peer(peer) => self.has_spoken(peer, until.saturating_sub(DOWN_FOR)),
            Fault::Chain(_) | Fault::Clock(_) => false,
        };
        back || *until <= self.now
    }

    /// Whether a node has said something over a hop without a flow since then.
    fn has_spoken(&self, peer: NodeId, since: Duration) -> bool {
        let (Some(warm), Some(peer)) = (&self.warm, self.rules.chains().peer(peer)) else {
            return false;
        };
        warm.heard(peer) > since
    }

    /// A flow takes a way that has failed before, the first since then: others wait for what becomes
    /// of it.
    pub(super) fn try_out(&mut self, way: &Way) {
        let (Way::Hop { peer, chain, .. }, false) = (*way, self.down.is_empty()) else {
            return;
        };
        for fault in [Fault::Peer(peer), Fault::Chain(chain)] {
            if self
                .down
                .get(&fault)
                .is_some_and(|until| *until <= self.now)
            {
                self.down.insert(fault, self.now + TRIAL);
            }
        }
    }

    /// Whoever a flow waited for has replied, unless it still waits.
    pub(super) fn trust_replied(&mut self, key: u64) {
        let entry = self.entries.get(key);
        let said = entry.and_then(|entry| entry.prologue.as_deref());
        let replied = said.filter(|said| said.expecting.is_none() && said.failed.is_none());
        if let Some(via) = replied.and_then(|said| said.via) {
            self.trust(via);
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

    /// Has flows that begin now go another way, if what a node said of itself holds for them, too.
    pub(super) fn heed(&mut self, reply: Reply, via: Via) {
        if reply == Reply::Clock {
            self.counters.hops_refused_for_clock.add(1);
            self.mark_down_for(Fault::Clock(via.peer), CLOCK_DOWN_FOR);
        } else if is_of_all_flows(reply) {
            self.mark_down(Fault::Chain(via.chain));
        }
    }

    /// Has flows that begin now go another way.
    pub(super) fn mark_down(&mut self, fault: Fault) {
        self.mark_down_for(fault, DOWN_FOR);
    }

    fn mark_down_for(&mut self, fault: Fault, time: Duration) {
        let now = self.now;
        self.down.retain(|_, until| *until + REMEMBERED > now);
        self.down.insert(fault, now + time);
    }

    /// A node has been silent about a flow that it was asked for at `since`. If it has said nothing
    /// else either, flows that begin now go another way, and its other hops are asked whether they
    /// live.
    pub(super) fn note_silence(&mut self, via: Via, since: Duration) {
        if self.has_spoken(via.peer, since) {
            return;
        }
        self.mark_down(Fault::Peer(via.peer));
        self.suspect(via.peer);
    }

    fn suspect(&mut self, peer: NodeId) {
        let peer = self.rules.chains().peer(peer);
        if let (Some(warm), Some(peer)) = (&mut self.warm, peer) {
            warm.suspect(peer, self.now);
        }
    }

    /// A node has accepted a flow and then reset it without an answer. It may have
    /// answered, and the server reset the flow: an answer that is lost on its way is
    /// not repeated after a reset. One that never answers is found out by the next
    /// flows.
    pub(super) fn doubt(&mut self, via: Via) {
        let now = self.now;
        let (count, last) = self.doubts.get(&via.chain).copied().unwrap_or((0, now));
        let count = if now < last + DOWN_FOR { count + 1 } else { 1 };
        self.doubts.insert(via.chain, (count, now));
        if count >= DOUBTS_MAX {
            self.doubts.remove(&via.chain);
            self.mark_down(Fault::Chain(via.chain));
        }
        self.suspect(via.peer);
    }

    /// The next node has answered.
    pub(super) fn trust(&mut self, via: Via) {
        if !self.doubts.is_empty() {
            self.doubts.remove(&via.chain);
        }
        if !self.down.is_empty() {
            self.down.remove(&Fault::Chain(via.chain));
            self.down.remove(&Fault::Peer(via.peer));
        }
    }
}
