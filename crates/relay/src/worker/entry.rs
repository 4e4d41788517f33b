// SPDX-License-Identifier: Apache-2.0
//! What the worker keeps of each flow, from its SYN to its outcome.

use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use posthaste_wire::header::LoopGuard;
use posthaste_wire::hop::ValidationReader;

use crate::accept_mode::AcceptMode;
use crate::chain::NextHop;
use crate::compact_instant::{CompactInstant, Micros};
use crate::flow::Flow;
use crate::frame::Frame;
use crate::intercept::{HalfOpen, Path};
use crate::opening::Opening;
use crate::pipes::Pipe;
use crate::policy::Rule;
use crate::relay::{Bounds, Relay};
use crate::side::{Side, Sides};
use crate::sys;

use super::next_hops::Hopping;
use super::preface::{Preface, Requester};
use super::replay::{Kept, Repeat};
use super::wait::LOOK;

/// The age from which a relay may need what short ones never do.
const OLD: Duration = Duration::from_secs(1);

/// A rule and what is computed from it once.
#[derive(Debug)]
pub(super) struct LocalRule {
    pub(super) rule: Rule,
    pub(super) name: std::sync::Arc<str>,
    /// Where its relays are counted, see [`Tallies`](crate::tally::Tallies).
    pub(super) tally: usize,
    pub(super) bounds: Bounds,
    /// The listener already has the rule's downstream options.
    pub(super) inherited: bool,
}

/// Phase timers; the flow's log line shows them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Timers {
    pub(super) accept: Micros,
    pub(super) connect: Micros,
    /// From the upstream SYN to the server's answer, held or not.
    pub(super) answer: Micros,
    /// From the start to the first byte of the client that was passed on.
    pub(super) request: Micros,
    pub(super) first_byte: Micros,
}

/// Which of the rule's settings a side's socket has yet to be given. One byte: every relay has two.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DeferredOptions(u8);

impl DeferredOptions {
    /// Those of [`sys::apply_when_full`].
    const WHEN_FULL: u8 = 1;
    /// Those of [`sys::apply_when_old`].
    const WHEN_OLD: u8 = 2;
    /// All that a socket was not given at birth.
    pub(super) const ALL: Self = Self(Self::WHEN_FULL | Self::WHEN_OLD);

    /// Whether it is still owed what a full socket needs; not afterwards.
    pub(super) fn take_when_full(&mut self) -> bool {
        self.take(Self::WHEN_FULL)
    }

    /// Whether it is still owed what an old socket needs; not afterwards.
    fn take_when_old(&mut self) -> bool {
        self.take(Self::WHEN_OLD)
    }

    fn take(&mut self, setting: u8) -> bool {
        let deferred = self.0 & setting != 0;
        self.0 &= !setting;
        deferred
    }

    fn has_when_old(self) -> bool {
        self.0 & Self::WHEN_OLD != 0
    }
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) flow: Flow,
    pub(super) rule: Rc<LocalRule>,
    pub(super) accept: AcceptMode,
    /// It waits for another turn.
    pub(super) queued: bool,
    /// It came to a listener whose connections all go to one destination.
    pub(super) fixed: bool,
    /// Bytes of its client were waiting when the server's side was open.
    pub(super) prompt: bool,
    pub(super) sockets: Sides<Option<OwnedFd>>,
    pub(super) deferred: Sides<DeferredOptions>,
    /// Whether the rule's user timeout is set on the sockets now.
    pub(super) timed: Sides<bool>,
    /// The number of the socket that was sent a FIN first, once one was.
    pub(super) closed_cookie: Option<NonZeroU64>,
    /// When its SYN or its accept was seen, in the worker's time.
    pub(super) started: CompactInstant,
    pub(super) timers: Timers,
    /// What is still to be said and heard before its bytes.
    pub(super) preface: Option<Box<Preface>>,
    pub(super) state: State,
}

#[derive(Debug)]
pub(super) enum State {
    Opening(Box<Pending>),
    Open(Relay<Pipe, Box<[u8]>>),
}

