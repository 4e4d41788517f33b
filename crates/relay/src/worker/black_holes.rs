// SPDX-License-Identifier: Apache-2.0
//! Which flows bring nothing back: tells [`BlackHoles`] of them.

use std::time::Duration;

use crate::black_holes::SILENT_AFTER;
use crate::intercept::Intercept;
use crate::outcome::Outcome;
use crate::side::Side;

use super::Worker;
use super::entry::{Entry, State};

/// A flow that is older and has sent nothing is not looked at any more.
const LOOK_MAX: Duration = Duration::from_secs(60);

/// Whether the first byte of a flow is waited for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Watch {
    /// When to look again; nothing when it is not waited for, or not any more.
    pub(super) look_at: Option<Duration>,
    /// It had sent something when it was looked at last.
    had_sent: bool,
    /// It counts as silent.
    is_silent: bool,
}

impl<I: Intercept> Worker<I> {
    /// A flow is open: its first byte is waited for, if it began here and goes by a chain.
    pub(super) fn watch_for_silence(&mut self, key: u64) {
        let now = self.now;
        let preface = self.entries.live_mut(key);
        let preface = preface.and_then(|entry| entry.preface.as_deref_mut());
        if let Some(preface) =
            preface.filter(|preface| preface.via.is_some() && preface.by.is_none())
        {
            preface.watch.look_at = Some(now + SILENT_AFTER);
        }
    }

    /// The first byte has come.
    pub(super) fn on_first_byte(&mut self, key: u64) {
        let preface = self.entries.live_mut(key);
        let preface = preface.and_then(|entry| entry.preface.as_deref_mut());
        let Some(preface) = preface else { return };
        let watch = std::mem::take(&mut preface.watch);
        if let (Some(via), None) = (preface.via, preface.by) {
            self.black_holes.on_answer(via.chain, watch.is_silent);
        }
    }

    /// The time to look at a flow has come, maybe.
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
        if is_over {
            self.count_unanswered(key);
        }
    }

    /// A flow has brought nothing back in time.
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
        if self.black_holes.on_silence(via.chain, server, now) {
            self.counters.chains_silent.add(1);
        }
    }

    /// A flow ends, and may have brought nothing back.
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
            // A reset before the next node's word is a doubt of another kind.
            let has_reply = preface.is_some_and(|preface| preface.expecting.is_none());
            if has_waited || is_by_far_end && has_sent && has_reply {
                self.count_unanswered(key);
            }
            return;
        }
        let begins_here = preface.is_none_or(|preface| preface.by.is_none());
        // Where another way was tried before, the next node may have said so.
        let is_unconnected = preface.is_none() && is_of_server(outcome);
        let is_mute = has_waited || is_by_far_end && has_sent || is_unconnected;
        let server = entry.flow.server().ip();
        if begins_here && is_mute && self.black_holes.is_checked(server) {
            self.black_holes.on_mute(server, now);
        }
    }
}

/// The server would not be connected to.
fn is_of_server(outcome: Outcome) -> bool {
    matches!(
        outcome,
        Outcome::ConnectTimeout | Outcome::UpstreamUnreachable | Outcome::UpstreamRefused
    )
}

/// Whether something can have come back by now: the client has sent something, or the next node has to say
/// whether the flow is connected.
fn has_sent(entry: &Entry) -> bool {
    let preface = entry.preface.as_deref();
    let is_awaited = preface.is_some_and(|preface| preface.expecting.is_some());
    matches!(&entry.state, State::Open(relay)
        if is_awaited || relay.moved_from(Side::Downstream) > 0)
}

fn has_received(entry: &Entry) -> bool {
    matches!(&entry.state, State::Open(relay) if relay.moved_from(Side::Upstream) > 0)
}
