// SPDX-License-Identifier: Apache-2.0
//! The worker's state of each flow, from its SYN to its outcome.

use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use posthaste_wire::hop::ValidationReader;

use crate::accept_mode::AcceptMode;
use crate::compact_instant::{CompactInstant, Micros};
use crate::flow::Flow;
use crate::frame::Frame;
use crate::intercept::ObservedPath;
use crate::opening::{Arrival, Opening};
use crate::pipes::Pipe;
use crate::relay::Relay;
use crate::side::{Side, Sides};
use crate::sys;

use super::end::End;
use super::preface::{Preface, Requester};
use super::replay::Kept;
use super::rules::LocalRule;

/// The age at which a relay gets the settings that short ones never need.
const OLD: Duration = Duration::from_secs(1);

/// Durations of the phases, for the flow's log line.
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

/// The settings of the rule that a side's socket has not got yet. One byte: every relay has two.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DeferredOptions(u8);

impl DeferredOptions {
    /// The settings of [`sys::apply_when_full`].
    const WHEN_FULL: u8 = 1;
    /// The settings of [`sys::apply_when_old`].
    const WHEN_OLD: u8 = 2;
    /// The bound of its receive buffer.
    const WHEN_LARGE: u8 = 4;
    /// Those of a socket that has the others from its listener, whose buffer must not be bounded: the
    /// shift of its window would follow.
    pub(super) const INHERITED: Self = Self(Self::WHEN_LARGE);
    /// All settings that a socket does not get before it connects.
    pub(super) const ALL: Self = Self(Self::WHEN_FULL | Self::WHEN_OLD | Self::WHEN_LARGE);

    /// Clears and returns whether the settings for a full socket are missing.
    pub(super) fn take_when_full(&mut self) -> bool {
        self.take(Self::WHEN_FULL)
    }

    /// Clears and returns whether the bound for a socket that receives much is missing.
    pub(super) fn take_when_large(&mut self) -> bool {
        self.take(Self::WHEN_LARGE)
    }

    /// Clears and returns whether the settings for an old socket are missing.
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
    /// Whether it is queued for another turn.
    pub(super) queued: bool,
    /// Whether it came to a listener with a fixed destination.
    pub(super) fixed: bool,
    /// Whether bytes of its client were waiting when the server's side was open.
    pub(super) prompt: bool,
    pub(super) sockets: Sides<Option<OwnedFd>>,
    pub(super) deferred: Sides<DeferredOptions>,
    /// Whether the rule's user timeout is set on the sockets now.
    pub(super) timed: Sides<bool>,
    /// `SO_COOKIE` of the socket that sent a FIN first.
    pub(super) closed_cookie: Option<NonZeroU64>,
    /// Time of its SYN or its accept, in the worker's time.
    pub(super) started: CompactInstant,
    pub(super) timers: Timers,
    /// Messages between nodes that precede its bytes.
    pub(super) preface: Option<Box<Preface>>,
    pub(super) state: State,
}

#[derive(Debug)]
pub(super) enum State {
    // Boxed, since most entries are open relays, and pay for the larger of the two.
    Opening(Box<Pending>),
    Open(Relay<Pipe, Box<[u8]>>),
}

/// State that only an opening flow needs.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) opening: Opening,
    /// The client's SYN, if it was captured.
    pub(super) syn: Option<Frame>,
    /// Bytes that its client has sent, if it had a relay before and left that hop.
    pub(super) kept: Option<Kept>,
    /// What is left to send of the request to the next node.
    pub(super) request: Vec<u8>,
    /// Reads the message that the client of another node is validated.
    pub(super) validation: ValidationReader,
    /// The path that the observed flow took.
    pub(super) path: Option<ObservedPath>,
}

impl From<Opening> for Pending {
    fn from(opening: Opening) -> Self {
        Self {
            opening,
            syn: None,
            kept: None,
            request: Vec::new(),
            validation: ValidationReader::default(),
            path: None,
        }
    }
}

impl Entry {
    /// Whether it is relayed because another flow between the same two hosts was observed.
    pub(super) fn is_observed(&self) -> bool {
        self.rule.rule.observe && !self.fixed && !self.is_requested() && !self.is_hopping()
    }

    /// What it has at a side.
    pub(super) fn end(&self, side: Side) -> Option<End<'_>> {
        end_of(&self.sockets, self.preface.as_deref(), side)
    }

    /// Whether its client has reset an open relay, or is gone: it takes no other route.
    pub(super) fn has_lost_client(&self) -> bool {
        matches!(&self.state, State::Open(relay) if relay.has_failed(Side::Downstream))
    }

    /// Closes the upstream socket and clears its state, so that another can replace it.
    pub(super) fn forget_upstream(&mut self) {
        self.sockets[Side::Upstream] = None;
        if let Some(preface) = &mut self.preface {
            preface.streams[Side::Upstream] = None;
        }
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

    /// The node or client that waits for the flow's result, if any.
    pub(super) fn requester(&self) -> Option<Requester> {
        self.preface.as_ref().and_then(|preface| preface.requester)
    }

    /// How it arrived at this node.
    pub(super) fn arrival(&self) -> Arrival {
        let preface = self.preface.as_deref();
        preface.map_or(Arrival::Plain, Preface::arrival)
    }

    /// Whether it was requested at an explicit listener, or announced there in a SYN option.
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

    /// Whether it crosses this host between its client and its server, without a request to this
    /// node.
    pub(super) fn is_in_transit(&self) -> bool {
        !(self.fixed || self.is_requested() || self.is_hopping())
    }

    /// Whether a SYN option announced it, and its request has not arrived.
    pub(super) fn is_requested_in_syn(&self) -> bool {
        let preface = self.preface.as_ref();
        preface.is_some_and(|preface| preface.requested_in_syn.is_some())
    }

    /// Whether the client's SYN is held.
    pub(super) fn holds_syn(&self) -> bool {
        matches!(&self.state, State::Opening(pending)
            if pending.opening.is_held() && pending.syn.is_some())
    }

    /// When to check the entry next.
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
            State::Opening(pending) => pending.opening.deadline(),
        }
    }

    fn owes(&self) -> bool {
        self.deferred
            .0
            .iter()
            .any(|deferred| deferred.has_when_old())
    }

    /// Applies the settings that are due at this age to the sockets of an open relay.
    pub(super) fn on_age(&mut self, now: Duration) {
        if !self.is_open() || now < self.started() + OLD {
            return;
        }
        for side in Side::BOTH {
            let deferred = self.deferred[side].take_when_old();
            if let (true, Some(socket)) = (deferred, &self.sockets[side]) {
                // Best effort: the connection works without these settings.
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

    /// Time of its SYN or its accept, in the worker's time.
    pub(super) fn started(&self) -> Duration {
        self.started.into()
    }

    pub(super) fn age(&self, now: Duration) -> Duration {
        now.saturating_sub(self.started())
    }
}

/// What a flow with these has at a side.
pub(super) fn end_of<'a>(
    sockets: &'a Sides<Option<OwnedFd>>,
    preface: Option<&Preface>,
    side: Side,
) -> Option<End<'a>> {
    let stream = || preface?.streams[side].as_ref().map(End::from);
    sockets[side].as_ref().map(End::from).or_else(stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An idle relay takes this and little else of the process's memory.
    // promise: W10
    #[test]
    fn an_entry_stays_small() {
        assert!(size_of::<Entry>() <= 184, "{}", size_of::<Entry>());
    }
}
