// SPDX-License-Identifier: Apache-2.0
//! Changing the book: what is chosen is written down, what is not used any more leaves.

use std::time::Duration;

use super::choose::{Choice, Chooser, Chosen};
use super::{Book, Chain, Network, Pair, Part, State, numbered, whole_seconds};
use crate::checksum;
use crate::message::{ChainNumber, DIRECT, NodeNumber, NumberedChain, Ways};

/// For so many versions it can be told that there are no ways any more between two nodes.
const VERSIONS_KEPT: u64 = 1000;

/// The plan that is being made.
#[derive(Debug)]
pub(super) struct Turn {
    pub(super) version: u64,
    pub(super) second: u32,
    /// Something is another than in the plan before.
    pub(super) changed: bool,
    /// Of the pair at hand, by candidate; memory that is used again.
    pub(super) numbers: Vec<Option<ChainNumber>>,
    /// Likewise, places of chains.
    pub(super) used: Vec<u32>,
    /// Likewise, by class which candidates there were.
    pub(super) in_use: Vec<Choice>,
}

impl Book {
    /// Tells the chooser which candidates have numbers, and what they promised; adds those in use that
    /// the table does not have. Notes by class which there were.
    pub(super) fn offer(
        &self,
        pair: &Pair,
        nodes: &[NodeNumber],
        chooser: &mut Chooser<'_>,
        in_use: &mut Vec<Choice>,
    ) {
        in_use.clear();
        for &id in &pair.chains {
            let Some(chain) = self.chain(id) else {
                continue;
            };
            let mut all = 0..chooser.candidates.len();
            if let Some(known) = all.find(|place| is_same(chain, chooser.inner(*place), nodes)) {
                chooser.candidates[known].id = Some(id);
                chooser.candidates[known].promise = chain.promise;
            } else if chain.state == State::InUse
                && let Some(inner) = inner(chain, nodes)
            {
                chooser.add(inner, Some(id), chain.promise);
            }
        }
        let Some(ways) = &pair.ways else { return };
        let place = |number: &ChainNumber| match *number {
            DIRECT => chooser.direct(),
            number => chooser.candidates.iter().position(|candidate| {
                let chain = candidate.id.and_then(|id| self.chain(id));
                chain.is_some_and(|chain| chain.number == number)
            }),
        };
        for numbers in &ways.choices {
            let mut choice = Choice::default();
            // Without its first, nothing is left to be kept together.
            if numbers.first().is_some_and(|first| place(first).is_some()) {
                numbers
                    .iter()
                    .filter_map(place)
                    .for_each(|place| choice.add(place));
            }
            in_use.push(choice);
        }
        let choices = in_use.len();
        for &class in &ways.classes {
            in_use.push(in_use[usize::from(class)]);
        }
        in_use.drain(..choices);
    }

