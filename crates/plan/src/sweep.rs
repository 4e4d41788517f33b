// SPDX-License-Identifier: Apache-2.0
//! The sweep: finds every chain that is not beaten, for all pairs of nodes at once.
//!
//! Links are processed in ascending order of a key, the shortest hop first. After each, the matrix
//! of lengths has the shortest chain of every pair over the links so far: of the chains whose
//! longest hop is no longer than that link. Whenever a link shortens a pair's chain, that is a new
//! point of the pair's front, and it is logged. Key and length may be unrelated.
//!
//! A link from `i` to `j` of length `s` shortens the chain from `x` to `y` only if it shortens both
//! that from `x` to `j` and that from `i` to `y`: otherwise the way by `i` and `j` is no shorter
//! than an existing one. So only `A x B` must be checked, with `A = {x: D(x,i) + s < D(x,j)}` and
//! `B = {y: s + D(j,y) < D(i,y)}`, which take one pass over two rows each; and nothing if `D(i,j)
//! <= s`. That is the optimisation of MOSTO's appendix A, and exact because lengths are integers:
//! rounding would break it.
//!
//! Nodes are swept in an order in which neighbours are near each other ([`order`]), so that the
//! members of `A` are adjacent, and those of `B`.
//!
//! **Bounded hops.** A layer for each number of hops `h` holds the shortest chains of at most `h`.
//! The same holds between layers: `A_a` compares layer `a` with `a + 1`, and `A_a x B_b` is for
//! layer `a + b + 1`. A beaten link cannot be skipped there: the chain that beats it may have more
//! hops. But if `A_a` has a node `x`, `A_(a-1)` has one too: the second on the chain from `x` to
//! `i`, or `i` itself. If the link did not shorten its chain to `j`, it would not shorten that of
//! `x` by it. So layers are checked until one has none: for most links, which two others beat for
//! every source, that is the second. Without a bound one layer is used for all.
//!
//! **Slack.** If small gains are not worth a point, a chain counts as shorter only if it is so by
//! more than some slack, above as well. Its length is always right; a shorter chain may exist, but
//! only by the slack of its parts.
//!
//! **Both directions.** Where every link equals its reverse, so do the chains: half of the links
//! are processed, each for both directions.
//!
//! **Nodes.** For every point the nodes of its chain are logged, for one of both directions.
//! Without a bound of hops there may be many, so only the node before the last is logged. Such a
//! chain is read backwards from it: the rest is the chain to that node, as short as when the point
//! was found. That needs exact lengths: with slack it may be another chain.

mod layer;
mod lengths;
mod near;
mod order;

use crate::matrix::Matrix;
use layer::{Joint, Layer, Room};
pub(crate) use layer::{Log, NO_NODE, Nodes};
use lengths::Shape;
use near::NearNodes;

/// The length of an absent chain. Three of them still fit: no sum overflows.
pub(crate) const ABSENT: i32 = 1 << 29;

/// A link in the sweep.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Edge {
    /// The sort key.
    pub(crate) key: u32,
    /// Its ends, by their places in the order of the sweep.
    pub(crate) from: u16,
    pub(crate) to: u16,
    /// Its contribution to the length of a chain.
    pub(crate) length: i32,
}

/// Flag of a node before the last: the same link did not shorten the chain to it. No place is so
/// large.
pub(crate) const SETTLED: u16 = 1 << 15;

/// A chain that is shorter than all whose hops are no longer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Found {
    /// The place of its last node; the first is the log's.
    pub(crate) to: u16,
    /// Without a bound of hops, the place of the node before the last, with [`SETTLED`] if the last
    /// hop is the link that made the chain.
    pub(crate) before: u16,
    /// The key of that link, the largest of the chain's links.
    pub(crate) key: u32,
    /// Its length.
    pub(crate) length: u32,
}

/// How much shorter than another a chain must be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slack {
    /// The other's length divided by two to the power of this, and
    pub(crate) shift: u32,
    /// this in addition.
    pub(crate) least: i32,
}

impl Slack {
    /// A chain must be shorter by any amount.
    pub(crate) const NONE: Self = Self {
        // This shift leaves nothing of a length.
        shift: i32::BITS - 1,
        least: 0,
    };

    /// The bound below which a chain replaces one of this length. Never falls for a longer one.
    fn off(self, length: i32) -> i32 {
        length - (length >> self.shift) - self.least
    }
}

/// The links in the order of the sweep, which depends on the matrix only.
#[derive(Debug)]
pub(crate) struct Edges {
    pub(crate) edges: Vec<Edge>,
    /// Whether each stands for its reverse, too.
    pub(crate) both_ways: bool,
    /// The nodes by their places.
    pub(crate) nodes: Vec<u16>,
}

