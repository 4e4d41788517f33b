// SPDX-License-Identifier: Apache-2.0
//! Commands to the worker, and descriptions of its relays.

use std::sync::Arc;
use std::time::Duration;

use crate::chain::Chains;
use crate::control::{
    ChainState, Command, Ended, Known, PeerState, Phase, RelayDetail, RelayInfo, SideInfo,
};
use crate::intercept::Intercept;
use crate::outcome::Outcome;
use crate::side::Side;
use crate::sys;

use super::end::End;
use super::entry::{Entry, State};
use super::health::{CLOCKS_DIFFER, Failure};
use super::{TICK, Worker};

impl<I: Intercept> Worker<I> {
    /// Another thread has sent a command.
    pub(super) fn obey(&mut self) {
        self.waker.acknowledge();
        self.carry_out();
    }

    /// Carries out the commands of other threads.
    pub(super) fn carry_out(&mut self) {
        while let Ok(command) = self.commands.try_recv() {
            // The sender may have stopped waiting for the answer, which is fine.
            match command {
                Command::List { limit, answer } => {
                    let list = self.entries.iter().take(limit);
                    let list = list.map(|(key, entry)| self.describe(key, entry)).collect();
                    let _ = answer.send(list);
                }
                Command::Show { id, answer } => {
                    let _ = answer.send(self.detail(id.0));
                }
                Command::Kill { id, answer } => {
                    let key = self.key(id.0);
                    let there = key.is_some();
                    if let Some(key) = key {
                        self.end(key, Outcome::Killed);
                    }
                    let _ = answer.send(there);
                }
                Command::Peers { answer } => {
                    let _ = answer.send(self.known_of_others());
                }
                Command::Policy { policy, generation } => {
                    if let Some(warm) = &mut self.warm {
                        warm.replace(&policy.chains.peers, self.now);
                    }
                    let chains = &policy.chains;
                    self.dismiss_former_peers(chains);
                    self.syn_options.retain(|peer| chains.peer(peer).is_some());
                    // Best effort: without a listener the SYNs are left to their servers.
                    let _ = self.offer_multipath(&policy);
                    self.rules.replace(policy, generation, &self.counters.rules);
                    self.adopt_tunnels();
                    self.forget_paces();
                    if self.full() {
                        self.set_draining(true);
                    }
                }
                Command::Chains(chains) => {
                    self.dismiss_former_peers(&chains);
                    let others = self.adopt_peers(&chains);
                    self.rules.set_chains(chains);
                    if others {
                        self.adopt_tunnels();
                        self.forget_paces();
                    }
                }
                Command::Drain { deadline } => {
                    self.replaced = false;
                    self.wind_up(deadline);
                    self.pass_on_held();
                }
                Command::Listeners { answer } => {
                    let _ = answer.send(self.listeners.shared());
                }
                Command::Replace { deadline } => {
                    self.replaced = true;
                    for listener in self.listeners.take_shared() {
                        // The successor holds the socket too: it would continue to wake this
                        // worker.
                        let _ = self.epoll.delete(&listener);
                    }
                    self.wind_up(deadline);
                }
            }
        }
    }

    /// Takes no new flows, and ends at the deadline at the latest.
    fn wind_up(&mut self, deadline: Duration) {
        self.drain_from = self.now;
        let until = self.now + deadline;
        self.drain_until = Some(self.drain_until.map_or(until, |set| set.min(until)));
        self.set_draining(true);
        if let Some(warm) = &mut self.warm {
            // No flow will need a hop any more.
            warm.replace(&[], self.now);
        }
        self.finish_all_hops();
        self.wind_up_tunnels();
    }

    /// Replaces the peers of the warm hops by those of `chains`. Returns whether they differ.
    fn adopt_peers(&mut self, chains: &Chains) -> bool {
        let others = chains.peers != self.rules.chains().peers;
        match &mut self.warm {
            // A draining node needs no idle hops.
            Some(warm) if others && self.drain_until.is_none() => {
                warm.replace(&chains.peers, self.now);
            }
            _ => {}
        }
        others
    }

