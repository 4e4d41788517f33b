// SPDX-License-Identifier: Apache-2.0
//! What the controller makes of what nodes report, and what each is to be sent. Pure: it is handed the time,
//! and plans are made by others.
//!
//! Nothing waits in a queue for a node. [`ControllerState::due`] returns what it is to be sent next as things are then,
//! so a slow node skips what is old.

use std::collections::BTreeMap;
use std::time::Duration;

use posthaste_control::egresses::Egresses;
use posthaste_control::message::{
    Egress, Hello, Interval, NodeNumber, PlanVersion, Prefix, ToController, ToNode, VERSION,
    Welcome,
};
use posthaste_control::planning::Timing;
use posthaste_control::registry::{Denied, Listed, Registry};
use posthaste_control::rib::{Rib, Rollout, Settings};

use super::membership::Membership;
use super::wire::End;

mod pending;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
mod work;

use pending::Pending;
use work::Ends;
pub(super) use work::Work;

/// Nodes receive that others came or went after so long: many come at once.
const SEND_AFTER: Duration = Duration::from_millis(250);
/// Whose destinations are whose is found out anew after so long: every node reports what it measures.
const LIST_AFTER: Duration = Duration::from_secs(10);
/// Nodes that have lost their controller are back within so long: they try every 30 s, chance aside.
const BACK_WITHIN: Duration = Duration::from_secs(60);
/// Rows that did not fit, one after the other, after which a node has to wait for the next plan.
const NACKS_MAX: u32 = 3;
/// Links that a node measures at the interval for those that are not in use. If there are more, each is
/// measured the less often.
const LINKS_AT_INTERVAL: u32 = 100;

/// What does not change while a controller runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// How long a plan stands.
    pub(super) ttl: Duration,
    /// Whether plans are made for hops that are open when flows come.
    pub(super) warm: bool,
    /// Longest interval between messages on a stream.
    pub(super) keepalive: Duration,
}

/// All that is known, and what nodes have been sent of it.
#[derive(Debug)]
pub(super) struct ControllerState {
    limits: Limits,
    intervals: (Duration, Duration),
    pub(super) registry: Registry,
    pub(super) egresses: Egresses,
    timing: Timing,
    membership: Membership,
    settings: Settings,
    /// Nothing while it is being written to.
    rib: Option<Box<Rib>>,
    plan_version: PlanVersion,
    /// Since when that is the newest.
    plan_version_at: Duration,
    /// A plan was begun, and is not all in the RIB.
    is_planning: bool,
    /// What is to be written into the RIB.
    rollout: Option<Rollout>,
    /// How many of its tables are not, and since when.
    left: usize,
    rests_since: Duration,
    /// Links that chains use and that became much worse, and when they did last: those that the tables of the
    /// RIB may not know of.
    worse: BTreeMap<Ends, Duration>,
    /// What a node holds although it is newer than the newest plan.
    advance_epoch: Option<PlanVersion>,
    /// Which nodes reported so, and when they were accepted last.
    newer_version_reported: BTreeMap<NodeNumber, Duration>,
    list: Vec<Egress>,
    list_version: u64,
    /// Nodes that are away for so long that they are not planned with, and when the others receive that. Until
    /// then those follow requests of theirs, as they may follow the last plan.
    away: BTreeMap<NodeNumber, Duration>,
    /// From when on all members are known: nodes that have not come by then have no plan that stands.
    complete_at: Option<Duration>,
    /// When nodes are to be sent the changes of others.
    send_at: Option<Duration>,
    /// When what nodes reported of destinations is to be looked at.
    list_at: Option<Duration>,
    connected: BTreeMap<NodeNumber, Pending>,
}

