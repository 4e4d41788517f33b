// SPDX-License-Identifier: Apache-2.0
//! Sockets that relays leave in TIME_WAIT.
//!
//! A socket with foreign addresses matches packets that cross this host. Once nothing redirects
//! these, the kernel's early demultiplexing attaches the socket to them, and forwarding drops
//! packets that belong to a socket. A node that dies together with its guard cannot clean up any
//! more, so the worker destroys such sockets at the end of the turn in which their relay ended.
//!
//! The purpose of TIME_WAIT (RFC 9293 section 3.6.1) is lost in part: if the last ACK of a
//! connection is lost, the peer's retransmitted FIN is forwarded to the other end, which has no
//! such connection and resets it. By then every byte is acknowledged, and the peer's program has
//! closed.

use std::os::fd::OwnedFd;

use crate::intercept::{Closed, Intercept};
use crate::side::Side;
use crate::sys;

use super::Worker;
use super::entry::{Entry, State};

impl<I: Intercept> Worker<I> {
    /// Records the socket of an ending relay that the kernel keeps in TIME_WAIT, and returns its
    /// side. Skips a socket that still waits for its peer: destroying it would lose bytes.
    pub(super) fn note_closed(&mut self, entry: &Entry) -> Option<Side> {
        let State::Open(relay) = &entry.state else {
            return None;
        };
        let side = relay.closed_first()?;
        let socket = entry.sockets[side].as_ref();
        let socket = socket.filter(|socket| sys::is_gone(*socket))?;
        self.closed.extend(match side {
            side if entry.has_own_address(side) => None,
            Side::Downstream => closed_downstream(entry),
            Side::Upstream => closed_upstream(entry, socket),
        });
        Some(side)
    }

    /// Destroys the recorded sockets.
    pub(super) fn forget_closed(&mut self) {
        if !self.closed.is_empty() {
            self.intercept.forget(&self.closed);
            self.closed.clear();
        }
    }
}

fn closed_downstream(entry: &Entry) -> Option<Closed> {
    Some(Closed {
        local: entry.flow.server(),
        remote: entry.flow.client(),
        ifindex: 0,
        cookie: entry.closed_cookie?.get(),
    })
}

/// `None` for a socket with an address of this host, which matches no foreign packets: unless it is that of
/// NAT, whose connections share its ports.
fn closed_upstream(entry: &Entry, socket: &OwnedFd) -> Option<Closed> {
    let local = sys::local_address(socket).ok()?;
    let is_observed = entry.is_observed();
    let is_foreign = local.ip() == entry.flow.client().ip();
    Some(Closed {
        local: (is_foreign || is_observed).then_some(local)?,
        remote: entry.flow.server(),
        ifindex: match is_observed {
            true => sys::bound_interface(socket).ok()?,
            false => 0,
        },
        cookie: entry.closed_cookie?.get(),
    })
}
