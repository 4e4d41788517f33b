// SPDX-License-Identifier: Apache-2.0
//! `GET /observed`: the profiles of destinations that a node has learned by observing handshakes.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use posthaste_bpf::{Known, Trust};
use serde::{Deserialize, Serialize};

/// The profiles, the latest first.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Observed {
    pub(crate) destinations: Vec<Destination>,
    /// Whether there are more.
    pub(crate) incomplete: bool,
}

/// A service as one client reaches it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Destination {
    pub(crate) client: IpAddr,
    pub(crate) server: SocketAddr,
    /// Between client and node, and between node and server, at the observed handshake.
    pub(crate) client_rtt_ms: f64,
    pub(crate) server_rtt_ms: f64,
    /// Whether flows are relayed: `observed` (the next one is the first), `relayed`, `doubted` (the
    /// last relay got no answer), `bypassed`.
    pub(crate) state: String,
    /// Whether NAT changes the client's address, and the server's.
    pub(crate) source_translated: bool,
    pub(crate) destination_translated: bool,
    pub(crate) age_seconds: f64,
}

impl Observed {
    /// At most `most` of a list that may have one more.
    pub(crate) fn of(known: &[Known], most: usize, now: Duration) -> Self {
        let mut destinations: Vec<Destination> = known
            .iter()
            .take(most)
            .map(|known| Destination::of(known, now))
            .collect();
        // The programs' map has no order.
        destinations.sort_by(|one, other| one.age_seconds.total_cmp(&other.age_seconds));
        Self {
            destinations,
            incomplete: known.len() > most,
        }
    }
}

impl Destination {
    fn of(known: &Known, now: Duration) -> Self {
        let profile = &known.profile;
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let state = match profile.trust {
            Trust::Learned => "observed",
            Trust::Validated => "relayed",
            Trust::Doubted => "doubted",
            Trust::Bypassed => "bypassed",
        };
        Self {
            client: known.client,
            server: known.server,
            client_rtt_ms: ms(profile.client_rtt),
            server_rtt_ms: ms(profile.server_rtt),
            state: state.into(),
            source_translated: profile.translated.source,
            destination_translated: profile.translated.destination,
            age_seconds: now.saturating_sub(known.learned).as_secs_f64(),
        }
    }
}
