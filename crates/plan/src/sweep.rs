// SPDX-License-Identifier: Apache-2.0
//! The sweep: every chain that is not beaten, for all pairs of nodes at once.
//!
//! Links are taken in ascending order of a key, the shortest hop first. After each, the matrix of
//! lengths holds the shortest chain of every pair over the links taken so far: of the chains whose
//! longest hop is no longer than that link. Whenever a link makes a pair's chain shorter, that is a
//! new point of the pair's front, and it is logged. Key and length may be unrelated.
//!
//! A link from `i` to `j` of length `s` shortens the chain from `x` to `y` only if it shortens both
//! that from `x` to `j` and that from `i` to `y`: otherwise the way by `i` and `j` is no shorter than
//! one that was there. So only `A x B` need a look, with
//! `A = {x: D(x,i) + s < D(x,j)}` and `B = {y: s + D(j,y) < D(i,y)}`, which take one pass over two rows
//! each; and none at all if `D(i,j) <= s`. That is the optimisation of MOSTO's appendix A, and exact
//! because lengths are integers: rounding would break it.
//!
//! **Bounded hops.** A layer for each number of hops `h` holds the shortest chains of at most `h`.
//! The same holds between layers: `A_a` compares layer `a` with `a + 1`, and `A_a x B_b` is for
//! layer `a + b + 1`. A link that is beaten cannot be passed over there: the chain that beats it may
//! have hops more. But if `A_a` has a node `x`, so has `A_(a-1)`: the second on the chain from `x` to `i`,
//! or `i` itself. Were it brought no nearer to `j`, then by it nor were `x`. So layers are looked at until
//! one has none: for most links, which two others beat for whoever comes that way, that is the second.
//! Without a bound one layer takes the part of all.
//!
//! **Both directions.** Where every link is like its reverse, so are the chains: half of the links are
//! taken, each for both directions.
//!
//! For every point the node before the last is logged. A chain is read backwards from it: the
//! chain to that node, as short as it was when the point was found, is the rest.

use crate::matrix::Matrix;

/// The length of a chain that is not there. Three of them still fit: no sum overflows.
pub(crate) const ABSENT: i32 = 1 << 29;

/// Rows are padded to blocks of so many nodes, which are compared at once.
const BLOCK: usize = 16;

/// A link as the sweep sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Edge {
    /// What links are ordered by.
    pub(crate) key: u32,
    pub(crate) from: u16,
    pub(crate) to: u16,
    /// What it adds to the length of a chain.
    pub(crate) length: i32,
}

/// A chain was found that is shorter than all with no longer a hop.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    /// Its last node; the first is that of the log.
    pub(crate) to: u16,
    /// The node before the last.
    pub(crate) before: u16,
    /// Place in the order of links of the one that made it.
    pub(crate) rank: u32,
    /// Its length.
    pub(crate) length: u32,
}

/// The links in the order of the sweep, which depends on nothing else than the matrix.
#[derive(Debug)]
pub(crate) struct Edges {
    pub(crate) edges: Vec<Edge>,
    /// Each stands for its reverse, too.
    both_ways: bool,
}

impl Edges {
    /// `measure` gives the key and the length of a link, which must be less than [`ABSENT`].
    pub(crate) fn of(
        matrix: &Matrix,
        measure: impl Fn(usize, usize) -> Option<(u32, i32)>,
    ) -> Self {
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
        // Keys that tie are told apart by the ends: no two elements are equal.
        edges.sort_unstable_by_key(|edge| {
            u64::from(edge.key) << 32 | u64::from(edge.from) << 16 | u64::from(edge.to)
        });
        Self { edges, both_ways }
    }

    /// Takes all in their order. The logs are by layer and by first node, in the order of finding;
    /// there is one layer, or `hops_max` and one for chains without a hop, which is empty.
    pub(crate) fn sweep(&self, nodes: usize, hops_max: Option<usize>) -> Vec<Vec<Vec<Found>>> {
        let mut sweep = Sweep::new(nodes, hops_max, self.both_ways);
        for (rank, edge) in (0u32..).zip(&self.edges) {
            sweep.take(rank, edge);
        }
        sweep.layers.into_iter().map(|layer| layer.log).collect()
    }
}

