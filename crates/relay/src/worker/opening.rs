// SPDX-License-Identifier: Apache-2.0
//! Carries out the [`Action`]s of a flow that is opening. Every event of such a flow goes through
//! [`Worker::drive`]; what follows from it is decided in [`crate::opening`].

use std::io;
use std::time::Duration;

use posthaste_wire::header::LoopGuard;
use posthaste_wire::hop::{Icmp, VALIDATED};
use posthaste_wire::proxy_v2;

use crate::accept_mode::AcceptMode;
use crate::chain::NextHop;
use crate::frame::Frame;
use crate::intercept::{Direction, Intercept};
use crate::opening::silence::{self, first_look};
use crate::opening::{Action, Actions, Blame, Hops, Opening};
use crate::outcome::Outcome;
use crate::relay::{Ready, Relay};
use crate::side::Side;
use crate::sys::{self, IcmpError};

use super::entry::{Entry, Pending, State, end_of};
use super::health::Standing;
use super::preface::{reply_of_icmp, send, send_before_bytes};
use super::replay::{Fallback, Held, Kept};
use super::reroute::seen_of;
use super::upstream::connect_error;
use super::{Worker, interest_of};

/// A connection that is known to be open, and nothing more.
pub(super) const OPEN: Ready = Ready {
    readable: true,
    writable: true,
    failed: false,
    urgent: false,
    ending: false,
    edge_triggered: false,
};

impl Entry {
    /// The client's SYN, if the flow is opening and it was captured.
    fn syn(&mut self) -> Option<&Frame> {
        self.pending()?.syn.as_ref()
    }

    /// Closes the upstream socket, and forgets the hop to the next node.
    pub(super) fn close_upstream(&mut self) {
        let stream = self.preface.as_ref();
        if let Some(stream) = stream.and_then(|preface| preface.streams[Side::Upstream].as_ref()) {
            // The flow takes another hop, over which all of it is sent.
            stream.abandon();
        }
        self.forget_upstream();
        if let Some(preface) = &mut self.preface {
            preface.forget_hop();
        }
    }

    fn send_validated(&self) -> io::Result<()> {
        let upstream = self.end(Side::Upstream);
        upstream.map_or(Ok(()), |end| send(&end, &VALIDATED))
    }

    /// Lets the upstream socket retransmit its SYN at most once.
    fn restrain(&self) {
        if let Some(socket) = &self.sockets[Side::Upstream] {
            // If it fails, the SYN is retransmitted as by any host.
            let _ = sys::set_impatient(socket, true);
        }
    }

    /// An ICMP error as the client gets it. A node that found no route names no sender; for those
    /// before it the destination is unreachable all the same.
    fn error_of(&self, icmp: Icmp) -> IcmpError {
        IcmpError {
            offender: icmp.offender.unwrap_or_else(|| self.flow.server().ip()),
            kind: icmp.kind,
            code: icmp.code,
        }
    }

    /// Keeps the network's error for the request that may follow.
    fn keep_error(&mut self, icmp: Icmp) {
        let reply = reply_of_icmp(self.error_of(icmp));
        if let Some(preface) = &mut self.preface {
            preface.failed = Some(reply);
        }
    }

    /// A hop over a stream is taken again by TCP, before any other; one that was open before by a new
    /// connection, if there is no other or `only` that hop is gone.
    fn take_again(&mut self, only: bool) {
        let Some(preface) = self.preface.as_deref_mut() else {
            return;
        };
        let Some(via) = preface.via.filter(|_| preface.is_warm) else {
            return;
        };
        let is_stream = preface.streams[Side::Upstream].is_some();
        let hops = match &mut self.state {
            State::Opening(pending) => Some(&mut pending.opening.hops),
            State::Open(_) => preface
                .fallback
                .as_deref_mut()
                .map(|fallback| &mut fallback.hops),
        };
        if let Some(hops) = hops.filter(|hops| only || is_stream || hops.is_empty()) {
            hops.retry_cold(NextHop::Hop(via), false);
        }
    }

