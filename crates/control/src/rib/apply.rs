// SPDX-License-Identifier: Apache-2.0
//! Changing the RIB: what is chosen is written down, what is not used any more leaves.

use std::time::Duration;

use super::chains::{Chain, State};
use super::choose::{Choice, Chooser, Known};
use super::pairs::{Pair, PairRoutes};
use super::{Network, Part, Rib, whole_seconds};
use crate::checksum;
use crate::message::{ChainNumber, DIRECT, NumberedChain};

/// For so many versions it can be told that there are no ways any more between two nodes.
const VERSIONS_KEPT: u64 = 1000;

/// No node of the matrix.
const ABSENT: u16 = u16::MAX;

/// The plan that is being made.
#[derive(Debug)]
pub(super) struct PlanUpdate {
    pub(super) version: u64,
    pub(super) second: u32,
    /// Something is another than in the plan before.
    pub(super) changed: bool,
    /// By place in the matrix.
    pub(super) indexes: Vec<u16>,
    /// By slot, the place in the matrix, or [`ABSENT`].
    places: Vec<u16>,
    /// Of the pair at hand, by candidate; memory that is used again.
    numbers: Vec<Option<ChainNumber>>,
    /// Likewise, whether any class uses it.
    is_chosen: Vec<bool>,
    /// Likewise, places of chains.
    used: Vec<u32>,
    /// Likewise, by class which candidates there were.
    in_use: Vec<Choice>,
}

impl PlanUpdate {
    pub(super) fn new(version: u64, second: u32, indexes: Vec<u16>) -> Self {
        let count = indexes
            .iter()
            .max()
            .map_or(0, |index| usize::from(*index) + 1);
        let mut places = vec![ABSENT; count];
        for (place, index) in (0..).zip(&indexes) {
            places[usize::from(*index)] = place;
        }
        Self {
            version,
            second,
            changed: false,
            indexes,
            places,
            numbers: Vec::new(),
            is_chosen: Vec::new(),
            used: Vec::new(),
            in_use: Vec::new(),
        }
    }

    /// Which candidates there were for a class of the pair at hand.
    pub(super) fn in_use(&self, class: usize) -> Choice {
        self.in_use.get(class).copied().unwrap_or_default()
    }

    /// Where in the matrix the node of a slot is, if it is there.
    pub(super) fn place(&self, index: u16) -> Option<u16> {
        let place = self.places.get(usize::from(index)).copied();
        place.filter(|place| *place != ABSENT)
    }
}

impl Rib {
    /// Tells the chooser which candidates have numbers, and what they promised; adds those in such states
    /// that it does not have. Notes by class which there were.
    pub(super) fn offer(
        &self,
        pair: &Pair,
        states: &[State],
        chooser: &mut Chooser<'_>,
        turn: &mut PlanUpdate,
    ) {
        for &id in &pair.chains {
            let Some(chain) = self.chains.get(id) else {
                continue;
            };
            let nodes = self.chains.nodes(id);
            let inner = nodes[1..nodes.len() - 1].iter();
            let places = || inner.clone().map(|index| turn.place(*index));
            let known = Some(Known {
                id,
                number: chain.number,
            });
            let mut all = 0..chooser.candidates.len();
            let same = all.find(|&place| {
                let candidate = chooser.inner(place);
                candidate.len() + 2 == nodes.len()
                    && places().eq(candidate.iter().map(|place| Some(*place)))
            });
            if let Some(same) = same {
                chooser.candidates[same].known = known;
                chooser.candidates[same].promise = chain.promise;
            } else if states.contains(&chain.state) && places().all(|place| place.is_some()) {
                chooser.add(places().flatten(), known, chain.promise);
            }
        }
        turn.in_use.clear();
        let Some(routes) = &pair.routes else { return };
        let place = |number: &ChainNumber| match *number {
            DIRECT => chooser.direct(),
            number => chooser.candidates.iter().position(|candidate| {
                let known = candidate.known;
                known.is_some_and(|known| known.number == number)
            }),
        };
        for numbers in routes.choices() {
            let mut choice = Choice::default();
            // Without its first, nothing is left to be kept together.
            if numbers.first().is_some_and(|first| place(first).is_some()) {
                let places = numbers.iter().filter_map(place);
                places.for_each(|place| choice.add(place));
            }
            turn.in_use.push(choice);
        }
        let choices = turn.in_use.len();
        for &class in &routes.classes {
            turn.in_use.push(turn.in_use[usize::from(class)]);
        }
        turn.in_use.drain(..choices);
    }

