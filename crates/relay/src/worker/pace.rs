// SPDX-License-Identifier: Apache-2.0
//! With which window and pace flows start on hops, and what they show for the next
//! ones: what [`WarmHops`](crate::warm::WarmHops) knows of the ways, applied to the
//! worker's sockets.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::net::IpAddr;
use std::time::Duration;

use posthaste_wire::header::NodeId;

use crate::intercept::{Intercept, PathSettings};
use crate::side::Side;
use crate::sys;
use crate::warm::{self, path::FREE_BYTES};

use super::Worker;
use super::entry::{Entry, State};
use super::preface::Preface;

/// Addresses remembered from which peers call.
const CALLERS_MAX: usize = 1024;

/// What the worker has said about the ways to peers, and has still to say.
#[derive(Debug, Default)]
pub(super) struct Paces {
    /// How connections with each address start, as the redirection was told.
    sent: HashMap<IpAddr, PathSettings>,
    /// Addresses from which peers have called that are not those where they are asked.
    callers: HashMap<IpAddr, NodeId>,
    /// Flows that are held to their share of the way on a side, and by which peer.
    held: HashMap<(u64, Side), NodeId>,
    /// When that is over, and may have been before.
    due: BinaryHeap<Reverse<(Duration, u64, Side)>>,
}

impl Paces {
    /// Whether a peer is asked at an address, or has called from it.
    pub(super) fn knows(&self, ip: IpAddr) -> bool {
        self.sent.contains_key(&ip) || self.callers.contains_key(&ip)
    }

    /// When something is to be done at the latest.
    pub(super) fn deadline(&self) -> Option<Duration> {
        self.due.peek().map(|Reverse((until, ..))| *until)
    }
}

impl<I: Intercept> Worker<I> {
    /// A flow begins, which may be on hops.
    pub(super) fn begin_pace(&mut self, key: u64) {
        let Some(entry) = self.entries.live_mut(key) else {
            return;
        };
        let is_new = entry
            .pending()
            .is_some_and(|pending| pending.has_cold_hop());
        let (Some(preface), Some(warm)) = (&mut entry.preface, &mut self.warm) else {
            return;
        };
        for (side, id) in hops_of(preface) {
            let peer = id.and_then(|id| self.rules.chains().peer(id));
            if let (Some(peer), Some(socket)) = (peer, &entry.sockets[side]) {
                let is_new = is_new && side == Side::Upstream;
                let is_paced = warm.begin(peer, socket, is_new, self.now);
                preface.starting[side] = id.filter(|_| is_paced);
            }
        }
    }

    /// Bounds flows that have sent their first bytes to their share of the way.
    pub(super) fn share_pace(&mut self, key: u64) {
        let Some(entry) = self.entries.live_mut(key) else {
            return;
        };
        let (State::Open(relay), Some(preface)) = (&entry.state, &mut entry.preface) else {
            return;
        };
        for side in Side::BOTH {
            if relay.moved_from(!side) < FREE_BYTES {
                continue;
            }
            let Some(id) = preface.starting[side].take() else {
                continue;
            };
            let peer = self.rules.chains().peer(id);
            if let (Some(warm), Some(peer), Some(socket)) =
                (&mut self.warm, peer, &entry.sockets[side])
                && let Some(hold) = warm.share(peer, socket, self.now)
            {
                self.paces.held.insert((key, side), id);
                self.paces.due.push(Reverse((self.now + hold, key, side)));
            }
        }
    }

    /// Lifts the pace that flows began with.
    pub(super) fn unpace(&mut self) {
        while let Some(Reverse((until, key, side))) = self.paces.due.peek().copied() {
            if until > self.now {
                return;
            }
            self.paces.due.pop();
            // It may have ended before.
            let entry = self.entries.get(key);
            if let Some(socket) = entry.and_then(|entry| entry.sockets[side].as_ref()) {
                warm::unpace(socket);
            }
            self.unshare(key, side);
        }
    }

    /// A flow needs its share of the way no longer.
    pub(super) fn unshare(&mut self, key: u64, side: Side) {
        let peer = self.paces.held.remove(&(key, side));
        let peer = peer.and_then(|peer| self.rules.chains().peer(peer));
        if let (Some(warm), Some(peer)) = (&mut self.warm, peer) {
            warm.unshare(peer);
        }
    }

    /// Remembers what a flow that ends achieved on its hops, for those to come.
    pub(super) fn learn(&mut self, entry: &Entry) {
        let (Some(preface), Some(warm)) = (&entry.preface, &mut self.warm) else {
            return;
        };
        for (side, peer) in hops_of(preface) {
            let peer = peer.and_then(|peer| self.rules.chains().peer(peer));
            let info = entry.sockets[side].as_ref().map(sys::tcp_info);
            if let (Some(peer), Some(Ok(info))) = (peer, info) {
                warm.learn(peer, &info, self.now);
            }
        }
    }

    /// A peer has called from an address, and has proved that it is the peer.
    pub(super) fn on_caller(&mut self, peer: NodeId, from: IpAddr) {
        let chains = self.rules.chains();
        let known = chains.peer(peer).map(|peer| &chains.peers[peer]);
        let is_new = known.is_some_and(|known| known.address.ip() != from)
            && self.paces.callers.get(&from) != Some(&peer);
        if is_new && self.paces.callers.len() < CALLERS_MAX {
            self.paces.callers.insert(from, peer);
            // Its next hop comes in a moment.
            self.set_initial_cwnd();
        }
    }

    /// Has hops that are opened from now on start with what their ways bear.
    pub(super) fn set_initial_cwnd(&mut self) {
        let Some(warm) = &self.warm else {
            return;
        };
        let chains = self.rules.chains();
        let start = |index: usize| {
            let (rate, round) = warm.next_hop(index, self.now);
            chains.peers[index].settings_at(rate, round)
        };
        let callers = self.paces.callers.iter();
        let callers = callers.filter_map(|(ip, peer)| Some((*ip, start(chains.peer(*peer)?))));
        let peers = chains.peers.iter().enumerate();
        let peers = peers.map(|(index, peer)| (peer.address.ip(), start(index)));
        // Where a peer is asked counts more than who has called from there.
        let wanted: HashMap<IpAddr, PathSettings> = callers.chain(peers).collect();
        for ip in self
            .paces
            .sent
            .keys()
            .filter(|ip| !wanted.contains_key(*ip))
        {
            self.intercept.set_initial_cwnd(*ip, None);
        }
        for (ip, start) in &wanted {
            if self.paces.sent.get(ip) != Some(start) {
                self.intercept.set_initial_cwnd(*ip, Some(*start));
            }
        }
        self.paces.sent = wanted;
    }

    /// Has everything said again: there are other peers.
    pub(super) fn forget_paces(&mut self) {
        let chains = self.rules.chains();
        self.paces
            .callers
            .retain(|_, peer| chains.peer(*peer).is_some());
        let sent = std::mem::take(&mut self.paces.sent);
        self.set_initial_cwnd();
        for ip in sent.keys().filter(|ip| !self.paces.sent.contains_key(*ip)) {
            self.intercept.set_initial_cwnd(*ip, None);
        }
    }
}

/// Which peers the two sides are hops to.
fn hops_of(preface: &Preface) -> [(Side, Option<NodeId>); 2] {
    [
        (Side::Downstream, preface.by),
        (Side::Upstream, preface.via.map(|via| via.peer)),
    ]
}
