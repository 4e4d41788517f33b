// SPDX-License-Identifier: Apache-2.0
//! The order in which nodes are swept: nodes near each other get places near each other.
//!
//! Nodes are split in halves recursively: by which of two distant nodes they are nearer to. The
//! order affects speed only.

use super::lengths::BLOCK;
use super::short;

/// The nodes by their places. `length` is that of the link between two.
pub(super) fn order(count: usize, length: impl Fn(usize, usize) -> i32) -> Vec<u16> {
    let length = |one: u16, other: u16| {
        let (one, other) = (usize::from(one), usize::from(other));
        if one == other { 0 } else { length(one, other) }
    };
    let mut nodes: Vec<u16> = (0..count).map(short).collect();
    let mut parts = vec![&mut nodes[..]];
    while let Some(part) = parts.pop() {
        // A block is compared at once: the order within it saves nothing.
        if part.len() <= BLOCK {
            continue;
        }
        // Twice from any node: two ends that are far apart, without a look at all pairs.
        let farthest = |from: u16| part.iter().max_by_key(|node| length(from, **node));
        let one = farthest(part[0]).copied().unwrap_or(part[0]);
        let other = farthest(one).copied().unwrap_or(one);
        part.sort_by_key(|&node| length(one, node) - length(other, node));
        // Whole blocks, so that no block has nodes of two distant parts.
        let half = (part.len() / 2).next_multiple_of(BLOCK);
        let (near_one, near_other) = part.split_at_mut(half);
        parts.extend([near_one, near_other]);
    }
    nodes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_near_nodes() {
        // Four clusters on a line, with consecutive nodes in different ones.
        let heap = |node: usize| node % 4;
        let length = |one: usize, other: usize| {
            let (one, other) = (heap(one) * 1000 + one, heap(other) * 1000 + other);
            i32::try_from(one.abs_diff(other)).unwrap()
        };
        let nodes = order(4 * BLOCK, length);
        for block in nodes.chunks(BLOCK) {
            let first = heap(block[0].into());
            assert!(block.iter().all(|node| heap((*node).into()) == first));
        }
        let mut sorted = nodes;
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq((0..).take(4 * BLOCK)));
    }
}
