// SPDX-License-Identifier: Apache-2.0
//! Small numbers for nodes, by which everything in the book is counted. Pure.

use crate::message::NodeNumber;
use crate::numbered::Numbered;

/// Which node has which slot.
#[derive(Debug, Default)]
pub(super) struct Slots {
    /// By slot; 0 where none is.
    nodes: Vec<NodeNumber>,
    of: Numbered<NodeNumber, u16>,
    /// Those in use, by their nodes' numbers.
    order: Vec<u16>,
}

impl Slots {
    /// How many there are, used or not.
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// The node of a slot.
    pub(super) fn node(&self, slot: u16) -> NodeNumber {
        self.nodes[usize::from(slot)]
    }

    /// The slot of a node, if it has one.
    pub(super) fn of(&self, node: NodeNumber) -> Option<u16> {
        self.of.get(&node).copied()
    }

    /// Those in use, ascending by the numbers of their nodes.
    pub(super) fn order(&self) -> &[u16] {
        &self.order
    }

    /// The slot of a node, a new one if it has none. Panics if there are 65,535 nodes.
    pub(super) fn give(&mut self, node: NodeNumber) -> u16 {
        if let Some(slot) = self.of(node) {
            return slot;
        }
        let unused = self.nodes.iter().position(|node| *node == 0);
        let slot = unused.unwrap_or(self.nodes.len());
        if slot == self.nodes.len() {
            self.nodes.push(node);
        }
        self.nodes[slot] = node;
        let slot = u16::try_from(slot).expect("there are fewer nodes");
        assert_ne!(slot, u16::MAX, "there are fewer nodes");
        self.of.insert(node, slot);
        let nodes = &self.nodes;
        let place = self
            .order
            .partition_point(|other| nodes[usize::from(*other)] < node);
        self.order.insert(place, slot);
        slot
    }

    /// Takes back the slot of a node of which nothing is known any more.
    pub(super) fn take_back(&mut self, slot: u16) {
        let node = std::mem::take(&mut self.nodes[usize::from(slot)]);
        self.of.remove(&node);
        self.order.retain(|other| *other != slot);
    }
}
