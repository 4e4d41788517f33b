// SPDX-License-Identifier: Apache-2.0
//! A controller: the parts of this crate, joined as simply as can be.

use std::collections::BTreeMap;
use std::time::Duration;

use posthaste_plan::table::Classes;

use super::{NODES, Stream};
use crate::message::{NodeNumber, PlanVersion, ToController};
use crate::planning::Timing;
use crate::registry::{Listed, Registry};
use crate::rib::{Rib, Rollout, Settings};
use posthaste_testkit::Rng;

/// After so long without an answer rows are sent again.
const AGAIN: Duration = Duration::from_secs(5);

/// What is known of a node's rows.
#[derive(Default)]
struct Sent {
    holds: Option<PlanVersion>,
    /// The rows that are on their way, and since when.
    sent: Option<(PlanVersion, Duration)>,
}

/// Tables that are being made, or written down.
struct Planning {
    rollout: Rollout,
    /// When the tables are there, and how many nodes are written down at a time.
    ready: Duration,
    step: u32,
}

/// A controller.
pub(super) struct Controller {
    pub(super) registry: Registry,
    pub(super) rib: Rib,
    timing: Timing,
    planning: Option<Planning>,
    /// Links that became much worse since the last plan that is written down was begun, and when.
    worse: BTreeMap<(NodeNumber, NodeNumber), Duration>,
    sent: BTreeMap<NodeNumber, Sent>,
    /// As it was when the last plan was saved.
    saved: PlanVersion,
    /// It makes no plan any more.
    pub(super) rests: bool,
    pub(super) plans: usize,
    pub(super) repairs: usize,
}

impl Controller {
    pub(super) fn new(saved: Option<PlanVersion>, now: Duration) -> Self {
        let settings = Settings {
            classes: Classes::new(&[15_000, 450_000], &[0]).unwrap(),
            ..Settings::default()
        };
        let listed = Listed {
            name: String::new(),
            cost_us: 500,
        };
        let mut registry = Registry::default();
        registry.set_listed((1..=NODES).map(|number| (number, listed.clone())).collect());
        let has_plan = saved.is_some();
        let saved = saved.unwrap_or_default();
        Self {
            registry,
            rib: Rib::new(settings, saved),
            timing: Timing::new(now, has_plan),
            planning: None,
            worse: BTreeMap::new(),
            sent: BTreeMap::new(),
            saved,
            rests: false,
            plans: 0,
            repairs: 0,
        }
    }

    /// What a store would have.
    pub(super) fn saved(&self) -> PlanVersion {
        self.saved
    }

    /// A stream has ended.
    pub(super) fn ended(&mut self, number: NodeNumber, now: Duration) {
        self.sent.remove(&number);
        self.registry.away(number, now);
    }

    pub(super) fn receive(&mut self, number: NodeNumber, message: ToController, now: Duration) {
        match message {
            ToController::Hello(hello) => {
                let holds = hello.holds;
                self.registry.hello(hello).unwrap();
                self.timing.news(now);
                self.hold(number, holds);
            }
            ToController::Links(links) => {
                let news = self.registry.links(number, &links);
                if news.death {
                    self.timing.death(now);
                } else if news.changed {
                    self.timing.news(now);
                }
                for other in news.worse {
                    let ends = (number.min(other), number.max(other));
                    self.worse.insert(ends, now);
                    self.timing.worse(now);
                }
            }
            ToController::Holds(holds) => self.hold(number, Some(holds)),
            ToController::Nack { .. } => self.hold(number, None),
            ToController::Destinations(_) | ToController::Time { .. } => {}
        }
    }

    fn hold(&mut self, number: NodeNumber, holds: Option<PlanVersion>) {
        if holds.is_some_and(|holds| self.rib.advance_epoch(holds)) {
            self.saved = self.rib.plan_version();
            self.sent.values_mut().for_each(|sent| sent.sent = None);
        }
        let sent = self.sent.entry(number).or_default();
        *sent = Sent { holds, sent: None };
    }

    /// Plans and repairs if that is due, and sends rows.
    pub(super) fn run(
        &mut self,
        streams: &mut BTreeMap<NodeNumber, Stream>,
        rng: &mut Rng,
        now: Duration,
    ) {
        if !self.registry.expire(now).is_empty() {
            self.timing.death(now);
        }
        let is_due = self.timing.due(|| self.registry.is_complete()) <= now && !self.rests;
        if self.planning.is_none() && is_due {
            self.begin(rng, now);
        }
        let repair_due = self.timing.repair_due().is_some_and(|due| due <= now);
        let is_ready = |planning: &Planning| planning.ready <= now;
        if repair_due || self.planning.as_ref().is_some_and(is_ready) {
            self.write(now);
        }
        for (number, sent) in &mut self.sent {
            let is_sent = sent.sent.is_some_and(|(plan_version, since)| {
                plan_version == self.rib.plan_version() && now < since + AGAIN
            });
            if is_sent || sent.holds == Some(self.rib.plan_version()) {
                continue;
            }
            let stream = streams.get_mut(number);
            if let (Some(stream), Some(update)) = (stream, self.rib.update(*number, sent.holds)) {
                sent.sent = Some((update.plan_version, now));
                stream.down.push(update);
            }
        }
    }

    /// Tables are made, of what is known now; they may be there at once, or after others have died.
    fn begin(&mut self, rng: &mut Rng, now: Duration) {
        self.timing.planned(now);
        let network = self.registry.network();
        let tables = self.rib.settings().tables(&network);
        let takes = rng.below(3) * rng.below(3000);
        self.planning = Some(Planning {
            rollout: Rollout::new(network, tables),
            ready: now + Duration::from_millis(takes),
            // None at all would never be over.
            step: 2 + rng.below(10),
        });
    }

    /// Writes down what there is, and repairs it by what is known now.
    fn write(&mut self, now: Duration) {
        let ready = self.planning.as_mut().filter(|plan| plan.ready <= now);
        let is_over = ready.is_some_and(|planning| {
            let mut left = planning.step;
            self.rib.roll_out(&mut planning.rollout, || {
                left = left.saturating_sub(1);
                left > 0
            });
            planning.rollout.is_over()
        });
        self.timing.repairing(now);
        let worse: Vec<_> = self.worse.keys().copied().collect();
        let repaired = self.rib.repair(&self.registry.network(), &worse);
        self.timing.repaired(now);
        self.repairs += usize::from(repaired.changed);
        self.saved = self.rib.plan_version();
        if is_over {
            self.planning = None;
            self.timing.made(now);
            let begun = self.timing.planned_at();
            self.worse.retain(|_, at| *at > begun);
            self.plans += 1;
        }
        (1..=NODES).for_each(|number| self.check(number));
    }

    /// Every link of every way of a plan is one that both ends report as up, and every node is there.
    fn check(&self, number: NodeNumber) {
        let Some(update) = self.rib.update(number, None) else {
            return;
        };
        for routes in &update.routes {
            for inner in &routes.chains {
                let nodes = [&[number], &inner[..], &[routes.egress]].concat();
                for ends in nodes.windows(2) {
                    let link = self.registry.agreed(ends[0], ends[1]).link;
                    assert!(link.is_some(), "{nodes:?} has a dead link");
                }
            }
        }
    }
}
