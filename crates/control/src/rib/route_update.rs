// SPDX-License-Identifier: Apache-2.0
//! What of the RIB one node is sent.

use std::collections::BTreeSet;

use super::Rib;
use super::pairs::{Pair, PairRoutes};
use crate::checksum;
use crate::message::{NodeNumber, PlanVersion, RouteUpdate, Routes};

impl Rib {
    /// The rows of a node: as changes to the plan that it holds, if they are known, else all. Nothing
    /// before the first plan.
    pub fn update(&self, node: NodeNumber, holds: Option<PlanVersion>) -> Option<RouteUpdate> {
        if !self.is_planned {
            return None;
        }
        let base = holds.filter(|holds| self.has_changes_since(*holds));
        let classes = &self.settings.classes;
        let index = self.indexes.of(node).map(usize::from);
        let sum = index.map_or(0, |index| self.parts[index].sum);
        let (sizes, access_us) = (classes.sizes(), classes.access_us());
        let mut update = RouteUpdate {
            plan_version: self.plan_version,
            base,
            sizes: sizes.to_vec(),
            access_us: access_us.to_vec(),
            routes: Vec::new(),
            routes_removed: Vec::new(),
            checksum: checksum::whole(self.plan_version, sizes, access_us, sum),
        };
        if let Some(index) = index {
            self.add_routes(index, &mut update);
        }
        Some(update)
    }

    /// Whether everything that changed since a plan is known.
    fn has_changes_since(&self, plan: PlanVersion) -> bool {
        plan.epoch == self.plan_version.epoch
            && (self.horizon..=self.plan_version.version).contains(&plan.version)
    }

    /// The routes to a node, as nodes receive them.
    fn routes_to(&self, egress: NodeNumber, routes: &PairRoutes) -> Routes {
        let chains = routes.chains.iter().map(|chain| {
            let inner = chain.inner().iter();
            inner.map(|index| self.indexes.node(*index)).collect()
        });
        Routes {
            egress,
            chains: chains.collect(),
            choices: routes.choices().map(<[u8]>::to_vec).collect(),
            classes: routes.classes.to_vec(),
        }
    }

    fn add_routes(&self, index: usize, update: &mut RouteUpdate) {
        let after = update.base.map(|base| base.version);
        for &other in self.indexes.order() {
            let (egress, pair) = (
                self.indexes.node(other),
                &self.pairs[index][usize::from(other)],
            );
            if after.is_some_and(|after| pair.changed <= after) {
                continue;
            }
            match &pair.routes {
                // Whole, although one chain may have changed: routes are small, and the node replaces them.
                Some(routes) => update.routes.push(self.routes_to(egress, routes)),
                None if after.is_some() => update.routes_removed.push(egress),
                None => {}
            }
        }
    }

    /// The nodes before and behind a node in the chains that are used.
    pub fn beside_in_chains(&self, node: NodeNumber) -> BTreeSet<NodeNumber> {
        self.near(node, |_| false)
    }

    /// The same, and those to which flows may go without a node between.
    pub fn neighbours(&self, node: NodeNumber) -> BTreeSet<NodeNumber> {
        self.near(node, |pair| {
            pair.routes.as_ref().is_some_and(PairRoutes::uses_direct)
        })
    }

    /// The nodes beside one in the chains that are used, and those of the pairs that are picked.
    fn near(&self, node: NodeNumber, picks: impl Fn(&Pair) -> bool) -> BTreeSet<NodeNumber> {
        let Some(index) = self.indexes.of(node).map(usize::from) else {
            return BTreeSet::new();
        };
        let (near, pairs) = (&self.parts[index].near, &self.pairs[index]);
        let is_near = |other: &&u16| {
            let other = usize::from(**other);
            near[other] > 0 || picks(&pairs[other])
        };
        let near = self.indexes.order().iter().filter(is_near);
        near.map(|other| self.indexes.node(*other)).collect()
    }
}
