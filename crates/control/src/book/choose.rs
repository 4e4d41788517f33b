// SPDX-License-Identifier: Apache-2.0
//! Which chains a pair of nodes is to use: what the tables say, unless what is in use is nearly as good
//! or the direct hop is. Pure.

use std::ops::Range;

use posthaste_plan::table::Egress;

use super::rules::{Promise, Rules};
use super::times::{Cost, Times};
use crate::message::ChainNumber;
use crate::rows::CHOICES_MAX;

/// A chain of the book, as choosing sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) id: u32,
    pub(crate) number: ChainNumber,
}

/// A chain that may be chosen for a pair.
#[derive(Debug)]
pub(crate) struct Candidate {
    /// Where among [`Chooser::nodes`] those between the ends are.
    inner: Range<usize>,
    /// Its place in the book and its number, if it has one.
    pub(crate) known: Option<Known>,
    /// What it promised when it was chosen for its own sake.
    pub(crate) promise: Option<Promise>,
    /// It is the first of some class.
    is_first: bool,
    /// What it promises from now on.
    promised: Option<Promise>,
    cost: Asked,
}

/// Costs are computed when they are first asked for.
#[derive(Clone, Copy, Debug)]
enum Asked {
    Not,
    /// And where among [`Chooser::slowest_us`] the times by size are.
    Known(Option<(Cost, usize)>),
}

/// Candidates in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Choice {
    places: [usize; CHOICES_MAX],
    count: usize,
}

impl Choice {
    pub(crate) fn places(&self) -> &[usize] {
        &self.places[..self.count]
    }

    /// The first, if there is one.
    pub(crate) fn first(&self) -> Option<usize> {
        self.places().first().copied()
    }

    /// Adds a candidate behind the others, unless it is among them or there is no room.
    pub(crate) fn add(&mut self, place: usize) {
        if self.count < CHOICES_MAX && !self.places().contains(&place) {
            self.places[self.count] = place;
            self.count += 1;
        }
    }
}

/// What was chosen: choices, and by class which of them.
#[derive(Debug, Default)]
pub(crate) struct Chosen {
    pub(crate) classes: Vec<u8>,
    pub(crate) choices: Vec<Choice>,
}

/// No time.
const UNKNOWN: u64 = u64::MAX;

/// Chooses for one pair after the other. Its memory is used again: there are a million pairs.
#[derive(Debug)]
pub(crate) struct Chooser<'a> {
    times: Times<'a>,
    rules: Rules,
    ends: (usize, usize),
    pub(crate) candidates: Vec<Candidate>,
    /// Of all candidates, as the matrix counts them.
    nodes: Vec<u16>,
    direct: Option<usize>,
    /// By candidate that was asked for, and by size: how long the slowest hop takes, or [`UNKNOWN`].
    slowest_us: Vec<u64>,
    /// By class, what is used.
    firsts: Vec<Option<usize>>,
    /// The same, each once.
    shared: Vec<usize>,
    /// What was chosen last.
    pub(crate) chosen: Chosen,
}

impl<'a> Chooser<'a> {
    pub(crate) fn new(times: Times<'a>, rules: Rules) -> Self {
        Self {
            times,
            rules,
            ends: (0, 0),
            candidates: Vec::new(),
            nodes: Vec::new(),
            direct: None,
            slowest_us: Vec::new(),
            firsts: Vec::new(),
            shared: Vec::new(),
            chosen: Chosen::default(),
        }
    }

    /// Goes on to a pair, with the candidates that its table has, and the direct hop.
    pub(crate) fn start(&mut self, from: usize, to: usize, egress: Egress<'_>) {
        self.ends = (from, to);
        self.candidates.clear();
        self.nodes.clear();
        self.slowest_us.clear();
        for inner in egress.chains() {
            self.add(inner.iter().copied(), None, None);
        }
        let mut known = self.candidates.iter();
        self.direct = known.position(|chain| chain.inner.is_empty());
        if self.direct.is_none() {
            let place = self.add([], None, None);
            self.direct = self.cost(place).is_some().then_some(place);
        }
    }

    /// Adds a candidate; returns its place.
    pub(crate) fn add(
        &mut self,
        inner: impl IntoIterator<Item = u16>,
        known: Option<Known>,
        promise: Option<Promise>,
    ) -> usize {
        let start = self.nodes.len();
        self.nodes.extend(inner);
        self.candidates.push(Candidate {
            inner: start..self.nodes.len(),
            known,
            promise,
            is_first: false,
            promised: None,
            cost: Asked::Not,
        });
        self.candidates.len() - 1
    }

