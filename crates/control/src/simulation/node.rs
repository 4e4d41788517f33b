// SPDX-License-Identifier: Apache-2.0
//! A node that measures, tells what is news, and follows plans.

use std::collections::BTreeMap;

use crate::message::{Hello, Link, LinkState, NodeNumber, Rows, Stamp, ToController, VERSION};
use crate::rows::{Held, Refusal};

/// A node.
pub(super) struct Node {
    number: NodeNumber,
    pub(super) held: Held,
    told: BTreeMap<NodeNumber, LinkState>,
    /// The newest plan that it ever followed, as long as it remembers.
    newest: Option<Stamp>,
    pub(super) misfits: usize,
    pub(super) older: usize,
    pub(super) changes: usize,
}

impl Node {
    pub(super) fn new(number: NodeNumber) -> Self {
        Self {
            number,
            held: Held::new(number),
            told: BTreeMap::new(),
            newest: None,
            misfits: 0,
            older: 0,
            changes: 0,
        }
    }

    /// Starts again, with the rows that it kept, or without any.
    pub(super) fn restart(&mut self, keeps: bool) {
        let kept = self.held.whole().filter(|_| keeps);
        self.held = Held::new(self.number);
        if let Some(rows) = &kept {
            self.held.apply(rows).unwrap();
        }
        self.newest = self.held.stamp();
    }

    /// What it says first.
    pub(super) fn greet(&mut self, links: &BTreeMap<NodeNumber, LinkState>) -> Vec<ToController> {
        self.told.clone_from(links);
        let hello = Hello {
            version: VERSION,
            number: self.number,
            software: String::new(),
            exchange: [0; 32],
            listeners: Vec::new(),
            reflectors: Vec::new(),
            holds: self.held.stamp(),
        };
        let all = links.iter().map(|(&to, &state)| Link { to, state });
        vec![
            ToController::Hello(hello),
            ToController::Links(all.collect()),
        ]
    }

    /// What is not as it was told.
    pub(super) fn news(&mut self, links: &BTreeMap<NodeNumber, LinkState>) -> Vec<ToController> {
        let told = &self.told;
        let news = links
            .iter()
            .filter(|(to, state)| told.get(to) != Some(state));
        let news: Vec<Link> = news.map(|(&to, &state)| Link { to, state }).collect();
        self.told.clone_from(links);
        if news.is_empty() {
            return vec![ToController::Alive];
        }
        vec![ToController::Links(news)]
    }

    /// Follows rows, or does not, and answers.
    pub(super) fn hear(&mut self, rows: &Rows) -> ToController {
        match self.held.apply(rows) {
            Ok(()) => {
                assert!(self.newest < Some(rows.stamp), "an older plan is followed");
                self.newest = Some(rows.stamp);
                self.changes += usize::from(rows.base.is_some());
            }
            Err(Refusal::Older { .. }) => self.older += 1,
            Err(Refusal::Misfit(why)) => {
                self.misfits += 1;
                let holds = self.held.stamp();
                return ToController::Misfit { holds, why };
            }
        }
        ToController::Holds(self.held.stamp().unwrap())
    }
}
