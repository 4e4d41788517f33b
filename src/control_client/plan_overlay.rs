// SPDX-License-Identifier: Apache-2.0
//! What a controller adds to the configuration: peers, chains, and whose destinations are whose.
//! Pure. What the configuration says goes first.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use posthaste_control::follower::Follower;
use posthaste_control::identity::Identity;
use posthaste_control::message::{self, ChainNumber, DIRECT, Egress, Member, NodeNumber};
use posthaste_control::route_table::RouteTable;
use posthaste_relay::chain::{
    Chain, Chains, Encapsulation, NextHop, Peer, Planned, PoolLimits, Prefixes, Toward,
};
use posthaste_relay::policy::Prefix;
use posthaste_wire::auth::Key;
use posthaste_wire::header::NodeId;
use posthaste_wire::stamp;

use super::Observations;
use crate::config::{Config, Follow};

/// Warm hops that a worker keeps open to a member: none before flows ask for some.
const POOL: PoolLimits = PoolLimits { min: 0, max: 64 };

/// What a controller adds.
#[derive(Clone, Debug)]
pub(crate) struct PlanOverlay {
    /// The other nodes, also those that are gone, and where they answer probes.
    peers: Vec<(Peer, Option<SocketAddr>)>,
    /// Those that are gone: flows of others are still carried from and to them.
    removed: HashSet<NodeNumber>,
    plan: Option<RouteTable>,
    /// All that labels may name.
    chains: Vec<(ChainNumber, Vec<NodeNumber>)>,
    /// Those of them that flows from here take.
    taken: HashSet<ChainNumber>,
    egresses: Vec<Egress>,
    observations: Observations,
    transfer_bytes: u32,
}

/// Whose a destination is, and what follows from that for flows from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PrefixOwner {
    /// As the controller says.
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
        let chains = follower.chains();
        let chains: Vec<_> = chains
            .map(|(number, nodes)| (number, nodes.to_vec()))
            .collect();
        Self {
            peers,
            removed: follower
                .former_members()
                .map(|(member, _)| member.number)
                .collect(),
            plan: follower.plan().cloned(),
            taken: chains
                .iter()
                .filter(|(number, nodes)| follower.is_to_be_taken(*number, nodes))
                .map(|(number, _)| *number)
                .collect(),
            chains,
            egresses: follower.egresses().to_vec(),
            observations,
            transfer_bytes: settings.transfer_bytes,
        }
    }

    /// Whose an address is; the longest prefix counts.
    pub(crate) fn whose(&self, ip: IpAddr) -> Option<PrefixOwner> {
        let octets = match ip.to_canonical() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => v6.octets(),
        };
        let address = message::Prefix {
            address: octets,
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
        let is_known = |peer: &Peer| Some(peer.id) == chains.me || chains.peer(peer.id).is_some();
        let mut peers = chains.peers.to_vec();
        for (peer, reflector) in self.peers.iter().filter(|(peer, _)| !is_known(peer)) {
            peers.push(peer.clone());
            config.measure.reflectors_of_peers.push(*reflector);
            config.spelling.key_files.push(None);
        }
        let extended = Chains {
            peers: peers.into(),
            ..Chains::clone(chains)
        };
        let extended = self.plan(extended, &mut config.spelling.nodes);
        config.policy.chains = Arc::new(extended);
        config
    }

    fn plan(&self, mut chains: Chains, spelling: &mut Vec<Vec<String>>) -> Chains {
        let numbered = self.chains.iter();
        let mut numbered: Vec<(ChainNumber, &[NodeNumber])> = numbered
            .map(|(number, nodes)| (*number, nodes.as_slice()))
            .collect();
        numbered.retain(|(number, _)| chains.chain(*number).is_none());
        numbered.sort_unstable();
        let mut all = chains.chains.to_vec();
        for (number, nodes) in &numbered {
            let (chain, names) = chain(&chains, *number, &nodes[1..]);
            all.push(chain);
            spelling.push(names);
        }
        let Some(plan) = &self.plan else {
            chains.chains = all.into();
            return chains;
        };
        let mut nodes: Vec<NodeNumber> = self.egresses.iter().map(|egress| egress.node).collect();
        nodes.sort_unstable();
        nodes.dedup();
        for egress in nodes.iter().filter_map(|node| place(&chains, *node)) {
            let peer = &chains.peers[egress];
            all.push(Chain::between_two(peer, egress));
            spelling.push(vec![peer.name.to_string()]);
        }
        chains.chains = all.into();
        let is_own = |number: &ChainNumber| {
            let found = numbered.binary_search_by_key(number, |one| one.0);
            found.is_ok() && self.taken.contains(number)
        };
        let gained = |egress: &&Egress| self.classes(egress) != 0;
        let key = |egress: &Egress| (egress.node, self.classes(egress));
        let mut keys: Vec<(NodeNumber, u64)> =
            self.egresses.iter().filter(gained).map(key).collect();
        keys.sort_unstable();
        keys.dedup();
        let toward = keys.iter().map(|(node, classes)| {
            // What is to come out at a node that is gone goes directly.
            let classes = if self.removed.contains(node) {
                0
            } else {
                *classes
            };
            toward(&chains, plan, (*node, classes), is_own)
        });
        let toward = toward.collect();
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
    callers.dedup();
    let reflector = member.reflectors.first().copied();
    let usual = SocketAddr::new(address.ip(), stamp::PORT);
    let peer = Peer {
        name: member.name.as_str().into(),
        id: NodeId::new(member.number)?,
        address,
        key: Some(key),
        key_id,
        encapsulation: Encapsulation::Stream,
        source_addresses: callers,
        pool: POOL,
        socket: settings.socket.clone(),
    };
    Some((peer, Some(reflector.unwrap_or(usual))))
}

