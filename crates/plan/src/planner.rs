// SPDX-License-Identifier: Apache-2.0
//! Chooses the chain for a pair of nodes and a transfer.

use crate::fronts::{Fronts, Limits, Measure, Point};
use crate::matrix::{Link, Matrix};
use crate::model::{Curve, Model};
use crate::table::{self, Classes, Table};

/// A matrix with everything needed to choose chains.
#[derive(Clone, Copy, Debug)]
pub struct Planner<'a> {
    matrix: &'a Matrix,
    model: Model,
    limits: Limits,
    /// The common properties of links, if they differ in round-trip times only.
    common: Option<Link>,
}

/// The parameters of a transfer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Transfer {
    /// Bytes of the server's answer.
    pub bytes: u64,
    /// Round-trip time, in microseconds, of the slower of the hops that no plan can change: from
    /// the client to the first node, and from the last node to the server. 0 to plan without them.
    pub access_us: u32,
}

/// How long a transfer would wait for a hop, as a function of that hop's measure.
#[derive(Clone, Copy, Debug)]
pub(crate) enum HopTime<'a> {
    /// The measure is that time.
    Measure,
    /// The measure is a round trip, and the time is this many of them.
    Rounds(u64),
    /// The measure is a round trip, which determines the time.
    Curve(Curve),
    /// The measure is a round trip; the model computes the time for such links.
    Model(&'a Model, Link, u64),
}

impl HopTime<'_> {
    /// The time for a measure, in microseconds.
    pub(crate) fn of(&self, measure_us: u32) -> u64 {
        match self {
            Self::Measure => measure_us.into(),
            Self::Rounds(rounds) => rounds * u64::from(measure_us),
            Self::Curve(curve) => curve.of(measure_us),
            Self::Model(model, common, bytes) => {
                let link = Link {
                    rtt_us: measure_us,
                    ..*common
                };
                model.time_us(&link, *bytes)
            }
        }
    }

    /// The least measure with a time above this, in microseconds; more than any measure if there is
    /// none. Times never fall for a larger measure.
    pub(crate) fn slower_us(&self, time_us: u64) -> u64 {
        // In 64 bits: the result may be one more than any measure.
        let (mut known, mut slower) = (0u64, 1 << u32::BITS);
        while known < slower {
            // A binary search, since the model has no inverse where rates or windows bound it.
            let middle = known.midpoint(slower);
            match u32::try_from(middle) {
                Ok(measure_us) if self.of(measure_us) <= time_us => known = middle + 1,
                _ => slower = middle,
            }
        }
        slower
    }
}

impl<'a> Planner<'a> {
    /// Prepares for planning. Panics if `limits` allow no hop.
    pub fn new(matrix: &'a Matrix, model: Model, limits: Limits) -> Self {
        assert_ne!(limits.hops_max, Some(0), "a chain has a hop");
        Self {
            matrix,
            model,
            limits,
            common: matrix.common(),
        }
    }

