// SPDX-License-Identifier: Apache-2.0
//! Every chain worth having: for each ordered pair of nodes those that no other beats both in
//! length and in the longest hop.
//!
//! Of chains that tie in both, one is kept: the one that the sweep found first. A cost of at least a
//! microsecond for each node makes it one with the fewest nodes.

use crate::matrix::Matrix;
use crate::model::Model;
use crate::sweep::{self, Edge, Found};

/// What the longest hop of a chain is measured by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Measure {
    /// Its round-trip time. Right for all sizes at once where links differ in nothing else.
    RoundTrip,
    /// How long a transfer of so many bytes would wait for it ([`Model::time_us`]).
    TimeFor(u64),
}

/// What may be asked of chains, besides being short.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Limits {
    /// The most hops of a chain, ends included: one more than the nodes between. At least 1.
    pub hops_max: Option<u8>,
}

/// A chain that is not beaten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Point {
    /// Lengths of its hops and costs of the nodes between its ends, in microseconds.
    pub length_us: u32,
    /// The measure of its longest hop, in microseconds.
    pub longest_us: u32,
    /// The link that it was found with.
    rank: u32,
}

/// The chains of all pairs.
#[derive(Debug)]
pub struct Fronts {
    /// By layer and first node.
    rows: Vec<Vec<Row>>,
    /// Keys of the links in the order of the sweep.
    keys: Vec<u32>,
    /// What lengths have too much, for the last node of a chain.
    costs: Vec<u32>,
    measure: Measure,
    /// Whether chains that are one hop shorter are in the layer before.
    layered: bool,
}

/// What was found from one node, by last node and rank.
#[derive(Debug)]
struct Row {
    /// Where the last node's begin; one more for the end.
    starts: Vec<u32>,
    found: Vec<Found>,
}

impl Fronts {
    /// Finds all chains.
    ///
    /// A chain of nine minutes or more is taken for absent, and a hop that makes a transfer wait for
    /// more than 71 minutes is as bad as any such. Panics if `limits` allow no hop.
    pub fn of(matrix: &Matrix, model: &Model, measure: Measure, limits: Limits) -> Self {
        assert_ne!(limits.hops_max, Some(0), "a chain has a hop");
        let edges = sweep::edges(matrix, |from, to| {
            let link = matrix.link(from, to)?;
            let key = match measure {
                Measure::RoundTrip => u64::from(link.rtt_us),
                Measure::TimeFor(bytes) => model.time_us(link, bytes),
            };
            let length = model.length_us(link) + u64::from(matrix.cost_us(to));
            let length = i32::try_from(length).ok()?;
            Some((u32::try_from(key).unwrap_or(u32::MAX), length))
        });
        let nodes = matrix.nodes();
        // No chain has more hops than there are nodes to go to.
        let hops_max = limits.hops_max.map(usize::from);
        let hops_max = hops_max.filter(|hops| *hops + 1 < nodes);
        let logs = sweep::run(nodes, &edges, hops_max);
        let keys = edges.iter().map(|edge: &Edge| edge.key).collect();
        Self {
            rows: logs.into_iter().map(sort_all).collect(),
            keys,
            costs: (0..nodes).map(|node| matrix.cost_us(node)).collect(),
            measure,
            layered: hops_max.is_some(),
        }
    }

    /// How many nodes there are.
    pub fn nodes(&self) -> usize {
        self.costs.len()
    }

    /// What longest hops are measured by.
    pub fn measure(&self) -> Measure {
        self.measure
    }

    /// The chains from one node to another, in ascending order of the longest hop and descending
    /// order of length. None if there is no chain, or the nodes are the same.
    pub fn points(&self, from: usize, to: usize) -> impl Iterator<Item = Point> {
        let found = self.rows[self.rows.len() - 1][from].to(to);
        let found = if from == to { &[] } else { found };
        let key = |found: &Found| self.keys[found.rank as usize];
        let followers = found.iter().skip(1).map(Some).chain([None]);
        found
            .iter()
            .zip(followers)
            // A link of the same key may have made the chain shorter still.
            .filter(move |(found, next)| next.is_none_or(|next| key(next) != key(found)))
            .map(move |(found, _)| Point {
                length_us: found.length - self.costs[to],
                longest_us: key(found),
                rank: found.rank,
            })
    }

    /// Writes the nodes of a chain to `chain`, its ends included. The point must be of this pair.
    pub fn chain(&self, from: usize, to: usize, point: &Point, chain: &mut Vec<u16>) {
        chain.clear();
        chain.push(node(to));
        let (mut layer, mut last, mut rank) = (self.rows.len() - 1, to, point.rank);
        while last != from {
            let found = self.rows[layer][from].at(last, rank);
            last = usize::from(found.before);
            chain.push(found.before);
            rank = found.rank;
            layer -= usize::from(self.layered);
        }
        chain.reverse();
    }

    /// How many chains were found in all, and how many bytes they take.
    pub fn size(&self) -> (usize, usize) {
        let rows = self.rows.iter().flatten();
        let found: usize = rows.map(|row| row.found.len()).sum();
        let rows = self.rows.len() * self.nodes();
        let starts = rows * (self.nodes() + 1) * size_of::<u32>();
        (found, found * size_of::<Found>() + starts)
    }
}

impl Row {
    /// Everything that was found to a node, in the order of finding.
    fn to(&self, to: usize) -> &[Found] {
        &self.found[self.starts[to] as usize..self.starts[to + 1] as usize]
    }

    /// The shortest chain to a node when the link of `rank` had been taken. There must be one.
    fn at(&self, to: usize, rank: u32) -> &Found {
        let found = self.to(to);
        let taken = found.partition_point(|found| found.rank <= rank);
        &found[taken - 1]
    }
}

fn node(number: usize) -> u16 {
    u16::try_from(number).expect("a matrix has fewer nodes")
}

fn sort_all(logs: Vec<Vec<Found>>) -> Vec<Row> {
    let nodes = logs.len();
    logs.into_iter().map(|log| sort(nodes, &log)).collect()
}

/// Sorts a log by last node, and leaves what is of the same in its order.
fn sort(nodes: usize, log: &[Found]) -> Row {
    let mut starts = vec![0u32; nodes + 1];
    for found in log {
        starts[usize::from(found.to) + 1] += 1;
    }
    for node in 0..nodes {
        starts[node + 1] += starts[node];
    }
    let mut next = starts.clone();
    let nothing = Found {
        to: 0,
        before: 0,
        rank: 0,
        length: 0,
    };
    let mut sorted = vec![nothing; log.len()];
    for found in log {
        let place = &mut next[usize::from(found.to)];
        sorted[*place as usize] = *found;
        *place += 1;
    }
    Row {
        starts,
        found: sorted,
    }
}
