// SPDX-License-Identifier: Apache-2.0
//! Changing the RIB: what is chosen is written down.

use super::choose::{Choice, Chooser};
use super::pairs::{Pair, PairChain, PairRoutes, Row, row};
use super::{Network, Rib};
use crate::checksum;

/// For so many versions the RIB can report that there are no routes any more between two nodes.
const VERSIONS_KEPT: u64 = 1000;

/// No node of the matrix.
const ABSENT: u16 = u16::MAX;

/// The plan that is being made.
#[derive(Debug)]
pub(super) struct PlanUpdate {
    pub(super) version: u64,
    /// Something is another than in the plan before.
    pub(super) changed: bool,
    /// By place in the matrix.
    pub(super) indexes: Vec<u16>,
    /// By slot, the place in the matrix, or [`ABSENT`].
    places: Vec<u16>,
    /// By class, which candidates the pair at hand used; memory that is used again.
    in_use: Vec<Choice>,
    /// Likewise, by chain of the pair, which candidate it is.
    candidates: Vec<Option<usize>>,
    /// Likewise, by candidate, its place among `chains`.
    chosen: Vec<Option<u8>>,
    /// Likewise, what was chosen.
    chains: Vec<PairChain>,
    choices: Vec<Row>,
}

impl PlanUpdate {
    pub(super) fn new(version: u64, indexes: Vec<u16>) -> Self {
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
            changed: false,
            indexes,
            places,
            in_use: Vec::new(),
            candidates: Vec::new(),
            chosen: Vec::new(),
            chains: Vec::new(),
            choices: Vec::new(),
        }
    }

    /// Which candidates the pair at hand used for a class.
    pub(super) fn in_use(&self, class: usize) -> Choice {
        self.in_use.get(class).copied().unwrap_or_default()
    }

    /// Where in the matrix the node of a slot is, if it is there.
    pub(super) fn place(&self, index: u16) -> Option<u16> {
        let place = self.places.get(usize::from(index)).copied();
        place.filter(|place| *place != ABSENT)
    }

    /// Adds the chains that a pair uses to the candidates, unless they are there or pass a node that is not,
    /// with their promises. Notes by class which there were.
    pub(super) fn offer(&mut self, pair: &Pair, chooser: &mut Chooser<'_>) {
        self.in_use.clear();
        let Some(routes) = &pair.routes else { return };
        self.candidates.clear();
        for chain in &routes.chains {
            let candidate = self.candidate(chain, chooser);
            self.candidates.push(candidate);
        }
        for places in routes.choices() {
            let candidate = |place: &u8| self.candidates[usize::from(*place)];
            let mut choice = Choice::default();
            // Without its first, nothing is left to be kept together.
            if places
                .first()
                .is_some_and(|first| candidate(first).is_some())
            {
                // Fallbacks over nodes that are gone drop out; the others stay in their order.
                let known = places.iter().filter_map(candidate);
                known.for_each(|place| choice.add(place));
            }
            self.in_use.push(choice);
        }
        let choices = self.in_use.len();
        for &class in &routes.classes {
            self.in_use.push(self.in_use[usize::from(class)]);
        }
        // The first entries were the choices; what remains is by class.
        self.in_use.drain(..choices);
    }

    /// Adds the chains that a pair used before to the candidates, likewise.
    pub(super) fn offer_recent(&self, pair: &Pair, chooser: &mut Chooser<'_>) {
        for chain in &pair.recent {
            self.candidate(chain, chooser);
        }
    }

    /// Which candidate a chain of a pair is: a new one, if there was none like it.
    fn candidate(&self, chain: &PairChain, chooser: &mut Chooser<'_>) -> Option<usize> {
        if chain.inner().is_empty() {
            return chooser.direct();
        }
        let places = || chain.inner().iter().map(|index| self.place(*index));
        let mut all = 0..chooser.candidates.len();
        let same = all.find(|&place| {
            let candidate = chooser.inner(place);
            candidate.len() == chain.inner().len()
                && places().eq(candidate.iter().map(|place| Some(*place)))
        });
        if let Some(same) = same {
            chooser.candidates[same].promise = chain.promise;
            return Some(same);
        }
        let is_whole = places().all(|place| place.is_some());
        is_whole.then(|| chooser.add(places().flatten(), chain.promise))
    }

    /// Takes what was chosen for a pair over into `chains` and `choices`.
    fn take_chosen(&mut self, chooser: &Chooser<'_>) {
        self.chosen.clear();
        self.chosen.resize(chooser.candidates.len(), None);
        self.chains.clear();
        self.choices.clear();
        for choice in &chooser.chosen.choices {
            for &place in choice.places() {
                if self.chosen[place].is_none() {
                    let inner = chooser.inner(place).iter();
                    let inner = inner.map(|&node| self.indexes[usize::from(node)]);
                    let promise = chooser.candidates[place].promise;
                    self.chosen[place] = u8::try_from(self.chains.len()).ok();
                    self.chains.push(PairChain::new(inner, promise));
                }
            }
            let places = choice.places().iter();
            self.choices
                .push(row(places.filter_map(|place| self.chosen[*place])));
        }
    }
}