    /// The matrix of the plan.
    pub fn matrix(&self) -> &'a Matrix {
        self.matrix
    }

    /// The model by which chains are chosen.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Whether one set of chains serves transfers of every size, since links differ in round-trip
    /// times only.
    pub fn serves_every_size(&self) -> bool {
        self.common.is_some()
    }

    /// The chains among which the best for a transfer of `bytes` is.
    pub fn fronts(&self, bytes: u64) -> Fronts {
        // Round trips order the hops for all sizes only where links differ in nothing else.
        let measure = match self.common {
            Some(_) => Measure::RoundTrip,
            None => Measure::TimeFor(bytes),
        };
        self.fronts_by(measure)
    }

    /// The chains that no other beats in length and in a longest hop by this measure.
    pub fn fronts_by(&self, measure: Measure) -> Fronts {
        Fronts::of(self.matrix, &self.model, measure, self.limits)
    }

    /// How long a transfer over a chain of these nodes takes, in microseconds, from the first node
    /// to the last; `None` if a link is missing.
    pub fn time_us(&self, chain: &[u16], transfer: Transfer) -> Option<u64> {
        let links = chain
            .windows(2)
            .map(|ends| self.matrix.link(ends[0].into(), ends[1].into()));
        let links: Vec<&Link> = links.collect::<Option<_>>()?;
        let inner = chain.get(1..chain.len().saturating_sub(1)).unwrap_or(&[]);
        let costs = inner.iter().map(|&node| self.matrix.cost_us(node.into()));
        let costs_us = costs.map(u64::from).sum::<u64>();
        let length: u64 = links.iter().map(|link| self.model.length_us(link)).sum();
        let slowest = links
            .iter()
            .map(|link| self.model.time_us(link, transfer.bytes));
        let floor = self.floor_us(transfer);
        // Hops and access links work at the same time: only the slowest counts.
        Some(length + costs_us + slowest.max().unwrap_or(0).max(floor))
    }

    /// The fastest chain for a transfer, and its time in microseconds; the shortest of equally fast
    /// ones. `fronts` must be of this planner, and for this size.
    pub fn choose(
        &self,
        fronts: &Fronts,
        from: usize,
        to: usize,
        transfer: Transfer,
    ) -> Option<(Point, u64)> {
        let time = |point: Point| (point, self.point_time_us(fronts, &point, transfer));
        let points = fronts.points(from, to).map(time);
        // A tie goes to the shorter chain: it has the fewer nodes, mostly.
        points.min_by_key(|(point, time)| (*time, point.length_us))
    }

    /// How long a transfer over the chain of a point takes, in microseconds.
    pub fn point_time_us(&self, fronts: &Fronts, point: &Point, transfer: Transfer) -> u64 {
        let hop = self.hop_time(fronts, transfer.bytes).of(point.longest_us);
        u64::from(point.length_us) + hop.max(self.floor_us(transfer))
    }

    /// The tables of all nodes, by node.
    pub fn tables(&self, classes: &Classes) -> Vec<Table> {
        self.tables_by(classes, 1)
    }

    /// As [`Self::tables`] with up to `threads` threads, which does not change the tables. If links
    /// differ in more than round trips, each thread needs the memory of a sweep.
    pub fn tables_by(&self, classes: &Classes, threads: usize) -> Vec<Table> {
        table::build_all(self, classes, threads)
    }

    /// How long a transfer of `bytes` would wait for a hop of a measure.
    pub(crate) fn hop_time(&self, fronts: &Fronts, bytes: u64) -> HopTime<'_> {
        match (fronts.measure(), self.common) {
            (Measure::RoundTrip, Some(common)) => match self.model.curve(&common, bytes) {
                Some(curve) => match curve.rounds() {
                    Some(rounds) => HopTime::Rounds(rounds),
                    None => HopTime::Curve(curve),
                },
                None => HopTime::Model(&self.model, common, bytes),
            },
            _ => HopTime::Measure,
        }
    }

    /// How long a transfer would wait for the slower of the hops that no plan can change.
    pub(crate) fn floor_us(&self, transfer: Transfer) -> u64 {
        // No bandwidth is assumed: clients and servers are no nodes.
        let link = Link::of_rtt(transfer.access_us);
        self.model.time_us(&link, transfer.bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::*;

    const MS: u32 = 1000;

    /// A line of nodes 10 ms apart, with direct links between all.
    fn line(nodes: usize, cost_us: u32) -> Matrix {
        let mut matrix = Matrix::new(nodes).unwrap();
        for from in 0..nodes {
            matrix.set_cost(from, cost_us).unwrap();
            for to in 0..from {
                let rtt_us = u32::try_from(from - to).unwrap() * 10 * MS;
                matrix
                    .set_both(from, to, Some(Link::of_rtt(rtt_us)))
                    .unwrap();
            }
        }
        matrix
    }

    fn best(planner: &Planner<'_>, transfer: Transfer) -> (Vec<u16>, u64) {
        let fronts = planner.fronts(transfer.bytes);
        let last = fronts.nodes() - 1;
        let (point, time) = planner.choose(&fronts, 0, last, transfer).unwrap();
        let mut chain = Vec::new();
        fronts.chain(0, last, &point, &mut chain);
        assert_eq!(planner.time_us(&chain, transfer), Some(time));
        (chain, time)
    }

    #[test]
    fn larger_transfers_take_more_nodes() {
        let matrix = line(5, 6 * MS);
        let planner = Planner::new(&matrix, Model::default(), Limits::default());
        let of = |bytes| {
            best(
                &planner,
                Transfer {
                    bytes,
                    access_us: 0,
                },
            )
            .0
        };
        assert_eq!(of(1_000), [0, 2, 4]);
        assert_eq!(of(1_000_000), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn access_links_bound_nodes() {
        let matrix = line(5, 100);
        let planner = Planner::new(&matrix, Model::default(), Limits::default());
        let transfer = |access_us| Transfer {
            bytes: 1_000_000,
            access_us,
        };
        assert_eq!(best(&planner, transfer(0)).0, [0, 1, 2, 3, 4]);
        assert_eq!(best(&planner, transfer(20 * MS)).0, [0, 2, 4]);
        let (chain, time) = best(&planner, transfer(100 * MS));
        assert_eq!(chain, [0, 4]);
        // The direct link's round trip, and 7 rounds of the access link.
        assert_eq!(time, u64::from(740 * MS));
    }

    #[test]
    fn hops_may_be_bounded() {
        let matrix = line(5, 0);
        let limits = Limits {
            hops_max: Some(2),
            ..Limits::default()
        };
        let planner = Planner::new(&matrix, Model::default(), limits);
        let transfer = Transfer {
            bytes: 1_000_000,
            access_us: 0,
        };
        assert_eq!(best(&planner, transfer).0, [0, 2, 4]);
    }

    #[test]
    fn large_avoid_lossy_link() {
        let mut matrix = Matrix::new(3).unwrap();
        let lossy = Link {
            loss_ppm: 10_000,
            ..Link::of_rtt(40 * MS)
        };
        matrix.set_both(0, 2, Some(lossy)).unwrap();
        matrix.set_both(0, 1, Some(Link::of_rtt(45 * MS))).unwrap();
        matrix.set_both(1, 2, Some(Link::of_rtt(45 * MS))).unwrap();
        let cubic = Model {
            congestion: crate::model::Congestion::Cubic,
            ..Model::default()
        };
        let planner = Planner::new(&matrix, cubic, Limits::default());
        assert!(!planner.serves_every_size());
        let of = |planner: &Planner<'_>, bytes| {
            best(
                planner,
                Transfer {
                    bytes,
                    access_us: 0,
                },
            )
            .0
        };
        assert_eq!(of(&planner, 10_000), [0, 2]);
        assert_eq!(of(&planner, 3_000_000), [0, 1, 2]);
        let planner = Planner::new(&matrix, Model::default(), Limits::default());
        assert_eq!(of(&planner, 3_000_000), [0, 2]);
    }

    #[test]
    fn large_avoid_slow_link() {
        let mut matrix = line(3, 0);
        let slow = Link {
            rate: NonZeroU64::new(1_000_000),
            ..Link::of_rtt(12 * MS)
        };
        matrix.set(0, 2, Some(slow)).unwrap();
        let planner = Planner::new(&matrix, Model::default(), Limits::default());
        let of = |bytes| {
            best(
                &planner,
                Transfer {
                    bytes,
                    access_us: 0,
                },
            )
            .0
        };
        assert_eq!(of(100), [0, 2]);
        assert_eq!(of(100_000), [0, 1, 2]);
    }

    #[test]
    fn no_links_no_chain() {
        let matrix = Matrix::new(2).unwrap();
        let planner = Planner::new(&matrix, Model::default(), Limits::default());
        let fronts = planner.fronts(1);
        assert_eq!(planner.choose(&fronts, 0, 1, Transfer::default()), None);
        assert_eq!(planner.time_us(&[0, 1], Transfer::default()), None);
        assert_eq!(fronts.points(0, 0).count(), 0);
    }
}
