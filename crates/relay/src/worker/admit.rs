// SPDX-License-Identifier: Apache-2.0
//! From a SYN to two open connections: carries out the steps of [`Opening`]. What the client's
//! completed handshake changes is in `accept.rs`.

use std::io;
use std::rc::Rc;

use posthaste_wire::hop::Reply;

use crate::accept_mode::AcceptMode;
use crate::flow::Flow;
use crate::frame::Frame;
use crate::intercept::{Direction, Event, EventKind, HalfOpen, Intercept};
use crate::opening::{Action, Arrival, Blame, Limits, Opening};
use crate::relay::Ready;
use crate::side::{Side, Sides};
use crate::sys;

use super::Worker;
use super::entry::{DeferredOptions, Entry, LocalRule, Pending, State, Timers};
use super::hop::{self, Hop, Kept, Wanted};
use super::opening::OPEN;
use super::preface::icmp_of;

/// Events taken before other work: as many as the ring holds, so that the SYN of an accepted client
/// is always among them.
const EVENTS_MAX: usize = 1024;

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
                EventKind::Join => self.on_join(&event.flow, event.frame),
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
        if let Some(key) = self.opening.get(flow).copied() {
            self.drive(key, |opening, _| opening.on_new_syn(flow));
        }
    }

    pub(super) fn within_budget(&self, flow: &Flow) -> bool {
        let count = self
            .half_open
            .get(&client_prefix(flow))
            .copied()
            .unwrap_or(0);
        count < self.rules.policy.half_open.per_prefix
    }

    fn begin(&mut self, event: Event, rule: Rc<LocalRule>, held: bool) {
        let accept = rule.rule.accept.at_syn(held);
        let begun = if accept.holds_syn() {
            &self.counters.strict
        } else {
            &self.counters.early
        };
        begun.add(1);
        let mut opening = self.open(accept, Arrival::Plain, &rule);
        opening.hops.hop_limit = event.frame.hop_limit().map(one_less);
        opening.half_opens.client = Some((event.flow, event.half_open));
        opening.half_opens.counted = Some(self.count_half_open(&event.flow));
        opening.is_trial = event.trial;
        let pending = Pending {
            syn: Some(event.frame),
            path: event.path,
            ..opening.into()
        };
        let key = self.insert(event.flow, rule, accept, pending);
        self.opening.insert(event.flow, key);
        self.to_connect.push(key);
    }

    /// Sends the upstream SYNs of flows that began in this turn. Clients validated since have no
    /// half-open entry any more, so their servers' answers need not be held and injected.
    pub(super) fn connect_servers(&mut self) {
        for key in std::mem::take(&mut self.to_connect) {
            // The client may have sent another SYN, which ended it, or be validated since.
            let entry = self.entries.get_mut(key);
            let pending = entry.and_then(Entry::pending);
            if pending.is_some_and(|pending| pending.opening.is_waiting()) {
                self.carry_out_all(key, Action::Begin.into(), OPEN);
            }
        }
    }

    /// Counts an opening flow against the budgets, including the budget of the client's prefix,
    /// until the client is validated. Returns the prefix.
    pub(super) fn count_half_open(&mut self, flow: &Flow) -> [u8; 8] {
        let prefix = client_prefix(flow);
        *self.half_open.entry(prefix).or_insert(0) += 1;
        self.counters.half_open.add(1);
        prefix
    }

    /// The flow no longer counts against the budgets.
    pub(super) fn uncount(&mut self, prefix: [u8; 8]) {
        self.counters.half_open.sub(1);
        if let Some(count) = self.half_open.get_mut(&prefix) {
            *count -= 1;
            if *count == 0 {
                self.half_open.remove(&prefix);
            }
        }
    }

    /// A flow of a rule that begins to open now.
    pub(super) fn open(&self, accept: AcceptMode, arrival: Arrival, rule: &LocalRule) -> Opening {
        let limits = Limits {
            connect: rule.rule.timeouts.connect,
            expiry: self.rules.policy.half_open.expiry,
        };
        Opening::new(accept, arrival, limits, self.now)
    }

    pub(super) fn insert(
        &mut self,
        flow: Flow,
        rule: Rc<LocalRule>,
        accept: AcceptMode,
        pending: impl Into<Pending>,
    ) -> u64 {
        self.counters.relays.add(1);
        self.counters.relays_opened.add(1);
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
            state: State::Opening(Box::new(pending.into())),
        })
    }

    /// Forwards a held SYN, as if this node did not exist.
    pub(super) fn pass_on(&mut self, flow: &Flow, syn: &Frame, half_open: HalfOpen) {
        self.counters.syns_forwarded.add(1);
        // Before the injection: the programs handle the injected SYN by the state of its entry.
        if self.intercept.pass(flow, half_open).is_err() {
            return;
        }
        let until = self.now + self.rules.policy.half_open.expiry;
        self.passed.push_back((until, *flow, half_open));
        self.inject(syn.completed(), Direction::In);
    }

    /// Forwards every held SYN: a draining node begins no flows.
    pub(super) fn pass_on_held(&mut self) {
        let entries = self.entries.iter();
        let held = entries.filter(|(_, entry)| entry.holds_syn());
        for key in held.map(|(key, _)| key).collect::<Vec<_>>() {
            self.drive(key, |opening, _| opening.on_drain());
        }
    }

    /// Opens a connection to the server. A local failure is handled as the server's.
    pub(super) fn open_direct(&mut self, key: u64) {
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
            hop_limit: pending.opening.hops.hop_limit,
            rule: &rule.rule,
            mark: self.socket_mark,
            mss: self.client_mss(entry),
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
        if let Some(entry) = self.entries.live_mut(key) {
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
        if !pending.opening.needs_half_open(&flow) {
            return Ok(());
        }
        let half_open = self.intercept.reserve_half_open(&flow)?;
        if let Some((former, half_open)) = pending
            .opening
            .half_opens
            .upstream
            .replace((flow, half_open))
        {
            self.intercept.release_if_unchanged(&former, half_open);
            self.opening.remove(&former);
        }
        self.opening.insert(flow, key);
        Ok(())
    }

    /// The budget has no room for a second half-open entry.
    fn put_off(&mut self, key: u64, error: io::Error) -> io::Result<()> {
        let pending = self.pending(key);
        if !pending.is_some_and(|pending| pending.opening.put_off()) {
            return Err(error);
        }
        self.counters.over_budget.add(1);
        Ok(())
    }

    fn on_syn_ack(&mut self, flow: &Flow, frame: Frame, half_open: HalfOpen) {
        let now = self.now;
        let key = self.opening.get(flow).copied();
        let entry = key.and_then(|key| Some((key, self.entries.live_mut(key)?)));
        if let Some((key, entry)) = entry
            && let State::Opening(pending) = &entry.state
        {
            if entry.timers.answer.get().is_none() {
                entry.timers.answer = pending.opening.since_connect(now).into();
            }
            let is_held = !pending.opening.is_validated();
            self.counters.syn_acks_held.add(u64::from(is_held));
            return self.drive(key, |opening, now| opening.on_syn_ack(frame, now));
        }
        // It crossed the client's validation in transit. Make sure that there is no half-open
        // entry, or the injected frame would be captured again.
        for kept in [false, true] {
            self.intercept
                .release_half_open(flow, HalfOpen { kept, ..half_open });
        }
        self.inject(frame.completed(), Direction::In);
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
            let timed_out = error.raw_os_error() == Some(libc::ETIMEDOUT);
            let pending = entry.pending();
            if timed_out && pending.is_some_and(|pending| pending.opening.is_closed_by_restraint())
            {
                return self.drive(key, |opening, _| opening.withdraw());
            }
            return self.on_upstream_failed(key, &error, Blame::Them);
        }
        let strict = entry.accept.holds_syn() || entry.is_requested();
        let flow = entry.flow;
        let Some(pending) = entry.pending() else {
            return;
        };
        let connect = pending.opening.since_connect(now).into();
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
        self.drive_when(key, ready, Opening::on_connected);
    }

    /// The upstream connection failed, or could not be made.
    pub(super) fn on_upstream_failed(&mut self, key: u64, error: &io::Error, blame: Blame) {
        let Some(entry) = self.entries.live_mut(key) else {
            return;
        };
        // The error queue is gone with the socket, which is dropped at the end.
        let upstream = entry.sockets[Side::Upstream].take();
        let icmp = upstream.as_ref().and_then(sys::take_icmp_error);
        if let (None, Some(preface)) = (icmp, &mut entry.preface) {
            let neighbour = blame == Blame::Them;
            let no_route = hop::no_route(error, !entry.flow.is_ipv4(), neighbour);
            preface.failed = no_route.map(Reply::Unreachable);
        }
        let (icmp, outcome) = (icmp.map(icmp_of), hop::connect_outcome(error));
        self.drive(key, |opening, _| opening.on_failed(outcome, icmp, blame));
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
        // Four zeros and `ffff` of the mapped form keep it apart from IPv6.
        prefix[..7].copy_from_slice(&client[8..15]);
    } else {
        prefix.copy_from_slice(&client[..8]);
    }
    prefix
}