    /// The nodes between the ends of a candidate, as the matrix counts them.
    pub(crate) fn inner(&self, place: usize) -> &[u16] {
        &self.nodes[self.candidates[place].inner.clone()]
    }

    /// The place of the direct hop, if there is a link.
    pub(crate) fn direct(&self) -> Option<usize> {
        self.direct
    }

    /// Chooses for every class. `in_use` says which candidates there were for a class until now.
    ///
    /// A candidate that is first for its own sake makes a new promise.
    pub(crate) fn choose(&mut self, egress: Egress<'_>, in_use: impl Fn(usize) -> Choice) {
        self.firsts.clear();
        self.shared.clear();
        self.chosen.classes.clear();
        self.chosen.choices.clear();
        for (class, places) in egress.choices().enumerate() {
            let best = self.worth(places.first().map(|&place| place.into()), class);
            let kept = self.kept(in_use(class).first(), best, class);
            let first = kept.or_else(|| self.nearly(best, class));
            if first == best {
                self.promise(first, class);
            }
            self.use_first(first);
        }
        for candidate in &mut self.candidates {
            candidate.promise = candidate.promised.or(candidate.promise);
        }
        let mut last = None;
        for (class, places) in egress.choices().enumerate() {
            let in_use = in_use(class);
            let asked = (self.firsts[class], places, in_use);
            // Classes beside each other mostly have the same. What was in use may be too slow for one.
            let number = match last {
                Some((known, number)) if known == asked && in_use == Choice::default() => number,
                _ => {
                    let list = self.list(&in_use, places, class);
                    self.number(list)
                }
            };
            last = Some((asked, number));
            self.chosen.classes.push(number);
        }
    }

    /// Notes what the next class uses.
    fn use_first(&mut self, first: Option<usize>) {
        self.firsts.push(first);
        let Some(place) = first else { return };
        let was = std::mem::replace(&mut self.candidates[place].is_first, true);
        if !was {
            self.shared.push(place);
        }
    }

    /// The number of a choice, which is a new one if there is none like it.
    fn number(&mut self, choice: Choice) -> u8 {
        let choices = &mut self.chosen.choices;
        let known = choices.iter().position(|other| *other == choice);
        let number = known.unwrap_or(choices.len());
        if known.is_none() {
            choices.push(choice);
        }
        u8::try_from(number).expect("there are no more choices than classes")
    }

    /// The best, if it is worth its nodes, or the direct hop.
    fn worth(&mut self, best: Option<usize>, class: usize) -> Option<usize> {
        let (Some(best), Some(direct)) = (best, self.direct) else {
            return best.or(self.direct);
        };
        if best == direct {
            return Some(direct);
        }
        let (time, without) = (self.time_us(best, class)?, self.time_us(direct, class)?);
        let is_worth = self.rules.beats_direct(time, without);
        Some(if is_worth { best } else { direct })
    }

    /// What is in use, if it is to stay although `best` is another.
    fn kept(&mut self, in_use: Option<usize>, best: Option<usize>, class: usize) -> Option<usize> {
        let in_use = in_use.filter(|_| in_use != best)?;
        if let Some(promise) = self.candidates[in_use].promise {
            let now = self.time_us(in_use, promise.class.into())?;
            if self.rules.is_broken(promise.time_us.into(), now) {
                return None;
            }
        }
        let now = self.time_us(in_use, class)?;
        let other = self.time_us(best?, class)?;
        (!self.rules.gives_way(now, other)).then_some(in_use)
    }

    /// The best, or what classes before use if that is nearly as good: not every class is worth a number.
    fn nearly(&mut self, best: Option<usize>, class: usize) -> Option<usize> {
        let own = best?;
        let is_known = self.candidates[own].is_first || self.inner(own).is_empty();
        if is_known || self.shared.is_empty() {
            return best;
        }
        let own_us = self.time_us(own, class)?;
        let mut nearest = (u64::MAX, own);
        for known in 0..self.shared.len() {
            let place = self.shared[known];
            if let Some(time) = self.time_us(place, class) {
                nearest = nearest.min((time, place));
            }
        }
        let is_apart = self.rules.is_apart(nearest.0, own_us);
        Some(if is_apart { own } else { nearest.1 })
    }

    /// Notes what a candidate promises, if it did not in another class.
    fn promise(&mut self, first: Option<usize>, class: usize) {
        let Some(place) = first else { return };
        if self.candidates[place].promised.is_some() {
            return;
        }
        let time = self.time_us(place, class);
        if let Some((class, time)) = u8::try_from(class).ok().zip(time) {
            let time_us = u32::try_from(time).unwrap_or(u32::MAX);
            self.candidates[place].promised = Some(Promise { class, time_us });
        }
    }

