// SPDX-License-Identifier: Apache-2.0
//! The route of a flow, and the reasons.

use std::cmp::Reverse;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use posthaste_relay::chain::{Chains, NextHop, Route};
use posthaste_relay::flow::Flow;
use posthaste_relay::policy::{Match, Prefix};
use posthaste_relay::sys;

use super::planned::{Case, Followed};
use super::{Packets, Workers, direct, next_hops};
use crate::api::chains as api;
use posthaste_config::{Config, Word as _, ports_word};

/// The flow of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Question {
    destination: SocketAddr,
    pub(super) client: Option<IpAddr>,
    bytes: Option<u32>,
}

impl Question {
    /// Flows to `destination`, from `client` if given.
    ///
    /// # Errors
    /// The addresses are of different families.
    pub(crate) fn new(destination: SocketAddr, client: Option<IpAddr>) -> Result<Self, String> {
        let plain = SocketAddr::new(destination.ip().to_canonical(), destination.port());
        let client = client.map(|client| client.to_canonical());
        match client {
            Some(client) if client.is_ipv4() != plain.is_ipv4() => Err(format!(
                "no flow goes from {client} to {}: expected addresses of one family",
                plain.ip()
            )),
            _ => Ok(Self {
                destination: plain,
                client,
                bytes: None,
            }),
        }
    }

    /// Flows with so many bytes, if given.
    pub(crate) fn carrying(self, bytes: Option<u32>) -> Self {
        Self { bytes, ..self }
    }

    /// The destination of the flows.
    pub(crate) fn destination(&self) -> IpAddr {
        self.destination.ip()
    }

    /// The flow. Without a client, its source is an address that only a prefix of length 0
    /// contains.
    pub(crate) fn flow(&self) -> Flow {
        let nobody: IpAddr = if self.destination.is_ipv4() {
            Ipv4Addr::UNSPECIFIED.into()
        } else {
            Ipv6Addr::UNSPECIFIED.into()
        };
        let client = SocketAddr::new(self.client.unwrap_or(nobody), 0);
        Flow::new(client, self.destination)
    }
}

/// `GET /chains/explain`. `workers` and `packets` are `None` when no node was queried, `followed`
/// without a controller.
pub(crate) fn explain(
    config: &Config,
    question: &Question,
    workers: Option<&Workers>,
    followed: Option<&Followed>,
    packets: Option<&Packets>,
) -> api::Explanation {
    let flow = question.flow();
    let policy = &config.policy;
    let rule = policy.classify(&flow).map(|rule| &policy.rules[rule]);
    let nothing = Workers::default();
    let known = workers.unwrap_or(&nothing);
    let route = policy.chains.route(&flow);
    let case = Case {
        config,
        flow,
        rule,
        route: route.and_then(|taken| {
            (1..)
                .zip(&policy.chains.routes)
                .find(|(_, route)| *route == taken)
        }),
        wanted: question.bytes,
    };
    let size = case.size(followed);
    api::Explanation {
        destination: question.destination.to_string(),
        client: question.client.map(|client| client.to_string()),
        rule: rule.map(|rule| api::AppliedRule {
            name: rule.name.clone(),
            action: rule.action.word().into(),
        }),
        data_path: super::data_path(config, question, packets),
        routes: applied(&policy.chains, &flow),
        plan: case.plan(followed, size.as_ref().and_then(|size| size.class)),
        size,
        next_hops: next_hops(
            case.next_hops()
                .into_iter()
                .map(|way| candidate(config, way, &flow, known)),
        ),
        access: api::Access {
            denied: policy
                .access
                .permits(&flow, sys::leads_here)
                .err()
                .map(|special| special.name().into()),
            client_admitted: question.client.map(|client| policy.access.admits(client)),
        },
        workers_queried: workers.is_some(),
    }
}

fn candidate(config: &Config, way: NextHop, flow: &Flow, workers: &Workers) -> api::Candidate {
    let chains = &config.policy.chains;
    match way {
        NextHop::Direct => direct(),
        NextHop::Hop(path) => match chains.peer(path.peer) {
            Some(peer) => api::Candidate {
                nodes: chains.node_names(path).collect(),
                ..workers.hop(chains, path, &chains.peers[peer], Some(flow))
            },
            // Next hops are peers.
            None => direct(),
        },
    }
}

/// The routes for a flow, the narrowest first.
fn applied(chains: &Chains, flow: &Flow) -> Vec<api::AppliedRoute> {
    let taken = chains.route(flow);
    // By identity: two routes may have the same content.
    let is_taken = |route: &Route| taken.is_some_and(|taken| std::ptr::eq(taken, route));
    let routes = (1..).zip(&chains.routes);
    let mut all: Vec<_> = routes
        .filter_map(|(number, route)| Some((is_taken(route), apply(number, &route.matches, flow)?)))
        .collect();
    all.sort_by_key(|(taken, _)| Reverse(*taken));
    all.into_iter().map(|(_, applied)| applied).collect()
}

/// The parts of a route that match a flow; `None` when it does not match.
fn apply(number: usize, matches: &Match, flow: &Flow) -> Option<api::AppliedRoute> {
    let (client, server) = flow.addresses();
    let port = flow.server().port();
    let ports = matches.ports.iter().filter(|range| range.contains(&port));
    let narrowest = ports.min_by_key(|range| range.end() - range.start());
    if narrowest.is_none() && !matches.ports.is_empty() {
        return None;
    }
    Some(api::AppliedRoute {
        number,
        destination: longest(&matches.destinations, server)?,
        source: longest(&matches.sources, client)?,
        ports: narrowest.map(ports_word),
    })
}

/// The longest prefix that contains an address; `Some(None)` when the list is empty, and `None`
/// when no prefix of the list contains it.
fn longest(prefixes: &[Prefix], address: [u8; 16]) -> Option<Option<String>> {
    let holding = prefixes.iter().filter(|prefix| prefix.contains(address));
    match holding.max_by_key(|prefix| prefix.mapped_bits()) {
        Some(prefix) => Some(Some(prefix.to_string())),
        None => prefixes.is_empty().then_some(None),
    }
}