impl Edges {
    /// `measure` returns the key and the length of a link, which must be less than [`ABSENT`].
    pub(crate) fn of(
        matrix: &Matrix,
        measure: impl Fn(usize, usize) -> Option<(u32, i32)>,
    ) -> Self {
        // Half of the work, and of the memory, where it holds: the usual case of measured links.
        let both_ways = matrix
            .links()
            .all(|(from, to, _)| measure(from, to) == measure(to, from));
        let links = matrix
            .links()
            .filter(|(from, to, _)| !both_ways || from < to);
        let edge = |(from, to, _)| {
            let (key, length) = measure(from, to)?;
            let (from, to) = (short(from), short(to));
            Some(Edge {
                key,
                from,
                to,
                length,
            })
        };
        let mut edges: Vec<Edge> = links.filter_map(edge).collect();
        // Ties of keys are ordered by the ends, so the sort is deterministic.
        edges.sort_unstable_by_key(|edge| {
            u64::from(edge.key) << 32 | u64::from(edge.from) << 16 | u64::from(edge.to)
        });
        let nodes = order::order(matrix.nodes(), |from, to| {
            measure(from, to).map_or(ABSENT, |(_, length)| length)
        });
        let mut places = vec![0; nodes.len()];
        for (place, node) in (0u16..).zip(&nodes) {
            places[usize::from(*node)] = place;
        }
        for edge in &mut edges {
            edge.from = places[usize::from(edge.from)];
            edge.to = places[usize::from(edge.to)];
        }
        Self {
            edges,
            both_ways,
            nodes,
        }
    }

    /// Processes all in order. The logs are by the place of the first node; with a bound of hops,
    /// chains that serve both directions are only in that of the end with the lower place.
    pub(crate) fn sweep(&self, hops_max: Option<usize>, slack: Slack) -> Vec<Log> {
        let shape = Shape::new(self.nodes.len(), slack);
        let count = hops_max.unwrap_or(1);
        let layer = |hops| {
            let hops = hops_max.map(|most| (hops, most));
            Layer::new(shape, hops, self.both_ways)
        };
        let mut sweep = Sweep {
            layers: (1..=count).map(layer).collect(),
            slack,
            is_bounded: hops_max.is_some(),
            both_ways: self.both_ways,
            sources: vec![NearNodes::new(shape); count],
            targets: vec![NearNodes::new(shape); count],
            room: Room::default(),
        };
        for edge in &self.edges {
            sweep.take(edge);
        }
        // The last layer has the chains of fewer hops as well.
        let last = sweep.layers.pop();
        last.map_or_else(Vec::new, Layer::into_log)
    }
}

fn short(node: usize) -> u16 {
    u16::try_from(node).expect("a matrix has fewer nodes")
}

#[derive(Debug)]
struct Sweep {
    /// From chains of one hop on, or one layer for all.
    layers: Vec<Layer>,
    slack: Slack,
    is_bounded: bool,
    /// Whether links and chains equal their reverses.
    both_ways: bool,
    /// For the current link, by the number of hops between the node and the link's end.
    sources: Vec<NearNodes>,
    targets: Vec<NearNodes>,
    room: Room,
}

impl Sweep {
    fn take(&mut self, edge: &Edge) {
        if !self.is_news(edge) {
            return;
        }
        if !self.is_bounded {
            self.join_any(edge);
            return;
        }
        // If a layer has none, those above have none either.
        let hops = 0..self.layers.len();
        let sources = hops
            .clone()
            .take_while(|hops| self.has_sources(*hops, edge));
        let sources = sources.count();
        let targets = hops.take_while(|hops| self.has_targets(*hops, edge));
        let targets = targets.count();
        for one in 0..sources {
            // Both parts and the link together have no more hops than the bound.
            for other in 0..targets.min(self.layers.len() - one) {
                // The chains joined have fewer hops each, so they are read from layers below the
                // one that changes.
                let (below, layers) = self.layers.split_at_mut(one + other);
                let joint = Joint {
                    edge,
                    sources: self.sources[one].all(),
                    targets: self.targets[other].all(),
                    to_link: one.checked_sub(1).map(|layer| &below[layer]),
                    from_link: other.checked_sub(1).map(|layer| &below[layer]),
                };
                layers[0].join(&joint, &mut self.room);
            }
        }
    }

    /// Joins chains of any number of hops.
    fn join_any(&mut self, edge: &Edge) {
        let (sources, targets) = (&mut self.sources[0], &mut self.targets[0]);
        let layer = &mut self.layers[0];
        if self.both_ways {
            layer::collect_both(layer, edge, sources, targets);
        } else {
            layer::collect_sources(layer, layer, edge, sources);
            layer::collect_targets(layer, layer, edge, targets);
        }
        layer::note_next(layer, edge, sources, targets);
        layer.join_any(edge.key, sources.all(), targets.all());
        if self.both_ways {
            // The edge stands for its reverse, which joins the same nodes the other way.
            layer.join_any(edge.key, targets.all(), sources.all());
        }
    }

    /// Whether the link's ends have no chain yet that is no longer and has no more hops; without a
    /// bound, hops do not matter.
    fn is_news(&self, edge: &Edge) -> bool {
        let known = self.layers[0].length(edge.from, edge.to);
        edge.length < self.slack.off(known)
    }

    /// Collects the sources at most so many hops from the link; returns whether there are any.
    fn has_sources(&mut self, hops: usize, edge: &Edge) -> bool {
        let sources = &mut self.sources[hops];
        match hops.checked_sub(1) {
            None => sources.set(edge.from, edge.length),
            Some(layer) => {
                let (chains, compared) = (&self.layers[layer], &self.layers[hops]);
                layer::collect_sources(chains, compared, edge, sources);
            }
        }
        sources.has_any()
    }

    /// The same for targets.
    fn has_targets(&mut self, hops: usize, edge: &Edge) -> bool {
        let targets = &mut self.targets[hops];
        match hops.checked_sub(1) {
            None => targets.set(edge.to, 0),
            Some(layer) => {
                let (chains, compared) = (&self.layers[layer], &self.layers[hops]);
                layer::collect_targets(chains, compared, edge, targets);
            }
        }
        targets.has_any()
    }
}
