// SPDX-License-Identifier: Apache-2.0
//! The documents of the admin API about a controller that is followed.

use serde::{Deserialize, Serialize};

/// How following a controller goes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Follow {
    /// Where the controller is.
    pub(crate) address: String,
    /// Whether it has let this node in.
    pub(crate) connected: bool,
    /// Why it has not.
    pub(crate) trouble: Option<String>,
    pub(crate) plan: Option<Plan>,
    /// Other nodes that it tells of.
    pub(crate) members: usize,
    /// Streams on which it let this node in.
    pub(crate) joins: u64,
    /// Plans that were followed, and those that were not: older than what was held, or unfit.
    pub(crate) plans: u64,
    pub(crate) older: u64,
    pub(crate) nacks: u64,
    /// Keys of nodes that were refused since another was told first.
    pub(crate) keys: u64,
    /// How this host's clock compares to the controller's; nothing until that has told the time.
    pub(crate) clock: Option<Clock>,
    pub(crate) destinations: Destinations,
}

/// How the host's own clock compares to the controller's, by which the node goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Clock {
    /// How far it is ahead, in microseconds; negative if it is behind.
    pub(crate) offset_us: i64,
    /// By how much that may be wrong.
    pub(crate) error_us: u64,
}

impl Clock {
    /// Whether the two differ by more than clocks do that somebody keeps right.
    pub(crate) fn is_wrong(self) -> bool {
        self.offset_us.unsigned_abs() > 1_000_000 + self.error_us
    }
}

/// What relays that ended have taught of destinations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Destinations {
    /// Prefixes of which something is known.
    pub(crate) known: usize,
    /// Of these, those whose transfers have a size that flows go by.
    pub(crate) sized: usize,
    /// Of these, those whose round trip the controller was told.
    pub(crate) measured: usize,
    /// Relays of which nothing was learned: others are used more, or a client had its share.
    pub(crate) refused: u64,
    /// Relays of which nothing was learned since too many ended at once.
    pub(crate) dropped: u64,
}

/// The plan that is held.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) epoch: u64,
    pub(crate) version: u64,
    /// Since the controller last said that it stands; nothing if that cannot be told.
    pub(crate) age_ms: Option<u64>,
    /// At this age flows go without it.
    pub(crate) ttl_ms: u64,
    /// Whether flows go by it.
    pub(crate) in_force: bool,
    /// Chains that this node is part of, and nodes that ways lead to.
    pub(crate) chains: usize,
    pub(crate) egresses: usize,
}