impl ControllerState {
    /// With the RIB that was kept, and how often links are to be measured: in general, and in use.
    pub(super) fn new(
        limits: Limits,
        rib: Rib,
        intervals: (Duration, Duration),
        now: Duration,
    ) -> Self {
        let plan_version = rib.plan_version();
        let mut registry = Registry::default();
        registry.set_warm(limits.warm);
        Self {
            limits,
            intervals,
            registry,
            egresses: Egresses::new(limits.ttl),
            timing: Timing::new(now, plan_version.version > 0),
            membership: Membership::default(),
            plan_version,
            plan_version_at: now,
            settings: rib.settings().clone(),
            rib: Some(Box::new(rib)),
            is_planning: false,
            rollout: None,
            left: 0,
            rests_since: now,
            worse: BTreeMap::new(),
            advance_epoch: None,
            newer_version_reported: BTreeMap::new(),
            list: Vec::new(),
            list_version: 0,
            away: BTreeMap::new(),
            // Until then a node that is missing may only be late: others keep what they have of it.
            complete_at: Some(now + limits.ttl.max(BACK_WITHIN)),
            send_at: None,
            list_at: None,
            connected: BTreeMap::new(),
        }
    }

    /// Takes on another list of nodes, prefixes, and intervals. Returns the nodes that may not stay.
    pub(super) fn configure(
        &mut self,
        listed: BTreeMap<NodeNumber, Listed>,
        prefixes: BTreeMap<Prefix, NodeNumber>,
        intervals: (Duration, Duration),
        now: Duration,
    ) -> Vec<NodeNumber> {
        self.intervals = intervals;
        let removed = self.registry.set_listed(listed);
        removed.iter().for_each(|node| self.lose(*node, now));
        self.egresses.configure(prefixes);
        self.list_egresses(now);
        self.timing.news(now);
        removed
    }

    /// Whose destinations are whose, as the API sets it.
    pub(super) fn set_prefixes(&mut self, table: BTreeMap<Prefix, NodeNumber>, now: Duration) {
        self.egresses.set(table);
        self.list_egresses(now);
    }

    /// A node sent its hello.
    pub(super) fn enter(&mut self, hello: Hello, now: Duration) -> Result<(), Denied> {
        let (number, holds) = (hello.number, hello.holds);
        self.registry.hello(hello)?;
        if let Some(member) = self.registry.member(number)
            && self.membership.set(member)
        {
            // The first change sets the time: nodes that keep coming must not put it off.
            self.send_at.get_or_insert(now + SEND_AFTER);
        }
        self.away.remove(&number);
        self.connected.insert(number, Pending::new(holds));
        self.note_newer_version(number, holds, now);
        self.list_egresses(now);
        self.timing.news(now);
        Ok(())
    }

    /// The first message to a node.
    pub(super) fn welcome(&self, number: NodeNumber) -> ToNode {
        let seconds = |time: Duration| u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
        ToNode::Welcome(Welcome {
            version: self.spoken(number),
            ttl_s: seconds(self.limits.ttl),
            keepalive_s: seconds(self.limits.keepalive),
        })
    }

    /// The version of messages that is spoken with a node.
    fn spoken(&self, number: NodeNumber) -> u16 {
        let known = self.registry.nodes().get(&number);
        known.map_or(VERSION, |known| known.hello.version.min(VERSION))
    }

    /// A node sent a message after its hello.
    pub(super) fn received(
        &mut self,
        number: NodeNumber,
        message: ToController,
        now: Duration,
    ) -> Result<(), End> {
        if !self.connected.contains_key(&number) {
            // Its key is off the list, and its stream is about to end: nothing is to be left of it.
            return Ok(());
        }
        match message {
            // The key was compared with the number in the first one; another could name any number.
            ToController::Hello(_) => return Err(End::OutOfTurn),
            // Answered by `due`, which has the time at which the network takes the answer.
            ToController::Time { mark, ahead_us } => {
                if let Some(due) = self.connected.get_mut(&number) {
                    due.requests_(mark, ahead_us);
                }
            }
            ToController::Links(links) => {
                let news = self.registry.links(number, &links);
                if news.changed {
                    self.timing.news(now);
                }
                if news.death {
                    self.timing.death(now);
                }
                self.note_worse(number, &news.worse, now);
            }
            ToController::Destinations(destinations) => {
                self.egresses.measured(number, &destinations, now);
                // The first report sets the time: others follow all the while.
                self.list_at.get_or_insert(now + LIST_AFTER);
            }
            ToController::Holds(plan_version) => {
                if let Some(due) = self.connected.get_mut(&number) {
                    due.follows(plan_version);
                }
                self.note_newer_version(number, Some(plan_version), now);
            }
            ToController::Nack { holds, .. } => {
                if let Some(due) = self.connected.get_mut(&number) {
                    due.nack(holds);
                }
                self.note_newer_version(number, holds, now);
            }
        }
        Ok(())
    }

