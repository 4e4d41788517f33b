// SPDX-License-Identifier: Apache-2.0
//! Which nodes carry a flow: peers, chains of them, and the destinations that use them.
//! Read-only for the workers. The configuration fills it, and a plan adds the destinations
//! that the configuration does not name.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use posthaste_wire::auth::Key;
use posthaste_wire::header::NodeId;
use posthaste_wire::segments::{Segment, SegmentList};

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

/// What carries the chain header over a cold hop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Encapsulation {
    /// The first bytes of the stream (RFC 8803), in the SYN where that is taken.
    #[default]
    Stream,
    /// An option of the SYN announces what the first bytes request, where both ends
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

/// What carries hops to a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Transport {
    /// A TCP connection for each flow.
    #[default]
    Tcp,
    /// A connection of Multipath TCP for each flow (RFC 8684), as [`Transport::Tcp`] where one of
    /// the nodes has none.
    Mptcp,
    /// A stream of a QUIC connection while one is up, else as [`Transport::Tcp`].
    Quic,
    /// A stream of a QUIC connection; without one the peer gets no flow.
    QuicOnly,
    /// As [`Transport::Quic`] while hops over TCP lose much, else as [`Transport::Tcp`].
    Auto,
}

impl Transport {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Tcp,
        Self::Mptcp,
        Self::Quic,
        Self::QuicOnly,
        Self::Auto,
    ];

    /// Whether tunnels carry flows, at least at times.
    pub fn has_tunnels(self) -> bool {
        matches!(self, Self::Quic | Self::QuicOnly | Self::Auto)
    }

    /// Whether hops may be connections of TCP.
    pub fn has_sockets(self) -> bool {
        self != Self::QuicOnly
    }

    /// Its name in the configuration and in logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Mptcp => "mptcp",
            Self::Quic => "quic",
            Self::QuicOnly => "quic-only",
            Self::Auto => "auto",
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
    /// What the two nodes share. `None` for one that authorizes requests by address, as a
    /// converter of RFC 8803 does.
    pub key: Option<Key>,
    /// Which of their keys that is, if there is one.
    pub key_id: u32,
    /// Another of their keys, which it may use and this node does not, with its number: the next one, or
    /// the former.
    pub other_key: Option<(Key, u32)>,
    /// What carries the chain header over cold hops to it and, if that is the
    /// option, may carry it over those from it.
    pub encapsulation: Encapsulation,
    /// What carries hops to it, and may carry those from it.
    pub transport: Transport,
    /// Addresses that its connections come from.
    pub source_addresses: Vec<IpAddr>,
    /// How many warm hops to it a worker keeps open.
    pub pool: PoolLimits,
    /// Bytes per second that this node sends over hops to it at most: over TCP, if these have the node's
    /// own congestion control, and as much over tunnels.
    pub rate_limit: Option<u32>,
    /// Settings of the sockets of hops to it.
    pub socket: SideOptions,
}

impl Peer {
    /// Whether this node uses the same key with both.
    pub(crate) fn has_key_of(&self, other: &Self) -> bool {
        self.key == other.key && self.key_id == other.key_id
    }

    /// The keys that it may use, with their numbers.
    pub fn keys(&self) -> impl Iterator<Item = (&Key, u32)> {
        let own = self.key.as_ref().map(|key| (key, self.key_id));
        let other = self.other_key.as_ref();
        own.into_iter().chain(other.map(|(key, id)| (key, *id)))
    }

    /// That with this number.
    pub(crate) fn key(&self, key_id: u32) -> Option<&Key> {
        let mut keys = self.keys();
        keys.find(|(_, id)| *id == key_id).map(|(key, _)| key)
    }

    /// How connections with it start while nothing is known of the way.
    pub fn start(&self) -> PathSettings {
        self.settings_at(self.initial_bandwidth(), None)
    }

    /// How they start on a path with this bandwidth in bytes per second and this round trip
    /// time, if known: with no less than the operator has configured, or RFC 6928.
    pub(crate) fn settings_at(&self, rate: u32, round: Option<Duration>) -> PathSettings {
        PathSettings {
            segments: self.socket.initial_window.unwrap_or(10),
            rate,
            round,
        }
    }

    /// The assumed bandwidth of the path to it before a measurement, in bytes per second: 0 (no
    /// assumption) for nodes that are not our own, and where the operator has configured how
    /// connections start.
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
            .field("transport", &self.transport)
            .field("pool", &self.pool)
            .finish_non_exhaustive()
    }
}

/// Bounds on the warm hops to one peer, at one worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolLimits {
    /// Kept open without any demand.
    pub min: u16,
    /// Never more than so many wait; 0 for a peer without warm hops.
    pub max: u16,
}

/// The nodes that carry a flow from here, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Path {
    /// The next node.
    pub peer: NodeId,
    /// The nodes behind it, which it receives in the chain header.
    pub rest: SegmentList,
}

impl Path {
    /// The path to a peer that is the only node behind this one.
    pub fn to(peer: NodeId) -> Self {
        let rest = SegmentList::EMPTY;
        Self { peer, rest }
    }

    /// The path to a peer that looks up the rest.
    pub fn by_resolve(peer: NodeId) -> Self {
        let rest = SegmentList::RESOLVE;
        Self { peer, rest }
    }

    /// The path over these nodes. `None` without a node, or if there are more than a header
    /// has room for.
    pub fn over(nodes: impl IntoIterator<Item = NodeId>) -> Option<Self> {
        let mut nodes = nodes.into_iter();
        let peer = nodes.next()?;
        let rest = SegmentList::of(nodes)?;
        Some(Self { peer, rest })
    }