impl Rib {
    /// Writes down what was chosen for a pair.
    pub(super) fn set_pair(
        &mut self,
        ends: (u16, u16),
        pair: &mut Pair,
        chooser: &Chooser<'_>,
        turn: &mut PlanUpdate,
    ) {
        turn.take_chosen(chooser);
        let (chains, choices) = (&turn.chains, &turn.choices);
        let classes = &chooser.chosen.classes;
        match &mut pair.routes {
            Some(routes) if routes.is_of(chains, choices, classes) => {
                // Only promises may be others, which nodes do not receive.
                routes.chains.copy_from_slice(chains);
            }
            None if chains.is_empty() => {}
            _ => {
                let routes = PairRoutes::of(chains, choices, classes);
                self.set_routes(ends, pair, routes, turn);
            }
        }
    }

    fn set_routes(
        &mut self,
        ends: (u16, u16),
        pair: &mut Pair,
        routes: Option<PairRoutes>,
        turn: &mut PlanUpdate,
    ) {
        let before = pair.replace(routes);
        self.count(ends, before.as_ref(), false);
        self.count(ends, pair.routes.as_ref(), true);
        pair.changed = turn.version;
        turn.changed = true;
    }

    /// Adds the routes of a pair to what the RIB counts for their nodes, or takes them off.
    fn count(&mut self, ends: (u16, u16), routes: Option<&PairRoutes>, is_in: bool) {
        let Some(routes) = routes else { return };
        let sum = self.sum(ends.1, routes);
        // Sums add modulo 2^64, so a change of one pair needs no look at the others.
        let sum = if is_in { sum } else { sum.wrapping_neg() };
        let part = &mut self.parts[usize::from(ends.0)];
        part.sum = part.sum.wrapping_add(sum);
        let step = if is_in { 1 } else { -1 };
        let chains = routes.chains.iter();
        for chain in chains.filter(|chain| !chain.inner().is_empty()) {
            self.chain_count = self.chain_count.wrapping_add_signed(step);
            for (one, other) in chain.hops(ends) {
                for (one, other) in [(one, other), (other, one)] {
                    let near = &mut self.parts[usize::from(one)].near[usize::from(other)];
                    *near = near.wrapping_add_signed(if is_in { 1 } else { -1 });
                }
            }
        }
    }

    /// The sum of the routes to a node.
    fn sum(&self, last: u16, routes: &PairRoutes) -> u64 {
        let chains = routes.chains.iter().map(|chain| {
            let inner = chain.inner();
            let nodes = inner.iter().map(|index| self.indexes.node(*index));
            (inner.len(), nodes)
        });
        let egress = self.indexes.node(last);
        checksum::routes_by(egress, &routes.classes, chains, routes.choices())
    }

    /// Nodes that are not planned with have no routes, and none lead to them.
    pub(super) fn leave_out(&mut self, turn: &mut PlanUpdate) {
        let absent = self.indexes.order().iter();
        let absent = absent.filter(|index| turn.place(**index).is_none());
        for index in absent.copied().collect::<Vec<u16>>() {
            // A copy, since a slot that is taken back leaves the order.
            let all = self.indexes.order().to_vec();
            let mut is_over = true;
            for other in all {
                is_over &= self.leave_pair((index, other), turn);
                is_over &= self.leave_pair((other, index), turn);
            }
            if is_over {
                self.indexes.take_back(index);
                let pairs = self.pairs.iter_mut().flatten();
                pairs.for_each(|pair| pair.forget(index));
            }
        }
    }

    /// Takes the routes of a pair away; returns whether no node can hold a plan with them any more.
    fn leave_pair(&mut self, (from, to): (u16, u16), turn: &mut PlanUpdate) -> bool {
        let mut pair = std::mem::take(&mut self.pairs[usize::from(from)][usize::from(to)]);
        if pair.routes.is_some() {
            self.set_routes((from, to), &mut pair, None, turn);
        }
        let is_over = pair.changed == 0 || pair.changed + VERSIONS_KEPT <= turn.version;
        if is_over {
            self.horizon = self.horizon.max(pair.changed);
            pair.changed = 0;
        }
        self.pairs[usize::from(from)][usize::from(to)] = pair;
        is_over
    }
}

impl Network {
    /// Whether links and nodes fit, which planning relies on.
    pub(crate) fn is_sound(&self) -> bool {
        self.nodes.len() == self.matrix.nodes() && self.nodes.is_sorted_by(|a, b| a < b)
    }
}
