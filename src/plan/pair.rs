// SPDX-License-Identifier: Apache-2.0
//! The chains of one pair, with their properties.

use posthaste_plan::fronts::{Measure, Point};
use posthaste_plan::planner::Transfer;
use posthaste_plan::{Fronts, Planner};
use serde::Serialize;

/// The chains of a pair of nodes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Pair {
    pub(super) from: String,
    pub(super) to: String,
    /// Sizes of transfers, in bytes, ascending.
    pub(super) sizes: Vec<u64>,
    /// The longest first.
    pub(super) chains: Vec<Chain>,
    /// For each size, the fastest chain, and how much longer the alternatives take.
    pub(super) best: Vec<Best>,
}

/// A chain and its predicted times.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Chain {
    /// Its nodes, the ends included.
    pub(super) nodes: Vec<String>,
    /// Round-trip times of its hops.
    pub(super) hops_ms: Vec<f64>,
    /// Sum of its hops and the costs of the nodes between.
    pub(super) length_ms: f64,
    pub(super) longest_hop_ms: f64,
    /// For each size.
    pub(super) times_ms: Vec<f64>,
    /// The alternative strategies that would choose this chain.
    pub(super) is: Vec<Kind>,
}

/// Alternative strategies to choose chains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    /// One hop.
    Direct,
    /// The least sum of round-trip times.
    Shortest,
    /// The shortest of the chains with the smallest longest hop.
    Minimax,
}

impl Kind {
    pub(super) const ALL: [Self; 3] = [Self::Direct, Self::Shortest, Self::Minimax];

    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Shortest => "shortest",
            Self::Minimax => "minimax",
        }
    }
}

impl Chain {
    /// Its nodes, and what it is.
    pub(super) fn title(&self) -> String {
        let mut title = self.nodes.join(" - ");
        let is: Vec<&str> = self.is.iter().map(|kind| kind.word()).collect();
        if !is.is_empty() {
            title += &format!("  ({})", is.join(", "));
        }
        title
    }
}

/// The best chain for a size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Best {
    pub(super) bytes: u64,
    /// Its index among the chains.
    pub(super) chain: usize,
    pub(super) time_ms: f64,
    /// How much longer the alternatives take; absent without a direct link.
    pub(super) direct_percent: Option<f64>,
    pub(super) shortest_percent: f64,
    pub(super) minimax_percent: f64,
}

/// Chains swept for every size, and by round-trip time.
pub(super) struct Swept {
    by_rtt: Fronts,
    /// One for each size, or one for all.
    by_size: Vec<Fronts>,
}

impl Swept {
    pub(super) fn new(planner: &Planner<'_>, transfers: &[Transfer]) -> Self {
        let by_rtt = planner.fronts_by(Measure::RoundTrip);
        let sizes = transfers.iter().map(|transfer| transfer.bytes);
        let by_size = if planner.serves_every_size() {
            Vec::new()
        } else {
            sizes.map(|bytes| planner.fronts(bytes)).collect()
        };
        Self { by_rtt, by_size }
    }

    fn of_size(&self, place: usize) -> &Fronts {
        self.by_size.get(place).unwrap_or(&self.by_rtt)
    }
}

impl Pair {
    /// `None` if no chain joins the nodes.
    pub(super) fn of(
        planner: &Planner<'_>,
        names: &[String],
        ends: (usize, usize),
        transfers: &[Transfer],
    ) -> Option<Self> {
        let swept = Swept::new(planner, transfers);
        let answer = Answer::of(planner, &swept, ends, transfers)?;
        let mut chains = answer.others.clone();
        for place in 0..transfers.len() {
            chains.extend(all_chains(swept.of_size(place), ends));
        }
        chains.extend(all_chains(&swept.by_rtt, ends));
        chains.sort_by_cached_key(|chain| {
            (std::cmp::Reverse(length_us(planner, chain)), chain.clone())
        });
        // Sorted by length and then by nodes, equal chains are neighbours.
        chains.dedup();
        let best = (0..transfers.len()).filter_map(|place| answer.best(planner, place, &chains));
        Some(Self {
            from: names[ends.0].clone(),
            to: names[ends.1].clone(),
            sizes: transfers.iter().map(|transfer| transfer.bytes).collect(),
            best: best.collect(),
            chains: chains
                .iter()
                .map(|chain| describe(planner, names, chain, &answer))
                .collect(),
        })
    }
}