    /// The first, and what to fall back on: what that was until now, while it is no slower than the direct
    /// hop; then what the table has, of chains that are the first of another class; then the direct hop.
    /// What is rarely used, and never for long, is not worth a number of its own, unless there is nothing
    /// else.
    fn list(&mut self, in_use: &Choice, places: &[u8], class: usize) -> Choice {
        let first = self.firsts[class];
        let mut list = Choice::default();
        first.into_iter().for_each(|place| list.add(place));
        if first == in_use.first() {
            let direct = self.direct.and_then(|place| self.time_us(place, class));
            for &place in in_use.places() {
                let time = self.time_us(place, class);
                if time.is_some_and(|time| direct.is_none_or(|direct| time <= direct)) {
                    list.add(place);
                }
            }
        }
        let others = places.iter().map(|&place| usize::from(place));
        let firsts = others.clone();
        let firsts = firsts.filter(|place| self.candidates[*place].is_first);
        firsts.chain(self.direct).for_each(|place| list.add(place));
        if list.count < 2 {
            others.for_each(|place| list.add(place));
        }
        list
    }

    /// How long a transfer of a class takes now, in microseconds, if every link is there.
    fn time_us(&mut self, place: usize, class: usize) -> Option<u64> {
        let (cost, start) = self.cost(place)?;
        let size = self.times.size_of(class);
        let known = &mut self.slowest_us[start + size];
        if *known == UNKNOWN {
            let candidate = &self.candidates[place];
            let inner = &self.nodes[candidate.inner.clone()];
            *known = self.times.slowest_us(&cost, (self.ends, inner), size);
        }
        Some(cost.length_us + (*known).max(self.times.floor_us(class)))
    }

    fn cost(&mut self, place: usize) -> Option<(Cost, usize)> {
        let candidate = &mut self.candidates[place];
        if let Asked::Known(known) = candidate.cost {
            return known;
        }
        let ((from, to), inner) = (self.ends, &self.nodes[candidate.inner.clone()]);
        let start = self.slowest_us.len();
        let cost = self.times.cost(from, inner, to).map(|cost| (cost, start));
        if cost.is_some() {
            let sizes = self.times.sizes();
            self.slowest_us.resize(start + sizes, UNKNOWN);
        }
        candidate.cost = Asked::Known(cost);
        cost
    }
}

#[cfg(test)]
mod tests {
    use posthaste_plan::fronts::Limits;
    use posthaste_plan::table::{Classes, Table};
    use posthaste_plan::{Link, Matrix, Model, Planner};

    use super::*;

    const MS: u32 = 1000;

    /// 0 and 2 are `direct_ms` apart, and 40 ms each from 1.
    fn triangle(direct_ms: u32, half_ms: u32) -> Matrix {
        let mut matrix = Matrix::new(3).unwrap();
        for (one, other, ms) in [(0, 2, direct_ms), (0, 1, half_ms), (1, 2, half_ms)] {
            let link = (ms > 0).then_some(Link::of_rtt(ms * MS));
            matrix.set_both(one, other, link).unwrap();
        }
        matrix
    }

    fn classes() -> Classes {
        Classes::new(&[450_000], &[0]).unwrap()
    }

    fn table(matrix: &Matrix) -> Table {
        let planner = Planner::new(matrix, Model::default(), Limits::default());
        planner.tables(&classes()).swap_remove(0)
    }

    /// Chooses from 0 to 2 with a chain in use and its promise, in milliseconds; returns the nodes
    /// between of the choices, and the new promise of the first.
    fn choose(
        matrix: &Matrix,
        in_use: Option<(&[u16], Option<u32>)>,
    ) -> (Vec<Vec<u16>>, Option<u32>) {
        let (model, classes, table) = (Model::default(), classes(), table(matrix));
        let times = Times::new(matrix, &model, &classes);
        let mut chooser = Chooser::new(times, Rules::default());
        chooser.start(0, 2, table.egress(2));
        let place = in_use.map(|(inner, promise_ms)| {
            let mut all = 0..chooser.candidates.len();
            let known = all.find(|place| chooser.inner(*place) == inner);
            let place = known.unwrap_or_else(|| chooser.add(inner.to_vec(), None, None));
            chooser.candidates[place].promise = promise_ms.map(|ms| Promise {
                class: 0,
                time_us: ms * MS,
            });
            place
        });
        let mut in_use = Choice::default();
        place.into_iter().for_each(|place| in_use.add(place));
        chooser.choose(table.egress(2), |_| in_use);
        assert_eq!(chooser.chosen.classes, [0]);
        let choices = chooser.chosen.choices[0].places().iter();
        let first = choices.clone().next();
        let promise = first.and_then(|&first| chooser.candidates[first].promise);
        let inner = choices.map(|&place| chooser.inner(place).to_vec());
        (inner.collect(), promise.map(|promise| promise.time_us / MS))
    }

