// SPDX-License-Identifier: Apache-2.0
//! Upstream connections of clients that are not validated: their SYN is retransmitted at most once,
//! whatever the kernel's settings, so that a spoofed SYN causes no more packets toward a server
//! than the sender spends.
//!
//! A client is validated within a round trip, or when a segment was lost within one to three
//! seconds. Its upstream connection is closed by then, and opened again at the validation. A held
//! SYN has no validation to wait for: the client's later SYNs are forwarded.

use std::io;
use std::time::Duration;

use crate::intercept::{Direction, Intercept};
use crate::side::Side;
use crate::sys;

use super::Worker;
use super::entry::Pending;
use super::hop;

/// How long a client may stay unvalidated until its upstream connection is restrained. The sweep
/// covers openings every quarter of a second, and within a second when there are very many: before
/// the kernel's first retransmission, or at least before its second, one and two seconds after the
/// SYN.
const UNVALIDATED_FOR: Duration = Duration::from_millis(700);

impl Pending {
    /// When to restrain its upstream connection, if that is pending.
    pub(super) fn restrain_at(&self) -> Option<Duration> {
        let due = self.requested && !self.restrained && !self.opening.is_validated();
        due.then_some(self.connecting + UNVALIDATED_FOR)
    }
}

impl<I: Intercept> Worker<I> {
    /// The client of a flow has stayed unvalidated for too long.
    pub(super) fn restrain(&mut self, key: u64) {
        let Some(entry) = self.entries.live_mut(key) else {
            return;
        };
        let Some(pending) = entry.pending() else {
            return;
        };
        let (over_hop, held) = (pending.hopping.is_some(), pending.opening.is_held());
        // A strict flow waits for the server a little longer, since its client is answered after
        // that.
        let strict = entry.accept.holds_syn();
        match &entry.sockets[Side::Upstream] {
            // The node at the end of the hop restrains its own.
            _ if over_hop => {}
            // If it fails, the SYN is retransmitted as by any host.
            Some(socket) if strict => drop(sys::set_impatient(socket, true)),
            Some(_) if !held => self.withdraw(key),
            _ => {}
        }
    }

    /// The client of a flow is validated, whatever happened to the restrained connection.
    pub(super) fn release(&mut self, key: u64) {
        let Some(entry) = self.entries.live_mut(key) else {
            return;
        };
        let restrained = entry
            .pending()
            .is_some_and(|pending| std::mem::take(&mut pending.restrained));
        let Some(socket) = entry.sockets[Side::Upstream]
            .as_ref()
            .filter(|_| restrained)
        else {
            return;
        };
        let released = sys::set_impatient(socket, false);
        let over = hop::connect_error(socket).or_else(|| released.err());
        if over.is_some_and(|error| error.raw_os_error() == Some(libc::ETIMEDOUT)) {
            self.withdraw(key);
        }
    }

    /// Whether an upstream connection failed only because it was restrained, and its client may
    /// still be validated.
    pub(super) fn is_closed_by(&mut self, key: u64, error: &io::Error) -> bool {
        let timed_out = error.raw_os_error() == Some(libc::ETIMEDOUT);
        let pending = self.pending(key).filter(|_| timed_out);
        pending.is_some_and(|pending| pending.restrained && !pending.opening.is_held())
    }

    /// Closes the upstream connection. It is opened again when the client is validated, as in late
    /// mode.
    pub(super) fn withdraw(&mut self, key: u64) {
        let Some(entry) = self.entries.live_mut(key) else {
            return;
        };
        entry.sockets[Side::Upstream] = None;
        let flow = entry.flow;
        if let Some(preface) = &mut entry.preface {
            (preface.expecting, preface.via) = (None, None);
        }
        let Some(pending) = entry.pending() else {
            return;
        };
        let syn_ack = pending.opening.on_unvalidated_close();
        (pending.requested, pending.restrained) = (false, false);
        pending.hopping = None;
        let half_open_flows = std::mem::take(&mut pending.half_open_flows);
        let (kept, others): (Vec<_>, Vec<_>) = half_open_flows
            .into_iter()
            .partition(|(reserved_flow, _)| *reserved_flow == flow);
        pending.half_open_flows = kept;
        for (reserved_flow, half_open) in others {
            self.intercept
                .release_if_unchanged(&reserved_flow, half_open);
            self.opening.remove(&reserved_flow);
        }
        // The server would keep its half-open connection for a minute.
        self.inject(syn_ack.and_then(|frame| frame.reset()), Direction::Out);
    }

    /// Forwards later SYNs of a held flow: its server has not answered this node.
    pub(super) fn let_pass(&mut self, key: u64) {
        // The list of forwarded SYNs is in the order of their expiry.
        let until = self.now + self.rules.half_open().expiry;
        let Some(pending) = self.pending(key) else {
            return;
        };
        if pending.syn.is_none() || pending.half_open_flows.is_empty() {
            return;
        }
        let (flow, half_open) = pending.half_open_flows.remove(0);
        if self.intercept.pass(&flow, half_open).is_ok() {
            self.counters.syns_forwarded.add(1);
            self.passed.push_back((until, flow, half_open));
        }
    }
}
