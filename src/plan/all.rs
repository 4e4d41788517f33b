// SPDX-License-Identifier: Apache-2.0
//! The best chains of all pairs, and the gain of choosing by size.

use posthaste_plan::Planner;
use posthaste_plan::planner::Transfer;
use serde::Serialize;

use super::pair::{Answer, Best, Swept};

/// The best chains of all pairs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct All {
    pub(super) sizes: Vec<Summary>,
    pub(super) pairs: Vec<Row>,
}

/// The gain of choosing by size over all pairs, with equal weights.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Summary {
    pub(super) bytes: u64,
    /// Mean number of nodes between the ends of a chain.
    pub(super) nodes: f64,
    /// How much longer alternative chains take on average, in percent, in the order of `Kind`.
    pub(super) direct_percent: f64,
    pub(super) shortest_percent: f64,
    pub(super) minimax_percent: f64,
}

/// The best chain of a pair for a size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Row {
    pub(super) from: String,
    pub(super) to: String,
    /// The nodes between the ends, for each size.
    pub(super) chains: Vec<Vec<String>>,
    pub(super) times_ms: Vec<f64>,
    /// How much longer the direct link takes, for each size; absent without one.
    pub(super) direct_percent: Option<Vec<f64>>,
}

impl All {
    pub(super) fn of(planner: &Planner<'_>, names: &[String], transfers: &[Transfer]) -> Self {
        let swept = Swept::new(planner, transfers);
        let mut sums = vec![Sum::default(); transfers.len()];
        let mut pairs = Vec::new();
        let nodes = names.len();
        for ends in (0..nodes).flat_map(|from| (0..nodes).map(move |to| (from, to))) {
            let Some(answer) = Answer::of(planner, &swept, ends, transfers) else {
                continue;
            };
            let best: Vec<Best> = (0..transfers.len())
                .filter_map(|place| answer.best(planner, place, &answer.chosen))
                .collect();
            for (sum, (best, chain)) in sums.iter_mut().zip(best.iter().zip(&answer.chosen)) {
                // Less both ends.
                sum.add(best, chain.len() - 2);
            }
            let between = |chain: &Vec<u16>| {
                let inner = &chain[1..chain.len() - 1];
                inner
                    .iter()
                    .map(|node| names[usize::from(*node)].clone())
                    .collect()
            };
            pairs.push(Row {
                from: names[ends.0].clone(),
                to: names[ends.1].clone(),
                chains: answer.chosen.iter().map(between).collect(),
                times_ms: best.iter().map(|best| best.time_ms).collect(),
                direct_percent: best.iter().map(|best| best.direct_percent).collect(),
            });
        }
        let sizes = sums
            .iter()
            .zip(transfers)
            .map(|(sum, transfer)| sum.mean(transfer.bytes));
        Self {
            sizes: sizes.collect(),
            pairs,
        }
    }
}

/// Sums for a summary.
#[derive(Clone, Debug, Default)]
struct Sum {
    pairs: usize,
    direct_pairs: usize,
    total: Summary,
}

impl Sum {
    fn add(&mut self, best: &Best, nodes: usize) {
        self.pairs += 1;
        self.total.nodes += nodes as f64;
        self.total.shortest_percent += best.shortest_percent;
        self.total.minimax_percent += best.minimax_percent;
        if let Some(percent) = best.direct_percent {
            self.direct_pairs += 1;
            self.total.direct_percent += percent;
        }
    }

    fn mean(&self, bytes: u64) -> Summary {
        let tenths = |sum: f64, count: usize| (sum / count.max(1) as f64 * 10.0).round() / 10.0;
        Summary {
            bytes,
            nodes: tenths(self.total.nodes, self.pairs),
            direct_percent: tenths(self.total.direct_percent, self.direct_pairs),
            shortest_percent: tenths(self.total.shortest_percent, self.pairs),
            minimax_percent: tenths(self.total.minimax_percent, self.pairs),
        }
    }
}

#[cfg(test)]
mod tests {
    use posthaste_plan::fronts::Limits;
    use posthaste_plan::{Link, Matrix, Model};

    use super::*;

    #[test]
    fn pairs_are_summed_up() {
        let mut matrix = Matrix::new(4).unwrap();
        for (one, other, rtt_ms) in [(0, 1, 55), (1, 3, 55), (1, 2, 36), (2, 3, 38), (0, 2, 90)] {
            let link = Link::of_rtt(rtt_ms * 1000);
            matrix.set_both(one, other, Some(link)).unwrap();
        }
        let names = ["a", "b", "c", "d"].map(String::from);
        let transfers = [1_000, 1_000_000].map(|bytes| Transfer {
            bytes,
            access_us: 0,
        });
        let planner = Planner::new(&matrix, Model::default(), Limits::default());
        let all = All::of(&planner, &names, &transfers);
        assert_eq!(all.pairs.len(), 12);
        let row = &all.pairs[2];
        assert_eq!((row.from.as_str(), row.to.as_str()), ("a", "d"));
        assert_eq!(row.direct_percent, None);
        assert_eq!(row.chains[1], ["b"]);
        assert!(all.sizes.iter().all(|size| size.shortest_percent >= 0.0));
    }
}
