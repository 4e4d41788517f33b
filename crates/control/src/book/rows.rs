// SPDX-License-Identifier: Apache-2.0
//! What of the book one node is sent.

use std::collections::BTreeSet;

use super::{Book, Chain, State, numbered};
use crate::checksum;
use crate::message::{DIRECT, NodeNumber, Rows, Stamp};

impl Book {
    /// The rows of a node: as changes to the plan that it holds, if they can be told, else all. Nothing
    /// before the first plan.
    pub fn rows(&self, node: NodeNumber, holds: Option<Stamp>) -> Option<Rows> {
        if !self.is_planned {
            return None;
        }
        let base = holds.filter(|holds| self.knows(*holds));
        let classes = &self.settings.classes;
        let sum = self.nodes.get(&node).map_or(0, |part| part.sum);
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
        self.add_chains(node, &mut rows);
        self.add_ways(node, &mut rows);
        Some(rows)
    }

    /// Whether everything that changed since a plan is known.
    fn knows(&self, plan: Stamp) -> bool {
        plan.epoch == self.stamp.epoch
            && (self.horizon..=self.stamp.version).contains(&plan.version)
    }

    fn add_chains(&self, node: NodeNumber, rows: &mut Rows) {
        let Some(part) = self.nodes.get(&node) else {
            return;
        };
        match rows.base {
            None => {
                let chains = self.chains_of(node, &part.chains);
                let chains = chains.filter(|chain| !matches!(chain.state, State::Gone(..)));
                rows.chains.extend(chains.map(numbered));
            }
            Some(base) => {
                let known = part
                    .recent
                    .partition_point(|(version, _)| *version <= base.version);
                for (_, id) in &part.recent[known..] {
                    match self.chain(*id) {
                        Some(chain) if matches!(chain.state, State::Gone(..)) => {
                            rows.chains_gone.push(chain.number);
                        }
                        Some(chain) if chain.since > base.version => {
                            rows.chains.push(numbered(chain));
                        }
                        _ => {}
                    }
                }
            }
        }
        rows.chains.sort_unstable_by_key(|chain| chain.number);
        rows.chains.dedup_by_key(|chain| chain.number);
        rows.chains_gone.sort_unstable();
        rows.chains_gone.dedup();
    }

    /// Chains that a node is part of, by their places, of which some may have been struck out.
    fn chains_of<'a>(
        &'a self,
        node: NodeNumber,
        places: &'a [u32],
    ) -> impl Iterator<Item = &'a Chain> {
        let chains = places.iter().filter_map(|&id| self.chain(id));
        chains.filter(move |chain| chain.nodes.contains(&node))
    }

    fn add_ways(&self, node: NodeNumber, rows: &mut Rows) {
        let after = rows.base.map(|base| base.version);
        for (egress, pair) in self.pairs.get(&node).into_iter().flatten() {
            if after.is_some_and(|after| pair.changed <= after) {
                continue;
            }
            match &pair.ways {
                Some(ways) => rows.ways.push(ways.clone()),
                None if after.is_some() => rows.ways_gone.push(*egress),
                None => {}
            }
        }
    }

    /// The nodes before and behind a node in the chains that are used.
    pub fn beside_in_chains(&self, node: NodeNumber) -> BTreeSet<NodeNumber> {
        let mut near = BTreeSet::new();
        let part = self.nodes.get(&node);
        let chains = part.map_or(&[][..], |part| &part.chains);
        let chains = self.chains_of(node, chains);
        for chain in chains.filter(|chain| chain.state == State::InUse) {
            let place = chain.nodes.iter().position(|other| *other == node);
            let Some(place) = place else { continue };
            near.extend(place.checked_sub(1).map(|before| chain.nodes[before]));
            near.extend(chain.nodes.get(place + 1));
        }
        near
    }

    /// The same, and those to which flows may go without a node between.
    pub fn neighbours(&self, node: NodeNumber) -> BTreeSet<NodeNumber> {
        let mut near = self.beside_in_chains(node);
        for (egress, pair) in self.pairs.get(&node).into_iter().flatten() {
            let choices = pair.ways.iter().flat_map(|ways| &ways.choices);
            if choices.flatten().any(|number| *number == DIRECT) {
                near.insert(*egress);
            }
        }
        near
    }
}
