// SPDX-License-Identifier: Apache-2.0
//! What both ends add up to see that they mean the same rows. It finds mistakes and gaps, not forgers:
//! those are kept out by the stream.
//!
//! Every chain and every list of ways has a sum of its own, and they are added modulo 2^64. So their
//! order does not matter, and whoever changes one need not look at the others.

use crate::message::{NodeNumber, NumberedChain, PlanVersion, Routes};

/// What the sums of a chain and of ways begin with, so that one is never taken for the other.
const CHAIN: u64 = 1;
const WAYS: u64 = 2;
const WHOLE: u64 = 3;

/// The sum of a chain.
pub(crate) fn chain(number: u32, nodes: impl IntoIterator<Item = NodeNumber>) -> u64 {
    over(over(CHAIN, [number.into()]), nodes)
}

/// The same, of one as it is sent.
pub(crate) fn numbered(numbered: &NumberedChain) -> u64 {
    chain(numbered.number, numbered.nodes.iter().copied())
}

/// The sum of the ways to an egress.
pub(crate) fn routes(routes: &Routes) -> u64 {
    let choices = routes.choices.iter().map(Vec::as_slice);
    routes_by(routes.egress, &routes.classes, choices)
}

/// The same, of their parts.
pub(crate) fn routes_by<'a>(
    egress: NodeNumber,
    classes: &[u8],
    choices: impl Iterator<Item = &'a [u32]>,
) -> u64 {
    let mut sum = over(WAYS, [egress, length(classes.len())]);
    sum = over(sum, classes.iter().map(|&class| class.into()));
    for choice in choices {
        sum = over(sum, [length(choice.len())]);
        sum = over(sum, choice.iter().map(|&number| number.into()));
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
fn mix(word: u64) -> u64 {
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

    /// The example of `docs/protocol.md`.
    #[test]
    fn checksums_as_documented() {
        let chain = chain(70_000, [1, 2, 3]);
        assert_eq!(chain, 0x88ef_2bcf_a1cf_23c1);
        let routes = routes(&Routes {
            egress: 3,
            classes: vec![0, 1],
            choices: vec![vec![0], vec![70_000, 0]],
        });
        assert_eq!(routes, 0xb431_fbc8_4072_43cb);
        let plan_version = PlanVersion {
            epoch: 1,
            version: 5,
        };
        let update = whole(
            plan_version,
            &[15_000, 450_000],
            &[0],
            chain.wrapping_add(routes),
        );
        assert_eq!(update, 0x797b_bee3_20d3_4792);
    }

    #[test]
    fn what_differs_has_another_sum() {
        let nodes = [1, 2, 3];
        assert_ne!(chain(1, nodes), chain(2, nodes));
        assert_ne!(chain(1, nodes), chain(1, [1, 3, 2]));
        assert_ne!(chain(1, [1, 2]), chain(1, [1, 2, 0]));
        let one = Routes {
            egress: 2,
            classes: vec![0, 1],
            choices: vec![vec![7], vec![8, 9]],
        };
        let mut other = one.clone();
        other.choices = vec![vec![7, 8], vec![9]];
        assert_ne!(routes(&one), routes(&other));
        other = one.clone();
        other.classes = vec![1, 0];
        assert_ne!(routes(&one), routes(&other));
        let plan_version = PlanVersion::default();
        assert_ne!(
            whole(plan_version, &[1], &[], 0),
            whole(plan_version, &[], &[1], 0)
        );
    }
}