    /// Whether the next node has yet to reply.
    fn awaits_reply(&self) -> bool {
        let preface = self.preface.as_deref();
        preface.is_some_and(|preface| preface.expecting.is_some())
    }

    /// Begins the relay of an opening flow, and keeps what the flow needs to take another route.
    /// Returns whether it had a relay before.
    fn open_relay(&mut self, held: &Held, now: Duration) -> bool {
        let Some(pending) = self.pending() else {
            return false;
        };
        let kept = pending.kept.take();
        let hops = std::mem::take(&mut pending.opening.hops);
        let is_again = kept.is_some();
        let first = kept.as_ref().and_then(Kept::bytes).unwrap_or_default();
        self.state = State::Open(Relay::with_first(now, first.into()));
        if let Some(preface) = &mut self.preface
            && preface.expecting.is_some()
        {
            let fallback = Fallback {
                hops,
                kept: kept.unwrap_or_else(|| Kept::new(held)),
            };
            // A hop that was open before may be taken again, also where another node chose it.
            let may_go_on = preface.is_warm || fallback.can_go_on(true);
            preface.fallback = may_go_on.then(|| Box::new(fallback));
        }
        is_again
    }

    /// Records whether the client had sent bytes before the relay was open. If none of them carried
    /// the ACK of the upstream handshake, it is sent now: the server may be the one to send first.
    fn after_first_turn(&mut self) {
        let State::Open(relay) = &self.state else {
            return;
        };
        self.prompt = relay.moved_from(Side::Downstream) > 0;
        if let (false, Some(upstream)) = (self.prompt, &self.sockets[Side::Upstream]) {
            // Best effort: the kernel sends it after a delay.
            let _ = sys::set_quick_ack(upstream, true);
        }
    }

    /// Replies to the requester, if there is one, that the server has answered.
    ///
    /// # Errors
    /// As [`send_before_bytes`].
    pub(super) fn answer(&mut self) -> io::Result<()> {
        let preface = self.preface.as_deref_mut();
        let downstream = end_of(&self.sockets, preface.as_deref(), Side::Downstream);
        match (downstream, preface) {
            (Some(downstream), Some(preface)) => {
                preface.answer(&downstream, self.sockets[Side::Upstream].as_ref())
            }
            _ => Ok(()),
        }
    }

    /// Sends what each end must receive before the bytes of the other.
    fn send_prefaces(&mut self) -> io::Result<()> {
        // Over a chain the last node sends it: the server must read it first, and once.
        if !self.is_hopping() {
            send_proxy_header(self)?;
        }
        // The next node's reply decides the answer, and is passed on when it arrives.
        if self.awaits_reply() {
            return Ok(());
        }
        self.answer()
    }
}

impl<I: Intercept> Worker<I> {
    /// What remains of a flow that is opening.
    pub(super) fn pending(&mut self, key: u64) -> Option<&mut Pending> {
        self.entries.live_mut(key)?.pending()
    }

    /// Passes an event to a flow that is opening, and carries out what follows.
    pub(super) fn drive(
        &mut self,
        key: u64,
        event: impl FnOnce(&mut Opening, Duration) -> Actions,
    ) {
        self.drive_when(key, OPEN, event);
    }

    /// As [`Self::drive`]; `ready` is the readiness of the upstream socket, if the flow is joined.
    pub(super) fn drive_when(
        &mut self,
        key: u64,
        ready: Ready,
        event: impl FnOnce(&mut Opening, Duration) -> Actions,
    ) {
        let now = self.now;
        if let Some(pending) = self.pending(key) {
            let actions = event(&mut pending.opening, now);
            self.carry_out_all(key, actions, ready);
        }
    }

