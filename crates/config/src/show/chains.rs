// SPDX-License-Identifier: Apache-2.0
//! Other nodes and what concerns them, back in the shape of the file. Keys are
//! not shown.

use posthaste_relay::chain;
use posthaste_wire::segments::SegmentList;
use serde::Serialize;

use super::super::value::{HIDDEN, show_duration, show_size};
use super::super::{self as config, Config};
use super::{Matches, Side, side, texts};

#[derive(Debug, Serialize)]
pub(super) struct Access {
    clients: Vec<String>,
    destinations: Vec<String>,
    cookies: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    cookie: Option<&'static str>,
    allow_lookup: Vec<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct Measure {
    enabled: bool,
    reflector: Vec<String>,
    open_to: Vec<String>,
    interval: String,
    interval_in_use: String,
    source_ports: u8,
}

#[derive(Debug, Serialize)]
pub(super) struct Listener {
    mode: &'static str,
    address: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    destination: Option<String>,
    multipath: bool,
}

#[derive(Debug, Serialize)]
pub(super) struct Peer {
    name: String,
    id: u64,
    address: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key_file: Option<String>,
    key_id: u32,
    header_in: &'static str,
    source_addresses: Vec<String>,
    pool_min: u16,
    pool_max: u16,
    reflector: String,
    socket: Side,
}

/// `[controller]`, as it is written.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Controller {
    Followed {
        address: String,
        key: String,
        identity_file: String,
        state: String,
        transfer_size: String,
    },
    LooksUp {
        lookup: String,
    },
}

impl Controller {
    pub(super) fn of(config: &Config) -> Option<Self> {
        let chains = &config.policy.chains;
        // First: a node with a look-up node has no controller that it follows.
        if let Some(chain) = chains.resolve {
            let lookup = chains.node_name(chains.chains.get(chain)?.path.peer);
            return Some(Self::LooksUp { lookup });
        }
        let follow = config.follow.as_ref()?;
        Some(Self::Followed {
            address: follow.address.to_string(),
            key: follow.key.to_string(),
            identity_file: follow.identity_file.display().to_string(),
            state: follow.state.display().to_string(),
            transfer_size: show_size(follow.transfer_bytes),
        })
    }
}

#[derive(Debug, Serialize)]
pub(super) struct Chain {
    name: String,
    nodes: Vec<Node>,
}

/// A node of a chain: a peer by its name, any other by its number.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Node {
    Peer(String),
    Other(u64),
}

#[derive(Debug, Serialize)]
pub(super) struct Route {
    #[serde(flatten)]
    matches: Matches,
    #[serde(skip_serializing_if = "Option::is_none")]
    chains: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    direct: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    transfer_size: Option<String>,
}

impl Access {
    pub(super) fn of(config: &Config) -> Self {
        let access = &config.policy.access;
        let peers = &config.policy.chains.peers;
        let named = peers
            .iter()
            .filter(|peer| access.resolve.contains(&peer.id));
        Self {
            clients: texts(&access.clients),
            destinations: texts(&access.destinations),
            cookies: access.cookies,
            // Whether there is one is shown, the secret itself never.
            cookie: access.cookie.as_ref().map(|_| HIDDEN),
            allow_lookup: named.map(|peer| peer.name.to_string()).collect(),
        }
    }
}

impl Measure {
    pub(super) fn of(measure: &config::Measure) -> Self {
        Self {
            enabled: measure.enabled,
            reflector: texts(&measure.reflectors),
            open_to: texts(&measure.open_to),
            interval: show_duration(measure.schedule.interval),
            interval_in_use: show_duration(measure.schedule.interval_in_use),
            source_ports: measure.schedule.ports,
        }
    }
}

impl Listener {
    pub(super) fn all(config: &Config) -> Vec<Self> {
        let explicit = config.explicit.iter().map(|address| Self {
            mode: "explicit",
            address: address.to_string(),
            destination: None,
            multipath: config.multipath_listeners.contains(address),
        });
        let fixed = config.fixed.iter().map(|fixed| Self {
            mode: "fixed",
            address: fixed.address.to_string(),
            destination: Some(fixed.destination.to_string()),
            multipath: config.multipath_listeners.contains(&fixed.address),
        });
        explicit.chain(fixed).collect()
    }
}

pub(super) fn peers(config: &Config) -> Vec<Peer> {
    let peers = config.policy.chains.peers.iter();
    let peers = peers.zip(&config.spelling.key_files);
    let peers = peers.zip(&config.measure.reflectors_of_peers);
    let shown = peers.map(|((peer, key_file), reflector)| Peer {
        name: peer.name.to_string(),
        id: peer.id.into(),
        address: peer.address.to_string(),
        // Either of the two, as the reader demands, so that what is shown can be read again.
        key: key_file.is_none().then_some(HIDDEN),
        key_file: key_file.as_ref().map(|path| path.display().to_string()),
        key_id: peer.key_id,
        header_in: peer.encapsulation.name(),
        source_addresses: texts(&peer.source_addresses),
        pool_min: peer.pool.min,
        pool_max: peer.pool.max,
        reflector: reflector.map_or_else(|| "off".into(), |address| address.to_string()),
        socket: side(&peer.socket),
    });
    shown.collect()
}

pub(super) fn chains(config: &Config) -> Vec<Chain> {
    let chains = &config.policy.chains;
    let node = |id| match chains.peer(id) {
        Some(place) => Node::Peer(chains.peers[place].name.to_string()),
        None => Node::Other(id.into()),
    };
    let configured = chains.chains.iter();
    // Made by the reader for controller.lookup: a file cannot have it as a chain.
    let configured = configured.filter(|chain| chain.path.rest != SegmentList::RESOLVE);
    let shown = configured.map(|chain| Chain {
        name: chain.name.to_string(),
        nodes: chain.path.nodes().map(node).collect(),
    });
    shown.collect()
}

pub(super) fn routes(config: &Config) -> Vec<Route> {
    let chains = &config.policy.chains;
    let name = |index: &usize| chains.chains[*index].name.to_string();
    let shown = |route: &chain::Route| {
        // The reader accepts neither chains nor direct beside transfer_size.
        let is_own = route.transfer_bytes.is_none();
        Route {
            matches: Matches::of(&route.matches),
            chains: is_own.then(|| route.chains.iter().map(name).collect()),
            direct: is_own.then_some(route.direct),
            transfer_size: route.transfer_bytes.map(show_size),
        }
    };
    chains.routes.iter().map(shown).collect()
}
