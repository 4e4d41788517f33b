// SPDX-License-Identifier: Apache-2.0
//! Every useful chain: for each ordered pair of nodes those that no other beats both in length and
//! in the longest hop.
//!
//! Of chains that tie in both, one is kept: the one that the sweep found first. A cost of at least
//! a microsecond per node makes it one with the fewest nodes.

use std::ops::Range;

use crate::matrix::Matrix;
use crate::model::Model;
use crate::sweep::{Edges, Found, Log, NO_NODE, Nodes, SETTLED, Slack};

/// The measure of a chain's longest hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Measure {
    /// Its round-trip time. Right for all sizes if links differ in nothing else.
    RoundTrip,
    /// How long a transfer of so many bytes would wait for it ([`Model::time_us`]).
    TimeFor(u64),
}

/// Constraints on chains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Limits {
    /// The most hops of a chain, ends included: one more than the nodes between. At least 1.
    pub hops_max: Option<u8>,
    /// What makes a chain shorter than another.
    pub precision: Precision,
}

/// What makes a chain shorter than another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Precision {
    /// A microsecond.
    #[default]
    Exact,
    /// More than a 64th of the other's length and 0.2 ms, if hops are bounded. This halves the
    /// number of chains; transfers take at most some 3 % longer.
    Near,
}

impl Precision {
    /// In the unit of the sweep, half microseconds.
    fn slack(self) -> Slack {
        match self {
            Self::Exact => Slack::NONE,
            Self::Near => Slack {
                shift: 6,
                least: 400,
            },
        }
    }
}

/// A chain that is not beaten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Point {
    /// Lengths of its hops and costs of the nodes between its ends, in microseconds.
    pub length_us: u32,
    /// The measure of its longest hop, in microseconds.
    pub longest_us: u32,
    /// Its index in the row of its first node.
    place: u32,
}

/// The chains of all pairs.
#[derive(Debug)]
pub struct Fronts {
    /// By first node. Nodes are identified by their places in the order of the sweep.
    rows: Vec<Row>,
    /// The places by node, and the nodes by place.
    places: Vec<u16>,
    nodes: Vec<u16>,
    /// Node costs: those of a chain's ends are in the sweep's lengths, and are subtracted from
    /// points.
    costs: Vec<u32>,
    measure: Measure,
    /// Whether chains serve both directions; they are in the row of the end with the lower place.
    is_halved: bool,
}

/// The chains from one node, by last node, in the order of finding.
#[derive(Debug)]
struct Row {
    /// Index of each last node's first entry; one more for the end.
    starts: Vec<u32>,
    entries: Vec<Found>,
    /// The nodes between the ends of each. Empty without a bound of hops.
    nodes: Nodes,
    /// Without a bound of hops, the index of the chain to the node before the last, or [`FIRST`].
    before: Vec<u32>,
}

/// Memory for sorting.
#[derive(Debug, Default)]
struct Room {
    found: Vec<Found>,
    nodes: Nodes,
    next: Vec<u32>,
}

/// The chain is one hop.
const FIRST: u32 = u32::MAX;

impl Fronts {
    /// Finds all chains.
    ///
    /// A chain of four and a half minutes or more counts as absent, and all hops for which a
    /// transfer waits more than 71 minutes count as equally slow. Panics if `limits` allow no hop.
    pub fn of(matrix: &Matrix, model: &Model, measure: Measure, limits: Limits) -> Self {
        assert_ne!(limits.hops_max, Some(0), "a chain has a hop");
        let edges = Edges::of(matrix, |from, to| {
            let link = matrix.link(from, to)?;
            let key = match measure {
                Measure::RoundTrip => u64::from(link.rtt_us),
                Measure::TimeFor(bytes) => model.time_us(link, bytes),
            };
            // Doubled, so that half a node's cost can be on either side.
            let costs = u64::from(matrix.cost_us(from)) + u64::from(matrix.cost_us(to));
            let length = i32::try_from(2 * model.length_us(link) + costs).ok()?;
            Some((u32::try_from(key).unwrap_or(u32::MAX), length))
        });
        let nodes = matrix.nodes();
        // A chain has no more hops than there are other nodes.
        let hops_max = limits.hops_max.map(usize::from);
        let hops_max = hops_max.filter(|hops| *hops + 1 < nodes);
        // Chains without a bound of hops are read back node by node, which needs exact lengths.
        let slack = match hops_max {
            Some(_) => limits.precision.slack(),
            None => Slack::NONE,
        };
        let logs = edges.sweep(hops_max, slack);
        let mut room = Room::default();
        let row = |(from, log): (usize, Log)| {
            let mut row = Row::new(nodes, log, &mut room);
            if hops_max.is_none() {
                row.link(from, &mut room);
            }
            row
        };
        let rows = logs.into_iter().enumerate().map(row).collect();
        let mut places = vec![0; nodes];
        for (place, node) in (0u16..).zip(&edges.nodes) {
            places[usize::from(*node)] = place;
        }
        Self {
            rows,
            places,
            nodes: edges.nodes,
            costs: (0..nodes).map(|node| matrix.cost_us(node)).collect(),
            measure,
            is_halved: edges.both_ways && hops_max.is_some(),
        }
    }

    /// The number of nodes.
    pub fn nodes(&self) -> usize {
        self.costs.len()
    }

    /// The measure of longest hops.
    pub fn measure(&self) -> Measure {
        self.measure
    }

