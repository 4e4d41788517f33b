// SPDX-License-Identifier: Apache-2.0
//! What the worker must do for a flow that is opening, or whose relay ended before a reply.

use std::time::Duration;

use posthaste_wire::header::NodeId;
use posthaste_wire::hop::{Icmp, Reply};

use crate::chain::Path;
use crate::frame::Frame;
use crate::outcome::Outcome;

use super::hops::{Origin, Report, is_of_hop, outcome_of};

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
    /// Select the next hops and report them: [`super::Opening::on_begin`].
    Begin,
    /// Open [`super::Opening::next_hop`] and report the result.
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
    /// Collect the error of the upstream socket and report it: [`super::Opening::on_failed`].
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
    /// Count a flow over a chain that got no answer.
    Unanswered,
    /// Record a server that failed, for later flows to it.
    Failed(Outcome, Blame),
    /// The client of a trial has completed its handshake.
    TrialWorked,
    /// A trial got no connection to its server.
    TrialFailed(Outcome),
    /// Find out whether this host has answered the client of a trial, and report it:
    /// [`super::Opening::on_trial_checked`].
    CheckTrial,
    /// This host has not answered the client of a trial.
    TrialUndelivered,
    /// Leave a hop that is silent: [`super::Opening::on_hop_silent`], or a reroute of a relay.
    Leave,
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

/// A relay over a hop, at its end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Joined {
    pub(crate) via: Path,
    pub(crate) origin: Origin,
    /// Whether the next node has not replied yet.
    pub(crate) is_awaited: bool,
    /// Its reply, or what its connection's end counts as, if it did not connect the flow.
    pub(crate) failed: Option<Reply>,
    /// Whether that node has delivered nothing of the flow.
    pub(crate) is_undelivered: bool,
    /// Whether the client is gone.
    pub(crate) is_abandoned: bool,
}

impl Joined {
    /// The relay ended with `outcome`.
    pub(crate) fn on_end(self, outcome: Outcome) -> Actions {
        let Some(reply) = self.failed else {
            return self.on_unfailed_end(outcome);
        };
        let mut actions = Actions::default();
        if is_of_hop(reply) {
            actions = actions.push(Action::HopFailed);
        }
        let report = Report::Replied(reply, self.via, self.origin);
        let actions = actions.push(Action::Report(report));
        let refused = outcome_of(reply);
        actions.push(if self.is_abandoned {
            Action::End(outcome)
        } else if !self.is_undelivered {
            // The requester must not conclude that nothing was delivered.
            Action::End(refused)
        } else if is_of_hop(reply) {
            Action::Reroute {
                repeat: reply == Reply::Failed,
                outcome: refused,
            }
        } else {
            Action::Refuse(refused, None)
        })
    }

    fn on_unfailed_end(self, outcome: Outcome) -> Actions {
        let report = match outcome {
            _ if !self.is_awaited => Some(Report::Connected(self.via)),
            // The server's reset looks the same if the reply was lost before it.
            Outcome::UpstreamReset => Some(Report::Reset(self.via, self.origin)),
            _ => None,
        };
        Actions::from(report.map(Action::Report)).push(Action::End(outcome))
    }
}
