// SPDX-License-Identifier: Apache-2.0
//! Connections to an explicit listener that have no flow yet: how many may wait and for how long,
//! and what they have sent.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use nix::sys::epoll::{EpollEvent, EpollFlags};
use posthaste_wire::convert::Refusal;
use posthaste_wire::header::NodeId;

use crate::chain::Chains;
use crate::control::Denial;
use crate::flow::Flow;
use crate::intercept::Intercept;
use crate::sys;

use super::Worker;
use super::admit::client_prefix;
use super::authentication::key_of;
use super::connect_request::ConnectRequest;
use super::denial::encoded;
use super::pending_request::{Keys, PendingRequest, RequestKind};
use super::places::PLACES;
use super::preface::Requester;

/// Hops of peers that wait for a flow, at one worker.
const HOPS_MAX: usize = 8192;
/// What the token of a pending request has that no relay's has.
pub(super) const TOKEN_PENDING_REQUEST: u64 = 1 << 60;

impl<I: Intercept> Worker<I> {
    /// Takes a connection from an explicit listener.
    /// `syn_option` is the flow that its SYN has announced.
    pub(super) fn receive_request(
        &mut self,
        from: SocketAddr,
        socket: OwnedFd,
        syn_option: Option<u64>,
    ) {
        self.counters.explicit_connections.add(1);
        if self.begins_nothing() {
            self.deny(from, None, Denial::Overload);
            return self.forsake(syn_option);
        }
        if !self.may_request(from.ip()) {
            self.deny(from, None, Denial::Unauthorized);
            self.forsake(syn_option);
            let why = Requester::CLIENT.answer(Denial::Unauthorized.reply(), None);
            return self.part(socket, from, &why);
        }
        let mut pending_request = PendingRequest::new(socket, from, self.now);
        pending_request.syn_option = syn_option;
        self.keep_request(pending_request);
    }

    /// Whether a sender at an address may have a request: peers have keys, and may connect from
    /// anywhere.
    fn may_request(&self, ip: IpAddr) -> bool {
        let chains = self.rules.chains();
        let has_keys = chains.me.is_some() && chains.peers.iter().any(|peer| peer.key.is_some());
        has_keys || self.rules.policy.access.admits(ip)
    }

    /// Gives a connection a place, and takes that of another if there is no more.
    fn count_source(&mut self, key: u64, from: SocketAddr) {
        let source = client_prefix(&Flow::new(from, from));
        let access = &self.rules.policy.access;
        // So that unauthorized senders do not take the places of clients and peers.
        let is_known = access.admits(from.ip()) || self.paces.is_of_peer(from.ip());
        if let Some(oldest) = self.places.in_the_way(source, is_known)
            && let Some(gone) = self.dismiss(oldest)
            && gone.is_silent()
        {
            self.deny(gone.from, None, Denial::Overload);
        }
        let place = self.places.take(key, source, is_known);
        if let Some(pending_request) = self.pending_requests.get_mut(key) {
            pending_request.place = Some(place);
        }
    }

    /// A connection turned out to be a hop of a peer: it needs no place.
    pub(super) fn uncount_source(&mut self, key: u64) {
        let place = self
            .pending_requests
            .get_mut(key)
            .and_then(|hop| hop.place.take());
        if let Some(place) = place {
            self.places.leave(place);
        }
    }

    pub(super) fn keep_request(&mut self, pending_request: PendingRequest) {
        let from = pending_request.from;
        // A handshake that completes makes it writable once more.
        let flags = EpollFlags::EPOLLIN
            | EpollFlags::EPOLLOUT
            | EpollFlags::EPOLLRDHUP
            | EpollFlags::EPOLLET;
        let key = self.pending_requests.insert(pending_request);
        let Some(pending_request) = self.pending_requests.get(key) else {
            return;
        };
        let event = EpollEvent::new(flags, TOKEN_PENDING_REQUEST | key);
        if self.epoll.add(&pending_request.socket, event).is_err() {
            self.dismiss(key);
            return;
        }
        self.count_source(key, from);
        // What came with the SYN is there already.
        self.on_request_bytes(key);
    }

