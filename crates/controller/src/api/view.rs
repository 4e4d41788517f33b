// SPDX-License-Identifier: Apache-2.0
//! What the API shows of nodes, links and the plan.

use std::time::Duration;

use posthaste_control::message::{self, LinkState, NodeNumber};

use crate::documents::{Link, Links, Node, Nodes, Plan, Status};
use crate::server::{Inner, Server};

/// The whole in a few numbers.
pub(in super::super) fn status(server: &Server) -> Status {
    let now = server.now();
    let inner = server.lock();
    Status {
        version: env!("CARGO_PKG_VERSION").into(),
        uptime_seconds: now.as_secs_f64(),
        key: inner.config.server.identity.public().to_string(),
        nodes: inner.config.nodes.len(),
        connected: inner.sessions.len(),
        plan: plan_of(&inner, now),
    }
}

/// The newest plan in numbers.
pub(in super::super) fn plan(server: &Server) -> Plan {
    let now = server.now();
    plan_of(&server.lock(), now)
}

fn plan_of(inner: &Inner, now: Duration) -> Plan {
    let made = inner.made;
    let numbers = made.unwrap_or_default();
    let plan_version = inner.state.plan_version();
    let connected = inner.sessions.keys();
    let follows = |node: &&NodeNumber| inner.state.holds(**node) == Some(Some(plan_version));
    Plan {
        plan_version,
        age_seconds: made.map(|made| now.saturating_sub(made.at).as_secs_f64()),
        took_seconds: made.map(|made| made.took.as_secs_f64()),
        nodes: numbers.nodes,
        links: numbers.links,
        chains: numbers.chains,
        followed_by: connected.filter(follows).count(),
    }
}

/// Every node of the configuration.
pub(super) fn nodes(server: &Server) -> Nodes {
    let now = server.now();
    let inner = server.lock();
    let nodes = inner.config.nodes.iter();
    Nodes {
        nodes: nodes.map(|node| node_of(&inner, node, now)).collect(),
    }
}

fn node_of(inner: &Inner, node: &posthaste_config::controller::Node, now: Duration) -> Node {
    let session = inner.sessions.get(&node.id);
    let known = inner.state.registry.nodes().get(&node.id);
    let state = match (session, known) {
        (Some(_), _) => "connected",
        (None, Some(_)) => "away",
        (None, None) => "absent",
    };
    let hello = known.map(|known| &known.hello);
    let addresses = |of: fn(&message::Hello) -> &Vec<std::net::SocketAddr>| {
        let addresses = hello.into_iter().flat_map(of);
        addresses.map(ToString::to_string).collect()
    };
    Node {
        name: node.name.clone(),
        id: node.id,
        key: node.key.to_string(),
        state: state.into(),
        connected_seconds: session.map(|session| now.saturating_sub(session.since).as_secs_f64()),
        from: session.map(|session| session.from.to_string()),
        software: hello.map(|hello| hello.software.clone()),
        listeners: addresses(|hello| &hello.listeners),
        reflectors: addresses(|hello| &hello.reflectors),
        holds: inner.state.holds(node.id).flatten(),
        clock_offset_seconds: inner
            .state
            .clock_ahead_us(node.id)
            .map(|ahead_us| ahead_us as f64 / 1e6),
    }
}

/// Links of one node, or all, between nodes that have registered, each once.
///
/// # Errors
/// There is no such node.
pub(super) fn links(server: &Server, node: Option<&str>, limit: usize) -> Result<Links, String> {
    let inner = server.lock();
    let only = node.map(|name| inner.number(name)).transpose()?;
    let numbers: Vec<NodeNumber> = inner.state.registry.nodes().keys().copied().collect();
    let pairs = numbers.iter().enumerate();
    let pairs = pairs.flat_map(|(place, one)| {
        let others = numbers[place + 1..].iter();
        others.map(move |other| (*one, *other))
    });
    let wanted = |(one, other): &(NodeNumber, NodeNumber)| {
        only.is_none_or(|only| *one == only || *other == only)
    };
    let mut pairs = pairs.filter(wanted);
    let links = pairs.by_ref().take(limit).map(|(one, other)| match only {
        // From the node that the request names.
        Some(only) if only == other => link_of(&inner, other, one),
        _ => link_of(&inner, one, other),
    });
    let links = links.collect();
    // One more is looked for: a list that was cut must not pass for a whole one.
    let incomplete = pairs.next().is_some();
    Ok(Links { links, incomplete })
}

fn link_of(inner: &Inner, one: NodeNumber, other: NodeNumber) -> Link {
    let registry = &inner.state.registry;
    let agreed = registry.agreed(one, other);
    Link {
        from: inner.name(one),
        to: inner.name(other),
        reported: registry.reported(one, other).map(word),
        reported_back: registry.reported(other, one).map(word),
        rtt_us: agreed.link.map(|link| link.rtt_us),
        loss_ppm: agreed.link.map(|link| link.loss_ppm),
        disputed: agreed.is_disputed,
    }
}

fn word(state: LinkState) -> String {
    let word = match state {
        LinkState::Unmeasured => "unmeasured",
        LinkState::Up { .. } => "up",
        LinkState::Dead => "dead",
    };
    word.into()
}
