// SPDX-License-Identifier: Apache-2.0
//! What a node keeps across restarts: the plan, the members and their keys, and what time it is.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{ClockOffset, EGRESSES_MAX, Follower, TTL_S};
use crate::message::{Egress, Member, NodeNumber, RouteUpdate};

/// What the bytes begin with: the last one is the version of what follows.
const MAGIC: [u8; 8] = *b"phplan\x00\x04";

/// What was kept cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} bytes that are no plan as this version keeps it")]
pub struct Unfit(usize);

/// What a node follows, as it is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    /// All rows.
    pub(super) update: Option<RouteUpdate>,
    members: Vec<Member>,
    /// The keys that count, of members and of some that were.
    keys: Vec<(NodeNumber, [u8; 32])>,
    egresses: Vec<Egress>,
    ttl_s: u32,
    /// Names the time between two starts of the host, during which a clock only goes forward.
    boot: [u8; 16],
    /// The last lease renewal, by that clock, in microseconds.
    stood_us: Option<u64>,
    /// The controller's last report of the time, by that clock.
    time: Option<ClockOffset>,
}

impl Saved {
    /// As bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        postcard::to_extend(self, MAGIC.to_vec()).expect("a vector takes every message")
    }

    /// # Errors
    /// The bytes are something else.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Unfit> {
        let unfit = Unfit(bytes.len());
        let rest = bytes.strip_prefix(&MAGIC).ok_or(unfit)?;
        match postcard::take_from_bytes(rest) {
            Ok((saved, [])) => Ok(saved),
            // Bytes left over are of another layout, even where the beginning happens to fit.
            _ => Err(unfit),
        }
    }

    /// The last lease renewal, by the clock of this start of the host, which `boot` names; nothing after
    /// another start.
    pub fn stood(&self, boot: [u8; 16]) -> Option<Duration> {
        let stood = self.stood_us.filter(|_| boot == self.boot);
        stood.map(Duration::from_micros)
    }

    /// Forgets the controller's report of the time, unless the clock of this start of the host, which
    /// `boot` names, still goes.
    #[must_use]
    pub fn since(mut self, boot: [u8; 16]) -> Self {
        self.time = self.time.filter(|_| boot == self.boot);
        self
    }
}

impl Follower {
    /// What is followed, to be kept.
    pub fn saved(&self, boot: [u8; 16]) -> Saved {
        let (members, keys) = self.members.save();
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        Saved {
            update: self.held.whole(),
            members,
            keys,
            egresses: self.egresses.clone(),
            ttl_s: u32::try_from(self.ttl.as_secs()).unwrap_or(u32::MAX),
            boot,
            stood_us: self.stood.map(micros),
            time: self.time.sent(),
        }
    }

    pub(super) fn restore(&mut self, saved: Saved, stood: Option<Duration>, now: Duration) {
        self.members.restore(saved.members, saved.keys);
        // A file may be anything: the bounds are those of messages.
        if saved.egresses.len() <= EGRESSES_MAX {
            self.egresses = saved.egresses;
        }
        if TTL_S.contains(&saved.ttl_s) {
            self.ttl = Duration::from_secs(saved.ttl_s.into());
        }
        // Rows that were changed on disk do not fit their checksum.
        let held = saved
            .update
            .is_some_and(|update| self.held.apply(&update).is_ok());
        // A renewal later than now would extend the life of the plan.
        self.stood = stood.filter(|stood| held && *stood <= now);
        self.time.restore(saved.time, now);
        self.renew = true;
    }
}