/// What only an opening flow needs.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) opening: Opening,
    /// The client's SYN, if it was seen.
    pub(super) syn: Option<Frame>,
    /// The half-open entries that stand for it, by the tuple they are for: the client's,
    /// and the upstream socket's where that differs.
    pub(super) half_open_flows: Vec<(Flow, HalfOpen)>,
    /// It counts against the half-open budget of this client prefix.
    pub(super) counted: Option<[u8; 8]>,
    /// What its client has sent, if it has left a hop after that.
    pub(super) kept: Option<Kept>,
    /// When the upstream SYN was sent.
    pub(super) connecting: Duration,
    /// When the server has to have answered.
    pub(super) connect_by: Duration,
    /// By when the client has to be validated.
    pub(super) validate_by: Duration,
    /// When to look whether the upstream SYN has left this host.
    pub(super) look_at: Duration,
    /// Ways that are left to try, the best first.
    pub(super) next_hops: Vec<NextHop>,
    /// Whether the one it has now may be asked again.
    pub(super) repeat: Repeat,
    /// What the next node is told against loops.
    pub(super) guard: Option<LoopGuard>,
    /// The TTL or hop limit that the flow goes on with, if it came with one.
    pub(super) hop_limit: Option<u8>,
    /// Reads that the client of another node is validated.
    pub(super) validation: ValidationReader,
    /// A server, or the next node, was asked for it.
    pub(super) requested: bool,
    /// The next hop is to be a cold one.
    pub(super) by_cold: bool,
    /// And its SYN is to have no option.
    pub(super) without_syn_option: bool,
    /// The hop to it, if there is one.
    pub(super) hopping: Option<Hopping>,
    /// It repeats its SYN once at the most while the client is not validated.
    pub(super) restrained: bool,
    /// It is the first to be relayed after one like it was observed, and gives way to
    /// forwarding where it gets no answer.
    pub(super) trial: bool,
    /// The way on that one like it was observed to take.
    pub(super) path: Option<Path>,
}

impl Pending {
    /// A flow that begins to open by a rule.
    pub(super) fn new(opening: Opening, now: Duration, rule: &Rule) -> Self {
        let connect_by = now + rule.timeouts.connect;
        Self {
            opening,
            syn: None,
            half_open_flows: Vec::new(),
            counted: None,
            kept: None,
            connecting: now,
            connect_by,
            validate_by: connect_by,
            look_at: now + LOOK,
            next_hops: Vec::new(),
            repeat: Repeat::default(),
            guard: None,
            hop_limit: None,
            validation: ValidationReader::default(),
            requested: true,
            by_cold: false,
            without_syn_option: false,
            hopping: None,
            restrained: false,
            trial: false,
            path: None,
        }
    }

    /// Says which ways there are.
    pub(super) fn route(&mut self, next_hops: Vec<NextHop>, guard: Option<LoopGuard>) {
        (self.next_hops, self.guard) = (next_hops, guard);
    }

    /// Whether the hop to the next node was opened for this flow.
    pub(super) fn has_cold_hop(&self) -> bool {
        self.hopping.as_ref().is_some_and(Hopping::is_cold)
    }

    /// When the opening has failed.
    pub(super) fn limit(&self) -> Duration {
        if self.opening.is_validated() || self.opening.is_held() {
            self.connect_by
        } else {
            self.validate_by
        }
    }

    /// When it wants to be looked at.
    fn deadline(&self) -> Duration {
        let limit = if self.opening.awaits_server() {
            self.limit().min(self.look_at)
        } else {
            self.limit()
        };
        let hop = self.hopping.as_ref().and_then(Hopping::deadline);
        let due = [hop, self.restrain_at()].into_iter().flatten();
        due.fold(limit, Duration::min)
    }
}

impl Entry {
    /// Whether it is relayed because another between the same two hosts was observed.
    pub(super) fn is_observed(&self) -> bool {
        self.rule.rule.observe && !self.fixed && !self.is_requested() && !self.is_hopping()
    }

    /// Whether its client has reset an open relay, or is gone: it goes no other way.
    pub(super) fn has_lost_client(&self) -> bool {
        matches!(&self.state, State::Open(relay) if relay.has_failed(Side::Downstream))
    }

