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
//! replied keeps its [`Hops`], and returns to `Trying` if no byte of it has left, or if the next node
//! reports that none has arrived.
//!
//! No I/O, no clock. An event comes in as `on_*`, with the time; the worker carries out the
//! [`Actions`] that it returns, in their order, and reports the results as further events.

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

use posthaste_wire::header::NodeId;
use posthaste_wire::hop::Icmp;

use crate::accept_mode::AcceptMode;
use crate::chain::NextHop;
use crate::flow::Flow;
use crate::frame::Frame;
use crate::intercept::HalfOpen;
use crate::outcome::Outcome;

use attempts::Attempt;
pub(crate) use attempts::Sent;
use deadlines::{DELIVERY, LOOK};
pub(crate) use handshakes::Handshakes;
pub(crate) use hops::{
    Hops, Joined, Origin, Report, Trust, Try, is_of_all_flows, is_of_hop, reply_of,
};

/// Bound on the actions after one event: the hop of a trial that fails last has the most.
const ACTIONS_MAX: usize = 8;

/// The source of an error about a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blame {
    /// The server or the network, in answer to a SYN.
    Them,
    /// This host: it could not even send a SYN. A client may have caused that.
    Us,
}

/// One thing to do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Select the next hops and report them: [`Opening::on_begin`].
    Begin,
    /// Open [`Opening::next_hop`] and report the result.
    Try,
    /// Close the upstream socket, and forget the hop to the next node.
    Close,
    /// Inject the server's SYN-ACK: the client is validated.
    LetIn(Frame),
    /// Reset the server's half-open connection, which this SYN-ACK belongs to.
    ResetServer(Frame),
    /// Admit the client's held SYN.
    Admit,
    /// Reply to the requester that the server has answered.
    Answer,
    /// Send the next node the message that the client is validated.
    SendValidated,
    /// Join both connections into a relay.
    Join,
    /// Release all half-open entries, and remember the client's prefix as validated.
    Release,
    /// Release the half-open entry of the upstream tuple.
    ReleaseUpstream,
    /// Bound the retransmissions of the upstream SYN.
    Restrain,
    /// Collect the error of the upstream socket and report it: [`Opening::on_failed`].
    GiveUp {
        /// Whether its SYN never left this host.
        unsent: bool,
    },
    /// Keep the network's error for the request that may follow.
    KeepError(Icmp),
    /// Answer the client's held SYN with a reset.
    ResetClient,
    /// Answer the client's held SYN with an ICMP error.
    SendUnreachable(Icmp),
    /// Forward the client's held SYN.
    PassOn,
    /// Forward the client's later SYNs.
    PassLater,
    /// A request was sent: check the flow when the first reply is due.
    AwaitReply,
    /// Check the flow again at this time.
    LookAt(Duration),
    /// Record what the flow has shown of a node.
    Report(Report),
    /// Count a hop that failed.
    HopFailed,
    /// A node accepted a SYN without the option that it had rejected.
    SynOptionIgnored(NodeId),
    /// Begin hops to the next node by another uplink from now on.
    UplinkSilent,
    /// Count a flow over a chain that got no answer.
    Unanswered,
    /// Record a server that failed, for later flows to it.
    Failed(Outcome, Blame),
    /// The client of a trial has completed its handshake.
    TrialWorked,
    /// A trial got no connection to its server.
    TrialFailed(Outcome),
    /// Find out whether this host has answered the client of a trial, and report it:
    /// [`Opening::on_trial_checked`].
    CheckTrial,
    /// This host has not answered the client of a trial.
    TrialUndelivered,
    /// Leave a hop that is silent: [`Opening::on_hop_silent`], or a reroute of a relay.
    Leave,
    /// Take the same hop by a new connection, with the bytes that the client has sent.
    Redial,
    /// Take another next hop with the bytes that the client has sent, or end as [`Self::Refuse`].
    Reroute {
        /// Whether it may be the same hop once more.
        repeat: bool,
        /// The outcome if there is no other.
        outcome: Outcome,
    },
    /// Report the failure to the requester, if there is one, and end the flow.
    Refuse(Outcome, Option<Icmp>),
    /// End the flow.
    End(Outcome),
}

/// What to do after one event, in this order. It lives on the stack, so that no event allocates.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Actions([Option<Action>; ACTIONS_MAX]);

impl Actions {
    /// These actions, and then another.
    pub(crate) fn push(mut self, action: Action) -> Self {
        let free = self.0.iter_mut().find(|place| place.is_none());
        *free.expect("no event has more actions") = Some(action);
        self
    }

    /// These actions, and then others.
    pub(crate) fn and(self, more: Self) -> Self {
        more.into_iter().fold(self, Self::push)
    }
}

impl From<Action> for Actions {
    fn from(action: Action) -> Self {
        Self::default().push(action)
    }
}

impl From<Option<Action>> for Actions {
    fn from(action: Option<Action>) -> Self {
        action.map(Self::from).unwrap_or_default()
    }
}

impl IntoIterator for Actions {
    type Item = Action;
    type IntoIter = std::iter::Flatten<std::array::IntoIter<Option<Action>, ACTIONS_MAX>>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter().flatten()
    }
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

