// SPDX-License-Identifier: Apache-2.0
//! An open relay up to its end: carries out the steps of [`Relay`](crate::relay::Relay).

use std::time::Duration;

use crate::intercept::Intercept;
use crate::opening::{Joined, reply_of};
use crate::outcome::Outcome;
use crate::relay::{Progress, Ready};
use crate::side::{Side, Sides};
use crate::sys::{self, IcmpError};

use super::Worker;
use super::entry::{Entry, State};
use super::opening::OPEN;
use super::preface::{Preface, reply_of_icmp};
use super::socket_io::SocketIo;
use super::syn_option::note_syn_option;

impl<I: Intercept> Worker<I> {
    /// Gives a relay its turn, with new readiness of its sides.
    pub(super) fn advance_with(&mut self, key: u64, ready: &[(Side, Ready)]) {
        let Some(entry) = self.entries.live_mut(key) else {
            return;
        };
        let own = Sides(Side::BOTH.map(|side| entry.has_own_address(side)));
        let State::Open(relay) = &mut entry.state else {
            return;
        };
        let is_awaited = entry
            .preface
            .as_deref()
            .is_some_and(|preface| preface.expecting.is_some());
        let up = relay.moved_from(Side::Downstream);
        let down = relay.moved_from(Side::Upstream);
        for (side, ready) in ready {
            relay.note(*side, *ready);
        }
        let mut socket_io = SocketIo {
            sockets: &entry.sockets,
            deferred: &mut entry.deferred,
            options: self
                .rules
                .side_options(&entry.rule.rule, entry.preface.as_deref()),
            closed_cookie: &mut entry.closed_cookie,
            own,
            preface: entry.preface.as_deref_mut(),
            buffers: &mut self.buffers,
            short: None,
        };
        let mut progress = relay.advance(&mut socket_io, self.now);
        if relay.has_failed(Side::Downstream)
            && let Some(preface) = &mut entry.preface
        {
            // No other hop would be tried for it, so its last bytes need not wait for the reply.
            preface.fallback = None;
        }
        if entry.preface.as_deref_mut().is_some_and(Preface::resume) {
            // No event reports the bytes that waited in the client's socket.
            let waiting = Ready {
                readable: true,
                ..Ready::default()
            };
            relay.note(Side::Downstream, waiting);
            if progress == Progress::Blocked {
                progress = Progress::Again;
            }
        }
        self.counters
            .bytes_up
            .add(relay.moved_from(Side::Downstream) - up);
        self.counters
            .bytes_down
            .add(relay.moved_from(Side::Upstream) - down);
        self.counters
            .bytes_spliced
            .add(std::mem::take(&mut self.buffers.spliced_bytes));
        if up == 0 || down == 0 {
            self.note_first_bytes(key, up, down);
        }
        if is_awaited && !self.health.is_clear() {
            self.record_replied(key);
        }
        let is_hop = self
            .entries
            .get(key)
            .is_some_and(|entry| entry.preface.is_some());
        if is_hop && !matches!(progress, Progress::Done(_)) {
            self.share_pace(key);
        }
        self.bound_unread(key);
        self.schedule(key, progress);
    }

    /// Notes when a relay gets its next turn, or concludes it.
    fn schedule(&mut self, key: u64, progress: Progress) {
        let Some(entry) = self.entries.live_mut(key) else {
            return;
        };
        match progress {
            Progress::Blocked => {}
            Progress::Again | Progress::Linger if entry.queued => {}
            Progress::Again => {
                entry.queued = true;
                self.again.push(key);
            }
            Progress::Linger => {
                entry.queued = true;
                self.lingering.add(key, entry.active(), self.now);
            }
            Progress::Done(outcome) => self.conclude(key, outcome),
        }
    }

    /// Records the times of the first bytes of each direction. `up` and `down` are the bytes moved
    /// before this turn.
    fn note_first_bytes(&mut self, key: u64, up: u64, down: u64) {
        let Some(entry) = self.entries.live_mut(key) else {
            return;
        };
        let State::Open(relay) = &entry.state else {
            return;
        };
        let begins = |before: u64, from| before == 0 && relay.moved_from(from) > 0;
        let (sent, answered) = (begins(up, Side::Downstream), begins(down, Side::Upstream));
        let age = entry.age(self.now);
        if sent {
            entry.timers.request = age.into();
        }
        if !answered {
            return;
        }
        entry.timers.first_byte = age.into();
        if let Some(tally) = self.counters.rules.at(entry.rule.tally) {
            tally.on_first_byte(age);
        }
        if let Some(preface) = entry.preface.as_deref_mut() {
            note_syn_option(preface, &mut self.syn_options, &self.counters, self.now);
            self.on_first_byte(key);
        }
    }