fn place(chains: &Chains, node: NodeNumber) -> Option<usize> {
    chains.peer(NodeId::new(node)?)
}

/// A chain of the plan, and the names of its nodes after the first.
fn chain(chains: &Chains, number: ChainNumber, nodes: &[NodeNumber]) -> (Chain, Vec<String>) {
    let places: Vec<Option<usize>> = nodes.iter().map(|node| place(chains, *node)).collect();
    let names = nodes.iter().zip(&places).map(|(node, place)| match place {
        Some(place) => chains.peers[*place].name.to_string(),
        None => node.to_string(),
    });
    let names = names.collect();
    let chain = Chain {
        name: format!("#{number}").into(),
        number,
        nodes: places,
    };
    (chain, names)
}

/// The ways to an egress for flows of these size classes, of which each has a bit; the others go
/// directly. Access links count as short: nothing is known of a client before it is answered.
fn toward(
    chains: &Chains,
    plan: &RouteTable,
    (egress, sizes): (NodeNumber, u64),
    is_own: impl Fn(&ChainNumber) -> bool,
) -> Toward {
    let way = |number: &ChainNumber| {
        let chain = match *number {
            DIRECT => {
                let place = place(chains, egress)?;
                let between = Chain::between_two(&chains.peers[place], place);
                return chains.hop(&between, 0);
            }
            // The configuration may have another chain of this number.
            _ if !is_own(number) => return None,
            number => chains.chain(number)?,
        };
        chains.hop(chain, 0)
    };
    let mut choices: Vec<Box<[NextHop]>> = Vec::new();
    let classes = (0..).zip(plan.sizes()).map(|(size, bytes)| {
        let class = plan.class(*bytes, 0).unwrap_or(0);
        let is_for = sizes.checked_shr(size).unwrap_or(0) & 1 == 1;
        let numbers = if is_for {
            plan.routes(egress, class)
        } else {
            &[]
        };
        let routes: Box<[NextHop]> = numbers.iter().filter_map(way).collect();
        let known = choices.iter().position(|known| *known == routes);
        let choice = known.unwrap_or_else(|| {
            choices.push(routes);
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

fn prefix(prefix: &message::Prefix) -> Option<Prefix> {
    let address = Ipv6Addr::from(prefix.address);
    let bits = prefix.bits;
    match address.to_ipv4_mapped() {
        Some(v4) if bits >= 96 => Prefix::new(v4.into(), bits - 96),
        _ => Prefix::new(address.into(), bits),
    }
}

#[cfg(test)]
mod tests;
