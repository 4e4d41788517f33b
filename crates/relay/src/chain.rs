// SPDX-License-Identifier: Apache-2.0
//! Which nodes carry a flow: peers, chains of them, and for which destinations
//! they are. Read-only for the workers. A configuration fills it, and a plan goes
//! on where the configuration says nothing.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use posthaste_wire::auth::Key;
use posthaste_wire::header::{Label, NodeId, RESOLVE};

use crate::flow::Flow;
use crate::intercept::PathSettings;
use crate::policy::{Match, SideOptions};

mod index_by_id;
mod planned;
mod prefixes;

pub use index_by_id::{IndexById, Numbering};
pub use planned::{Planned, Toward};
pub use prefixes::Prefixes;

pub use crate::warm::path::INITIAL_BANDWIDTH;

/// Numbers of chains from here on are in no label.
const UNLABELLED: u32 = 1 << 31;

/// What carries the chain header over a cold hop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Encapsulation {
    /// The first bytes of the stream (RFC 8803), in the SYN where that is taken.
    #[default]
    Stream,
    /// An option of the SYN announces what the first bytes ask for, where both ends
    /// and the destination are IPv4.
    SynOption,
}

impl Encapsulation {
    /// Its name in the configuration and in logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stream => "stream",
            Self::SynOption => "syn-option",
        }
    }
}

/// Another node that this one exchanges flows with.
#[derive(Clone, PartialEq, Eq)]
pub struct Peer {
    /// Its name in the configuration, in logs and in metrics.
    pub name: Arc<str>,
    /// Its number.
    pub id: NodeId,
    /// Its explicit listener.
    pub address: SocketAddr,
    /// What the two nodes share. `None` for one that knows who may ask by address,
    /// as a converter of RFC 8803 does.
    pub key: Option<Key>,
    /// Which of their keys that is, if there is one.
    pub key_id: u32,
    /// What carries the chain header over cold hops to it and, if that is the
    /// option, may carry it over those from it.
    pub encapsulation: Encapsulation,
    /// Addresses that its connections come from.
    pub source_addresses: Vec<IpAddr>,
    /// How many warm hops to it a worker keeps open.
    pub pool: PoolLimits,
    /// Settings of the sockets of hops to it.
    pub socket: SideOptions,
}

impl Peer {
    /// How connections with it start while nothing is known of the way.
    pub fn start(&self) -> PathSettings {
        self.settings_at(self.initial_bandwidth(), None)
    }

    /// How they start on a way that bears so many bytes per second and has such a round
    /// trip, as far as is known: with no less than the operator says, or RFC 6928.
    pub(crate) fn settings_at(&self, rate: u32, round: Option<Duration>) -> PathSettings {
        PathSettings {
            segments: self.socket.initial_window.unwrap_or(10),
            rate,
            round,
        }
    }

    /// What the way to it is taken to bear, in bytes per second, while nobody knows: 0,
    /// nothing, for nodes that are not our own, and where the operator says how
    /// connections are to start.
    pub(crate) fn initial_bandwidth(&self) -> u32 {
        let is_ours = self.key.is_some() && self.socket.initial_window.is_none();
        if is_ours { INITIAL_BANDWIDTH } else { 0 }
    }
}

impl fmt::Debug for Peer {
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peer")
            .field("name", &self.name)
            .field("id", &self.id)
            .field("address", &self.address)
            .field("header_in", &self.encapsulation)
            .field("pool", &self.pool)
            .finish_non_exhaustive()
    }
}

/// Bounds on the warm hops to one peer, at one worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolLimits {
    /// Kept open although nobody asks for them.
    pub min: u16,
    /// Never more than so many wait; 0 for a peer without warm hops.
    pub max: u16,
}

/// An ordered list of nodes, by which every node on it passes a flow on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// Its name in the configuration, in logs and in metrics.
    pub name: Arc<str>,
    /// Its number in labels, of 24 bits and not 0: the same at all its nodes. One of
    /// [`Chain::between_two`] needs none and has a number of this node's own.
    pub number: u32,
    /// The nodes after the first, in order: indices into [`Chains::peers`],
    /// `None` for one that this node does not know, and so never follows.
    pub nodes: Vec<Option<usize>>,
}

impl Chain {
    /// The chain from this node to a peer, which is its last.
    pub fn between_two(peer: &Peer, index: usize) -> Self {
        let id = peer.id.to_bits();
        let low = u32::try_from((id ^ id >> 32) & u64::from(UNLABELLED - 1)).unwrap_or(0);
        Self {
            name: format!("to {}", peer.name).into(),
            number: UNLABELLED | low,
            nodes: vec![Some(index)],
        }
    }

    /// The chain by a peer that looks up the rest of the way.
    pub fn by_resolve(peer: &Peer, index: usize) -> Self {
        Self {
            name: format!("looked up by {}", peer.name).into(),
            number: RESOLVE,
            nodes: vec![Some(index), None],
        }
    }
}

impl Numbering for Chain {
    fn number(&self) -> u64 {
        self.number.into()
    }
}

impl Numbering for Peer {
    fn number(&self) -> u64 {
        self.id.to_bits()
    }
}

/// For which destinations chains are meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Which flows it is for.
    pub matches: Match,
    /// Indices into [`Chains::chains`], the best first.
    pub chains: Vec<usize>,
    /// With no chain to be had, the flow goes to its destination directly.
    /// Otherwise it is refused.
    pub direct: bool,
    /// How many bytes its transfers have: no chains are named, those of the plan for
    /// that size are meant.
    pub transfer_bytes: Option<u32>,
}

