// SPDX-License-Identifier: Apache-2.0
//! The next hops that a flow may take, in order, and what the reply of a node means for the rest.

use std::time::Duration;

use posthaste_wire::header::{LoopGuard, NodeId};
use posthaste_wire::hop::Reply;

use crate::chain::{NextHop, Path};
use crate::outcome::Outcome;

use super::{Action, Actions};

/// The next hops left to a flow.
#[derive(Debug, Default)]
pub(crate) struct Hops {
    /// Those left to try, the best first.
    next: Vec<NextHop>,
    /// The loop guard for the next node.
    pub(crate) guard: Option<LoopGuard>,
    /// The TTL or hop limit for the upstream side, if the flow arrived with one.
    pub(crate) hop_limit: Option<u8>,
    /// The next hop to try once more, and how.
    retry: Option<Retry>,
    repeat: Repeat,
}

/// A next hop that failed in a way that shows nothing about the node.
#[derive(Clone, Copy, Debug)]
struct Retry {
    hop: NextHop,
    /// Whether the node rejected a SYN that had an option.
    without_syn_option: bool,
}

/// What is known of a next hop before it is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trust {
    /// Nothing is known against it.
    Full,
    /// It failed, and has not connected a flow since then.
    Doubt,
    /// It failed recently.
    None,
}

/// How to try a next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Try {
    pub(crate) hop: NextHop,
    /// Whether a warm hop must not be used: one was gone.
    pub(crate) cold: bool,
    /// Whether the SYN must have no option.
    pub(crate) without_syn_option: bool,
    /// Whether no byte of the flow must leave before the node has connected it.
    pub(crate) in_doubt: bool,
}

/// Whether a flow may try its last next hop once more.
///
/// A node in the middle gives its own next hop little time, since the node before it may have
/// another route. Where that has none, two lost SYNs in a row would reset the client, which would
/// have sent a third SYN without the nodes.
#[derive(Clone, Copy, Debug, Default)]
struct Repeat {
    hop: Option<NextHop>,
    used: bool,
}

impl Repeat {
    fn is_allowed(self) -> bool {
        self.hop.is_some() && !self.used
    }

    /// The hop to try again, once.
    fn take(&mut self) -> Option<NextHop> {
        let allowed = self.is_allowed();
        self.used = true;
        self.hop.filter(|_| allowed)
    }
}

impl Hops {
    /// The next hops of a flow, the best first.
    pub(crate) fn new(next: Vec<NextHop>, guard: Option<LoopGuard>) -> Self {
        Self {
            next,
            guard,
            ..Self::default()
        }
    }

    /// Takes the next hops and the guard of a new selection.
    pub(super) fn select(&mut self, selected: Self) {
        (self.next, self.guard) = (selected.next, selected.guard);
    }

    /// Whether none is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.next.is_empty()
    }

    /// Takes the best of those left: one that failed recently only if no other is left.
    pub(super) fn take(&mut self, trust: impl Fn(&NextHop) -> Trust) -> Option<Try> {
        if self.next.is_empty() {
            return None;
        }
        let is_up = |hop: &NextHop| trust(hop) != Trust::None;
        // If all failed recently, the best may still be back by now.
        let best = self.next.iter().position(is_up).unwrap_or(0);
        let hop = self.next.remove(best);
        let retry = self.retry.take_if(|retry| retry.hop == hop);
        Some(Try {
            hop,
            cold: retry.is_some(),
            without_syn_option: retry.is_some_and(|retry| retry.without_syn_option),
            in_doubt: trust(&hop) != Trust::Full,
        })
    }

    /// The same next hop comes first again, by a new connection.
    pub(crate) fn retry_cold(&mut self, hop: NextHop, without_syn_option: bool) {
        self.retry = Some(Retry {
            hop,
            without_syn_option,
        });
        // In front: it was the best, and nothing is known against it.
        self.next.insert(0, hop);
    }

    /// The flow, which began here, tries this hop: it may try it once more.
    pub(super) fn note(&mut self, hop: NextHop) {
        self.repeat.hop = Some(hop);
    }

    /// Whether there is another next hop after a node has sent `reply`, or none (`None`). If no
    /// other is left, a node that could not reach its own next hop is tried again.
    pub(super) fn lead_on_after(&mut self, reply: Option<Reply>) -> bool {
        // Only this reply may be due to a loss behind the node, after its short limit.
        if self.next.is_empty() && reply == Some(Reply::Failed) {
            self.next.extend(self.repeat.take());
        }
        !self.next.is_empty()
    }

    /// Whether there is another next hop, with `repeat` also the same one once more.
    pub(crate) fn lead_on(&self, repeat: bool) -> bool {
        !self.next.is_empty() || repeat && self.repeat.is_allowed()
    }

    /// The flow leaves its hop: if no other is left, the same one once more is.
    pub(super) fn leave(&mut self) {
        if self.next.is_empty() {
            self.next.extend(self.repeat.take());
        }
    }
}

