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

mod apply;
mod chains;
mod choose;
mod detours;
mod indexes;
mod numbers;
mod pairs;
mod repair;
mod rollout;
mod route_update;
mod rules;
mod times;

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use posthaste_plan::fronts::{Limits, Precision};
use posthaste_plan::table::{Classes, Table};
use posthaste_plan::{Matrix, Model, Planner};

pub use numbers::NUMBERS;
pub use repair::Repaired;
pub use rollout::Rollout;
pub use rules::Rules;

use crate::message::{ChainNumber, NodeNumber, NumberedChain, PlanVersion};
use chains::Chains;
use indexes::Indexes;
use numbers::Numbers;
use pairs::Pair;

/// How much a node may make the epoch grow by what it says it holds. Nobody can use the epochs up.
pub const EPOCH_LEAP: u64 = 1 << 20;

/// Fewer nodes are planned for by one thread: that takes a fraction of a second, and others may need the rest.
const NODES_ALONE: usize = 200;

/// So many threads plan at most. Where links lose packets each has the memory of a sweep, some 100 MB for a
/// thousand nodes.
const THREADS_MAX: usize = 4;

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
    pub ttl: Duration,
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
            ttl: Duration::from_secs(15 * 60),
            numbers: NUMBERS,
        }
    }
}

