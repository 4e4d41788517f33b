// SPDX-License-Identifier: Apache-2.0
//! A node that measures, reports what is new, and follows plans.

use std::collections::BTreeMap;

use crate::message::{
    Hello, Link, LinkState, NodeNumber, PlanVersion, RouteUpdate, ToController, VERSION,
};
use crate::route_table::{Refusal, RouteTable};

/// A node.
pub(super) struct Node {
    number: NodeNumber,
    pub(super) held: RouteTable,
    sent: BTreeMap<NodeNumber, LinkState>,
    /// The newest plan that it ever followed, as long as it remembers.
    newest: Option<PlanVersion>,
    pub(super) nacks: usize,
    pub(super) older: usize,
    pub(super) changes: usize,
}

impl Node {
    pub(super) fn new(number: NodeNumber) -> Self {
        Self {
            number,
            held: RouteTable::new(number),
            sent: BTreeMap::new(),
            newest: None,
            nacks: 0,
            older: 0,
            changes: 0,
        }
    }

    /// Starts again, with the rows that it kept, or without any.
    pub(super) fn restart(&mut self, keeps: bool) {
        let kept = self.held.whole().filter(|_| keeps);
        self.held = RouteTable::new(self.number);
        if let Some(update) = &kept {
            self.held.apply(update).unwrap();
        }
        self.newest = self.held.plan_version();
    }

    /// Its first message.
    pub(super) fn greet(&mut self, links: &BTreeMap<NodeNumber, LinkState>) -> Vec<ToController> {
        self.sent.clone_from(links);
        let hello = Hello {
            version: VERSION,
            number: self.number,
            software: String::new(),
            exchange: [0; 32],
            listeners: Vec::new(),
            reflectors: Vec::new(),
            holds: self.held.plan_version(),
        };
        let all = links.iter().map(|(&to, &state)| Link { to, state });
        vec![
            ToController::Hello(hello),
            ToController::Links(all.collect()),
        ]
    }

    /// What was not taken as it was received.
    pub(super) fn news(&mut self, links: &BTreeMap<NodeNumber, LinkState>) -> Vec<ToController> {
        let sent = &self.sent;
        let news = links
            .iter()
            .filter(|(to, state)| sent.get(to) != Some(state));
        let news: Vec<Link> = news.map(|(&to, &state)| Link { to, state }).collect();
        self.sent.clone_from(links);
        if news.is_empty() {
            return Vec::new();
        }
        vec![ToController::Links(news)]
    }

    /// Follows rows, or does not, and answers.
    pub(super) fn receive(&mut self, update: &RouteUpdate) -> ToController {
        match self.held.apply(update) {
            Ok(()) => {
                assert!(
                    self.newest < Some(update.plan_version),
                    "an older plan is followed"
                );
                self.newest = Some(update.plan_version);
                self.changes += usize::from(update.base.is_some());
            }
            Err(Refusal::Older { .. }) => self.older += 1,
            Err(Refusal::Nack(why)) => {
                self.nacks += 1;
                let holds = self.held.plan_version();
                return ToController::Nack { holds, why };
            }
        }
        ToController::Holds(self.held.plan_version().unwrap())
    }
}
