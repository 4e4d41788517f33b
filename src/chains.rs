// SPDX-License-Identifier: Apache-2.0
//! A node's knowledge of other nodes, and the route of a flow, as documents of the admin API. Pure:
//! callers pass the workers' knowledge.

use std::time::Duration;

use posthaste_daemon::http::{micros, millis};
use posthaste_relay::chain::{self, Chains, Encapsulation, Transport};
use posthaste_relay::control::Known;
use posthaste_relay::flow::Flow;
use posthaste_relay::policy::Prefix;

use posthaste_wire::syn_option;

use crate::api::chains as api;
use posthaste_config::{Config, ports_word};

mod data_path;
mod explain;
mod planned;

pub(crate) use data_path::{Packets, data_path};
pub(crate) use explain::{Question, explain};
pub(crate) use planned::Followed;

/// The combined knowledge of the workers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Workers {
    /// One per worker that answered.
    pub(crate) known: Vec<Known>,
    /// Whether a worker did not answer.
    pub(crate) incomplete: bool,
}

/// `GET /chains`
pub(crate) fn list(config: &Config, workers: &Workers) -> api::Chains {
    let chains = &config.policy.chains;
    api::Chains {
        id: chains.me.map(u64::from),
        listeners: config.explicit.iter().map(ToString::to_string).collect(),
        peers: chains.peers.iter().map(|peer| workers.peer(peer)).collect(),
        chains: (chains.chains.iter())
            .map(|chain| api::Chain {
                name: chain.name.to_string(),
                nodes: chains.node_names(chain.path).collect(),
                health: workers.path_health(chain.path),
            })
            .collect(),
        routes: (1..)
            .zip(&chains.routes)
            .map(|(number, route)| list_route(number, route, chains, workers))
            .collect(),
        incomplete: workers.incomplete,
    }
}

fn list_route(
    number: usize,
    route: &chain::Route,
    chains: &Chains,
    workers: &Workers,
) -> api::Route {
    let matches = &route.matches;
    let texts = |prefixes: &[Prefix]| prefixes.iter().map(Prefix::to_string).collect();
    let hops = route.chains.iter().filter_map(|index| {
        let chain = &chains.chains[*index];
        let peer = chains.peer(chain.path.peer)?;
        Some(workers.hop(chains, chain.path, &chains.peers[peer], None))
    });
    api::Route {
        number,
        destinations: texts(&matches.destinations),
        sources: texts(&matches.sources),
        ports: matches.ports.iter().map(ports_word).collect(),
        next_hops: next_hops(hops.chain(route.direct.then(direct))),
    }
}

/// The candidates, and which one is taken: one that is down only if all are.
fn next_hops(candidates: impl Iterator<Item = api::Candidate>) -> api::NextHops {
    let candidates: Vec<_> = candidates.collect();
    api::NextHops {
        taken: candidates
            .iter()
            .position(|candidate| candidate.usable)
            .or_else(|| (!candidates.is_empty()).then_some(0)),
        candidates,
    }
}

/// Why the SYN of a cold hop has no option although its peer accepts it.
fn no_option(
    (peer, path): (&chain::Peer, chain::Path),
    known: &api::Peer,
    flow: Option<&Flow>,
) -> Option<String> {
    if peer.encapsulation != Encapsulation::SynOption {
        return None;
    }
    if path.rest.len() > syn_option::SEGMENTS_MAX {
        return Some("the chain has too many nodes for an option".into());
    }
    if peer.address.is_ipv6() {
        return Some("the address of the peer is IPv6".into());
    }
    if flow.is_some_and(|flow| !flow.is_ipv4()) {
        return Some("the destination is IPv6".into());
    }
    (known.option_paused_ms > 0).then(|| "the peer did not accept the last ones".into())
}

/// What carries flows to a peer now: most of them, where hops over TCP lose much.
fn carrier(
    transport: Transport,
    tunnels: u64,
    failure: Option<&str>,
    lost_in_million: Option<u32>,
    is_lossy: bool,
) -> api::Carrier {
    let lost = lost_in_million.map(|lost| f64::from(lost) / 10_000.0);
    let (carries, why) = match transport {
        Transport::Tcp | Transport::Mptcp => (transport, None),
        Transport::Quic | Transport::QuicOnly | Transport::Auto if tunnels == 0 => {
            let why = failure.map(|failure| format!("no tunnel is up: {failure}"));
            let why = why.unwrap_or_else(|| "no tunnel is up".to_owned());
            let instead = transport.has_sockets().then_some(Transport::Tcp);
            let transport = instead.map_or("none", Transport::name).into();
            return api::Carrier {
                transport,
                why: Some(why),
            };
        }
        Transport::Quic => (transport, None),
        Transport::QuicOnly => (Transport::Quic, None),
        Transport::Auto => {
            let carries = if is_lossy {
                Transport::Quic
            } else {
                Transport::Tcp
            };
            let why = match lost {
                Some(lost) => format!("hops over TCP lose {lost:.2} % of their segments"),
                None => "no loss of hops over TCP is known".to_owned(),
            };
            (carries, Some(why))
        }
    };
    api::Carrier {
        transport: carries.name().into(),
        why,
    }
}