    /// Carries out actions in their order, until the flow has ended.
    pub(super) fn carry_out_all(&mut self, key: u64, actions: Actions, ready: Ready) {
        // An action may end the flow, or drive it on: so it is looked up anew for each.
        for action in actions {
            let Some(entry) = self.entries.get_mut(key) else {
                return;
            };
            match action {
                Action::Begin => self.begin_upstream(key),
                Action::Try => self.try_next(key),
                Action::Close => entry.close_upstream(),
                Action::LetIn(frame) => self.inject(frame.completed(), Direction::In),
                Action::ResetServer(frame) => self.inject(frame.reset(), Direction::Out),
                Action::Admit => self.admit_client(key),
                Action::Answer => {
                    if entry.answer().is_err() {
                        self.end(key, Outcome::Internal);
                    }
                }
                Action::SendValidated => {
                    if entry.send_validated().is_err() {
                        return self.on_hop_gone(key);
                    }
                }
                Action::Join => self.join(key, ready),
                Action::Release => self.validate(key),
                Action::ReleaseUpstream => self.release_upstream(key),
                Action::Restrain => entry.restrain(),
                Action::GiveUp { unsent } => self.give_up(key, unsent),
                Action::ResetClient => {
                    let reset = entry.syn().and_then(Frame::reset);
                    self.inject(reset, Direction::Out);
                }
                Action::SendUnreachable(icmp) => {
                    let error = entry.error_of(icmp);
                    let answer = entry.syn().and_then(|syn| syn.unreachable(error));
                    self.inject(answer, Direction::Out);
                }
                Action::PassOn => self.forward_held(key),
                Action::PassLater => self.forward_later(key),
                Action::Leave => self.leave_hop(key),
                Action::Redial => self.redial(key),
                Action::Reroute { repeat, outcome } => {
                    if !self.reroute(key, repeat) {
                        self.end_with(key, outcome, None);
                    }
                }
                Action::Refuse(outcome, error) => {
                    let error = error.map(|icmp| entry.error_of(icmp));
                    self.end_with(key, outcome, error);
                }
                Action::End(outcome) => self.end(key, outcome),
                action => self.record_action(key, action),
            }
        }
    }

    /// The hop turns out to be gone before a byte of the flow has left: what was to be done with it is
    /// not.
    fn on_hop_gone(&mut self, key: u64) {
        let preface = self
            .entries
            .live(key)
            .and_then(|entry| entry.preface.as_deref());
        if preface.is_some_and(|preface| preface.expecting.is_some()) {
            return self.drive(key, |opening, now| opening.on_reply(None, now));
        }
        // The server has answered over it, and its connection ends with the hop.
        self.end_with(key, Outcome::HopFailed, None);
    }

    /// Carries out what changes the worker's records, and no connection.
    fn record_action(&mut self, key: u64, action: Action) {
        match action {
            Action::AwaitReply => self.await_reply(key),
            Action::LookAt(due) => self.look_again(key, due),
            Action::Report(report) => self.on_report(report),
            Action::HopFailed => self.counters.hops_failed.add(1),
            Action::SynOptionIgnored(peer) => {
                self.counters.syn_options_ignored.add(1);
                self.syn_options.note(peer, false, self.now);
            }
            Action::UplinkSilent => self.leave_uplink(key),
            Action::Unanswered => self.count_unanswered(key),
            Action::Failed(outcome, blame) => self.record_failure(key, outcome, blame),
            Action::KeepError(icmp) => {
                if let Some(entry) = self.entries.live_mut(key) {
                    entry.keep_error(icmp);
                }
            }
            Action::TrialWorked => self.on_validated_trial(),
            Action::TrialFailed(outcome) => self.on_unanswered_trial(key, outcome),
            Action::CheckTrial => self.check_trial(key),
            Action::TrialUndelivered => self.on_undelivered_trial(key),
            _ => {}
        }
    }

