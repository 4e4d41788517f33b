// SPDX-License-Identifier: Apache-2.0
//! When which work is to be done for plans. Who does it takes what it needs with it, and gives it back.

use std::time::Duration;

use posthaste_control::message::NodeNumber;
use posthaste_control::rib::{Network, Rib, Rollout, Settings};

use super::ControllerState;
use super::pending::Pending;

/// How long the writing down of tables rests at the most until nodes have been sent what is written: rows are
/// not made meanwhile.
const SENDING_TIME_MAX: Duration = Duration::from_secs(2);
/// How long it rests at the most although repairs have made something else to be sent meanwhile: a node that
/// does not answer, and links that are another each second, must not keep a plan from all nodes.
const RESTING_TIME_MAX: Duration = Duration::from_secs(4);

/// A link.
pub(super) type Ends = (NodeNumber, NodeNumber);

/// What is to be done, each on a thread that may take its time.
#[derive(Debug)]
pub(in super::super) enum Work {
    /// Tables are to be made for a network. [`ControllerState::tabled`] takes them.
    Tables(Settings, Network),
    /// The RIB is to be repaired, and what is to be written into it is to be written until another repair
    /// is due. [`ControllerState::written`] takes both back.
    Rib(Box<Rib>, Option<Rollout>),
}

impl ControllerState {
    /// Links between a node and these others became much worse. Those matter that ways lead over; while the
    /// RIB is written to, any may be. Tables that are not all in the RIB may use any, too: what becomes worse
    /// meanwhile they do not know.
    pub(super) fn note_worse(&mut self, number: NodeNumber, others: &[NodeNumber], now: Duration) {
        if others.is_empty() {
            return;
        }
        let near = self.rib.as_ref().map(|rib| rib.neighbours(number));
        for other in others {
            let is_used = near.as_ref().is_none_or(|near| near.contains(other));
            if is_used || self.is_planning {
                // One entry for the link, whichever end reports it.
                let ends = (number.min(*other), number.max(*other));
                self.worse.insert(ends, now);
            }
            if is_used {
                self.timing.worse(now);
            }
        }
    }

    /// When tables are to be made, unless those of the last plan are not all in the RIB.
    pub(super) fn plan_due(&self) -> Option<Duration> {
        let is_complete = || self.registry.is_complete();
        (!self.is_planning).then(|| self.timing.due(is_complete))
    }

    /// When the RIB is to be written to. Nodes first are sent what is written, as they cannot be meanwhile.
    pub(super) fn rib_due(&self) -> Option<Duration> {
        let roll_out = self.rollout.as_ref().map(|_| {
            let is_planned = self.rib.as_deref().is_some_and(Rib::is_planned);
            let is_sent = |due: &Pending| !is_planned || due.is_sent(self.plan_version);
            let all_listed = self.connected.values().all(is_sent);
            if all_listed {
                return self.plan_version_at;
            }
            let rests_until = self.rests_since + RESTING_TIME_MAX;
            (self.plan_version_at + SENDING_TIME_MAX).min(rests_until)
        });
        roll_out.into_iter().chain(self.timing.repair_due()).min()
    }

    /// What is to be done now, if anything is.
    pub(in super::super) fn work(&mut self, now: Duration) -> Option<Work> {
        // The RIB first: a repair takes what died out of routes sooner than new tables do.
        if self.rib_due().is_some_and(|due| due <= now)
            && let Some(rib) = self.rib.take()
        {
            return Some(Work::Rib(rib, self.rollout.take()));
        }
        self.plan_due().filter(|due| *due <= now)?;
        self.timing.planned(now);
        self.is_planning = true;
        Some(Work::Tables(self.settings.clone(), self.registry.network()))
    }

    /// Tables were made.
    pub(in super::super) fn tabled(&mut self, rollout: Rollout) {
        (self.rests_since, self.left) = (self.plan_version_at, rollout.left());
        self.rollout = Some(rollout);
    }

    /// Whether who writes tables down is to leave off, as there is something to repair.
    pub(in super::super) fn is_repair_due(&self, now: Duration) -> bool {
        self.timing.repair_due().is_some_and(|due| due <= now)
    }

    /// What the RIB is to be repaired by, and the links that may have become worse than it knows.
    pub(in super::super) fn repairing(&mut self, now: Duration) -> (Network, Vec<Ends>) {
        self.timing.repairing(now);
        let worse = self.worse.keys().copied().collect();
        (self.registry.network(), worse)
    }

    /// The RIB was repaired, and is kept where it survives. Returns how long a plan took, if one is whole now.
    pub(in super::super) fn written(
        &mut self,
        rib: Box<Rib>,
        rollout: Option<Rollout>,
        now: Duration,
    ) -> Option<Duration> {
        self.timing.repaired(now);
        if self.plan_version != rib.plan_version() {
            self.plan_version = rib.plan_version();
            self.plan_version_at = now;
        }
        self.rib = Some(rib);
        let left = rollout.as_ref().map_or(self.left, Rollout::left);
        if left < self.left {
            (self.rests_since, self.left) = (now, left);
        }
        let is_over = rollout.as_ref().is_some_and(Rollout::is_over);
        // Tables may have been made while the RIB was repaired.
        self.rollout = rollout.filter(|_| !is_over).or_else(|| self.rollout.take());
        // Put off while the RIB was being written to.
        if let Some(held) = self.advance_epoch.take() {
            self.advance_epoch(held, now);
        }
        is_over.then(|| self.planned(now))
    }

    /// All of a plan is in the RIB.
    fn planned(&mut self, now: Duration) -> Duration {
        self.is_planning = false;
        let known = self.timing.planned_at();
        // What became worse after the tables were begun is not in them.
        self.worse.retain(|_, at| *at > known);
        self.list_egresses(now);
        self.connected.values_mut().for_each(Pending::look_again);
        self.timing.made(now)
    }
}
