// SPDX-License-Identifier: Apache-2.0
//! The attempts of an opening flow at its next hops, one after the other.

use std::time::Duration;

use posthaste_wire::hop::Reply;

use crate::chain::{NextHop, Path};

use super::hops::{Origin, Report, Try, is_of_hop, outcome_of};
use super::{Action, Actions, Blame, Opening};

/// How long the next node may take to accept a connection before another next hop is tried, if
/// there is one: its first SYN and a retransmission take no longer.
const ACCEPT_MAX: Duration = Duration::from_millis(1500);
/// How long it may take before another uplink is tried, if there is one.
const UPLINK_MAX: Duration = Duration::from_millis(500);

/// A hop to the next node that has no reply yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attempt {
    pub(super) via: Path,
    pub(super) sent: Sent,
    /// Whether the node rejected a SYN with an option before.
    without_syn_option: bool,
    /// Whether a hop that was open was gone before.
    is_retry: bool,
    /// Whether no byte of the flow must leave before its reply.
    pub(super) in_doubt: bool,
    /// Whether the node has accepted the connection.
    pub(super) is_connected: bool,
    /// When the node must have accepted it.
    pub(super) accept_by: Duration,
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
    /// A SYN of Multipath TCP; the request follows. If it gets no answer, another uplink may.
    Uplink,
}

impl Opening {
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

    /// Whether the next node has taken too long to accept the connection.
    pub(crate) fn is_hop_late(&self, now: Duration) -> bool {
        self.attempt
            .is_some_and(|attempt| !attempt.is_connected && attempt.accept_by <= now)
    }

    /// A hop to the next node was opened as in `order`.
    pub(crate) fn on_hop_opened(
        &mut self,
        via: Path,
        order: Try,
        sent: Sent,
        now: Duration,
    ) -> Actions {
        // Anew for each node, or the last candidate would have no time left.
        self.connect_by = now + self.connect_timeout;
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
        let accept_by = match sent {
            Sent::Uplink => accept_by.min(now + UPLINK_MAX),
            Sent::Warm | Sent::Cold | Sent::SynOption => accept_by,
        };
        // The request states it as it is now. A client that is validated later needs a message of
        // its own.
        self.owes_validation = !self.is_validated();
        let is_warm = sent == Sent::Warm;
        self.attempt = Some(Attempt {
            via,
            sent,
            without_syn_option: order.without_syn_option,
            is_retry: order.cold,
            in_doubt: order.in_doubt,
            is_connected: is_warm,
            accept_by,
        });
        if is_warm {
            Actions::from(Action::AwaitReply).and(self.meet())
        } else {
            Action::LookAt(accept_by).into()
        }
    }

    /// No hop to the next node could be opened; `report` is about the node, if that is to blame.
    pub(crate) fn on_hop_unopened(&mut self, report: Option<Report>) -> Actions {
        Actions::from(report.map(Action::Report)).push(Action::Try)
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
            // A router may report that its own uplink is down.
            Some(attempt) if !is_rejected && attempt.sent == Sent::Uplink => self.on_hop_late(),
            _ => self.on_hop_failed(None),
        }
    }

    /// The next node has taken too long to accept the connection: if that may be for the uplink, another
    /// one is tried.
    pub(crate) fn on_hop_late(&mut self) -> Actions {
        match self.attempt {
            Some(attempt) if attempt.sent == Sent::Uplink => {
                self.attempt = None;
                // Nothing is known against the option, which this SYN did not carry.
                let without_option = attempt.without_syn_option;
                self.hops
                    .retry_cold(NextHop::Hop(attempt.via), without_option);
                Actions::from(Action::UplinkSilent)
                    .push(Action::Close)
                    .push(Action::Try)
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
        let action = self.handshakes.on_connected();
        actions.and(self.complete(action, now))
    }

    /// The next node did not connect the flow: it sent a reply about itself or the server, or none.
    pub(super) fn on_hop_failed(&mut self, reply: Option<Reply>) -> Actions {
        let actions = Actions::from(Action::Close);
        let (is_lost, reply) = (reply.is_none(), reply.unwrap_or(Reply::Failed));
        let Some(attempt) = self.attempt.take().filter(|_| is_of_hop(reply)) else {
            return actions.and(self.on_reply_failed(reply));
        };
        if is_lost && attempt.sent == Sent::Warm && !attempt.is_retry {
            // It may have been gone for long: that shows nothing about the node.
            self.hops.retry_cold(NextHop::Hop(attempt.via), false);
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
}
