// SPDX-License-Identifier: Apache-2.0
//! The routes of a pair of nodes. There are a million pairs, so lists are flat. Pure.
//!
//! Nodes are slots here: small numbers that the RIB gives them.

use posthaste_wire::segments::SEGMENTS_MAX;

use super::rules::Promise;
use crate::route_table::CHOICES_MAX;

/// A place behind a chain's last node.
const NO_NODE: u16 = u16::MAX;
/// A place behind a choice's last chain.
const NO_CHAIN: u8 = u8::MAX;

/// Bound on the former chains of a pair: as many as a class may use.
const RECENT_MAX: usize = CHOICES_MAX;

/// An ordered pair of nodes.
#[derive(Debug, Default)]
pub(super) struct Pair {
    pub(super) routes: Option<PairRoutes>,
    /// Chains that the pair used before, the last one first: repairs may choose them again.
    pub(super) recent: Box<[PairChain]>,
    /// A bit for each node that chains of the routes pass, by [`bit`].
    pub(super) passes: u64,
    /// The version that changed the routes last; 0 if there never were any.
    pub(super) changed: u64,
}

/// The bit of a slot. Slots share bits, so a set bit may mean another node.
pub(super) fn bit(index: u16) -> u64 {
    // A Bloom filter with one hash: no false negatives, which is all that a repair needs.
    1 << (index % 64)
}

impl Pair {
    /// Replaces the routes; returns the former ones.
    pub(super) fn replace(&mut self, routes: Option<PairRoutes>) -> Option<PairRoutes> {
        let before = std::mem::replace(&mut self.routes, routes);
        let chains = || self.routes.iter().flat_map(|routes| &routes.chains);
        let inner = chains().flat_map(PairChain::inner);
        self.passes = inner.fold(0, |bits, index| bits | bit(*index));
        let is_used = |chain: &&PairChain| chains().any(|used| used.inner == chain.inner);
        let left = before.iter().flat_map(|routes| &routes.chains);
        let left = left.filter(|chain| !chain.inner().is_empty());
        let recent = left.chain(&self.recent).filter(|chain| !is_used(chain));
        self.recent = recent.take(RECENT_MAX).copied().collect();
        before
    }

    /// Forgets former chains over a node whose slot another one may get.
    pub(super) fn forget(&mut self, index: u16) {
        if self
            .recent
            .iter()
            .any(|chain| chain.inner().contains(&index))
        {
            let kept = self.recent.iter();
            let kept = kept.filter(|chain| !chain.inner().contains(&index));
            self.recent = kept.copied().collect();
        }
    }
}

/// A chain that a choice of the pair names.
#[derive(Clone, Copy, Debug)]
pub(super) struct PairChain {
    /// The nodes between the pair, up to [`NO_NODE`].
    inner: [u16; SEGMENTS_MAX],
    /// What it promised when it was chosen for its own sake.
    pub(super) promise: Option<Promise>,
}

impl PairChain {
    /// Panics if there are more than [`SEGMENTS_MAX`] nodes.
    pub(super) fn new(nodes: impl Iterator<Item = u16>, promise: Option<Promise>) -> Self {
        let mut inner = [NO_NODE; SEGMENTS_MAX];
        for (place, node) in nodes.enumerate() {
            inner[place] = node;
        }
        Self { inner, promise }
    }

    /// The nodes between the pair; none for the direct hop.
    pub(super) fn inner(&self) -> &[u16] {
        let count = self.inner.iter().position(|node| *node == NO_NODE);
        &self.inner[..count.unwrap_or(SEGMENTS_MAX)]
    }

    /// Its hops, as pairs of nodes.
    pub(super) fn hops(&self, (first, last): (u16, u16)) -> impl Iterator<Item = (u16, u16)> {
        let inner = self.inner().iter().copied();
        let mut before = first;
        inner
            .chain([last])
            .map(move |node| (std::mem::replace(&mut before, node), node))
    }
}

/// Places in a pair's chains, [`NO_CHAIN`] after the last.
pub(super) type Row = [u8; CHOICES_MAX];

/// A row of these places. Panics if there are more than [`CHOICES_MAX`].
pub(super) fn row(places: impl Iterator<Item = u8>) -> Row {
    let mut row = [NO_CHAIN; CHOICES_MAX];
    for (at, place) in places.enumerate() {
        row[at] = place;
    }
    row
}

/// The routes of a pair.
#[derive(Debug)]
pub(super) struct PairRoutes {
    pub(super) chains: Box<[PairChain]>,
    choices: Box<[Row]>,
    /// By class, which choice.
    pub(super) classes: Box<[u8]>,
}

impl PairRoutes {
    /// What was chosen, unless it is nothing in all classes.
    pub(super) fn of(chains: &[PairChain], choices: &[Row], classes: &[u8]) -> Option<Self> {
        (!chains.is_empty()).then(|| Self {
            chains: chains.into(),
            choices: choices.into(),
            classes: classes.into(),
        })
    }

    /// Whether [`PairRoutes::of`] comes to the same, whatever the promises.
    pub(super) fn is_of(&self, chains: &[PairChain], choices: &[Row], classes: &[u8]) -> bool {
        let mut pairs = self.chains.iter().zip(chains);
        *self.classes == *classes
            && *self.choices == *choices
            && self.chains.len() == chains.len()
            && pairs.all(|(kept, chain)| kept.inner == chain.inner)
    }

    /// Places of chains by choice, the best first.
    pub(super) fn choices(&self) -> impl Iterator<Item = &[u8]> {
        self.choices.iter().map(|row| {
            let count = row.iter().position(|place| *place == NO_CHAIN);
            &row[..count.unwrap_or(CHOICES_MAX)]
        })
    }

    /// Whether some class uses the hop without nodes between.
    pub(super) fn uses_direct(&self) -> bool {
        self.chains.iter().any(|chain| chain.inner().is_empty())
    }
}
