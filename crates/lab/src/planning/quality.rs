// SPDX-License-Identifier: Apache-2.0
//! How much longer transfers take over the chains of other strategies, by the model.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use posthaste_plan::fronts::{Limits, Measure};
use posthaste_plan::{Fronts, Link, Matrix, Model, Point};

use super::ROUNDS;
use super::data::Mesh;
use crate::names::{Named, named};

/// Weight of the longest hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Counting {
    /// Once for each round but the first, as in MOSTO, whose time begins with the first data.
    AsPublished,
    /// Once for each round: the handshake is one more (Miniproxy, equation 10).
    WithHandshake,
}

impl Counting {
    fn weight(self, rounds: u64) -> u64 {
        match self {
            Self::AsPublished => rounds - 1,
            Self::WithHandshake => rounds,
        }
    }
}

named! {
    /// Other strategies.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub(super) enum Other {
        /// No node between.
        Direct = "direct",
        /// The shortest path, with a node wherever that makes no hop longer.
        Split = "shortest, split",
        /// The shortest of the chains with the shortest longest hop.
        Minimax = "minimax, shortest",
        /// The only chain in a minimum spanning tree: its longest hop is as short, but its length is
        /// unbounded.
        Tree = "minimax, tree",
    }
}

/// The results for one number of rounds.
#[derive(Clone, Debug, Default)]
pub(super) struct Quality {
    /// By strategy, for each ordered pair of nodes: how much longer its time is than ours, in
    /// percent.
    pub(super) excess: BTreeMap<Other, Vec<f64>>,
    /// Mean number of nodes between the ends of our chains.
    pub(super) nodes: f64,
    /// The same of the chains of other strategies.
    pub(super) other_nodes: BTreeMap<Other, f64>,
}

/// By number of rounds.
pub(super) type Qualities = BTreeMap<u64, Quality>;

/// The properties of a chain that determine its time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Cost {
    length_us: u64,
    longest_us: u64,
    nodes: u32,
}

impl Cost {
    /// The chain extended by one hop, with the cost of the node between; `None` for the first hop,
    /// which has no such node.
    fn longer(&self, hop_us: u32, pass_us: Option<u32>) -> Self {
        Self {
            length_us: self.length_us + u64::from(hop_us) + u64::from(pass_us.unwrap_or(0)),
            longest_us: self.longest_us.max(hop_us.into()),
            nodes: self.nodes + u32::from(pass_us.is_some()),
        }
    }

    fn time_us(&self, weight: u64) -> u64 {
        self.length_us + weight * self.longest_us
    }
}

/// Compares all pairs of all graphs with equal weights. Fails if another strategy's chain is faster
/// than ours, which is impossible for exact planning.
pub(super) fn compare(meshes: &[Mesh], counting: Counting) -> Result<Qualities> {
    let mut qualities = Qualities::new();
    for mesh in meshes {
        let graph = Graph::new(mesh)?;
        let nodes = mesh.rtts_ms.len();
        for (from, to) in (0..nodes).flat_map(|from| (0..nodes).map(move |to| (from, to))) {
            if from == to {
                continue;
            }
            let chains = graph.chains(from, to);
            for rounds in ROUNDS {
                let weight = counting.weight(rounds);
                let ours = graph.best(from, to, weight);
                let quality = qualities.entry(rounds).or_default();
                quality.add(&ours, &chains, weight).map_err(|other| {
                    anyhow::anyhow!("{}: {from} to {to}: {} is faster", mesh.name, other.name())
                })?;
            }
        }
    }
    qualities.values_mut().for_each(Quality::average);
    Ok(qualities)
}

