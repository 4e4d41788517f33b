// SPDX-License-Identifier: Apache-2.0
//! Other nodes and what concerns them. Keys are not shown.

use posthaste_relay::chain::Route;
use posthaste_wire::segments::SegmentList;

use super::super::value::{HIDDEN, show_rate, show_size};
use super::super::{Config, Measure};
use super::node::{matches, or_off, side};
use super::{Show, Shown, section, sections};

pub(super) fn access(config: &Config) -> Option<Shown> {
    let access = &config.policy.access;
    let peers = config.policy.chains.peers.iter();
    let named = peers.filter(|peer| access.resolve.contains(&peer.id));
    let named: Vec<&str> = named.map(|peer| &*peer.name).collect();
    section([
        ("clients", access.clients.show()),
        ("destinations", access.destinations.show()),
        ("cookies", access.cookies.show()),
        // Whether there is one is shown, the secret itself never.
        ("cookie", access.cookie.as_ref().map(|_| HIDDEN).show()),
        ("allow_lookup", named.show()),
    ])
}

pub(super) fn measure(measure: &Measure) -> Option<Shown> {
    let schedule = &measure.schedule;
    section([
        ("enabled", measure.enabled.show()),
        ("reflector", measure.reflectors.show()),
        ("open_to", measure.open_to.show()),
        ("interval", schedule.interval.show()),
        ("interval_in_use", schedule.interval_in_use.show()),
        ("source_ports", schedule.ports.show()),
    ])
}

pub(super) fn controller(config: &Config) -> Option<Shown> {
    let chains = &config.policy.chains;
    // First: a node with a look-up node has no controller that it follows.
    if let Some(chain) = chains.resolve {
        let lookup = chains.node_name(chains.chains.get(chain)?.path.peer);
        return section([("lookup", lookup.show())]);
    }
    let follow = config.follow.as_ref()?;
    section([
        ("address", follow.address.show()),
        ("key", follow.key.to_string().show()),
        ("identity_file", follow.identity_file.show()),
        ("state", follow.state.show()),
        ("transfer_size", show_size(follow.transfer_bytes).show()),
    ])
}

pub(super) fn listeners(config: &Config) -> Option<Shown> {
    let explicit = config.explicit.iter().map(|address| (address, None));
    let fixed = config.fixed.iter();
    let fixed = fixed.map(|fixed| (&fixed.address, Some(fixed.destination)));
    sections(explicit.chain(fixed).map(|(address, destination)| {
        let mode = destination.map_or("explicit", |_| "fixed");
        section([
            ("mode", mode.show()),
            ("address", address.show()),
            ("destination", destination.show()),
            (
                "multipath",
                config.multipath_listeners.contains(address).show(),
            ),
        ])
    }))
}

pub(super) fn peers(config: &Config) -> Option<Shown> {
    let peers = config.policy.chains.peers.iter();
    let peers = peers.zip(&config.spelling.key_files);
    let peers = peers.zip(&config.measure.reflectors_of_peers);
    sections(peers.map(|((peer, files), reflector)| {
        let other_id = peer.other_key.as_ref().map(|(_, id)| *id);
        let is_other_here = other_id.is_some() && files.other.is_none();
        section([
            ("name", (&*peer.name).show()),
            ("id", u64::from(peer.id).show()),
            ("address", peer.address.show()),
            // Either of the two, as the reader demands, so that what is shown can be read again.
            ("key", files.own.is_none().then_some(HIDDEN).show()),
            ("key_file", files.own.show()),
            ("key_id", peer.key_id.show()),
            ("other_key", is_other_here.then_some(HIDDEN).show()),
            ("other_key_file", files.other.show()),
            ("other_key_id", other_id.show()),
            ("header_in", peer.encapsulation.name().show()),
            ("transport", peer.transport.name().show()),
            ("rate_limit", peer.rate_limit.map(show_rate).show()),
            ("source_addresses", peer.source_addresses.show()),
            ("pool_min", peer.pool.min.show()),
            ("pool_max", peer.pool.max.show()),
            ("reflector", or_off(*reflector)),
            ("socket", side(&peer.socket)),
        ])
    }))
}

pub(super) fn chains(config: &Config) -> Option<Shown> {
    let chains = &config.policy.chains;
    // A peer by its name, any other node by its number.
    let node = |id| match chains.peer(id) {
        Some(place) => (&*chains.peers[place].name).show(),
        None => u64::from(id).show(),
    };
    let configured = chains.chains.iter();
    // Made by the reader for controller.lookup: a file cannot have it as a chain.
    let configured = configured.filter(|chain| chain.path.rest != SegmentList::RESOLVE);
    sections(configured.map(|chain| {
        let nodes = chain.path.nodes().filter_map(node).collect();
        section([
            ("name", (&*chain.name).show()),
            ("nodes", Some(Shown::List(nodes))),
        ])
    }))
}

pub(super) fn routes(config: &Config) -> Option<Shown> {
    let chains = &config.policy.chains;
    sections(chains.routes.iter().map(|route: &Route| {
        let names = route
            .chains
            .iter()
            .map(|index| &*chains.chains[*index].name);
        let names: Vec<&str> = names.collect();
        // The reader accepts neither chains nor direct beside transfer_size.
        let is_own = route.transfer_bytes.is_none();
        let own = [
            (
                "chains",
                is_own.then_some(names.as_slice()).and_then(Show::show),
            ),
            ("direct", is_own.then_some(route.direct).show()),
            ("transfer_size", route.transfer_bytes.map(show_size).show()),
        ];
        section(matches(&route.matches).into_iter().chain(own))
    }))
}