    /// Bytes have arrived on a connection without a flow.
    pub(super) fn on_request_bytes(&mut self, key: u64) {
        let now = self.now;
        let Some(pending_request) = self.pending_requests.get_mut(key) else {
            return;
        };
        let chains = self.rules.chains();
        let find = |id: NodeId, key_id: u32| key_of(chains, id, key_id);
        let keys = Keys {
            me: chains.me,
            find: &find,
        };
        let (from, was_hop) = (pending_request.from, pending_request.is_hop());
        let kind = pending_request.receive(&keys, now);
        if let (Some(peer), false) = (pending_request.peer(), was_hop) {
            self.welcome(key, peer);
            self.uncount_source(key);
            // Idle hops have no places, so only the total bounds them.
            if self.pending_requests.len() >= HOPS_MAX + PLACES {
                self.dismiss(key);
                return self.deny(from, None, Denial::Overload);
            }
        }
        match kind {
            RequestKind::Wait => {}
            RequestKind::Close { wrong } => {
                self.dismiss(key);
                if wrong {
                    self.deny(from, None, Denial::Malformed);
                }
            }
            RequestKind::Bad(refusal) => self.on_bad_request(key, &refusal),
            RequestKind::Request(head) => self.on_request(key, head),
            RequestKind::Open(peer, connect) => {
                self.on_connect_request(key, ConnectRequest::of_peer(peer, *connect, from));
            }
        }
    }

    fn on_bad_request(&mut self, key: u64, refusal: &Refusal) {
        let Some(pending_request) = self.dismiss(key) else {
            return;
        };
        self.deny(pending_request.from, None, Denial::Malformed);
        if let Some(error) = &refusal.answer {
            self.let_go(pending_request, &encoded(error.clone()));
        }
    }

    /// A sender has proved to be a peer: its connection is a hop, and gets the settings
    /// of hops.
    pub(super) fn welcome(&mut self, key: u64, peer: NodeId) {
        let known = self.rules.chains().find_peer(peer);
        if let (Some(pending_request), Some(known)) = (self.pending_requests.get(key), known) {
            let from = pending_request.from.ip();
            // Best effort: the connection works without these settings.
            let _ = sys::apply_to_accepted(&pending_request.socket, known);
            self.on_caller(peer, from);
        }
    }

    /// Closes the idle hops of peers whose key `chains` no longer has: they have
    /// authenticated once, and could open flows for as long as they ping. So could those that are
    /// challenged with a former key.
    pub(super) fn dismiss_former_peers(&mut self, chains: &Chains) {
        let former = self.rules.chains().peers.iter();
        let gone = former.flat_map(|peer| {
            let now = chains.find_peer(peer.id);
            let is_gone = move |key, id| now.and_then(|now| now.key(id)) != Some(key);
            let gone = peer.keys().filter(move |(key, id)| is_gone(key, *id));
            gone.map(|(_, id)| (peer.id, id))
        });
        let gone: Vec<(NodeId, u32)> = gone.collect();
        if gone.is_empty() {
            return;
        }
        self.finish_hops(|request| {
            let used = request.challenged_peer();
            used.is_some_and(|used| gone.contains(&used))
        });
    }

    /// Closes the idle hops of peers: no flow begins here any more.
    pub(super) fn finish_all_hops(&mut self) {
        self.finish_hops(PendingRequest::is_hop);
    }

    fn finish_hops(&mut self, is_over: impl Fn(&PendingRequest) -> bool) {
        let requests = self.pending_requests.iter();
        let over = requests.filter(|(_, request)| is_over(request));
        for key in over.map(|(key, _)| key).collect::<Vec<_>>() {
            if let Some(hop) = self.pending_requests.get_mut(key) {
                hop.finish(self.now);
            }
            // What has arrived is not reported again.
            self.on_request_bytes(key);
        }
    }

    /// Takes a pending request off the table that is not for the flow which its SYN has
    /// announced.
    pub(super) fn dismiss(&mut self, key: u64) -> Option<PendingRequest> {
        self.uncount_source(key);
        let pending_request = self.pending_requests.remove(key)?;
        self.forsake(pending_request.syn_option);
        Some(pending_request)
    }

    /// Closes pending requests that have taken too long.
    pub(super) fn sweep_requests(&mut self) {
        let now = self.now;
        let draining = self.drain_until.is_some();
        // An idle hop to a draining node could only carry a flow that is refused.
        self.finish_hops(|request| request.is_hop() && (draining || request.until <= now));
        let over = self.pending_requests.iter();
        let over = over.filter(|(_, request)| request.until <= now);
        for key in over.map(|(key, _)| key).collect::<Vec<_>>() {
            let late = self.dismiss(key);
            if let Some(late) = late.filter(|late| late.is_silent() && !draining) {
                self.deny(late.from, None, Denial::Slow);
            }
        }
    }
}