    /// Selects the next hops, and sends the upstream SYN.
    fn begin_upstream(&mut self, key: u64) {
        let patience = self.trial_patience(key);
        let Some(entry) = self.entries.live(key) else {
            return;
        };
        let hops = self.select_next_hops(entry);
        self.drive(key, |opening, now| opening.on_begin(hops, patience, now));
    }

    /// The server has answered: admits the client's held SYN.
    fn admit_client(&mut self, key: u64) {
        let Some(pending) = self.pending(key) else {
            return;
        };
        // The program holds a SYN by its entry: it must be changed before the SYN is injected.
        let half_open = pending.opening.half_open;
        let syn = pending.syn.as_ref().and_then(Frame::completed);
        if let Some((flow, half_open)) = half_open
            && self.intercept.admit(&flow, half_open).is_ok()
        {
            self.inject(syn, Direction::In);
        }
    }

    /// Forwards the SYN of an opening flow, and leaves its half-open entry to expire.
    pub(super) fn forward_held(&mut self, key: u64) {
        let Some(pending) = self.pending(key) else {
            return;
        };
        let half_open = pending.opening.half_open.take();
        if let (Some(syn), Some((flow, half_open))) = (pending.syn.take(), half_open) {
            self.pass_on(&flow, &syn, half_open);
        }
    }

    /// Forwards later SYNs of a held flow: its server has not answered this node.
    fn forward_later(&mut self, key: u64) {
        // The list of forwarded SYNs is in the order of their expiry.
        let until = self.now + self.rules.policy.half_open.expiry;
        let Some(pending) = self.pending(key) else {
            return;
        };
        if let Some((flow, half_open)) = pending.opening.half_open.take()
            && self.intercept.pass(&flow, half_open).is_ok()
        {
            self.counters.syns_forwarded.add(1);
            self.passed.push_back((until, flow, half_open));
        }
    }

    /// Records a server that failed.
    fn record_failure(&mut self, key: u64, outcome: Outcome, blame: Blame) {
        if outcome == Outcome::Internal {
            self.starve();
        }
        let Some(entry) = self.entries.live(key) else {
            return;
        };
        let flow = entry.flow;
        // A flow of an early rule may have opened late, and then no SYN-ACK could be held either.
        let yields = entry.accept.becomes_strict()
            || entry.accept == AcceptMode::LATE && entry.rule.rule.accept.becomes_strict();
        // A failure of this host shows nothing about the server.
        if yields && blame == Blame::Them {
            let period = self.rules.policy.strict_after_failure;
            self.intercept.record_failure(&flow, period);
        }
        // A refusal is an answer: packets pass in both directions.
        if entry.is_observed() && outcome != Outcome::UpstreamRefused {
            self.intercept.record_no_answer(&flow);
        }
    }

    /// The client of a flow is validated, whatever happened to the restrained connection.
    pub(super) fn lift_restraint(&mut self, key: u64) {
        let Some(entry) = self.entries.live_mut(key) else {
            return;
        };
        let is_restrained = entry
            .pending()
            .is_some_and(|pending| pending.opening.take_restraint());
        let socket = entry.sockets[Side::Upstream].as_ref();
        let Some(socket) = socket.filter(|_| is_restrained) else {
            return;
        };
        let released = sys::set_impatient(socket, false);
        // The kernel may have given the connection up between its last retransmission and now.
        let over = connect_error(socket).or_else(|| released.err());
        if over.is_some_and(|error| error.raw_os_error() == Some(libc::ETIMEDOUT)) {
            self.drive(key, |opening, _| opening.withdraw());
        }
    }

    /// The server did not answer, or was never reached.
    fn give_up(&mut self, key: u64, unsent: bool) {
        let code = if unsent {
            libc::EHOSTUNREACH
        } else {
            libc::ETIMEDOUT
        };
        self.on_upstream_failed(key, &io::Error::from_raw_os_error(code), Blame::Them);
    }

