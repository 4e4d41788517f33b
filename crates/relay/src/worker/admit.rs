// SPDX-License-Identifier: Apache-2.0
//! From a SYN to two open connections: carries out the steps of [`Opening`]. What the client's
//! completed handshake changes is in `accept.rs`.

use std::io;
use std::rc::Rc;

use posthaste_wire::hop::Reply;

use crate::accept_mode::AcceptMode;
use crate::chain::NextHop;
use crate::flow::Flow;
use crate::frame::Frame;
use crate::intercept::{Direction, Event, EventKind, HalfOpen, Intercept};
use crate::opening::{OnFailure, OnMeeting, OnSynAck, Opening};
use crate::outcome::Outcome;
use crate::relay::Ready;
use crate::side::{Side, Sides};
use crate::sys::{self, IcmpError};

use super::Worker;
use super::entry::{DeferredOptions, Entry, LocalRule, Pending, State, Timers};
use super::hop::{self, Hop, Kept, Wanted};
use super::preface::reply_of_icmp;
use super::trial::DELIVERY;
use super::wait::LOOK;

/// Events taken before other work: as many as the ring holds, so that the SYN of an accepted client
/// is always among them.
const EVENTS_MAX: usize = 1024;

/// The source of an error about a destination.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Blame {
    /// The server or the network, in answer to a SYN.
    Them,
    /// This host: it could not even send a SYN. A client may have caused that.
    Us,
}

impl<I: Intercept> Worker<I> {
    /// Takes the events of the redirection.
    pub(super) fn take_events(&mut self) {
        for _ in 0..EVENTS_MAX {
            let Some(event) = self.intercept.next_event() else {
                self.events_wait = false;
                return;
            };
            // A command sent before a flow began must apply to that flow.
            self.carry_out();
            match event.kind {
                EventKind::Syn { held } => self.on_syn(event, held),
                EventKind::SynAck => self.on_syn_ack(&event.flow, event.frame, event.half_open),
                EventKind::Reject => {
                    self.counters.rejected.add(1);
                    self.inject(event.frame.reset(), Direction::Out);
                }
                EventKind::SynOption => self.on_syn_option(&event),
                EventKind::Unauthorized => self.on_unauthorized(&event),
            }
        }
        self.events_wait = true;
    }

    fn on_syn(&mut self, event: Event, held: bool) {
        self.counters.syns.add(1);
        if self.missing_syn_event.remove(&event.flow) {
            // The accept was handled before this event: the flow has begun already.
            return self
                .intercept
                .release_half_open(&event.flow, event.half_open);
        }
        self.forget_former(&event.flow);
        let rule = self
            .rules
            .for_event(event.generation, event.rule, &event.flow);
        // A draining worker begins no flows.
        let full = self.full() || self.begins_nothing();
        if full {
            self.set_draining(true);
        }
        let over = !self.within_budget(&event.flow);
        match rule {
            Some(rule) if !full && !over => self.begin(event, rule, held),
            _ if held => self.pass_on(&event.flow, &event.frame, event.half_open),
            // Late mode begins at accept; until then the node keeps no state of the flow.
            _ => {
                self.counters.over_budget.add(u64::from(over));
                self.intercept
                    .release_half_open(&event.flow, event.half_open);
            }
        }
    }

    /// A client that sends a new SYN on the same tuple has given up the former attempt. The
    /// half-open entry belongs to the new one by now.
    pub(super) fn forget_former(&mut self, flow: &Flow) {
        let Some(key) = self.opening.get(flow).copied() else {
            return;
        };
        if let Some(pending) = self.pending(key) {
            pending
                .half_open_flows
                .retain(|(reserved_flow, _)| reserved_flow != flow);
        }
        self.end(key, Outcome::ClientAbsent);
    }

    pub(super) fn within_budget(&self, flow: &Flow) -> bool {
        let count = self
            .half_open
            .get(&client_prefix(flow))
            .copied()
            .unwrap_or(0);
        count < self.rules.half_open().per_prefix
    }

