// SPDX-License-Identifier: Apache-2.0
//! What a controller adds to the configuration: peers, chains, and whose destinations are whose.
//! Pure. The configuration goes first.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use posthaste_control::follower::Follower;
use posthaste_control::identity::Identity;
use posthaste_control::message::{self, Egress, Member, NodeNumber};
use posthaste_control::route_table::RouteTable;
use posthaste_relay::chain::{
    Chain, Chains, Encapsulation, NextHop, Path, Peer, Planned, PoolLimits, Prefixes, Toward,
    Transport,
};
use posthaste_relay::policy::Prefix;
use posthaste_wire::auth::Key;
use posthaste_wire::header::{NodeId, mapped};
use posthaste_wire::stamp;

use super::Observations;
use posthaste_config::{Config, Follow, KeyFiles};

/// Warm hops that a worker keeps open to a member: none before flows use the link.
const POOL: PoolLimits = PoolLimits { min: 0, max: 64 };

/// What a controller adds.
#[derive(Clone, Debug)]
pub(crate) struct PlanOverlay {
    /// The other nodes, also those that are gone, and where they answer probes.
    peers: Vec<(Peer, Option<SocketAddr>)>,
    /// Those that are gone: flows of others are still carried from and to them.
    removed: HashSet<NodeNumber>,
    /// Those that chains of flows from here may pass.
    settled: HashSet<NodeNumber>,
    plan: Option<RouteTable>,
    egresses: Vec<Egress>,
    observations: Observations,
    transfer_bytes: u32,
}

/// Whose a destination is, and what follows from that for flows from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PrefixOwner {
    /// As the controller sent it.
    pub(crate) egress: Egress,
    /// The size classes whose flows go by that node, a bit for each, the first is bit 0.
    pub(crate) classes: u64,
}

/// The keys that this node shares with others, each computed once.
#[derive(Debug, Default)]
pub(super) struct PairKeys(HashMap<[u8; 32], Option<Key>>);

impl PairKeys {
    fn of(&mut self, identity: &Identity, theirs: &[u8; 32]) -> Option<Key> {
        let key = self.0.entry(*theirs);
        key.or_insert_with(|| identity.pair_key(theirs)).clone()
    }
}

impl PlanOverlay {
    /// What a follower follows now.
    pub(super) fn of(
        follower: &Follower,
        settings: &Follow,
        identity: &Identity,
        keys: &mut PairKeys,
        observations: Observations,
    ) -> Self {
        let mut known = |member: &Member, exchange: &[u8; 32]| {
            let key = keys.of(identity, exchange)?;
            let key_id = key_id(&identity.exchange_public(), exchange);
            peer(member, (key, key_id), settings)
        };
        let members = follower.members();
        let mut peers: Vec<_> = members
            .filter_map(|(member, exchange)| known(member, exchange))
            .collect();
        // Nobody wants to know of links to who is gone.
        let removed = follower.former_members();
        peers.extend(removed.filter_map(|(member, exchange)| {
            let (peer, _) = known(member, exchange)?;
            Some((peer, None))
        }));
        let members = follower.members().map(|(member, _)| member.number);
        Self {
            peers,
            removed: follower
                .former_members()
                .map(|(member, _)| member.number)
                .collect(),
            plan: follower.plan().cloned(),
            settled: members.filter(|node| follower.is_settled(*node)).collect(),
            egresses: follower.egresses().to_vec(),
            observations,
            transfer_bytes: settings.transfer_bytes,
        }
    }

    /// Whose an address is; the longest prefix counts.
    pub(crate) fn whose(&self, ip: IpAddr) -> Option<PrefixOwner> {
        let address = message::Prefix {
            address: mapped(ip),
            bits: 128,
        };
        let holding = self.egresses.iter();
        let holding = holding.filter(|egress| egress.prefix.covers(&address));
        let egress = holding.max_by_key(|egress| egress.prefix.bits)?;
        Some(PrefixOwner {
            egress: *egress,
            classes: self.classes(egress),
        })
    }

    /// Whose flows to a prefix go by the node that has it: of those that it has by a table, all.
    fn classes(&self, egress: &Egress) -> u64 {
        match egress.rtt_us {
            None => u64::MAX,
            Some(_) => self
                .observations
                .by_egress
                .get(&egress.prefix)
                .copied()
                .unwrap_or(0),
        }
    }

    /// A configuration with what the controller adds.
    pub(crate) fn extend(&self, file: &Config) -> Config {
        let mut config = file.clone();
        let chains = &file.policy.chains;
        // The file has precedence: a controller cannot redirect a configured peer.
        let is_known = |peer: &Peer| Some(peer.id) == chains.me || chains.peer(peer.id).is_some();
        let mut peers = chains.peers.to_vec();
        for (peer, reflector) in self.peers.iter().filter(|(peer, _)| !is_known(peer)) {
            peers.push(peer.clone());
            // These lists run parallel to that of the peers.
            config.measure.reflectors_of_peers.push(*reflector);
            config.spelling.key_files.push(KeyFiles::default());
        }
        let extended = Chains {
            peers: peers.into(),
            ..Chains::clone(chains)
        };
        let extended = self.plan(extended);
        config.policy.chains = Arc::new(extended);
        config
    }