    /// Closes the upstream socket, and forgets what was done to it: another will take its place.
    pub(super) fn forget_upstream(&mut self) {
        self.sockets[Side::Upstream] = None;
        self.deferred[Side::Upstream] = DeferredOptions::default();
        self.timed[Side::Upstream] = false;
        self.closed_cookie = None;
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(self.state, State::Open(_))
    }

    pub(super) fn pending(&mut self) -> Option<&mut Pending> {
        match &mut self.state {
            State::Opening(pending) => Some(pending),
            State::Open(_) => None,
        }
    }

    /// Who waits to be told what became of the flow, if anybody does.
    pub(super) fn requester(&self) -> Option<Requester> {
        self.preface.as_ref().and_then(|preface| preface.requester)
    }

    /// Whether it was asked for at an explicit listener, or announced there in a SYN option.
    pub(super) fn is_requested(&self) -> bool {
        self.preface
            .as_ref()
            .is_some_and(|preface| preface.requested)
    }

    /// Whether its upstream side is a hop to another node.
    pub(super) fn is_hopping(&self) -> bool {
        self.preface
            .as_ref()
            .is_some_and(|preface| preface.via.is_some())
    }

    /// Whether it is between its client and its server, and nobody asked this node for it.
    pub(super) fn is_in_transit(&self) -> bool {
        let preface = self.preface.as_ref();
        let elsewhere = preface.is_some_and(|preface| preface.requested || preface.by.is_some());
        !(self.fixed || elsewhere || self.is_hopping() || self.is_requested_in_syn())
    }

    /// Whether a SYN option announced it, and the request for it has not come.
    pub(super) fn is_requested_in_syn(&self) -> bool {
        let preface = self.preface.as_ref();
        preface.is_some_and(|preface| preface.requested_in_syn.is_some())
    }

    /// Whether the client's SYN is held.
    pub(super) fn holds_syn(&self) -> bool {
        matches!(&self.state, State::Opening(pending)
            if pending.opening.is_held() && pending.syn.is_some())
    }

    /// When the entry wants to be looked at.
    pub(super) fn deadline(&self) -> Duration {
        let watch = self
            .preface
            .as_ref()
            .and_then(|preface| preface.watch.look_at);
        let other = self.deadline_of_state();
        watch.map_or(other, |watch| watch.min(other))
    }

    fn deadline_of_state(&self) -> Duration {
        match &self.state {
            State::Open(relay) if self.owes() => {
                relay.deadline(&self.rule.bounds).min(self.started() + OLD)
            }
            State::Open(relay) => relay.deadline(&self.rule.bounds),
            State::Opening(pending) => pending.deadline(),
        }
    }

    fn owes(&self) -> bool {
        self.deferred
            .0
            .iter()
            .any(|deferred| deferred.has_when_old())
    }

    /// Gives the sockets of an open relay what they are owed at this age.
    pub(super) fn on_age(&mut self, now: Duration) {
        if !self.is_open() || now < self.started() + OLD {
            return;
        }
        for side in Side::BOTH {
            let deferred = self.deferred[side].take_when_old();
            if let (true, Some(socket)) = (deferred, &self.sockets[side]) {
                // The connection works without, so let it.
                let _ = sys::apply_when_old(socket, self.rule.rule.sides()[side]);
            }
        }
    }

    /// When its last byte moved, in the worker's time.
    pub(super) fn active(&self) -> Duration {
        match &self.state {
            State::Open(relay) => relay.active(),
            State::Opening(_) => self.started(),
        }
    }

    /// When its SYN or its accept was seen, in the worker's time.
    pub(super) fn started(&self) -> Duration {
        self.started.into()
    }

    pub(super) fn age(&self, now: Duration) -> Duration {
        now.saturating_sub(self.started())
    }
}

/// Milliseconds, saturating at 49 days.
pub(super) fn millis(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An idle relay costs this and little else in memory of the process.
    // promise: W10
    #[test]
    fn an_entry_stays_small() {
        assert!(size_of::<Entry>() <= 184, "{}", size_of::<Entry>());
    }
}
