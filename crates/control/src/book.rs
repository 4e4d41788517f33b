// SPDX-License-Identifier: Apache-2.0
//! The plan as the controller keeps it: which chain has which number, which ways each pair of nodes is to
//! use, and since when. Pure.
//!
//! Nothing is kept of what nodes have. A node's rows as changes to the plan it holds are what is younger
//! than that plan, and what has gone since.
//!
//! ```text
//!   in use --> leaving, for one life: in rows, so that labels lead where they did
//!     ^           |
//!     |           v
//!     +--- gone from rows, for another life: no node that could still hold it follows it
//!                 |
//!                 v
//!          its number is free
//! ```
//!
//! A chain that is wanted again before its number is free comes back with its number.

mod choose;
mod numbers;
mod place;
mod rows;
mod times;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::Duration;

use posthaste_plan::fronts::Limits;
use posthaste_plan::table::{Classes, Table};
use posthaste_plan::{Matrix, Model, Planner};

pub use choose::Rules;
pub use numbers::NUMBERS;

use crate::message::{ChainNumber, NodeNumber, NumberedChain, Stamp, Ways};
use crate::numbered::Numbered;
use choose::{Chooser, Promise};
use numbers::Numbers;
use times::Times;

/// How much a node may make the epoch grow by what it says it holds. Nobody can use the epochs up.
pub const EPOCH_LEAP: u64 = 1 << 20;

/// How plans are made.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Into which classes transfers are sorted.
    pub classes: Classes,
    /// How long they take.
    pub model: Model,
    /// The most hops of a chain. Without a bound, a thousand nodes have more chains than there are
    /// numbers; by four hops transfers take a few per cent longer at most.
    pub hops_max: u8,
    /// When chains give way.
    pub rules: Rules,
    /// How long a plan stands after it was last said to.
    pub life: Duration,
    /// Which numbers chains get, at most [`NUMBERS`].
    pub numbers: Range<ChainNumber>,
}

impl Default for Settings {
    fn default() -> Self {
        let model = Model::default();
        Self {
            classes: Classes::by_rounds(&model),
            model,
            hops_max: 4,
            rules: Rules::default(),
            life: Duration::from_secs(15 * 60),
            numbers: NUMBERS,
        }
    }
}

impl Settings {
    /// Which chains are the best, by node.
    pub fn tables(&self, network: &Network) -> Vec<Table> {
        let limits = Limits {
            hops_max: Some(self.hops_max.max(1)),
        };
        let planner = Planner::new(&network.matrix, self.model, limits);
        planner.tables(&self.classes)
    }
}

/// Nodes and the links between them, to plan for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    /// Numbers of nodes, ascending, by their places in the matrix.
    pub nodes: Vec<NodeNumber>,
    /// Links and costs.
    pub matrix: Matrix,
}

/// What of the book must survive the controller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Saved {
    /// The last plan.
    pub stamp: Stamp,
    /// All chains whose numbers are not free.
    pub chains: Vec<NumberedChain>,
    /// Which number is given next, as [`Book::next_number`] said.
    pub next_number: ChainNumber,
}

/// What of [`Saved`] a plan changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Chains that got numbers.
    pub given: Vec<NumberedChain>,
    /// Numbers that are free.
    pub freed: Vec<ChainNumber>,
}

/// The plan, and all chains that any node may still follow.
#[derive(Debug)]
pub struct Book {
    settings: Settings,
    stamp: Stamp,
    /// There was a plan since the controller started.
    is_planned: bool,
    /// Changes to plans before this version cannot be told any more.
    horizon: u64,
    chains: Vec<Option<Chain>>,
    free: Vec<u32>,
    pairs: BTreeMap<NodeNumber, BTreeMap<NodeNumber, Pair>>,
    /// By node, the chains that it is part of, and the sums of what is in its rows.
    nodes: Numbered<NodeNumber, Part>,
    numbers: Numbers,
    /// Chains that left use, and those that left rows, with the second in which they did.
    leaving: VecDeque<(u32, u32)>,
    gone: VecDeque<(u32, u32)>,
    changes: Changes,
    /// Chains that were not used for want of a number, in the last plan.
    unnumbered: usize,
}

/// A chain that has a number.
#[derive(Debug)]
struct Chain {
    number: ChainNumber,
    nodes: Box<[NodeNumber]>,
    /// The version with which it came into rows.
    since: u64,
    state: State,
    promise: Option<Promise>,
}

/// Where a chain is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    InUse,
    /// In rows, and not used since that second.
    Leaving(u32),
    /// Not in rows since that second and version.
    Gone(u32, u64),
}

/// An ordered pair of nodes.
#[derive(Debug, Default)]
struct Pair {
    /// Places of its chains.
    chains: Vec<u32>,
    ways: Option<Ways>,
    /// The version with which the ways became what they are.
    changed: u64,
}

/// What concerns one node.
#[derive(Debug, Default)]
struct Part {
    /// Some may have been struck out since, so many that it is worth to look.
    chains: Vec<u32>,
    struck: usize,
    /// Chains that came into rows or went, with the version, ascending.
    recent: Vec<(u64, u32)>,
    sum: u64,
}