impl Quality {
    fn add(
        &mut self,
        ours: &Cost,
        others: &BTreeMap<Other, Cost>,
        weight: u64,
    ) -> Result<(), Other> {
        let time = ours.time_us(weight);
        for (other, cost) in others {
            let other_time = cost.time_us(weight);
            if other_time < time {
                return Err(*other);
            }
            let excess = (other_time as f64 / time as f64 - 1.0) * 100.0;
            self.excess.entry(*other).or_default().push(excess);
            *self.other_nodes.entry(*other).or_default() += f64::from(cost.nodes);
        }
        self.nodes += f64::from(ours.nodes);
        Ok(())
    }

    /// Turns sums into means.
    fn average(&mut self) {
        let pairs = self.excess.values().next().map_or(1, Vec::len) as f64;
        self.nodes /= pairs;
        self.other_nodes
            .values_mut()
            .for_each(|nodes| *nodes /= pairs);
    }
}

/// A graph with everything needed to choose chains.
struct Graph {
    matrix: Matrix,
    fronts: Fronts,
    /// Without node costs, the shortest chain has the most nodes.
    free: Fronts,
    tree: Vec<Vec<Cost>>,
}

impl Graph {
    fn new(mesh: &Mesh) -> Result<Self> {
        let mut matrix = to_matrix(&mesh.rtts_ms)?;
        let sweep = |matrix: &Matrix| {
            Fronts::of(
                matrix,
                &Model::default(),
                Measure::RoundTrip,
                Limits::default(),
            )
        };
        // Before the costs are set: the sweep reads them from the matrix.
        let free = sweep(&matrix);
        for node in 0..matrix.nodes() {
            matrix.set_cost(node, mesh.cost_us)?;
        }
        Ok(Self {
            fronts: sweep(&matrix),
            free,
            tree: tree_chains(&matrix)?,
            matrix,
        })
    }

    /// The fastest chain.
    fn best(&self, from: usize, to: usize, weight: u64) -> Cost {
        let time =
            |point: &Point| u64::from(point.length_us) + weight * u64::from(point.longest_us);
        let points = self.fronts.points(from, to);
        let best = points.min_by_key(|point| (time(point), point.length_us));
        self.cost(&self.fronts, from, to, best)
    }

    fn chains(&self, from: usize, to: usize) -> BTreeMap<Other, Cost> {
        let rtt_us = self.matrix.link(from, to).map_or(0, |link| link.rtt_us);
        let direct = Cost {
            length_us: rtt_us.into(),
            longest_us: rtt_us.into(),
            nodes: 0,
        };
        let split = self.free.points(from, to).last();
        let minimax = self.fronts.points(from, to).next();
        BTreeMap::from([
            (Other::Direct, direct),
            (Other::Split, self.cost(&self.free, from, to, split)),
            (Other::Minimax, self.cost(&self.fronts, from, to, minimax)),
            (Other::Tree, self.tree[from][to]),
        ])
    }

    /// The cost of a chain including nodes, whether or not they were counted when it was found.
    fn cost(&self, fronts: &Fronts, from: usize, to: usize, point: Option<Point>) -> Cost {
        let Some(point) = point else {
            return Cost::default();
        };
        let mut chain = Vec::new();
        fronts.chain(from, to, &point, &mut chain);
        let rtts = chain.windows(2).filter_map(|ends| {
            let link = self.matrix.link(ends[0].into(), ends[1].into())?;
            Some(u64::from(link.rtt_us))
        });
        let inner = &chain[1..chain.len() - 1];
        let costs = inner
            .iter()
            .map(|node| u64::from(self.matrix.cost_us((*node).into())));
        Cost {
            length_us: rtts.clone().sum::<u64>() + costs.sum::<u64>(),
            longest_us: rtts.max().unwrap_or(0),
            nodes: u32::try_from(inner.len()).unwrap_or(u32::MAX),
        }
    }
}

