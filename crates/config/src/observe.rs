// SPDX-License-Identifier: Apache-2.0
//! `[observe]`: what has to be seen of a destination before flows to it are relayed.

use std::time::Duration;

use serde::Serialize;

use super::value::show_duration;

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

/// The section as it is shown.
#[derive(Debug, Serialize)]
pub(super) struct Shown {
    ttl: String,
    bypass_for: String,
    gain_min: String,
    profiles_max: u32,
}

impl Shown {
    pub(super) fn of(observe: &Observe) -> Self {
        Self {
            ttl: show_duration(observe.ttl),
            bypass_for: show_duration(observe.bypass_for),
            gain_min: show_duration(observe.gain_min),
            profiles_max: observe.profiles_max,
        }
    }
}
