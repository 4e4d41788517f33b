// SPDX-License-Identifier: Apache-2.0
//! The figures that a relay reports when it ends, and where they are counted.

use crate::control::{Course, Ended};
use crate::intercept::Intercept;
use crate::outcome::Outcome;
use crate::side::Side;
use crate::sys;

use super::Worker;
use super::entry::{Entry, State};

/// A shorter handshake belongs to a host so near that a node saves next to nothing.
const NEAR_US: u32 = 1_000;

impl<I: Intercept> Worker<I> {
    /// Counts a relay that ends, by its rule.
    pub(super) fn tally_end(&self, entry: &Entry, ended: &Ended) {
        if let Some(tally) = self.counters.rules.at(entry.rule.tally) {
            let bytes = ended.bytes_up + ended.bytes_down;
            tally.on_end(ended.total, bytes, self.journal.saved(ended));
        }
    }

    /// The course of a relay. Queries the kernel, so only for relays with something to report.
    pub(super) fn course(&self, entry: &Entry, outcome: Outcome) -> Option<Course> {
        let State::Open(relay) = &entry.state else {
            return None;
        };
        let answered = relay.moved_from(Side::Upstream) > 0;
        let finished = outcome == Outcome::Finished && answered;
        if !finished || !entry.is_in_transit() || !is_worth_a_query(entry) {
            return None;
        }
        let leg = |side: Side| sys::leg(entry.sockets[side].as_ref()?).ok();
        let upstream = leg(Side::Upstream)?;
        // The handshake may have been slow only because this worker, or the server, was busy.
        let is_near = upstream.min_rtt_us.is_some_and(|least| least < NEAR_US);
        if is_near && !has_sent_late(entry) {
            return None;
        }
        Some(Course {
            request_us: entry.timers.request.get(),
            prompt: entry.prompt,
            server_closed_first: relay.closed_first() == Some(Side::Downstream),
            downstream: leg(Side::Downstream)?,
            upstream,
        })
    }
}

/// Whether a relay may have saved or cost enough to query the kernel.
fn is_worth_a_query(entry: &Entry) -> bool {
    let Some(server) = entry.timers.answer.get() else {
        return false;
    };
    let shorter = client_of(entry).map_or(server, |client| client.min(server));
    shorter >= NEAR_US || has_sent_late(entry)
}

/// Whether the client's request left for the server much later than both handshakes take.
fn has_sent_late(entry: &Entry) -> bool {
    let server = entry.timers.answer.get().unwrap_or(0);
    let handshakes = server.saturating_add(client_of(entry).unwrap_or(0));
    let request = entry.timers.request.get().unwrap_or(0);
    request > handshakes.saturating_add(NEAR_US)
}

/// How long the handshake with the client took, where known.
fn client_of(entry: &Entry) -> Option<u32> {
    let client = entry.timers.accept.get();
    // In late mode the flow begins at its accept, after that handshake.
    client.filter(|_| entry.accept.connects_at_syn())
}
