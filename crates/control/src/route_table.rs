// SPDX-License-Identifier: Apache-2.0
//! The rows of a plan that a node holds, and how they follow what the controller sends.
//!
//! [`RouteTable::apply`] takes a [`RouteUpdate`] whole or leaves everything as it was: a message that was lost,
//! repeated or overtaken leads to a refusal, never to rows that the controller did not mean. What holds
//! of a message is checked before; the checksum tells whether the outcome is what was meant.

mod check;

use crate::checksum;
use crate::id_map::IdMap;
use crate::message::{
    ChainNumber, DIRECT, NodeNumber, NumberedChain, PlanVersion, RouteUpdate, Routes,
};

/// The most chains in order that there are for a class.
pub const CHOICES_MAX: usize = posthaste_plan::table::CHOICES;

/// Why rows were not taken. The node holds what it held.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The plan is not newer than the one that is held. Nobody need be told.
    #[error("plan {} of epoch {} is offered, and {} of epoch {} is held", offered.version, offered.epoch, held.version, held.epoch)]
    Older {
        /// The plan that was offered.
        offered: PlanVersion,
        /// The plan that is held.
        held: PlanVersion,
    },
    /// The rows do not fit, for this reason. All of them are to be asked for.
    #[error("{0}")]
    Nack(String),
}

/// The checksum of rows that are the whole, as it belongs in them.
pub fn checksum_of(whole: &RouteUpdate) -> u64 {
    let chains = whole.chains.iter().map(checksum::numbered);
    let parts = chains.chain(whole.routes.iter().map(checksum::routes));
    let parts = parts.fold(0, u64::wrapping_add);
    checksum::whole(whole.plan_version, &whole.sizes, &whole.access_us, parts)
}

/// The rows that a node holds.
#[derive(Clone, Debug)]
pub struct RouteTable {
    me: NodeNumber,
    plan_version: Option<PlanVersion>,
    sizes: Vec<u64>,
    access_us: Vec<u32>,
    chains: IdMap<ChainNumber, Vec<NodeNumber>>,
    routes: IdMap<NodeNumber, Routes>,
    /// The sums of all chains and ways.
    parts: u64,
}

impl RouteTable {
    /// A node that holds no plan yet.
    pub fn new(me: NodeNumber) -> Self {
        Self {
            me,
            plan_version: None,
            sizes: Vec::new(),
            access_us: Vec::new(),
            chains: IdMap::default(),
            routes: IdMap::default(),
            parts: 0,
        }
    }

    /// Whose rows they are.
    pub fn node(&self) -> NodeNumber {
        self.me
    }

    /// Which plan is held.
    pub fn plan_version(&self) -> Option<PlanVersion> {
        self.plan_version
    }

    /// Follows a newer plan.
    ///
    /// # Errors
    /// The plan is no newer, or the rows do not fit. Everything is as it was.
    pub fn apply(&mut self, update: &RouteUpdate) -> Result<(), Refusal> {
        if let Some(held) = self
            .plan_version
            .filter(|held| *held >= update.plan_version)
        {
            let offered = update.plan_version;
            return Err(Refusal::Older { offered, held });
        }
        let nack = |why| Err(Refusal::Nack(why));
        if let Err(why) = check::alone(self.me, update) {
            return nack(why);
        }
        match update.base {
            None => {
                let mut whole = Self::new(self.me);
                whole.change(update).or_else(nack)?;
                *self = whole;
                Ok(())
            }
            base if base == self.plan_version => self.change(update).or_else(nack),
            Some(base) => nack(format!(
                "changes to plan {} of epoch {}, which is not held",
                base.version, base.epoch
            )),
        }
    }

    /// The class of a transfer of `bytes` over an access link of a round trip of `access_us`
    /// microseconds, as [`posthaste_plan::table::Classes::of`] counts; nothing without a plan.
    pub fn class(&self, bytes: u64, access_us: u32) -> Option<usize> {
        let last = self.sizes.len().checked_sub(1)?;
        let size = self.sizes.partition_point(|largest| *largest < bytes);
        let access = self.access_us.partition_point(|link| *link <= access_us);
        Some(size.min(last) * self.access_us.len() + access.saturating_sub(1))
    }

    /// The largest transfer of each size class, in bytes, ascending.
    pub fn sizes(&self) -> &[u64] {
        &self.sizes
    }

    /// The chains that this node is part of, in no order, each with its nodes.
    pub fn chains(&self) -> impl Iterator<Item = (ChainNumber, &[NodeNumber])> {
        let chains = self.chains.iter();
        chains.map(|(number, nodes)| (*number, nodes.as_slice()))
    }

    /// The chains to an egress for transfers of a class, the best first, at most [`CHOICES_MAX`];
    /// [`DIRECT`] stands for the hop from here to there. Without any the flow goes to its destination
    /// from here. Allocates nothing.
    pub fn routes(&self, egress: NodeNumber, class: usize) -> &[ChainNumber] {
        let choice = self.routes.get(&egress).and_then(|routes| {
            let choice = *routes.classes.get(class)?;
            routes.choices.get(usize::from(choice))
        });
        choice.map_or(&[], Vec::as_slice)
    }

