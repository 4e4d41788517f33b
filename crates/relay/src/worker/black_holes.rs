// SPDX-License-Identifier: Apache-2.0
//! Reports to [`BlackHoles`] which flows get no bytes back.

use std::time::Duration;

use crate::black_holes::SILENT_AFTER;
use crate::intercept::Intercept;
use crate::outcome::Outcome;
use crate::side::Side;

use super::Worker;
use super::entry::{Entry, State};

/// A flow that is older and has sent nothing is no longer checked.
const LOOK_MAX: Duration = Duration::from_secs(60);

/// Whether the worker waits for the first byte of a flow.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Watch {
    /// When to check again; `None` if it does not wait, or no longer.
    pub(super) look_at: Option<Duration>,
    /// Whether it had sent something at the last check.
    had_sent: bool,
    /// Whether it counts as silent.
    is_silent: bool,
}

impl Entry {
    /// It is open: waits for its first byte, if it began at this node and uses a chain.
    pub(super) fn watch_for_silence(&mut self, now: Duration) {
        if let Some(preface) = &mut self.preface
            && preface.via.is_some()
            && preface.by.is_none()
        {
            preface.watch.look_at = Some(now + SILENT_AFTER);
        }
    }
}

impl<I: Intercept> Worker<I> {
    /// The first byte has arrived.
    pub(super) fn on_first_byte(&mut self, key: u64) {
        let preface = self.entries.live_mut(key);
        let preface = preface.and_then(|entry| entry.preface.as_deref_mut());
        let Some(preface) = preface else { return };
        let watch = std::mem::take(&mut preface.watch);
        if let (Some(via), None) = (preface.via, preface.by) {
            self.black_holes.on_answer(via, watch.is_silent);
        }
    }

    /// Checks a flow if its time has come.
    pub(super) fn look_for_silence(&mut self, key: u64) {
        let now = self.now;
        let Some(entry) = self.entries.live_mut(key) else {
            return;
        };
        let (has_sent, age) = (has_sent(entry), entry.age(now));
        let watch = entry
            .preface
            .as_deref_mut()
            .map(|preface| &mut preface.watch);
        let Some(watch) = watch.filter(|watch| watch.look_at.is_some_and(|at| at <= now)) else {
            return;
        };
        let is_over = watch.had_sent;
        watch.had_sent = has_sent;
        watch.look_at = (!is_over && age < LOOK_MAX).then_some(now + SILENT_AFTER);
        // It had sent something at the check before: the server had the time between the two for an
        // answer.
        if is_over {
            self.count_unanswered(key);
        }
    }

    /// A flow got no bytes back in time.
    pub(super) fn count_unanswered(&mut self, key: u64) {
        let now = self.now;
        let Some(entry) = self.entries.live_mut(key) else {
            return;
        };
        let server = entry.flow.server().ip();
        let preface = entry.preface.as_deref_mut();
        let Some(preface) =
            preface.filter(|preface| preface.by.is_none() && !preface.watch.is_silent)
        else {
            return;
        };
        let Some(via) = preface.via else { return };
        (preface.watch.look_at, preface.watch.is_silent) = (None, true);
        if self.black_holes.on_silence(via, server, now) {
            self.counters.chains_silent.add(1);
        }
    }

    /// A flow ends, possibly without a byte from the server.
    pub(super) fn count_unanswered_end(&mut self, key: u64, outcome: Outcome) {
        let now = self.now;
        let Some(entry) = self.entries.live(key) else {
            return;
        };
        if has_received(entry) {
            return;
        }
        let preface = entry.preface.as_deref();
        let (has_sent, age) = (has_sent(entry), entry.age(now));
        let has_waited = age >= SILENT_AFTER && has_sent;
        let is_by_far_end = matches!(outcome, Outcome::Finished | Outcome::UpstreamReset);
        if preface.is_some_and(|preface| preface.via.is_some()) {
            // A reset before the next node's reply is handled elsewhere.
            let has_reply = preface.is_some_and(|preface| preface.expecting.is_none());
            if has_waited || is_by_far_end && has_sent && has_reply {
                self.count_unanswered(key);
            }
            return;
        }
        let begins_here = preface.is_none_or(|preface| preface.by.is_none());
        // If another route was tried before, the error may be from the next node.
        let is_unconnected = preface.is_none() && is_of_server(outcome);
        let is_mute = has_waited || is_by_far_end && has_sent || is_unconnected;
        let server = entry.flow.server().ip();
        if begins_here && is_mute && self.black_holes.is_checked(server) {
            self.black_holes.on_mute(server, now);
        }
    }
}

/// Whether the server did not accept the connection.
fn is_of_server(outcome: Outcome) -> bool {
    matches!(
        outcome,
        Outcome::ConnectTimeout | Outcome::UpstreamUnreachable | Outcome::UpstreamRefused
    )
}

/// Whether an answer could have arrived by now: the client has sent something, or the next node
/// must reply whether the flow is connected.
fn has_sent(entry: &Entry) -> bool {
    let preface = entry.preface.as_deref();
    let is_awaited = preface.is_some_and(|preface| preface.expecting.is_some());
    matches!(&entry.state, State::Open(relay)
        if is_awaited || relay.moved_from(Side::Downstream) > 0)
}

fn has_received(entry: &Entry) -> bool {
    matches!(&entry.state, State::Open(relay) if relay.moved_from(Side::Upstream) > 0)
}
