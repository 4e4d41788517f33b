// SPDX-License-Identifier: Apache-2.0
//! The documents of the admin API about links to other nodes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// `GET /links`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Links {
    /// Where this node answers probes.
    pub(crate) reflectors: Vec<Reflector>,
    pub(crate) links: Vec<Link>,
    /// Probes of others that were answered.
    pub(crate) reflected: u64,
    /// Packets that were not accepted, by reason.
    pub(crate) refused: BTreeMap<String, u64>,
}

/// A place where probes are answered, or were to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Reflector {
    pub(crate) address: String,
    /// Why it could not be opened.
    pub(crate) failure: Option<String>,
}

/// The link from this node to a peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Link {
    /// The peer's name and number.
    pub(crate) peer: String,
    pub(crate) id: u64,
    /// `up`, `dead` or `unmeasured`.
    pub(crate) state: String,
    /// The shortest recent round trip; absent unless the link is up.
    pub(crate) rtt_us: Option<u32>,
    /// Who measured it: `hops`, `stamp` or `handshake`.
    pub(crate) source: Option<String>,
    /// Mean and mean deviation of the round trips.
    pub(crate) smoothed_us: Option<u32>,
    pub(crate) jitter_us: Option<u32>,
    /// Probes of a million that were lost recently, there or back; absent where
    /// too few were sent.
    pub(crate) loss_ppm: Option<u32>,
    /// Since it was measured.
    pub(crate) age_ms: Option<u64>,
    /// Between two measurements.
    pub(crate) interval_ms: u64,
    /// Flows use it.
    pub(crate) in_use: bool,
    /// TCP passes and UDP does not.
    pub(crate) udp_blocked: bool,
    /// Probes sent, answered and lost, handshakes made for it, and reports of
    /// what was new.
    pub(crate) probes: u64,
    pub(crate) answers: u64,
    pub(crate) losses: u64,
    pub(crate) handshakes: u64,
    pub(crate) reports: u64,
}