    /// Writes down what was chosen for a pair.
    pub(super) fn set_pair(
        &mut self,
        ends: (u16, u16),
        pair: &mut Pair,
        chooser: &Chooser<'_>,
        turn: &mut PlanUpdate,
    ) {
        let mut numbers = std::mem::take(&mut turn.numbers);
        let mut used = std::mem::take(&mut turn.used);
        numbers.clear();
        used.clear();
        turn.is_chosen.clear();
        turn.is_chosen.resize(chooser.candidates.len(), false);
        for place in chooser.chosen.choices.iter().flat_map(Choice::places) {
            turn.is_chosen[*place] = true;
        }
        for place in 0..chooser.candidates.len() {
            if !turn.is_chosen[place] {
                numbers.push(None);
            } else if chooser.inner(place).is_empty() {
                numbers.push(Some(DIRECT));
            } else {
                let known = self.use_chain(ends, (chooser, place), turn);
                used.extend(known.map(|known| known.id));
                numbers.push(known.map(|known| known.number));
                self.unnumbered += usize::from(known.is_none());
            }
        }
        let chosen = &chooser.chosen;
        let is_same = match &pair.routes {
            Some(routes) => routes.is_of(chosen, &numbers),
            None => PairRoutes::of(chosen, &numbers).is_none(),
        };
        if !is_same {
            self.set_routes(ends, pair, PairRoutes::of(chosen, &numbers), turn);
        }
        self.leave(pair, &used, turn);
        for &id in &used {
            if !pair.chains.contains(&id) {
                pair.chains.push(id);
            }
        }
        (turn.numbers, turn.used) = (numbers, used);
    }

