// SPDX-License-Identifier: Apache-2.0
//! Flows that the option of a SYN announces.
//!
//! The option contains what the request behind it will contain, so the flow is opened
//! a round trip of the hop earlier. It proves nothing: no byte of a flow moves, and
//! no server completes a handshake, before the request has arrived and is valid. Where
//! the option is lost, or not accepted, the request is granted as any other.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use posthaste_wire::convert::Connect;
use posthaste_wire::header::{ChainHeader, Endpoint, LoopGuard};
use posthaste_wire::hop::ACCEPTED;
use posthaste_wire::syn_option;

use crate::accept_mode::AcceptMode;
use crate::chain::{Encapsulation, Peer, Transport};
use crate::control::Denial;
use crate::counters::Counters;
use crate::flow::Flow;
use crate::frame::Frame;
use crate::intercept::{Event, Intercept};
use crate::opening::silence::WORKING_AFTER;
use crate::opening::{Action, Arrival, Hops};
use crate::outcome::Outcome;
use crate::side::Side;
use crate::syn_options::SynOptions;

use super::Worker;
use super::admit::one_less;
use super::connect_request::ConnectRequest;
use super::denial::Reason;

use super::opening::OPEN;
use super::preface::{Preface, send};

impl<I: Intercept> Worker<I> {
    /// An unauthorized sender announces a flow. Its connection continues without.
    pub(super) fn on_unauthorized(&mut self, event: &Event) {
        let header = header_in(&event.frame).ok();
        let flow = header.map(|header| flow_of(&header, event.flow.client()));
        self.deny_syn_option(event.flow.client(), flow, Denial::Unauthorized);
    }

    /// A peer announces a flow. Its connection continues in any case.
    pub(super) fn on_syn_option(&mut self, event: &Event) {
        self.counters.syn_options_received.add(1);
        if self.missing_syn_event.remove(&event.flow) {
            return self.on_overtaken(event);
        }
        self.forget_former(&event.flow);
        let from = event.flow.client();
        let request = match self.read_syn_option(&event.frame, from) {
            Ok(request) => request,
            Err(denial) => {
                self.deny_syn_option(from, None, denial);
                return self.leave(event);
            }
        };
        let flow = request.flow();
        let granted = match self.grant(&request, &flow) {
            Ok(granted) => granted,
            Err(denial) => {
                self.deny_syn_option(from, Some(flow), request.denied(denial));
                return self.leave(event);
            }
        };
        let full = self.full() || self.begins_nothing();
        if full || !self.within_budget(&event.flow) {
            self.counters.over_budget.add(1);
            return self.leave(event);
        }
        let (rule, onward) = granted;
        // Strict, so that the server's answer is held until a request with an authentication tag
        // arrives.
        let mut opening = self
            .open(AcceptMode::STRICT, Arrival::SynOption, &rule)
            .with_hops(onward);
        opening.hops.hop_limit = event.frame.hop_limit().map(one_less);
        opening.half_open = Some((event.flow, event.half_open));
        opening.counted = Some(self.count_half_open(&event.flow));
        let key = self.insert(flow, rule, AcceptMode::STRICT, opening);
        self.opening.insert(event.flow, key);
        if let Some(entry) = self.entries.live_mut(key) {
            entry.preface = Some(Box::new(Preface {
                requested: true,
                requested_in_syn: Some(Box::new(request.connect.header)),
                ..Preface::default()
            }));
        }
        self.counters.syn_options_opened.add(1);
        self.carry_out_all(key, Action::Try.into(), OPEN);
    }

    /// The request in a SYN option, if it is one of a peer. The option has no room for a guard: its
    /// sender stands for the first node, and its SYN has the flow's TTL.
    fn read_syn_option(&self, syn: &Frame, from: SocketAddr) -> Result<ConnectRequest, Denial> {
        let peer = self.rules.chains().syn_option_peer(from.ip());
        let peer = peer.ok_or(Denial::Unauthorized)?.id;
        let mut header = header_in(syn)?;
        let hop_limit = syn.hop_limit().map(one_less);
        let guard = hop_limit.and_then(|hops| LoopGuard::with_ttl(peer, hops));
        header.guard = Some(guard.unwrap_or(LoopGuard {
            origin: peer,
            hop_limit: 0,
        }));
        let mut connect = Connect::new(header);
        // The option proves nothing: whether the client is validated is in the request behind it.
        connect.validated = false;
        Ok(ConnectRequest::of_peer(peer, connect, from))
    }

    fn deny_syn_option(&mut self, from: SocketAddr, flow: Option<Flow>, why: impl Into<Reason>) {
        self.note_denial(from, flow, Some(Encapsulation::SynOption), why);
    }

    /// Opens nothing at a SYN option. Its half-open entry stays for a while: by that a handshake with
    /// a SYN cookie finds the listener that made it.
    fn leave(&mut self, event: &Event) {
        let until = self.now + self.rules.policy.half_open.expiry;
        self.passed.push_back((until, event.flow, event.half_open));
    }

