// SPDX-License-Identifier: Apache-2.0
//! Which chains a pair of nodes is to use: what the tables say, unless what is in use is nearly as good
//! or the direct hop is. Pure.

use posthaste_plan::table::Egress;

use super::times::{Cost, Times};
use crate::rows::CHOICES_MAX;

/// When chains give way, in parts of a hundred and in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// A chain must be so much faster than the hop without nodes between.
    pub margin_percent: u32,
    /// What is in use gives way to what is so much faster,
    pub better_percent: u32,
    /// and by so much,
    pub better_us: u32,
    /// or when it has become slower than it promised by more than that.
    pub worse_percent: u32,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            margin_percent: 10,
            better_percent: 5,
            better_us: 2000,
            worse_percent: 10,
        }
    }
}

impl Rules {
    /// Whether a chain is worth its nodes.
    fn beats_direct(&self, time_us: u64, direct_us: u64) -> bool {
        let keep = 100 - u64::from(self.margin_percent.min(100));
        time_us * 100 <= direct_us * keep
    }

    /// Whether what is in use is to give way.
    fn gives_way(&self, in_use_us: u64, other_us: u64) -> bool {
        let keep = 100 - u64::from(self.better_percent.min(100));
        other_us * 100 <= in_use_us * keep && other_us + u64::from(self.better_us) <= in_use_us
    }

    /// Whether a promise is broken.
    fn is_broken(&self, promise_us: u64, time_us: u64) -> bool {
        time_us * 100 > promise_us * (100 + u64::from(self.worse_percent))
    }
}

/// What a chain was chosen for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Promise {
    pub(crate) class: u8,
    pub(crate) time_us: u32,
}

/// A chain that may be chosen for a pair.
#[derive(Debug)]
pub(crate) struct Candidate {
    /// Nodes between the ends, as the matrix counts them.
    pub(crate) inner: Vec<u16>,
    /// Its place in the book, if it has one.
    pub(crate) id: Option<u32>,
    /// What it promised when it was chosen for its own sake.
    pub(crate) promise: Option<Promise>,
    cost: Asked,
}

/// Costs are computed when they are first asked for.
#[derive(Debug)]
enum Asked {
    Not,
    Known(Option<Cost>),
}

/// What was chosen: candidates, by choice; and choices, by class.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Chosen {
    pub(crate) classes: Vec<u8>,
    pub(crate) choices: Vec<Vec<usize>>,
}

/// Chooses for one pair after the other.
#[derive(Debug)]
pub(crate) struct Chooser<'a> {
    times: Times<'a>,
    rules: Rules,
    ends: (usize, usize),
    pub(crate) candidates: Vec<Candidate>,
    direct: Option<usize>,
}

impl<'a> Chooser<'a> {
    pub(crate) fn new(times: Times<'a>, rules: Rules) -> Self {
        Self {
            times,
            rules,
            ends: (0, 0),
            candidates: Vec::new(),
            direct: None,
        }
    }

    /// Goes on to a pair, with the candidates that its table has, and the direct hop.
    pub(crate) fn start(&mut self, from: usize, to: usize, egress: Egress<'_>) {
        self.ends = (from, to);
        self.candidates.clear();
        for inner in egress.chains() {
            self.add(inner.to_vec(), None, None);
        }
        let known = self.candidates.iter();
        let known = known.enumerate().find(|(_, chain)| chain.inner.is_empty());
        self.direct = known.map(|(place, _)| place);
        if self.direct.is_none() {
            let place = self.add(Vec::new(), None, None);
            self.direct = self.cost(place).is_some().then_some(place);
        }
    }

    /// Adds a candidate; returns its place.
    pub(crate) fn add(
        &mut self,
        inner: Vec<u16>,
        id: Option<u32>,
        promise: Option<Promise>,
    ) -> usize {
        self.candidates.push(Candidate {
            inner,
            id,
            promise,
            cost: Asked::Not,
        });
        self.candidates.len() - 1
    }

    /// The place of the direct hop, if there is a link.
    pub(crate) fn direct(&self) -> Option<usize> {
        self.direct
    }

