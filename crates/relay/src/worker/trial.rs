// SPDX-License-Identifier: Apache-2.0
//! The first relay between a client and a service, after one of their handshakes was forwarded and
//! observed.
//!
//! It holds the client's SYN until the server has answered, as strict mode does, and returns the
//! SYN to forwarding as soon as an answer is missing: that of the server about when it is due (a
//! firewall may treat packets that this host sends differently from those it forwards), or that of
//! this host to the client (a firewall may drop packets that are delivered here). This costs a
//! client a short delay, once, and no connection.

use std::time::Duration;

use crate::flow::Flow;
use crate::intercept::Intercept;
use crate::outcome::Outcome;

use super::Worker;

/// Failed trials in a row after which this host counts as blocking relays.
const FAILED_MAX: u32 = 3;
/// How long a successful trial counts as evidence that relays work.
const WORKING: Duration = Duration::from_secs(600);
/// How long a server may take, in addition to three times the observed round trip.
const PATIENCE: Duration = Duration::from_millis(100);

impl<I: Intercept> Worker<I> {
    /// How long a flow waits for its server before that counts as failed.
    pub(super) fn trial_patience(&mut self, key: u64) -> Duration {
        let Some(entry) = self.entries.live_mut(key) else {
            return Duration::MAX;
        };
        let flow = entry.flow;
        if !entry
            .pending()
            .is_some_and(|pending| pending.opening.is_trial)
        {
            return Duration::MAX;
        }
        let observed = self.intercept.observed(&flow);
        observed.map_or(PATIENCE, |observed| observed.server_rtt * 3 + PATIENCE)
    }

    /// The time in which this host had to answer the client of a trial is over: reports whether it
    /// has.
    pub(super) fn check_trial(&mut self, key: u64) {
        let Some(entry) = self.entries.live(key) else {
            return;
        };
        let observed = self.intercept.observed(&entry.flow);
        let is_answered = observed.is_some_and(|observed| observed.answered);
        self.drive(key, |opening, now| {
            opening.on_trial_checked(is_answered, now)
        });
    }

    /// A trial got no connection to its server.
    pub(super) fn on_unanswered_trial(&mut self, key: u64, outcome: Outcome) {
        let Some(flow) = self.entries.live(key).map(|entry| entry.flow) else {
            return;
        };
        self.intercept.record_no_answer(&flow);
        if outcome == Outcome::ConnectTimeout {
            self.on_silent_trial(flow);
        }
    }

    /// This host did not answer the client of a trial.
    pub(super) fn on_undelivered_trial(&mut self, key: u64) {
        self.counters.undelivered.add(1);
        self.on_failed_trial();
        if let Some(entry) = self.entries.live(key) {
            self.intercept.record_no_answer(&entry.flow);
        }
    }

    /// The server of a trial did not answer. The server or the network may be at fault: this counts
    /// against this host only if a flow forwarded afterwards got an answer, which is checked when
    /// the next trial fails.
    fn on_silent_trial(&mut self, flow: Flow) {
        let former = self.silent_trial.replace(flow);
        let observed = former.and_then(|former| self.intercept.observed(&former));
        if observed.is_some_and(|observed| observed.bypassed) {
            self.on_failed_trial();
        }
    }

    /// A trial failed because of this host. If several fail and none works, all will. If some have
    /// worked recently, one client and its servers may have caused the failures.
    fn on_failed_trial(&mut self) {
        self.failed_trials += 1;
        let works = self.trial_worked.is_some_and(|at| self.now - at < WORKING);
        if self.failed_trials >= FAILED_MAX && !works {
            self.failed_trials = 0;
            self.intercept.block();
        }
    }

    /// The client of a trial has completed its handshake.
    pub(super) fn on_validated_trial(&mut self) {
        self.failed_trials = 0;
        self.trial_worked = Some(self.now);
    }
}