    /// A node's stream has ended.
    pub(super) fn leave(&mut self, number: NodeNumber, now: Duration) {
        // It may be back soon: it is planned with until the registry expires it.
        self.connected.remove(&number);
        self.registry.away(number, now);
    }

    /// When something is due without a message of a node: nodes to be forgotten, sent changes, or
    /// planned with.
    pub(super) fn deadline(&self) -> Duration {
        let plan = self.plan_due();
        // While a thread has the RIB nothing else can be written to it.
        let rib = self.rib.as_ref().and_then(|_| self.rib_due());
        let away = self.away.values().min().copied();
        let registry = self.registry.deadline();
        let dues = [plan, rib, registry, away];
        let others = [self.send_at, self.list_at, self.complete_at];
        let dues = dues.into_iter().chain(others).flatten();
        // A node that comes wakes the planner itself: there is no need to look when nothing is due.
        dues.min().unwrap_or(Duration::MAX)
    }

    /// Does what is due at a time. Returns whether streams are to check what is due to their nodes.
    pub(super) fn tick(&mut self, now: Duration) -> bool {
        for node in self.registry.expire(now) {
            self.away.insert(node, now + self.limits.ttl);
            self.plan_without(node, now);
        }
        for node in self.away.extract_if(.., |_, until| *until <= now) {
            self.membership.remove(node.0);
            self.send_at = Some(now);
        }
        if self.complete_at.take_if(|at| *at <= now).is_some() {
            // Each is sent a whole list now: members that went before this start are not in it.
            self.connected
                .values_mut()
                .for_each(|due| due.members = None);
            self.send_at = Some(now);
        }
        let lists = self.list_at.take_if(|at| *at <= now).is_some();
        if lists {
            self.list_egresses(now);
        }
        self.send_at.take_if(|at| *at <= now).is_some() || lists
    }

    /// What a node is to be sent now, which is `time` since 1970.
    pub(super) fn due(&mut self, number: NodeNumber, time: Duration) -> Option<ToNode> {
        let due = self.connected.get_mut(&number)?;
        // First: what is sent before it makes it less exact.
        if let Some(mark) = due.take_question() {
            let unix_us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
            return Some(ToNode::Time { mark, unix_us });
        }
        let is_all = self.complete_at.is_none();
        // Before routes, which name members by number.
        if let Some(members) = self.membership.since(number, due.members, is_all) {
            due.members = Some(self.membership.version());
            return Some(members);
        }
        // What nodes measured is complete when they are.
        let is_planned = self.rib.as_deref().is_some_and(Rib::is_planned);
        if is_planned && due.egresses != Some(self.list_version) {
            due.egresses = Some(self.list_version);
            return Some(ToNode::Egresses(self.list.clone()));
        }
        if due.wants_word(self.plan_version) {
            return Some(ToNode::LeaseRenewed(self.plan_version));
        }
        let rib = self.rib.as_ref().filter(|rib| rib.is_planned())?;
        // Rows first: what died is in those that a node has.
        if let Some(base) = due.wants_update(self.plan_version) {
            return rib.update(number, base).map(ToNode::RouteUpdate);
        }
        // After its routes, since the intervals follow from the same plan.
        if due.wants_intervals() {
            let membership = &self.membership;
            let intervals = intervals(number, membership, rib, self.intervals);
            if due.take_intervals(&intervals) {
                return Some(ToNode::Measure(intervals));
            }
        }
        None
    }

