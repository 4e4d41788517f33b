// SPDX-License-Identifier: Apache-2.0
//! What a node makes of what its own relays observed. Pure.
//!
//! A node that has a destination because it is the nearest to it need not be on the way there from
//! everywhere. So flows go by it only where this node has found itself how far the destination is, and
//! only if they gain by it: until then they go directly, which is how it is found.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::time::Duration;

use posthaste_control::follower::Follower;
use posthaste_control::message::{LinkState, Prefix};
use posthaste_plan::Model;
use posthaste_plan::matrix::Link;

use crate::destinations::Destinations;

/// Flows go by another node when they take so many parts of a hundred less.
const MARGIN_PERCENT: u64 = 10;

/// What flows that begin from now on go by.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Observations {
    /// The usual size of transfers to destinations, in bytes, in the order of prefixes.
    pub(super) sizes: Vec<(Prefix, u32)>,
    /// Of prefixes that another node has for being the nearest, the size classes whose flows go by
    /// it: a bit for each, the first is bit 0.
    pub(super) by_egress: HashMap<Prefix, u64>,
}

impl Observations {
    /// With the plan that is followed, and what is known now.
    pub(super) fn of(destinations: &mut Destinations, follower: &Follower, now: Duration) -> Self {
        let sizes = destinations.sizes(now);
        let classes = follower.plan().map_or(&[][..], |plan| plan.sizes());
        let measured = follower.egresses().iter().filter_map(|egress| {
            let there_us = egress.rtt_us?;
            let own_us = destinations.round_trip(&egress.prefix, now)?;
            let Some(LinkState::Up { rtt_us, .. }) = follower.link(egress.node) else {
                return None;
            };
            let gaining = gaining((rtt_us, there_us), own_us, classes);
            (gaining > 0).then_some((egress.prefix, gaining))
        });
        Self {
            by_egress: measured.collect(),
            sizes,
        }
    }
}

/// For which of the size classes transfers gain by going over two hops, a warm one to another node and
/// one from there, instead of one of `own_us`: a bit for each. All are round trips in microseconds.
fn gaining(hops_us: (u32, u32), own_us: u32, classes: &[u64]) -> u64 {
    let model = Model::default();
    let to_egress = Link {
        // It is open. With what it begins follows from the rate that it is taken to bear.
        window: NonZeroU32::new(model.initial_window),
        ..Link::of_nodes(hops_us.0)
    };
    let hops = [to_egress, Link::of_rtt(hops_us.1)];
    let direct = [Link::of_rtt(own_us)];
    let gains = |bytes: u64| {
        let by_egress = model.transfer_us(hops.iter(), 0, bytes);
        let direct = model.transfer_us(direct.iter(), 0, bytes);
        by_egress * 100 <= direct * (100 - MARGIN_PERCENT)
    };
    // Size classes beyond the bits go directly.
    let bits = (0..u64::BITS)
        .zip(classes)
        .map(|(bit, bytes)| u64::from(gains(*bytes)) << bit);
    bits.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLASSES: [u64; 3] = [14_480, 448_880, 14_813_040];

    fn ms(hops: (u32, u32), own: u32) -> u64 {
        gaining((hops.0 * 1000, hops.1 * 1000), own * 1000, &CLASSES)
    }

    // promise: E4
    #[test]
    fn gain_of_nodes_on_path() {
        assert_eq!(ms((80, 2), 81), 0b111);
        assert_eq!(ms((100, 49), 50), 0);
        assert_eq!(ms((1, 50), 50), 0);
        assert_eq!(ms((60, 60), 100), 0b111);
    }

    #[test]
    fn near_destination_no_gain() {
        assert_eq!(ms((30, 1), 3), 0);
        assert_eq!(gaining((30_000, 1000), 0, &CLASSES), 0);
        assert_eq!(gaining((30_000, 1000), 40_000, &[]), 0);
    }

    #[test]
    fn large_transfers_bear_a_detour() {
        let small_and_large = ms((100, 60), 100);
        assert_eq!(small_and_large & 1, 0, "{small_and_large:b}");
        assert_eq!(small_and_large >> 2, 1, "{small_and_large:b}");
    }
}