    #[test]
    fn a_chain_must_be_worth_its_nodes() {
        // 450 kB take 7 round trips, that of the bytes included: 560 ms without a node.
        let (direct, by_one): (&[u16], &[u16]) = (&[], &[1]);
        let (chosen, _) = choose(&triangle(80, 40), None);
        assert_eq!(chosen, [by_one, direct]);
        let (chosen, _) = choose(&triangle(80, 68), None);
        assert_eq!(chosen[0], direct);
        let (chosen, _) = choose(&triangle(0, 68), None);
        assert_eq!(chosen, [by_one]);
        let (chosen, _) = choose(&triangle(80, 0), None);
        assert_eq!(chosen, [direct]);
        let mut nothing = triangle(0, 0);
        nothing.set(0, 1, Some(Link::of_rtt(1))).unwrap();
        assert_eq!(choose(&nothing, None).0, [] as [&[u16]; 0]);
    }

    #[test]
    fn what_is_in_use_stays_while_it_is_nearly_as_good() {
        let (direct, by_one): (&[u16], &[u16]) = (&[], &[1]);
        // Nearly as slow as without a node, where it would not be chosen.
        let nearly = triangle(80, 68);
        assert_eq!(choose(&nearly, Some((by_one, None))).0[0], by_one);
        assert_eq!(choose(&nearly, Some((by_one, Some(560)))).0[0], by_one);
        assert_eq!(choose(&nearly, Some((by_one, Some(400)))).0[0], direct);
        assert_eq!(choose(&triangle(80, 80), Some((by_one, None))).0[0], direct);
        // What is not measured any more gives way at once.
        assert_eq!(choose(&triangle(80, 0), Some((by_one, None))).0, [direct]);
    }

    #[test]
    fn what_is_fallen_back_on_stays_as_long_as_it_is_of_use() {
        // Three ways around, of which the table keeps two to fall back on.
        let network = |rtts: [u32; 4]| {
            let mut matrix = Matrix::new(6).unwrap();
            for (node, half_ms) in (1..).zip(rtts) {
                let link = Some(Link::of_rtt(half_ms * MS));
                matrix.set_both(0, node, link).unwrap();
                matrix.set_both(node, 5, link).unwrap();
            }
            matrix
        };
        let (model, classes) = (Model::default(), classes());
        let choose = |matrix: &Matrix, in_use: &[u16]| {
            let planner = Planner::new(matrix, model, Limits::default());
            let table = planner.tables(&classes).swap_remove(0);
            let times = Times::new(matrix, &model, &classes);
            let mut chooser = Chooser::new(times, Rules::default());
            chooser.start(0, 5, table.egress(5));
            let mut old = Choice::default();
            for &node in in_use {
                let mut all = 0..chooser.candidates.len();
                let known = all.find(|place| chooser.inner(*place) == [node]);
                old.add(known.unwrap_or_else(|| chooser.add([node], None, None)));
            }
            chooser.choose(table.egress(5), |_| old);
            let places = chooser.chosen.choices[0].places().iter();
            places
                .flat_map(|place| chooser.inner(*place).to_vec())
                .collect::<Vec<u16>>()
        };
        assert_eq!(choose(&network([40, 50, 60, 70]), &[]), [1]);
        assert_eq!(choose(&network([40, 50, 60, 70]), &[1, 3, 4]), [1, 3, 4]);
        assert_eq!(choose(&network([41, 40, 60, 70]), &[1, 3]), [1, 3]);
        assert_eq!(choose(&network([41, 40, 60, 70]), &[1]), [1, 2]);
        assert_eq!(choose(&network([60, 40, 60, 70]), &[1, 3]), [2]);
        let mut direct = network([40, 50, 60, 70]);
        direct.set_both(0, 5, Some(Link::of_rtt(70 * MS))).unwrap();
        assert_eq!(choose(&direct, &[1, 2, 4]), [1, 2]);
    }

    #[test]
    fn promises_are_made_for_own_sakes_only() {
        let by_one: &[u16] = &[1];
        let (_, promise) = choose(&triangle(80, 40), Some((by_one, Some(9))));
        assert_eq!(promise, Some(320));
        let (chosen, promise) = choose(&triangle(80, 68), Some((by_one, Some(560))));
        assert_eq!((chosen[0].as_slice(), promise), (by_one, Some(560)));
    }
}
