// SPDX-License-Identifier: Apache-2.0
//! Flows that the option of a SYN heralds.
//!
//! The option says what the request behind it will ask for, so the flow is opened
//! a round trip of the hop earlier. It proves nothing: no byte of a flow moves, and
//! no server completes a handshake, before the request has come and counts. Where
//! the option is lost, or not heeded, the request is granted as any other.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use posthaste_wire::convert::Connect;
use posthaste_wire::header::{ChainHeader, Endpoint, LoopGuard};
use posthaste_wire::hop::HEEDED;
use posthaste_wire::syn_option;

use crate::chain::{Carrier, Peer};
use crate::control::{Denial, Denied};
use crate::counters::Counters;
use crate::flow::Flow;
use crate::frame::Frame;
use crate::heralds::Heralds;
use crate::intercept::{Event, Intercept};
use crate::opening::{OnAsked, Opening};
use crate::outcome::Outcome;
use crate::policy::AcceptMode;
use crate::side::Side;

use super::Worker;
use super::admit::one_less;
use super::ask::{Asked, Onward};
use super::entry::Entry;
use super::prologue::{Prologue, say};
use super::silence::WORKING_AFTER;

impl<I: Intercept> Worker<I> {
    /// Somebody heralds a flow who may not. Its connection goes on without.
    pub(super) fn on_stranger(&mut self, event: &Event) {
        let header = header_in(&event.frame).ok();
        let flow = header.map(|header| flow_of(&header, event.flow.client()));
        self.deny_herald(event.flow.client(), flow, Denial::Stranger);
    }

    /// A peer heralds a flow. Its connection goes on whatever becomes of that.
    pub(super) fn on_herald(&mut self, event: &Event) {
        self.counters.heralds_received.add(1);
        self.forget_former(&event.flow);
        let from = event.flow.client();
        let asked = match self.read_herald(&event.frame, from) {
            Ok(asked) => asked,
            Err(denial) => {
                self.deny_herald(from, None, denial);
                return self.leave(event);
            }
        };
        let flow = asked.flow();
        let granted = match self.grant(&asked, &flow) {
            Ok(granted) => granted,
            Err(denial) => {
                self.deny_herald(from, Some(flow), denial);
                return self.leave(event);
            }
        };
        let full = self.full() || self.begins_nothing();
        if full || !self.within_budget(&event.flow) {
            self.counters.over_budget.add(1);
            return self.leave(event);
        }
        let (rule, onward) = granted;
        let key = self.insert(flow, rule, AcceptMode::Strict, Opening::heralded(), None);
        self.opening.insert(event.flow, key);
        self.count_half_open(key, &event.flow);
        self.open_heralded(key, event, &asked, onward);
    }

    fn open_heralded(&mut self, key: u64, event: &Event, asked: &Asked, onward: Onward) {
        let Some(entry) = self.entries.get_mut(key) else {
            return;
        };
        entry.prologue = Some(Box::new(Prologue {
            asked: true,
            heralded: Some(Box::new(asked.connect.header)),
            ..Prologue::default()
        }));
        if let Some(pending) = entry.pending() {
            pending.gates.push((event.flow, event.gate));
            pending.route(onward.ways, onward.guard);
            pending.hop_limit = event.frame.hop_limit().map(one_less);
        }
        self.counters.heralds_opened.add(1);
        self.open_upstream(key, None);
    }

    /// What a herald says, if it is one of a peer. It has no room for a guard: whoever
    /// sent it stands for the first node, and its SYN has the flow's TTL.
    fn read_herald(&self, syn: &Frame, from: SocketAddr) -> Result<Asked, Denial> {
        let peer = self.rules.chains().heralding_from(from.ip());
        let peer = peer.ok_or(Denial::Stranger)?.id;
        let mut header = header_in(syn)?;
        let hop_limit = syn.hop_limit().map(one_less);
        let guard = hop_limit.and_then(|hops| LoopGuard::with_ttl(peer, hops));
        header.guard = Some(guard.unwrap_or(LoopGuard {
            origin: peer,
            hop_limit: 0,
        }));
        let mut connect = Connect::new(header);
        connect.proved = false;
        Ok(Asked {
            peer: Some(peer),
            connect,
            extensions: false,
            from,
        })
    }

    fn deny_herald(&mut self, from: SocketAddr, flow: Option<Flow>, denial: Denial) {
        self.take_note(&Denied {
            from,
            flow,
            carrier: Some(Carrier::Option),
            denial,
            ahead_ms: None,
        });
    }

    /// Opens nothing at a herald. Its gate stays for a while: by that a handshake with
    /// a SYN cookie finds the listener that made it.
    fn leave(&mut self, event: &Event) {
        let until = self.now + self.rules.half_open().expiry;
        self.passed.push_back((until, event.flow, event.gate));
    }

