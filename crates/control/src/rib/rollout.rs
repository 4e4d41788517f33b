// SPDX-License-Identifier: Apache-2.0
//! Writing tables down, which takes seconds at a thousand nodes. It can be left off between two nodes:
//! what is written is a plan at any time, as no pair depends on another.

use std::iter::Enumerate;
use std::vec::IntoIter;

use posthaste_plan::table::Table;

use super::apply::PlanUpdate;
use super::choose::Chooser;
use super::times::Times;
use super::{Network, Rib};

/// Tables, and how far they are written down.
#[derive(Clone, Debug)]
pub struct Rollout {
    network: Network,
    /// Those that are not written down, with their nodes' places.
    tables: Enumerate<IntoIter<Table>>,
    is_over: bool,
    has_changed: bool,
}

impl Rollout {
    /// What was made for a network ([`super::Settings::tables`]). Panics if the nodes do not ascend, or are
    /// not those of the matrix and the tables.
    pub fn new(network: Network, tables: Vec<Table>) -> Self {
        assert!(network.is_sound(), "nodes by their places in the matrix");
        assert_eq!(network.nodes.len(), tables.len(), "a table for each node");
        Self {
            network,
            tables: tables.into_iter().enumerate(),
            is_over: false,
            has_changed: false,
        }
    }

    /// What the tables were made for.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// How many tables are not written down.
    pub fn left(&self) -> usize {
        self.tables.len()
    }

    /// Whether all is written down.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Whether anything became another than before.
    pub fn has_changed(&self) -> bool {
        self.has_changed
    }
}

impl Rib {
    /// Writes tables down, while `goes_on` holds before every node, and with the next version if
    /// anything is another than before. To be called again until it is over.
    pub fn roll_out(&mut self, rollout: &mut Rollout, mut goes_on: impl FnMut() -> bool) {
        if rollout.is_over || !goes_on() {
            return;
        }
        let (settings, network) = (self.settings.clone(), &rollout.network);
        let times = Times::new(&network.matrix, &settings.model, &settings.classes);
        let mut chooser = Chooser::new(times, settings.rules);
        let mut turn = self.turn(network);
        rollout.is_over = loop {
            let Some((from, table)) = rollout.tables.next() else {
                break true;
            };
            self.plan_from(from, &table, &mut chooser, &mut turn);
            // At least one node for each call, so that it ends however often repairs interrupt it.
            if rollout.tables.len() > 0 && !goes_on() {
                break false;
            }
        };
        if rollout.is_over {
            self.leave_out(&mut turn);
            // The first plan is a version of its own even if it has no routes: nodes hold those of
            // the former.
            turn.changed |= !std::mem::replace(&mut self.is_planned, true);
        }
        rollout.has_changed |= self.end(&turn);
    }

    /// Plans the ways from one node.
    fn plan_from(
        &mut self,
        from: usize,
        table: &Table,
        chooser: &mut Chooser<'_>,
        turn: &mut PlanUpdate,
    ) {
        let first = turn.indexes[from];
        let mut pairs = std::mem::take(&mut self.pairs[usize::from(first)]);
        for to in (0..turn.indexes.len()).filter(|to| *to != from) {
            let last = turn.indexes[to];
            let egress = table.egress(to);
            let pair = &mut pairs[usize::from(last)];
            chooser.start((from, to), egress.chains());
            turn.offer(pair, chooser);
            chooser.choose(|| egress.choices(), |class| turn.in_use(class));
            self.set_pair((first, last), pair, chooser, turn);
        }
        self.pairs[usize::from(first)] = pairs;
    }
}
