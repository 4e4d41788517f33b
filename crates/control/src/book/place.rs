// SPDX-License-Identifier: Apache-2.0
//! Changing the book: what is chosen is written down, what is not used any more leaves.

use std::time::Duration;

use super::choose::{Candidate, Chooser, Chosen};
use super::{Book, Chain, Network, Pair, State, numbered, whole_seconds};
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
}

impl Book {
    /// Tells the chooser which candidates have numbers, and what they promised; adds those in use that
    /// the table does not have. Returns by class which candidate was first.
    pub(super) fn offer(
        &self,
        pair: &Pair,
        nodes: &[NodeNumber],
        chooser: &mut Chooser<'_>,
    ) -> Vec<Option<usize>> {
        let Some(ways) = &pair.ways else {
            self.match_all(pair, nodes, chooser);
            return Vec::new();
        };
        self.match_all(pair, nodes, chooser);
        let first = |choice: &Vec<ChainNumber>| match *choice.first()? {
            DIRECT => chooser.direct(),
            number => chooser.candidates.iter().position(|candidate| {
                let chain = candidate.id.and_then(|id| self.chain(id));
                chain.is_some_and(|chain| chain.number == number)
            }),
        };
        let by_choice: Vec<Option<usize>> = ways.choices.iter().map(first).collect();
        let classes = ways.classes.iter();
        classes
            .map(|&class| by_choice[usize::from(class)])
            .collect()
    }

    fn match_all(&self, pair: &Pair, nodes: &[NodeNumber], chooser: &mut Chooser<'_>) {
        for &id in &pair.chains {
            let Some(chain) = self.chain(id) else {
                continue;
            };
            let mut all = chooser.candidates.iter_mut();
            if let Some(known) = all.find(|candidate| is_same(chain, candidate, nodes)) {
                known.id = Some(id);
                known.promise = chain.promise;
            } else if chain.state == State::InUse
                && let Some(inner) = inner(chain, nodes)
            {
                chooser.add(inner, Some(id), chain.promise);
            }
        }
    }

