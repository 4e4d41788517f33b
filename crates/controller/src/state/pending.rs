// SPDX-License-Identifier: Apache-2.0
//! What one node has been sent. Pure.

use posthaste_control::message::{Interval, PlanVersion};

use super::NACKS_MAX;

/// What a node with a stream knows, as far as the controller knows.
#[derive(Debug)]
pub(super) struct Pending {
    /// Up to which change of the members it was sent; nothing yet.
    pub(super) members: Option<u64>,
    /// Which list of egresses it was sent.
    pub(super) egresses: Option<u64>,
    /// The plan that it reports to hold.
    pub(super) holds: Option<PlanVersion>,
    /// Rows that did not fit, since some did.
    nacks: u32,
    /// It was sent rows, and has not reported whether they fit.
    awaits_answer: bool,
    /// Of which plan the last were.
    sent: Option<PlanVersion>,
    /// It is to receive that its plan stands: it has just come with it, or has just taken it.
    renewal_due: bool,
    /// It is to be sent all rows, not changes.
    whole: bool,
    intervals: Vec<Interval>,
    intervals_due: bool,
    /// The mark of a question for the time.
    requested: Option<u64>,
    /// How far its clock is ahead of the time it was sent, in microseconds, as it reports.
    pub(super) clock_ahead_us: Option<i64>,
}

impl Pending {
    /// A node that has come with a plan, or without.
    pub(super) fn new(holds: Option<PlanVersion>) -> Self {
        Self {
            members: None,
            egresses: None,
            holds,
            nacks: 0,
            awaits_answer: false,
            sent: None,
            renewal_due: true,
            whole: false,
            intervals: Vec::new(),
            intervals_due: true,
            requested: None,
            clock_ahead_us: None,
        }
    }

    /// It requests the time.
    pub(super) fn requests_(&mut self, mark: u64, clock_ahead_us: Option<i64>) {
        self.requested = Some(mark);
        if clock_ahead_us.is_some() {
            self.clock_ahead_us = clock_ahead_us;
        }
    }

    /// The mark of its question, which is to be answered now.
    pub(super) fn take_question(&mut self) -> Option<u64> {
        self.requested.take()
    }

    /// There is another plan.
    pub(super) fn look_again(&mut self) {
        self.intervals_due = true;
        // Rows of another plan may fit where those of the last did not.
        if self.nacks > NACKS_MAX {
            self.nacks = 0;
            self.awaits_answer = false;
        }
    }

    /// Rows did not fit. All are sent, but not again and again.
    pub(super) fn nack(&mut self, holds: Option<PlanVersion>) {
        self.holds = holds;
        self.nacks += 1;
        // What it holds is in doubt: changes to that would not fit either.
        self.whole = true;
        // Beyond the bound it waits until `look_again` at the next plan.
        self.awaits_answer = self.nacks > NACKS_MAX;
    }

    /// It follows a plan.
    pub(super) fn follows(&mut self, plan_version: PlanVersion) {
        self.holds = Some(plan_version);
        self.nacks = 0;
        self.awaits_answer = false;
        self.renewal_due = true;
    }

    /// Whether it is to receive now that its plan stands, which is so if that is the newest.
    pub(super) fn wants_word(&mut self, newest: PlanVersion) -> bool {
        let is_newest = self.holds == Some(newest) && !self.whole;
        // Not taken before: the renewal stays due until the node holds the newest plan.
        is_newest && std::mem::take(&mut self.renewal_due)
    }

    pub(super) fn wants_intervals(&mut self) -> bool {
        std::mem::take(&mut self.intervals_due)
    }

    /// Whether these are others than it was sent.
    pub(super) fn take_intervals(&mut self, intervals: &[Interval]) -> bool {
        if self.intervals == intervals {
            return false;
        }
        self.intervals = intervals.to_vec();
        true
    }

    /// Whether it has the newest plan, or is being sent its rows.
    pub(super) fn is_sent(&self, newest: PlanVersion) -> bool {
        let is_sent = self.awaits_answer && self.sent == Some(newest);
        is_sent || self.holds > Some(newest) || (self.holds == Some(newest) && !self.whole)
    }

    /// Whether rows of the newest plan are to be sent, and as changes to what. Rows that it has not
    /// answered come first: only then is it known what it holds. Who holds a newer plan, which cannot be,
    /// would refuse them.
    pub(super) fn wants_update(&mut self, newest: PlanVersion) -> Option<Option<PlanVersion>> {
        let has_newest = self.holds == Some(newest) && !self.whole;
        if self.awaits_answer || has_newest || self.holds > Some(newest) {
            return None;
        }
        self.awaits_answer = true;
        self.sent = Some(newest);
        let whole = std::mem::take(&mut self.whole);
        Some(self.holds.filter(|_| !whole))
    }
}