    /// Its nodes in order, without one that the path leaves to a look-up.
    pub fn nodes(self) -> impl Iterator<Item = NodeId> {
        let rest = self.rest.iter().filter_map(|segment| match segment {
            Segment::Node(node) => Some(node),
            Segment::Resolve => None,
        });
        std::iter::once(self.peer).chain(rest)
    }
}

/// A path that flows which begin at this node use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// Its name in the configuration, in logs and in metrics.
    pub name: Arc<str>,
    /// Its nodes.
    pub path: Path,
}

impl Chain {
    /// The chain to a peer that looks up the rest of the path.
    pub fn by_resolve(peer: &Peer) -> Self {
        Self {
            name: format!("looked up by {}", peer.name).into(),
            path: Path::by_resolve(peer.id),
        }
    }
}

impl Numbering for Peer {
    fn number(&self) -> u64 {
        self.id.into()
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
    /// Every chain of flows that begin here.
    pub chains: Vec<Chain>,
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
    /// To the first node of a path. It is named by number, so that it stays the same one when
    /// there are other peers.
    Hop(Path),
}

/// Why a flow cannot continue on its route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoNextHop {
    /// The next segment is no peer of this node, or requests a look-up.
    Unknown,
    /// The route returns to this node.
    Loop,
}

impl Chains {
    /// The ways for a flow that begins here, the best first. Empty when it is
    /// to be refused. The route with the longest destination prefix is taken,
    /// then that with the longest source prefix, then the one with the
    /// narrowest ports, then the first. Without a route the plan decides, for transfers of so many
    /// `bytes` if the configuration contains that, and then the node that looks routes up.
    pub fn next_hops(&self, flow: &Flow, bytes: Option<u32>) -> Vec<NextHop> {
        let route = self.route(flow);
        let configured = route.and_then(|route| route.transfer_bytes);
        let Some(route) = route.filter(|_| configured.is_none()) else {
            let planned = self.planned.as_ref();
            let bytes = configured.or(bytes);
            let next_hops = planned.map_or(&[][..], |planned| planned.next_hops(flow, bytes));
            let looked_up = self.resolve.and_then(|chain| self.hop(chain));
            let next_hops = next_hops.iter().copied().chain(looked_up);
            return next_hops.chain([NextHop::Direct]).collect();
        };
        let chains = route.chains.iter();
        let hops = chains.filter_map(|chain| self.hop(*chain));
        hops.chain(route.direct.then_some(NextHop::Direct))
            .collect()
    }

    /// The route for a flow, if there is one.
    pub fn route(&self, flow: &Flow) -> Option<&Route> {
        let best = Match::best(self.routes.iter().map(|route| &route.matches), flow)?;
        self.routes.get(best)
    }

    /// The next hop of a flow that arrived with `segments`.
    ///
    /// # Errors
    /// The first segment is no peer, or the route returns here. Every node checks that, so a route passes none
    /// twice.
    pub fn onward(&self, segments: SegmentList) -> Result<NextHop, NoNextHop> {
        let me = self.me.map(Segment::Node);
        if segments.iter().any(|segment| Some(segment) == me) {
            return Err(NoNextHop::Loop);
        }
        match segments.split_first() {
            None => Ok(NextHop::Direct),
            Some((Segment::Node(peer), rest)) if self.peer(peer).is_some() => {
                Ok(NextHop::Hop(Path { peer, rest }))
            }
            Some(_) => Err(NoNextHop::Unknown),
        }
    }

    /// The place of the peer of this number.
    pub fn peer(&self, id: NodeId) -> Option<usize> {
        self.peers.place(id.into())
    }

    /// The peer of this number.
    pub(crate) fn find_peer(&self, id: NodeId) -> Option<&Peer> {
        self.peer(id).map(|place| &self.peers[place])
    }

    /// Whether connections of a peer come from an address.
    pub fn is_peer(&self, ip: IpAddr) -> bool {
        let mut peers = self.peers.iter();
        peers.any(|peer| peer.address.ip() == ip || peer.source_addresses.contains(&ip))
    }

    /// The peer whose SYN options may come from an address.
    pub fn syn_option_peer(&self, ip: IpAddr) -> Option<&Peer> {
        self.peers.iter().find(|peer| {
            // The option has no authentication tag: only configured addresses count.
            peer.encapsulation == Encapsulation::SynOption && peer.source_addresses.contains(&ip)
        })
    }

    /// The name of a path: that of the chain that has it, otherwise its nodes.
    pub fn path_name(&self, path: Path) -> String {
        match self.chain(path) {
            Some(chain) => chain.name.to_string(),
            None => self.unnamed(path),
        }
    }

    /// The name of a path that no configured chain has.
    pub fn unnamed(&self, path: Path) -> String {
        let names: Vec<String> = self.node_names(path).collect();
        match &names[..] {
            // Chains of the configuration may have the names of peers.
            [peer] => format!("to {peer}"),
            names => names.join(" > "),
        }
    }

    /// The names of a path's nodes.
    pub fn node_names(&self, path: Path) -> impl Iterator<Item = String> {
        path.nodes().map(|node| self.node_name(node))
    }

    /// The name of a peer, or the number of a node that is none.
    pub fn node_name(&self, node: NodeId) -> String {
        let peer = self.find_peer(node);
        peer.map_or_else(|| node.to_string(), |peer| peer.name.to_string())
    }

    /// The chain of flows from here that has a path.
    pub fn chain(&self, path: Path) -> Option<&Chain> {
        self.chains.iter().find(|chain| chain.path == path)
    }

    /// The hop to the first node of a chain; `None` if that node is no peer.
    fn hop(&self, chain: usize) -> Option<NextHop> {
        let path = self.chains.get(chain)?.path;
        self.peer(path.peer).map(|_| NextHop::Hop(path))
    }
}

#[cfg(test)]
mod tests;
