// SPDX-License-Identifier: Apache-2.0
//! The client's side of an opening flow: its SYN, its completed handshake, its half-open state.

use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use crate::accept_mode::AcceptMode;
use crate::control::Denial;
use crate::flow::Flow;
use crate::frame::Frame;
use crate::intercept::{Direction, Event, EventKind, HalfOpen, Intercept};
use crate::opening::{Action, Arrival, Opening};
use crate::side::{Side, Sides};
use crate::sys;

use super::entry::{DeferredOptions, Entry, Pending, State, Timers};
use super::listeners::Purpose;
use super::opening::OPEN;
use super::prefixes::FAST;
use super::rules::LocalRule;
use super::{ACCEPTS_MAX, Worker};

/// Events taken before other work: as many as the ring holds, so that the SYN of an accepted client
/// is always among them.
const EVENTS_MAX: usize = 1024;
/// Flows whose event may be missing, where events never cease.
const MISSING_MAX: usize = 4096;

impl<I: Intercept> Worker<I> {
    /// Takes the events of the redirection.
    pub(super) fn take_events(&mut self) {
        for _ in 0..EVENTS_MAX {
            let Some(event) = self.intercept.next_event() else {
                self.events_wait = false;
                if !self.missing_syn_event.is_empty() && !self.intercept.has_events() {
                    self.missing_syn_event.clear();
                }
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
                EventKind::TimeWait => self.on_time_wait(&event.flow, &event.frame),
            }
        }
        self.events_wait = true;
    }

    fn on_syn(&mut self, event: Event, held: bool) {
        self.counters.syns.add(1);
        if self.missing_syn_event.remove(&event.flow) {
            return self.on_overtaken(&event);
        }
        self.forget_former(&event.flow);
        let rule = self
            .rules
            .for_event(event.generation, event.rule, &event.flow);
        // A draining worker begins no flows.
        let full = self.full() || self.begins_nothing();
        // From here on the program forwards SYNs without an event, so a flood costs this worker
        // nothing.
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

    /// A flow begins at its accept. The event of its SYN may be among those that are pending.
    fn note_missing_event(&mut self, flow: Flow) {
        if !self.intercept.has_events() {
            return;
        }
        // The ring has room for fewer events: those of the first of them have been taken.
        if self.missing_syn_event.len() >= MISSING_MAX {
            self.missing_syn_event.clear();
        }
        self.missing_syn_event.insert(flow);
    }

    /// The accept was handled before this event: the flow has begun already.
    pub(super) fn on_overtaken(&mut self, event: &Event) {
        self.intercept
            .release_half_open(&event.flow, event.half_open);
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
        self.counters.flows(accept).add(1);
        let mut opening = self.open(accept, Arrival::Plain, &rule);
        opening.hops.hop_limit = event.frame.hop_limit().map(one_less);
        opening.half_open = Some((event.flow, event.half_open));
        opening.counted = Some(self.count_half_open(&event.flow));
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
            // Otherwise a flood could fill the table with prefixes that have no flow.
            if *count == 0 {
                self.half_open.remove(&prefix);
            }
        }
    }

