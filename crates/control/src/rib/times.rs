// SPDX-License-Identifier: Apache-2.0
//! How long transfers of each class take over a chain, as the links are now. Pure.

use posthaste_plan::model::Curve;
use posthaste_plan::table::Classes;
use posthaste_plan::{Link, Matrix, Model};

/// The model, a matrix and classes, with what they have in common computed once.
#[derive(Debug)]
pub(crate) struct Times<'a> {
    matrix: &'a Matrix,
    model: &'a Model,
    sizes: &'a [u64],
    /// Round trips by first node, then by last, in microseconds; [`ABSENT`] where there is no link. They are
    /// looked up millions of times: a sixth of the matrix stays in caches.
    rtts_us: Vec<u32>,
    /// What links have in common.
    common: Link,
    /// By size, how long the longest hop takes, where links differ in nothing but round trips.
    curves: Option<Vec<Curve>>,
    /// By class, how long a transfer waits for the access link.
    floors_us: Vec<u64>,
    /// By class.
    size_of: Vec<usize>,
}

/// What decides how long transfers take over a chain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    /// Lengths of hops, and costs of nodes, in microseconds.
    pub(crate) length_us: u64,
    /// The longest round trip, in microseconds.
    longest_us: u32,
}

/// No round trip is as long.
pub(crate) const ABSENT: u32 = u32::MAX;

impl<'a> Times<'a> {
    pub(crate) fn new(matrix: &'a Matrix, model: &'a Model, classes: &'a Classes) -> Self {
        let (sizes, access_us) = (classes.sizes(), classes.access_us());
        let floor = |bytes, access_us| model.time_us(&Link::of_rtt(access_us), bytes);
        let floors = sizes.iter().flat_map(|&bytes| {
            let access_us = access_us.iter();
            access_us.map(move |&access_us| floor(bytes, access_us))
        });
        let mut rtts_us = vec![ABSENT; matrix.nodes() * matrix.nodes()];
        for (from, to, link) in matrix.links() {
            rtts_us[from * matrix.nodes() + to] = link.rtt_us;
        }
        Self {
            matrix,
            model,
            sizes,
            rtts_us,
            common: matrix
                .links()
                .next()
                .map_or_else(Link::default, |found| *found.2),
            curves: curves(matrix, model, sizes),
            floors_us: floors.collect(),
            size_of: (0..sizes.len() * access_us.len())
                .map(|class| class / access_us.len())
                .collect(),
        }
    }

    /// What a chain by these nodes, all of them, costs; nothing if a link is missing.
    pub(crate) fn cost(&self, from: usize, inner: &[u16], to: usize) -> Option<Cost> {
        let mut cost = Cost {
            length_us: 0,
            longest_us: 0,
        };
        let mut before = from;
        for node in inner.iter().map(|&node| usize::from(node)).chain([to]) {
            let rtt_us = self.rtts_us[before * self.matrix.nodes() + node];
            if rtt_us == ABSENT {
                return None;
            }
            // A length depends on the round trip only; the rest is what links have in common.
            let link = Link {
                rtt_us,
                ..self.common
            };
            cost.length_us += self.model.length_us(&link);
            cost.longest_us = cost.longest_us.max(rtt_us);
            // The egress is paid for by every chain to it, so it decides nothing.
            if node != to {
                cost.length_us += u64::from(self.matrix.cost_us(node));
            }
            before = node;
        }
        Some(cost)
    }

    /// Round trips of links from a node, by their other ends, in microseconds; [`ABSENT`] where there is none.
    pub(crate) fn rtts_from(&self, from: usize) -> &[u32] {
        let count = self.matrix.nodes();
        &self.rtts_us[from * count..][..count]
    }

    /// What a chain pays for a node, in microseconds.
    pub(crate) fn node_us(&self, node: usize) -> u32 {
        self.matrix.cost_us(node)
    }

    /// How many classes there are.
    pub(crate) fn classes(&self) -> usize {
        self.floors_us.len()
    }

    /// How many sizes there are.
    pub(crate) fn sizes(&self) -> usize {
        self.sizes.len()
    }

    /// Of which size a class is.
    pub(crate) fn size_of(&self, class: usize) -> usize {
        self.size_of[class]
    }

    /// How long a transfer of a class waits for the access link, in microseconds.
    pub(crate) fn floor_us(&self, class: usize) -> u64 {
        self.floors_us[class]
    }

    /// How long a transfer of a size waits for the slowest hop of a chain between ends, in microseconds.
    pub(crate) fn slowest_us(
        &self,
        cost: &Cost,
        ((from, to), inner): ((usize, usize), &[u16]),
        size: usize,
    ) -> u64 {
        if let Some(curves) = &self.curves {
            return curves[size].of(cost.longest_us);
        }
        let nodes = inner.iter().map(|&node| usize::from(node)).chain([to]);
        let mut before = from;
        let hops = nodes.filter_map(|node| {
            let link = self.matrix.link(before, node);
            before = node;
            link
        });
        let times = hops.map(|link| self.model.time_us(link, self.sizes[size]));
        times.max().unwrap_or(0)
    }
}

/// By size, how long the slowest hop takes, if links differ in their round trips only and the time
/// depends on nothing else.
fn curves(matrix: &Matrix, model: &Model, sizes: &[u64]) -> Option<Vec<Curve>> {
    let common = matrix.common()?;
    let curves = sizes.iter().map(|&bytes| model.curve(&common, bytes));
    curves.collect()
}

#[cfg(test)]
mod tests {
    use posthaste_plan::Planner;
    use posthaste_plan::fronts::Limits;
    use posthaste_plan::planner::Transfer;

    use super::*;
    use posthaste_testkit::Rng;

    /// Any matrix, some links with loss if `lossy`.
    fn matrix(rng: &mut Rng, lossy: bool) -> Matrix {
        let mut matrix = Matrix::new(5).unwrap();
        for (from, to) in (0..5).flat_map(|from| (0..5).map(move |to| (from, to))) {
            if from != to && rng.below(8) > 0 {
                let link = Link {
                    loss_ppm: rng.below(2) * 5000 * u32::from(lossy),
                    ..Link::of_nodes(1 + rng.below(100_000))
                };
                matrix.set(from, to, Some(link)).unwrap();
            }
            matrix.set_cost(to, rng.below(900)).unwrap();
        }
        matrix
    }

    #[test]
    fn times_match_planner() {
        let model = Model::default();
        let classes = Classes::new(&[1000, 100_000, 2_000_000], &[0, 30_000]).unwrap();
        let chains: [&[u16]; 4] = [&[0, 4], &[0, 1, 4], &[0, 2, 3, 4], &[0, 3, 2, 1, 4]];
        let mut compared = 0;
        for seed in 0..200 {
            let matrix = matrix(&mut Rng::new(seed), seed % 2 == 0);
            let times = Times::new(&matrix, &model, &classes);
            let planner = Planner::new(&matrix, model, Limits::default());
            for chain in chains {
                let inner = &chain[1..chain.len() - 1];
                let cost = times.cost(0, inner, 4);
                for class in 0..6 {
                    let transfer = Transfer {
                        bytes: classes.sizes()[class / 2],
                        access_us: classes.access_us()[class % 2],
                    };
                    let time = cost.as_ref().map(|cost| {
                        let slowest = times.slowest_us(cost, ((0, 4), inner), times.size_of(class));
                        cost.length_us + slowest.max(times.floor_us(class))
                    });
                    assert_eq!(time, planner.time_us(chain, transfer));
                    compared += usize::from(time.is_some());
                }
            }
        }
        assert!(compared > 1000);
    }
}
