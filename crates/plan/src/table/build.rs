// SPDX-License-Identifier: Apache-2.0
//! Builds tables: chooses chains, and packs the choices.

use super::interner::Interner;
use super::{CHOICES, Choices, Classes, NONE, Table};
use crate::fronts::{Fronts, Point};
use crate::parallel;
use crate::planner::{HopTime, Planner, Transfer};

/// The tables of all nodes, built by up to `threads` threads. If one set of chains serves every
/// size, it is swept once, and the threads share the nodes; otherwise once for each size, and they
/// share the sizes.
pub(crate) fn build_all(planner: &Planner<'_>, classes: &Classes, threads: usize) -> Vec<Table> {
    let tables = if planner.serves_every_size() {
        let sizes = classes.sizes();
        let fronts = planner.fronts(sizes[0]);
        let sizes = Size::all(planner, &fronts, sizes, classes.access_us());
        parallel::map(fronts.nodes(), threads, |from| build(&fronts, from, &sizes))
    } else {
        by_size(planner, classes, threads)
    };
    debug_assert!(tables.iter().all(|table| table.classes == classes.count()));
    tables
}

fn by_size(planner: &Planner<'_>, classes: &Classes, threads: usize) -> Vec<Table> {
    let of_size = |size: &[u64]| -> Vec<Table> {
        let fronts = planner.fronts(size[0]);
        let sizes = Size::all(planner, &fronts, size, classes.access_us());
        let table = |from| build(&fronts, from, &sizes);
        (0..fronts.nodes()).map(table).collect()
    };
    let sizes: Vec<&[u64]> = classes.sizes().chunks(1).collect();
    let by_size = parallel::map(sizes.len(), threads, |place| of_size(sizes[place]));
    parallel::map(planner.matrix().nodes(), threads, |from| {
        let tables: Vec<&Table> = by_size.iter().map(|tables| &tables[from]).collect();
        join(&tables)
    })
}

/// The table of one node for transfers of these sizes.
fn build(fronts: &Fronts, from: usize, sizes: &[Size<'_>]) -> Table {
    let classes = sizes.iter().map(|size| size.floors.len()).sum();
    let mut draft = Draft::new(fronts.nodes(), classes);
    let mut chooser = Chooser::default();
    for to in 0..fronts.nodes() {
        chooser.start(fronts.points(from, to));
        sizes.iter().for_each(|size| chooser.choose(size));
        chooser.give(&mut draft);
        for point in &chooser.kept {
            draft.push(|chains| fronts.add_between(from, to, point, chains));
        }
        draft.finish();
    }
    draft.table()
}

/// Joins the size classes of tables of the same node.
fn join(tables: &[&Table]) -> Table {
    let classes = tables.iter().map(|table| table.classes).sum();
    let nodes = tables.first().map_or(0, |table| table.nodes());
    let mut draft = Draft::new(nodes, classes);
    let mut kept = Vec::new();
    for egress in 0..nodes {
        kept.clear();
        for table in tables {
            // Adjacent classes mostly have the same choices.
            let mut last = None;
            for class in 0..table.classes {
                let old = table.choices(egress, super::Class(class));
                let number = match last {
                    Some((choices, number)) if choices == old => number,
                    _ => draft.number(renumbered(table, egress, old, &mut kept)),
                };
                last = Some((old, number));
                draft.pattern.push(number);
            }
        }
        kept.iter()
            .for_each(|chain| draft.push(|chains| chains.extend_from_slice(chain)));
        draft.finish();
    }
    draft.table()
}

/// The choices of a table with indexes into `kept`; adds missing chains.
fn renumbered<'a>(
    table: &'a Table,
    egress: usize,
    choices: Choices,
    kept: &mut Vec<&'a [u16]>,
) -> Choices {
    let mut numbers = [NONE; CHOICES];
    for (new, chain) in numbers.iter_mut().zip(table.chains_of(egress, choices)) {
        let known = kept.iter().position(|other| *other == chain);
        *new = number(known.unwrap_or(kept.len()));
        if known.is_none() {
            kept.push(chain);
        }
    }
    numbers
}

fn number(place: usize) -> u8 {
    u8::try_from(place).expect("classes are bounded, and with them choices")
}

/// The precomputed values of a size class.
#[derive(Debug)]
struct Size<'a> {
    hop_time: HopTime<'a>,
    /// By class of access links.
    floors: Vec<Floor>,
}

