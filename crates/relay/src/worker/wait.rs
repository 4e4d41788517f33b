// SPDX-License-Identifier: Apache-2.0
//! Timeouts of opening flows.

use std::io;
use std::time::Duration;

use posthaste_wire::hop::Reply;

use crate::intercept::{Direction, Intercept};
use crate::opening::Opening;
use crate::side::Side;
use crate::sys;

use super::Worker;
use super::admit::Blame;

/// Interval of the checks whether an upstream SYN has left this host.
pub(super) const LOOK: Duration = Duration::from_secs(1);

impl<I: Intercept> Worker<I> {
    /// The deadline of an opening flow has passed.
    pub(super) fn on_opening_time(&mut self, key: u64) {
        let now = self.now;
        if self.is_hop_late(key) {
            return self.on_hop_failed(key, None);
        }
        let Some(entry) = self.entries.live_mut(key) else {
            return;
        };
        let upstream = entry.sockets[Side::Upstream].as_ref();
        let unsent = upstream.is_some_and(sys::syn_unsent);
        let Some(pending) = entry.pending() else {
            return;
        };
        // A SYN that waits in this host for a neighbour has reached no server yet.
        if !unsent && pending.restrain_at().is_some_and(|at| at <= now) {
            pending.restrained = true;
            self.restrain(key);
        }
        let Some(pending) = self.pending(key) else {
            return;
        };
        let over = now >= pending.limit();
        let mut given_up = over && (pending.opening.is_validated() || pending.opening.is_held());
        if now >= pending.look_at {
            pending.look_at = now + LOOK;
            given_up |= unsent && pending.opening.on_unsent();
        }
        if given_up {
            self.give_up(key, unsent);
        } else if over && !self.is_answered_trial(key) {
            self.expire(key);
        }
    }

    /// The server did not answer, or was never reached.
    fn give_up(&mut self, key: u64, unsent: bool) {
        let hopping = self
            .pending(key)
            .and_then(|pending| pending.hopping.as_ref());
        if let (Some(hopping), false) = (hopping, unsent) {
            // A node that has not accepted the connection does not count as a silent server.
            let reply = hopping.is_connected().then_some(Reply::TimedOut);
            self.count_unanswered(key);
            return self.on_hop_failed(key, reply);
        }
        let code = if unsent {
            libc::EHOSTUNREACH
        } else {
            libc::ETIMEDOUT
        };
        self.on_upstream_failed(key, &io::Error::from_raw_os_error(code), Blame::Them);
    }

    /// The client did not complete its handshake.
    pub(super) fn expire(&mut self, key: u64) {
        let Some(pending) = self.pending(key) else {
            return;
        };
        let opening = std::mem::replace(&mut pending.opening, Opening::validated());
        let (outcome, syn_ack) = opening.on_expiry();
        // The server would keep its half-open connection for a minute.
        self.inject(syn_ack.and_then(|frame| frame.reset()), Direction::Out);
        self.end(key, outcome);
    }
}