/// Where a flow began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Here,
    /// A peer chose the path of the flow, so its failure is recorded against no path of this node:
    /// the peer could take one down, and paths that peers choose have no bound.
    Peer,
}

/// What a flow has shown of a node, for flows that begin later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// It did not accept a connection.
    Unreached(NodeId),
    /// It accepted the flow and reset it without a reply.
    Reset(Path, Origin),
    /// It replied that it did not connect the flow.
    Replied(Reply, Path, Origin),
    /// It has connected the flow.
    Connected(Path),
    /// It has been silent since it got the request.
    Silent(Path, Duration),
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
    /// Whether its hop was open before, and that node has closed it without a reply.
    pub(crate) is_closed_hop: bool,
    /// Whether the client is gone.
    pub(crate) is_abandoned: bool,
}

impl Joined {
    /// The relay ended with `outcome`.
    pub(crate) fn on_end(self, outcome: Outcome) -> Actions {
        let Some(reply) = self.failed else {
            return self.on_unfailed_end(outcome);
        };
        if self.is_closed_hop && !self.is_abandoned {
            // Its request and the end of the idle hop have met: that shows nothing about the node.
            return Action::Redial.into();
        }
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
            // Its reply was recorded when it came, and may have been long ago.
            _ if !self.is_awaited => None,
            // The server's reset looks the same if the reply was lost before it.
            Outcome::UpstreamReset => Some(Report::Reset(self.via, self.origin)),
            _ => None,
        };
        Actions::from(report.map(Action::Report)).push(Action::End(outcome))
    }
}

/// The outcome of a flow that failed with `reply`.
pub(crate) fn outcome_of(reply: Reply) -> Outcome {
    match reply {
        Reply::Refused => Outcome::UpstreamRefused,
        Reply::Unreachable(_) => Outcome::UpstreamUnreachable,
        Reply::TimedOut => Outcome::ConnectTimeout,
        _ => Outcome::HopFailed,
    }
}

/// The reply to the requester of a flow that ended before it was open.
pub(crate) fn reply_of(outcome: Outcome) -> Reply {
    match outcome {
        Outcome::UpstreamRefused | Outcome::UpstreamReset => Reply::Refused,
        Outcome::ConnectTimeout => Reply::TimedOut,
        // Nothing is known against the server: the requester may have another node for the flow.
        Outcome::Internal | Outcome::Drained => Reply::Overloaded,
        _ => Reply::Failed,
    }
}

/// Whether another route may succeed where a node replied this: it is about the node, and not about
/// the server.
pub(crate) fn is_of_hop(reply: Reply) -> bool {
    finds_no_next_hop(reply) || outcome_of(reply) == Outcome::HopFailed
}

/// Whether a reply about the node holds for other flows of the chain, too: not a denial, not a
/// request that was too old, and not a destination to which the node has no route.
pub(crate) fn is_of_all_flows(reply: Reply) -> bool {
    let of_this = matches!(reply, Reply::Denied | Reply::Clock) || finds_no_next_hop(reply);
    is_of_hop(reply) && !of_this
}

