// SPDX-License-Identifier: Apache-2.0
//! The documents of the admin API about the packet path.

use std::time::Duration;

use posthaste_bpf::{PacketFlow, PacketPhase};
use posthaste_daemon::http::millis;
use serde::{Deserialize, Serialize};

/// A flow of the packet path, in `GET /relays`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Flow {
    pub(crate) client: String,
    pub(crate) server: String,
    /// `learning`, `opening`, `open`, `closing`
    pub(crate) phase: String,
    pub(crate) age_ms: u64,
    pub(crate) idle_ms: u64,
    /// What the other end has acknowledged; a FIN counts as one.
    pub(crate) bytes_up: u64,
    pub(crate) bytes_down: u64,
}

impl Flow {
    /// A flow at `now` (CLOCK_MONOTONIC).
    pub(crate) fn of(flow: &PacketFlow, now: Duration) -> Self {
        Self {
            client: flow.client.to_string(),
            server: flow.server.to_string(),
            phase: phase_word(flow.phase).into(),
            age_ms: millis(now.saturating_sub(flow.since)),
            idle_ms: millis(now.saturating_sub(flow.last)),
            bytes_up: flow.bytes_up,
            bytes_down: flow.bytes_down,
        }
    }
}

fn phase_word(phase: PacketPhase) -> &'static str {
    match phase {
        PacketPhase::Learning => "learning",
        PacketPhase::Opening => "opening",
        PacketPhase::Open => "open",
        PacketPhase::Closing => "closing",
    }
}

/// How the segments of a flow would reach its server, and why, in `GET /chains/explain`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DataPath {
    /// `socket`, `packet` or `forward`
    pub(crate) path: String,
    pub(crate) reason: Reason,
    /// The age of what was learned, or the time until the destination is tried again.
    pub(crate) time_ms: Option<u64>,
}

/// Why a flow takes a data path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Reason {
    /// The rule leaves no choice, or no node was queried.
    Rule,
    /// The packet path is not loaded.
    Unavailable,
    /// The firewall of this host limits connections.
    Blocked,
    /// A flow to the destination failed lately.
    Bad,
    /// What the destination grants is not known, or no more.
    Unknown,
    /// No answer from the destination's prefix to the client's was seen to come this way.
    Return,
    /// Relays of the client to the destination got no answer lately.
    Bypassed,
    /// The destination sends more than a first window, or received a long upload.
    Long,
    /// It has not, so far.
    Short,
    /// What the destination grants is known.
    Known,
}
