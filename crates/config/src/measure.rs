// SPDX-License-Identifier: Apache-2.0
//! The `[measure]` section, and `reflector` of peers.

use std::net::SocketAddr;
use std::time::Duration;

use posthaste_relay::policy::Prefix;

/// How links to peers are measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Measure {
    /// Whether this node measures, and answers those that do.
    pub enabled: bool,
    /// Where it answers.
    pub reflectors: Vec<SocketAddr>,
    /// Sources whose probes are answered without an authentication tag.
    pub open_to: Vec<Prefix>,
    /// When it measures.
    pub schedule: Schedule,
    /// By peer: where that answers; `None` for one that is not measured.
    pub reflectors_of_peers: Vec<Option<SocketAddr>>,
}

/// How often links are probed, and from how many source ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Between two probes of a link.
    pub interval: Duration,
    /// Of a link that flows use.
    pub interval_in_use: Duration,
    /// Source ports, 1 to 16.
    pub ports: u8,
}