    fn plan(&self, mut chains: Chains) -> Chains {
        let Some(plan) = &self.plan else {
            return chains;
        };
        let gained = |egress: &&Egress| self.classes(egress) != 0;
        let key = |egress: &Egress| (egress.node, self.classes(egress));
        let mut keys: Vec<(NodeNumber, u64)> =
            self.egresses.iter().filter(gained).map(key).collect();
        // For the binary search below.
        keys.sort_unstable();
        keys.dedup();
        let toward = keys.iter().map(|(node, classes)| {
            // What is to come out at a node that is gone goes directly.
            let classes = if self.removed.contains(node) {
                0
            } else {
                *classes
            };
            self.toward(&chains, plan, (*node, classes))
        });
        let toward: Vec<Toward> = toward.collect();
        name_paths(&mut chains, &toward);
        let egresses = self.egresses.iter().filter(gained).filter_map(|egress| {
            let place = keys.binary_search(&key(egress)).ok()?;
            Some((prefix(&egress.prefix)?, u32::try_from(place).ok()?))
        });
        let learned = self.observations.sizes.iter();
        let learned = learned.filter_map(|(known, bytes)| Some((prefix(known)?, *bytes)));
        chains.planned = Some(Planned {
            egresses: Prefixes::new(egresses),
            toward,
            sizes: plan.sizes().into(),
            learned: Prefixes::new(learned),
            usual_bytes: self.transfer_bytes.into(),
        });
        chains
    }

    /// The next hops to an egress for flows of these size classes, of which each has a bit; the others go
    /// directly. Access links count as short: nothing is known of a client before it is answered.
    fn toward(
        &self,
        chains: &Chains,
        plan: &RouteTable,
        (egress, sizes): (NodeNumber, u64),
    ) -> Toward {
        let mut choices: Vec<Box<[NextHop]>> = Vec::new();
        let classes = (0..).zip(plan.sizes()).map(|(size, bytes)| {
            let class = plan.class(*bytes, 0).unwrap_or(0);
            let is_for = sizes.checked_shr(size).unwrap_or(0) & 1 == 1;
            let routes = plan.routes(egress, class).filter(|_| is_for);
            let paths = routes.filter_map(|between| self.path(chains, between, egress));
            let next_hops: Box<[NextHop]> = paths.map(NextHop::Hop).collect();
            let known = choices.iter().position(|known| *known == next_hops);
            let choice = known.unwrap_or_else(|| {
                choices.push(next_hops);
                choices.len() - 1
            });
            // There are no more than classes, and those are few.
            u8::try_from(choice).unwrap_or(u8::MAX)
        });
        let classes = classes.collect();
        Toward {
            classes,
            choices: choices.into(),
        }
    }

    /// The path over the nodes between here and an egress, if flows may use it now. Only the first node has
    /// to be a peer of this one.
    fn path(&self, chains: &Chains, between: &[NodeNumber], egress: NodeNumber) -> Option<Path> {
        let all = || between.iter().chain([&egress]);
        let is_direct = between.is_empty();
        if !is_direct && !all().all(|node| self.settled.contains(node)) {
            return None;
        }
        let nodes: Option<Vec<NodeId>> = all().map(|node| NodeId::new(*node)).collect();
        let path = Path::over(nodes?)?;
        chains.peer(path.peer).map(|_| path)
    }
}

/// Which of the keys of two nodes this is: the same at both, and of all keys of a node most likely
/// the only one, so that few are tried for a request.
fn key_id(ours: &[u8; 32], theirs: &[u8; 32]) -> u32 {
    let first = |key: &[u8; 32]| u32::from_be_bytes([key[0], key[1], key[2], key[3]]);
    first(ours) ^ first(theirs)
}

fn peer(
    member: &Member,
    (key, key_id): (Key, u32),
    settings: &Follow,
) -> Option<(Peer, Option<SocketAddr>)> {
    let address = *member.listeners.first()?;
    let mut callers: Vec<IpAddr> = member.listeners.iter().map(SocketAddr::ip).collect();
    // Several listeners may have one address.
    callers.dedup();
    let reflector = member.reflectors.first().copied();
    // A member that names no reflector may have one at the usual port.
    let usual = SocketAddr::new(address.ip(), stamp::PORT);
    let peer = Peer {
        name: member.name.as_str().into(),
        id: NodeId::new(member.number)?,
        address,
        key: Some(key),
        key_id,
        other_key: None,
        // The option has no authentication tag: only an operator can allow it.
        encapsulation: Encapsulation::Stream,
        // Both ends have to agree on more, which only operators do.
        transport: Transport::Tcp,
        rate_limit: None,
        source_addresses: callers,
        pool: POOL,
        socket: settings.socket.clone(),
    };
    Some((peer, Some(reflector.unwrap_or(usual))))
}

/// Adds a chain for each path that flows may use, unless the configuration has one.
fn name_paths(chains: &mut Chains, toward: &[Toward]) {
    let next_hops = toward.iter().flat_map(|toward| &toward.choices).flatten();
    let paths = next_hops.filter_map(|next_hop| match next_hop {
        NextHop::Hop(path) => Some(*path),
        NextHop::Direct => None,
    });
    let known: HashSet<Path> = chains.chains.iter().map(|chain| chain.path).collect();
    let new = paths.filter(|path| !known.contains(path));
    // Several egresses may be reached by one path.
    for path in new.collect::<BTreeSet<Path>>() {
        let name = chains.unnamed(path).into();
        chains.chains.push(Chain { name, path });
    }
}

fn prefix(prefix: &message::Prefix) -> Option<Prefix> {
    let address = Ipv6Addr::from(prefix.address);
    let bits = prefix.bits;
    match address.to_ipv4_mapped() {
        // A shorter prefix covers more than the mapped IPv4 addresses.
        Some(v4) if bits >= 96 => Prefix::new(v4.into(), bits - 96),
        _ => Prefix::new(address.into(), bits),
    }
}

#[cfg(test)]
mod tests;
