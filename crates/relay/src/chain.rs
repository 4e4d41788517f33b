// SPDX-License-Identifier: Apache-2.0
//! Which nodes carry a flow: peers, chains of them, and for which destinations
//! they are. Read-only for the workers. A configuration fills it; a controller
//! can fill it in the same way.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use posthaste_wire::header::{Label, NodeId};
use posthaste_wire::seal::Key;

use crate::flow::Flow;
use crate::intercept::Start;
use crate::policy::{Match, SideOptions};
use crate::warm::path::RATE_ASSUMED;

/// What carries the chain header over a cold hop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Carrier {
    /// The first bytes of the stream (RFC 8803), in the SYN where that is taken.
    #[default]
    Convert,
    /// An option of the SYN heralds what the first bytes ask for, where both ends
    /// and the destination are IPv4.
    Option,
}

impl Carrier {
    /// Its name in the configuration and in logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Convert => "convert",
            Self::Option => "option",
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
    pub carrier: Carrier,
    /// Addresses that its connections come from.
    pub calls_from: Vec<IpAddr>,
    /// How many warm hops to it a worker keeps open.
    pub pool: PoolLimits,
    /// Settings of the sockets of hops to it.
    pub socket: SideOptions,
}

impl Peer {
    /// How connections with it start while nothing is known of the way.
    pub fn start(&self) -> Start {
        self.start_at(self.rate_assumed(), None)
    }

    /// How they start on a way that bears so many bytes per second and has such a round
    /// trip, as far as is known: with no less than the operator says, or RFC 6928.
    pub(crate) fn start_at(&self, rate: u32, round: Option<Duration>) -> Start {
        Start {
            segments: self.socket.initial_window.unwrap_or(10),
            rate,
            round,
        }
    }

    /// What the way to it is taken to bear, in bytes per second, while nobody knows: 0,
    /// nothing, for nodes that are not our own, and where the operator says how
    /// connections are to start.
    pub(crate) fn rate_assumed(&self) -> u32 {
        let is_ours = self.key.is_some() && self.socket.initial_window.is_none();
        if is_ours { RATE_ASSUMED } else { 0 }
    }
}

impl fmt::Debug for Peer {
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peer")
            .field("name", &self.name)
            .field("id", &self.id)
            .field("address", &self.address)
            .field("carrier", &self.carrier)
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
    /// Its number in labels, of 24 bits and not 0: the same at all its nodes.
    pub number: u32,
    /// The nodes after the first, in order: indices into [`Chains::peers`],
    /// `None` for one that this node does not know, and so never follows.
    pub nodes: Vec<Option<usize>>,
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
}

/// All that is known of other nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chains {
    /// The number of this node; without one it has no peers.
    pub me: Option<NodeId>,
    /// Flows begin at the first node that they come to: here are only their clients.
    pub is_client: bool,
    /// Every peer.
    pub peers: Vec<Peer>,
    /// Every chain.
    pub chains: Vec<Chain>,
    /// In the order of the configuration.
    pub routes: Vec<Route>,
}

/// Where a flow goes from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// To its destination.
    Direct,
    /// To a node.
    Hop {
        /// Index into [`Chains::peers`].
        peer: usize,
        /// Index into [`Chains::chains`].
        chain: usize,
        /// What the node is told of the rest of the way; `None` when it is the
        /// last.
        label: Option<Label>,
    },
}

/// Why a label leads nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoWay {
    /// There is no chain of this number here.
    #[error("no chain has the number {0}")]
    UnknownChain(u32),
    /// The chain is shorter.
    #[error("chain {0} has no position {1}")]
    UnknownPosition(u32, u8),
    /// The next node of the chain is no peer of this one.
    #[error("the node after position {1} of chain {0} is no peer")]
    UnknownPeer(u32, u8),
}

impl Chains {
    /// The ways for a flow that begins here, the best first. Empty when it is
    /// to be refused. The route with the longest destination prefix is taken,
    /// then that with the longest source prefix, then the one with the
    /// narrowest ports, then the first.
    pub fn ways(&self, flow: &Flow) -> Vec<Way> {
        let Some(route) = self.route(flow) else {
            return vec![Way::Direct];
        };
        let chains = route.chains.iter();
        let hops = chains.filter_map(|chain| self.first_hop(*chain));
        hops.chain(route.direct.then_some(Way::Direct)).collect()
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
    pub fn onward(&self, label: Option<Label>) -> Result<Way, NoWay> {
        let Some(label) = label else {
            return Ok(Way::Direct);
        };
        let (number, position) = (label.chain(), label.position());
        let mut chains = self.chains.iter();
        let index = chains
            .position(|chain| chain.number == number)
            .ok_or(NoWay::UnknownChain(number))?;
        let nodes = &self.chains[index].nodes;
        if usize::from(position) == nodes.len() {
            return Ok(Way::Direct);
        }
        if nodes.get(usize::from(position)).is_none() {
            return Err(NoWay::UnknownPosition(number, position));
        }
        self.hop(index, position)
            .ok_or(NoWay::UnknownPeer(number, position))
    }

    /// The peer of this number.
    pub fn peer(&self, id: NodeId) -> Option<usize> {
        self.peers.iter().position(|peer| peer.id == id)
    }

    /// The peer whose heralds may come from an address.
    pub fn heralding_from(&self, ip: IpAddr) -> Option<&Peer> {
        let mut heralding = self
            .peers
            .iter()
            .filter(|peer| peer.carrier == Carrier::Option);
        heralding.find(|peer| peer.calls_from.contains(&ip))
    }

    fn first_hop(&self, chain: usize) -> Option<Way> {
        self.hop(chain, 0)
    }

    /// The hop of a chain that leaves from `position`.
    fn hop(&self, chain: usize, position: u8) -> Option<Way> {
        let Chain { number, nodes, .. } = self.chains.get(chain)?;
        let peer = (*nodes.get(usize::from(position))?)?;
        let last = usize::from(position) + 1 == nodes.len();
        let label = Label::new(*number, position)?.next();
        Some(Way::Hop {
            peer,
            chain,
            label: if last { None } else { Some(label?) },
        })
    }
}

#[cfg(test)]
mod tests;