    fn begin(&mut self, event: Event, rule: Rc<LocalRule>, held: bool) {
        let accept = rule.rule.accept.at_syn(held);
        let begun = if accept.holds_syn() {
            &self.counters.strict
        } else {
            &self.counters.early
        };
        begun.add(1);
        let hop_limit = event.frame.hop_limit().map(one_less);
        let key = self.insert(event.flow, rule, accept, accept.open(), Some(event.frame));
        self.opening.insert(event.flow, key);
        self.count_half_open(key, &event.flow);
        if let Some(pending) = self.pending(key) {
            pending.half_open_flows.push((event.flow, event.half_open));
            pending.requested = false;
            pending.hop_limit = hop_limit;
            pending.trial = event.trial;
            pending.path = event.path;
        }
        self.to_connect.push(key);
    }

    /// Sends the upstream SYNs of flows that began in this turn. Clients validated since have no
    /// half-open entry any more, so their servers' answers need not be held and injected.
    pub(super) fn connect_servers(&mut self) {
        for key in std::mem::take(&mut self.to_connect) {
            // The client has sent another SYN, which ended it.
            let is_there = self.entries.get(key).is_some();
            if is_there && self.pending(key).is_some_and(|pending| !pending.requested) {
                self.connect_server(key);
            }
        }
    }

    /// Counts an opening flow against the budgets, including the budget of the client's prefix,
    /// until the client is validated.
    pub(super) fn count_half_open(&mut self, key: u64, flow: &Flow) {
        let prefix = client_prefix(flow);
        *self.half_open.entry(prefix).or_insert(0) += 1;
        self.counters.half_open.add(1);
        if let Some(pending) = self.pending(key) {
            pending.counted = Some(prefix);
        }
    }

    pub(super) fn insert(
        &mut self,
        flow: Flow,
        rule: Rc<LocalRule>,
        accept: AcceptMode,
        opening: Opening,
        syn: Option<Frame>,
    ) -> u64 {
        self.counters.relays.add(1);
        self.counters.relays_opened.add(1);
        let pending = Pending {
            syn,
            validate_by: self.now + self.rules.half_open().expiry,
            ..Pending::new(opening, self.now, &rule.rule)
        };
        self.entries.insert(Entry {
            flow,
            rule,
            accept,
            queued: false,
            timed: Sides::default(),
            closed_cookie: None,
            fixed: false,
            prompt: false,
            sockets: Sides::default(),
            deferred: Sides::default(),
            started: self.now.into(),
            timers: Timers::default(),
            preface: None,
            state: State::Opening(Box::new(pending)),
        })
    }

    /// Forwards a held SYN, as if this node did not exist.
    pub(super) fn pass_on(&mut self, flow: &Flow, syn: &Frame, half_open: HalfOpen) {
        self.counters.syns_forwarded.add(1);
        // Before the injection: the programs handle the injected SYN by the state of its entry.
        if self.intercept.pass(flow, half_open).is_err() {
            return;
        }
        let until = self.now + self.rules.half_open().expiry;
        self.passed.push_back((until, *flow, half_open));
        self.inject(syn.completed(), Direction::In);
    }

    /// Forwards every held SYN: a draining node begins no flows.
    pub(super) fn pass_on_held(&mut self) {
        let entries = self.entries.iter();
        let held = entries.filter(|(_, entry)| entry.holds_syn());
        for key in held.map(|(key, _)| key).collect::<Vec<_>>() {
            self.forward_held(key);
            self.end(key, Outcome::Drained);
        }
    }

    /// Forwards the SYN of an opening flow, and leaves its half-open entry to expire.
    pub(super) fn forward_held(&mut self, key: u64) {
        let Some(pending) = self.pending(key) else {
            return;
        };
        if let (Some(syn), false) = (pending.syn.take(), pending.half_open_flows.is_empty()) {
            let (flow, half_open) = pending.half_open_flows.remove(0);
            self.pass_on(&flow, &syn, half_open);
        }
    }

