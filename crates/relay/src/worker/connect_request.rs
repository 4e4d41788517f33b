// SPDX-License-Identifier: Apache-2.0
//! Requests for flows of peers and clients: which are granted, to which destinations, and by which
//! route.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use posthaste_wire::convert::Connect;
use posthaste_wire::header::{Endpoint, LoopGuard, NodeId};
use posthaste_wire::segments::SegmentList;

use crate::accept_mode::AcceptMode;
use crate::chain::{NextHop, NoNextHop};
use crate::control::Denial;
use crate::flow::Flow;
use crate::intercept::Intercept;
use crate::opening::silence::WORKING_AFTER;
use crate::opening::{Action, Arrival, Hops};
use crate::outcome::Outcome;
use crate::side::Side;
use crate::sys;

use super::Worker;
use super::denial::Reason;
use super::end::StreamEnd;
use super::entry::{State, end_of};
use super::opening::OPEN;
use super::preface::{Preface, ReadError, Requester, read_message};
use super::rules::LocalRule;

/// Ways of a flow, and its guard against loops.
type Routes = (Vec<NextHop>, Option<LoopGuard>);

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
    extensions: bool,
    from: SocketAddr,
}

impl ConnectRequest {
    pub(super) fn of_peer(peer: NodeId, connect: Connect, from: SocketAddr) -> Self {
        Self {
            peer: Some(peer),
            connect,
            extensions: false,
            from,
        }
    }

    /// A request of a client of RFC 8803; with `extensions` it requests the list of TCP options, too.
    pub(super) fn of_client(connect: Connect, extensions: bool, from: SocketAddr) -> Self {
        Self {
            peer: None,
            connect,
            extensions,
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
    /// An authorized sender has requested a flow.
    pub(super) fn on_connect_request(&mut self, key: u64, request: ConnectRequest) {
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
    fn begin_request(
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

    /// Where a flow may go. Only the node that connects to the destination needs permission for it.
    fn onward(&self, request: &ConnectRequest, flow: &Flow) -> Result<Hops, Denial> {
        let (mut next_hops, guard) = self.routes(request, flow)?;
        let access = &self.rules.policy.access;
        if next_hops.contains(&NextHop::Direct) && access.permits(flow, sys::leads_here).is_err() {
            next_hops.retain(|next_hop| *next_hop != NextHop::Direct);
            if next_hops.is_empty() {
                return Err(Denial::Destination);
            }
        }
        Ok(Hops::new(next_hops, guard))
    }

    /// The ways of a flow in order of preference, and the guard that it takes along.
    fn routes(&self, request: &ConnectRequest, flow: &Flow) -> Result<Routes, Denial> {
        let header = &request.connect.header;
        let chains = self.rules.chains();
        if header.segments == SegmentList::RESOLVE {
            return self.resolve(request, flow);
        }
        let begins_here = header.segments.is_empty() && header.guard.is_none();
        if begins_here {
            let rule = self.rules.for_flow(flow);
            let bytes = rule.and_then(|rule| rule.rule.transfer_bytes);
            let next_hops = chains.next_hops(flow, bytes);
            return Ok((next_hops, chains.me.map(LoopGuard::new)));
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
        Ok((vec![next_hop], passed))
    }

    /// Where a flow may go for a peer that holds no plan: as if it began here. It does not return
    /// to that peer, nor go to a third node that looks routes up.
    fn resolve(&self, request: &ConnectRequest, flow: &Flow) -> Result<Routes, Denial> {
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
            false => Ok((next_hops, guard)),
        }
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
}