fn short(node: usize) -> u16 {
    u16::try_from(node).expect("a matrix has fewer nodes")
}

/// The shortest chains over the links taken, of at most so many hops.
#[derive(Debug)]
struct Layer {
    /// Lengths by first node, then by last.
    rows: Vec<i32>,
    /// The same by last node, then by first. Empty if that is the same.
    columns: Vec<i32>,
    /// The node before the last, by first, then by last.
    before: Vec<u16>,
    log: Vec<Vec<Found>>,
}

/// A node that the link brings nearer: first node of `A`, or last of `B`.
#[derive(Clone, Copy, Debug, Default)]
struct Near {
    node: u16,
    /// The one before it on the chain from the link's nearer end.
    before: u16,
    /// The length up to the link's end, with the link in `A`.
    length: i32,
}

/// Nodes that the link at hand brings nearer. There is room for all, which stays.
#[derive(Clone, Debug)]
struct NearNodes {
    room: Vec<Near>,
    count: usize,
}

#[derive(Debug)]
struct Sweep {
    /// Nodes in a padded row.
    stride: usize,
    layers: Vec<Layer>,
    /// Links and chains are like their reverses.
    both_ways: bool,
    /// From a layer to the one that its chains are in with one more hop: 1, or 0 without a bound.
    step: usize,
    /// By layer, of the link at hand.
    sources: Vec<NearNodes>,
    targets: Vec<NearNodes>,
}

impl Sweep {
    fn new(nodes: usize, hops_max: Option<usize>, both_ways: bool) -> Self {
        let stride = nodes.next_multiple_of(BLOCK);
        let count = hops_max.map_or(1, |hops| hops + 1);
        let none = NearNodes {
            // One more, to write what does not count.
            room: vec![Near::default(); stride + 1],
            count: 0,
        };
        Self {
            stride,
            layers: (0..count)
                .map(|_| Layer::new(nodes, stride, both_ways))
                .collect(),
            both_ways,
            step: usize::from(hops_max.is_some()),
            sources: vec![none.clone(); count],
            targets: vec![none; count],
        }
    }

    fn take(&mut self, rank: u32, edge: &Edge) {
        let open = self.open_layers(edge);
        // Where a layer has none, those above have none either.
        let sources = (0..open).take_while(|near| self.collect_sources(*near, edge));
        let sources = sources.count();
        let targets = (0..open).take_while(|near| self.collect_targets(*near, edge));
        let targets = targets.count();
        for one in 0..sources {
            for other in 0..targets {
                let joined = if self.step == 0 { 0 } else { one + other + 1 };
                let Some(layer) = self.layers.get_mut(joined) else {
                    continue;
                };
                let (sources, targets) = (self.sources[one].all(), self.targets[other].all());
                layer.join(self.stride, rank, sources, targets);
                if self.both_ways {
                    layer.join(self.stride, rank, targets, sources);
                }
            }
        }
    }

    /// Collects the sources whose chains are in a layer; returns whether there are any.
    fn collect_sources(&mut self, near: usize, edge: &Edge) -> bool {
        let (from, to) = (usize::from(edge.from), usize::from(edge.to));
        let (chains, compared) = (&self.layers[near], &self.layers[near + self.step]);
        let (stride, sources) = (self.stride, &mut self.sources[near]);
        if near < self.step {
            sources.set(edge.from, edge.length);
        } else {
            let (chains, compared) = (chains.column(from, stride), compared.column(to, stride));
            collect(chains, compared, edge.length, sources);
        }
        if self.both_ways {
            for source in sources.all_mut() {
                let known = chains.before[from * stride + usize::from(source.node)];
                let is_end = source.node == edge.from;
                source.before = if is_end { edge.to } else { known };
            }
        }
        sources.count > 0
    }

