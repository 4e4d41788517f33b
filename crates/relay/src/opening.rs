// SPDX-License-Identifier: Apache-2.0
//! A flow before it is a relay: its handshakes, its next hops and the attempts at them, its
//! half-open entries and its deadlines.
//!
//! # Theory of operation
//!
//! Two things happen in any order, see [`Handshakes`]: the client is validated, and the server
//! answers. The way to the server is the best of the [`Hops`] that are left:
//!
//! ```text
//! Waiting --begin--> Trying --connect--> Direct ------- SYN-ACK, connected ------> Joined
//!    ^                 ^ |                  |
//!    |                 | '--request--> Attempt --accepted--> Connected --reply--> Joined
//!    |                 |                  |                      |
//!    '--- withdraw     '----- failed, late, silent, refused -----'
//! ```
//!
//! A direct connection of a client that stays unvalidated is withdrawn, and made again at the
//! validation. A warm hop that turns out to be gone is tried again cold, and a SYN with an option
//! that the next node rejects is sent again without. A flow that is joined before the next node has
//! replied keeps its [`Hops`], and returns to `Trying` if no byte of it has arrived.
//!
//! No I/O, no clock. An event comes in as `on_*`, with the time; the worker carries out the
//! [`Actions`] that it returns, in their order, and reports the results as further events.

mod actions;
mod handshakes;
mod hops;
pub(crate) mod silence;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

use std::time::Duration;

use posthaste_wire::hop::{Icmp, Reply};

use crate::accept_mode::AcceptMode;
use crate::chain::{NextHop, Path};
use crate::flow::Flow;
use crate::frame::Frame;
use crate::intercept::HalfOpen;
use crate::outcome::Outcome;

pub(crate) use actions::{Action, Actions, Blame, Joined};
pub(crate) use handshakes::Handshakes;
use handshakes::{OnFailure, OnMeeting, OnRequest, OnSynAck};
pub(crate) use hops::{
    Hops, Origin, Report, Try, is_of_all_flows, is_of_hop, outcome_of, reply_of,
};

/// Interval of the checks whether an upstream SYN has left this host.
const LOOK: Duration = Duration::from_secs(1);
/// How long the next node may take to accept a connection before another next hop is tried, if
/// there is one: its first SYN and a retransmission take no longer.
const ACCEPT_MAX: Duration = Duration::from_millis(1500);
/// How long a client may stay unvalidated until its upstream connection is restrained. The sweep
/// covers openings every quarter of a second, and within a second when there are very many: before
/// the kernel's first retransmission, or at least before its second, one and two seconds after the
/// SYN.
const UNVALIDATED_MAX: Duration = Duration::from_millis(700);
/// How long this host may take to answer the SYN of a trial that is delivered to it.
const DELIVERY: Duration = Duration::from_millis(50);

/// The time limits of an opening, by its rule and the policy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// For the server's answer, from the upstream SYN.
    pub(crate) connect: Duration,
    /// For the client's handshake.
    pub(crate) expiry: Duration,
}

/// How a flow arrived at this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// Its packets cross this host, or it came to a listener with a fixed destination.
    Plain,
    /// A SYN option of a peer announced it; the request has not arrived.
    SynOption,
    /// A peer sent a request.
    Peer,
    /// A client of RFC 8803 sent a request.
    Convert,
}

impl Arrival {
    /// Whether the request at an explicit listener, or its announcement, names the flow.
    fn is_requested(self) -> bool {
        self != Self::Plain
    }

    /// Whether a request waits for a reply.
    fn expects_reply(self) -> bool {
        matches!(self, Self::Peer | Self::Convert)
    }

    /// Where the flow began.
    pub(crate) fn origin(self) -> Origin {
        match self {
            Self::SynOption | Self::Peer => Origin::Peer,
            Self::Plain | Self::Convert => Origin::Here,
        }
    }
}

