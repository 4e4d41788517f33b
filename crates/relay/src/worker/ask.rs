// SPDX-License-Identifier: Apache-2.0
//! Flows that somebody asks for at an explicit listener: who may, to where, and
//! by which way.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use nix::sys::epoll::{EpollEvent, EpollFlags};
use posthaste_wire::convert::{Answer, Connect, ConvertError, Head, Refusal, cookie, is_cookie_of};
use posthaste_wire::header::{Endpoint, LOOK_UP, Label, LoopGuard, NodeId};
use posthaste_wire::replay::ReplayWindow;
use posthaste_wire::seal::Key;

use crate::chain::{Carrier, Chains, NoWay, Way};
use crate::clock::Clock;
use crate::control::{Denial, Denied};
use crate::flow::Flow;
use crate::intercept::Intercept;
use crate::opening::Opening;
use crate::outcome::Outcome;
use crate::policy::{AcceptMode, Action};
use crate::side::Side;
use crate::sys;

use super::Worker;
use super::admit::client_prefix;
use super::entry::{LocalRule, State};
use super::greeting::{Greeting, Keys, Wish};
use super::places::PLACES;
use super::prologue::{Asker, OPTIONS, Prologue, Unheard, read_whole};
use super::silence::WORKING_AFTER;

/// Hops of peers that wait for a flow, at one worker.
const HOPS_MAX: usize = 8192;
/// What the token of a greeting has that no relay's has.
pub(super) const TOKEN_GREETING: u64 = 1 << 60;
/// A sealed request counts for so long, and clocks may differ by as much.
const FRESH_MS: u64 = 30_000;
/// Requests remembered, by all workers together: as many as may come in that
/// time at two thousand in a second.
const REMEMBERED: usize = 60_000;

/// What the workers of a node share about requests.
#[derive(Debug)]
pub struct Desk {
    /// When requests are made, and seen.
    pub(super) clock: Clock,
    /// Requests that count no more.
    seen: Mutex<ReplayWindow>,
    /// What cookies are made with.
    secret: Key,
}

impl Desk {
    /// Goes by `clock`.
    pub fn new(clock: Clock) -> Self {
        Self {
            clock,
            seen: Mutex::new(ReplayWindow::new(FRESH_MS, REMEMBERED)),
            secret: Key::new(sys::random()),
        }
    }
}

impl Default for Desk {
    fn default() -> Self {
        Self::new(Clock::default())
    }
}

/// Why somebody is denied, and of one that is for the time how far its clock seems to be ahead, in
/// milliseconds.
pub(super) struct Reason {
    denial: Denial,
    ahead_ms: Option<i64>,
}

impl From<Denial> for Reason {
    fn from(denial: Denial) -> Self {
        let ahead_ms = None;
        Self { denial, ahead_ms }
    }
}

/// A flow that somebody asks for.
#[derive(Debug)]
pub(super) struct Asked {
    /// The peer; `None` for a client of RFC 8803.
    pub(super) peer: Option<NodeId>,
    pub(super) connect: Connect,
    /// It asks which TCP options there are, too.
    pub(super) extensions: bool,
    pub(super) from: SocketAddr,
}

