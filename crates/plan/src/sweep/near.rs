// SPDX-License-Identifier: Apache-2.0
//! The nodes that a link brings nearer.

use super::lengths::{BLOCK, Shape};
use super::{Slack, short};

/// A node that the link brings nearer: first node of `A`, or last of `B`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Near {
    pub(super) node: u16,
    /// Without a bound of hops, its neighbour on the chain over the link; for sources only if that
    /// serves both directions.
    pub(super) next: u16,
    /// The length up to the link's end, with the link in `A`.
    pub(super) length: i32,
}

/// Nodes that the current link brings nearer. The memory for all nodes is kept.
#[derive(Clone, Debug)]
pub(super) struct NearNodes {
    room: Vec<Near>,
    count: usize,
}

impl NearNodes {
    pub(super) fn new(shape: Shape) -> Self {
        Self {
            // One block more, for values that do not count.
            room: vec![Near::default(); shape.stride + BLOCK],
            count: 0,
        }
    }

    pub(super) fn has_any(&self) -> bool {
        self.count > 0
    }

    pub(super) fn all(&self) -> &[Near] {
        &self.room[..self.count]
    }

    pub(super) fn all_mut(&mut self) -> &mut [Near] {
        &mut self.room[..self.count]
    }

    /// The link's end itself, without a hop.
    pub(super) fn set(&mut self, node: u16, length: i32) {
        self.room[0] = Near {
            node,
            next: 0,
            length,
        };
        self.count = 1;
    }

    /// Collects the nodes whose `chains` plus a link of `length` are shorter than `compared`, with
    /// that length.
    pub(super) fn collect(&mut self, chains: &[i32], compared: &[i32], length: i32, slack: Slack) {
        self.count = 0;
        let (all, _) = chains.as_chunks::<BLOCK>();
        let (others, _) = compared.as_chunks::<BLOCK>();
        for (block, (chains, compared)) in all.iter().zip(others).enumerate() {
            // Few blocks have any, and testing a whole block at once is cheap.
            let pairs = chains.iter().zip(compared);
            let any = pairs.fold(0, |any, (chain, other)| {
                any | i32::from(chain + length < slack.off(*other))
            });
            if any > 0 {
                self.collect_block(block, (chains, compared), length, slack);
            }
        }
    }

    fn collect_block(
        &mut self,
        block: usize,
        (chains, compared): (&[i32; BLOCK], &[i32; BLOCK]),
        length: i32,
        slack: Slack,
    ) {
        let Some(room) = self.room[self.count..].first_chunk_mut::<BLOCK>() else {
            unreachable!("there is room for all");
        };
        let mut count = 0;
        // Written in any case: a branch would be mispredicted.
        for (place, (chain, other)) in chains.iter().zip(compared).enumerate() {
            // Always less than a block, which the compiler cannot know.
            room[count % BLOCK] = Near {
                node: short(block * BLOCK + place),
                next: 0,
                length: chain + length,
            };
            count += usize::from(chain + length < slack.off(*other));
        }
        self.count += count;
    }
}

/// The nodes that a link of `length` brings nearer to one of its ends, by their lengths to the
/// `near` and to the `far` end: sources are on the near side.
pub(super) fn collect_both(
    near: &[i32],
    far: &[i32],
    length: i32,
    sources: &mut NearNodes,
    targets: &mut NearNodes,
) {
    (sources.count, targets.count) = (0, 0);
    let (all, _) = near.as_chunks::<BLOCK>();
    let (others, _) = far.as_chunks::<BLOCK>();
    for (block, (near, far)) in all.iter().zip(others).enumerate() {
        let pairs = near.iter().zip(far);
        let (source, target) = pairs.fold((0, 0), |(source, target), (near, far)| {
            (
                source | i32::from(near + length < *far),
                target | i32::from(far + length < *near),
            )
        });
        if source > 0 {
            sources.collect_block(block, (near, far), length, Slack::NONE);
        }
        if target > 0 {
            targets.collect_block(block, (far, near), length, Slack::NONE);
        }
    }
    for target in targets.all_mut() {
        target.length -= length;
    }
}