    /// The handshake of a hop is complete whose SYN was a herald: the request is to
    /// come.
    pub(super) fn greet_heralded(&mut self, key: u64, hop: &Flow, socket: OwnedFd) {
        self.opening.remove(hop);
        self.remember(hop);
        let gates = self.pending(key).map(|pending| {
            let (own, others) = pending.gates.drain(..).partition(|(gated, _)| gated == hop);
            pending.gates = others;
            let own: Vec<_> = own;
            own
        });
        for (gated, gate) in gates.unwrap_or_default() {
            self.intercept.open_gate(&gated, gate);
        }
        self.greet(hop.client(), socket, Some(key));
    }

    /// The flow that the SYN of a greeting has heralded, if that is what is asked for.
    pub(super) fn heralded_as(&self, greeting: u64, asked: &Asked) -> Option<u64> {
        let key = self.greetings.get(greeting)?.herald?;
        let heralded = self
            .entries
            .get(key)?
            .prologue
            .as_ref()?
            .heralded
            .as_ref()?;
        let same = ChainHeader {
            guard: heralded.guard,
            ..asked.connect.header
        };
        (asked.peer.is_some() && same == **heralded).then_some(key)
    }

    /// Joins a request that is granted with the flow that was opened at its herald.
    pub(super) fn adopt(&mut self, greeting: u64, key: u64, asked: &Asked, onward: Onward) {
        self.unseat(greeting);
        let Some(greeting) = self.greetings.remove(greeting) else {
            return;
        };
        let watched = self.rewatch(key, Side::Downstream, &greeting.socket);
        if watched.is_err() || say(&greeting.socket, &HEEDED).is_err() {
            return self.end(key, Outcome::ClientAbsent);
        }
        let now = self.now;
        let Some(entry) = self.entries.get_mut(key) else {
            return;
        };
        entry.timers.accept = entry.age(now).into();
        entry.sockets[Side::Downstream] = Some(greeting.socket);
        if let Some(said) = &mut entry.prologue {
            said.heralded = None;
            said.by = asked.peer;
            said.asker = Some(asked.asker());
            said.word_due = Some(now + WORKING_AFTER);
        }
        let unasked = entry.sockets[Side::Upstream].is_none();
        let put_off = unasked
            && entry
                .pending()
                .is_some_and(|pending| pending.opening.asks());
        if let Some(pending) = entry.pending() {
            let ways = if put_off {
                onward.ways
            } else {
                std::mem::take(&mut pending.ways)
            };
            pending.route(ways, onward.guard);
            pending.asked = true;
        }
        self.owe_word(key);
        self.meet_asker(key, asked.connect.proved);
        if put_off {
            self.open_upstream(key, None);
        }
    }

    /// Whoever heralded a flow waits for it now.
    fn meet_asker(&mut self, key: u64, proved: bool) {
        let expiry = self.rules.half_open().expiry;
        let now: Duration = self.now;
        let Some(entry) = self.entries.get_mut(key) else {
            return;
        };
        if proved {
            entry.accept = AcceptMode::Late;
            return self.on_proof(key);
        }
        let Some(pending) = entry.pending() else {
            return;
        };
        pending.prove_by = now + expiry;
        match pending.opening.on_asked() {
            OnAsked::Wait => {}
            OnAsked::Answer => self.answer(key),
            OnAsked::Refuse(outcome) => self.end_with(key, outcome, None),
        }
    }

    /// Ends a heralded flow that nobody will ask for.
    pub(super) fn forsake(&mut self, herald: Option<u64>) {
        if let Some(key) = herald
            && self.entries.get(key).is_some_and(Entry::is_heralded)
        {
            self.end(key, Outcome::ClientAbsent);
        }
    }

    /// The option for the SYN of a hop to a peer, if there is to be one.
    pub(super) fn herald_for(&self, peer: &Peer, header: &ChainHeader) -> Option<Vec<u8>> {
        let takes_it = peer.carrier == Carrier::Option && peer.address.is_ipv4();
        if !takes_it || self.heralds.paused_for(peer.id, self.now).is_some() {
            return None;
        }
        let mut option = Vec::new();
        syn_option::encode(header, &mut option).ok()?;
        Some(option)
    }
}

/// Takes note of what the next node has made of an option, if that is known.
pub(super) fn note_herald(
    said: &mut Prologue,
    heralds: &mut Heralds,
    counters: &Counters,
    now: Duration,
) {
    let (Some(heeded), Some(via)) = (said.heeded.take(), said.via) else {
        return;
    };
    let counter = if heeded {
        &counters.heralds_heeded
    } else {
        &counters.heralds_unheeded
    };
    counter.add(1);
    heralds.note(via.peer, heeded, now);
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
