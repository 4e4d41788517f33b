// SPDX-License-Identifier: Apache-2.0
//! Clients that have completed their handshake: this validates a pending flow, or begins one in
//! late mode.

use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use crate::accept_mode::AcceptMode;
use crate::control::Denial;
use crate::flow::Flow;
use crate::intercept::Intercept;
use crate::opening::{Action, Arrival};
use crate::side::Side;
use crate::sys;

use super::admit::{client_prefix, one_less};
use super::entry::{DeferredOptions, Entry, LocalRule};
use super::listeners::Purpose;
use super::opening::OPEN;
use super::{ACCEPTS_MAX, Worker};

/// Bound on the remembered prefixes; the set is cleared when it is full.
const KNOWN_MAX: usize = 4096;

impl<I: Intercept> Worker<I> {
    /// Accepts completed handshakes from a listener: those of all flows whose SYNs arrived in this
    /// turn, since a server's answer must be held if it arrives before its client is accepted.
    pub(super) fn accept(&mut self, number: usize) {
        let mut taken = 0;
        while taken < ACCEPTS_MAX.max(self.to_connect.len()) {
            taken += 1;
            let Some((listener, purpose, multipath)) = self.listeners.get(number) else {
                return;
            };
            match sys::accept(listener) {
                Ok((socket, client, server)) => {
                    // A command sent before a flow began must apply to that flow.
                    self.carry_out();
                    let token = multipath.then(|| self.token_of(&socket)).flatten();
                    match purpose {
                        Purpose::Requests(_) => self.receive_request(client, socket, None),
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
            // The event of the SYN that belongs to this accept may have arrived since.
            self.take_events();
        }
    }

    fn on_accept_error(&mut self, error: &io::Error) {
        let out_of_files = [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::ENOBUFS];
        if error
            .raw_os_error()
            .is_some_and(|code| out_of_files.contains(&code))
        {
            self.starve();
        }
    }

    /// The client of a flow in transit has completed its handshake. `inherits` says whether the
    /// socket has the settings of the listeners. Returns the key of the flow, if there is one now.
    pub(super) fn on_accept(&mut self, flow: Flow, socket: OwnedFd, inherits: bool) -> Option<u64> {
        // A connection to the listener's own address: there is no server to relay to.
        if flow.server().ip().is_loopback() {
            return None;
        }
        let Some(key) = self.opening.get(&flow).copied() else {
            if self.listeners.are_requested_at(flow.server()) {
                self.receive_request(flow.client(), socket, None);
                return None;
            }
            return self.begin_late(flow, socket, inherits);
        };
        if self
            .entries
            .get(key)
            .is_some_and(Entry::is_requested_in_syn)
        {
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
        entry.timers.accept = entry.age(now).into();
        entry.sockets[Side::Downstream] = Some(socket);
        self.on_validation(key);
        Some(key)
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
        if self.known.len() == KNOWN_MAX {
            self.known.clear();
        }
        if self.known.insert(client_prefix(flow)) {
            self.intercept.validate_prefix(flow);
        }
    }

    /// Begins a flow in late mode: only its accepted client is known.
    fn begin_late(&mut self, flow: Flow, socket: OwnedFd, inherits: bool) -> Option<u64> {
        let rule = self.rules.for_flow(&flow)?;
        if self.entries.len() >= self.rules.relays_max() {
            self.set_draining(true);
            return None;
        }
        self.counters.late.add(1);
        self.remember(&flow);
        if rule.rule.accept.connects_at_syn() {
            self.missing_syn_event.insert(flow);
        }
        let hop_limit = sys::hop_limit_of_client(&socket, !flow.is_ipv4());
        let hop_limit = hop_limit.map(one_less);
        let key = self.insert_validated(flow, rule, (socket, inherits), hop_limit);
        if self.full() {
            self.set_draining(true);
        }
        self.carry_out_all(key, Action::Begin.into(), OPEN);
        Some(key)
    }

    /// Begins the flow of a client of a listener with a fixed destination.
    fn serve(&mut self, flow: Flow, socket: OwnedFd) {
        self.counters.fixed_connections.add(1);
        let Some(rule) = self.rules.for_request(&flow) else {
            return self.turn_away(flow, Denial::Rule);
        };
        if self.full() || self.begins_nothing() {
            return self.turn_away(flow, Denial::Overload);
        }
        let key = self.insert_validated(flow, rule, (socket, true), None);
        if let Some(entry) = self.entries.live_mut(key) {
            entry.fixed = true;
        }
        self.carry_out_all(key, Action::Begin.into(), OPEN);
    }

    /// Refuses a client: dropping its socket resets it.
    fn turn_away(&mut self, flow: Flow, denial: Denial) {
        self.note_denial(flow.client(), Some(flow), None, denial);
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
            DeferredOptions::default()
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
}