    /// Opens a connection to the server. A local failure is handled as the server's.
    pub(super) fn open_direct(&mut self, key: u64, mss: Option<u16>) {
        let (keep, translated) = self.source(key);
        let path = self.path(key);
        let Some(entry) = self.entries.live(key) else {
            return;
        };
        let requested = entry.is_requested();
        let rule = Rc::clone(&entry.rule);
        let State::Opening(pending) = &entry.state else {
            return;
        };
        let wanted = Wanted {
            flow: entry.flow,
            hop_limit: pending.hop_limit,
            rule: &rule.rule,
            mark: self.socket_mark,
            mss,
            strict: requested || entry.accept.holds_syn(),
            requested: requested || entry.fixed,
            path,
            translated,
            is_validated: entry.fixed,
        };
        let result = Hop::prepare(&wanted, keep);
        let mut result = result.and_then(|hop| self.connect(key, hop));
        if result.as_ref().is_err_and(hop::is_taken) {
            // A TIME_WAIT socket may hold the tuple, which only connect() detects.
            let keep = keep.max(Kept::Address);
            result = Hop::prepare(&wanted, keep).and_then(|hop| self.connect(key, hop));
        }
        if let Err(error) = result {
            self.on_upstream_failed(key, &error, Blame::Us);
        }
    }

    fn connect(&mut self, key: u64, hop: Hop) -> io::Result<()> {
        match hop.kept {
            Kept::AddressAndPort => {}
            Kept::Address => self.counters.port_fallbacks.add(1),
            Kept::Nothing => self.counters.address_fallbacks.add(1),
        }
        // Before the SYN leaves: without an entry its SYN-ACK would complete the handshake.
        if let Err(error) = self.reserve_other_tuple(key, hop.flow) {
            return self.put_off(key, error);
        }
        let socket = hop.connect()?;
        self.watch_upstream(key, &socket)?;
        let now = self.now;
        if let Some(entry) = self.entries.live_mut(key) {
            if let Some(pending) = entry.pending() {
                // A hop may have been tried before, which set this earlier.
                pending.connecting = now;
                pending.restrained = false;
            }
            entry.sockets[Side::Upstream] = Some(socket);
            entry.deferred[Side::Upstream] = DeferredOptions::ALL;
        }
        Ok(())
    }

    /// The server's SYN-ACK may arrive for another tuple than the client's: that tuple needs its
    /// own half-open entry while the client is unvalidated.
    fn reserve_other_tuple(&mut self, key: u64, flow: Flow) -> io::Result<()> {
        let Some(pending) = self.entries.live_mut(key).and_then(Entry::pending) else {
            return Ok(());
        };
        if pending.opening.is_validated()
            || pending
                .half_open_flows
                .iter()
                .any(|(reserved_flow, _)| *reserved_flow == flow)
        {
            return Ok(());
        }
        let half_open = self.intercept.reserve_half_open(&flow)?;
        pending.half_open_flows.push((flow, half_open));
        self.opening.insert(flow, key);
        Ok(())
    }

    /// The budget has no room for a second half-open entry: the upstream SYN of an early flow is
    /// sent when the client is validated, as in late mode, and that of a flow from a SYN option
    /// when its request arrives.
    fn put_off(&mut self, key: u64, error: io::Error) -> io::Result<()> {
        let entry = self.entries.live(key);
        if !entry
            .is_some_and(|entry| entry.accept.overlaps_handshakes() || entry.is_requested_in_syn())
        {
            return Err(error);
        }
        self.counters.over_budget.add(1);
        if let Some(pending) = self.pending(key) {
            pending.requested = false;
        }
        Ok(())
    }

    /// Opens a flow whose upstream SYN is not sent yet, or was put off.
    pub(super) fn connect_server(&mut self, key: u64) {
        let now = self.now;
        let patience = self.trial_patience(key);
        let Some(entry) = self.entries.live_mut(key) else {
            return;
        };
        let connect_by = now + entry.rule.rule.timeouts.connect.min(patience);
        let is_requested = entry.is_requested();
        let Some(pending) = entry.pending() else {
            return;
        };
        (pending.connecting, pending.connect_by) = (now, connect_by);
        pending.look_at = now + LOOK;
        let mss = pending.syn.as_ref().and_then(Frame::mss);
        pending.requested = true;
        if is_requested {
            // The node that sent the request chose the route. Only a direct connection is ever
            // withdrawn, never a hop.
            pending.next_hops = vec![NextHop::Direct];
        } else {
            // Select again: a route was taken off the list before the flow was put off.
            self.select_next_hops(key);
        }
        self.open_upstream(key, mss);
    }

