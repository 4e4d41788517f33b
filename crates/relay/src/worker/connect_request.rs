// SPDX-License-Identifier: Apache-2.0
//! Requests for flows at an explicit listener: which are granted, to which destinations, and by
//! which route.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use nix::sys::epoll::{EpollEvent, EpollFlags};
use posthaste_wire::auth::Key;
use posthaste_wire::convert::{Answer, Connect, ConvertError, Head, Refusal, cookie, is_cookie_of};
use posthaste_wire::header::{Endpoint, LoopGuard, NodeId};
use posthaste_wire::replay::ReplayWindow;
use posthaste_wire::segments::{Segment, SegmentList};

use crate::accept_mode::AcceptMode;
use crate::chain::{Chains, Encapsulation, NextHop, NoNextHop, Peer};
use crate::clock::Clock;
use crate::control::{Denial, Denied};
use crate::flow::Flow;
use crate::intercept::Intercept;
use crate::opening::silence::WORKING_AFTER;
use crate::opening::{Action, Arrival, Hops};
use crate::outcome::Outcome;
use crate::side::Side;
use crate::sys;

use super::Worker;
use super::admit::client_prefix;
use super::end::StreamEnd;
use super::entry::{State, end_of};
use super::opening::OPEN;
use super::pending_request::{Keys, PendingRequest, RequestKind};
use super::places::PLACES;
use super::preface::{OPTIONS, Preface, ReadError, Requester, read_message};
use super::rules::LocalRule;

/// Hops of peers that wait for a flow, at one worker.
const HOPS_MAX: usize = 8192;
/// What the token of a pending request has that no relay's has.
pub(super) const TOKEN_PENDING_REQUEST: u64 = 1 << 60;
/// How long an authenticated request is valid, and how much clocks may differ. Hosts that use NTP
/// differ by far less; a longer time means more requests to remember.
const FRESH_MS: u64 = 30_000;
/// Requests remembered, by all workers together: as many as may come in that
/// time at two thousand in a second.
const REMEMBERED: usize = 60_000;

/// What the workers of a node share about requests.
#[derive(Debug)]
pub struct ReplayGuard {
    /// When requests are made, and seen.
    pub(super) clock: Clock,
    /// Requests that count no more.
    seen: Mutex<ReplayWindow>,
    /// What cookies are made with.
    secret: Key,
}

impl ReplayGuard {
    /// Goes by `clock`.
    pub fn new(clock: Clock) -> Self {
        Self {
            clock,
            seen: Mutex::new(ReplayWindow::new(FRESH_MS, REMEMBERED)),
            secret: Key::new(sys::random()),
        }
    }
}

impl Default for ReplayGuard {
    fn default() -> Self {
        Self::new(Clock::default())
    }
}

/// Why a request is denied, and of one that is for the time how far its clock seems to be ahead, in
/// milliseconds.
pub(super) struct Reason {
    denial: Denial,
    ahead_ms: Option<i64>,
    segment: Option<Segment>,
}

impl From<Denial> for Reason {
    fn from(denial: Denial) -> Self {
        Self {
            denial,
            ahead_ms: None,
            segment: None,
        }
    }
}

/// What a flow was requested on.
pub(super) enum Requesting {
    Socket(OwnedFd),
    Stream(Rc<StreamEnd>),
}

/// A request for a flow.
#[derive(Debug)]
pub(super) struct ConnectRequest {
    /// The peer; `None` for a client of RFC 8803.
    peer: Option<NodeId>,
    pub(super) connect: Connect,
    /// It requests the list of TCP options, too.
    extensions: bool,
    from: SocketAddr,
}

impl ConnectRequest {
    /// A request of a peer, or of a client of RFC 8803 (`None`).
    pub(super) fn new(peer: Option<NodeId>, connect: Connect, from: SocketAddr) -> Self {
        Self {
            peer,
            connect,
            extensions: false,
            from,
        }
    }

    pub(super) fn peer(&self) -> Option<NodeId> {
        self.peer
    }

    /// Why it is denied, with the segment if the denial is about one.
    pub(super) fn denied(&self, denial: Denial) -> Reason {
        let next = self.connect.header.segments.split_first();
        let segment = next.filter(|_| denial == Denial::Segment);
        Reason {
            segment: segment.map(|(segment, _)| segment),
            ..denial.into()
        }
    }

    pub(super) fn requester(&self) -> Requester {
        match self.peer {
            Some(_) => Requester::Peer,
            None => Requester::Client {
                options: !self.connect.options.is_empty(),
                extensions: self.extensions,
            },
        }
    }

