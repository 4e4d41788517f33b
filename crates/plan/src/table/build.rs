// SPDX-License-Identifier: Apache-2.0
//! Making tables: choosing, and packing what was chosen.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher};

use super::{CHOICES, Choices, Classes, NONE, Table};
use crate::fronts::{Fronts, Point};
use crate::parallel;
use crate::planner::{HopTime, Planner, Transfer};

/// The tables of all nodes, made by so many threads at most. Where one set of chains serves every size it is
/// swept once, and the threads share the nodes; otherwise once for each size, and they share the sizes.
pub(crate) fn build_all(planner: &Planner<'_>, classes: &Classes, threads: usize) -> Vec<Table> {
    let tables = if planner.serves_every_size() {
        let sizes = classes.sizes();
        let fronts = planner.fronts(sizes[0]);
        parallel::map(fronts.nodes(), threads, |from| {
            build(planner, &fronts, from, sizes, classes.access_us())
        })
    } else {
        by_size(planner, classes, threads)
    };
    debug_assert!(tables.iter().all(|table| table.classes == classes.count()));
    tables
}

fn by_size(planner: &Planner<'_>, classes: &Classes, threads: usize) -> Vec<Table> {
    let of_size = |size: &[u64]| -> Vec<Table> {
        let fronts = planner.fronts(size[0]);
        (0..fronts.nodes())
            .map(|from| build(planner, &fronts, from, size, classes.access_us()))
            .collect()
    };
    let sizes: Vec<&[u64]> = classes.sizes().chunks(1).collect();
    let by_size = parallel::map(sizes.len(), threads, |place| of_size(sizes[place]));
    parallel::map(planner.matrix().nodes(), threads, |from| {
        let tables: Vec<&Table> = by_size.iter().map(|tables| &tables[from]).collect();
        join(&tables)
    })
}

/// The table of one node for transfers of these sizes.
fn build(
    planner: &Planner<'_>,
    fronts: &Fronts,
    from: usize,
    sizes: &[u64],
    access_us: &[u32],
) -> Table {
    let mut draft = Draft::new(fronts.nodes(), sizes.len() * access_us.len());
    let sizes: Vec<Size<'_>> = sizes
        .iter()
        .map(|&bytes| Size::new(planner, fronts, bytes, access_us))
        .collect();
    let mut chooser = Chooser::default();
    let mut chain = Vec::new();
    for to in 0..fronts.nodes() {
        chooser.start(fronts.points(from, to));
        sizes.iter().for_each(|size| chooser.choose(size));
        chooser.give(&mut draft);
        for point in &chooser.kept {
            fronts.chain(from, to, point, &mut chain);
            draft.push(&chain[1..chain.len() - 1]);
        }
        draft.finish();
    }
    draft.table()
}

/// One table for the size classes of all, which are of the same node.
fn join(tables: &[&Table]) -> Table {
    let classes = tables.iter().map(|table| table.classes).sum();
    let nodes = tables.first().map_or(0, |table| table.nodes());
    let mut draft = Draft::new(nodes, classes);
    let mut kept = Vec::new();
    for egress in 0..nodes {
        kept.clear();
        for table in tables {
            // Classes beside each other mostly have the same choices.
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
        kept.iter().for_each(|chain| draft.push(chain));
        draft.finish();
    }
    draft.table()
}

/// The choices of a table by their chains' places in `kept`, where missing ones are added.
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

/// A size class, as choosing needs it.
#[derive(Debug)]
struct Size<'a> {
    hop_time: HopTime<'a>,
    /// How long its transfers wait for an access link, by class of these.
    floors: Vec<u64>,
}

impl<'a> Size<'a> {
    fn new(planner: &'a Planner<'_>, fronts: &Fronts, bytes: u64, access_us: &[u32]) -> Self {
        let floor = |&access_us| planner.floor_us(Transfer { bytes, access_us });
        Self {
            hop_time: planner.hop_time(fronts, bytes),
            floors: access_us.iter().map(floor).collect(),
        }
    }
}

/// Chooses among the points of a front.
#[derive(Debug, Default)]
struct Chooser {
    points: Vec<Point>,
    /// By class, the place of the point chosen.
    chosen: Vec<u8>,
    /// By point: whether it is chosen or a neighbour, and then its place among those that are.
    places: Vec<u8>,
    /// Those points, in their order.
    kept: Vec<Point>,
}

