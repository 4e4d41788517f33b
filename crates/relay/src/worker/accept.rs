// SPDX-License-Identifier: Apache-2.0
//! Clients that have completed their handshake: this validates a pending flow, or begins one in
//! late mode.

use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use crate::accept_mode::AcceptMode;
use crate::control::{Denial, Denied};
use crate::flow::Flow;
use crate::intercept::{Direction, Intercept};
use crate::opening::{OnMeeting, Opening};
use crate::policy::Action;
use crate::relay::Ready;
use crate::side::Side;
use crate::sys;

use super::admit::{client_prefix, one_less};
use super::entry::{DeferredOptions, Entry, LocalRule};
use super::listeners::Purpose;
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
            let Some((listener, purpose)) = self.listeners.get(number) else {
                return;
            };
            match sys::accept(listener) {
                Ok((socket, client, server)) => {
                    // A command sent before a flow began must apply to that flow.
                    self.carry_out();
                    match purpose {
                        Purpose::Requests(_) => self.receive_request(client, socket, None),
                        Purpose::Fixed(destination) => {
                            self.serve(Flow::new(client, destination), socket);
                        }
                        Purpose::Transit => {
                            let server = self.intercept.original(client).unwrap_or(server);
                            self.on_accept(Flow::new(client, server), socket);
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

    fn on_accept(&mut self, flow: Flow, socket: OwnedFd) {
        // A connection to the listener's own address: there is no server to relay to.
        if flow.server().ip().is_loopback() {
            return;
        }
        let Some(key) = self.opening.get(&flow).copied() else {
            if self.listeners.are_requested_at(flow.server()) {
                return self.receive_request(flow.client(), socket, None);
            }
            return self.begin_late(flow, socket);
        };
        if self
            .entries
            .get(key)
            .is_some_and(Entry::is_requested_in_syn)
        {
            return self.serve_syn_option(key, &flow, socket);
        }
        let now = self.now;
        if self
            .pending(key)
            .is_none_or(|pending| pending.syn.is_none())
        {
            // The tuple belongs to the upstream side of another flow, which has no client here.
            return;
        }
        let Some(entry) = self.entries.live_mut(key) else {
            return;
        };
        if !entry.rule.inherited {
            // Best effort: the connection works without these settings.
            let _ = sys::apply_at_birth(&socket, &entry.rule.rule.downstream);
            entry.deferred[Side::Downstream] = DeferredOptions::ALL;
        }
        entry.timers.accept = entry.age(now).into();
        entry.sockets[Side::Downstream] = Some(socket);
        self.on_validation(key);
    }

    /// The client has completed its handshake.
    pub(super) fn on_validation(&mut self, key: u64) {
        self.release(key);
        let Some(entry) = self.entries.live_mut(key) else {
            return;
        };
        let Some(pending) = entry.pending() else {
            return;
        };
        let requested = pending.requested;
        let step = pending.opening.on_accept();
        if std::mem::take(&mut pending.trial) {
            self.on_validated_trial();
        }
        // Before the injection: with a half-open entry the SYN-ACK would be captured again.
        self.validate(key);
        match step {
            OnMeeting::Wait(None) if !requested => self.connect_server(key),
            OnMeeting::Wait(frame) => {
                self.inject(frame.and_then(|f| f.completed()), Direction::In);
                self.meet_over_hop(key);
            }
            OnMeeting::WaitForClient | OnMeeting::Admit => {}
            OnMeeting::Join => self.join(
                key,
                Ready {
                    readable: true,
                    writable: true,
                    ..Ready::default()
                },
            ),
            OnMeeting::Refuse(outcome) => self.end_with(key, outcome, None),
        }
    }

    /// The client is validated: removes its half-open state.
    fn validate(&mut self, key: u64) {
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

    /// Removes an entry from every table of opening flows.
    pub(super) fn release_opening(&mut self, key: u64) {
        let Some(entry) = self.entries.live_mut(key) else {
            return;
        };
        let flow = entry.flow;
        let Some(pending) = entry.pending() else {
            return;
        };
        let is_validated = pending.opening.is_validated();
        let half_open_flows = std::mem::take(&mut pending.half_open_flows);
        let counted = std::mem::take(&mut pending.counted);
        for (reserved_flow, half_open) in half_open_flows {
            if is_validated {
                self.intercept.release_half_open(&reserved_flow, half_open);
            } else {
                // Another SYN may have reused the tuple, here or at another worker.
                self.intercept
                    .release_if_unchanged(&reserved_flow, half_open);
            }
            self.opening.remove(&reserved_flow);
        }
        if self.opening.get(&flow) == Some(&key) {
            self.opening.remove(&flow);
        }
        if let Some(prefix) = counted {
            self.counters.half_open.sub(1);
            self.uncount(prefix);
        }
    }

    fn uncount(&mut self, prefix: [u8; 8]) {
        if let Some(count) = self.half_open.get_mut(&prefix) {
            *count -= 1;
            if *count == 0 {
                self.half_open.remove(&prefix);
            }
        }
    }

    /// Begins a flow in late mode: only its accepted client is known.
    fn begin_late(&mut self, flow: Flow, socket: OwnedFd) {
        let Some(rule) = self.rules.for_flow(&flow) else {
            return;
        };
        if self.entries.len() >= self.rules.relays_max() {
            return self.set_draining(true);
        }
        self.counters.late.add(1);
        self.remember(&flow);
        if rule.rule.accept.connects_at_syn() {
            self.missing_syn_event.insert(flow);
        }
        let hop_limit = sys::hop_limit_of_client(&socket, !flow.is_ipv4());
        let (key, mss) = self.insert_validated(flow, rule, socket);
        if let Some(pending) = self.pending(key) {
            pending.hop_limit = hop_limit.map(one_less);
        }
        if self.full() {
            self.set_draining(true);
        }
        self.select_next_hops(key);
        self.open_upstream(key, mss);
    }

    /// Begins the flow of a client of a listener with a fixed destination.
    fn serve(&mut self, flow: Flow, socket: OwnedFd) {
        self.counters.fixed_connections.add(1);
        let rule = self.rules.for_flow(&flow);
        let rule = rule.filter(|rule| rule.rule.action != Action::Reject);
        let Some(rule) = rule else {
            return self.turn_away(flow, Denial::Rule);
        };
        if self.full() || self.begins_nothing() {
            return self.turn_away(flow, Denial::Overload);
        }
        let (key, mss) = self.insert_validated(flow, rule, socket);
        if let Some(entry) = self.entries.live_mut(key) {
            entry.fixed = true;
        }
        self.select_next_hops(key);
        self.open_upstream(key, mss);
    }

    /// Refuses a client: dropping its socket resets it.
    fn turn_away(&mut self, flow: Flow, denial: Denial) {
        self.take_note(&Denied {
            from: flow.client(),
            flow: Some(flow),
            encapsulation: None,
            denial,
            ahead_ms: None,
            segment: None,
        });
    }

    /// Adds a flow whose client is validated. Returns its key and the client's MSS.
    fn insert_validated(
        &mut self,
        flow: Flow,
        rule: Rc<LocalRule>,
        socket: OwnedFd,
    ) -> (u64, Option<u16>) {
        let mss = sys::segment_bytes(&socket);
        let deferred = if rule.inherited {
            DeferredOptions::default()
        } else {
            // Best effort: the connection works without these settings.
            let _ = sys::apply_at_birth(&socket, &rule.rule.downstream);
            DeferredOptions::ALL
        };
        let key = self.insert(flow, rule, AcceptMode::LATE, Opening::validated(), None);
        if let Some(entry) = self.entries.live_mut(key) {
            entry.sockets[Side::Downstream] = Some(socket);
            entry.deferred[Side::Downstream] = deferred;
            entry.timers.accept = Duration::ZERO.into();
        }
        (key, mss)
    }
}
