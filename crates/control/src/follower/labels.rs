// SPDX-License-Identifier: Apache-2.0
//! Chains that labels may name besides those of the plan, and those that they should not name yet.
//!
//! Nodes hear of a plan at about the same time, and not at the same moment. So a node that hears early
//! leaves a new chain alone for a moment: a label that the next node does not know yet costs a flow that
//! has begun to send. And one that hears late still takes chains of the plan before, so the others go on
//! knowing those for a while, where the rows themselves do not keep them.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::message::{ChainNumber, NodeNumber, RouteUpdate};
use crate::route_table::RouteTable;

/// From hearing of a chain to taking it. Half of the longest round trip to a controller and what it takes
/// to write to a thousand nodes are less, most of the time.
pub(super) const FRESH: Duration = Duration::from_millis(500);

/// For so long chains are known that all rows together replaced.
pub(super) const FORMER: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(super) struct Labels {
    /// Until when flows that begin here do not take a chain.
    fresh: BTreeMap<ChainNumber, Duration>,
    /// Chains of the plan before the last that came whole, and until when they are known.
    former: BTreeMap<ChainNumber, Vec<NodeNumber>>,
    former_until: Option<Duration>,
}

/// What rows mean for labels, should they be taken.
#[derive(Debug)]
pub(super) struct Prospect {
    fresh: Vec<ChainNumber>,
    former: Option<BTreeMap<ChainNumber, Vec<NodeNumber>>>,
}

impl Prospect {
    /// Of rows that come to a node which holds others, or none.
    pub(super) fn of(held: &RouteTable, update: &RouteUpdate) -> Self {
        let is_held = |number, nodes: &[NodeNumber]| held.chain(number) == Some(nodes);
        let chains = update.chains.iter();
        let fresh = chains.filter(|chain| !is_held(chain.number, &chain.nodes));
        let stays = |number: &ChainNumber| {
            let chains = &update.chains;
            chains
                .binary_search_by_key(number, |chain| chain.number)
                .is_ok()
        };
        let replaced = || {
            let removed = held.chains().filter(|(number, _)| !stays(number));
            removed
                .map(|(number, nodes)| (number, nodes.to_vec()))
                .collect()
        };
        Self {
            fresh: fresh.map(|chain| chain.number).collect(),
            former: update.base.is_none().then(replaced),
        }
    }
}

impl Labels {
    /// The rows were taken.
    pub(super) fn take(&mut self, prospect: Prospect, now: Duration) {
        if let Some(former) = prospect.former {
            self.former_until = (!former.is_empty()).then_some(now + FORMER);
            self.former = former;
        }
        for number in prospect.fresh {
            self.former.remove(&number);
            self.fresh.insert(number, now + FRESH);
        }
    }

    /// Lets go what is over. Whether anything was.
    pub(super) fn expire(&mut self, now: Duration) -> bool {
        let before = self.fresh.len();
        self.fresh.retain(|_, until| *until > now);
        let over = self.former_until.take_if(|until| *until <= now).is_some();
        if over {
            self.former.clear();
        }
        over || self.fresh.len() < before
    }

    /// When something is over.
    pub(super) fn deadline(&self) -> Option<Duration> {
        let fresh = self.fresh.values().min().copied();
        [fresh, self.former_until].into_iter().flatten().min()
    }

    pub(super) fn is_fresh(&self, number: ChainNumber) -> bool {
        self.fresh.contains_key(&number)
    }

    pub(super) fn former(&self) -> impl Iterator<Item = (ChainNumber, &[NodeNumber])> {
        let former = self.former.iter();
        former.map(|(number, nodes)| (*number, nodes.as_slice()))
    }
}
