// SPDX-License-Identifier: Apache-2.0
//! Small numbers for nodes, by which everything in the RIB is counted. Pure.

use crate::id_map::IdMap;
use crate::message::NodeNumber;

/// Which node has which slot.
#[derive(Debug, Default)]
pub(super) struct Indexes {
    /// By slot; 0 where none is.
    nodes: Vec<NodeNumber>,
    of: IdMap<NodeNumber, u16>,
    /// Those in use, by their nodes' numbers.
    order: Vec<u16>,
}

impl Indexes {
    /// How many there are, used or not.
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// The node of a slot.
    pub(super) fn node(&self, index: u16) -> NodeNumber {
        self.nodes[usize::from(index)]
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
        if let Some(index) = self.of(node) {
            return index;
        }
        // Slots are used again, since the RIB has memory for the square of their number.
        let unused = self.nodes.iter().position(|node| *node == 0);
        let index = unused.unwrap_or(self.nodes.len());
        if index == self.nodes.len() {
            self.nodes.push(node);
        }
        self.nodes[index] = node;
        let index = u16::try_from(index).expect("there are fewer nodes");
        // `NO_NODE` in chains of pairs.
        assert_ne!(index, u16::MAX, "there are fewer nodes");
        self.of.insert(node, index);
        let nodes = &self.nodes;
        let place = self
            .order
            .partition_point(|other| nodes[usize::from(*other)] < node);
        self.order.insert(place, index);
        index
    }

    /// Takes back the slot of a node of which nothing is known any more.
    pub(super) fn take_back(&mut self, index: u16) {
        let node = std::mem::take(&mut self.nodes[usize::from(index)]);
        self.of.remove(&node);
        self.order.retain(|other| *other != index);
    }
}