    /// The same for targets.
    fn collect_targets(&mut self, near: usize, edge: &Edge) -> bool {
        let (from, to) = (usize::from(edge.from), usize::from(edge.to));
        let (chains, compared) = (&self.layers[near], &self.layers[near + self.step]);
        let (stride, targets) = (self.stride, &mut self.targets[near]);
        if near < self.step {
            targets.set(edge.to, edge.length);
        } else {
            let (chains, compared) = (chains.row(to, stride), compared.row(from, stride));
            collect(chains, compared, edge.length, targets);
        }
        for target in targets.all_mut() {
            let known = chains.before[to * stride + usize::from(target.node)];
            let is_end = target.node == edge.to;
            target.before = if is_end { edge.from } else { known };
            target.length -= edge.length;
        }
        targets.count > 0
    }

    /// How many layers' chains to look at: none if there is a chain between the link's ends
    /// already that is no longer, and takes no more hops, which without a bound is all the same.
    fn open_layers(&self, edge: &Edge) -> usize {
        let place = usize::from(edge.from) * self.stride + usize::from(edge.to);
        let known = self.layers[self.step].rows[place];
        if edge.length < known {
            self.layers.len().max(2) - 1
        } else {
            0
        }
    }
}

impl Layer {
    fn new(nodes: usize, stride: usize, both_ways: bool) -> Self {
        let mut rows = vec![ABSENT; nodes * stride];
        for node in 0..nodes {
            rows[node * stride + node] = 0;
        }
        Self {
            columns: if both_ways { Vec::new() } else { rows.clone() },
            rows,
            before: vec![0; nodes * stride],
            log: vec![Vec::new(); nodes],
        }
    }

    fn row(&self, from: usize, stride: usize) -> &[i32] {
        &self.rows[from * stride..][..stride]
    }

    fn column(&self, to: usize, stride: usize) -> &[i32] {
        if self.columns.is_empty() {
            return self.row(to, stride);
        }
        &self.columns[to * stride..][..stride]
    }

    /// Looks at the chains from all sources over the link to all targets.
    fn join(&mut self, stride: usize, rank: u32, sources: &[Near], targets: &[Near]) {
        for source in sources {
            let from = usize::from(source.node);
            let row = &mut self.rows[from * stride..][..stride];
            let before = &mut self.before[from * stride..][..stride];
            let log = &mut self.log[from];
            for target in targets {
                let to = usize::from(target.node);
                let length = source.length + target.length;
                if length < row[to] {
                    row[to] = length;
                    before[to] = target.before;
                    if let Some(column) = self.columns.get_mut(to * stride + from) {
                        *column = length;
                    }
                    log.push(Found {
                        to: target.node,
                        before: target.before,
                        rank,
                        length: length.cast_unsigned(),
                    });
                }
            }
        }
    }
}

impl NearNodes {
    fn all(&self) -> &[Near] {
        &self.room[..self.count]
    }

    /// The link's end itself, from which there is no hop to it.
    fn set(&mut self, node: u16, length: i32) {
        self.room[0] = Near {
            node,
            before: 0,
            length,
        };
        self.count = 1;
    }

    fn all_mut(&mut self) -> &mut [Near] {
        &mut self.room[..self.count]
    }
}

/// The nodes whose `chains` and one link of `length` more are shorter than `compared`.
fn collect(chains: &[i32], compared: &[i32], length: i32, near: &mut NearNodes) {
    near.count = 0;
    let (chains, _) = chains.as_chunks::<BLOCK>();
    let (compared, _) = compared.as_chunks::<BLOCK>();
    for (block, (chains, compared)) in chains.iter().zip(compared).enumerate() {
        // Few blocks have any, and to learn that of all of a block at once is cheap.
        let pairs = chains.iter().zip(compared);
        let any = pairs.fold(0, |any, (chain, other)| {
            any | i32::from(chain + length < *other)
        });
        if any == 0 {
            continue;
        }
        // Written whether they count or not: a branch would be guessed wrong.
        for (place, (chain, other)) in chains.iter().zip(compared).enumerate() {
            near.room[near.count] = Near {
                node: short(block * BLOCK + place),
                before: 0,
                length: chain + length,
            };
            near.count += usize::from(chain + length < *other);
        }
    }
}
