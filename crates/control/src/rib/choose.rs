// SPDX-License-Identifier: Apache-2.0
//! Which chains a pair of nodes is to use: what is offered as the best, by tables or by the times of what
//! there is, unless what is in use is nearly as good or the direct hop is. Pure.

use std::ops::Range;

use super::rules::{Promise, Rules};
use super::times::{Cost, Times};
use crate::route_table::CHOICES_MAX;

/// A chain that may be chosen for a pair.
#[derive(Debug)]
pub(crate) struct Candidate {
    /// Where among [`Chooser::nodes`] those between the ends are.
    inner: Range<usize>,
    /// What it promised when it was chosen for its own sake.
    pub(crate) promise: Option<Promise>,
    /// It is the first of some class.
    is_first: bool,
    /// What it promises from now on.
    promised: Option<Promise>,
    cost: Question,
}

/// Costs are computed when they are first needed.
#[derive(Clone, Copy, Debug)]
enum Question {
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

/// By class, the fastest of the candidates.
#[derive(Debug, Default)]
pub(crate) struct Ranking {
    places: Vec<u8>,
    /// Of every class.
    each: usize,
    classes: usize,
}

impl Ranking {
    /// By class, the best first.
    pub(crate) fn offers(&self) -> impl Iterator<Item = &[u8]> {
        let of = |class| &self.places[class * self.each..][..self.each];
        (0..self.classes).map(of)
    }
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
    /// By candidate whose cost was computed, and by size: how long the slowest hop takes, or [`UNKNOWN`].
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

    /// The times that it goes by.
    pub(crate) fn times(&self) -> &Times<'a> {
        &self.times
    }

    /// Goes on to a pair, with these candidates, and the direct hop.
    pub(crate) fn start<'n>(
        &mut self,
        (from, to): (usize, usize),
        chains: impl IntoIterator<Item = &'n [u16]>,
    ) {
        self.ends = (from, to);
        self.candidates.clear();
        self.nodes.clear();
        self.slowest_us.clear();
        for inner in chains {
            self.add(inner.iter().copied(), None);
        }
        let mut known = self.candidates.iter();
        self.direct = known.position(|chain| chain.inner.is_empty());
        if self.direct.is_none() {
            // The direct hop is a candidate even where no table names it: it is the last fallback.
            let place = self.add([], None);
            self.direct = self.cost(place).is_some().then_some(place);
        }
    }

    /// Adds a candidate; returns its place.
    pub(crate) fn add(
        &mut self,
        inner: impl IntoIterator<Item = u16>,
        promise: Option<Promise>,
    ) -> usize {
        let start = self.nodes.len();
        self.nodes.extend(inner);
        self.candidates.push(Candidate {
            inner: start..self.nodes.len(),
            promise,
            is_first: false,
            promised: None,
            cost: Question::Not,
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

    /// The fastest candidates for every class, as links are now, for [`Chooser::choose`]. In a tie the one
    /// that came first stays.
    pub(crate) fn rank(&mut self, ranking: &mut Ranking) {
        let whole = (0..self.candidates.len()).filter(|place| u8::try_from(*place).is_ok());
        let whole: Vec<usize> = whole.filter(|place| self.cost(*place).is_some()).collect();
        ranking.each = whole.len().min(CHOICES_MAX);
        ranking.places.clear();
        for class in 0..self.times.classes() {
            let mut fastest = [(u64::MAX, u8::MAX); CHOICES_MAX];
            for &place in &whole {
                let timed = self.time_us(place, class).zip(u8::try_from(place).ok());
                let mut next = timed.unwrap_or(fastest[CHOICES_MAX - 1]);
                for index in &mut fastest {
                    if next < *index {
                        std::mem::swap(index, &mut next);
                    }
                }
            }
            let kept = fastest.iter().take(ranking.each);
            ranking.places.extend(kept.map(|(_, place)| *place));
        }
        ranking.classes = self.times.classes();
    }

    /// Chooses for every class. `offers` has candidates for each, the best first; `in_use` is which there
    /// were for a class until now.
    ///
    /// A candidate that is first for its own sake makes a new promise.
    pub(crate) fn choose<'o, I: Iterator<Item = &'o [u8]>>(
        &mut self,
        offers: impl Fn() -> I,
        in_use: impl Fn(usize) -> Choice,
    ) {
        self.firsts.clear();
        self.shared.clear();
        self.chosen.classes.clear();
        self.chosen.choices.clear();
        for (class, places) in offers().enumerate() {
            let best = self.worth(places.first().map(|&place| place.into()), class);
            // Hysteresis: a plan that alternates between equal chains would be sent again each
            // time.
            let kept = self.kept(in_use(class).first(), best, class);
            let first = kept.or_else(|| self.nearly(best, class));
            if first == best {
                self.promise(first, class);
            }
            self.use_first(first);
        }
        for candidate in &mut self.candidates {
            // Only after all classes: `kept` compares with the promise of the plan before.
            candidate.promise = candidate.promised.or(candidate.promise);
        }
        let mut last = None;
        for (class, places) in offers().enumerate() {
            let in_use = in_use(class);
            let question = (self.firsts[class], places, in_use);
            // Classes beside each other mostly have the same. What was in use may be too slow for one.
            let number = match last {
                Some((known, number)) if known == question && in_use == Choice::default() => number,
                _ => {
                    let list = self.list(&in_use, places, class);
                    self.number(list)
                }
            };
            last = Some((question, number));
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
            // Measured against the promise, not the last plan: many small losses add up.
            if self.rules.is_broken(promise.time_us.into(), now) {
                return None;
            }
        }
        let now = self.time_us(in_use, class)?;
        let other = self.time_us(best?, class)?;
        (!self.rules.gives_way(now, other)).then_some(in_use)
    }

    /// The best, or what classes before use if that is nearly as good: then fewer chains change.
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
    /// hop; then what is offered, of chains that are the first of another class; then the direct hop.
    /// A chain that is the first of no class is taken only if there is nothing else: each chain of a plan
    /// takes memory, and its links are measured more often.
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
        // The slowest part decides: a hop, or the client's access link. The lengths add to it.
        Some(cost.length_us + (*known).max(self.times.floor_us(class)))
    }

    fn cost(&mut self, place: usize) -> Option<(Cost, usize)> {
        let candidate = &mut self.candidates[place];
        if let Question::Known(known) = candidate.cost {
            return known;
        }
        let ((from, to), inner) = (self.ends, &self.nodes[candidate.inner.clone()]);
        let start = self.slowest_us.len();
        let cost = self.times.cost(from, inner, to).map(|cost| (cost, start));
        if cost.is_some() {
            let sizes = self.times.sizes();
            self.slowest_us.resize(start + sizes, UNKNOWN);
        }
        candidate.cost = Question::Known(cost);
        cost
    }
}

#[cfg(test)]
mod tests;
