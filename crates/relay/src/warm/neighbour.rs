// SPDX-License-Identifier: Apache-2.0
//! A peer, the warm hops to it, and the measurements of both.

use std::net::IpAddr;
use std::time::Duration;

use crate::chain::Peer;
use crate::control::HopTotals;

use super::dial::DialError;
use super::loss::Losses;
use super::path::Path;
use super::pool::{End, Failure, Pool};
use super::uplinks::Uplinks;

/// Age after which a longer round trip time replaces a shorter one.
const LATELY: Duration = Duration::from_secs(1);

/// A peer with its hops and measurements.
#[derive(Debug)]
pub(super) struct Neighbour {
    pub(super) peer: Peer,
    pub(super) pool: Pool,
    pub(super) path: Path,
    pub(super) losses: Losses,
    /// The round trip time of the last hop with a flow, to the peer or from it.
    pub(super) round: Option<Duration>,
    /// When it is due in [`super::WarmHops::on_time`].
    pub(super) due: Option<Duration>,
    pub(super) totals: HopTotals,
    pub(super) failure: Option<DialError>,
    pub(super) uplinks: Uplinks,
    /// The shortest round trip time of recently opened hops, and its time.
    opened: Option<(Duration, Duration)>,
}

/// The state of the hops to one peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct State<'a> {
    /// Idle hops.
    pub(crate) waiting: usize,
    /// Hops being dialed.
    pub(crate) dialing: usize,
    /// Idle hops wanted.
    pub(crate) wanted: usize,
    /// Whether the peer is down.
    pub(crate) down: bool,
    /// The round trip time to it.
    pub(crate) rtt: Option<Duration>,
    /// The shortest round trip time of recently opened hops, and its age.
    pub(crate) opened: Option<(Duration, Duration)>,
    /// Of a million segments, how many hops have lost of late, if known, and whether tunnels carry
    /// most flows for that.
    pub(crate) lost_in_million: Option<u32>,
    pub(crate) is_lossy: bool,
    /// Counts.
    pub(crate) totals: HopTotals,
    /// Error of the last failed dial.
    pub(crate) failure: Option<&'a DialError>,
}

impl Neighbour {
    pub(super) fn new(peer: &Peer, seed: u64, now: Duration) -> Self {
        Self {
            pool: Pool::new(peer.pool, seed, now),
            peer: peer.clone(),
            path: Path::new(peer.initial_bandwidth()),
            losses: Losses::default(),
            round: None,
            due: Some(now),
            totals: HopTotals::default(),
            failure: None,
            uplinks: Uplinks::default(),
            opened: None,
        }
    }

    /// Whether hops to this peer are hops to `other` as well.
    pub(super) fn serves(&self, other: &Peer) -> bool {
        // A hop has proved the key and has the options of its socket: if either changes, it must be
        // replaced.
        let reached = |peer: &Peer| (peer.id, peer.address, peer.key_id);
        reached(&self.peer) == reached(other)
            && self.peer.key == other.key
            && self.peer.socket == other.socket
    }

    /// A dial from `source` has failed.
    pub(super) fn on_dial_failed(
        &mut self,
        (key, source): (Option<u64>, Option<IpAddr>),
        error: DialError,
        now: Duration,
    ) {
        self.totals.failed += 1;
        let failure = match error.is_of_uplink() && self.uplinks.leave(source, now) {
            // The next dial takes another uplink, and shows whether the peer is there.
            true => Failure::Means,
            false => error.failure(),
        };
        self.pool.on_dial_failed(key, failure, now);
        // Kept after a success: `peers` shows why the last dial failed.
        self.failure = Some(error);
    }

    /// A hop was opened; `min_rtt` is `None` where the kernel does not report it.
    pub(super) fn on_opened(&mut self, min_rtt: Option<Duration>, now: Duration) {
        self.totals.dialed += 1;
        if let Some(min_rtt) = min_rtt {
            self.on_round(min_rtt, now);
        }
    }

    /// A recently opened hop had this round trip time.
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
            lost_in_million: self.losses.in_million(),
            is_lossy: self.losses.is_lossy(),
            totals: self.totals,
            failure: self.failure.as_ref(),
        }
    }
}