    /// Writes down what was chosen for a pair.
    pub(super) fn set_pair(
        &mut self,
        ends: (NodeNumber, NodeNumber),
        pair: &mut Pair,
        nodes: &[NodeNumber],
        (chooser, chosen): (&Chooser<'_>, &Chosen),
        turn: &mut Turn,
    ) {
        let mut numbers: Vec<Option<ChainNumber>> = vec![None; chooser.candidates.len()];
        let mut places: Vec<usize> = chosen.choices.iter().flatten().copied().collect();
        places.sort_unstable();
        places.dedup();
        let mut used = Vec::new();
        for place in places {
            let candidate = &chooser.candidates[place];
            if candidate.inner.is_empty() {
                numbers[place] = Some(DIRECT);
                continue;
            }
            let id = self.use_chain(ends, candidate, nodes, turn);
            used.extend(id);
            numbers[place] = id.and_then(|id| Some(self.chain(id)?.number));
            self.unnumbered += usize::from(id.is_none());
        }
        let ways = ways(ends.1, chosen, &numbers);
        self.set_ways(ends.0, pair, ways, turn);
        self.leave(pair, &used, turn);
        for id in used {
            if !pair.chains.contains(&id) {
                pair.chains.push(id);
            }
        }
    }

    /// The chain of a candidate, with a number, in use from now on; nothing if no number is free.
    fn use_chain(
        &mut self,
        (first, last): (NodeNumber, NodeNumber),
        candidate: &Candidate,
        nodes: &[NodeNumber],
        turn: &mut Turn,
    ) -> Option<u32> {
        if let Some(id) = candidate.id {
            let chain = self.chains[id as usize].as_mut()?;
            chain.promise = candidate.promise;
            let before = std::mem::replace(&mut chain.state, State::InUse);
            if matches!(before, State::Gone(..)) {
                chain.since = turn.version;
                turn.changed = true;
                self.count(id, u64::wrapping_add);
            }
            return Some(id);
        }
        let inner = candidate.inner.iter().map(|&node| nodes[usize::from(node)]);
        let chain = Chain {
            number: self.numbers.give()?,
            nodes: [first].into_iter().chain(inner).chain([last]).collect(),
            since: turn.version,
            state: State::InUse,
            promise: candidate.promise,
        };
        turn.changed = true;
        self.changes.given.push(numbered(&chain));
        Some(self.insert(chain))
    }

    /// Gives a chain its place, and enters it with all its nodes.
    fn insert(&mut self, chain: Chain) -> u32 {
        let id = self.free.pop().unwrap_or_else(|| {
            self.chains.push(None);
            u32::try_from(self.chains.len() - 1).expect("there are fewer numbers")
        });
        for &node in &chain.nodes {
            self.nodes.entry(node).or_default().chains.push(id);
        }
        self.chains[id as usize] = Some(chain);
        self.count(id, u64::wrapping_add);
        id
    }

    /// Puts a chain that a store kept among those that leave.
    pub(super) fn restore(&mut self, chain: &NumberedChain, now: Duration) {
        let ends = chain.nodes.first().zip(chain.nodes.last());
        let Some((&first, &last)) = ends.filter(|_| self.numbers.take(chain.number)) else {
            return;
        };
        let second = whole_seconds(now);
        let id = self.insert(Chain {
            number: chain.number,
            nodes: chain.nodes.clone().into(),
            since: 0,
            state: State::Leaving(second),
            promise: None,
        });
        let pairs = self.pairs.entry(first).or_default();
        pairs.entry(last).or_default().chains.push(id);
        self.leaving.push_back((second, id));
    }

    fn set_ways(&mut self, from: NodeNumber, pair: &mut Pair, ways: Option<Ways>, turn: &mut Turn) {
        if pair.ways == ways {
            return;
        }
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
                self.set_ways(*from, pair, None, turn);
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
            self.count(id, u64::wrapping_sub);
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
            nodes.extend_from_slice(&chain.nodes);
        }
        nodes.sort_unstable();
        nodes.dedup();
        for node in nodes {
            if let Some(part) = self.nodes.get_mut(&node) {
                let chains = &self.chains;
                part.chains.retain(|id| chains[*id as usize].is_some());
                if part.chains.is_empty() && part.sum == 0 {
                    self.nodes.remove(&node);
                }
            }
        }
        self.free.extend_from_slice(freed);
    }

    /// Takes a chain from its pair.
    fn strike(&mut self, chain: &Chain, id: u32) {
        let (first, last) = (chain.nodes[0], chain.nodes[chain.nodes.len() - 1]);
        let pairs = self.pairs.get_mut(&first);
        if let Some(pair) = pairs.and_then(|pairs| pairs.get_mut(&last)) {
            pair.chains.retain(|other| *other != id);
        }
    }

    /// Adds a chain to the sums of its nodes, or takes it off.
    fn count(&mut self, id: u32, by: fn(u64, u64) -> u64) {
        let Some(chain) = self.chains[id as usize].as_ref() else {
            return;
        };
        let sum = checksum::chain(chain.number, &chain.nodes);
        for node in &chain.nodes {
            let part = self.nodes.entry(*node).or_default();
            part.sum = by(part.sum, sum);
        }
    }

    pub(super) fn chain(&self, id: u32) -> Option<&Chain> {
        self.chains.get(id as usize)?.as_ref()
    }
}

/// The ways in numbers; nothing if there are none in any class.
fn ways(egress: NodeNumber, chosen: &Chosen, numbers: &[Option<ChainNumber>]) -> Option<Ways> {
    let numbered = |choice: &Vec<usize>| -> Vec<ChainNumber> {
        choice.iter().filter_map(|&place| numbers[place]).collect()
    };
    let choices: Vec<Vec<ChainNumber>> = chosen.choices.iter().map(numbered).collect();
    if choices.iter().all(Vec::is_empty) {
        return None;
    }
    Some(Ways {
        egress,
        classes: chosen.classes.clone(),
        choices,
    })
}

/// Whether a candidate is that chain.
fn is_same(chain: &Chain, candidate: &Candidate, nodes: &[NodeNumber]) -> bool {
    let inner = &chain.nodes[1..chain.nodes.len() - 1];
    let others = candidate.inner.iter().map(|&node| nodes[usize::from(node)]);
    inner.len() == candidate.inner.len() && others.eq(inner.iter().copied())
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
