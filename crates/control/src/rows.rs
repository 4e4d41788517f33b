// SPDX-License-Identifier: Apache-2.0
//! The rows of a plan that a node holds, and how they follow what the controller sends.
//!
//! [`Held::apply`] takes a [`Rows`] whole or leaves everything as it was: a message that was lost,
//! repeated or overtaken leads to a refusal, never to rows that the controller did not mean. What holds
//! of a message is checked before; the checksum tells whether the outcome is what was meant.

mod check;

use crate::checksum;
use crate::message::{ChainNumber, DIRECT, NodeNumber, NumberedChain, Rows, Stamp, Ways};
use crate::numbered::Numbered;

/// The most chains in order that there are for a class.
pub const CHOICES_MAX: usize = posthaste_plan::table::CHOICES;

/// Why rows were not taken. The node holds what it held.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The plan is not newer than the one that is held. Nobody need be told.
    #[error("plan {} of epoch {} is offered, and {} of epoch {} is held", offered.version, offered.epoch, held.version, held.epoch)]
    Older {
        /// The plan that was offered.
        offered: Stamp,
        /// The plan that is held.
        held: Stamp,
    },
    /// The rows do not fit, for this reason. All of them are to be asked for.
    #[error("{0}")]
    Misfit(String),
}

/// The checksum of rows that are the whole, as it belongs in them.
pub fn checksum_of(whole: &Rows) -> u64 {
    let chains = whole.chains.iter().map(checksum::numbered);
    let parts = chains.chain(whole.ways.iter().map(checksum::ways));
    let parts = parts.fold(0, u64::wrapping_add);
    checksum::whole(whole.stamp, &whole.sizes, &whole.access_us, parts)
}

/// The rows that a node holds.
#[derive(Clone, Debug)]
pub struct Held {
    me: NodeNumber,
    stamp: Option<Stamp>,
    sizes: Vec<u64>,
    access_us: Vec<u32>,
    chains: Numbered<ChainNumber, Vec<NodeNumber>>,
    ways: Numbered<NodeNumber, Ways>,
    /// The sums of all chains and ways.
    parts: u64,
}

impl Held {
    /// A node that holds no plan yet.
    pub fn new(me: NodeNumber) -> Self {
        Self {
            me,
            stamp: None,
            sizes: Vec::new(),
            access_us: Vec::new(),
            chains: Numbered::default(),
            ways: Numbered::default(),
            parts: 0,
        }
    }

    /// Whose rows they are.
    pub fn node(&self) -> NodeNumber {
        self.me
    }

    /// Which plan is held.
    pub fn stamp(&self) -> Option<Stamp> {
        self.stamp
    }

