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
/// acknowledged and received. `alive_at`: when other hops to that node last showed that it lives.
pub(super) fn seen_of(entry: &Entry, alive_at: Duration) -> Option<(Path, Duration, Seen)> {
    if entry.has_lost_client() {
        return None;
    }
    let preface = entry.preface.as_deref()?;
    let expecting = preface.expecting.as_ref()?;
    let (via, since) = (preface.via?, preface.waits_since?);
    let (sent, next_hops_left) = match &entry.state {
        State::Open(relay) => (
            relay.sent_to_upstream(),
            preface
                .fallback
                .as_deref()
                .is_some_and(|fallback| fallback.can_go_on(false)),
        ),
        // Only the request was written: no byte of the flow can be delivered.
        State::Opening(pending) => (0, !pending.opening.hops.is_empty()),
    };
    let can_repeat = match &entry.state {
        State::Open(_) => preface
            .fallback
            .as_deref()
            .is_some_and(|fallback| fallback.can_go_on(true)),
        State::Opening(_) => true,
    };
    let (acked, delivered, round, by_other) = match entry.end(Side::Upstream)? {
        End::Socket(socket) => {
            // The flow's bytes are the last ones written.
            let unacked = sys::unacked_bytes(socket).ok()?;
            let round = sys::round_and_window(socket).and_then(|(round, _)| round);
            // Where a firewall has forgotten an idle hop, only that one is dead.
            let is_dead = preface.is_warm && alive_at > since;
            (
                unacked <= sent,
                unacked < sent,
                round,
                can_repeat && is_dead,
            )
        }
        // What came may be the acknowledgement of any of them.
        End::Stream(stream) => {
            let acked = stream.has_acked(since);
            // The same hop is left by TCP, whatever others there are.
            (acked, acked && sent > 0, stream.round_trip(), can_repeat)
        }
    };
    let seen = Seen {
        acked,
        delivered,
        works: expecting.works(),
        round,
        movable: next_hops_left || by_other || preface.is_for_peer(),
    };
    Some((via, since, seen))
}
