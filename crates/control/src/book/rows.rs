// SPDX-License-Identifier: Apache-2.0
//! What of the book one node is sent.

use std::collections::BTreeSet;

use super::chains::State;
use super::pairs::{Kept, Pair};
use super::{Book, Part};
use crate::checksum;
use crate::message::{NodeNumber, Rows, Stamp};

impl Book {
    /// The rows of a node: as changes to the plan that it holds, if they can be told, else all. Nothing
    /// before the first plan.
    pub fn rows(&self, node: NodeNumber, holds: Option<Stamp>) -> Option<Rows> {
        if !self.is_planned {
            return None;
        }
        let base = holds.filter(|holds| self.knows(*holds));
        let classes = &self.settings.classes;
        let slot = self.slots.of(node).map(usize::from);
        let sum = slot.map_or(0, |slot| self.parts[slot].sum);
        let (sizes, access_us) = (classes.sizes(), classes.access_us());
        let mut rows = Rows {
            stamp: self.stamp,
            base,
            sizes: sizes.to_vec(),
            access_us: access_us.to_vec(),
            chains: Vec::new(),
            chains_gone: Vec::new(),
            ways: Vec::new(),
            ways_gone: Vec::new(),
            checksum: checksum::whole(self.stamp, sizes, access_us, sum),
        };
        if let Some(slot) = slot {
            match base {
                None => self.add_all_chains(slot, &mut rows),
                Some(base) => self.add_changed_chains(&self.parts[slot], base.version, &mut rows),
            }
            self.add_ways(slot, &mut rows);
        }
        Some(rows)
    }

    /// Whether everything that changed since a plan is known.
    fn knows(&self, plan: Stamp) -> bool {
        plan.epoch == self.stamp.epoch
            && (self.horizon..=self.stamp.version).contains(&plan.version)
    }

    fn add_all_chains(&self, slot: usize, rows: &mut Rows) {
        let known = self.parts[slot].chains.iter().filter_map(|&id| {
            let chain = self.chains.get(id)?;
            let is_in = chain.state != State::Gone && self.passes(id, slot);
            is_in.then_some((chain.number, id))
        });
        let mut known: Vec<(u32, u32)> = known.collect();
        known.sort_unstable();
        known.dedup();
        rows.chains
            .extend(known.into_iter().map(|(_, id)| self.numbered(id)));
    }

    fn add_changed_chains(&self, part: &Part, base: u64, rows: &mut Rows) {
        let known = part.recent.partition_point(|(version, _)| *version <= base);
        for (_, id) in &part.recent[known..] {
            match self.chains.get(*id) {
                Some(chain) if chain.state == State::Gone => rows.chains_gone.push(chain.number),
                Some(chain) if chain.version > base => rows.chains.push(self.numbered(*id)),
                _ => {}
            }
        }
        rows.chains.sort_unstable_by_key(|chain| chain.number);
        rows.chains.dedup_by_key(|chain| chain.number);
        rows.chains_gone.sort_unstable();
        rows.chains_gone.dedup();
    }

    /// Whether a chain passes a node.
    pub(super) fn passes(&self, id: u32, slot: usize) -> bool {
        let mut nodes = self.chains.nodes(id).iter();
        nodes.any(|other| usize::from(*other) == slot)
    }

    fn add_ways(&self, slot: usize, rows: &mut Rows) {
        let after = rows.base.map(|base| base.version);
        for &other in self.slots.order() {
            let (egress, pair) = (
                self.slots.node(other),
                &self.pairs[slot][usize::from(other)],
            );
            if after.is_some_and(|after| pair.changed <= after) {
                continue;
            }
            match &pair.ways {
                Some(ways) => rows.ways.push(ways.toward(egress)),
                None if after.is_some() => rows.ways_gone.push(egress),
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
            pair.ways.as_ref().is_some_and(Kept::uses_direct)
        })
    }

    /// The nodes beside one in the chains that are used, and those of the pairs that are picked.
    fn near(&self, node: NodeNumber, picks: impl Fn(&Pair) -> bool) -> BTreeSet<NodeNumber> {
        let Some(slot) = self.slots.of(node).map(usize::from) else {
            return BTreeSet::new();
        };
        let (near, pairs) = (&self.parts[slot].near, &self.pairs[slot]);
        let is_near = |other: &&u16| {
            let other = usize::from(**other);
            near[other] > 0 || picks(&pairs[other])
        };
        let near = self.slots.order().iter().filter(is_near);
        near.map(|other| self.slots.node(*other)).collect()
    }
}
