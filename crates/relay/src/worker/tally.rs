// SPDX-License-Identifier: Apache-2.0
//! What a relay tells of itself when it ends, and where that is counted.

use crate::control::{Course, Ended};
use crate::intercept::Intercept;
use crate::outcome::Outcome;
use crate::policy::AcceptMode;
use crate::side::Side;
use crate::sys;

use super::Worker;
use super::entry::{Entry, State};

/// A side whose handshake took less is so near that next to nothing is saved by it.
const NEAR_US: u32 = 1_000;

impl<I: Intercept> Worker<I> {
    /// Counts a relay that ends, by its rule.
    pub(super) fn tally_end(&self, entry: &Entry, ended: &Ended) {
        if let Some(tally) = self.counters.rules.at(entry.rule.tally) {
            let bytes = ended.bytes_up + ended.bytes_down;
            tally.on_end(ended.total, bytes, self.journal.saved(ended));
        }
    }

    /// The course of a relay. It asks the kernel, so only for those from which something can be told.
    pub(super) fn course(&self, entry: &Entry, outcome: Outcome) -> Option<Course> {
        let State::Open(relay) = &entry.state else {
            return None;
        };
        let answered = relay.moved_from(Side::Upstream) > 0;
        let finished = outcome == Outcome::Finished && answered;
        if !finished || !entry.is_in_transit() || !is_worth_asking(entry) {
            return None;
        }
        let leg = |side: Side| sys::leg(entry.sockets[side].as_ref()?).ok();
        Some(Course {
            request_us: entry.timers.request.get(),
            prompt: entry.prompt,
            server_closed_first: relay.closed_first() == Some(Side::Downstream),
            downstream: leg(Side::Downstream)?,
            upstream: leg(Side::Upstream)?,
        })
    }
}

/// Whether a relay may have saved or cost so much that the kernel is to be asked about it.
fn is_worth_asking(entry: &Entry) -> bool {
    let timers = &entry.timers;
    let Some(server) = timers.answer.get() else {
        return false;
    };
    let client = timers.accept.get();
    let client = client.filter(|_| entry.accept != AcceptMode::Late);
    let shorter = client.map_or(server, |client| client.min(server));
    let handshakes = server.saturating_add(client.unwrap_or(0));
    let request = timers.request.get().unwrap_or(0);
    shorter >= NEAR_US || request > handshakes.saturating_add(NEAR_US)
}