    /// Follows a newer plan.
    ///
    /// # Errors
    /// The plan is no newer, or the rows do not fit. Everything is as it was.
    pub fn apply(&mut self, rows: &Rows) -> Result<(), Refusal> {
        if let Some(held) = self.stamp.filter(|held| *held >= rows.stamp) {
            let offered = rows.stamp;
            return Err(Refusal::Older { offered, held });
        }
        let misfit = |why| Err(Refusal::Misfit(why));
        if let Err(why) = check::alone(self.me, rows) {
            return misfit(why);
        }
        match rows.base {
            None => {
                let mut whole = Self::new(self.me);
                whole.change(rows).or_else(misfit)?;
                *self = whole;
                Ok(())
            }
            base if base == self.stamp => self.change(rows).or_else(misfit),
            Some(base) => misfit(format!(
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
    pub fn ways(&self, egress: NodeNumber, class: usize) -> &[ChainNumber] {
        let choice = self.ways.get(&egress).and_then(|ways| {
            let choice = *ways.classes.get(class)?;
            ways.choices.get(usize::from(choice))
        });
        choice.map_or(&[], Vec::as_slice)
    }

    /// The nodes of a chain that this node is part of.
    pub fn chain(&self, number: ChainNumber) -> Option<&[NodeNumber]> {
        self.chains.get(&number).map(Vec::as_slice)
    }

    /// How many chains and egresses are held.
    pub fn size(&self) -> (usize, usize) {
        (self.chains.len(), self.ways.len())
    }

    /// All that is held, to be kept or compared; nothing without a plan.
    pub fn whole(&self) -> Option<Rows> {
        let stamp = self.stamp?;
        let chain = |(&number, nodes): (&u32, &Vec<u64>)| NumberedChain {
            number,
            nodes: nodes.clone(),
        };
        let mut chains: Vec<NumberedChain> = self.chains.iter().map(chain).collect();
        chains.sort_unstable_by_key(|chain| chain.number);
        let mut ways: Vec<Ways> = self.ways.values().cloned().collect();
        ways.sort_unstable_by_key(|ways| ways.egress);
        Some(Rows {
            stamp,
            base: None,
            sizes: self.sizes.clone(),
            access_us: self.access_us.clone(),
            chains,
            chains_gone: Vec::new(),
            ways,
            ways_gone: Vec::new(),
            checksum: checksum::whole(stamp, &self.sizes, &self.access_us, self.parts),
        })
    }

    /// Makes the changes, if the outcome is what was meant.
    fn change(&mut self, rows: &Rows) -> Result<(), String> {
        self.check_chains(rows)?;
        let parts = self.parts_after(rows);
        let sum = checksum::whole(rows.stamp, &rows.sizes, &rows.access_us, parts);
        if sum != rows.checksum {
            return Err("the checksum is another".to_owned());
        }
        for number in &rows.chains_gone {
            self.chains.remove(number);
        }
        for egress in &rows.ways_gone {
            self.ways.remove(egress);
        }
        let chains = rows.chains.iter();
        self.chains
            .extend(chains.map(|chain| (chain.number, chain.nodes.clone())));
        let ways = rows.ways.iter();
        self.ways
            .extend(ways.map(|ways| (ways.egress, ways.clone())));
        self.sizes.clone_from(&rows.sizes);
        self.access_us.clone_from(&rows.access_us);
        self.stamp = Some(rows.stamp);
        self.parts = parts;
        Ok(())
    }

    /// A number that is held stands for the same chain; what is chosen is held, begins here and leads
    /// to the egress.
    fn check_chains(&self, rows: &Rows) -> Result<(), String> {
        for chain in &rows.chains {
            let known = self.chains.get(&chain.number);
            if known.is_some_and(|nodes| *nodes != chain.nodes) {
                return Err(format!("chain {} is another one here", chain.number));
            }
        }
        for ways in &rows.ways {
            let numbers = ways.choices.iter().flatten();
            for &number in numbers.filter(|number| **number != DIRECT) {
                let nodes = self.chain_after(number, rows);
                let nodes = nodes.ok_or_else(|| format!("chain {number} is not known"))?;
                if nodes.first() != Some(&self.me) || nodes.last() != Some(&ways.egress) {
                    let egress = ways.egress;
                    return Err(format!(
                        "chain {number} does not lead from here to {egress}"
                    ));
                }
            }
        }
        Ok(())
    }

    /// A chain as it is when the changes are made.
    fn chain_after<'a>(&'a self, number: ChainNumber, rows: &'a Rows) -> Option<&'a [NodeNumber]> {
        let found = rows
            .chains
            .binary_search_by_key(&number, |chain| chain.number);
        if let Ok(place) = found {
            return Some(&rows.chains[place].nodes);
        }
        let is_gone = rows.chains_gone.binary_search(&number).is_ok();
        self.chain(number).filter(|_| !is_gone)
    }

    /// The sums of all chains and ways when the changes are made.
    fn parts_after(&self, rows: &Rows) -> u64 {
        let gone = rows.chains_gone.iter();
        let gone = gone.filter_map(|number| {
            Some(checksum::chain(
                *number,
                self.chain(*number)?.iter().copied(),
            ))
        });
        let come = rows.chains.iter();
        let come = come.filter(|chain| !self.chains.contains_key(&chain.number));
        let ways_gone = rows.ways_gone.iter();
        let before = rows.ways.iter().map(|ways| &ways.egress);
        let before = ways_gone.chain(before);
        let before = before.filter_map(|egress| self.ways.get(egress).map(checksum::ways));
        let after = rows.ways.iter().map(checksum::ways);
        let add = u64::wrapping_add;
        let less = gone.chain(before).fold(0, add);
        let more = come.map(checksum::numbered).chain(after).fold(0, add);
        self.parts.wrapping_sub(less).wrapping_add(more)
    }
}

#[cfg(test)]
mod tests;
