// SPDX-License-Identifier: Apache-2.0
//! `[observe]`: what has to be seen of a destination before flows to it are relayed.

use std::time::Duration;

/// The `[observe]` section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observe {
    /// How long an observed handshake counts.
    pub ttl: Duration,
    /// How long flows are forwarded that a relay has failed with.
    pub bypass_for: Duration,
    /// What a relay has to save, at least.
    pub gain_min: Duration,
    /// Clients and services that are remembered; those used last stay.
    pub profiles_max: u32,
}