impl Settings {
    /// Which chains are the best, by node, or so nearly that no class is worth a chain of its own.
    pub fn tables(&self, network: &Network) -> Vec<Table> {
        let limits = Limits {
            hops_max: Some(self.hops_max.max(1)),
            precision: Precision::Near,
        };
        let planner = Planner::new(&network.matrix, self.model, limits);
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let is_small = network.nodes.len() < NODES_ALONE;
        let threads = if is_small { 1 } else { threads };
        planner.tables_by(&self.classes, threads.min(THREADS_MAX))
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

/// What of the RIB must survive the controller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Saved {
    /// The last plan.
    pub plan_version: PlanVersion,
    /// All chains whose numbers are not free.
    pub chains: Vec<NumberedChain>,
    /// Which number is given next, as [`Rib::next_number`] said.
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
pub struct Rib {
    settings: Settings,
    plan_version: PlanVersion,
    /// There was a plan since the controller started.
    is_planned: bool,
    /// Changes to plans before this version cannot be told any more.
    horizon: u64,
    chains: Chains,
    indexes: Indexes,
    /// By the slot of the first node, then by that of the last.
    pairs: Vec<Vec<Pair>>,
    /// By slot, what concerns the node.
    parts: Vec<Part>,
    numbers: Numbers,
    /// Chains that left use, and those that left rows, with the second in which they did.
    leaving: VecDeque<(u32, u32)>,
    removed: VecDeque<(u32, u32)>,
    changes: Changes,
    /// Chains that were not used for want of a number, in the last plan.
    unnumbered: usize,
}

/// What concerns one node.
#[derive(Debug, Default)]
struct Part {
    /// Some may have been struck out since, so many that it is worth to look.
    chains: Vec<u32>,
    struck: usize,
    /// Chains that came into rows or went, with the version, ascending.
    recent: Vec<(u64, u32)>,
    /// The sums of what is in its rows.
    sum: u64,
    /// By slot, in how many chains in use that node is beside this one.
    near: Vec<u32>,
}

impl Rib {
    /// An empty RIB, or what a store kept. Every chain of the latter is in rows for a life still: nodes
    /// may follow the last plan. Panics if `settings` have no numbers for chains, or beyond 24 bits.
    pub fn new(settings: Settings, saved: &Saved, now: Duration) -> Self {
        // What is left of a plan with longer chains has room, too.
        let saved_max = saved.chains.iter().map(|chain| chain.nodes.len()).max();
        let room = (usize::from(settings.hops_max) + 1).max(saved_max.unwrap_or(0));
        let mut rib = Self {
            numbers: Numbers::new(settings.numbers.clone(), saved.next_number),
            settings,
            plan_version: saved.plan_version,
            is_planned: false,
            horizon: saved.plan_version.version + 1,
            chains: Chains::new(room),
            indexes: Indexes::default(),
            pairs: Vec::new(),
            parts: Vec::new(),
            leaving: VecDeque::new(),
            removed: VecDeque::new(),
            changes: Changes::default(),
            unnumbered: 0,
        };
        rib.plan_version.epoch = rib.plan_version.epoch.max(1);
        for chain in &saved.chains {
            rib.restore(chain, now);
        }
        rib
    }

    /// The newest plan.
    pub fn plan_version(&self) -> PlanVersion {
        self.plan_version
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
        (self.chains.count(), self.unnumbered)
    }

    /// What changed since this was last asked, to be saved before any node hears of it.
    pub fn take_changes(&mut self) -> Changes {
        std::mem::take(&mut self.changes)
    }

    /// All that must survive.
    pub fn saved(&self) -> Saved {
        let chains = self.chains.iter();
        let chains = chains.map(|(id, _)| self.numbered(id));
        Saved {
            plan_version: self.plan_version,
            chains: chains.collect(),
            next_number: self.next_number(),
        }
    }

    /// A node holds a newer plan than the newest: the store was lost, or is an older one. Begins an epoch
    /// that is newer, unless what the node says cannot be. Returns whether it did.
    pub fn advance_epoch(&mut self, held: PlanVersion) -> bool {
        let Some(next) = held.epoch.checked_add(1) else {
            return false;
        };
        if held <= self.plan_version || held.epoch - self.plan_version.epoch > EPOCH_LEAP {
            return false;
        }
        self.plan_version.epoch = next;
        self.plan_version.version += 1;
        self.horizon = self.plan_version.version;
        true
    }

    /// Plans anew. Returns whether anything is another than before, in which case there is a new version.
    /// Panics if the nodes do not ascend, or are not those of the matrix.
    pub fn plan(&mut self, network: &Network, now: Duration) -> bool {
        let tables = self.settings.tables(network);
        let mut rollout = Rollout::new(network.clone(), tables);
        self.roll_out(&mut rollout, now, || true);
        rollout.has_changed()
    }

    /// Begins to write something down that was made for a network.
    fn turn(&mut self, network: &Network, now: Duration) -> apply::PlanUpdate {
        let indexes = network.nodes.iter().map(|node| self.index(*node));
        let indexes = indexes.collect();
        apply::PlanUpdate::new(self.plan_version.version + 1, whole_seconds(now), indexes)
    }

    /// Ends it. Returns whether anything is another than before.
    fn end(&mut self, turn: &apply::PlanUpdate) -> bool {
        if turn.changed {
            self.plan_version.version = turn.version;
        }
        turn.changed
    }

    /// The slot of a node, a new one if it has none.
    fn index(&mut self, node: NodeNumber) -> u16 {
        let index = self.indexes.give(node);
        let count = self.indexes.len();
        if self.parts.len() < count {
            self.parts.resize_with(count, Part::default);
            self.pairs.resize_with(count, Vec::new);
            for pairs in &mut self.pairs {
                pairs.resize_with(count, Pair::default);
            }
            for part in &mut self.parts {
                part.near.resize(count, 0);
            }
        }
        index
    }

    /// The nodes of a chain.
    fn nodes(&self, id: u32) -> impl Iterator<Item = NodeNumber> {
        let indexes = self.chains.nodes(id).iter();
        indexes.map(|index| self.indexes.node(*index))
    }

    /// A chain as nodes are sent it.
    fn numbered(&self, id: u32) -> NumberedChain {
        NumberedChain {
            number: self.chains.get(id).map_or(0, |chain| chain.number),
            nodes: self.nodes(id).collect(),
        }
    }
}

/// Seconds, rounded up: nothing expires too early.
fn whole_seconds(time: Duration) -> u32 {
    let seconds = time.as_secs() + u64::from(time.subsec_nanos() > 0);
    u32::try_from(seconds).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
