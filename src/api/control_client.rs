// SPDX-License-Identifier: Apache-2.0
//! The documents of the admin API about the controller of a node.

use serde::{Deserialize, Serialize};

/// The state of the connection to a controller.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Follow {
    /// The controller's address.
    pub(crate) address: String,
    /// Whether the controller has accepted this node.
    pub(crate) connected: bool,
    /// Why it has not.
    pub(crate) trouble: Option<String>,
    pub(crate) plan: Option<Plan>,
    /// Number of other nodes that it reports.
    pub(crate) members: usize,
    /// Streams on which it accepted this node.
    pub(crate) joins: u64,
    /// Plans adopted, and plans rejected: older than the current one, or invalid.
    pub(crate) plans: u64,
    pub(crate) older: u64,
    pub(crate) nacks: u64,
    /// Keys of nodes that were rejected because another key was reported first.
    pub(crate) keys: u64,
    /// The host's clock compared to the controller's; absent until the controller has reported the
    /// time.
    pub(crate) clock: Option<Clock>,
    pub(crate) destinations: Destinations,
}

/// The host's clock compared to the controller's, which the node uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Clock {
    /// How far the host's clock is ahead, in microseconds; negative if it is behind.
    pub(crate) offset_us: i64,
    /// The error bound of that, in microseconds.
    pub(crate) error_us: u64,
}

impl Clock {
    /// Whether the two differ by more than synchronised clocks do.
    pub(crate) fn is_wrong(self) -> bool {
        self.offset_us.unsigned_abs() > 1_000_000 + self.error_us
    }
}

/// Destinations learned from relays that ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Destinations {
    /// Known prefixes.
    pub(crate) known: usize,
    /// Those with a transfer size that is applied to flows.
    pub(crate) sized: usize,
    /// Those with a round trip that was reported to the controller.
    pub(crate) measured: usize,
    /// Relays not recorded: other destinations are used more, or a client has used up its share.
    pub(crate) refused: u64,
    /// Relays not recorded because too many ended at once.
    pub(crate) dropped: u64,
}

/// The current plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) epoch: u64,
    pub(crate) version: u64,
    /// Since the controller last confirmed it; absent if unknown.
    pub(crate) age_ms: Option<u64>,
    /// At this age flows ignore it.
    pub(crate) ttl_ms: u64,
    /// Whether flows follow it.
    pub(crate) in_force: bool,
    /// Chains that this node is part of, and nodes that routes lead to.
    pub(crate) chains: usize,
    pub(crate) egresses: usize,
}