    fn on_syn_ack(&mut self, flow: &Flow, frame: Frame, half_open: HalfOpen) {
        let now = self.now;
        let step = self.opening.get(flow).copied().and_then(|key| {
            let entry = self.entries.live_mut(key)?;
            let pending = entry.pending()?;
            let answer = now.saturating_sub(pending.connecting).into();
            let step = pending.opening.on_syn_ack(frame.clone());
            if entry.timers.answer.get().is_none() {
                entry.timers.answer = answer;
            }
            Some((key, step))
        });
        match step {
            Some((_, OnSynAck::Keep)) => self.counters.syn_acks_held.add(1),
            Some((key, OnSynAck::Admit)) => {
                self.counters.syn_acks_held.add(1);
                self.admit_client(key);
            }
            Some((_, OnSynAck::LetIn(frame))) => self.inject(frame.completed(), Direction::In),
            // It crossed the client's validation in transit. Make sure that there is no half-open
            // entry, or the injected frame would be captured again.
            None => {
                for kept in [false, true] {
                    self.intercept
                        .release_half_open(flow, HalfOpen { kept, ..half_open });
                }
                self.inject(frame.completed(), Direction::In);
            }
        }
    }

    /// The server has answered: admits the client's held SYN.
    pub(super) fn admit_client(&mut self, key: u64) {
        let expiry = self.rules.half_open().expiry;
        let now = self.now;
        let Some(entry) = self.entries.live_mut(key) else {
            return;
        };
        let connect = entry.rule.rule.timeouts.connect;
        if let Some(pending) = entry.pending() {
            pending.validate_by = now + if pending.trial { DELIVERY } else { expiry };
            if pending.trial {
                // The server answered within the short limit of a trial. From here on its handshake
                // has the usual time, or a busy worker would reset a client that it has accepted.
                pending.connect_by = pending.connecting + connect;
            }
        }
        if entry.requester().is_some() {
            return self.answer(key);
        }
        let flow = entry.flow;
        let Some(pending) = entry.pending() else {
            return;
        };
        let half_open = pending
            .half_open_flows
            .iter()
            .find(|(reserved_flow, _)| *reserved_flow == flow)
            .map(|(_, half_open)| *half_open);
        let syn = pending.syn.as_ref().and_then(Frame::completed);
        if let Some(half_open) = half_open
            && self.intercept.admit(&flow, half_open).is_ok()
        {
            self.inject(syn, Direction::In);
        }
    }

    /// The upstream socket became writable or failed.
    pub(super) fn on_upstream_answer(&mut self, key: u64, ready: Ready) {
        let now = self.now;
        let Some(entry) = self.entries.live_mut(key) else {
            return;
        };
        let Some(socket) = &entry.sockets[Side::Upstream] else {
            return;
        };
        if ready.failed
            && let Some(error) = hop::connect_error(socket)
        {
            if self.is_closed_by(key, &error) {
                return self.withdraw(key);
            }
            return self.on_upstream_failed(key, &error, Blame::Them);
        }
        let strict = entry.accept.holds_syn() || entry.is_requested();
        let flow = entry.flow;
        let Some(pending) = entry.pending() else {
            return;
        };
        let connect = now.saturating_sub(pending.connecting).into();
        let step = pending.opening.on_connected();
        entry.timers.connect = connect;
        if entry.timers.answer.get().is_none() {
            entry.timers.answer = connect;
        }
        if let Some(tally) = self.counters.rules.at(entry.rule.tally) {
            tally.on_connected(entry.age(now));
        }
        if strict {
            if let Some(socket) = &entry.sockets[Side::Upstream] {
                // A queued ICMP error would end an open connection that survives it.
                let _ = sys::keep_icmp_errors(socket, !flow.is_ipv4(), false);
            }
            self.intercept.clear_failure(&flow);
        }
        match step {
            OnMeeting::Join => {
                self.send_proxy_header(key);
                self.join(key, ready);
            }
            OnMeeting::Admit => self.admit_client(key),
            OnMeeting::Wait(_) | OnMeeting::WaitForClient | OnMeeting::Refuse(_) => {}
        }
    }