    /// The chain of a candidate, with a number, in use from now on; nothing if no number is free.
    fn use_chain(
        &mut self,
        (first, last): (u16, u16),
        (chooser, place): (&Chooser<'_>, usize),
        turn: &mut PlanUpdate,
    ) -> Option<Known> {
        let candidate = &chooser.candidates[place];
        if let Some(known) = candidate.known {
            let chain = self.chains.get_mut(known.id)?;
            chain.promise = candidate.promise;
            let before = std::mem::replace(&mut chain.state, State::InUse);
            if before == State::Removed {
                chain.version = turn.version;
                turn.changed = true;
                self.count(known.id, turn.version, true);
            }
            if before != State::InUse {
                self.count_near(known.id, true);
            }
            return Some(known);
        }
        let chain = Chain {
            number: self.numbers.give()?,
            state: State::InUse,
            second: 0,
            version: turn.version,
            promise: candidate.promise,
        };
        turn.changed = true;
        let inner = chooser.inner(place).iter();
        let inner = inner.map(|&node| turn.indexes[usize::from(node)]);
        let nodes = [first].into_iter().chain(inner).chain([last]);
        let id = self.insert(chain, nodes);
        self.changes.given.push(self.numbered(id));
        self.count_near(id, true);
        let number = chain.number;
        Some(Known { id, number })
    }

    /// Gives a chain its place, and enters it with all its nodes.
    fn insert(&mut self, chain: Chain, nodes: impl Iterator<Item = u16>) -> u32 {
        let id = self.chains.add(chain, nodes);
        for index in self.chains.nodes(id) {
            self.parts[usize::from(*index)].chains.push(id);
        }
        self.count(id, chain.version, true);
        id
    }

    /// Puts a chain that a store kept among those that leave.
    pub(super) fn restore(&mut self, chain: &NumberedChain, now: Duration) {
        let indexes: Vec<u16> = chain.nodes.iter().map(|node| self.index(*node)).collect();
        let ends = indexes.first().zip(indexes.last());
        let Some((&first, &last)) = ends.filter(|_| indexes.len() > 1) else {
            return;
        };
        if !self.numbers.take(chain.number) {
            return;
        }
        let second = whole_seconds(now);
        let chain = Chain {
            number: chain.number,
            state: State::Leaving,
            second,
            version: 0,
            promise: None,
        };
        let id = self.insert(chain, indexes.iter().copied());
        self.pairs[usize::from(first)][usize::from(last)]
            .chains
            .push(id);
        self.leaving.push_back((second, id));
    }

    fn set_routes(
        &mut self,
        (from, to): (u16, u16),
        pair: &mut Pair,
        routes: Option<PairRoutes>,
        turn: &mut PlanUpdate,
    ) {
        let egress = self.indexes.node(to);
        let sum =
            |routes: &Option<PairRoutes>| routes.as_ref().map_or(0, |routes| routes.sum(egress));
        let part = &mut self.parts[usize::from(from)];
        part.sum = part.sum.wrapping_sub(sum(&pair.routes));
        part.sum = part.sum.wrapping_add(sum(&routes));
        pair.routes = routes;
        pair.changed = turn.version;
        turn.changed = true;
    }

    /// Chains of a pair that are not used any more begin to leave.
    fn leave(&mut self, pair: &Pair, used: &[u32], turn: &PlanUpdate) {
        for &id in pair.chains.iter().filter(|id| !used.contains(id)) {
            if let Some(chain) = self.chains.get_mut(id)
                && chain.state == State::InUse
            {
                chain.state = State::Leaving;
                chain.second = turn.second;
                self.leaving.push_back((turn.second, id));
                self.count_near(id, false);
            }
        }
    }

    /// Nodes that are not planned with have no ways, and none lead to them.
    pub(super) fn leave_out(&mut self, turn: &mut PlanUpdate) {
        let absent = self.indexes.order().iter();
        let absent = absent.filter(|index| turn.place(**index).is_none());
        for index in absent.copied().collect::<Vec<u16>>() {
            let all = self.indexes.order().to_vec();
            let mut is_over = true;
            for other in all {
                is_over &= self.leave_pair((index, other), turn);
                is_over &= self.leave_pair((other, index), turn);
            }
            if is_over {
                self.forget(index);
            }
        }
    }

    /// Takes the ways of a pair away; returns whether nobody can ask for what became of them.
    fn leave_pair(&mut self, (from, to): (u16, u16), turn: &mut PlanUpdate) -> bool {
        let place =
            |rib: &mut Self| std::mem::take(&mut rib.pairs[usize::from(from)][usize::from(to)]);
        let mut pair = place(self);
        if pair.routes.is_some() {
            self.set_routes((from, to), &mut pair, None, turn);
        }
        self.leave(&pair, &[], turn);
        let is_old = pair.changed == 0 || pair.changed + VERSIONS_KEPT <= turn.version;
        let is_over = pair.chains.is_empty() && is_old;
        if is_over {
            self.horizon = self.horizon.max(pair.changed);
            pair.changed = 0;
        }
        self.pairs[usize::from(from)][usize::from(to)] = pair;
        is_over
    }

    /// Gives the slot of a node back that is in no pair, if no chain passes it.
    fn forget(&mut self, index: u16) {
        self.tidy(index);
        let part = &self.parts[usize::from(index)];
        if part.chains.is_empty() && part.sum == 0 {
            self.indexes.take_back(index);
        }
    }

    /// What left long enough ago leaves rows, and what left these gives its number back.
    pub(super) fn expire(&mut self, turn: &mut PlanUpdate) {
        let ttl = whole_seconds(self.settings.ttl);
        let is_over = |since: u32| since.saturating_add(ttl) <= turn.second;
        while let Some((since, id)) = self.leaving.pop_front_if(|(since, _)| is_over(*since)) {
            let chain = self.chains.get_mut(id);
            let is_leaving =
                |chain: &&mut Chain| chain.state == State::Leaving && chain.second == since;
            let Some(chain) = chain.filter(is_leaving) else {
                continue;
            };
            chain.state = State::Removed;
            (chain.second, chain.version) = (turn.second, turn.version);
            self.count(id, turn.version, false);
            self.removed.push_back((turn.second, id));
            turn.changed = true;
        }
        let mut freed = Vec::new();
        while let Some((since, id)) = self.removed.pop_front_if(|(since, _)| is_over(*since)) {
            let chain = self.chains.get(id);
            let removed =
                chain.filter(|chain| chain.state == State::Removed && chain.second == since);
            if let Some(chain) = removed {
                self.horizon = self.horizon.max(chain.version);
                freed.push(id);
            }
        }
        self.free_chains(&freed);
    }

    /// Strikes chains out.
    fn free_chains(&mut self, freed: &[u32]) {
        let mut touched = Vec::new();
        for &id in freed {
            let Some(chain) = self.chains.get(id) else {
                continue;
            };
            self.numbers.take_back(chain.number);
            self.changes.freed.push(chain.number);
            self.strike(id);
            for index in self.chains.nodes(id) {
                self.parts[usize::from(*index)].struck += 1;
                touched.push(*index);
            }
            self.chains.remove(id);
        }
        touched.sort_unstable();
        touched.dedup();
        for index in touched {
            let part = &mut self.parts[usize::from(index)];
            let horizon = self.horizon;
            part.recent.retain(|(version, _)| *version > horizon);
            if part.struck * 4 >= part.chains.len() {
                self.tidy(index);
            }
        }
    }

    /// Forgets what was struck out of a node's chains.
    fn tidy(&mut self, index: u16) {
        let place = usize::from(index);
        let mut all = std::mem::take(&mut self.parts[place].chains);
        all.retain(|&id| self.chains.get(id).is_some() && self.passes(id, place));
        // Its place may have been given to another of this node's chains since.
        all.sort_unstable();
        all.dedup();
        self.parts[place].chains = all;
        self.parts[place].struck = 0;
    }

    /// Takes a chain from its pair.
    fn strike(&mut self, id: u32) {
        let nodes = self.chains.nodes(id);
        let (first, last) = (nodes[0], nodes[nodes.len() - 1]);
        let pair = &mut self.pairs[usize::from(first)][usize::from(last)];
        pair.chains.retain(|other| *other != id);
    }

    /// Adds a chain to the sums of its nodes with a version, or takes it off.
    fn count(&mut self, id: u32, version: u64, is_in: bool) {
        let Some(chain) = self.chains.get(id) else {
            return;
        };
        let sum = checksum::chain(chain.number, self.nodes(id));
        let sum = if is_in { sum } else { sum.wrapping_neg() };
        for index in self.chains.nodes(id) {
            self.parts[usize::from(*index)].add(sum, (version, id), self.horizon);
        }
    }

    /// Adds a chain to those in use between nodes that are beside each other, or takes it off.
    fn count_near(&mut self, id: u32, is_in: bool) {
        for ends in self.chains.nodes(id).windows(2) {
            for (one, other) in [(ends[0], ends[1]), (ends[1], ends[0])] {
                let near = &mut self.parts[usize::from(one)].near[usize::from(other)];
                *near = near.wrapping_add_signed(if is_in { 1 } else { -1 });
            }
        }
    }
}

impl Part {
    /// A chain came into rows or went from them, with a version.
    fn add(&mut self, sum: u64, change: (u64, u32), horizon: u64) {
        self.sum = self.sum.wrapping_add(sum);
        // Nobody is told changes to a plan before the horizon.
        if change.0 > horizon {
            self.recent.push(change);
        }
    }
}

impl Network {
    /// Whether links and nodes fit, which planning relies on.
    pub(crate) fn is_sound(&self) -> bool {
        self.nodes.len() == self.matrix.nodes() && self.nodes.is_sorted_by(|a, b| a < b)
    }
}
