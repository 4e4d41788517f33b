// SPDX-License-Identifier: Apache-2.0
//! A peer, the warm hops to it, and all that is known of it.

use std::time::Duration;

use crate::chain::Peer;
use crate::control::HopTotals;

use super::dial::DialError;
use super::path::Path;
use super::pool::{End, Pool};

/// A round trip time gives way to a longer one after so long.
const LATELY: Duration = Duration::from_secs(1);

/// A peer and all that is known of it.
#[derive(Debug)]
pub(super) struct Neighbour {
    pub(super) peer: Peer,
    pub(super) pool: Pool,
    pub(super) path: Path,
    /// The round trip time of the last hop with a flow, to the peer or from it.
    pub(super) round: Option<Duration>,
    /// When it is to be looked after.
    pub(super) due: Option<Duration>,
    pub(super) totals: HopTotals,
    pub(super) failure: Option<DialError>,
    /// The shortest round trip time of hops that were opened of late, and when.
    opened: Option<(Duration, Duration)>,
}

/// How the hops to one peer are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct State<'a> {
    /// Hops that wait.
    pub(crate) waiting: usize,
    /// Hops being dialed.
    pub(crate) dialing: usize,
    /// How many are to wait.
    pub(crate) wanted: usize,
    /// The peer is not there.
    pub(crate) down: bool,
    /// The round trip time to it.
    pub(crate) rtt: Option<Duration>,
    /// The shortest round trip time of hops that were opened of late, and how
    /// long ago.
    pub(crate) opened: Option<(Duration, Duration)>,
    /// Counts.
    pub(crate) totals: HopTotals,
    /// Why the last dial that failed did.
    pub(crate) failure: Option<&'a DialError>,
}

impl Neighbour {
    pub(super) fn new(peer: &Peer, seed: u64, now: Duration) -> Self {
        Self {
            pool: Pool::new(peer.pool, seed, now),
            peer: peer.clone(),
            path: Path::new(peer.initial_bandwidth()),
            round: None,
            due: Some(now),
            totals: HopTotals::default(),
            failure: None,
            opened: None,
        }
    }

    /// Whether hops to this peer are hops to `other` as well.
    pub(super) fn serves(&self, other: &Peer) -> bool {
        let reached = |peer: &Peer| (peer.id, peer.address, peer.key_id);
        reached(&self.peer) == reached(other)
            && self.peer.key == other.key
            && self.peer.socket == other.socket
    }

    pub(super) fn on_dial_failed(&mut self, key: Option<u64>, error: DialError, now: Duration) {
        self.totals.failed += 1;
        self.pool.on_dial_failed(key, error.failure(), now);
        self.failure = Some(error);
    }

    /// A hop was opened; `min_rtt` is nothing where its kernel does not say.
    pub(super) fn on_opened(&mut self, min_rtt: Option<Duration>, now: Duration) {
        self.totals.dialed += 1;
        if let Some(min_rtt) = min_rtt {
            self.on_round(min_rtt, now);
        }
    }

    /// A hop that was opened of late had this round trip time.
    pub(super) fn on_round(&mut self, round: Duration, now: Duration) {
        let known = self.opened.filter(|(_, at)| now < *at + LATELY);
        if known.is_none_or(|(known, _)| round <= known) {
            self.opened = Some((round, now));
        }
    }

    pub(super) fn on_lost(&mut self, key: u64, end: End, now: Duration) {
        self.totals.lost += 1;
        self.pool.on_lost(key, end, now);
    }

    pub(super) fn state(&self, now: Duration) -> State<'_> {
        State {
            waiting: self.pool.waiting(),
            dialing: self.pool.dialing(),
            wanted: self.pool.target(now),
            down: self.pool.down(),
            rtt: self.pool.rtt(),
            opened: self.opened.map(|(rtt, at)| (rtt, now.saturating_sub(at))),
            totals: self.totals,
            failure: self.failure.as_ref(),
        }
    }
}
