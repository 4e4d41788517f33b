// SPDX-License-Identifier: Apache-2.0
//! Flows that leave a hop before the next node has replied: when to check them, and how they take
//! another route with the bytes that their clients have sent.

use std::cmp::Reverse;
use std::time::Duration;

use posthaste_wire::hop::WORKING;

use crate::chain::Path;
use crate::intercept::Intercept;
use crate::opening::Opening;
use crate::opening::silence::{Seen, WORKING_AFTER};
use crate::side::Side;
use crate::sys;

use super::Worker;
use super::end::End;
use super::entry::{Entry, Pending, State};
use super::preface::{Requester, send};

impl<I: Intercept> Worker<I> {
    /// Checks a flow at `due`, while it waits for a reply.
    pub(super) fn look_again(&mut self, key: u64, due: Duration) {
        self.looks.push(Reverse((due, key)));
    }

    /// A peer has requested a flow: it must get a progress report soon.
    pub(super) fn owe_progress(&mut self, key: u64) {
        self.look_again(key, self.now + WORKING_AFTER);
    }

    /// Checks the flows that are due.
    pub(super) fn look_at_hops(&mut self) {
        while let Some(Reverse((due, key))) = self.looks.peek().copied() {
            if due > self.now {
                return;
            }
            self.looks.pop();
            if self.entries.get(key).is_some() {
                self.send_working(key);
                self.look_at_hop(key);
            }
        }
    }

    /// Reports to a peer that its flow is in progress, if there is no reply yet.
    fn send_working(&mut self, key: u64) {
        let now = self.now;
        let Some(entry) = self.entries.live_mut(key) else {
            return;
        };
        let Some(preface) = &mut entry.preface else {
            return;
        };
        let deferred = preface.progress_due.is_some_and(|due| due <= now);
        if preface.requester == Some(Requester::Peer) && deferred {
            // Once: the report only shows that this node works, and the next node's reply decides
            // the rest.
            preface.progress_due = None;
            // If this fails its connection is gone, which the relay will detect.
            let _ = entry.end(Side::Downstream).map(|end| send(&end, &WORKING));
        }
    }

    /// Moves a begun flow to the next route, with all bytes that its client has sent. Returns
    /// whether there is a route and all bytes were kept. With `repeat` it may be the same hop, once
    /// more. Call it only when no byte has arrived or can still arrive: the hop is reset.
    pub(super) fn reroute(&mut self, key: u64, repeat: bool) -> bool {
        let (now, expiry) = (self.now, self.rules.policy.half_open.expiry);
        let Some(entry) = self.entries.live_mut(key) else {
            return false;
        };
        if entry.has_lost_client() {
            return false;
        }
        let preface = entry.preface.as_mut();
        let fallback = preface.and_then(|preface| {
            preface
                .fallback
                .take_if(|fallback| fallback.can_go_on(repeat))
        });
        let Some(fallback) = fallback else {
            return false;
        };
        entry.close_upstream();
        let opening = Opening::new(
            entry.accept,
            entry.arrival(),
            entry.rule.rule.timeouts.connect,
            expiry,
            now,
        );
        let pending = Pending {
            kept: Some(fallback.kept),
            ..opening.again(fallback.hops).into()
        };
        let former = std::mem::replace(&mut entry.state, State::Opening(Box::new(pending)));
        if let State::Open(relay) = former {
            for pipe in relay.into_pipes() {
                self.buffers.pipes.discard(pipe);
            }
        }
        self.unshare(key, Side::Upstream);
        self.counters.hops_rerouted.add(1);
        self.try_next(key);
        true
    }
}

/// The state of a flow that waits for the next node's reply: its route, since when, and what was
/// sent, acknowledged and received.
pub(super) fn seen_of(entry: &Entry) -> Option<(Path, Duration, Seen)> {
    if entry.has_lost_client() {
        return None;
    }
    let preface = entry.preface.as_deref()?;
    let expecting = preface.expecting.as_ref()?;
    let (via, since) = (preface.via?, preface.waits_since?);
    let (sent, next_hops_left, can_repeat) = routes_of(entry)?;
    let (acked, round, in_vain, by_other) = match entry.end(Side::Upstream)? {
        End::Socket(socket) => {
            // The flow's bytes are the last ones written.
            let acked = sys::unacked_bytes(socket).ok()? <= sent;
            let round = sys::round_and_window(socket).and_then(|(round, _)| round);
            let alive = preface.alive;
            let in_vain = alive.map(|before| sys::sent_in_vain(socket).saturating_sub(before));
            (acked, round, in_vain, can_repeat && alive.is_some())
        }
        // What came may be the acknowledgement of any of its streams. If they are lost, so is the
        // connection, which resets this one. The same hop is left by TCP, whatever others there
        // are.
        End::Stream(stream) => {
            let acked = stream.has_acked(since);
            (acked, stream.round_trip(), None, can_repeat)
        }
    };
    let seen = Seen {
        acked,
        sent: sent > 0,
        works: expecting.works(),
        round,
        movable: next_hops_left || by_other || preface.is_for_peer(),
        in_vain,
    };
    Some((via, since, seen))
}

/// How many bytes of a flow have left for the next node, whether it has another next hop, and
/// whether it may take the same one again.
fn routes_of(entry: &Entry) -> Option<(u64, bool, bool)> {
    let preface = entry.preface.as_deref()?;
    let can_go_on = |repeat| {
        let fallback = preface.fallback.as_deref();
        fallback.is_some_and(|fallback| fallback.can_go_on(repeat))
    };
    Some(match &entry.state {
        State::Open(relay) => (relay.sent_to_upstream(), can_go_on(false), can_go_on(true)),
        // Only the request was written.
        State::Opening(pending) => (0, !pending.opening.hops.is_empty(), true),
    })
}