    /// A flow of a rule that begins to open now.
    pub(super) fn open(&self, accept: AcceptMode, arrival: Arrival, rule: &LocalRule) -> Opening {
        let connect_timeout = rule.rule.timeouts.connect;
        let expiry = self.rules.policy.half_open.expiry;
        Opening::new(accept, arrival, connect_timeout, expiry, self.now)
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

    /// Accepts completed handshakes from a listener: those of all flows whose SYNs arrived in this
    /// turn, since a server's answer must be held if it arrives before its client is accepted.
    pub(super) fn accept(&mut self, number: usize) {
        let mut taken = 0;
        while taken < ACCEPTS_MAX.max(self.to_connect.len()) {
            taken += 1;
            let Some((listener, purpose, multipath)) = self.listeners.get(number) else {
                return;
            };
            let accepted = sys::accept(listener);
            // Then, as the event of a SYN is older than its accept.
            self.take_events();
            match accepted {
                Ok((socket, client, server)) => {
                    // A command sent before a flow began must apply to that flow.
                    self.carry_out();
                    let token = multipath.then(|| self.token_of(&socket)).flatten();
                    match purpose {
                        Purpose::Requests(_) => {
                            self.on_accept_request(&Flow::new(client, server), socket);
                        }
                        Purpose::Fixed(destination) => {
                            self.serve(Flow::new(client, destination), socket);
                        }
                        Purpose::Transit => {
                            let server = self.intercept.original(client).unwrap_or(server);
                            self.on_accept(Flow::new(client, server), socket, true);
                        }
                        Purpose::Multipath => {
                            self.on_accept_multipath(Flow::new(client, server), socket, token);
                        }
                    }
                }
                Err(error) => return self.on_accept_error(&error),
            }
        }
    }

    /// An explicit listener has accepted a connection. Where SYN-ACKs of a hop were lost, it is that
    /// of a flow which was opened at the hop's SYN.
    fn on_accept_request(&mut self, hop: &Flow, socket: OwnedFd) {
        let key = self.opening.get(hop).copied();
        match key.filter(|key| self.is_requested_in_syn(*key)) {
            Some(key) => self.serve_syn_option(key, hop, socket),
            None => self.receive_request(hop.client(), socket, None),
        }
    }

    fn is_requested_in_syn(&self, key: u64) -> bool {
        let entry = self.entries.get(key);
        entry.is_some_and(Entry::is_requested_in_syn)
    }

    fn on_accept_error(&mut self, error: &io::Error) {
        // Any other error is the end of the queue, or concerns one connection: epoll reports what
        // is left in the queue again.
        let out_of_files = [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::ENOBUFS];
        if error
            .raw_os_error()
            .is_some_and(|code| out_of_files.contains(&code))
        {
            self.starve();
        }
    }

    /// The client of a flow in transit has completed its handshake. `inherits`: whether the
    /// socket has the settings of the listeners. Returns the key of the flow, if there is one now.
    pub(super) fn on_accept(&mut self, flow: Flow, socket: OwnedFd, inherits: bool) -> Option<u64> {
        // A connection to the listener's own address: there is no server to relay to.
        if flow.server().ip().is_loopback() {
            return None;
        }
        let Some(key) = self.opening.get(&flow).copied() else {
            self.note_missing_event(flow);
            if self.listeners.are_requested_at(flow.server()) {
                self.receive_request(flow.client(), socket, None);
                return None;
            }
            return self.begin_late(flow, socket, inherits);
        };
        if self.is_requested_in_syn(key) {
            self.serve_syn_option(key, &flow, socket);
            return None;
        }
        let now = self.now;
        let pending = self.pending(key);
        if pending.is_none_or(|pending| pending.syn.is_none()) {
            // The tuple belongs to the upstream side of another flow, which has no client here.
            return None;
        }
        let entry = self.entries.live_mut(key)?;
        if !(entry.rule.inherited && inherits) {
            // Best effort: the connection works without these settings.
            let _ = sys::apply_at_birth(&socket, &entry.rule.rule.downstream);
            entry.deferred[Side::Downstream] = DeferredOptions::ALL;
        }
        let age = entry.age(now);
        entry.timers.accept = age.into();
        // The worker may have been busy for part of a longer time. The kernel has the time without
        // that, which takes a system call.
        let fast = if age < FAST {
            Some(true)
        } else {
            let is_due = self.prefixes.is_due(client_prefix(&flow));
            is_due.then(|| sys::min_rtt(&socket).is_some_and(|time| time < FAST))
        };
        entry.sockets[Side::Downstream] = Some(socket);
        self.on_validation(key);
        if let Some(fast) = fast {
            self.note_handshake(&flow, fast);
        }
        Some(key)
    }

    /// The handshake of a flow that opened at its SYN was fast or not.
    fn note_handshake(&mut self, flow: &Flow, fast: bool) {
        if let Some(is_near) = self.prefixes.note(client_prefix(flow), fast) {
            self.intercept.validate_prefix(flow, is_near);
        }
    }

    /// The client has completed its handshake.
    pub(super) fn on_validation(&mut self, key: u64) {
        self.lift_restraint(key);
        self.drive(key, |opening, _| opening.on_validated());
    }

    /// The client is validated: removes its half-open state.
    pub(super) fn validate(&mut self, key: u64) {
        self.release_opening(key);
        if let Some(flow) = self.entries.live(key).map(|entry| entry.flow) {
            self.remember(&flow);
        }
    }

    /// A client of this flow's prefix has completed a handshake: reports the prefix as validated.
    pub(super) fn remember(&mut self, flow: &Flow) {
        // Only the first time: the report is a system call.
        if self.prefixes.add(client_prefix(flow)) {
            self.intercept.validate_prefix(flow, false);
        }
    }

    /// Begins a flow in late mode: only its accepted client is known.
    fn begin_late(&mut self, flow: Flow, socket: OwnedFd, inherits: bool) -> Option<u64> {
        let rule = self.rules.for_flow(&flow)?;
        // Not `full`: the reserve is for such flows, which were redirected before the worker
        // stopped accepting.
        if self.entries.len() >= self.rules.relays_max() {
            self.set_draining(true);
            return None;
        }
        self.counters.flows(AcceptMode::LATE).add(1);
        self.remember(&flow);
        // No program has captured the SYN of a flow in late mode, but the kernel has kept its TTL.
        let hop_limit = sys::hop_limit_of_client(&socket, !flow.is_ipv4());
        let hop_limit = hop_limit.map(one_less);
        let key = self.insert_validated(flow, rule, (socket, inherits), hop_limit);
        if self.full() {
            self.set_draining(true);
        }
        self.carry_out_all(key, Action::Begin.into(), OPEN);
        Some(key)
    }

    /// Begins the flow of a client of a listener with a fixed destination, or refuses it: dropping its
    /// socket resets it.
    fn serve(&mut self, flow: Flow, socket: OwnedFd) {
        self.counters.fixed_connections.add(1);
        let Some(rule) = self.rules.for_request(&flow) else {
            return self.note_denial(flow.client(), Some(flow), None, Denial::Rule);
        };
        if self.full() || self.begins_nothing() {
            return self.note_denial(flow.client(), Some(flow), None, Denial::Overload);
        }
        let key = self.insert_validated(flow, rule, (socket, true), None);
        if let Some(entry) = self.entries.live_mut(key) {
            entry.fixed = true;
        }
        self.carry_out_all(key, Action::Begin.into(), OPEN);
    }

    /// Adds a flow whose client is validated: its socket, and whether that has the settings of the
    /// listeners. Returns its key.
    fn insert_validated(
        &mut self,
        flow: Flow,
        rule: Rc<LocalRule>,
        (socket, inherits): (OwnedFd, bool),
        hop_limit: Option<u8>,
    ) -> u64 {
        let deferred = if rule.inherited && inherits {
            DeferredOptions::INHERITED
        } else {
            // Best effort: the connection works without these settings.
            let _ = sys::apply_at_birth(&socket, &rule.rule.downstream);
            DeferredOptions::ALL
        };
        let mut opening = self.open(AcceptMode::LATE, Arrival::Plain, &rule);
        opening.hops.hop_limit = hop_limit;
        let key = self.insert(flow, rule, AcceptMode::LATE, opening);
        if let Some(entry) = self.entries.live_mut(key) {
            entry.sockets[Side::Downstream] = Some(socket);
            entry.deferred[Side::Downstream] = deferred;
            entry.timers.accept = Duration::ZERO.into();
        }
        key
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