    /// Ends a relay, with the outcome that the next node reported if it caused the end.
    fn conclude(&mut self, key: u64, outcome: Outcome) {
        let entry = self.entries.live(key);
        let preface = entry.and_then(|entry| entry.preface.as_deref());
        let Some((preface, via)) = preface.and_then(|preface| Some((preface, preface.via?))) else {
            return self.end(key, outcome);
        };
        let joined = Joined {
            via,
            origin: preface.arrival().origin(),
            is_awaited: preface.expecting.is_some(),
            failed: preface.failed,
            is_undelivered: preface.undelivered,
            is_closed_hop: preface.is_closed && preface.is_warm,
            is_abandoned: entry.is_some_and(Entry::has_lost_client),
        };
        self.carry_out_all(key, joined.on_end(outcome), OPEN);
    }

    /// Ends a flow, and sends the reason to its requester, unless that has a reply already.
    pub(super) fn end_with(&mut self, key: u64, outcome: Outcome, error: Option<IcmpError>) {
        let Some(entry) = self.entries.live_mut(key) else {
            return;
        };
        let requester = entry.requester();
        let stream = entry.preface.as_mut();
        let stream = stream.and_then(|preface| preface.streams[Side::Downstream].take());
        let failed = entry.preface.as_ref().and_then(|preface| preface.failed);
        let icmp = error.map(reply_of_icmp);
        let reply = failed.or(icmp).unwrap_or_else(|| reply_of(outcome));
        if let (Some(requester), Some(stream)) = (requester, &stream) {
            let _ = stream.write_message(&requester.answer(reply, None));
            // The answer arrives before the end; what the peer still sends is not wanted.
            let _ = stream.finish();
        }
        if let Some(requester) = requester
            && let Some(socket) = entry.sockets[Side::Downstream].take()
        {
            let from = entry.flow.client();
            // `part` adds it again, as a request.
            let _ = self.epoll.delete(&socket);
            self.end(key, outcome);
            return self.part(socket, from, &requester.answer(reply, None));
        }
        self.end(key, outcome);
    }

    /// The deadline of an entry has passed.
    pub(super) fn on_time(&mut self, key: u64) {
        let now: Duration = self.now;
        let Some(entry) = self.entries.live_mut(key) else {
            return;
        };
        entry.on_age(now);
        self.look_for_silence(key);
        let Some(entry) = self.entries.live(key) else {
            return;
        };
        let outcome = match &entry.state {
            State::Open(relay) => relay.on_time(now, &entry.rule.bounds),
            State::Opening(_) => return self.on_opening_time(key),
        };
        if let Some(outcome) = outcome {
            self.end(key, outcome);
        }
    }

    /// Ends an entry: the one place that removes it from the table, counts it and records it. Both
    /// sides are reset unless it finished.
    pub(super) fn end(&mut self, key: u64, outcome: Outcome) {
        self.count_unanswered_end(key, outcome);
        self.stop_leaving(key);
        self.unread.forget(key);
        // Before the half-open entry is released: the kernel would answer a SYN-ACK that arrives in
        // between.
        if let Some(entry) = self.entries.live_mut(key)
            && !entry.is_open()
        {
            entry.forget_upstream();
        }
        self.release_opening(key);
        let Some(mut entry) = self.entries.remove(key) else {
            return;
        };
        self.end_multipath(key, &entry);
        if let Some(preface) = entry.preface.as_deref_mut() {
            note_syn_option(preface, &mut self.syn_options, &self.counters, self.now);
            for stream in preface.streams.0.iter().flatten() {
                stream.set_code(outcome as u32);
            }
        }
        self.learn(&entry);
        let (flow, is_observed) = (entry.flow, entry.is_observed());
        let closed = self.note_closed(&entry);
        Side::BOTH.iter().for_each(|side| self.unshare(key, *side));
        let record = self.record(key, &entry, outcome);
        // First: a reader that sees the relay ended must find it counted by its rule.
        self.tally_end(&entry, &record);
        self.counters.relays.sub(1);
        self.counters.ended[outcome as usize].add(1);
        self.ended.push(record);
        if outcome == Outcome::Finished {
            // Paths of Multipath TCP may still be open when their connection is over.
            let open = Side::BOTH
                .iter()
                .filter(|side| Some(**side) != closed || self.may_be_multipath(&entry, **side));
            for socket in open.filter_map(|side| entry.sockets[*side].as_ref()) {
                // If this failed, the kernel would send a reset after the FIN.
                let _ = sys::set_reset_on_close(socket, false);
            }
        }
        let Entry { state, sockets, .. } = entry;
        // Without a socket the client's connection is not the node's, and may go on.
        let reset = is_observed && outcome != Outcome::Finished;
        let reset = reset && sockets[Side::Downstream].is_some();
        if let State::Open(relay) = state {
            for pipe in relay.into_pipes() {
                self.buffers.pipes.discard(pipe);
            }
        }
        drop(sockets);
        // After the resets, which belong to it.
        if reset {
            self.intercept.untrack(&flow);
        }
    }
}
