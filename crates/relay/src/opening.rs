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
mod attempts;
mod deadlines;
mod handshakes;
mod hops;
pub(crate) mod silence;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

use std::time::Duration;

use posthaste_wire::hop::Icmp;

use crate::accept_mode::AcceptMode;
use crate::chain::NextHop;
use crate::flow::Flow;
use crate::frame::Frame;
use crate::intercept::HalfOpen;
use crate::outcome::Outcome;

pub(crate) use actions::{Action, Actions, Blame, Joined};
use attempts::Attempt;
pub(crate) use attempts::Sent;
use deadlines::{DELIVERY, LOOK};
pub(crate) use handshakes::Handshakes;
use handshakes::{OnFailure, OnMeeting, OnRequest, OnSynAck};
pub(crate) use hops::{Hops, Origin, Report, Try, is_of_all_flows, is_of_hop, reply_of};

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

/// The half-open entries of a flow. Each is released once, by the code that takes it from here.
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
    /// Whether the current or last request stated that the client is not validated.
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

    /// Whether an upstream tuple needs a half-open entry of its own: its SYN-ACK may arrive while
    /// the client is unvalidated.
    pub(crate) fn needs_half_open(&self, flow: &Flow) -> bool {
        !self.is_validated() && !self.half_opens.has(flow)
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

    /// The budget has no room for the half-open entry of the upstream tuple. The upstream SYN of an
    /// early flow is sent when the client is validated, as in late mode, and that of a flow from a
    /// SYN option when its request arrives. Returns whether the flow waits for that.
    pub(crate) fn put_off(&mut self) -> bool {
        let waits = self.mode.overlaps_handshakes() || self.arrival == Arrival::SynOption;
        self.is_begun &= !waits;
        waits
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

    /// A later SYN has the same tuple: its half-open entry belongs to that.
    pub(crate) fn on_new_syn(&mut self, flow: &Flow) -> Actions {
        // The program has made it anew with the new sequence number.
        self.half_opens.forget(flow);
        Action::End(Outcome::ClientAbsent).into()
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