    /// The chains from one node to another, in ascending order of the longest hop and descending
    /// order of length. Empty if there is no chain, or the nodes are equal.
    pub fn points(&self, from: usize, to: usize) -> impl Iterator<Item = Point> {
        let (first, last) = self.in_order(self.places[from], self.places[to]);
        let row = &self.rows[usize::from(first)];
        let places = row.range(last);
        let entries = &row.entries[places.start as usize..places.end as usize];
        let costs = self.costs[from] + self.costs[to];
        // A link with the same key may have shortened the chain further.
        let is_last = move |at: usize| {
            entries
                .get(at + 1)
                .is_none_or(|next| next.key != entries[at].key)
        };
        let point = move |(at, place)| {
            let entry: &Found = &entries[at];
            is_last(at).then(|| Point {
                length_us: (entry.length - costs) / 2,
                longest_us: entry.key,
                place,
            })
        };
        places.enumerate().filter_map(point)
    }

    /// Writes the nodes of a chain to `chain`, its ends included. The point must be of this pair.
    pub fn chain(&self, from: usize, to: usize, point: &Point, chain: &mut Vec<u16>) {
        chain.clear();
        chain.push(self.name(self.places[from]));
        self.add_between(from, to, point, chain);
        chain.push(self.name(self.places[to]));
    }

    /// Adds the nodes between the ends of a chain to `chain`. The point must be of this pair.
    pub(crate) fn add_between(&self, from: usize, to: usize, point: &Point, chain: &mut Vec<u16>) {
        let (first, last) = (self.places[from], self.places[to]);
        let start = chain.len();
        let (row, _) = self.in_order(first, last);
        let row = &self.rows[usize::from(row)];
        let mut place = point.place;
        if row.before.is_empty() {
            let nodes = row.nodes.get(place as usize).iter();
            let nodes = nodes.take_while(|node| **node != NO_NODE);
            chain.extend(nodes.map(|node| self.name(*node)));
            if (first, last) == self.in_order(first, last) {
                return;
            }
        } else {
            while row.before[place as usize] != FIRST {
                chain.push(self.name(row.entries[place as usize].before & !SETTLED));
                place = row.before[place as usize];
                debug_assert!(chain.len() - start < row.starts.len(), "it goes round");
            }
        }
        // Either read back from the last node, or in the row of the other end.
        chain[start..].reverse();
    }

    /// The node at a place.
    fn name(&self, place: u16) -> u16 {
        self.nodes[usize::from(place)]
    }

    /// The ends of a chain in look-up order.
    fn in_order(&self, first: u16, last: u16) -> (u16, u16) {
        if self.is_halved && last < first {
            (last, first)
        } else {
            (first, last)
        }
    }

    /// The number of all chains found, and their size in bytes.
    pub fn size(&self) -> (usize, usize) {
        let found: usize = self.rows.iter().map(|row| row.entries.len()).sum();
        let bytes = |row: &Row| {
            let linked = size_of_val(&*row.nodes.all) + size_of_val(&*row.before);
            size_of_val(&*row.entries) + size_of_val(&*row.starts) + linked
        };
        (found, self.rows.iter().map(bytes).sum())
    }
}

impl Row {
    /// Sorts a log by last node; the order within each stays.
    fn new(nodes: usize, log: Log, room: &mut Room) -> Self {
        let mut starts = vec![0u32; nodes + 1];
        for found in &log.found {
            // One place further, so that the sums below are where nodes start, not where they end.
            starts[usize::from(found.to) + 1] += 1;
        }
        for node in 0..nodes {
            starts[node + 1] += starts[node];
        }
        // Reuses the log's memory: allocating as much again takes longer than sorting.
        room.found.clone_from(&log.found);
        room.nodes.clone_from(&log.nodes);
        room.next.clone_from(&starts);
        let mut row = Self {
            starts,
            entries: log.found,
            nodes: log.nodes,
            before: Vec::new(),
        };
        for (number, found) in room.found.iter().enumerate() {
            let place = &mut room.next[usize::from(found.to)];
            row.entries[*place as usize] = *found;
            if row.nodes.room > 0 {
                let nodes = room.nodes.get(number).iter().copied();
                row.nodes.set(*place as usize, nodes);
            }
            *place += 1;
        }
        row
    }

    /// Stores for each chain the index of the chain to the node before its last, for chains from a
    /// node without a bound of hops.
    ///
    /// That is the latest chain found by then. If the last hop is not the link itself, the same
    /// link has shortened the chain to that node: otherwise it would not have shortened this one
    /// either. The log has the results of a link in the order of last nodes, so that one may come
    /// later.
    fn link(&mut self, from: usize, room: &mut Room) {
        room.next.clone_from(&self.starts);
        self.before = vec![FIRST; room.found.len()];
        for found in &room.found {
            let before = usize::from(found.before & !SETTLED);
            let place = room.next[usize::from(found.to)];
            room.next[usize::from(found.to)] += 1;
            let is_to_come = found.before > found.to && found.before & SETTLED == 0;
            if before != from {
                self.before[place as usize] = room.next[before] + u32::from(is_to_come) - 1;
            }
        }
    }

    /// The range of the entries to a node.
    fn range(&self, last: u16) -> Range<u32> {
        let last = usize::from(last);
        self.starts[last]..self.starts[last + 1]
    }
}