impl Asked {
    pub(super) fn asker(&self) -> Asker {
        match self.peer {
            Some(_) => Asker::Peer,
            None => Asker::Client {
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

/// Where a flow may go from here.
pub(super) struct Onward {
    pub(super) ways: Vec<Way>,
    pub(super) guard: Option<LoopGuard>,
}

impl<I: Intercept> Worker<I> {
    /// Takes a connection from an explicit listener.
    /// `herald` is the flow that its SYN has heralded.
    pub(super) fn greet(&mut self, from: SocketAddr, socket: OwnedFd, herald: Option<u64>) {
        self.counters.explicit_connections.add(1);
        if self.begins_nothing() {
            self.deny(from, None, Denial::Overload);
            return self.forsake(herald);
        }
        if !self.may_ask(from.ip()) {
            self.deny(from, None, Denial::Stranger);
            self.forsake(herald);
            let why = Asker::CLIENT.answer(Denial::Stranger.reply(), None);
            return self.part(socket, from, &why);
        }
        let mut greeting = Greeting::new(socket, from, self.now);
        greeting.herald = herald;
        self.keep_greeting(greeting);
    }

    /// Whether somebody at an address may have anything to ask: peers have keys, and may call from
    /// anywhere.
    fn may_ask(&self, ip: IpAddr) -> bool {
        let chains = self.rules.chains();
        let has_keys = chains.me.is_some() && chains.peers.iter().any(|peer| peer.key.is_some());
        has_keys || self.rules.access().admits(ip)
    }

    /// Gives a connection a place, and takes that of another if there is no more.
    fn seat(&mut self, key: u64, from: SocketAddr) {
        let source = client_prefix(&Flow::new(from, from));
        let is_known = self.rules.access().admits(from.ip()) || self.paces.knows(from.ip());
        if let Some(oldest) = self.places.in_the_way(source, is_known)
            && let Some(gone) = self.dismiss(oldest)
            && gone.is_silent()
        {
            self.deny(gone.from, None, Denial::Overload);
        }
        let place = self.places.take(key, source, is_known);
        if let Some(greeting) = self.greetings.get_mut(key) {
            greeting.place = Some(place);
        }
    }

    /// A connection turned out to be a hop of a peer: it needs no place.
    pub(super) fn unseat(&mut self, key: u64) {
        let place = self.greetings.get_mut(key).and_then(|hop| hop.place.take());
        if let Some(place) = place {
            self.places.leave(place);
        }
    }

    fn keep_greeting(&mut self, greeting: Greeting) {
        let from = greeting.from;
        // A handshake that completes makes it writable once more.
        let flags = EpollFlags::EPOLLIN
            | EpollFlags::EPOLLOUT
            | EpollFlags::EPOLLRDHUP
            | EpollFlags::EPOLLET;
        let key = self.greetings.insert(greeting);
        let Some(greeting) = self.greetings.get(key) else {
            return;
        };
        let event = EpollEvent::new(flags, TOKEN_GREETING | key);
        if self.epoll.add(&greeting.socket, event).is_err() {
            self.dismiss(key);
            return;
        }
        self.seat(key, from);
        // What came with the SYN is there already.
        self.on_greeting(key);
    }

    /// A connection has something to say.
    pub(super) fn on_greeting(&mut self, key: u64) {
        let now = self.now;
        let Some(greeting) = self.greetings.get_mut(key) else {
            return;
        };
        let chains = self.rules.chains();
        let find = |id: NodeId, key_id: u32| key_of(chains, id, key_id);
        let keys = Keys {
            me: chains.me,
            find: &find,
        };
        let (from, was_hop) = (greeting.from, greeting.is_hop());
        let wish = greeting.hear(&keys, now);
        if let (Some(peer), false) = (greeting.peer(), was_hop) {
            self.welcome(key, peer);
            self.unseat(key);
            if self.greetings.len() >= HOPS_MAX + PLACES {
                self.dismiss(key);
                return self.deny(from, None, Denial::Overload);
            }
        }
        match wish {
            Wish::Wait => {}
            Wish::Close { wrong } => {
                self.dismiss(key);
                if wrong {
                    self.deny(from, None, Denial::Malformed);
                }
            }
            Wish::Bad(refusal) => self.on_bad_request(key, &refusal),
            Wish::Request(head) => self.on_request(key, head),
            Wish::Open(peer, connect) => self.on_asked(
                key,
                Asked {
                    peer: Some(peer),
                    connect: *connect,
                    extensions: false,
                    from,
                },
            ),
        }
    }

    fn on_bad_request(&mut self, key: u64, refusal: &Refusal) {
        let Some(greeting) = self.dismiss(key) else {
            return;
        };
        self.deny(greeting.from, None, Denial::Malformed);
        if let Some(error) = &refusal.answer {
            self.let_go(greeting, &encoded(error.clone()));
        }
    }

    /// Somebody asks by a request of its own.
    fn on_request(&mut self, key: u64, head: Box<Head>) {
        let Some(from) = self.greetings.get(key).map(|greeting| greeting.from) else {
            return;
        };
        if head.claim.is_none() {
            return self.on_unsealed(key, from, head);
        }
        match self.authenticate(&head) {
            Ok(peer) => {
                self.welcome(key, peer);
                if let Some(connect) = head.request.connect {
                    let peer = Some(peer);
                    self.on_asked(
                        key,
                        Asked {
                            peer,
                            connect,
                            extensions: false,
                            from,
                        },
                    );
                }
            }
            Err(why) => self.refuse(key, None, Asker::Peer, why),
        }
    }

    /// Which peer has made a request, if it counts.
    fn authenticate(&self, head: &Head) -> Result<NodeId, Reason> {
        let chains = self.rules.chains();
        let (Some(me), Some(claim)) = (chains.me, head.claim) else {
            return Err(Denial::Seal.into());
        };
        let candidates = chains.peers.iter();
        let mut candidates = candidates.filter(|peer| peer.key_id == claim.key_id);
        let found = candidates.find_map(|peer| {
            let authentic = head.verify(peer.key.as_ref()?, me).ok()?;
            Some((peer.id, authentic))
        });
        let (peer, authentic) = found.ok_or(Denial::Seal)?;
        let mut seen = self
            .desk
            .seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let now_ms = self.desk.clock.now_ms();
        seen.admit(now_ms, authentic)
            .map_err(|_| untimely(claim.timestamp_ms, now_ms))?;
        Ok(peer)
    }

    /// A client of RFC 8803 asks.
    fn on_unsealed(&mut self, key: u64, from: SocketAddr, head: Box<Head>) {
        let asker = Asker::CLIENT;
        let access = self.rules.access();
        if !access.admits(from.ip()) {
            return self.refuse(key, None, asker, Denial::Stranger);
        }
        if let Some(text) = &access.cookie {
            let sent = head.request.cookie.as_ref();
            if !sent.is_some_and(|cookie| text.is_sent_as(cookie)) {
                return self.refuse(key, None, asker, Denial::Cookie);
            }
        } else if access.cookies {
            match &head.request.cookie {
                Some(cookie) if is_cookie_of(&self.desk.secret, from.ip(), cookie) => {}
                Some(_) => return self.refuse(key, None, asker, Denial::Cookie),
                None => {
                    let fresh = cookie(&self.desk.secret, from.ip()).into_bytes();
                    return self.answer_greeting(key, &encoded(ConvertError::MissingCookie(fresh)));
                }
            }
        }
        let Some(greeting) = self.greetings.get_mut(key) else {
            return;
        };
        if sys::is_handshaking(&greeting.socket) {
            return greeting.prove(head);
        }
        let extensions = head.request.wants_extensions;
        let Some(connect) = head.request.connect else {
            let answer = Answer {
                extensions: extensions.then(|| OPTIONS.to_vec()),
                ..Answer::default()
            };
            return self.answer_greeting(key, &answer.encode().unwrap_or_default());
        };
        if let Some(error) = connect.unsupported(&OPTIONS) {
            return self.answer_greeting(key, &encoded(error));
        }
        let peer = None;
        self.on_asked(
            key,
            Asked {
                peer,
                connect,
                extensions,
                from,
            },
        );
    }

    /// Somebody who may asks for a flow.
    fn on_asked(&mut self, key: u64, asked: Asked) {
        let flow = asked.flow();
        let (rule, onward) = match self.grant(&asked, &flow) {
            Ok(granted) => granted,
            Err(denial) => return self.refuse(key, Some(flow), asked.asker(), denial),
        };
        if let Some(herald) = self.heralded_as(key, &asked) {
            return self.adopt(key, herald, &asked, onward);
        }
        let proved = asked.connect.proved;
        let crowded = !proved && !self.within_budget(&flow);
        if self.full() || self.begins_nothing() || crowded {
            return self.refuse(key, Some(flow), asked.asker(), Denial::Overload);
        }
        let Some(greeting) = self.dismiss(key) else {
            return;
        };
        let (opening, accept) = if proved {
            (Opening::late(), AcceptMode::Late)
        } else {
            (Opening::strict(), AcceptMode::Strict)
        };
        if asked.peer.is_none() && !rule.inherited {
            // The connection works without, so let it.
            let _ = sys::apply(&greeting.socket, &rule.rule.downstream);
        }
        let entry = self.insert(flow, rule, accept, opening, None);
        if self
            .rewatch(entry, Side::Downstream, &greeting.socket)
            .is_err()
        {
            return self.end(entry, Outcome::Internal);
        }
        if !proved {
            self.count_half_open(entry, &flow);
        }
        if let Some(entry) = self.entries.get_mut(entry) {
            entry.sockets[Side::Downstream] = Some(greeting.socket);
            entry.timers.accept = Duration::ZERO.into();
            entry.prologue = Some(Box::new(Prologue {
                asked: true,
                by: asked.peer,
                asker: Some(asked.asker()),
                word_due: Some(self.now + WORKING_AFTER),
                ..Prologue::default()
            }));
            if let Some(pending) = entry.pending() {
                pending.route(onward.ways, onward.guard);
                pending.hop_limit = asked.connect.header.guard.map(LoopGuard::ttl);
            }
        }
        if asked.peer.is_some() {
            self.owe_word(entry);
        }
        self.open_upstream(entry, None);
    }

    /// Somebody has proved to be a peer: its connection is a hop, and gets the settings
    /// of hops.
    fn welcome(&mut self, key: u64, peer: NodeId) {
        let chains = self.rules.chains();
        let known = chains.peer(peer).map(|index| &chains.peers[index]);
        if let (Some(greeting), Some(known)) = (self.greetings.get(key), known) {
            let from = greeting.from.ip();
            // The connection works without, so let it.
            let _ = sys::apply(&greeting.socket, &known.socket);
            self.on_caller(peer, from);
        }
    }

    /// Whether a flow may be had: by which rule, and where it may go.
    pub(super) fn grant(
        &self,
        asked: &Asked,
        flow: &Flow,
    ) -> Result<(Rc<LocalRule>, Onward), Denial> {
        let onward = self.onward(asked, flow)?;
        let rule = self.rules.for_flow(flow);
        let rule = rule.filter(|rule| rule.rule.action != Action::Reject);
        Ok((rule.ok_or(Denial::Rule)?, onward))
    }

    /// Where a flow may go.
    fn onward(&self, asked: &Asked, flow: &Flow) -> Result<Onward, Denial> {
        let header = &asked.connect.header;
        let chains = self.rules.chains();
        self.rules
            .access()
            .permits(flow, sys::leads_here)
            .map_err(|_| Denial::Destination)?;
        if header.label.is_some_and(Label::is_look_up) {
            return self.look_up(asked, flow);
        }
        let begins_here = header.label.is_none() && header.guard.is_none();
        if begins_here {
            let rule = self.rules.for_flow(flow);
            let bytes = rule.and_then(|rule| rule.rule.transfer_bytes);
            return Ok(Onward {
                ways: chains.ways(flow, bytes),
                guard: chains.me.map(LoopGuard::new),
            });
        }
        let way = chains
            .onward(header.label)
            .map_err(|_: NoWay| Denial::Label)?;
        let passed = match (header.guard, chains.me) {
            (Some(guard), Some(me)) => guard.passed_on(me),
            (_, me) => me.map(LoopGuard::new),
        };
        if way != Way::Direct && passed.is_none() {
            return Err(Denial::Loop);
        }
        Ok(Onward {
            ways: vec![way],
            guard: passed,
        })
    }

    /// Where a flow may go of which a peer that holds no plan does not know it: as if it began here. It
    /// does not go back, nor to a third that looks ways up.
    fn look_up(&self, asked: &Asked, flow: &Flow) -> Result<Onward, Denial> {
        let chains = self.rules.chains();
        let may = &self.rules.access().look_up;
        let peer = asked.peer.filter(|peer| may.contains(peer));
        let (peer, me) = peer.zip(chains.me).ok_or(Denial::Label)?;
        let guard = match asked.connect.header.guard {
            Some(guard) => guard.passed_on(me),
            None => Some(LoopGuard::new(me)),
        };
        let rule = self.rules.for_flow(flow);
        let bytes = rule.and_then(|rule| rule.rule.transfer_bytes);
        let mut ways = chains.ways(flow, bytes);
        let refused = ways.is_empty();
        ways.retain(|way| match *way {
            Way::Direct => true,
            Way::Hop {
                peer: next, chain, ..
            } => guard.is_some() && next != peer && chain != LOOK_UP,
        });
        match ways.is_empty() {
            true if refused => Err(Denial::Rule),
            true => Err(Denial::Loop),
            false => Ok(Onward { ways, guard }),
        }
    }

    /// Lets somebody go who asked for what it may not have.
    fn refuse(&mut self, key: u64, flow: Option<Flow>, asker: Asker, why: impl Into<Reason>) {
        let (why, Some(greeting)) = (why.into(), self.dismiss(key)) else {
            return;
        };
        let reply = why.denial.reply();
        self.deny(greeting.from, flow, why);
        self.let_go(greeting, &asker.answer(reply, None));
    }

    fn answer_greeting(&mut self, key: u64, answer: &[u8]) {
        if let Some(greeting) = self.dismiss(key) {
            self.let_go(greeting, answer);
        }
    }

    fn let_go(&mut self, greeting: Greeting, why: &[u8]) {
        let _ = self.epoll.delete(&greeting.socket);
        self.part(greeting.socket, greeting.from, why);
    }

    /// Tells the client of a connection why it is closed, and closes it once it
    /// has read it.
    pub(super) fn part(&mut self, socket: OwnedFd, from: SocketAddr, why: &[u8]) {
        let greeting = Greeting::refused(socket, from, why, self.now);
        self.keep_greeting(greeting);
    }

    fn deny(&mut self, from: SocketAddr, flow: Option<Flow>, why: impl Into<Reason>) {
        let Reason { denial, ahead_ms } = why.into();
        self.take_note(&Denied {
            from,
            flow,
            carrier: Some(Carrier::Convert),
            denial,
            ahead_ms,
        });
    }

    /// Counts a denial, and tells of it.
    pub(super) fn take_note(&mut self, denied: &Denied) {
        self.counters.denied[denied.denial as usize].add(1);
        self.journal.deny(denied);
    }

    /// Takes a greeting off the table that does not ask for the flow which its SYN has
    /// heralded.
    fn dismiss(&mut self, key: u64) -> Option<Greeting> {
        self.unseat(key);
        let greeting = self.greetings.remove(key)?;
        self.forsake(greeting.herald);
        Some(greeting)
    }

    /// Who asked for a flow that is opening has something to say: that its client
    /// is proved; or it has gone.
    pub(super) fn on_asker_ready(&mut self, key: u64) {
        let Some(entry) = self.entries.get_mut(key) else {
            return;
        };
        let State::Opening(pending) = &mut entry.state else {
            return;
        };
        if pending.opening.proven() {
            return;
        }
        let Some(socket) = &entry.sockets[Side::Downstream] else {
            return;
        };
        let proof = &mut pending.proof;
        match read_whole(socket, |bytes| proof.feed(bytes)) {
            Ok(()) => self.on_proof(key),
            Err(Unheard::Incomplete) => {}
            Err(Unheard::Gone | Unheard::Reset | Unheard::Lost | Unheard::Wrong(_)) => {
                self.end(key, Outcome::ClientAbsent)
            }
        }
    }

    /// Closes greetings that have taken too long.
    pub(super) fn sweep_greetings(&mut self) {
        let now = self.now;
        let draining = self.drain_until.is_some();
        let over = self
            .greetings
            .iter()
            .filter(|(_, greeting)| greeting.until <= now || draining && greeting.is_hop());
        for key in over.map(|(key, _)| key).collect::<Vec<_>>() {
            let Some(greeting) = self.dismiss(key) else {
                continue;
            };
            if greeting.is_hop() {
                // In order: its dialer is to suspect nothing.
                let _ = sys::set_reset_on_close(&greeting.socket, false);
            } else if greeting.is_silent() && !draining {
                self.deny(greeting.from, None, Denial::Slow);
            }
        }
    }
}

/// Why an authentic request that was made then does not count. One that is fresh was there before, or
/// is as old as others that were forgotten for want of room.
fn untimely(made_ms: u64, now_ms: u64) -> Reason {
    if made_ms.abs_diff(now_ms) <= FRESH_MS {
        return Denial::Replay.into();
    }
    let millis = |ms: u64| i64::try_from(ms).unwrap_or(i64::MAX);
    Reason {
        denial: Denial::Clock,
        ahead_ms: Some(millis(made_ms).saturating_sub(millis(now_ms))),
    }
}

fn key_of(chains: &Chains, id: NodeId, key_id: u32) -> Option<Key> {
    let peer = &chains.peers[chains.peer(id)?];
    peer.key.clone().filter(|_| peer.key_id == key_id)
}

fn encoded(error: ConvertError) -> Vec<u8> {
    let fits = "an error is cut to what fits";
    Answer::failure(error).encode().expect(fits)
}
