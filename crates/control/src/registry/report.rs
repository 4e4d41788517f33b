// SPDX-License-Identifier: Apache-2.0
//! What is believed of a link.

use std::num::NonZeroU64;

use crate::message::LinkState;

/// The longest round trip that is believed, in microseconds.
pub(super) const RTT_MAX_US: u32 = 30_000_000;

/// Round trips that differ by more than this factor, and by more than [`DISPUTE_US`], are not of the same
/// link.
const DISPUTE_FACTOR: u32 = 2;

/// See there, in microseconds.
const DISPUTE_US: u32 = 10_000;

/// What is longer by a quarter, but by less than this, is not much worse; in microseconds.
const WORSE_US: u32 = 5_000;

/// Nor is what loses so much more, in a million.
const WORSE_PPM: u32 = 20_000;

/// Reports that were not believed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RejectedReports {
    /// Links to nodes that are not on the list, or of a node to itself.
    pub unauthorized: u64,
    /// Links with times, losses or rates that there cannot be.
    pub impossible: u64,
    /// Links whose ends report too different figures, now.
    pub disputed: u64,
}

/// What the two ends of a link come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Agreed {
    /// The link, if it is there.
    pub link: Option<posthaste_plan::Link>,
    /// The ends differ so much that one of them must be wrong.
    pub is_disputed: bool,
}

impl Agreed {
    pub(super) fn of(there: LinkState, back: LinkState) -> Self {
        let (
            LinkState::Up {
                rtt_us: one,
                loss_ppm: lost_there,
                rate: rate_there,
            },
            LinkState::Up {
                rtt_us: other,
                loss_ppm: lost_back,
                rate: rate_back,
            },
        ) = (there, back)
        else {
            return Self::default();
        };
        let (short, long) = (one.min(other), one.max(other));
        // Both conditions: a factor of two is noise where round trips are short.
        let is_disputed = long > short.saturating_mul(DISPUTE_FACTOR) && long - short > DISPUTE_US;
        // The lower rate and the higher loss, as with the round trip: a lie makes a node's own
        // links worse.
        let rate = [rate_there, rate_back].into_iter().flatten().min();
        let link = posthaste_plan::Link {
            loss_ppm: lost_there.max(lost_back).unwrap_or(0),
            rate: rate.and_then(|rate| NonZeroU64::new(rate.saturating_mul(8))),
            // An end that reports less than the other measures would draw chains to itself.
            ..posthaste_plan::Link::of_nodes(long)
        };
        Self {
            link: Some(link),
            is_disputed,
        }
    }
}

/// Whether a link has become so much longer, or loses so much more, that chains over it may have to give
/// way at once. One that was not there has not become worse, and one that is no more is dead.
pub(super) fn is_much_worse(before: Agreed, after: Agreed) -> bool {
    let Some((before, after)) = before.link.zip(after.link) else {
        return false;
    };
    let longer = after.rtt_us.saturating_sub(before.rtt_us);
    let lossier = after.loss_ppm.saturating_sub(before.loss_ppm);
    // Smaller changes wait for the next plan: links vary, and each repair looks at all pairs.
    longer > (before.rtt_us / 4).max(WORSE_US) || lossier > WORSE_PPM
}

/// A state as it is believed, if it can be.
pub(super) fn possible(state: LinkState) -> Option<LinkState> {
    let is_possible = match state {
        LinkState::Unmeasured | LinkState::Dead => true,
        LinkState::Up {
            rtt_us,
            loss_ppm,
            rate,
        } => {
            (1..=RTT_MAX_US).contains(&rtt_us)
                && loss_ppm.is_none_or(|ppm| ppm <= 1_000_000)
                && rate != Some(0)
        }
    };
    is_possible.then_some(state)
}
