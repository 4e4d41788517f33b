// SPDX-License-Identifier: Apache-2.0
//! What both ends add up to check that they hold the same rows. It finds mistakes and gaps, not forgers:
//! those are kept out by the stream.
//!
//! The routes to each egress have a sum of their own, and the sums are added modulo 2^64. So their order
//! does not matter, and a change of one needs no look at the others.

use crate::message::{NodeNumber, PlanVersion, Routes};

/// What the sums of routes and of rows begin with, so that one is never taken for the other.
const ROUTES: u64 = 1;
const WHOLE: u64 = 2;

/// The sum of the routes to an egress.
pub(crate) fn routes(routes: &Routes) -> u64 {
    let chains = routes.chains.iter();
    let chains = chains.map(|nodes| (nodes.len(), nodes.iter().copied()));
    let choices = routes.choices.iter().map(Vec::as_slice);
    routes_by(routes.egress, &routes.classes, chains, choices)
}

/// The same, of their parts: each chain is a count and its nodes.
pub(crate) fn routes_by<'a>(
    egress: NodeNumber,
    classes: &[u8],
    chains: impl Iterator<Item = (usize, impl Iterator<Item = NodeNumber>)>,
    choices: impl Iterator<Item = &'a [u8]>,
) -> u64 {
    let mut sum = over(ROUTES, [egress, length(classes.len())]);
    sum = over(sum, classes.iter().map(|&class| class.into()));
    for (count, nodes) in chains {
        // Counts separate the lists: moved from one chain to the next, a node changes the sum.
        sum = over(over(sum, [length(count)]), nodes);
    }
    for choice in choices {
        sum = over(sum, [length(choice.len())]);
        sum = over(sum, choice.iter().map(|&place| place.into()));
    }
    sum
}

/// The checksum of rows: of their stamp, their classes and `parts`, the sums added up.
pub(crate) fn whole(
    plan_version: PlanVersion,
    sizes: &[u64],
    access_us: &[u32],
    parts: u64,
) -> u64 {
    let mut sum = over(
        WHOLE,
        [
            plan_version.epoch,
            plan_version.version,
            length(sizes.len()),
        ],
    );
    sum = over(sum, sizes.iter().copied());
    sum = over(sum, access_us.iter().map(|&us| us.into()));
    over(sum, [parts])
}

fn over(start: u64, words: impl IntoIterator<Item = u64>) -> u64 {
    words.into_iter().fold(start, |sum, word| mix(sum ^ word))
}

/// The step of SplitMix64: every bit of the result depends on every bit.
pub(crate) fn mix(word: u64) -> u64 {
    let mut mixed = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

fn length(of: usize) -> u64 {
    of as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Routes {
        Routes {
            egress: 3,
            chains: vec![vec![], vec![2]],
            choices: vec![vec![0], vec![1, 0]],
            classes: vec![0, 1],
        }
    }

    /// The example of `docs/protocol.md`.
    #[test]
    fn checksums_as_documented() {
        let routes = routes(&example());
        assert_eq!(routes, 0xae98_761a_3ec9_942d);
        let plan_version = PlanVersion {
            epoch: 1,
            version: 5,
        };
        let update = whole(plan_version, &[15_000, 450_000], &[0], routes);
        assert_eq!(update, 0xb672_9c80_6db6_3135);
    }

    #[test]
    fn every_part_counts() {
        let changes: [fn(&mut Routes); 5] = [
            |routes| routes.egress = 4,
            |routes| routes.chains[1] = vec![4],
            |routes| routes.chains = vec![vec![2], vec![]],
            |routes| routes.choices = vec![vec![0, 1], vec![0]],
            |routes| routes.classes = vec![1, 0],
        ];
        for change in changes {
            let mut changed = example();
            change(&mut changed);
            assert_ne!(routes(&changed), routes(&example()), "{changed:?}");
        }
        let plan_version = PlanVersion::default();
        assert_ne!(
            whole(plan_version, &[1], &[], 0),
            whole(plan_version, &[], &[1], 0)
        );
    }
}
