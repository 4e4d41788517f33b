// SPDX-License-Identifier: Apache-2.0
//! The initial windows and pacing of flows on hops, and their measurements for later ones: applies
//! [`WarmHops`](crate::warm::WarmHops) to the worker's sockets.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::net::IpAddr;
use std::time::Duration;

use posthaste_wire::header::NodeId;

use crate::chain::{Chains, Transport};
use crate::intercept::{Intercept, PathSettings};
use crate::side::Side;
use crate::sys;
use crate::warm::{self, WarmHops, path::FREE_BYTES};

use super::Worker;
use super::entry::{Entry, State};
use super::preface::{Learned, Preface};

/// Interval at which the losses of open flows are learned.
const LOSSES_INTERVAL: Duration = Duration::from_secs(5);
/// Bound on the remembered source addresses of peers.
const CALLERS_MAX: usize = 1024;

/// The settings that the worker has applied, and those due for removal.
#[derive(Debug, Default)]
pub(super) struct Paces {
    /// The initial windows by address, as set at the redirection.
    sent: HashMap<IpAddr, PathSettings>,
    /// Source addresses of peers that differ from their configured addresses.
    callers: HashMap<IpAddr, NodeId>,
    /// Flows bound to their share of the path, by side, with the peer.
    held: HashMap<(u64, Side), NodeId>,
    /// When these bounds expire; they may have been removed before.
    due: BinaryHeap<Reverse<(Duration, u64, Side)>>,
}

impl Paces {
    /// Whether the address is a peer's, configured or seen.
    pub(super) fn is_of_peer(&self, ip: IpAddr) -> bool {
        self.sent.contains_key(&ip) || self.callers.contains_key(&ip)
    }

    /// When the next bound expires.
    pub(super) fn deadline(&self) -> Option<Duration> {
        self.due.peek().map(|Reverse((until, ..))| *until)
    }
}

/// How long ago the losses of a flow's hops were learned, or it began.
fn since_learned(entry: &Entry, preface: &Preface, now: Duration) -> Duration {
    let since = preface.learned.at.map(|at| now.saturating_sub(at));
    since.unwrap_or_else(|| entry.age(now))
}

/// Records the losses of a flow's hops since the last time. Returns what was counted.
fn learn_losses(
    warm: &mut WarmHops,
    chains: &Chains,
    (entry, preface): (&Entry, &Preface),
    now: Duration,
) -> Learned {
    let age = since_learned(entry, preface, now);
    let mut learned = preface.learned;
    learned.at = Some(now);
    for side in Side::BOTH {
        let peer = preface.peer(side).and_then(|peer| chains.peer(peer));
        let seen = entry.sockets[side].as_ref().map(sys::segments);
        if let (Some(peer), Some(Ok(seen))) = (peer, seen) {
            let former = std::mem::replace(&mut learned.segments[side], seen);
            warm.learn_losses(peer, &seen.since(&former), age, now);
        }
    }
    learned
}

impl<I: Intercept> Worker<I> {
    /// Starts pacing for a flow that begins, where its sides are hops.
    pub(super) fn begin_pace(&mut self, key: u64) {
        let Some(entry) = self.entries.live_mut(key) else {
            return;
        };
        let is_new = entry
            .pending()
            .is_some_and(|pending| pending.opening.has_cold_hop());
        let (Some(preface), Some(warm)) = (&mut entry.preface, &mut self.warm) else {
            return;
        };
        for side in Side::BOTH {
            let id = preface.peer(side);
            let peer = id.and_then(|id| self.rules.chains().peer(id));
            if let (Some(peer), Some(socket)) = (peer, &entry.sockets[side]) {
                let is_new = is_new && side == Side::Upstream;
                let is_paced = warm.begin(peer, socket, is_new, self.now);
                preface.starting[side] = id.filter(|_| is_paced);
            }
        }
    }

    /// Bounds a flow that has sent its first bytes to its share of the path.
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

    /// Removes the expired bounds.
    pub(super) fn unpace(&mut self) {
        while let Some(Reverse((until, key, side))) = self.paces.due.peek().copied() {
            if until > self.now {
                return;
            }
            self.paces.due.pop();
            // The flow may have ended before.
            let entry = self.entries.get(key);
            if let Some(socket) = entry.and_then(|entry| entry.sockets[side].as_ref()) {
                warm::unpace(socket);
            }
            self.unshare(key, side);
        }
    }

    /// A flow gives up its share of the path.
    pub(super) fn unshare(&mut self, key: u64, side: Side) {
        let peer = self.paces.held.remove(&(key, side));
        let peer = peer.and_then(|peer| self.rules.chains().peer(peer));
        if let (Some(warm), Some(peer)) = (&mut self.warm, peer) {
            warm.unshare(peer);
        }
    }

    /// Records the throughput of a flow on its hops, at its end.
    pub(super) fn learn(&mut self, entry: &Entry) {
        let (Some(preface), Some(warm)) = (&entry.preface, &mut self.warm) else {
            return;
        };
        for side in Side::BOTH {
            let peer = preface
                .peer(side)
                .and_then(|peer| self.rules.chains().peer(peer));
            let info = entry.sockets[side].as_ref().map(sys::tcp_info);
            if let (Some(peer), Some(Ok(info))) = (peer, info) {
                warm.learn(peer, &info, self.now);
            }
        }
        learn_losses(warm, self.rules.chains(), (entry, preface), self.now);
    }

    /// Whether the losses of an open flow's hops are to be learned now: some flows last for hours.
    pub(super) fn may_learn(&self, entry: &Entry) -> bool {
        let Some(preface) = entry.preface.as_deref().filter(|_| entry.is_open()) else {
            return false;
        };
        let is_due = since_learned(entry, preface, self.now) >= LOSSES_INTERVAL;
        is_due
            && Side::BOTH
                .iter()
                .any(|side| self.chooses_transport(preface, *side))
    }

    /// Whether flows to the peer of a side take tunnels while hops over TCP lose much.
    fn chooses_transport(&self, preface: &Preface, side: Side) -> bool {
        let peer = preface.peer(side);
        let peer = peer.and_then(|peer| self.rules.chains().find_peer(peer));
        peer.is_some_and(|peer| peer.transport == Transport::Auto)
    }

    /// Records the losses of an open flow's hops.
    pub(super) fn learn_open(&mut self, key: u64) {
        let Some(entry) = self.entries.live_mut(key) else {
            return;
        };
        let (Some(preface), Some(warm)) = (entry.preface.as_deref(), &mut self.warm) else {
            return;
        };
        let learned = learn_losses(warm, self.rules.chains(), (entry, preface), self.now);
        if let Some(preface) = &mut entry.preface {
            preface.learned = learned;
        }
    }

    /// A peer has connected from an address and has authenticated.
    pub(super) fn on_caller(&mut self, peer: NodeId, from: IpAddr) {
        let known = self.rules.chains().find_peer(peer);
        let is_new = known.is_some_and(|known| known.address.ip() != from)
            && self.paces.callers.get(&from) != Some(&peer);
        if is_new && self.paces.callers.len() < CALLERS_MAX {
            self.paces.callers.insert(from, peer);
            // Its next hop may follow at once.
            self.set_initial_cwnd();
        }
    }

    /// Sets the initial windows of later hops by their paths.
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
        // A configured address takes precedence over a source address.
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
            // Every tick comes here, and each setting is a system call.
            if self.paces.sent.get(ip) != Some(start) {
                self.intercept.set_initial_cwnd(*ip, Some(*start));
            }
        }
        self.paces.sent = wanted;
    }

    /// Applies all settings anew: the peers have changed.
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
