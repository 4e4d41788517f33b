// SPDX-License-Identifier: Apache-2.0
//! A controller: the parts of this crate, joined as simply as can be.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use posthaste_plan::table::Classes;

use super::{LIFE, NODES, Stream};
use crate::book::{Book, Saved, Settings};
use crate::message::{DIRECT, NodeNumber, Stamp, ToController};
use crate::planning::Timing;
use crate::registry::{Listed, Registry};

/// After so long without an answer rows are sent again.
const AGAIN: Duration = Duration::from_secs(5);

/// What is known of a node's rows.
#[derive(Default)]
struct Told {
    holds: Option<Stamp>,
    /// The rows that are on their way, and since when.
    sent: Option<(Stamp, Duration)>,
}

/// A controller.
pub(super) struct Controller {
    pub(super) registry: Registry,
    pub(super) book: Book,
    timing: Timing,
    told: BTreeMap<NodeNumber, Told>,
    /// As it was when the last plan was saved.
    saved: Saved,
    /// It makes no plan any more.
    pub(super) rests: bool,
    pub(super) plans: usize,
    pub(super) unnumbered: usize,
}

impl Controller {
    pub(super) fn new(saved: Option<Saved>, now: Duration) -> Self {
        let settings = Settings {
            classes: Classes::new(&[15_000, 450_000], &[0]).unwrap(),
            life: LIFE,
            // So few that they are soon given again, and that now and then none is left.
            numbers: 1000..1160,
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
            book: Book::new(settings, &saved, now),
            timing: Timing::new(now, has_plan),
            told: BTreeMap::new(),
            saved,
            rests: false,
            plans: 0,
            unnumbered: 0,
        }
    }

    /// What a store would have.
    pub(super) fn saved(&self) -> Saved {
        self.saved.clone()
    }

    /// A stream has ended.
    pub(super) fn ended(&mut self, number: NodeNumber, now: Duration) {
        self.told.remove(&number);
        self.registry.away(number, now);
    }

    pub(super) fn hear(&mut self, number: NodeNumber, message: ToController, now: Duration) {
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
            }
            ToController::Holds(holds) => self.hold(number, Some(holds)),
            ToController::Misfit { .. } => self.hold(number, None),
            ToController::Destinations(_) | ToController::Alive | ToController::Time { .. } => {}
        }
    }

    fn hold(&mut self, number: NodeNumber, holds: Option<Stamp>) {
        if holds.is_some_and(|holds| self.book.outrun(holds)) {
            self.saved = self.book.saved();
            self.told.values_mut().for_each(|told| told.sent = None);
        }
        let told = self.told.entry(number).or_default();
        *told = Told { holds, sent: None };
    }

    /// Plans if that is due, and sends rows.
    pub(super) fn run(&mut self, streams: &mut BTreeMap<NodeNumber, Stream>, now: Duration) {
        if !self.registry.expire(now).is_empty() {
            self.timing.death(now);
        }
        if self.timing.due(self.registry.is_complete()) <= now && !self.rests {
            self.plan(now);
        }
        for (number, told) in &mut self.told {
            let is_sent = told
                .sent
                .is_some_and(|(stamp, since)| stamp == self.book.stamp() && now < since + AGAIN);
            if is_sent || told.holds == Some(self.book.stamp()) {
                continue;
            }
            let stream = streams.get_mut(number);
            if let (Some(stream), Some(rows)) = (stream, self.book.rows(*number, told.holds)) {
                told.sent = Some((rows.stamp, now));
                stream.down.push(rows);
            }
        }
    }

    fn plan(&mut self, now: Duration) {
        self.timing.planned(now);
        self.book.plan(&self.registry.network(), now);
        self.saved = self.book.saved();
        self.plans += 1;
        self.unnumbered += self.book.chain_count().1;
        for number in 1..=NODES {
            self.check(number);
        }
    }

    /// Every link of every way of a plan is one that both ends say is up, and every node is there.
    fn check(&self, number: NodeNumber) {
        let rows = self.book.rows(number, None).unwrap();
        let chains: BTreeMap<u32, &Vec<u64>> = rows
            .chains
            .iter()
            .map(|chain| (chain.number, &chain.nodes))
            .collect();
        for ways in &rows.ways {
            let numbers: BTreeSet<u32> = ways.choices.iter().flatten().copied().collect();
            for chain in numbers {
                let direct = vec![number, ways.egress];
                let nodes = if chain == DIRECT {
                    &direct
                } else {
                    chains[&chain]
                };
                for ends in nodes.windows(2) {
                    let link = self.registry.agreed(ends[0], ends[1]).link;
                    assert!(link.is_some(), "{nodes:?} has a dead link");
                }
            }
        }
    }
}