    /// The nodes of a chain that this node is part of.
    pub fn chain(&self, number: ChainNumber) -> Option<&[NodeNumber]> {
        self.chains.get(&number).map(Vec::as_slice)
    }

    /// How many chains and egresses are held.
    pub fn size(&self) -> (usize, usize) {
        (self.chains.len(), self.routes.len())
    }

    /// All that is held, to be kept or compared; nothing without a plan.
    pub fn whole(&self) -> Option<RouteUpdate> {
        let plan_version = self.plan_version?;
        let chain = |(&number, nodes): (&u32, &Vec<u64>)| NumberedChain {
            number,
            nodes: nodes.clone(),
        };
        let mut chains: Vec<NumberedChain> = self.chains.iter().map(chain).collect();
        chains.sort_unstable_by_key(|chain| chain.number);
        let mut routes: Vec<Routes> = self.routes.values().cloned().collect();
        routes.sort_unstable_by_key(|routes| routes.egress);
        Some(RouteUpdate {
            plan_version,
            base: None,
            sizes: self.sizes.clone(),
            access_us: self.access_us.clone(),
            chains,
            chains_removed: Vec::new(),
            routes,
            routes_removed: Vec::new(),
            checksum: checksum::whole(plan_version, &self.sizes, &self.access_us, self.parts),
        })
    }

    /// Makes the changes, if the outcome is what was meant.
    fn change(&mut self, update: &RouteUpdate) -> Result<(), String> {
        self.check_chains(update)?;
        let parts = self.parts_after(update);
        let sum = checksum::whole(update.plan_version, &update.sizes, &update.access_us, parts);
        if sum != update.checksum {
            return Err("the checksum is another".to_owned());
        }
        for number in &update.chains_removed {
            self.chains.remove(number);
        }
        for egress in &update.routes_removed {
            self.routes.remove(egress);
        }
        let chains = update.chains.iter();
        self.chains
            .extend(chains.map(|chain| (chain.number, chain.nodes.clone())));
        let routes = update.routes.iter();
        self.routes
            .extend(routes.map(|routes| (routes.egress, routes.clone())));
        self.sizes.clone_from(&update.sizes);
        self.access_us.clone_from(&update.access_us);
        self.plan_version = Some(update.plan_version);
        self.parts = parts;
        Ok(())
    }

    /// A number that is held stands for the same chain; what is chosen is held, begins here and leads
    /// to the egress.
    fn check_chains(&self, update: &RouteUpdate) -> Result<(), String> {
        for chain in &update.chains {
            let known = self.chains.get(&chain.number);
            if known.is_some_and(|nodes| *nodes != chain.nodes) {
                return Err(format!("chain {} is another one here", chain.number));
            }
        }
        for routes in &update.routes {
            let numbers = routes.choices.iter().flatten();
            for &number in numbers.filter(|number| **number != DIRECT) {
                let nodes = self.chain_after(number, update);
                let nodes = nodes.ok_or_else(|| format!("chain {number} is not known"))?;
                if nodes.first() != Some(&self.me) || nodes.last() != Some(&routes.egress) {
                    let egress = routes.egress;
                    return Err(format!(
                        "chain {number} does not lead from here to {egress}"
                    ));
                }
            }
        }
        Ok(())
    }

    /// A chain as it is when the changes are made.
    fn chain_after<'a>(
        &'a self,
        number: ChainNumber,
        update: &'a RouteUpdate,
    ) -> Option<&'a [NodeNumber]> {
        let found = update
            .chains
            .binary_search_by_key(&number, |chain| chain.number);
        if let Ok(place) = found {
            return Some(&update.chains[place].nodes);
        }
        let is_removed = update.chains_removed.binary_search(&number).is_ok();
        self.chain(number).filter(|_| !is_removed)
    }

    /// The sums of all chains and ways when the changes are made.
    fn parts_after(&self, update: &RouteUpdate) -> u64 {
        let removed = update.chains_removed.iter();
        let removed = removed.filter_map(|number| {
            Some(checksum::chain(
                *number,
                self.chain(*number)?.iter().copied(),
            ))
        });
        let come = update.chains.iter();
        let come = come.filter(|chain| !self.chains.contains_key(&chain.number));
        let routes_removed = update.routes_removed.iter();
        let before = update.routes.iter().map(|routes| &routes.egress);
        let before = routes_removed.chain(before);
        let before = before.filter_map(|egress| self.routes.get(egress).map(checksum::routes));
        let after = update.routes.iter().map(checksum::routes);
        let add = u64::wrapping_add;
        let less = removed.chain(before).fold(0, add);
        let more = come.map(checksum::numbered).chain(after).fold(0, add);
        self.parts.wrapping_sub(less).wrapping_add(more)
    }
}

#[cfg(test)]
mod tests;