/// The matrix of a graph without node costs.
pub(super) fn to_matrix(rtts_ms: &[Vec<f64>]) -> Result<Matrix> {
    let mut matrix = Matrix::new(rtts_ms.len())?;
    for (from, row) in rtts_ms.iter().enumerate() {
        for (to, rtt_ms) in row.iter().enumerate().filter(|(to, _)| *to != from) {
            ensure!(
                (0.0..60_000.0).contains(rtt_ms),
                "{rtt_ms} ms from {from} to {to}"
            );
            // Rounded to the nearest microsecond: `as_micros` truncates.
            let rtt = std::time::Duration::from_secs_f64(rtt_ms / 1e3 + 0.5e-6);
            let link = Link::of_rtt(u32::try_from(rtt.as_micros())?);
            matrix.set(from, to, Some(link))?;
        }
    }
    Ok(matrix)
}

/// By ends, the chains of a minimum spanning tree (Prim's algorithm), built with the shorter
/// direction of each link.
fn tree_chains(matrix: &Matrix) -> Result<Vec<Vec<Cost>>> {
    let nodes = matrix.nodes();
    let rtt = |from, to| matrix.link(from, to).map_or(u32::MAX, |link| link.rtt_us);
    // A tree is undirected, while links may differ by direction.
    let both = |(from, to)| rtt(from, to).min(rtt(to, from));
    let mut chains = vec![vec![Cost::default(); nodes]; nodes];
    let mut inside = vec![0];
    // With the nearest node in the tree.
    let mut outside: Vec<(usize, usize)> = (1..nodes).map(|node| (node, 0)).collect();
    while let Some(place) = (0..outside.len()).min_by_key(|&place| both(outside[place])) {
        let (node, parent) = outside.swap_remove(place);
        ensure!(
            both((node, parent)) < u32::MAX,
            "nothing joins node {node} to others"
        );
        for &other in &inside {
            let pass_us = (other != parent).then(|| matrix.cost_us(parent));
            chains[other][node] = chains[other][parent].longer(rtt(parent, node), pass_us);
            chains[node][other] = chains[parent][other].longer(rtt(node, parent), pass_us);
        }
        inside.push(node);
        for (other, nearest) in &mut outside {
            if both((*other, node)) < both((*other, *nearest)) {
                *nearest = node;
            }
        }
    }
    Ok(chains)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line of four nodes 10 ms apart, and direct links as long as the line between them.
    fn line() -> Mesh {
        let distance = |from: usize, to: usize| from.abs_diff(to) as f64 * 10.0;
        let row = |from| (0..4).map(|to| distance(from, to)).collect();
        Mesh {
            name: "line".to_owned(),
            rtts_ms: (0..4).map(row).collect(),
            cost_us: 20,
        }
    }

    #[test]
    fn foreign_chains_cost() {
        let graph = Graph::new(&line()).unwrap();
        let chains = graph.chains(0, 3);
        let cost = |length_us, longest_us, nodes| Cost {
            length_us,
            longest_us,
            nodes,
        };
        assert_eq!(chains[&Other::Direct], cost(30_000, 30_000, 0));
        for other in [Other::Split, Other::Minimax, Other::Tree] {
            assert_eq!(chains[&other], cost(30_040, 10_000, 2), "{other:?}");
        }
        assert_eq!(graph.tree[3][1], cost(20_020, 10_000, 1));
    }

    #[test]
    fn small_direct_large_relayed() {
        let found = compare(&[line()], Counting::AsPublished).unwrap();
        assert_eq!(found[&1].nodes, 0.0);
        assert!(found[&5].nodes > 0.0);
        // From one end to the other: 30 + 4 x 30 ms, and 30 + 4 x 10.
        let most = found[&5].excess[&Other::Direct]
            .iter()
            .copied()
            .fold(0.0, f64::max);
        assert!(
            (most - (150_000.0 / 70_040.0 - 1.0) * 100.0).abs() < 1e-9,
            "{most}"
        );
        assert!(
            found[&5].excess[&Other::Tree]
                .iter()
                .all(|excess| *excess == 0.0)
        );
    }
}