/// The chains chosen for a pair, by size and by the alternatives.
pub(super) struct Answer<'a> {
    transfers: &'a [Transfer],
    /// For each transfer.
    pub(super) chosen: Vec<Vec<u16>>,
    /// By [`Kind`]; the direct chain may be missing.
    others: Vec<Vec<u16>>,
}

impl<'a> Answer<'a> {
    /// `None` if no chain joins the nodes.
    pub(super) fn of(
        planner: &Planner<'_>,
        swept: &Swept,
        ends: (usize, usize),
        transfers: &'a [Transfer],
    ) -> Option<Self> {
        let (from, to) = ends;
        // The points of a front lead from the smallest longest hop to the least sum.
        let minimax = swept.by_rtt.points(from, to).next()?;
        let shortest = swept.by_rtt.points(from, to).last()?;
        let chain = |fronts, point| chain_of(fronts, ends, &point);
        let chosen = transfers.iter().enumerate().map(|(place, transfer)| {
            let fronts = swept.of_size(place);
            let (point, _) = planner.choose(fronts, from, to, *transfer)?;
            Some(chain(fronts, point))
        });
        let direct = planner
            .matrix()
            .link(from, to)
            .map(|_| [from, to].map(number).to_vec());
        let shortest = chain(&swept.by_rtt, shortest);
        let minimax = chain(&swept.by_rtt, minimax);
        Some(Self {
            transfers,
            chosen: chosen.collect::<Option<_>>()?,
            others: [direct]
                .into_iter()
                .flatten()
                .chain([shortest, minimax])
                .collect(),
        })
    }

    /// The chain of a kind, which may be missing.
    fn other(&self, kind: Kind) -> Option<&Vec<u16>> {
        let direct = self.others.len() == Kind::ALL.len();
        match kind {
            Kind::Direct => self.others.first().filter(|_| direct),
            // From the end: the direct chain, in front, may be missing.
            Kind::Shortest => self.others.iter().rev().nth(1),
            Kind::Minimax => self.others.last(),
        }
    }

    /// The best chain for a transfer, by its index, and its index among `chains`.
    pub(super) fn best(
        &self,
        planner: &Planner<'_>,
        place: usize,
        chains: &[Vec<u16>],
    ) -> Option<Best> {
        let (chosen, transfer) = (&self.chosen[place], self.transfers[place]);
        let time = planner.time_us(chosen, transfer)?;
        let percent = |kind| {
            let other = planner.time_us(self.other(kind)?, transfer)?;
            Some(more_percent(other, time))
        };
        Some(Best {
            bytes: transfer.bytes,
            chain: chains.iter().position(|chain| chain == chosen)?,
            time_ms: ms(time),
            direct_percent: percent(Kind::Direct),
            shortest_percent: percent(Kind::Shortest)?,
            minimax_percent: percent(Kind::Minimax)?,
        })
    }
}

fn describe(planner: &Planner<'_>, names: &[String], chain: &[u16], answer: &Answer<'_>) -> Chain {
    let hops = chain.windows(2).filter_map(|ends| {
        let link = planner.matrix().link(ends[0].into(), ends[1].into())?;
        Some(ms(link.rtt_us.into()))
    });
    let hops_ms: Vec<f64> = hops.collect();
    let times = answer
        .transfers
        .iter()
        .map(|transfer| planner.time_us(chain, *transfer));
    let is = Kind::ALL
        .into_iter()
        .filter(|kind| answer.other(*kind).is_some_and(|other| other == chain));
    Chain {
        nodes: chain
            .iter()
            .map(|node| names[usize::from(*node)].clone())
            .collect(),
        length_ms: ms(length_us(planner, chain)),
        longest_hop_ms: hops_ms.iter().copied().fold(0.0, f64::max),
        times_ms: times.flatten().map(ms).collect(),
        hops_ms,
        is: is.collect(),
    }
}