impl Book {
    /// An empty book, or what a store kept. Every chain of the latter is in rows for a life still: nodes
    /// may follow the last plan. Panics if `settings` have no numbers for chains, or beyond 24 bits.
    pub fn new(settings: Settings, saved: &Saved, now: Duration) -> Self {
        let mut book = Self {
            numbers: Numbers::new(settings.numbers.clone(), saved.next_number),
            settings,
            stamp: saved.stamp,
            is_planned: false,
            horizon: saved.stamp.version + 1,
            chains: Vec::new(),
            free: Vec::new(),
            pairs: BTreeMap::new(),
            nodes: Numbered::default(),
            leaving: VecDeque::new(),
            gone: VecDeque::new(),
            changes: Changes::default(),
            unnumbered: 0,
        };
        book.stamp.epoch = book.stamp.epoch.max(1);
        for chain in &saved.chains {
            book.restore(chain, now);
        }
        book
    }

    /// The newest plan.
    pub fn stamp(&self) -> Stamp {
        self.stamp
    }

    /// Whether there was a plan since the controller started: until then there are no rows, and the last
    /// plan stands.
    pub fn is_planned(&self) -> bool {
        self.is_planned
    }

    /// How it plans.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Which number is given next, to be saved.
    pub fn next_number(&self) -> ChainNumber {
        self.numbers.next()
    }

    /// How many chains have numbers, and how many were not used for want of one.
    pub fn chain_count(&self) -> (usize, usize) {
        (self.chains.len() - self.free.len(), self.unnumbered)
    }

    /// What changed since this was last asked, to be saved before any node hears of it.
    pub fn take_changes(&mut self) -> Changes {
        std::mem::take(&mut self.changes)
    }

    /// All that must survive.
    pub fn saved(&self) -> Saved {
        let chains = self.chains.iter().flatten();
        let chains = chains.map(numbered);
        Saved {
            stamp: self.stamp,
            chains: chains.collect(),
            next_number: self.next_number(),
        }
    }

    /// A node holds a newer plan than the newest: the store was lost, or is an older one. Begins an epoch
    /// that is newer, unless what the node says cannot be. Returns whether it did.
    pub fn outrun(&mut self, held: Stamp) -> bool {
        let Some(next) = held.epoch.checked_add(1) else {
            return false;
        };
        if held <= self.stamp || held.epoch - self.stamp.epoch > EPOCH_LEAP {
            return false;
        }
        self.stamp.epoch = next;
        self.stamp.version += 1;
        self.horizon = self.stamp.version;
        true
    }

    /// Plans anew. Returns whether anything is another than before, in which case there is a new version.
    /// Panics if the nodes do not ascend, or are not those of the matrix.
    pub fn plan(&mut self, network: &Network, now: Duration) -> bool {
        let tables = self.settings.tables(network);
        self.adopt(network, &tables, now)
    }

    /// The same, when the tables are known ([`Settings::tables`]).
    pub fn adopt(&mut self, network: &Network, tables: &[Table], now: Duration) -> bool {
        assert!(network.is_sound(), "nodes by their places in the matrix");
        let (settings, version) = (self.settings.clone(), self.stamp.version + 1);
        let times = Times::new(&network.matrix, &settings.model, &settings.classes);
        let mut chooser = Chooser::new(times, settings.rules);
        let mut turn = place::Turn {
            version,
            second: whole_seconds(now),
            changed: !self.is_planned,
            numbers: Vec::new(),
            used: Vec::new(),
            in_use: Vec::new(),
        };
        self.unnumbered = 0;
        for (from, table) in tables.iter().enumerate() {
            self.plan_from(network, from, table, &mut chooser, &mut turn);
        }
        self.leave_out(&network.nodes, &mut turn);
        self.expire(&mut turn);
        self.is_planned = true;
        if turn.changed {
            self.stamp.version = version;
        }
        turn.changed
    }

    /// Plans the ways from one node.
    fn plan_from(
        &mut self,
        network: &Network,
        from: usize,
        table: &Table,
        chooser: &mut Chooser<'_>,
        turn: &mut place::Turn,
    ) {
        let first = network.nodes[from];
        let mut pairs = self.pairs.remove(&first).unwrap_or_default();
        for (to, &last) in network
            .nodes
            .iter()
            .enumerate()
            .filter(|(to, _)| *to != from)
        {
            let egress = table.egress(to);
            let pair = pairs.entry(last).or_default();
            chooser.start(from, to, egress);
            self.offer(pair, &network.nodes, chooser, &mut turn.in_use);
            let in_use = &turn.in_use;
            chooser.choose(egress, |class| {
                in_use.get(class).copied().unwrap_or_default()
            });
            self.set_pair((first, last), pair, &network.nodes, chooser, turn);
        }
        self.pairs.insert(first, pairs);
    }
}

fn numbered(chain: &Chain) -> NumberedChain {
    NumberedChain {
        number: chain.number,
        nodes: chain.nodes.to_vec(),
    }
}

/// Seconds, rounded up: nothing expires too early.
fn whole_seconds(time: Duration) -> u32 {
    let seconds = time.as_secs() + u64::from(time.subsec_nanos() > 0);
    u32::try_from(seconds).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
