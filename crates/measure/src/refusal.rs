// SPDX-License-Identifier: Apache-2.0
//! Rejected packets, and their counts.

use std::array;
use std::sync::atomic::{AtomicU64, Ordering};

/// Why a packet of STAMP was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Not a STAMP packet.
    Malformed,
    /// It has no authentication tag, and its source must send one.
    Unauthorized,
    /// Its authentication tag is invalid.
    AuthTag,
    /// A probe that is too old, or the clocks of the two nodes differ.
    Stale,
    /// It comes from a reflector's port: the answer might be answered.
    Port,
    /// Its source, or all sources together, exceeded the rate limit.
    Limited,
    /// It answers no probe to that address, or one that has expired.
    Unexpected,
    /// Its times are impossible: it was reflected before it arrived, or stayed longer than the
    /// round trip.
    Implausible,
}

impl Refusal {
    /// Every reason, in the order of its discriminant.
    pub(crate) const ALL: [Self; 8] = [
        Self::Malformed,
        Self::Unauthorized,
        Self::AuthTag,
        Self::Stale,
        Self::Port,
        Self::Limited,
        Self::Unexpected,
        Self::Implausible,
    ];

    /// The metric label.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::Unauthorized => "unauthorized",
            Self::AuthTag => "auth",
            Self::Stale => "stale",
            Self::Port => "port",
            Self::Limited => "limited",
            Self::Unexpected => "unexpected",
            Self::Implausible => "implausible",
        }
    }
}

/// Counts of rejected and answered packets.
#[derive(Debug)]
pub(super) struct Counts {
    refused: [AtomicU64; Refusal::ALL.len()],
    reflected: AtomicU64,
}

impl Counts {
    pub(super) fn new() -> Self {
        Self {
            refused: array::from_fn(|_| AtomicU64::new(0)),
            reflected: AtomicU64::new(0),
        }
    }

    pub(super) fn on_refused(&self, refusal: Refusal) {
        // Relaxed: the counts are only shown, and order nothing.
        self.refused[refusal as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn on_reflected(&self) {
        self.reflected.fetch_add(1, Ordering::Relaxed);
    }

    /// Rejected packets by reason.
    pub(super) fn refused(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Refusal::ALL.into_iter().map(|refusal| {
            let count = self.refused[refusal as usize].load(Ordering::Relaxed);
            (refusal.label(), count)
        })
    }

    /// Probes that were answered.
    pub(super) fn reflected(&self) -> u64 {
        self.reflected.load(Ordering::Relaxed)
    }
}