fn all_chains(fronts: &Fronts, ends: (usize, usize)) -> Vec<Vec<u16>> {
    let points = fronts.points(ends.0, ends.1);
    points.map(|point| chain_of(fronts, ends, &point)).collect()
}

fn chain_of(fronts: &Fronts, (from, to): (usize, usize), point: &Point) -> Vec<u16> {
    let mut chain = Vec::new();
    fronts.chain(from, to, point, &mut chain);
    chain
}

/// Sum of a chain's round-trip times and the costs of its nodes.
fn length_us(planner: &Planner<'_>, chain: &[u16]) -> u64 {
    let links = chain
        .windows(2)
        .filter_map(|ends| planner.matrix().link(ends[0].into(), ends[1].into()));
    let inner = chain.get(1..chain.len() - 1).unwrap_or(&[]);
    let costs = inner
        .iter()
        .map(|node| u64::from(planner.matrix().cost_us((*node).into())));
    links.map(|link| u64::from(link.rtt_us)).sum::<u64>() + costs.sum::<u64>()
}

fn number(node: usize) -> u16 {
    u16::try_from(node).expect("a matrix has fewer nodes")
}

fn ms(micros: u64) -> f64 {
    micros as f64 / 1e3
}

/// How many per cent `time` is longer than `best`, to a tenth.
fn more_percent(time: u64, best: u64) -> f64 {
    let percent = (time as f64 / best.max(1) as f64 - 1.0) * 100.0;
    (percent * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use posthaste_plan::fronts::Limits;
    use posthaste_plan::{Link, Matrix, Model};

    use super::*;

    /// A long link, and detours by one node or two.
    fn network() -> (Matrix, Vec<String>) {
        let mut matrix = Matrix::new(4).unwrap();
        for (one, other, rtt_ms) in [
            (0, 3, 100),
            (0, 1, 55),
            (1, 3, 55),
            (1, 2, 36),
            (2, 3, 38),
            (0, 2, 90),
        ] {
            let link = Link::of_rtt(rtt_ms * 1000);
            matrix.set_both(one, other, Some(link)).unwrap();
        }
        let names = ["a", "b", "c", "d"].map(String::from);
        (matrix, names.to_vec())
    }

    fn transfers() -> Vec<Transfer> {
        let transfer = |bytes| Transfer {
            bytes,
            access_us: 0,
        };
        [1_000, 1_000_000].map(transfer).to_vec()
    }

    #[test]
    fn a_pair_is_explained() {
        let (matrix, names) = network();
        let planner = Planner::new(&matrix, Model::default(), Limits::default());
        let pair = Pair::of(&planner, &names, (0, 3), &transfers()).unwrap();
        let chains: Vec<(Vec<String>, f64, Vec<Kind>)> = pair
            .chains
            .iter()
            .map(|chain| (chain.nodes.clone(), chain.length_ms, chain.is.clone()))
            .collect();
        let chain = |nodes: &str| nodes.chars().map(String::from).collect::<Vec<_>>();
        assert_eq!(
            chains,
            [
                (chain("abd"), 110.0, vec![Kind::Minimax]),
                (chain("ad"), 100.0, vec![Kind::Direct, Kind::Shortest]),
            ]
        );
        assert_eq!(pair.chains[0].times_ms, [165.0, 495.0]);
        assert_eq!((pair.best[0].chain, pair.best[1].chain), (0, 0));
        assert_eq!(pair.best[1].direct_percent, Some(61.6));
        assert_eq!(pair.best[1].minimax_percent, 0.0);
    }

    #[test]
    fn unconnected_nodes_no_chain() {
        let matrix = Matrix::new(2).unwrap();
        let planner = Planner::new(&matrix, Model::default(), Limits::default());
        let names = ["a", "b"].map(String::from);
        assert_eq!(Pair::of(&planner, &names, (0, 1), &transfers()), None);
    }
}