    /// What a node is sent when nothing is due: that its plan stands, or nothing at all.
    pub(super) fn idle(&self, number: NodeNumber) -> ToNode {
        let due = self.connected.get(&number);
        if due.is_some_and(|due| due.holds == Some(self.plan_version)) {
            return ToNode::LeaseRenewed(self.plan_version);
        }
        // An empty change shows that the controller is there, and renews no plan.
        ToNode::Members {
            all: false,
            members: Vec::new(),
            removed: Vec::new(),
        }
    }

    /// The newest plan.
    pub(super) fn plan_version(&self) -> PlanVersion {
        self.plan_version
    }

    /// The RIB, unless it is being written to.
    pub(super) fn rib(&self) -> Option<&Rib> {
        self.rib.as_deref()
    }

    /// Whose destinations are whose.
    pub(super) fn list(&self) -> &[Egress] {
        &self.list
    }

    /// What a node with a stream holds; nothing without a stream.
    pub(super) fn holds(&self, number: NodeNumber) -> Option<Option<PlanVersion>> {
        self.connected.get(&number).map(|due| due.holds)
    }

    /// How far the clock of a node with a stream is ahead of the time it was sent, in microseconds, as it reports.
    pub(super) fn clock_ahead_us(&self, number: NodeNumber) -> Option<i64> {
        self.connected.get(&number)?.clock_ahead_us
    }

    /// A node may not be here any more: nobody is to deal with it.
    pub(super) fn lose(&mut self, node: NodeNumber, now: Duration) {
        self.away.remove(&node);
        self.membership.remove(node);
        self.send_at.get_or_insert(now);
        self.plan_without(node, now);
    }

    fn plan_without(&mut self, node: NodeNumber, now: Duration) {
        self.registry.forget(node);
        self.connected.remove(&node);
        self.egresses.forget(node);
        self.list_egresses(now);
        self.timing.death(now);
    }

    fn list_egresses(&mut self, now: Duration) {
        let nodes = self.registry.nodes();
        let list = self.egresses.list(|node| nodes.contains_key(&node), now);
        if list != self.list {
            self.list = list;
            // Streams send the list again for each version.
            self.list_version += 1;
        }
    }

    /// A node may hold a newer plan than the newest: then the store was lost, or is older. It can be so once
    /// for each node; a node that reports it again lies, and would have all nodes sent all rows.
    fn note_newer_version(&mut self, number: NodeNumber, held: Option<PlanVersion>, now: Duration) {
        let Some(held) = held.filter(|held| *held > self.plan_version) else {
            return;
        };
        let accepted = self.newer_version_reported.get(&number);
        if accepted.is_none_or(|at| *at + self.limits.ttl <= now) {
            self.newer_version_reported.insert(number, now);
            self.advance_epoch(held, now);
        }
    }

    /// Begins an epoch that is newer than a plan that a node holds.
    fn advance_epoch(&mut self, held: PlanVersion, now: Duration) {
        match &mut self.rib {
            // The RIB is being written to: `written` advances the epoch when it is back.
            None => self.advance_epoch = self.advance_epoch.max(Some(held)),
            Some(rib) => {
                if rib.advance_epoch(held) {
                    (self.plan_version, self.plan_version_at) = (rib.plan_version(), now);
                    self.timing.news(now);
                    self.connected.values_mut().for_each(Pending::look_again);
                }
            }
        }
    }
}

/// How often a node is to measure whom: those that are beside it in chains more often than the others.
/// Links that flows use without a node between are found by the flows: nearly all may be, and then no
/// link would be measured less often than another.
fn intervals(
    node: NodeNumber,
    membership: &Membership,
    rib: &Rib,
    (interval, in_use): (Duration, Duration),
) -> Vec<Interval> {
    let near = rib.beside_in_chains(node);
    let others = membership.numbers().filter(|other| *other != node);
    let count = u32::try_from(others.clone().count()).unwrap_or(u32::MAX);
    // In whole multiples of the interval: the rate of probes stays bounded.
    let stretched = interval * count.div_ceil(LINKS_AT_INTERVAL).max(1);
    let millis = |time: Duration| u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
    others
        .map(|to| Interval {
            to,
            every_ms: millis(if near.contains(&to) {
                in_use
            } else {
                stretched
            }),
        })
        .collect()
}