    /// Writes down what was chosen for a pair.
    pub(super) fn set_pair(
        &mut self,
        ends: (NodeNumber, NodeNumber),
        pair: &mut Pair,
        nodes: &[NodeNumber],
        chooser: &Chooser<'_>,
        turn: &mut Turn,
    ) {
        let Chosen { classes, choices } = &chooser.chosen;
        let mut numbers = std::mem::take(&mut turn.numbers);
        let mut used = std::mem::take(&mut turn.used);
        numbers.clear();
        used.clear();
        for place in 0..chooser.candidates.len() {
            let is_chosen = choices
                .iter()
                .any(|choice| choice.places().contains(&place));
            if !is_chosen {
                numbers.push(None);
            } else if chooser.inner(place).is_empty() {
                numbers.push(Some(DIRECT));
            } else {
                let id = self.use_chain(ends, (chooser, place), nodes, turn);
                used.extend(id);
                numbers.push(id.and_then(|id| Some(self.chain(id)?.number)));
                self.unnumbered += usize::from(id.is_none());
            }
        }
        let wanted = Wanted {
            classes,
            choices,
            numbers: &numbers,
        };
        if !wanted.is_same(pair.ways.as_ref()) {
            self.set_ways(ends.0, pair, wanted.ways(ends.1), turn);
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
        (first, last): (NodeNumber, NodeNumber),
        (chooser, place): (&Chooser<'_>, usize),
        nodes: &[NodeNumber],
        turn: &mut Turn,
    ) -> Option<u32> {
        let candidate = &chooser.candidates[place];
        if let Some(id) = candidate.id {
            let chain = self.chains[id as usize].as_mut()?;
            chain.promise = candidate.promise;
            let before = std::mem::replace(&mut chain.state, State::InUse);
            if matches!(before, State::Gone(..)) {
                chain.since = turn.version;
                turn.changed = true;
                self.count(id, turn.version, true);
            }
            return Some(id);
        }
        let inner = chooser.inner(place).iter();
        let inner = inner.map(|&node| nodes[usize::from(node)]);
        let chain = Chain {
            number: self.numbers.give()?,
            nodes: [first].into_iter().chain(inner).chain([last]).collect(),
            since: turn.version,
            state: State::InUse,
            promise: candidate.promise,
        };
        turn.changed = true;
        self.changes.given.push(numbered(&chain));
        Some(self.insert(chain, turn.version))
    }

    /// Gives a chain its place, and enters it with all its nodes.
    fn insert(&mut self, chain: Chain, version: u64) -> u32 {
        let id = self.free.pop().unwrap_or_else(|| {
            self.chains.push(None);
            u32::try_from(self.chains.len() - 1).expect("there are fewer numbers")
        });
        let sum = checksum::chain(chain.number, &chain.nodes);
        for &node in &chain.nodes {
            let part = self.nodes.entry(node).or_default();
            part.chains.push(id);
            part.add(sum, (version, id), self.horizon);
        }
        self.chains[id as usize] = Some(chain);
        id
    }

    /// Puts a chain that a store kept among those that leave.
    pub(super) fn restore(&mut self, chain: &NumberedChain, now: Duration) {
        let ends = chain.nodes.first().zip(chain.nodes.last());
        let Some((&first, &last)) = ends.filter(|_| self.numbers.take(chain.number)) else {
            return;
        };
        let second = whole_seconds(now);
        let chain = Chain {
            number: chain.number,
            nodes: chain.nodes.clone().into(),
            since: 0,
            state: State::Leaving(second),
            promise: None,
        };
        let id = self.insert(chain, 0);
        let pairs = self.pairs.entry(first).or_default();
        pairs.entry(last).or_default().chains.push(id);
        self.leaving.push_back((second, id));
    }

    fn set_ways(&mut self, from: NodeNumber, pair: &mut Pair, ways: Option<Ways>, turn: &mut Turn) {
        let sum = |ways: &Option<Ways>| ways.as_ref().map_or(0, checksum::ways);
        let part = self.nodes.entry(from).or_default();
        part.sum = part.sum.wrapping_sub(sum(&pair.ways));
        part.sum = part.sum.wrapping_add(sum(&ways));
        pair.ways = ways;
        pair.changed = turn.version;
        turn.changed = true;
    }

    /// Chains of a pair that are not used any more begin to leave.
    fn leave(&mut self, pair: &Pair, used: &[u32], turn: &Turn) {
        for &id in pair.chains.iter().filter(|id| !used.contains(id)) {
            if let Some(chain) = self.chains[id as usize].as_mut()
                && chain.state == State::InUse
            {
                chain.state = State::Leaving(turn.second);
                self.leaving.push_back((turn.second, id));
            }
        }
    }

    /// Nodes that are not in `nodes`, ascending, have no ways, and none lead to them.
    pub(super) fn leave_out(&mut self, nodes: &[NodeNumber], turn: &mut Turn) {
        let mut all = std::mem::take(&mut self.pairs);
        for (from, pairs) in &mut all {
            let is_in = nodes.binary_search(from).is_ok();
            pairs.retain(|to, pair| {
                if is_in && nodes.binary_search(to).is_ok() {
                    return true;
                }
                if pair.ways.is_some() {
                    self.set_ways(*from, pair, None, turn);
                }
                self.leave(pair, &[], turn);
                let is_old = pair.changed + VERSIONS_KEPT <= turn.version;
                let is_over = pair.chains.is_empty() && is_old;
                if is_over {
                    self.horizon = self.horizon.max(pair.changed);
                }
                !is_over
            });
        }
        all.retain(|_, pairs| !pairs.is_empty());
        self.pairs = all;
    }

    /// What left long enough ago leaves rows, and what left these gives its number back.
    pub(super) fn expire(&mut self, turn: &mut Turn) {
        let life = whole_seconds(self.settings.life);
        let is_over = |since: u32| since.saturating_add(life) <= turn.second;
        while let Some((since, id)) = self.leaving.pop_front_if(|(since, _)| is_over(*since)) {
            let chain = self.chains[id as usize].as_mut();
            let Some(chain) = chain.filter(|chain| chain.state == State::Leaving(since)) else {
                continue;
            };
            chain.state = State::Gone(turn.second, turn.version);
            self.count(id, turn.version, false);
            self.gone.push_back((turn.second, id));
            turn.changed = true;
        }
        let mut freed = Vec::new();
        while let Some((since, id)) = self.gone.pop_front_if(|(since, _)| is_over(*since)) {
            let state = self.chain(id).map(|chain| chain.state);
            if let Some(State::Gone(second, version)) = state
                && second == since
            {
                self.horizon = self.horizon.max(version);
                freed.push(id);
            }
        }
        self.free_chains(&freed);
    }

    /// Strikes chains out.
    fn free_chains(&mut self, freed: &[u32]) {
        let mut nodes = Vec::new();
        for &id in freed {
            let Some(chain) = self.chains[id as usize].take() else {
                continue;
            };
            self.numbers.take_back(chain.number);
            self.changes.freed.push(chain.number);
            self.strike(&chain, id);
            for node in &chain.nodes {
                let part = self.nodes.entry(*node).or_default();
                part.struck += 1;
                nodes.push(*node);
            }
        }
        nodes.sort_unstable();
        nodes.dedup();
        for node in nodes {
            self.tidy(node);
        }
        self.free.extend_from_slice(freed);
    }

    /// Forgets what was struck out of a node's chains, when it is many, and what nobody can ask for.
    fn tidy(&mut self, node: NodeNumber) {
        let Some(part) = self.nodes.get_mut(&node) else {
            return;
        };
        let horizon = self.horizon;
        part.recent.retain(|(version, _)| *version > horizon);
        if part.struck * 4 < part.chains.len() {
            return;
        }
        let chains = &self.chains;
        let is_there = |id: &u32| {
            let chain = chains[*id as usize].as_ref();
            chain.is_some_and(|chain| chain.nodes.contains(&node))
        };
        part.chains.retain(is_there);
        // Its place may have been given to another of this node's chains since.
        part.chains.sort_unstable();
        part.chains.dedup();
        part.struck = 0;
        if part.chains.is_empty() && part.sum == 0 {
            self.nodes.remove(&node);
        }
    }

    /// Takes a chain from its pair.
    fn strike(&mut self, chain: &Chain, id: u32) {
        let (first, last) = (chain.nodes[0], chain.nodes[chain.nodes.len() - 1]);
        let pairs = self.pairs.get_mut(&first);
        if let Some(pair) = pairs.and_then(|pairs| pairs.get_mut(&last)) {
            pair.chains.retain(|other| *other != id);
        }
    }

    /// Adds a chain to the sums of its nodes with a version, or takes it off.
    fn count(&mut self, id: u32, version: u64, is_in: bool) {
        let Some(chain) = self.chains[id as usize].as_ref() else {
            return;
        };
        let sum = checksum::chain(chain.number, &chain.nodes);
        let sum = if is_in { sum } else { sum.wrapping_neg() };
        for node in &chain.nodes {
            let part = self.nodes.entry(*node).or_default();
            part.add(sum, (version, id), self.horizon);
        }
    }

    pub(super) fn chain(&self, id: u32) -> Option<&Chain> {
        self.chains.get(id as usize)?.as_ref()
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

/// What was chosen, in numbers.
#[derive(Debug)]
struct Wanted<'a> {
    classes: &'a [u8],
    choices: &'a [Choice],
    /// By candidate.
    numbers: &'a [Option<ChainNumber>],
}

impl Wanted<'_> {
    fn numbers(&self, choice: &Choice) -> impl Iterator<Item = ChainNumber> {
        let places = choice.places().iter();
        places.filter_map(|&place| self.numbers[place])
    }

    /// Whether these are the ways that there are.
    fn is_same(&self, ways: Option<&Ways>) -> bool {
        let Some(ways) = ways else {
            let mut all = self.choices.iter().flat_map(|choice| self.numbers(choice));
            return all.next().is_none();
        };
        let mut pairs = self.choices.iter().zip(&ways.choices);
        self.choices.len() == ways.choices.len()
            && self.classes == ways.classes
            && pairs.all(|(choice, numbers)| self.numbers(choice).eq(numbers.iter().copied()))
            && ways.choices.iter().any(|choice| !choice.is_empty())
    }

    /// The ways, unless there are none in any class.
    fn ways(&self, egress: NodeNumber) -> Option<Ways> {
        let choices = self.choices.iter();
        let choices = choices.map(|choice| self.numbers(choice).collect());
        let choices: Vec<Vec<ChainNumber>> = choices.collect();
        if choices.iter().all(Vec::is_empty) {
            return None;
        }
        Some(Ways {
            egress,
            classes: self.classes.to_vec(),
            choices,
        })
    }
}

/// Whether a candidate is that chain.
fn is_same(chain: &Chain, candidate: &[u16], nodes: &[NodeNumber]) -> bool {
    let inner = &chain.nodes[1..chain.nodes.len() - 1];
    let others = candidate.iter().map(|&node| nodes[usize::from(node)]);
    inner.len() == candidate.len() && others.eq(inner.iter().copied())
}

/// The nodes between, by their places among `nodes`, if all are there.
fn inner(chain: &Chain, nodes: &[NodeNumber]) -> Option<Vec<u16>> {
    let inner = chain.nodes[1..chain.nodes.len() - 1].iter();
    let place = |node| u16::try_from(nodes.binary_search(node).ok()?).ok();
    inner.map(place).collect()
}

impl Network {
    /// Whether links and nodes fit, which planning relies on.
    pub(crate) fn is_sound(&self) -> bool {
        self.nodes.len() == self.matrix.nodes() && self.nodes.is_sorted_by(|a, b| a < b)
    }
}