fn finds_no_next_hop(reply: Reply) -> bool {
    // An error from the network names the router that has sent it; a node without a route has no
    // such sender.
    matches!(reply, Reply::Unreachable(icmp) if icmp.offender.is_none())
}

#[cfg(test)]
mod tests {
    use posthaste_wire::hop::Icmp;

    use super::*;

    fn hop(node: u64) -> NextHop {
        NextHop::Hop(Path::to(NodeId::new(node).unwrap()))
    }

    #[test]
    fn down_hop_tried_last() {
        let mut hops = Hops::new(vec![hop(1), hop(2), NextHop::Direct], None);
        let trust = |next: &NextHop| match next {
            NextHop::Direct => Trust::Full,
            next if *next == hop(1) => Trust::None,
            _ => Trust::Doubt,
        };
        let taken = [(); 4].map(|()| hops.take(trust).map(|order| (order.hop, order.in_doubt)));
        let order = [(hop(2), true), (NextHop::Direct, false), (hop(1), true)];
        assert_eq!(taken[..3], order.map(Some));
        assert_eq!(taken[3], None);
    }

    /// What is known of a retry holds for its own hop alone.
    #[test]
    fn retry_binds_its_hop() {
        let mut hops = Hops::new(vec![hop(2)], None);
        hops.retry_cold(hop(1), true);
        let trust = |next: &NextHop| {
            if *next == hop(2) {
                Trust::Full
            } else {
                Trust::None
            }
        };
        let other = hops.take(trust).unwrap();
        assert_eq!(other.hop, hop(2));
        assert!(!other.cold && !other.without_syn_option);
        let same = hops.take(|_| Trust::Full).unwrap();
        assert_eq!(same.hop, hop(1));
        assert!(same.cold && same.without_syn_option);
    }

    #[test]
    fn last_hop_requested_twice() {
        let mut hops = Hops::default();
        assert!(!hops.lead_on_after(Some(Reply::Failed)), "none was tried");
        let mut hops = Hops::default();
        hops.note(NextHop::Direct);
        assert!(hops.lead_on(true) && !hops.lead_on(false));
        assert!(hops.lead_on_after(Some(Reply::Failed)));
        assert_eq!(hops.take(|_| Trust::Full).unwrap().hop, NextHop::Direct);
        hops.note(NextHop::Direct);
        assert!(!hops.lead_on_after(Some(Reply::Failed)), "once is enough");
    }

    #[test]
    fn lost_or_denied_not_repeated() {
        for reply in [None, Some(Reply::Denied), Some(Reply::Overloaded)] {
            let mut hops = Hops::default();
            hops.note(NextHop::Direct);
            assert!(!hops.lead_on_after(reply), "{reply:?}");
        }
    }

    #[test]
    fn outcome_and_reply_sides() {
        for reply in [Reply::Refused, Reply::TimedOut, Reply::Failed] {
            assert_eq!(reply_of(outcome_of(reply)), reply);
            assert_eq!(is_of_hop(reply), reply == Reply::Failed);
        }
        assert!(is_of_hop(Reply::Denied) && is_of_hop(Reply::UnknownSegment));
        assert_eq!(outcome_of(Reply::Clock), Outcome::HopFailed);
    }

    // promise: K6
    #[test]
    fn refusals_of_one_flow() {
        let unreachable = |offender| {
            Reply::Unreachable(Icmp {
                kind: 3,
                code: 1,
                offender,
            })
        };
        let router = unreachable(Some(std::net::Ipv4Addr::new(192, 0, 2, 1).into()));
        assert!(!is_of_hop(router) && is_of_hop(unreachable(None)));
        assert!(is_of_all_flows(Reply::Failed) && is_of_all_flows(Reply::UnknownSegment));
        for reply in [
            Reply::Denied,
            Reply::Clock,
            unreachable(None),
            router,
            Reply::Refused,
        ] {
            assert!(!is_of_all_flows(reply), "{reply:?}");
        }
    }
}
