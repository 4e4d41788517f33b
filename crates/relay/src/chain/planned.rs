// SPDX-License-Identifier: Apache-2.0
//! The part of a plan for flows that begin here: the egresses of their destinations, and the routes
//! there by transfer size.

use super::{NextHop, Prefixes};
use crate::flow::Flow;

/// The ways from here to one egress.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Toward {
    /// For each size class, which of `choices`.
    pub classes: Box<[u8]>,
    /// Ways in order of preference, without the direct one, which comes last. None at all is
    /// the direct one.
    pub choices: Box<[Box<[NextHop]>]>,
}

/// A plan, as far as it is for flows that begin here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Planned {
    /// Which of `toward` is for a destination.
    pub egresses: Prefixes,
    /// By egress.
    pub toward: Vec<Toward>,
    /// The largest transfer of each size class, in bytes, ascending. What is larger than the
    /// last is sorted there.
    pub sizes: Box<[u64]>,
    /// How many bytes transfers to a destination had of late, where that was learned.
    pub learned: Prefixes,
    /// The assumed size of a transfer without other information, in bytes.
    pub usual_bytes: u64,
}

impl Planned {
    /// The routes for a flow, the best first, without the direct one. `bytes` is its size, if
    /// configured. Allocates nothing.
    pub fn next_hops(&self, flow: &Flow, bytes: Option<u32>) -> &[NextHop] {
        let (_, server) = flow.addresses();
        let toward = self.egresses.get(server);
        let toward = toward.and_then(|egress| self.toward.get(egress as usize));
        let Some(toward) = toward else { return &[] };
        let class = self.class(self.bytes(server, bytes));
        let choice = toward.classes.get(class);
        let choice = choice.and_then(|choice| toward.choices.get(usize::from(*choice)));
        choice.map_or(&[], |next_hops| next_hops)
    }

    /// The expected size of a transfer to an address, in bytes: the configured one, else what was
    /// learned, else what is usual.
    pub fn bytes(&self, server: [u8; 16], configured: Option<u32>) -> u64 {
        let expected = configured.or_else(|| self.learned.get(server));
        expected.map_or(self.usual_bytes, u64::from)
    }

    /// The size class of a transfer of so many bytes.
    pub fn class(&self, bytes: u64) -> usize {
        let class = self.sizes.partition_point(|largest| *largest < bytes);
        class.min(self.sizes.len().saturating_sub(1))
    }
}
