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
    /// Probes of other nodes that were answered.
    pub(crate) reflected: u64,
    /// Rejected packets, by reason.
    pub(crate) refused: BTreeMap<String, u64>,
}

/// An address at which probes are answered, or should be.
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
    /// Its source: `hops`, `stamp` or `handshake`.
    pub(crate) source: Option<String>,
    /// Mean and mean deviation of the round trips.
    pub(crate) smoothed_us: Option<u32>,
    pub(crate) jitter_us: Option<u32>,
    /// Recently lost probes per million, in either direction; absent after too few probes.
    pub(crate) loss_ppm: Option<u32>,
    /// Time since the measurement.
    pub(crate) age_ms: Option<u64>,
    /// Time between two measurements.
    pub(crate) interval_ms: u64,
    /// Whether flows use it.
    pub(crate) in_use: bool,
    /// Whether TCP passes and UDP does not.
    pub(crate) udp_blocked: bool,
    /// Probes sent, answered and lost, handshakes made to measure it, and reports of changes.
    pub(crate) probes: u64,
    pub(crate) answers: u64,
    pub(crate) losses: u64,
    pub(crate) handshakes: u64,
    pub(crate) reports: u64,
}
