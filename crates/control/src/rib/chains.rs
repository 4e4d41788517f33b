// SPDX-License-Identifier: Apache-2.0
//! The chains that have numbers: millions of them, so each has 32 bytes and two for each node. Pure.
//!
//! Nodes are slots here: small numbers that the RIB gives them. A chain's place is kept for as long as
//! its number is not free.

use super::rules::Promise;
use crate::message::ChainNumber;

/// A place behind a chain's last node.
const NONE: u16 = u16::MAX;

/// Where a chain is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Nothing is at this place.
    Free,
    InUse,
    /// In rows, and not used any more.
    Leaving,
    /// Not in rows.
    Removed,
}

/// A chain that has a number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chain {
    pub(super) number: ChainNumber,
    pub(super) state: State,
    /// Since when it is leaving or gone.
    pub(super) second: u32,
    /// The version with which it came into rows, or went from them.
    pub(super) version: u64,
    pub(super) promise: Option<Promise>,
}

/// All of them, by place.
#[derive(Debug)]
pub(super) struct Chains {
    all: Vec<Chain>,
    /// Each chain's, up to [`NONE`].
    nodes: Vec<u16>,
    /// How many nodes there is room for.
    room: usize,
    free: Vec<u32>,
}

impl Chains {
    /// None, and room for so many nodes in each.
    pub(super) fn new(room: usize) -> Self {
        Self {
            all: Vec::new(),
            nodes: Vec::new(),
            room: room.max(2),
            free: Vec::new(),
        }
    }

    pub(super) fn count(&self) -> usize {
        self.all.len() - self.free.len()
    }

    /// The chain at a place, if one is there.
    pub(super) fn get(&self, id: u32) -> Option<&Chain> {
        let chain = self.all.get(id as usize);
        chain.filter(|chain| chain.state != State::Free)
    }

    pub(super) fn get_mut(&mut self, id: u32) -> Option<&mut Chain> {
        let chain = self.all.get_mut(id as usize);
        chain.filter(|chain| chain.state != State::Free)
    }

    /// The nodes of the chain at a place, its ends included.
    pub(super) fn nodes(&self, id: u32) -> &[u16] {
        let nodes = &self.nodes[id as usize * self.room..][..self.room];
        // Few have more nodes than fit a cache line, so there is nothing to search.
        let count = nodes.iter().position(|node| *node == NONE);
        &nodes[..count.unwrap_or(self.room)]
    }

    /// All that are there.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Chain)> {
        let all = (0..).zip(&self.all);
        all.filter(|(_, chain)| chain.state != State::Free)
    }

    /// Gives a chain its place. Panics if it has more nodes than there is room for.
    pub(super) fn add(&mut self, chain: Chain, nodes: impl Iterator<Item = u16>) -> u32 {
        let id = self.free.pop().unwrap_or_else(|| {
            self.all.push(chain);
            self.nodes.resize(self.all.len() * self.room, NONE);
            u32::try_from(self.all.len() - 1).expect("there are fewer numbers")
        });
        self.all[id as usize] = chain;
        let places = &mut self.nodes[id as usize * self.room..][..self.room];
        places.fill(NONE);
        for (count, node) in nodes.enumerate() {
            places[count] = node;
        }
        id
    }

    /// Nothing is at this place any more. Its nodes can be read until another has it.
    pub(super) fn remove(&mut self, id: u32) {
        self.all[id as usize].state = State::Free;
        self.free.push(id);
    }
}
