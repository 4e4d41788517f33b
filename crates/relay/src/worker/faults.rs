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
            && !self.silences.is_silent(chain, self.now)
            && !self.is_absent(peer)
            && (self.is_over(Fault::Clock(peer)) || self.has_warm(peer))
    }

    fn is_over(&self, fault: Fault) -> bool {
        let until = self.down.get(&fault);
        until.is_none_or(|until| *until <= self.now)
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
        self.down.retain(|_, until| *until > now);
        self.down.insert(fault, now + time);
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
        let peer = self.rules.chains().peer(via.peer);
        if let (Some(warm), Some(peer)) = (&mut self.warm, peer) {
            warm.suspect(peer, now);
        }
    }

    /// The next node has answered.
    pub(super) fn trust(&mut self, via: Via) {
        if !self.doubts.is_empty() {
            self.doubts.remove(&via.chain);
        }
    }
}