/// The effect of an access link on transfers of a size.
#[derive(Debug)]
struct Floor {
    /// How long they wait for it.
    time_us: u64,
    /// The least measure of hops for which they wait longer.
    slower_us: u64,
}

impl<'a> Size<'a> {
    fn all(
        planner: &'a Planner<'_>,
        fronts: &Fronts,
        sizes: &[u64],
        access_us: &[u32],
    ) -> Vec<Self> {
        let size = |&bytes| Self::new(planner, fronts, bytes, access_us);
        sizes.iter().map(size).collect()
    }

    fn new(planner: &'a Planner<'_>, fronts: &Fronts, bytes: u64, access_us: &[u32]) -> Self {
        let hop_time = planner.hop_time(fronts, bytes);
        let floor = |&access_us| {
            let time_us = planner.floor_us(Transfer { bytes, access_us });
            let slower_us = hop_time.slower_us(time_us);
            Floor { time_us, slower_us }
        };
        Self {
            hop_time,
            floors: access_us.iter().map(floor).collect(),
        }
    }
}

/// A point with the time of its longest hop: the smaller is the better.
///
/// Time and index are one number, so that the shorter chain wins a tie, and comparing needs no
/// branch, which would be mispredicted. Times are far below 2 to the power of 56.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Offer(u64);

impl Offer {
    // Larger than any offer, and its index reads as `NONE`.
    const NONE: Self = Self(u64::MAX << 8);

    /// For a hop without time.
    fn new(point: &Point, place: usize) -> Self {
        // Later points are shorter: subtracted, a later index is the smaller number.
        Self(u64::from(point.length_us) << 8 | u64::from(NONE - number(place)))
    }

    fn with(self, hop_us: u64) -> Self {
        Self(self.0 + (hop_us << 8))
    }

    fn place(self) -> u8 {
        let [rest, ..] = self.0.to_le_bytes();
        NONE - rest
    }
}

/// Chooses among the points of a front.
#[derive(Debug, Default)]
struct Chooser {
    points: Vec<Point>,
    /// By point, its offer without its longest hop, and that hop's measure.
    offers: Vec<(Offer, u32)>,
    /// By point, the best offer of this and all later ones, for the current size.
    fastest: Vec<Offer>,
    /// By class, the index of the chosen point.
    chosen: Vec<u8>,
    /// By point: whether it is chosen or a neighbour, and then its index among those.
    places: Vec<u8>,
    /// Those points, in order.
    kept: Vec<Point>,
}

impl Chooser {
    fn start(&mut self, points: impl Iterator<Item = Point>) {
        self.points.clear();
        self.chosen.clear();
        // Indexes are bytes. A longer front, which has not been observed, loses its end with the
        // shortest chains: those with the shortest hops matter more.
        self.points.extend(points.take(NONE.into()));
        let offer = |(place, point): (_, &Point)| (Offer::new(point, place), point.longest_us);
        self.offers.clear();
        self.offers
            .extend(self.points.iter().enumerate().map(offer));
        self.fastest.clear();
        // One more, for access links that are slower than the hops of every point.
        self.fastest.resize(self.points.len() + 1, Offer::NONE);
    }

    /// Chooses for each access link of a size.
    fn choose(&mut self, size: &Size<'_>) {
        let floors = &size.floors;
        // Dispatched here and not for each point: a plan checks a hundred million.
        match size.hop_time {
            HopTime::Rounds(rounds) => self.choose_by(floors, |rtt_us| rounds * u64::from(rtt_us)),
            HopTime::Curve(curve) => self.choose_by(floors, |rtt_us| curve.of(rtt_us)),
            other => self.choose_by(floors, |measure_us| other.of(measure_us)),
        }
    }

    /// Among the points whose hops are faster than the access link the last one, the shortest, is
    /// the fastest; the others are unaffected by it. Floors ascend, so one pass serves them all.
    fn choose_by(&mut self, floors: &[Floor], hop_us: impl Fn(u32) -> u64) {
        let mut fastest = Offer::NONE;
        for ((offer, longest_us), from_here) in self.offers.iter().zip(&mut self.fastest).rev() {
            fastest = fastest.min(offer.with(hop_us(*longest_us)));
            *from_here = fastest;
        }
        let mut faster = 0;
        for floor in floors {
            let rest = self.offers[faster..].iter();
            faster += rest
                .take_while(|(_, longest_us)| u64::from(*longest_us) < floor.slower_us)
                .count();
            let within = match faster.checked_sub(1) {
                Some(last) => self.offers[last].0.with(floor.time_us),
                None => Offer::NONE,
            };
            self.chosen.push(self.fastest[faster].min(within).place());
        }
    }

