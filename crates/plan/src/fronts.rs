// SPDX-License-Identifier: Apache-2.0
//! Every chain worth having: for each ordered pair of nodes those that no other beats both in
//! length and in the longest hop.
//!
//! Of chains that tie in both, one is kept: the one that the sweep found first. A cost of at least a
//! microsecond for each node makes it one with the fewest nodes.

use crate::matrix::Matrix;
use crate::model::Model;
use crate::sweep::{Edges, Found};

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
    /// Where in the row of its first node it is.
    place: u32,
}

/// The chains of all pairs.
#[derive(Debug)]
pub struct Fronts {
    /// By first node, then by layer.
    rows: Vec<Vec<Row>>,
    /// What the ends of chains cost, which is in their lengths and must not be.
    costs: Vec<u32>,
    measure: Measure,
    /// Whether chains that are one hop shorter are in the layer before.
    layered: bool,
}

/// What was found from one node, by last node, in the order of finding.
#[derive(Debug)]
struct Row {
    /// Where the last node's begin; one more for the end.
    starts: Vec<u32>,
    entries: Vec<Entry>,
}

/// A chain that was the shortest for a time.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Its last node.
    to: u16,
    /// Where the chain to the node before that is, in the row or in the layer before: [`FIRST`] if
    /// that node is the first.
    before: u32,
    length: u32,
    /// Of the link that it was found with, its longest.
    key: u32,
}

/// There is nothing before a hop.
const FIRST: u32 = u32::MAX;

impl Fronts {
    /// Finds all chains.
    ///
    /// A chain of four and a half minutes or more is taken for absent, and a hop that makes a transfer wait for
    /// more than 71 minutes is as bad as any such. Panics if `limits` allow no hop.
    pub fn of(matrix: &Matrix, model: &Model, measure: Measure, limits: Limits) -> Self {
        assert_ne!(limits.hops_max, Some(0), "a chain has a hop");
        let edges = Edges::of(matrix, |from, to| {
            let link = matrix.link(from, to)?;
            let key = match measure {
                Measure::RoundTrip => u64::from(link.rtt_us),
                Measure::TimeFor(bytes) => model.time_us(link, bytes),
            };
            // Twice, so that half the cost of a node can be on either side of it.
            let costs = u64::from(matrix.cost_us(from)) + u64::from(matrix.cost_us(to));
            let length = i32::try_from(2 * model.length_us(link) + costs).ok()?;
            Some((u32::try_from(key).unwrap_or(u32::MAX), length))
        });
        let nodes = matrix.nodes();
        // No chain has more hops than there are nodes to go to.
        let hops_max = limits.hops_max.map(usize::from);
        let hops_max = hops_max.filter(|hops| *hops + 1 < nodes);
        let mut logs = edges.sweep(nodes, hops_max);
        let layered = hops_max.is_some();
        let row = |from: usize| {
            let taken = logs
                .iter_mut()
                .map(|layer| std::mem::take(&mut layer[from]));
            let logs: Vec<Vec<Found>> = taken.collect();
            sort_layers(from, nodes, &logs, layered, &edges)
        };
        Self {
            rows: (0..nodes).map(row).collect(),
            costs: (0..nodes).map(|node| matrix.cost_us(node)).collect(),
            measure,
            layered,
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
        let row = self.last_layer(from);
        let places = row.starts[to]..row.starts[to + 1];
        let entries = &row.entries[places.start as usize..places.end as usize];
        let followers = entries.iter().skip(1).map(Some).chain([None]);
        let costs = self.costs[from] + self.costs[to];
        places
            .zip(entries.iter().zip(followers))
            // A link of the same key may have made the chain shorter still.
            .filter(|(_, (entry, next))| next.is_none_or(|next| next.key != entry.key))
            .map(move |(place, (entry, _))| Point {
                length_us: (entry.length - costs) / 2,
                longest_us: entry.key,
                place,
            })
    }

    /// Writes the nodes of a chain to `chain`, its ends included. The point must be of this pair.
    pub fn chain(&self, from: usize, to: usize, point: &Point, chain: &mut Vec<u16>) {
        chain.clear();
        let mut layer = self.rows[from].len() - 1;
        let mut place = point.place;
        while place != FIRST {
            let entry = &self.rows[from][layer].entries[place as usize];
            chain.push(entry.to);
            place = entry.before;
            layer -= usize::from(self.layered);
        }
        debug_assert_eq!(chain.first(), Some(&node(to)), "a point of another pair");
        chain.push(node(from));
        chain.reverse();
    }

    fn last_layer(&self, from: usize) -> &Row {
        let layers = &self.rows[from];
        &layers[layers.len() - 1]
    }

    /// How many chains were found in all, and how many bytes they take.
    pub fn size(&self) -> (usize, usize) {
        let rows = self.rows.iter().flatten();
        let found: usize = rows.clone().map(|row| row.entries.len()).sum();
        let starts: usize = rows.map(|row| row.starts.len()).sum();
        (
            found,
            found * size_of::<Entry>() + starts * size_of::<u32>(),
        )
    }
}

fn node(number: usize) -> u16 {
    u16::try_from(number).expect("a matrix has fewer nodes")
}

/// The rows of a node's logs, by layer.
fn sort_layers(
    from: usize,
    nodes: usize,
    logs: &[Vec<Found>],
    layered: bool,
    edges: &Edges,
) -> Vec<Row> {
    let starts: Vec<Vec<u32>> = logs.iter().map(|log| starts(nodes, log)).collect();
    let row = |layer: usize| {
        // Of the chains to the node before the last: they are one hop shorter.
        let rest = layer.saturating_sub(usize::from(layered));
        Row {
            entries: sort(
                from,
                (&logs[layer], &starts[layer]),
                (&logs[rest], &starts[rest]),
                edges,
            ),
            starts: starts[layer].clone(),
        }
    };
    (0..logs.len()).map(row).collect()
}

/// Where what was found to each node begins when a log is sorted, and the end.
fn starts(nodes: usize, log: &[Found]) -> Vec<u32> {
    let mut starts = vec![0u32; nodes + 1];
    for found in log {
        starts[usize::from(found.to) + 1] += 1;
    }
    for node in 0..nodes {
        starts[node + 1] += starts[node];
    }
    starts
}

/// A log and where its parts begin.
type Log<'a> = (&'a [Found], &'a [u32]);

/// Sorts a log by last node, and leaves what is of the same in its order. `rest` is the log with
/// the chains to the nodes before the last.
fn sort(from: usize, log: Log<'_>, rest: Log<'_>, edges: &Edges) -> Vec<Entry> {
    let (log, starts) = log;
    let nothing = Entry {
        to: 0,
        before: FIRST,
        length: 0,
        key: 0,
    };
    let mut entries = vec![nothing; log.len()];
    let mut next = starts.to_vec();
    let (mut rest, mut known) = (rest.0.iter().peekable(), rest.1.to_vec());
    for found in log {
        // What the same link made shorter counts: it may be the chain to the node before.
        while let Some(other) = rest.next_if(|other| other.rank <= found.rank) {
            known[usize::from(other.to)] += 1;
        }
        let before = usize::from(found.before);
        let place = &mut next[usize::from(found.to)];
        entries[*place as usize] = Entry {
            to: found.to,
            before: if before == from {
                FIRST
            } else {
                known[before] - 1
            },
            length: found.length,
            key: edges.edges[found.rank as usize].key,
        };
        *place += 1;
    }
    entries
}