/// A hop to the next node that has no reply yet.
#[derive(Clone, Copy, Debug)]
struct Attempt {
    via: Path,
    sent: Sent,
    /// Whether the node rejected a SYN with an option before.
    without_syn_option: bool,
    /// Whether the node has accepted the connection.
    is_connected: bool,
    /// When the node must have accepted it.
    accept_by: Duration,
}

/// What a hop was opened with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// The request went over a hop that was open.
    Warm,
    /// A SYN; the request is in it or follows.
    Cold,
    /// A SYN with an option; the request follows.
    SynOption,
}

/// The half-open entries of a flow. Each is released once, by whoever takes it from here.
#[derive(Debug, Default)]
pub(crate) struct HalfOpens {
    /// That of the client's SYN.
    pub(crate) client: Option<(Flow, HalfOpen)>,
    /// That of the upstream socket, where its tuple differs.
    pub(crate) upstream: Option<(Flow, HalfOpen)>,
    /// The client prefix whose budget the flow counts against.
    pub(crate) counted: Option<[u8; 8]>,
}

impl HalfOpens {
    /// Whether a tuple has an entry.
    fn has(&self, flow: &Flow) -> bool {
        let entries = [&self.client, &self.upstream];
        entries.into_iter().flatten().any(|(of, _)| of == flow)
    }

    /// Drops an entry that belongs to a later SYN by now.
    fn forget(&mut self, flow: &Flow) {
        for entry in [&mut self.client, &mut self.upstream] {
            entry.take_if(|(of, _)| of == flow);
        }
    }
}

/// A flow that is not a relay yet.
#[derive(Debug)]
pub(crate) struct Opening {
    handshakes: Handshakes,
    pub(crate) hops: Hops,
    attempt: Option<Attempt>,
    /// Whether the current or last request said that the client is not validated.
    owes_validation: bool,
    /// Its half-open entries, which the worker releases.
    pub(crate) half_opens: HalfOpens,
    mode: AcceptMode,
    arrival: Arrival,
    limits: Limits,
    /// When the upstream SYN was sent.
    connecting: Duration,
    /// When the server's answer is due.
    connect_by: Duration,
    /// When the client's validation is due.
    validate_by: Duration,
    /// When to check whether the upstream SYN has left this host.
    look_at: Duration,
    /// Whether an upstream SYN or a request to the next node was sent, and not withdrawn.
    is_begun: bool,
    /// Whether its SYN is retransmitted at most once while the client is not validated.
    is_restrained: bool,
    /// Whether it is the first to be relayed after a similar flow was observed; it falls back to
    /// forwarding if it gets no answer.
    pub(crate) is_trial: bool,
}

impl Opening {
    /// A flow of a mode that begins at `now`.
    pub(crate) fn new(mode: AcceptMode, arrival: Arrival, limits: Limits, now: Duration) -> Self {
        let handshakes = match arrival {
            // Its sender waits for nothing until its request arrives, so there is nothing to hold.
            Arrival::SynOption => Handshakes::unvalidated(),
            Arrival::Plain | Arrival::Peer | Arrival::Convert => mode.open(),
        };
        Self {
            handshakes,
            hops: Hops::default(),
            attempt: None,
            owes_validation: false,
            half_opens: HalfOpens::default(),
            mode,
            arrival,
            limits,
            connecting: now,
            connect_by: now + limits.connect,
            validate_by: now + limits.expiry,
            look_at: now + LOOK,
            is_begun: false,
            is_restrained: false,
            is_trial: false,
        }
    }

    /// A flow that was joined and leaves its hop: its client is validated.
    pub(crate) fn again(mut self, mut hops: Hops) -> Self {
        hops.leave();
        self.handshakes = Handshakes::validated();
        self.with_hops(hops)
    }

    /// With the next hops that its request named, which are tried at once.
    pub(crate) fn with_hops(mut self, hops: Hops) -> Self {
        self.hops = hops;
        self.is_begun = true;
        self
    }

    /// Whether the client's handshake is complete.
    pub(crate) fn is_validated(&self) -> bool {
        self.handshakes.is_validated()
    }