    /// Adds the choices for all classes to the draft, and lists their points.
    fn give(&mut self, draft: &mut Draft) {
        self.places.clear();
        self.places.resize(self.points.len(), NONE);
        self.kept.clear();
        let mut last = NONE;
        for &chosen in &self.chosen {
            if chosen == NONE || chosen == last {
                continue;
            }
            last = chosen;
            for place in around(chosen.into(), self.points.len())
                .into_iter()
                .flatten()
            {
                // Only marked: numbers are given below, in the order of the points.
                self.places[place] = 0;
            }
        }
        for (place, point) in self.places.iter_mut().zip(&self.points) {
            if *place != NONE {
                *place = number(self.kept.len());
                self.kept.push(*point);
            }
        }
        let mut last = None;
        for &chosen in &self.chosen {
            let number = match last {
                Some((place, number)) if place == chosen => number,
                _ => {
                    let around = around(chosen.into(), self.points.len());
                    let place =
                        |place: Option<usize>| place.map_or(NONE, |place| self.places[place]);
                    draft.number(around.map(place))
                }
            };
            last = Some((chosen, number));
            draft.pattern.push(number);
        }
    }
}

/// The indexes of a choice and its fall-backs among so many points: the neighbours, or two of one
/// side where the other has none. All `None` for an invalid choice.
fn around(chosen: usize, points: usize) -> [Option<usize>; CHOICES] {
    let existing = |place: Option<usize>| place.filter(|place| *place < points);
    let above = existing(Some(chosen + 1));
    let below = chosen.checked_sub(1);
    let (first, second) = match (above, below) {
        (Some(_), Some(_)) => (above, below),
        (Some(_), None) => (above, existing(Some(chosen + 2))),
        (None, _) => (below, chosen.checked_sub(2)),
    };
    [Some(chosen), first, second].map(|place| place.filter(|_| chosen < points))
}

/// A table in progress: egress after egress.
struct Draft {
    starts: Vec<u32>,
    chains: Vec<u16>,
    pattern_of: Vec<u16>,
    patterns: Interner<u16>,
    choices: Interner<u8>,
    /// Of the current egress.
    pattern: Vec<u16>,
    /// Where its chains begin.
    start: u32,
    classes: usize,
}

impl Draft {
    fn new(nodes: usize, classes: usize) -> Self {
        Self {
            starts: Vec::with_capacity(nodes),
            chains: Vec::new(),
            pattern_of: Vec::with_capacity(nodes),
            patterns: Interner::new(classes),
            choices: Interner::new(CHOICES),
            pattern: Vec::with_capacity(classes),
            start: 0,
            classes,
        }
    }

    /// The number of these choices, as used in patterns.
    fn number(&mut self, choices: Choices) -> u16 {
        self.choices.number(&choices)
    }

    /// Adds a chain to the current egress; `add` appends its nodes.
    fn push(&mut self, add: impl FnOnce(&mut Vec<u16>)) {
        let count = self.chains.len();
        // The count goes before the nodes, and is known only afterwards.
        self.chains.push(0);
        add(&mut self.chains);
        self.chains[count] = short(self.chains.len() - count - 1);
    }

    /// Completes the current egress.
    fn finish(&mut self) {
        self.starts.push(self.start);
        self.start = u32::try_from(self.chains.len()).expect("a row of chains fits 32 bits");
        self.pattern_of.push(self.patterns.number(&self.pattern));
        self.pattern.clear();
    }

    fn table(self) -> Table {
        let choices = self.choices.into_all();
        Table {
            starts: self.starts.into(),
            chains: self.chains.into(),
            pattern_of: self.pattern_of.into(),
            patterns: self.patterns.into_all().into(),
            choices: choices.as_chunks().0.into(),
            classes: self.classes,
        }
    }
}

pub(super) fn short(number: usize) -> u16 {
    u16::try_from(number).expect("there are no more of them than nodes, or than choices in bytes")
}