/// A flow that is not a relay yet.
#[derive(Debug)]
pub(crate) struct Opening {
    handshakes: Handshakes,
    pub(crate) hops: Hops,
    attempt: Option<Attempt>,
    /// Whether the current or last request stated that the client is not validated.
    owes_validation: bool,
    /// The half-open entry of the client's SYN. This and the next two are released once, by the
    /// code that takes them from here.
    pub(crate) half_open: Option<(Flow, HalfOpen)>,
    /// That of the upstream socket, where its tuple differs.
    pub(crate) upstream_half_open: Option<(Flow, HalfOpen)>,
    /// The client prefix whose budget the flow counts against.
    pub(crate) counted: Option<[u8; 8]>,
    mode: AcceptMode,
    arrival: Arrival,
    /// The time for the server's answer, from the upstream SYN.
    connect_timeout: Duration,
    /// The time for the client's handshake.
    expiry: Duration,
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
    /// A flow of a mode that begins at `now`. The server must answer within `connect_timeout` of the
    /// upstream SYN, and the client complete its handshake within `expiry`.
    pub(crate) fn new(
        mode: AcceptMode,
        arrival: Arrival,
        connect_timeout: Duration,
        expiry: Duration,
        now: Duration,
    ) -> Self {
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
            half_open: None,
            upstream_half_open: None,
            counted: None,
            mode,
            arrival,
            connect_timeout,
            expiry,
            connecting: now,
            connect_by: now + connect_timeout,
            validate_by: now + expiry,
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
        let entries = [&self.half_open, &self.upstream_half_open];
        let mut of = entries.into_iter().flatten().map(|(of, _)| of);
        !self.is_validated() && of.all(|of| of != flow)
    }

    /// The upstream SYN is due: `hops` are the next hops of the policy. A trial waits for its
    /// server for `patience` at most.
    pub(crate) fn on_begin(&mut self, hops: Hops, patience: Duration, now: Duration) -> Actions {
        self.connecting = now;
        self.connect_by = now + self.connect_timeout.min(patience);
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

    /// The next hop to try now. `None` if all have failed.
    pub(crate) fn next_hop(
        &mut self,
        trust: impl Fn(&NextHop) -> Trust,
        now: Duration,
    ) -> Option<Try> {
        let order = self.hops.take(trust)?;
        // Each attempt has the full time: the former one may have used up its own.
        (self.connecting, self.is_restrained) = (now, false);
        Some(order)
    }

    /// No next hop is left.
    pub(crate) fn on_exhausted(&mut self) -> Actions {
        self.on_failed(Outcome::HopFailed, None, Blame::Us)
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
        let action = self.handshakes.on_syn_ack(frame);
        self.complete(action, now)
    }

    /// The server has answered: the held client may continue.
    fn admit(&mut self, now: Duration) -> Action {
        self.validate_by = now + self.expiry;
        if self.is_trial {
            self.validate_by = now + DELIVERY;
            // The server answered within the short limit of a trial. From here on its handshake has
            // the usual time, or a busy worker would reset a client that it has accepted.
            self.connect_by = self.connecting + self.connect_timeout;
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
            None if !self.is_begun => actions.push(Action::Begin),
            None => actions.and(self.meet()),
            Some(Action::LetIn(frame)) => actions.push(Action::LetIn(frame)).and(self.meet()),
            Some(Action::Join) => actions.and(self.join()),
            Some(refusal) => actions.push(refusal),
        }
    }

    /// Joins a validated client with a hop that is open: the reply may come later, unless the hop
    /// is in doubt. A flow of which no byte has left can take another.
    fn meet(&mut self) -> Actions {
        match self.attempt {
            Some(attempt) if attempt.is_connected && self.is_validated() => {
                if attempt.in_doubt {
                    // The last node bounds its attempt at the server until then.
                    self.pass_validation().into()
                } else {
                    self.join()
                }
            }
            _ => Actions::default(),
        }
    }

    fn join(&mut self) -> Actions {
        // First: the last node of the chain lets no byte pass before this message.
        Actions::from(self.pass_validation()).push(Action::Join)
    }

    /// Reports the validation to a node that was requested before it.
    fn pass_validation(&mut self) -> Option<Action> {
        // After a hop was left for a direct connection, no node waits for it.
        let owes = std::mem::take(&mut self.owes_validation) && self.attempt.is_some();
        owes.then_some(Action::SendValidated)
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
            // The announcement's guard was made from the TTL: only the request has that of the
            // first node.
            self.hops.guard = hops.guard;
        }
        let actions = if validated {
            self.mode = AcceptMode::LATE;
            self.on_validated()
        } else {
            self.validate_by = now + self.expiry;
            self.handshakes.on_request().into()
        };
        if was_put_off {
            return actions.push(Action::Try);
        }
        actions
    }

    /// The upstream handshake of a direct connection is complete.
    pub(crate) fn on_connected(&mut self, now: Duration) -> Actions {
        let action = self.handshakes.on_connected();
        self.complete(action, now)
    }

    /// What the handshakes decide, with what this flow owes its ends besides.
    fn complete(&mut self, action: Option<Action>, now: Duration) -> Actions {
        match action {
            Some(Action::Admit) => self.admit(now).into(),
            Some(Action::Join) => self.join(),
            action => action.into(),
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
        self.handshakes.on_failed(outcome);
        if self.is_validated() {
            actions.push(Action::Refuse(outcome, error))
        } else if self.is_held() {
            actions.and(self.answer_held(outcome, error))
        } else {
            actions.and(error.map(Action::KeepError).into())
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
        for entry in [&mut self.half_open, &mut self.upstream_half_open] {
            entry.take_if(|(of, _)| of == flow);
        }
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