    /// Whether the client's SYN is held.
    pub(crate) fn is_held(&self) -> bool {
        self.handshakes.is_held()
    }

    /// Whether the upstream SYN is not sent yet, or was withdrawn or put off.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.is_begun
    }

    /// The time from the upstream SYN to `now`.
    pub(crate) fn since_connect(&self, now: Duration) -> Duration {
        now.saturating_sub(self.connecting)
    }

    /// Whether it waits for the next node.
    pub(crate) fn is_hopping(&self) -> bool {
        self.attempt.is_some()
    }

    /// Whether the hop to the next node was opened for this flow.
    pub(crate) fn has_cold_hop(&self) -> bool {
        self.attempt
            .is_some_and(|attempt| attempt.sent != Sent::Warm)
    }

    /// Whether it waits for the next node to accept its connection.
    pub(crate) fn awaits_acceptance(&self) -> bool {
        self.attempt.is_some_and(|attempt| !attempt.is_connected)
    }

    /// Whether an upstream tuple needs a half-open entry of its own: its SYN-ACK may arrive while
    /// the client is unvalidated.
    pub(crate) fn needs_half_open(&self, flow: &Flow) -> bool {
        !self.is_validated() && !self.half_opens.has(flow)
    }

    /// When to check it next.
    pub(crate) fn deadline(&self) -> Duration {
        let limit = if self.handshakes.awaits_server() {
            self.limit().min(self.look_at)
        } else {
            self.limit()
        };
        let hop = self.attempt.filter(|attempt| !attempt.is_connected);
        let hop = hop.map(|attempt| attempt.accept_by);
        let due = [hop, self.restrain_at()].into_iter().flatten();
        due.fold(limit, Duration::min)
    }

    /// When the opening times out.
    fn limit(&self) -> Duration {
        if self.is_validated() || self.is_held() {
            self.connect_by
        } else {
            self.validate_by
        }
    }

    /// When to restrain its upstream connection, if that is pending.
    fn restrain_at(&self) -> Option<Duration> {
        let due = self.is_begun && !self.is_restrained && !self.is_validated();
        due.then_some(self.connecting + UNVALIDATED_MAX)
    }

    /// The upstream SYN is due: `hops` are the next hops of the policy. A trial waits for its
    /// server for `patience` at most.
    pub(crate) fn on_begin(&mut self, hops: Hops, patience: Duration, now: Duration) -> Actions {
        self.connecting = now;
        self.connect_by = now + self.limits.connect.min(patience);
        self.look_at = now + LOOK;
        self.is_begun = true;
        if self.arrival.is_requested() {
            // The request chose the route. Only a direct connection is ever withdrawn, never a hop.
            let hops = Hops::new(vec![NextHop::Direct], self.hops.guard);
            self.hops.select(hops);
        } else {
            // Anew: a next hop was taken off the list before the flow was put off.
            self.hops.select(hops);
        }
        Action::Try.into()
    }

    /// The next hop to try now, with what `is_up` says of each. `None` if all have failed.
    pub(crate) fn next_hop(
        &mut self,
        is_up: impl Fn(&NextHop) -> bool,
        now: Duration,
    ) -> Option<Try> {
        let order = self.hops.take(is_up)?;
        // Each attempt has the full time: the former one may have used up its own.
        (self.connecting, self.is_restrained) = (now, false);
        Some(order)
    }

    /// No next hop is left.
    pub(crate) fn on_exhausted(&mut self) -> Actions {
        self.on_failed(Outcome::HopFailed, None, Blame::Us)
    }

    /// A hop to the next node was opened as `order` said.
    pub(crate) fn on_hop_opened(
        &mut self,
        via: Path,
        order: Try,
        sent: Sent,
        now: Duration,
    ) -> Actions {
        // Anew for each node, or the last candidate would have no time left.
        self.connect_by = now + self.limits.connect;
        let is_of_peer = self.arrival.origin() == Origin::Peer;
        if !is_of_peer {
            self.hops.note(order.hop);
        }
        // A peer may have another route, so it must learn of the failure soon.
        let accept_by = if self.hops.is_empty() && !is_of_peer {
            self.connect_by
        } else {
            self.connect_by.min(now + ACCEPT_MAX)
        };
        self.owes_validation = !self.is_validated();
        let is_warm = sent == Sent::Warm;
        self.attempt = Some(Attempt {
            via,
            sent,
            without_syn_option: order.without_syn_option,
            is_connected: is_warm,
            accept_by,
        });
        if is_warm {
            Actions::from(Action::AwaitReply).and(self.meet())
        } else {
            Action::LookAt(accept_by).into()
        }
    }

    /// No hop to the next node could be opened; `report` says whether the node is to blame.
    pub(crate) fn on_hop_unopened(&mut self, report: Option<Report>) -> Actions {
        Actions::from(report.map(Action::Report)).push(Action::Try)
    }

    /// The budget has no room for the half-open entry of the upstream tuple. The upstream SYN of an
    /// early flow is sent when the client is validated, as in late mode, and that of a flow from a
    /// SYN option when its request arrives. Returns whether the flow waits for that.
    pub(crate) fn put_off(&mut self) -> bool {
        let waits = self.mode.overlaps_handshakes() || self.arrival == Arrival::SynOption;
        self.is_begun &= !waits;
        waits
    }

    /// The next node has accepted the connection and has the request.
    pub(crate) fn on_hop_accepted(&mut self) -> Actions {
        let Some(attempt) = &mut self.attempt else {
            return Actions::default();
        };
        attempt.is_connected = true;
        let ignored = attempt
            .without_syn_option
            .then_some(Action::SynOptionIgnored(attempt.via.peer));
        let actions = Actions::from(ignored).push(Action::AwaitReply);
        actions.and(self.meet())
    }

    /// The next node did not accept the connection. If it rejected a SYN with an option, that may
    /// be why.
    pub(crate) fn on_hop_unaccepted(&mut self, is_rejected: bool) -> Actions {
        match self.attempt {
            // Some firewalls answer unknown options with a reset.
            Some(attempt) if is_rejected && attempt.sent == Sent::SynOption => {
                self.attempt = None;
                self.hops.retry_cold(NextHop::Hop(attempt.via), true);
                Actions::from(Action::Close).push(Action::Try)
            }
            _ => self.on_hop_failed(None),
        }
    }

    /// The next node has replied, or its connection has ended without a reply (`None`).
    pub(crate) fn on_reply(&mut self, reply: Option<Reply>, now: Duration) -> Actions {
        let (Some(Reply::Connected), Some(attempt)) = (reply, self.attempt) else {
            return self.on_hop_failed(reply);
        };
        let actions = Actions::from(Action::Report(Report::Connected(attempt.via)));
        if self.handshakes.on_connected() == OnMeeting::Admit {
            return actions.push(self.admit(now));
        }
        actions
    }

    /// The next node did not connect the flow: it sent a reply about itself or the server, or none.
    fn on_hop_failed(&mut self, reply: Option<Reply>) -> Actions {
        let actions = Actions::from(Action::Close);
        let (is_lost, reply) = (reply.is_none(), reply.unwrap_or(Reply::Failed));
        let attempt = self.attempt.take().filter(|_| is_of_hop(reply));
        if let Some(attempt) = attempt {
            let hop = NextHop::Hop(attempt.via);
            if is_lost && attempt.sent == Sent::Warm {
                // It may have been gone for long: that says nothing about the node.
                self.hops.retry_cold(hop, false);
                return actions.push(Action::Try);
            }
            let origin = self.arrival.origin();
            let report = match is_lost {
                true if attempt.is_connected => Report::Reset(attempt.via, origin),
                true => Report::Unreached(attempt.via.peer),
                false => Report::Replied(reply, attempt.via, origin),
            };
            let actions = actions.push(Action::HopFailed).push(Action::Report(report));
            if self.hops.lead_on_after((!is_lost).then_some(reply)) {
                return actions.push(Action::Try);
            }
            return actions.and(self.on_reply_failed(reply));
        }
        actions.and(self.on_reply_failed(reply))
    }

    fn on_reply_failed(&mut self, reply: Reply) -> Actions {
        let error = match reply {
            Reply::Unreachable(icmp) => Some(icmp),
            _ => None,
        };
        // A destination is not to blame for a node.
        let blame = if is_of_hop(reply) {
            Blame::Us
        } else {
            Blame::Them
        };
        self.on_failed(outcome_of(reply), error, blame)
    }

    /// The next node was silent for too long about a flow of which no byte has arrived.
    pub(crate) fn on_hop_silent(&mut self) -> Actions {
        self.attempt = None;
        let actions = Actions::from(Action::Close);
        // No blame for the destination: no node has sent anything about it.
        if self.hops.is_empty() {
            actions.and(self.on_exhausted())
        } else {
            actions.push(Action::Try)
        }
    }

    /// The server's SYN-ACK arrived, and the network has dropped it.
    pub(crate) fn on_syn_ack(&mut self, frame: Frame, now: Duration) -> Actions {
        match self.handshakes.on_syn_ack(frame) {
            OnSynAck::Keep => Actions::default(),
            OnSynAck::Admit => self.admit(now).into(),
            OnSynAck::LetIn(frame) => Action::LetIn(frame).into(),
        }
    }

    /// The server has answered: the held client may continue.
    fn admit(&mut self, now: Duration) -> Action {
        self.validate_by = now + self.limits.expiry;
        if self.is_trial {
            self.validate_by = now + DELIVERY;
            // The server answered within the short limit of a trial. From here on its handshake has
            // the usual time, or a busy worker would reset a client that it has accepted.
            self.connect_by = self.connecting + self.limits.connect;
        }
        if self.arrival.expects_reply() {
            Action::Answer
        } else {
            Action::Admit
        }
    }

    /// The client's handshake is complete, or its node reported so.
    pub(crate) fn on_validated(&mut self) -> Actions {
        let trial = std::mem::take(&mut self.is_trial).then_some(Action::TrialWorked);
        // Before the injection: with a half-open entry the SYN-ACK would be captured again.
        let actions = Actions::from(trial).push(Action::Release);
        match self.handshakes.on_accept() {
            OnMeeting::Wait(None) if !self.is_begun => actions.push(Action::Begin),
            OnMeeting::Wait(None) => actions.and(self.meet()),
            OnMeeting::Wait(Some(frame)) => actions.push(Action::LetIn(frame)).and(self.meet()),
            OnMeeting::Join => actions.and(self.join()),
            OnMeeting::Refuse(outcome) => actions.push(Action::Refuse(outcome, None)),
            OnMeeting::WaitForClient | OnMeeting::Admit => actions,
        }
    }

    /// Joins a validated client with a hop that is open: the reply may come later.
    fn meet(&mut self) -> Actions {
        let is_open = self.attempt.is_some_and(|attempt| attempt.is_connected);
        if is_open && self.is_validated() {
            self.join()
        } else {
            Actions::default()
        }
    }

    fn join(&mut self) -> Actions {
        let owes = std::mem::take(&mut self.owes_validation) && self.attempt.is_some();
        // First: the last node of the chain lets no byte pass before this message.
        Actions::from(owes.then_some(Action::SendValidated)).push(Action::Join)
    }

    /// The request arrived for a flow that a SYN option announced. `hops` are those of the request.
    pub(crate) fn on_request(
        &mut self,
        arrival: Arrival,
        validated: bool,
        hops: Hops,
        now: Duration,
    ) -> Actions {
        // With a SYN-ACK or a failure, the upstream connection needs no other attempt.
        let was_put_off = !self.is_begun && self.handshakes.awaits_server();
        self.arrival = arrival;
        self.is_begun = true;
        if was_put_off {
            self.hops.select(hops);
        } else {
            self.hops.guard = hops.guard;
        }
        let actions = if validated {
            self.mode = AcceptMode::LATE;
            self.on_validated()
        } else {
            self.validate_by = now + self.limits.expiry;
            match self.handshakes.on_request() {
                OnRequest::Wait => Actions::default(),
                OnRequest::Answer => Action::Answer.into(),
                OnRequest::Refuse(outcome) => Action::Refuse(outcome, None).into(),
            }
        };
        if was_put_off {
            return actions.push(Action::Try);
        }
        actions
    }

    /// The upstream handshake of a direct connection is complete.
    pub(crate) fn on_connected(&mut self, now: Duration) -> Actions {
        match self.handshakes.on_connected() {
            OnMeeting::Join => self.join(),
            OnMeeting::Admit => self.admit(now).into(),
            OnMeeting::Wait(_) | OnMeeting::WaitForClient | OnMeeting::Refuse(_) => {
                Actions::default()
            }
        }
    }

    /// The upstream connection failed, or could not be made.
    pub(crate) fn on_failed(
        &mut self,
        outcome: Outcome,
        error: Option<Icmp>,
        blame: Blame,
    ) -> Actions {
        let actions = Actions::from(Action::Failed(outcome, blame));
        match self.handshakes.on_failed(outcome) {
            OnFailure::Refuse => actions.push(Action::Refuse(outcome, error)),
            OnFailure::Remember => match error {
                Some(icmp) => actions.push(Action::KeepError(icmp)),
                None => actions,
            },
            OnFailure::PassOn => actions.and(self.answer_held(outcome, error)),
        }
    }

    /// Answers a held SYN as the client would have been answered without the node.
    fn answer_held(&self, outcome: Outcome, error: Option<Icmp>) -> Actions {
        if self.arrival.expects_reply() {
            return Action::Refuse(outcome, error).into();
        }
        if self.is_trial {
            // A refusal or an unreachable error may come from this host alone, so the client's own
            // SYN may succeed.
            let actions = Actions::from(Action::PassOn).push(Action::TrialFailed(outcome));
            return actions.push(Action::End(outcome));
        }
        let answer = match (outcome, error) {
            (Outcome::UpstreamRefused | Outcome::HopFailed, _) => Some(Action::ResetClient),
            (Outcome::UpstreamUnreachable, Some(icmp)) => Some(Action::SendUnreachable(icmp)),
            // The error is this host's, not the network's: forward the SYN and let the kernel
            // report it.
            (Outcome::UpstreamUnreachable | Outcome::Internal, None) => Some(Action::PassOn),
            (Outcome::ConnectTimeout, _) => Some(Action::PassLater),
            _ => None,
        };
        Actions::from(answer).push(Action::End(outcome))
    }

    /// A deadline has passed. `unsent` says whether the upstream SYN is still in this host.
    pub(crate) fn on_time(&mut self, unsent: bool, now: Duration) -> Actions {
        if self.is_hop_late(now) {
            return self.on_hop_failed(None);
        }
        let mut actions = Actions::default();
        // A SYN that waits in this host for a neighbour has reached no server yet.
        if !unsent && self.restrain_at().is_some_and(|at| at <= now) {
            actions = self.restrain();
        }
        let is_over = now >= self.limit();
        // An unvalidated client has no connection that could be refused: the flow expires instead.
        let mut is_given_up = is_over && (self.is_validated() || self.is_held());
        if now >= self.look_at {
            self.look_at = now + LOOK;
            is_given_up |= unsent && self.handshakes.on_unsent();
        }
        match (is_given_up, is_over) {
            (true, _) => actions.and(self.give_up(unsent)),
            (false, true) if std::mem::take(&mut self.is_trial) => actions.push(Action::CheckTrial),
            (false, true) => actions.and(self.expire()),
            (false, false) => actions,
        }
    }

    /// Whether the next node has taken too long to accept the connection.
    pub(crate) fn is_hop_late(&self, now: Duration) -> bool {
        self.attempt
            .is_some_and(|attempt| !attempt.is_connected && attempt.accept_by <= now)
    }

    /// The client has stayed unvalidated for too long.
    fn restrain(&mut self) -> Actions {
        self.is_restrained = true;
        if self.is_hopping() || self.handshakes.failed() {
            // The node at the end of the hop restrains its own.
            return Actions::default();
        }
        // A strict flow waits for the server a little longer, since its client is answered after
        // that.
        match self.mode.holds_syn() {
            true => Action::Restrain.into(),
            false if self.is_held() => Actions::default(),
            false => self.withdraw(),
        }
    }

    /// The client is validated, whatever happened to the restrained connection. Returns whether it
    /// was restrained.
    pub(crate) fn take_restraint(&mut self) -> bool {
        std::mem::take(&mut self.is_restrained)
    }

    /// Whether an upstream connection that timed out did so only because it was restrained, and its
    /// client may still be validated.
    pub(crate) fn is_closed_by_restraint(&self) -> bool {
        self.is_restrained && !self.is_held()
    }

    /// Closes the upstream connection. It is opened again when the client is validated, as in late
    /// mode.
    pub(crate) fn withdraw(&mut self) -> Actions {
        (self.is_begun, self.is_restrained) = (false, false);
        self.attempt = None;
        let actions = Actions::from(Action::Close).push(Action::ReleaseUpstream);
        match self.handshakes.on_unvalidated_close() {
            // The server would keep its half-open connection for a minute.
            Some(frame) => actions.push(Action::ResetServer(frame)),
            None => actions,
        }
    }

    /// A later SYN has the same tuple: its half-open entry belongs to that.
    pub(crate) fn on_new_syn(&mut self, flow: &Flow) -> Actions {
        // The program has made it anew with the new sequence number.
        self.half_opens.forget(flow);
        Action::End(Outcome::ClientAbsent).into()
    }

    /// The server did not answer, or was never reached.
    fn give_up(&mut self, unsent: bool) -> Actions {
        let Some(attempt) = self.attempt else {
            return Action::GiveUp { unsent }.into();
        };
        if unsent {
            return self.on_hop_failed(None);
        }
        // A node that has not accepted the connection does not count as a silent server.
        let reply = attempt.is_connected.then_some(Reply::TimedOut);
        Actions::from(Action::Unanswered).and(self.on_hop_failed(reply))
    }

    /// The client did not complete its handshake.
    fn expire(&mut self) -> Actions {
        let (outcome, syn_ack) = self.handshakes.on_expiry();
        // The server would keep its half-open connection for a minute.
        Actions::from(syn_ack.map(Action::ResetServer)).push(Action::End(outcome))
    }

    /// Whether this host has answered the client of a trial in the time that it had for that: then
    /// the client gets the usual time to be validated. Otherwise its SYN is forwarded.
    pub(crate) fn on_trial_checked(&mut self, is_answered: bool, now: Duration) -> Actions {
        if is_answered {
            self.validate_by = now + self.limits.expiry;
            return Actions::default();
        }
        // The reset for the half-open connection is sent first, so that it does not hit the
        // client's own connection.
        let (outcome, syn_ack) = self.handshakes.on_expiry();
        let actions = Actions::from(syn_ack.map(Action::ResetServer))
            .push(Action::Close)
            .push(Action::TrialUndelivered);
        actions.push(Action::PassOn).push(Action::End(outcome))
    }

    /// The node drains: a held SYN is forwarded.
    pub(crate) fn on_drain(&mut self) -> Actions {
        // Peers learn of a drain by a reply; only a client's own SYN can be forwarded.
        if self.is_held() && self.arrival == Arrival::Plain {
            Actions::from(Action::PassOn).push(Action::End(Outcome::Drained))
        } else {
            Actions::default()
        }
    }
}