/// The direct connection.
fn direct() -> api::Candidate {
    api::Candidate {
        chain: None,
        nodes: Vec::new(),
        peer: None,
        usable: true,
        carried_by: None,
        waiting: 0,
        header_in: None,
        no_option: None,
    }
}

impl Workers {
    /// The candidate of a chain whose first hop is to `peer`, for a flow if one is given.
    fn hop(
        &self,
        chains: &Chains,
        path: chain::Path,
        peer: &chain::Peer,
        flow: Option<&Flow>,
    ) -> api::Candidate {
        let known = self.peer(peer);
        let no_option = no_option((peer, path), &known, flow);
        let encapsulation = if no_option.is_some() {
            Encapsulation::Stream
        } else {
            peer.encapsulation
        };
        api::Candidate {
            chain: Some(chains.path_name(path)),
            nodes: Vec::new(),
            usable: known.health.usable
                && self.path_health(path).usable
                && (peer.transport.has_sockets() || known.tunnels > 0 || self.known.is_empty()),
            peer: Some(known.name),
            carried_by: known.carried_by,
            waiting: known.waiting,
            header_in: Some(encapsulation.name().into()),
            no_option,
        }
    }

    fn peer(&self, peer: &chain::Peer) -> api::Peer {
        let all = self.known.iter().flat_map(|known| &known.peers);
        let states: Vec<_> = all.filter(|state| state.peer == peer.id).collect();
        let each = || states.iter();
        let tunnels = each().map(|state| u64::from(state.tunnels)).sum();
        let lost_in_million = each().filter_map(|state| state.lost_in_million).max();
        let is_lossy = each().any(|state| state.is_lossy);
        let failure = each().find_map(|state| state.tunnel_failure);
        api::Peer {
            name: peer.name.to_string(),
            transport: peer.transport.name().into(),
            carried_by: (peer.transport != Transport::Tcp && !states.is_empty())
                .then(|| carrier(peer.transport, tunnels, failure, lost_in_million, is_lossy)),
            tunnels,
            lost_in_million,
            id: peer.id.into(),
            address: peer.address.to_string(),
            pool_min: peer.pool.min,
            pool_max: peer.pool.max,
            header_in: peer.encapsulation.name().into(),
            option_paused_ms: each()
                .filter_map(|state| state.option_paused_for)
                .max()
                .map_or(0, millis),
            waiting: each().map(|state| u64::from(state.waiting)).sum(),
            dialing: each().map(|state| u64::from(state.dialing)).sum(),
            wanted: each().map(|state| u64::from(state.wanted)).sum(),
            // Queues only add to a round trip, so the least is the nearest to that of the path.
            rtt_us: each().filter_map(|state| state.rtt).min().map(micros),
            taken: each().map(|state| state.totals.taken).sum(),
            missed: each().map(|state| state.totals.missed).sum(),
            dialed: each().map(|state| state.totals.dialed).sum(),
            failed: each().map(|state| state.totals.failed).sum(),
            lost: each().map(|state| state.totals.lost).sum(),
            failure: each().find_map(|state| state.failure.clone()),
            health: self.health(each().map(|state| state.down_for)),
        }
    }

    fn path_health(&self, path: chain::Path) -> api::Health {
        let all = self.known.iter().flat_map(|known| &known.chains);
        let states = all.filter(|state| state.path == path);
        self.health(states.map(|state| state.down_for))
    }

    /// Combines the reports of the workers with any knowledge.
    fn health(&self, down_for: impl Iterator<Item = Option<Duration>>) -> api::Health {
        let all: Vec<_> = down_for.collect();
        let down = || all.iter().flatten();
        // Until then flows of some worker still take other routes.
        let longest = down().max().copied().unwrap_or_default();
        api::Health {
            // A worker without knowledge tries.
            usable: down().count() == 0 || down().count() < self.known.len(),
            known_to: all.len(),
            down_at: down().count(),
            down_for_ms: millis(longest),
        }
    }
}

#[cfg(test)]
mod tests;
