// SPDX-License-Identifier: Apache-2.0
//! The deadlines of an opening flow, and what follows when one has passed: the server or the next node
//! has not answered, or the client is not validated.

use std::time::Duration;

use posthaste_wire::hop::Reply;

use super::{Action, Actions, Opening};

/// Interval of the checks whether an upstream SYN has left this host.
pub(super) const LOOK: Duration = Duration::from_secs(1);
/// How long a client may stay unvalidated until its upstream connection is restrained. The sweep
/// covers openings every quarter of a second, and within a second when there are very many: before
/// the kernel's first retransmission, or at least before its second, one and two seconds after the
/// SYN.
const UNVALIDATED_MAX: Duration = Duration::from_millis(700);
/// How long this host may take to answer the SYN of a trial that is delivered to it.
pub(super) const DELIVERY: Duration = Duration::from_millis(50);

impl Opening {
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
        // A validated client has not spoofed its SYN: its server gets the usual retransmissions.
        let due = self.is_begun && !self.is_restrained && !self.is_validated();
        due.then_some(self.connecting + UNVALIDATED_MAX)
    }

    /// A deadline has passed. `unsent` is whether the upstream SYN is still in this host.
    pub(crate) fn on_time(&mut self, unsent: bool, now: Duration) -> Actions {
        if self.is_hop_late(now) {
            return self.on_hop_late();
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
            // This host's firewall may drop what is delivered here: then the client is not to
            // blame.
            (false, true) if std::mem::take(&mut self.is_trial) => actions.push(Action::CheckTrial),
            (false, true) => actions.and(self.expire()),
            (false, false) => actions,
        }
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
            self.validate_by = now + self.expiry;
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
}
