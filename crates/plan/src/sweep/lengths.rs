// SPDX-License-Identifier: Apache-2.0
//! The lengths of the shortest chains, as the sweep compares them.

use super::{ABSENT, Slack};

/// Rows are padded to blocks of this many nodes, which are compared at once.
pub(super) const BLOCK: usize = 16;

/// The memory layout of matrices, and the slack of comparisons.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) nodes: usize,
    /// Nodes in a padded row.
    pub(super) stride: usize,
    pub(super) slack: Slack,
}

impl Shape {
    pub(super) fn new(nodes: usize, slack: Slack) -> Self {
        Self {
            nodes,
            stride: nodes.next_multiple_of(BLOCK),
            slack,
        }
    }
}

/// A matrix of lengths.
#[derive(Debug)]
pub(super) struct Lengths {
    stride: usize,
    all: Vec<i32>,
}

impl Lengths {
    pub(super) fn new(shape: Shape) -> Self {
        let mut lengths = Self {
            stride: shape.stride,
            // The padding of rows as well: nothing reaches it sooner over a link.
            all: vec![ABSENT; shape.nodes * shape.stride],
        };
        for node in 0..shape.nodes {
            lengths.set(node, node, 0);
        }
        lengths
    }

    pub(super) fn set(&mut self, row: usize, place: usize, length: i32) {
        self.all[row * self.stride + place] = length;
    }

    /// The lengths from one node, or to it.
    pub(super) fn row(&self, row: usize) -> &[i32] {
        &self.all[row * self.stride..][..self.stride]
    }

    pub(super) fn row_mut(&mut self, row: usize) -> &mut [i32] {
        &mut self.all[row * self.stride..][..self.stride]
    }
}