/// All that is known of other nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chains {
    /// The number of this node; without one it has no peers.
    pub me: Option<NodeId>,
    /// Flows begin at the first node that they come to: here are only their clients.
    pub is_client: bool,
    /// Every peer.
    pub peers: IndexById<Peer>,
    /// Every chain.
    pub chains: IndexById<Chain>,
    /// In the order of the configuration.
    pub routes: Vec<Route>,
    /// For flows that no route is for.
    pub planned: Option<Planned>,
    /// Which chain is for flows that none of these has a way for: one of [`Chain::by_resolve`].
    pub resolve: Option<usize>,
}

/// Where a flow goes from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NextHop {
    /// To its destination.
    Direct,
    /// To a node.
    Hop {
        /// Which: by number, so that it is the same one when there are other peers.
        peer: NodeId,
        /// Number of the chain.
        chain: u32,
        /// What the node is told of the rest of the way; `None` when it is the
        /// last.
        label: Option<Label>,
    },
}

/// Why a label leads nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoNextHop {
    /// There is no chain of this number here.
    #[error("no chain has the number {0}")]
    UnknownChain(u32),
    /// The chain is shorter.
    #[error("chain {0} has no position {1}")]
    UnknownPosition(u32, u8),
    /// The chain has another node there, so it is another chain than the one meant.
    #[error("position {1} of chain {0} is that of another node")]
    NotHere(u32, u8),
    /// The next node of the chain is no peer of this one.
    #[error("the node after position {1} of chain {0} is no peer")]
    UnknownPeer(u32, u8),
}

impl Chains {
    /// The ways for a flow that begins here, the best first. Empty when it is
    /// to be refused. The route with the longest destination prefix is taken,
    /// then that with the longest source prefix, then the one with the
    /// narrowest ports, then the first. Without a route the plan is asked, for
    /// transfers of so many `bytes` if the configuration says how many, and then
    /// the node that looks ways up.
    pub fn next_hops(&self, flow: &Flow, bytes: Option<u32>) -> Vec<NextHop> {
        let route = self.route(flow);
        let said = route.and_then(|route| route.transfer_bytes);
        let Some(route) = route.filter(|_| said.is_none()) else {
            let planned = self.planned.as_ref();
            let next_hops =
                planned.map_or(&[][..], |planned| planned.next_hops(flow, said.or(bytes)));
            let looked_up = self.resolve.and_then(|chain| self.chains.get(chain));
            let looked_up = looked_up.and_then(|chain| self.hop(chain, 0));
            let next_hops = next_hops.iter().copied().chain(looked_up);
            return next_hops.chain([NextHop::Direct]).collect();
        };
        let chains = route.chains.iter();
        let hops = chains.filter_map(|chain| self.hop(self.chains.get(*chain)?, 0));
        hops.chain(route.direct.then_some(NextHop::Direct))
            .collect()
    }

    /// The route for a flow, if there is one.
    pub fn route(&self, flow: &Flow) -> Option<&Route> {
        let best = Match::best(self.routes.iter().map(|route| &route.matches), flow)?;
        self.routes.get(best)
    }

    /// Where a flow goes that came here with `label`.
    ///
    /// # Errors
    /// The label leads nowhere.
    pub fn onward(&self, label: Option<Label>) -> Result<NextHop, NoNextHop> {
        let Some(label) = label else {
            return Ok(NextHop::Direct);
        };
        let (number, position) = (label.chain(), label.position());
        let chain = self.chain(number).ok_or(NoNextHop::UnknownChain(number))?;
        let here = usize::from(position).checked_sub(1);
        if here.is_some_and(|here| matches!(chain.nodes.get(here), Some(Some(_)))) {
            return Err(NoNextHop::NotHere(number, position));
        }
        if usize::from(position) == chain.nodes.len() {
            return Ok(NextHop::Direct);
        }
        if chain.nodes.get(usize::from(position)).is_none() {
            return Err(NoNextHop::UnknownPosition(number, position));
        }
        self.hop(chain, position)
            .ok_or(NoNextHop::UnknownPeer(number, position))
    }

    /// The place of the peer of this number.
    pub fn peer(&self, id: NodeId) -> Option<usize> {
        self.peers.place(id.to_bits())
    }

    /// Whether connections of a peer come from an address.
    pub fn is_peer(&self, ip: IpAddr) -> bool {
        let mut peers = self.peers.iter();
        peers.any(|peer| peer.address.ip() == ip || peer.source_addresses.contains(&ip))
    }

    /// The peer whose SYN options may come from an address.
    pub fn syn_option_peer(&self, ip: IpAddr) -> Option<&Peer> {
        let mut syn_option_peers = self
            .peers
            .iter()
            .filter(|peer| peer.encapsulation == Encapsulation::SynOption);
        syn_option_peers.find(|peer| peer.source_addresses.contains(&ip))
    }

    /// The chain of this number.
    pub fn chain(&self, number: u32) -> Option<&Chain> {
        self.chains.get(self.chains.place(number.into())?)
    }

    /// The hop of a chain that leaves from `position`; nothing where there is none to a peer.
    pub fn hop(&self, chain: &Chain, position: u8) -> Option<NextHop> {
        let peer = (*chain.nodes.get(usize::from(position))?)?;
        let last = usize::from(position) + 1 == chain.nodes.len();
        let label = if last {
            None
        } else {
            Some(Label::new(chain.number, position)?.next()?)
        };
        Some(NextHop::Hop {
            peer: self.peers.get(peer)?.id,
            chain: chain.number,
            label,
        })
    }
}

#[cfg(test)]
mod tests;