    /// The flow as its client addressed it, as far as that is known.
    pub(super) fn flow(&self) -> Flow {
        let header = &self.connect.header;
        let server = header.destination.address();
        let client = header.source.map_or(self.from, Endpoint::address);
        Flow::new(client, server)
    }
}

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

    fn keep_request(&mut self, pending_request: PendingRequest) {
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
                self.on_connect_request(key, ConnectRequest::new(Some(peer), *connect, from));
            }
        }
    }

    /// Closes the idle hops of peers that `chains` no longer has, or has with another key: they have
    /// authenticated once, and could open flows for as long as they ping. So could those that are
    /// challenged with a former key.
    pub(super) fn dismiss_former_peers(&mut self, chains: &Chains) {
        let is_kept = |former: &Peer| {
            let peer = chains.find_peer(former.id);
            peer.is_some_and(|peer| peer.has_key_of(former))
        };
        let former = self.rules.chains().peers.iter();
        let gone: Vec<NodeId> = former
            .filter(|peer| !is_kept(peer))
            .map(|peer| peer.id)
            .collect();
        if gone.is_empty() {
            return;
        }
        let requests = self.pending_requests.iter();
        let hops: Vec<u64> = requests
            .filter(|(_, request)| {
                let peer = request.challenged_peer();
                peer.is_some_and(|peer| gone.contains(&peer))
            })
            .map(|(key, _)| key)
            .collect();
        for key in hops {
            self.dismiss(key);
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

    /// A client or a node has sent a request.
    fn on_request(&mut self, key: u64, head: Box<Head>) {
        let Some(pending_request) = self.pending_requests.get(key) else {
            return;
        };
        let from = pending_request.from;
        if head.claim.is_none() {
            return self.on_unauthenticated(key, from, head);
        }
        match self.authenticate(&head) {
            Ok(peer) => {
                self.welcome(key, peer);
                if let Some(connect) = head.request.connect {
                    self.on_connect_request(key, ConnectRequest::new(Some(peer), connect, from));
                }
            }
            Err(why) => self.refuse(key, None, Requester::Peer, why),
        }
    }

    /// Which peer has made a request, if it counts.
    fn authenticate(&self, head: &Head) -> Result<NodeId, Reason> {
        let chains = self.rules.chains();
        let (Some(me), Some(claim)) = (chains.me, head.claim) else {
            return Err(Denial::AuthTag.into());
        };
        // A request does not name its sender, so each key of that number is tried.
        let candidates = chains.peers.iter();
        let mut candidates = candidates.filter(|peer| peer.key_id == claim.key_id);
        let found = candidates.find_map(|peer| {
            let authentic = head.verify(peer.key.as_ref()?, me).ok()?;
            Some((peer.id, authentic))
        });
        // Only then the window: a sender without a key must not fill it. All workers share it,
        // since the kernel may give a repetition to another one.
        let (peer, authentic) = found.ok_or(Denial::AuthTag)?;
        let mut seen = self
            .common
            .replay_guard
            .seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let now_ms = self.common.replay_guard.clock.now_ms();
        seen.admit(now_ms, authentic)
            .map_err(|_| untimely(claim.timestamp_ms, now_ms))?;
        Ok(peer)
    }

    /// A client of RFC 8803 has sent a request.
    fn on_unauthenticated(&mut self, key: u64, from: SocketAddr, head: Box<Head>) {
        let requester = Requester::CLIENT;
        let access = &self.rules.policy.access;
        if !access.admits(from.ip()) {
            return self.refuse(key, None, requester, Denial::Unauthorized);
        }
        if let Some(text) = &access.cookie {
            let sent = head.request.cookie.as_ref();
            if !sent.is_some_and(|cookie| text.is_sent_as(cookie)) {
                return self.refuse(key, None, requester, Denial::Cookie);
            }
        } else if access.cookies {
            match &head.request.cookie {
                Some(cookie)
                    if is_cookie_of(&self.common.replay_guard.secret, from.ip(), cookie) => {}
                Some(_) => return self.refuse(key, None, requester, Denial::Cookie),
                None => {
                    // RFC 8803 §6.2.7: the client repeats its request with this cookie.
                    let fresh = cookie(&self.common.replay_guard.secret, from.ip()).into_bytes();
                    return self.answer_request(key, &encoded(ConvertError::MissingCookie(fresh)));
                }
            }
        }
        let Some(pending_request) = self.pending_requests.get_mut(key) else {
            return;
        };
        // The request was in the SYN (RFC 7413), whose source may be spoofed: without a tag it
        // must not make a server work.
        if sys::is_handshaking(&pending_request.socket) {
            return pending_request.validate(head);
        }
        let extensions = head.request.wants_extensions;
        let Some(connect) = head.request.connect else {
            let answer = Answer {
                extensions: extensions.then(|| OPTIONS.to_vec()),
                ..Answer::default()
            };
            return self.answer_request(key, &answer.encode().unwrap_or_default());
        };
        if let Some(error) = connect.unsupported(&OPTIONS) {
            return self.answer_request(key, &encoded(error));
        }
        let mut request = ConnectRequest::new(None, connect, from);
        request.extensions = extensions;
        self.on_connect_request(key, request);
    }

    /// An authorized sender has requested a flow.
    fn on_connect_request(&mut self, key: u64, request: ConnectRequest) {
        let flow = request.flow();
        let (rule, onward) = match self.grant(&request, &flow) {
            Ok(granted) => granted,
            Err(denial) => {
                let why = request.denied(denial);
                return self.refuse(key, Some(flow), request.requester(), why);
            }
        };
        // Before the budgets: such a flow counts against them since its SYN.
        if let Some(syn_option) = self.requested_in_syn(key, &request) {
            return self.adopt(key, syn_option, &request, onward);
        }
        if !self.has_room_for(&request, &flow) {
            return self.refuse(key, Some(flow), request.requester(), Denial::Overload);
        }
        let Some(pending_request) = self.dismiss(key) else {
            return;
        };
        // A connection of a peer has got the settings of hops from `welcome`.
        if request.peer.is_none() && !rule.inherited {
            // Best effort: the connection works without these settings.
            let _ = sys::apply(&pending_request.socket, &rule.rule.downstream);
        }
        self.begin_request(
            Requesting::Socket(pending_request.socket),
            &request,
            rule,
            onward,
        );
    }

    /// A peer has requested a flow on a stream of a tunnel.
    pub(super) fn on_stream_request(&mut self, stream: Rc<StreamEnd>, request: &ConnectRequest) {
        let flow = request.flow();
        let granted = self.grant(request, &flow);
        let granted = granted.and_then(|granted| {
            let has_room = self.has_room_for(request, &flow);
            has_room.then_some(granted).ok_or(Denial::Overload)
        });
        match granted {
            Ok((rule, onward)) => {
                self.begin_request(Requesting::Stream(stream), request, rule, onward);
            }
            Err(denial) => {
                self.deny(request.from, Some(flow), request.denied(denial));
                let answer = request.requester().answer(denial.reply(), None);
                // If this fails its connection is gone.
                let _ = stream.write_message(&answer).and_then(|_| stream.finish());
            }
        }
    }

    /// Whether a flow may begin now.
    pub(super) fn has_room_for(&self, request: &ConnectRequest, flow: &Flow) -> bool {
        let crowded = !request.connect.validated && !self.within_budget(flow);
        !(self.full() || self.begins_nothing() || crowded)
    }

    /// Begins a flow that was granted to the requester at `end`.
    pub(super) fn begin_request(
        &mut self,
        end: Requesting,
        request: &ConnectRequest,
        rule: Rc<LocalRule>,
        onward: Hops,
    ) {
        let (flow, validated) = (request.flow(), request.connect.validated);
        // Strict: the reply to the requester takes the place of the answer to a held SYN.
        let accept = if validated {
            AcceptMode::LATE
        } else {
            AcceptMode::STRICT
        };
        let arrival = request.peer.map_or(Arrival::Convert, |_| Arrival::Peer);
        let mut opening = self.open(accept, arrival, &rule).with_hops(onward);
        // The packets of the request have the TTL of this hop; the guard has that of the flow.
        opening.hops.hop_limit = request.connect.header.guard.map(LoopGuard::ttl);
        if !validated {
            opening.counted = Some(self.count_half_open(&flow));
        }
        let entry = self.insert(flow, rule, accept, opening);
        if let Requesting::Socket(socket) = &end
            && self.rewatch(entry, Side::Downstream, socket).is_err()
        {
            return self.end(entry, Outcome::Internal);
        }
        let mut preface = Preface {
            requested: true,
            by: request.peer,
            requester: Some(request.requester()),
            progress_due: Some(self.now + WORKING_AFTER),
            ..Preface::default()
        };
        let tag = entry << 1 | Side::Downstream as u64;
        if let Some(entry) = self.entries.live_mut(entry) {
            match end {
                Requesting::Socket(socket) => entry.sockets[Side::Downstream] = Some(socket),
                Requesting::Stream(stream) => {
                    stream.set_tag(tag);
                    preface.streams[Side::Downstream] = Some(stream);
                }
            }
            entry.timers.accept = Duration::ZERO.into();
            entry.preface = Some(Box::new(preface));
        }
        if request.peer.is_some() {
            self.owe_progress(entry);
        }
        self.carry_out_all(entry, Action::Try.into(), OPEN);
    }

    /// A sender has proved to be a peer: its connection is a hop, and gets the settings
    /// of hops.
    fn welcome(&mut self, key: u64, peer: NodeId) {
        let known = self.rules.chains().find_peer(peer);
        if let (Some(pending_request), Some(known)) = (self.pending_requests.get(key), known) {
            let from = pending_request.from.ip();
            // Best effort: the connection works without these settings.
            let _ = sys::apply(&pending_request.socket, &known.socket);
            self.on_caller(peer, from);
        }
    }

    /// Whether a flow may be had: by which rule, and where it may go.
    pub(super) fn grant(
        &self,
        request: &ConnectRequest,
        flow: &Flow,
    ) -> Result<(Rc<LocalRule>, Hops), Denial> {
        let onward = self.onward(request, flow)?;
        let rule = self.rules.for_request(flow);
        Ok((rule.ok_or(Denial::Rule)?, onward))
    }

    /// Where a flow may go.
    fn onward(&self, request: &ConnectRequest, flow: &Flow) -> Result<Hops, Denial> {
        let header = &request.connect.header;
        let chains = self.rules.chains();
        self.rules
            .policy
            .access
            .permits(flow, sys::leads_here)
            .map_err(|_| Denial::Destination)?;
        if header.segments == SegmentList::RESOLVE {
            return self.resolve(request, flow);
        }
        let begins_here = header.segments.is_empty() && header.guard.is_none();
        if begins_here {
            let rule = self.rules.for_flow(flow);
            let bytes = rule.and_then(|rule| rule.rule.transfer_bytes);
            return Ok(Hops::new(
                chains.next_hops(flow, bytes),
                chains.me.map(LoopGuard::new),
            ));
        }
        // Clients that are known by their address alone have their routes chosen for them.
        if !header.segments.is_empty() && request.peer.is_none() {
            return Err(Denial::Segment);
        }
        let next_hop = chains
            .onward(header.segments)
            .map_err(|error| match error {
                NoNextHop::Loop => Denial::Loop,
                NoNextHop::Unknown => Denial::Segment,
            })?;
        // A client of RFC 8803 sends no guard: the flow begins here.
        let passed = match (header.guard, chains.me) {
            (Some(guard), Some(me)) => guard.passed_on(me),
            (_, me) => me.map(LoopGuard::new),
        };
        if next_hop != NextHop::Direct && passed.is_none() {
            return Err(Denial::Loop);
        }
        Ok(Hops::new(vec![next_hop], passed))
    }

    /// Where a flow may go for a peer that holds no plan: as if it began here. It does not return
    /// to that peer, nor go to a third node that looks routes up.
    fn resolve(&self, request: &ConnectRequest, flow: &Flow) -> Result<Hops, Denial> {
        let chains = self.rules.chains();
        let may = &self.rules.policy.access.resolve;
        let peer = request.peer.filter(|peer| may.contains(peer));
        let (peer, me) = peer.zip(chains.me).ok_or(Denial::Segment)?;
        let guard = match request.connect.header.guard {
            Some(guard) => guard.passed_on(me),
            None => Some(LoopGuard::new(me)),
        };
        let rule = self.rules.for_flow(flow);
        let bytes = rule.and_then(|rule| rule.rule.transfer_bytes);
        let mut next_hops = chains.next_hops(flow, bytes);
        let refused = next_hops.is_empty();
        next_hops.retain(|next_hop| match *next_hop {
            NextHop::Direct => true,
            NextHop::Hop(path) => {
                guard.is_some() && path.peer != peer && path.rest != SegmentList::RESOLVE
            }
        });
        match next_hops.is_empty() {
            true if refused => Err(Denial::Rule),
            true => Err(Denial::Loop),
            false => Ok(Hops::new(next_hops, guard)),
        }
    }

    /// Denies a request, and sends the reason.
    fn refuse(
        &mut self,
        key: u64,
        flow: Option<Flow>,
        requester: Requester,
        why: impl Into<Reason>,
    ) {
        let (why, Some(pending_request)) = (why.into(), self.dismiss(key)) else {
            return;
        };
        let reply = why.denial.reply();
        self.deny(pending_request.from, flow, why);
        self.let_go(pending_request, &requester.answer(reply, None));
    }

    fn answer_request(&mut self, key: u64, answer: &[u8]) {
        if let Some(pending_request) = self.dismiss(key) {
            self.let_go(pending_request, answer);
        }
    }

    fn let_go(&mut self, pending_request: PendingRequest, why: &[u8]) {
        // `part` adds it again, as a request with a new key.
        let _ = self.epoll.delete(&pending_request.socket);
        self.part(pending_request.socket, pending_request.from, why);
    }

    /// Sends the client of a connection the reason why it is closed, and closes it once the client
    /// has read that.
    pub(super) fn part(&mut self, socket: OwnedFd, from: SocketAddr, why: &[u8]) {
        let pending_request = PendingRequest::refused(socket, from, why, self.now);
        self.keep_request(pending_request);
    }

    pub(super) fn deny(&mut self, from: SocketAddr, flow: Option<Flow>, why: impl Into<Reason>) {
        self.note_denial(from, flow, Some(Encapsulation::Stream), why);
    }

    /// Counts and reports a denial.
    pub(super) fn note_denial(
        &mut self,
        from: SocketAddr,
        flow: Option<Flow>,
        encapsulation: Option<Encapsulation>,
        why: impl Into<Reason>,
    ) {
        let why = why.into();
        self.counters.denied[why.denial as usize].add(1);
        self.journal.deny(&Denied {
            from,
            flow,
            encapsulation,
            denial: why.denial,
            ahead_ms: why.ahead_ms,
            segment: why.segment,
        });
    }

    /// Takes a pending request off the table that is not for the flow which its SYN has
    /// announced.
    fn dismiss(&mut self, key: u64) -> Option<PendingRequest> {
        self.uncount_source(key);
        let pending_request = self.pending_requests.remove(key)?;
        self.forsake(pending_request.syn_option);
        Some(pending_request)
    }

    /// The requester of a flow that is opening has sent something: that its client is validated. Or
    /// it is gone.
    pub(super) fn on_requester_ready(&mut self, key: u64) {
        let Some(entry) = self.entries.live_mut(key) else {
            return;
        };
        let State::Opening(pending) = &mut entry.state else {
            return;
        };
        if pending.opening.is_validated() {
            return;
        }
        let downstream = end_of(&entry.sockets, entry.preface.as_deref(), Side::Downstream);
        let Some(downstream) = downstream else {
            return;
        };
        let validation = &mut pending.validation;
        match read_message(&downstream, |bytes| validation.feed(bytes)) {
            Ok(()) => self.on_validation(key),
            Err(ReadError::Incomplete) => {}
            Err(ReadError::Gone | ReadError::Reset | ReadError::Lost | ReadError::Wrong(_)) => {
                self.end(key, Outcome::ClientAbsent)
            }
        }
    }

    /// Closes pending requests that have taken too long.
    pub(super) fn sweep_requests(&mut self) {
        let now = self.now;
        let draining = self.drain_until.is_some();
        let over = self.pending_requests.iter().filter(|(_, pending_request)| {
            // An idle hop to a draining node could only carry a flow that is refused.
            pending_request.until <= now || draining && pending_request.is_hop()
        });
        for key in over.map(|(key, _)| key).collect::<Vec<_>>() {
            let Some(pending_request) = self.dismiss(key) else {
                continue;
            };
            if pending_request.is_hop() {
                // With a FIN: the dialer takes a reset for a node that crashed, and checks all hops.
                let _ = sys::set_reset_on_close(&pending_request.socket, false);
            } else if pending_request.is_silent() && !draining {
                self.deny(pending_request.from, None, Denial::Slow);
            }
        }
    }
}

/// Why an authentic request that was made then is not valid. A fresh one was received before, or is
/// as old as others that were forgotten for lack of room.
fn untimely(made_ms: u64, now_ms: u64) -> Reason {
    if made_ms.abs_diff(now_ms) <= FRESH_MS {
        return Denial::Replay.into();
    }
    let millis = |ms: u64| i64::try_from(ms).unwrap_or(i64::MAX);
    Reason {
        ahead_ms: Some(millis(made_ms).saturating_sub(millis(now_ms))),
        ..Denial::Clock.into()
    }
}

fn key_of(chains: &Chains, id: NodeId, key_id: u32) -> Option<Key> {
    let peer = chains.find_peer(id)?;
    peer.key.clone().filter(|_| peer.key_id == key_id)
}

fn encoded(error: ConvertError) -> Vec<u8> {
    let fits = "an error is cut to what fits";
    Answer::failure(error).encode().expect(fits)
}