    /// The next node has the request: it must reply.
    fn await_reply(&mut self, key: u64) {
        let now = self.now;
        if let Some(entry) = self.entries.live_mut(key)
            && let Some(preface) = &mut entry.preface
        {
            preface.waits_since = Some(now);
        }
        self.look_again(key, first_look(now));
    }

    /// The deadline of an opening flow has passed.
    pub(super) fn on_opening_time(&mut self, key: u64) {
        let entry = self.entries.live(key);
        let upstream = entry.and_then(|entry| entry.sockets[Side::Upstream].as_ref());
        // The kernel reports an unanswered neighbour to the client's address, not to this socket.
        let unsent = upstream.is_some_and(sys::syn_unsent);
        self.drive(key, |opening, now| opening.on_time(unsent, now));
    }

    /// Checks a flow that waits for the next node.
    pub(super) fn look_at_hop(&mut self, key: u64) {
        let now = self.now;
        let Some(entry) = self.entries.live_mut(key) else {
            return;
        };
        let pending = entry.pending();
        if pending.is_some_and(|pending| pending.opening.is_hop_late(now)) {
            return self.drive(key, |opening, _| opening.on_hop_late());
        }
        let preface = entry.preface.as_deref();
        let peer = preface
            .and_then(|preface| preface.via)
            .and_then(|via| self.rules.chains().peer(via.peer));
        let alive_at = match (&self.warm, peer) {
            (Some(warm), Some(peer)) => warm.received(peer),
            _ => Duration::ZERO,
        };
        // Queries the kernel, so only for flows whose reply is overdue.
        if let Some(preface) = &mut entry.preface {
            preface.note_alive(alive_at, entry.sockets[Side::Upstream].as_ref());
        }
        if let Some((via, since, seen)) = seen_of(entry) {
            let actions = silence::on_look(via, since, now, seen);
            self.carry_out_all(key, actions, OPEN);
        }
    }

    /// Leaves a hop over which no byte of the flow was sent.
    fn leave_hop(&mut self, key: u64) {
        let Some(entry) = self.entries.live_mut(key) else {
            return;
        };
        entry.take_again(false);
        if !entry.is_open() {
            self.drive(key, |opening, _| opening.on_hop_silent());
        } else if !self.reroute(key, false) {
            self.end_with(key, Outcome::HopFailed, None);
        }
    }

    /// Takes the hop of a relay once more, by a new connection: that hop was open before, and is gone.
    fn redial(&mut self, key: u64) {
        let Some(entry) = self.entries.live_mut(key) else {
            return;
        };
        entry.take_again(true);
        if !self.reroute(key, false) {
            self.end_with(key, Outcome::HopFailed, None);
        }
    }

