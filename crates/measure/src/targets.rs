// SPDX-License-Identifier: Apache-2.0
//! Which peers a node measures, and whose probes it answers, by the configuration.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use posthaste_relay::policy::Prefix;
use posthaste_wire::auth::Key;
use posthaste_wire::header::NodeId;
use posthaste_wire::stamp;

use posthaste_config::{Config, Schedule};

/// A peer whose link is measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) peer: NodeId,
    /// Its reflector.
    pub(super) reflector: SocketAddr,
    /// Its explicit listener.
    pub(super) listener: SocketAddr,
    /// The key that authenticates probes to it.
    pub(super) key: Option<Key>,
}

/// The parts of the configuration that measuring needs.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    /// The session of this node's probes.
    pub(super) session: u16,
    pub(super) mark: u32,
    pub(super) schedule: Schedule,
    pub(super) targets: Vec<Target>,
    /// Sources whose probes are answered without an authentication tag.
    open_to: Vec<Prefix>,
    /// Keys by session. Few nodes share a session.
    keys: HashMap<u16, Vec<Key>>,
}

impl Settings {
    pub(super) fn of(config: &Config) -> Self {
        let chains = &config.policy.chains;
        let measure = &config.measure;
        let mut keys: HashMap<u16, Vec<Key>> = HashMap::new();
        // Of all peers: those that this node does not measure may measure it.
        for peer in chains.peers.iter() {
            // Derived here once, not for each probe.
            let authenticating = peer.keys().map(|(key, _)| stamp::key(key));
            let session = stamp::session(peer.id);
            keys.entry(session).or_default().extend(authenticating);
        }
        let peers = chains.peers.iter().zip(&measure.reflectors_of_peers);
        let targets = peers.filter_map(|(peer, reflector)| {
            Some(Target {
                peer: peer.id,
                reflector: (*reflector)?,
                listener: peer.address,
                key: peer.key.as_ref().map(stamp::key),
            })
        });
        Self {
            // 0 stands for no session.
            session: chains.me.map_or(0, stamp::session),
            mark: config.transparent.socket_mark,
            schedule: measure.schedule,
            targets: targets.filter(|_| measure.enabled).collect(),
            open_to: measure.open_to.clone(),
            keys,
        }
    }

    pub(super) fn target(&self, peer: NodeId) -> Option<&Target> {
        self.targets.iter().find(|target| target.peer == peer)
    }

    /// Whether probes of this source are answered without an authentication tag.
    pub(super) fn is_open_to(&self, source: IpAddr) -> bool {
        // Prefixes store IPv4 addresses as mapped ones.
        let address = match source {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => v6.octets(),
        };
        self.open_to.iter().any(|prefix| prefix.contains(address))
    }

    /// The keys of the peers whose probes have this session.
    pub(super) fn keys_of(&self, session: u16) -> &[Key] {
        self.keys.get(&session).map_or(&[], Vec::as_slice)
    }
}