impl Chooser {
    fn start(&mut self, points: impl Iterator<Item = Point>) {
        self.points.clear();
        self.chosen.clear();
        // Places are bytes. Of a longer front, which has not been seen, the end with the shortest
        // chains would be left out: those with the shortest hops matter more.
        self.points.extend(points.take(NONE.into()));
    }

    /// Chooses for each access link of a size.
    ///
    /// Of the points whose hops are faster than the access link the last, being the shortest, is the
    /// fastest; to the others the access link does nothing. Floors ascend, so one pass from the
    /// end serves them all.
    fn choose(&mut self, size: &Size<'_>) {
        let classes = self.chosen.len();
        self.chosen.resize(classes + size.floors.len(), NONE);
        let mut best = (u64::MAX, NONE);
        let mut rest = self.points.len();
        for (place, &floor) in size.floors.iter().enumerate().rev() {
            let mut within = (u64::MAX, NONE);
            while let Some(last) = rest.checked_sub(1) {
                let point = &self.points[last];
                let hop = size.hop_time.of(point.longest_us);
                let time = u64::from(point.length_us) + hop.max(floor);
                if hop <= floor {
                    within = (time, number(last));
                    break;
                }
                // In a tie the shorter chain stays.
                if time < best.0 {
                    best = (time, number(last));
                }
                rest = last;
            }
            let chosen = if within.0 < best.0 { within } else { best };
            self.chosen[classes + place] = chosen.1;
        }
    }

    /// Gives the choices for all classes to the draft, and lists the points they are of.
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

/// The places of a choice and its fall-backs among so many points: the neighbours, or two of one
/// side where the other has none. Of a chosen place that is none, nothing.
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

/// A table in the making: egress after egress.
struct Draft {
    starts: Vec<u32>,
    chains: Vec<u16>,
    pattern_of: Vec<u16>,
    patterns: Numbered<Vec<u16>>,
    choices: Numbered<Choices>,
    /// Of the egress at hand.
    pattern: Vec<u16>,
    /// Where its chains begin.
    start: u32,
    classes: usize,
}

/// Things numbered as they first come. The hash is the same every time.
type Numbered<T> = HashMap<T, u16, BuildHasherDefault<DefaultHasher>>;

impl Draft {
    fn new(nodes: usize, classes: usize) -> Self {
        Self {
            starts: Vec::with_capacity(nodes),
            chains: Vec::new(),
            pattern_of: Vec::with_capacity(nodes),
            patterns: Numbered::default(),
            choices: Numbered::default(),
            pattern: Vec::with_capacity(classes),
            start: 0,
            classes,
        }
    }

    /// The number of choices, which a pattern has for each class.
    fn number(&mut self, choices: Choices) -> u16 {
        let new = short(self.choices.len());
        *self.choices.entry(choices).or_insert(new)
    }

    /// Adds a chain to the egress at hand.
    fn push(&mut self, nodes: &[u16]) {
        self.chains.push(short(nodes.len()));
        self.chains.extend_from_slice(nodes);
    }

    /// Ends the egress at hand.
    fn finish(&mut self) {
        self.starts.push(self.start);
        self.start = u32::try_from(self.chains.len()).expect("a row of chains fits 32 bits");
        let number = match self.patterns.get(&self.pattern) {
            Some(known) => *known,
            None => {
                let new = short(self.patterns.len());
                self.patterns.insert(self.pattern.clone(), new);
                new
            }
        };
        self.pattern_of.push(number);
        self.pattern.clear();
    }

    fn table(self) -> Table {
        let patterns = in_order(self.patterns);
        Table {
            starts: self.starts.into(),
            chains: self.chains.into(),
            pattern_of: self.pattern_of.into(),
            patterns: patterns.into_iter().flatten().collect(),
            choices: in_order(self.choices).into(),
            classes: self.classes,
        }
    }
}

/// The things in the order of their numbers.
fn in_order<T>(numbered: Numbered<T>) -> Vec<T> {
    let mut things: Vec<(T, u16)> = numbered.into_iter().collect();
    things.sort_unstable_by_key(|(_, number)| *number);
    things.into_iter().map(|(thing, _)| thing).collect()
}

fn short(number: usize) -> u16 {
    u16::try_from(number).expect("there are no more of them than nodes, or than choices in bytes")
}