    /// Releases the half-open entry of the upstream tuple.
    fn release_upstream(&mut self, key: u64) {
        let Some(pending) = self.pending(key) else {
            return;
        };
        if let Some((flow, half_open)) = pending.opening.upstream_half_open.take() {
            self.intercept.release_if_unchanged(&flow, half_open);
            self.opening.remove(&flow);
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
        let counted = pending.opening.counted.take();
        let client = pending.opening.half_open.take();
        let upstream = pending.opening.upstream_half_open.take();
        for (reserved, half_open) in [client, upstream].into_iter().flatten() {
            if is_validated {
                self.intercept.release_half_open(&reserved, half_open);
            } else {
                // Another SYN may have reused the tuple, here or at another worker.
                self.intercept.release_if_unchanged(&reserved, half_open);
            }
            self.opening.remove(&reserved);
        }
        // The client's tuple may be another flow's by now, after its entry was passed on.
        if self.opening.get(&flow) == Some(&key) {
            self.opening.remove(&flow);
        }
        if let Some(prefix) = counted {
            self.uncount(prefix);
        }
    }

    /// Selects the next hops of a flow that begins here.
    pub(super) fn select_next_hops(&self, entry: &Entry) -> Hops {
        let chains = self.rules.chains();
        let me = chains.me.filter(|_| !chains.is_client);
        let guard = me.and_then(|me| match entry.hop_limit() {
            Some(hops) => LoopGuard::with_ttl(me, hops),
            None => Some(LoopGuard::new(me)),
        });
        // A plain connection of a peer's is the end of a chain, and a flow whose TTL leaves no
        // guard may be in a loop of such.
        let ends = chains.is_peer(entry.flow.client().ip()) || me.is_some() && guard.is_none();
        let next_hops = if ends {
            vec![NextHop::Direct]
        } else {
            chains.next_hops(&entry.flow, entry.rule.rule.transfer_bytes)
        };
        Hops::new(next_hops, guard)
    }

    /// Opens the upstream side by the best next hop that is left.
    pub(super) fn try_next(&mut self, key: u64) {
        let standing = Standing {
            health: &self.health,
            warm: self.warm.as_ref(),
            chains: self.rules.chains(),
            black_holes: &self.black_holes,
            now: self.now,
        };
        let pending = self.entries.live_mut(key).and_then(Entry::pending);
        let Some(pending) = pending else {
            return;
        };
        let trust = |next_hop: &NextHop| standing.trust(next_hop);
        let Some(order) = pending.opening.next_hop(trust, self.now) else {
            return self.drive(key, |opening, _| opening.on_exhausted());
        };
        self.try_out(&order.hop);
        let NextHop::Hop(via) = order.hop else {
            return self.open_direct(key);
        };
        match self.open_hop(key, via, order) {
            Ok(sent) => self.drive(key, |opening, now| {
                opening.on_hop_opened(via, order, sent, now)
            }),
            Err(report) => self.drive(key, |opening, _| opening.on_hop_unopened(report)),
        }
    }

    /// Joins two open connections into a relay. `upstream` is the known readiness of the upstream
    /// socket. The downstream socket reports its own when it is first watched, but is tried at
    /// once, since most clients have sent bytes by now.
    pub(super) fn join(&mut self, key: u64, upstream: Ready) {
        // Before the first byte: the whole initial window may leave in the first turn.
        self.begin_pace(key);
        let Some(entry) = self.entries.live_mut(key) else {
            return;
        };
        if entry.send_prefaces().is_err() {
            return self.end(key, Outcome::Internal);
        }
        let is_again = entry.open_relay(&self.held, self.now);
        entry.watch_for_silence(self.now);
        // Watched since its request, or while it was joined with another hop.
        let is_watched = entry.is_requested() || is_again;
        let interest = interest_of(key, Side::Downstream);
        let watched = match &entry.sockets[Side::Downstream] {
            Some(socket) => is_watched || self.epoll.add(socket, interest).is_ok(),
            // A stream reports its events by itself.
            None => entry.end(Side::Downstream).is_some(),
        };
        if !watched {
            return self.end(key, Outcome::Internal);
        }
        let ready = Ready {
            // Otherwise earlier events may have been consumed.
            edge_triggered: !is_watched,
            ..OPEN
        };
        self.advance_with(
            key,
            &[(Side::Upstream, upstream), (Side::Downstream, ready)],
        );
        // It may have ended in its first turn.
        if let Some(entry) = self.entries.get_mut(key) {
            entry.after_first_turn();
        }
    }
}

/// Sends the server the PROXY protocol header before any byte of the client.
fn send_proxy_header(entry: &Entry) -> io::Result<()> {
    let upstream = entry.sockets[Side::Upstream].as_ref();
    let Some(upstream) = upstream.filter(|_| entry.rule.rule.proxy_protocol) else {
        return Ok(());
    };
    let mut header = Vec::new();
    proxy_v2::encode(entry.flow.client(), entry.flow.server(), &mut header);
    send_before_bytes(&upstream.into(), &header)
}