    /// The handshake of a hop is complete whose SYN had an option: the request will follow.
    pub(super) fn serve_syn_option(&mut self, key: u64, hop: &Flow, socket: OwnedFd) {
        self.opening.remove(hop);
        // The handshake has shown that the source is not spoofed, whatever the request will be.
        self.remember(hop);
        let pending = self.pending(key);
        let own = pending.and_then(|pending| pending.opening.half_open.take());
        if let Some((reserved, half_open)) = own {
            self.intercept.release_half_open(&reserved, half_open);
        }
        self.receive_request(hop.client(), socket, Some(key));
    }

    /// The flow that the SYN of a pending request has announced, if the request is for it.
    pub(super) fn requested_in_syn(
        &self,
        pending_request: u64,
        request: &ConnectRequest,
    ) -> Option<u64> {
        let key = self.pending_requests.get(pending_request)?.syn_option?;
        let preface = self.entries.get(key)?.preface.as_ref()?;
        let announced = preface.requested_in_syn.as_deref()?;
        // The option has no guard: the one of the announcement was made from the TTL.
        let same = ChainHeader {
            guard: announced.guard,
            ..request.connect.header
        };
        (request.peer().is_some() && same == *announced).then_some(key)
    }

    /// Joins a request that is granted with the flow that was opened at its SYN option.
    pub(super) fn adopt(
        &mut self,
        pending_request: u64,
        key: u64,
        request: &ConnectRequest,
        onward: Hops,
    ) {
        self.uncount_source(pending_request);
        let Some(pending_request) = self.pending_requests.remove(pending_request) else {
            return;
        };
        let watched = self.rewatch(key, Side::Downstream, &pending_request.socket);
        // Before the reply, which may follow at once: after it the bytes are the flow's.
        if watched.is_err() || send(&(&pending_request.socket).into(), &ACCEPTED).is_err() {
            return self.end(key, Outcome::ClientAbsent);
        }
        let now = self.now;
        let Some(entry) = self.entries.live_mut(key) else {
            return;
        };
        entry.timers.accept = entry.age(now).into();
        entry.sockets[Side::Downstream] = Some(pending_request.socket);
        if let Some(preface) = &mut entry.preface {
            preface.requested_in_syn = None;
            preface.by = request.peer();
            preface.requester = Some(request.requester());
            preface.progress_due = Some(now + WORKING_AFTER);
        }
        let validated = request.connect.validated;
        if validated {
            entry.accept = AcceptMode::LATE;
        }
        self.owe_progress(key);
        if validated {
            self.lift_restraint(key);
        }
        self.drive(key, |opening, now| {
            opening.on_request(Arrival::Peer, validated, onward, now)
        });
    }

    /// Ends an announced flow for which no request will come.
    pub(super) fn forsake(&mut self, syn_option: Option<u64>) {
        let entry = syn_option.and_then(|key| Some((key, self.entries.get(key)?)));
        // It may have begun by its request since.
        if let Some((key, _)) = entry.filter(|(_, entry)| entry.is_requested_in_syn()) {
            self.end(key, Outcome::ClientAbsent);
        }
    }

    /// The option for the SYN of a hop to a peer, if there is to be one.
    pub(super) fn syn_option_for(&self, peer: &Peer, header: &ChainHeader) -> Option<Vec<u8>> {
        // Nodes look for the option in IPv4 SYNs only, and it leaves no room for those of Multipath TCP.
        let takes_it = peer.encapsulation == Encapsulation::SynOption
            && peer.address.is_ipv4()
            && peer.transport != Transport::Mptcp;
        if !takes_it || self.syn_options.paused_for(peer.id, self.now).is_some() {
            return None;
        }
        let mut option = Vec::new();
        syn_option::encode(header, &mut option).ok()?;
        Some(option)
    }
}

/// Takes note of what the next node has made of an option, if that is known.
pub(super) fn note_syn_option(
    preface: &mut Preface,
    syn_options: &mut SynOptions,
    counters: &Counters,
    now: Duration,
) {
    let (Some(accepted), Some(via)) = (preface.accepted.take(), preface.via) else {
        return;
    };
    let counter = if accepted {
        &counters.syn_options_accepted
    } else {
        &counters.syn_options_ignored
    };
    counter.add(1);
    syn_options.note(via.peer, accepted, now);
}

fn header_in(syn: &Frame) -> Result<ChainHeader, Denial> {
    let options = syn.tcp_options().ok_or(Denial::Malformed)?;
    let found = syn_option::find(options).map_err(|_| Denial::Malformed)?;
    found.ok_or(Denial::Malformed)
}

fn flow_of(header: &ChainHeader, from: SocketAddr) -> Flow {
    let client = header.source.map_or(from, Endpoint::address);
    Flow::new(client, header.destination.address())
}
