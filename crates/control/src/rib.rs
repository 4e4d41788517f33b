// SPDX-License-Identifier: Apache-2.0
//! The plan as the controller keeps it: the routes of each pair of nodes, and the version that changed them
//! last. Pure.
//!
//! A route names its nodes, so no node needs another node's routes, and the RIB keeps nothing of what nodes
//! hold: the changes to the plan that a node holds are the routes that are younger than that plan.

mod apply;
mod choose;
mod detours;
mod indexes;
mod pairs;
mod repair;
mod rollout;
mod route_update;
mod rules;
mod times;

use posthaste_plan::fronts::{Limits, Precision};
use posthaste_plan::table::{Classes, Table};
use posthaste_plan::{Matrix, Model, Planner};
use posthaste_wire::segments::SEGMENTS_MAX;

pub use repair::Repaired;
pub use rollout::Rollout;
pub use rules::Rules;

use crate::message::{NodeNumber, PlanVersion};
use indexes::Indexes;
use pairs::Pair;

/// How much a node may make the epoch grow by the plan that it reports: no node can use the epochs up.
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
    /// The most hops of a chain, at most [`HOPS_MAX`]. With four hops, transfers take a few per cent
    /// longer at most.
    pub hops_max: u8,
    /// When chains give way.
    pub rules: Rules,
}

/// The most hops of a chain: a header names the nodes behind the first hop.
pub const HOPS_MAX: u8 = 8;

const _: () = assert!(HOPS_MAX as usize == SEGMENTS_MAX + 1);

impl Default for Settings {
    fn default() -> Self {
        let model = Model::default();
        Self {
            classes: Classes::by_rounds(&model),
            model,
            hops_max: 4,
            rules: Rules::default(),
        }
    }
}

impl Settings {
    /// Which chains are the best, by node, or so nearly that no class is worth a chain of its own.
    pub fn tables(&self, network: &Network) -> Vec<Table> {
        let limits = Limits {
            hops_max: Some(self.hops_max.clamp(1, HOPS_MAX)),
            precision: Precision::Near,
        };
        let planner = Planner::new(&network.matrix, self.model, limits);
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let is_small = network.nodes.len() < NODES_ALONE;
        // The number of threads does not change the plan.
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

/// The plan.
#[derive(Debug)]
pub struct Rib {
    settings: Settings,
    plan_version: PlanVersion,
    /// There was a plan since the controller started.
    is_planned: bool,
    /// Changes to plans before this version are not known any more.
    horizon: u64,
    indexes: Indexes,
    /// By the slot of the first node, then by that of the last.
    pairs: Vec<Vec<Pair>>,
    /// By slot.
    parts: Vec<Part>,
    /// Chains of all pairs, direct hops aside.
    chain_count: usize,
}

/// What concerns one node.
#[derive(Debug, Default)]
struct Part {
    /// The sums of its routes.
    sum: u64,
    /// By slot, in how many chains that node is beside this one.
    near: Vec<u32>,
}

impl Rib {
    /// An empty RIB, after the last plan that a store kept.
    pub fn new(settings: Settings, last: PlanVersion) -> Self {
        Self {
            settings,
            plan_version: PlanVersion {
                epoch: last.epoch.max(1),
                ..last
            },
            is_planned: false,
            // The store keeps no routes (docs/design/0014), so changes since earlier plans are
            // unknown.
            horizon: last.version + 1,
            indexes: Indexes::default(),
            pairs: Vec::new(),
            parts: Vec::new(),
            chain_count: 0,
        }
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

    /// How many chains the plan has, direct hops aside.
    pub fn chain_count(&self) -> usize {
        self.chain_count
    }

    /// A node holds a newer plan than the newest: the store was lost, or is an older one. Begins an epoch
    /// that is newer, unless the node's report cannot be. Returns whether it did.
    pub fn advance_epoch(&mut self, held: PlanVersion) -> bool {
        let Some(next) = held.epoch.checked_add(1) else {
            return false;
        };
        // A node that lies once must not bring the epoch near its end, after which no plan is newer.
        if held <= self.plan_version || held.epoch - self.plan_version.epoch > EPOCH_LEAP {
            return false;
        }
        self.plan_version.epoch = next;
        self.plan_version.version += 1;
        // Nodes that hold plans of the lost store need all rows.
        self.horizon = self.plan_version.version;
        true
    }

    /// Plans anew. Returns whether anything is another than before, in which case there is a new version.
    /// Panics if the nodes do not ascend, or are not those of the matrix.
    pub fn plan(&mut self, network: &Network) -> bool {
        let tables = self.settings.tables(network);
        let mut rollout = Rollout::new(network.clone(), tables);
        self.roll_out(&mut rollout, || true);
        rollout.has_changed()
    }

    /// Begins to write something down that was made for a network.
    fn turn(&mut self, network: &Network) -> apply::PlanUpdate {
        let indexes = network.nodes.iter().map(|node| self.index(*node));
        let indexes = indexes.collect();
        apply::PlanUpdate::new(self.plan_version.version + 1, indexes)
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
            // A square over the nodes: every pair has a place before it has routes.
            for pairs in &mut self.pairs {
                pairs.resize_with(count, Pair::default);
            }
            for part in &mut self.parts {
                part.near.resize(count, 0);
            }
        }
        index
    }
}

#[cfg(test)]
mod tests;