    pub(super) fn on_upstream_failed(&mut self, key: u64, error: &io::Error, blame: Blame) {
        let Some(entry) = self.entries.live_mut(key) else {
            return;
        };
        if entry
            .pending()
            .is_some_and(|pending| pending.hopping.is_some())
        {
            return self.on_hop_failed(key, None);
        }
        let upstream = entry.sockets[Side::Upstream].take();
        let icmp = upstream.as_ref().and_then(sys::take_icmp_error);
        if let (None, Some(preface)) = (icmp, &mut entry.preface) {
            let neighbour = blame == Blame::Them;
            let no_route = hop::no_route(error, !entry.flow.is_ipv4(), neighbour);
            preface.failed = no_route.map(Reply::Unreachable);
        }
        self.fail_upstream(key, hop::connect_outcome(error), icmp, blame);
    }

    /// The server cannot be reached: reports that to the client by the means available.
    pub(super) fn fail_upstream(
        &mut self,
        key: u64,
        outcome: Outcome,
        error: Option<IcmpError>,
        blame: Blame,
    ) {
        let Some(entry) = self.entries.live_mut(key) else {
            return;
        };
        let (flow, accept) = (entry.flow, entry.accept);
        let observed = entry.is_observed();
        let Some(pending) = entry.pending() else {
            return;
        };
        let step = pending.opening.on_failed(outcome);
        if outcome == Outcome::Internal {
            self.starve();
        }
        if accept.becomes_strict() && blame == Blame::Them {
            self.intercept
                .record_failure(&flow, self.rules.strict_after_failure());
        }
        if observed && outcome != Outcome::UpstreamRefused {
            self.intercept.record_no_answer(&flow);
        }
        match step {
            OnFailure::Remember => self.keep_failure(key, error),
            OnFailure::Refuse => self.end_with(key, outcome, error),
            OnFailure::PassOn => self.refuse_held(key, outcome, error),
        }
    }

    /// Keeps the error of a failed flow for the request that may follow.
    fn keep_failure(&mut self, key: u64, error: Option<IcmpError>) {
        let Some(entry) = self.entries.live_mut(key) else {
            return;
        };
        if let (Some(error), Some(preface)) = (error, &mut entry.preface) {
            preface.failed = Some(reply_of_icmp(error));
        }
    }

    /// Answers a held SYN as the client would have been answered without the node.
    fn refuse_held(&mut self, key: u64, outcome: Outcome, error: Option<IcmpError>) {
        if self
            .entries
            .get(key)
            .is_some_and(|entry| entry.requester().is_some())
        {
            return self.end_with(key, outcome, error);
        }
        let Some(entry) = self.entries.live_mut(key) else {
            return;
        };
        let flow = entry.flow;
        let Some(pending) = entry.pending() else {
            return;
        };
        if pending.trial {
            return self.give_trial_back(key, flow, outcome);
        }
        let answer = match (outcome, error, &pending.syn) {
            (Outcome::UpstreamRefused | Outcome::HopFailed, _, Some(syn)) => syn.reset(),
            (Outcome::UpstreamUnreachable, Some(error), Some(syn)) => syn.unreachable(error),
            _ => None,
        };
        // The error is this host's, not the network's: forward the SYN and let the kernel report
        // it.
        let own_word = matches!(outcome, Outcome::UpstreamUnreachable | Outcome::Internal);
        if own_word && error.is_none() {
            self.forward_held(key);
        } else if outcome == Outcome::ConnectTimeout {
            self.let_pass(key);
        }
        self.inject(answer, Direction::Out);
        self.end(key, outcome);
    }

    /// Injects a frame at its device. If it is lost, its sender retransmits.
    pub(super) fn inject(&mut self, frame: Option<Frame>, direction: Direction) {
        if let Some(frame) = frame
            && self.intercept.inject(&frame, direction).is_err()
        {
            self.counters.frames_lost.add(1);
        }
    }
}

/// Decrements a TTL or hop limit as IP forwarding does, to no less than 1: a packet with 1 gets no
/// farther than the next host.
pub(super) fn one_less(hop_limit: u8) -> u8 {
    hop_limit.saturating_sub(1).max(1)
}

/// The client prefix of a budget: IPv4 /24, IPv6 /64.
pub(super) fn client_prefix(flow: &Flow) -> [u8; 8] {
    let (client, _) = flow.addresses();
    let mut prefix = [0; 8];
    if flow.is_ipv4() {
        prefix[..7].copy_from_slice(&client[8..15]);
    } else {
        prefix.copy_from_slice(&client[..8]);
    }
    prefix
}