    /// Chooses for every class. `in_use` says which candidate was first in a class until now.
    ///
    /// A candidate that is first for its own sake makes a new promise.
    pub(crate) fn choose(
        &mut self,
        egress: Egress<'_>,
        in_use: impl Fn(usize) -> Option<usize>,
    ) -> Chosen {
        let mut chosen = Chosen::default();
        let mut promises: Vec<(usize, Promise)> = Vec::new();
        for (class, places) in egress.choices().enumerate() {
            let best = self.worth(places.first().map(|&place| place.into()), class);
            let first = self.kept(in_use(class), best, class).or(best);
            if let Some(first) = first.filter(|_| first == best)
                && !promises.iter().any(|(made, _)| *made == first)
            {
                promises.extend(self.promise(first, class).map(|made| (first, made)));
            }
            let list = self.list(first, places);
            let known = chosen.choices.iter().position(|other| *other == list);
            let number = known.unwrap_or(chosen.choices.len());
            if known.is_none() {
                chosen.choices.push(list);
            }
            let number = u8::try_from(number).expect("there are no more choices than classes");
            chosen.classes.push(number);
        }
        for (place, promise) in promises {
            self.candidates[place].promise = Some(promise);
        }
        chosen
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

    fn promise(&mut self, place: usize, class: usize) -> Option<Promise> {
        let time = self.time_us(place, class)?;
        Some(Promise {
            class: u8::try_from(class).ok()?,
            time_us: u32::try_from(time).unwrap_or(u32::MAX),
        })
    }

    /// The first, and what the table has to fall back on; at last the direct hop, if there is room.
    fn list(&self, first: Option<usize>, places: &[u8]) -> Vec<usize> {
        let others = places.iter().map(|&place| usize::from(place));
        let mut list: Vec<usize> = Vec::with_capacity(CHOICES_MAX);
        for place in first.into_iter().chain(others).chain(self.direct) {
            if list.len() < CHOICES_MAX && !list.contains(&place) {
                list.push(place);
            }
        }
        list
    }

    /// How long a transfer of a class takes now, in microseconds, if every link is there.
    fn time_us(&mut self, place: usize, class: usize) -> Option<u64> {
        self.cost(place)?;
        match &self.candidates[place].cost {
            Asked::Known(Some(cost)) => Some(self.times.time_us(cost, class)),
            _ => None,
        }
    }

    fn cost(&mut self, place: usize) -> Option<&Cost> {
        let candidate = &mut self.candidates[place];
        if matches!(candidate.cost, Asked::Not) {
            let (from, to) = self.ends;
            candidate.cost = Asked::Known(self.times.cost(from, &candidate.inner, to));
        }
        match &candidate.cost {
            Asked::Known(cost) => cost.as_ref(),
            Asked::Not => None,
        }
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
            let mut all = chooser.candidates.iter();
            let known = all.position(|candidate| candidate.inner == inner);
            let place = known.unwrap_or_else(|| chooser.add(inner.to_vec(), None, None));
            chooser.candidates[place].promise = promise_ms.map(|ms| Promise {
                class: 0,
                time_us: ms * MS,
            });
            place
        });
        let chosen = chooser.choose(table.egress(2), |_| place);
        assert_eq!(chosen.classes, [0]);
        let choices = chosen.choices[0].iter();
        let first = choices.clone().next();
        let promise = first.and_then(|&first| chooser.candidates[first].promise);
        let inner = choices.map(|&place| chooser.candidates[place].inner.clone());
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
    fn promises_are_made_for_own_sakes_only() {
        let by_one: &[u16] = &[1];
        let (_, promise) = choose(&triangle(80, 40), Some((by_one, Some(9))));
        assert_eq!(promise, Some(320));
        let (chosen, promise) = choose(&triangle(80, 68), Some((by_one, Some(560))));
        assert_eq!((chosen[0].as_slice(), promise), (by_one, Some(560)));
    }

    #[test]
    fn little_is_not_worth_a_change() {
        let rules = Rules::default();
        assert!(rules.gives_way(100_000, 95_000));
        assert!(!rules.gives_way(100_000, 95_001));
        assert!(!rules.gives_way(10_000, 8_001) && rules.gives_way(10_000, 8_000));
        assert!(rules.is_broken(100, 111) && !rules.is_broken(100, 110));
    }
}