    /// The worker's knowledge of other nodes.
    fn known_of_others(&self) -> Known {
        let chains = self.rules.chains();
        let standing = self.standing();
        let left = |failure: Failure| standing.left(failure);
        let hops: Vec<_> = match &self.warm {
            Some(warm) => warm.states(self.now).collect(),
            None => Vec::new(),
        };
        let tunnels = self.tunnels.as_ref();
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let peers = chains.peers.iter().zip(hops).map(|(peer, hops)| PeerState {
            peer: peer.id,
            waiting: count(hops.waiting),
            dialing: count(hops.dialing),
            wanted: count(hops.wanted),
            rtt: hops.rtt,
            opened: hops.opened,
            lost_in_million: hops.lost_in_million,
            is_lossy: hops.is_lossy,
            tunnels: count(tunnels.map_or(0, |tunnels| tunnels.usable(peer.id, self.now))),
            tunnel_failure: tunnels.and_then(|tunnels| tunnels.failure(peer.id)),
            totals: hops.totals,
            option_paused_for: self.syn_options.paused_for(peer.id, self.now),
            failure: match left(Failure::Clock(peer.id)) {
                Some(_) => Some(CLOCKS_DIFFER.to_owned()),
                None => hops.failure.map(ToString::to_string),
            },
            // Until a dial succeeds; idle hops need no request, and so no clock.
            down_for: left(Failure::Peer(peer.id))
                .or_else(|| hops.down.then_some(TICK))
                .or_else(|| left(Failure::Clock(peer.id)).filter(|_| hops.waiting == 0)),
        });
        let of_chains = chains.chains.iter().map(|chain| ChainState {
            path: chain.path,
            down_for: left(Failure::Path(chain.path))
                .max(self.black_holes.left(chain.path, self.now)),
        });
        Known {
            peers: peers.collect(),
            chains: of_chains.collect(),
        }
    }

    fn key(&self, id: u64) -> Option<u64> {
        let key = id & ((1 << crate::slab::KEY_BITS) - 1);
        // An identifier also has the number of its worker, which may be another one.
        (self.id(key).0 == id && self.entries.get(key).is_some()).then_some(key)
    }

    fn detail(&self, id: u64) -> Option<RelayDetail> {
        let key = self.key(id)?;
        let entry = self.entries.get(key)?;
        let info = |side: Side| match entry.end(side)? {
            End::Socket(socket) => sys::tcp_info(socket).ok().map(SideInfo::Tcp),
            End::Stream(stream) => stream.info().map(SideInfo::Stream),
        };
        Some(RelayDetail {
            info: self.describe(key, entry),
            downstream: info(Side::Downstream),
            upstream: info(Side::Upstream),
        })
    }

    fn describe(&self, key: u64, entry: &Entry) -> RelayInfo {
        let (phase, active, bytes_up, bytes_down) = match &entry.state {
            State::Opening(_) => (Phase::Opening, entry.started(), 0, 0),
            State::Open(relay) => (
                if relay.closing() {
                    Phase::Closing
                } else {
                    Phase::Open
                },
                relay.active(),
                relay.moved_from(Side::Downstream),
                relay.moved_from(Side::Upstream),
            ),
        };
        RelayInfo {
            id: self.id(key),
            flow: entry.flow,
            rule: entry.rule.rule.name.clone(),
            accept: entry.accept,
            phase,
            age: entry.age(self.now),
            idle: self.now.saturating_sub(active),
            bytes_up,
            bytes_down,
        }
    }

    /// The log record of an entry that ends now.
    pub(super) fn record(&self, key: u64, entry: &Entry, outcome: Outcome) -> Ended {
        let (bytes_up, bytes_down) = match &entry.state {
            State::Opening(_) => (0, 0),
            State::Open(relay) => (
                relay.moved_from(Side::Downstream),
                relay.moved_from(Side::Upstream),
            ),
        };
        let preface = entry.preface.as_deref();
        let via = preface.and_then(|preface| preface.via);
        Ended {
            id: self.id(key),
            flow: entry.flow,
            rule: Arc::clone(&entry.rule.name),
            accept: entry.accept,
            outcome,
            bytes_up,
            bytes_down,
            accept_us: entry.timers.accept.get(),
            connect_us: entry.timers.connect.get(),
            first_byte_us: entry.timers.first_byte.get(),
            by: preface.and_then(|preface| preface.by),
            via: via.map(|via| via.peer),
            handshake_us: entry.timers.answer.get().filter(|_| via.is_none()),
            total: entry.age(self.now),
            course: self.course(entry, outcome),
        }
    }
}
