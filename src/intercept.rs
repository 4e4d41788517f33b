// SPDX-License-Identifier: Apache-2.0
//! Configures the redirect programs, and gives their workers access to this host.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};

use posthaste_bpf::{Error, Host, Observing, Patience, Redirect};
use posthaste_relay::chain::Encapsulation;
use posthaste_relay::intercept::{Closed, PathSettings};
use posthaste_relay::policy::Policy;

use crate::host::{self, Conntrack, Destroyer};
use posthaste_config::Config;
use posthaste_daemon::log::Log;

/// The log message for a host that blocks relays.
const BLOCKED: &str = "this host drops packets of relays: connections are forwarded unrelayed for \
    ten minutes, or until its firewall changes; posthaste doctor reports more";

/// The log message for a host whose tracked connections the node cannot look up.
const UNREADABLE: &str = "this host's connection tracking cannot be read: a relay may get the port of \
    an open connection of its client, and break it; load the module nf_conntrack_netlink, and restart the node";

/// A worker's access to this host.
pub(crate) struct WorkerHost {
    destroyer: Destroyer,
    conntrack: Conntrack,
    log: Log,
}

impl WorkerHost {
    /// For the network namespace of this thread.
    pub(crate) fn open(log: Log) -> Self {
        Self {
            // A netlink socket belongs to the network namespace of the thread that opens it.
            destroyer: Destroyer::open(),
            conntrack: Conntrack::open(),
            log,
        }
    }
}

impl WorkerHost {
    /// What a look-up of connection tracking found; nothing where it fails, which is logged.
    fn found(&self, found: io::Result<bool>) -> bool {
        found.unwrap_or_else(|error| {
            self.log.warn(UNREADABLE, &[("error", &error.to_string())]);
            false
        })
    }
}

impl Host for WorkerHost {
    fn tracks_connections(&mut self, now: bool) -> bool {
        self.conntrack.is_active(now)
    }

    fn tracks(&mut self, client: SocketAddr, server: SocketAddr) -> bool {
        let found = self.conntrack.has(client, server);
        self.found(found)
    }

    fn tracks_answers(&mut self, client: SocketAddr, server: SocketAddr) -> bool {
        let found = self.conntrack.answers(client, server);
        self.found(found)
    }

    fn untrack(&mut self, client: SocketAddr, server: SocketAddr) {
        self.conntrack.forget(client, server);
    }

    fn destroy(&mut self, closed: &[Closed]) {
        self.destroyer.destroy(closed);
    }

    fn path_addresses(&mut self) -> Option<Vec<IpAddr>> {
        match host::subflow_endpoints() {
            Ok(addresses) => Some(addresses),
            // A kernel without Multipath TCP has none.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Some(Vec::new()),
            Err(_) => None,
        }
    }

    fn end_time_wait(&mut self, local: SocketAddr, remote: SocketAddr) -> bool {
        self.destroyer.end_time_wait(local, remote)
    }

    fn report_block(&mut self) {
        self.log.warn(BLOCKED, &[]);
    }
}

/// Installs the rules of a configuration; returns their generation.
pub(crate) fn set_rules(redirect: &mut Redirect, config: &Config) -> Result<u8, Error> {
    // Without interception no transit flow is taken; the programs still hold SYN-ACKs of requested
    // flows until the client's validation.
    let rules = if config.transparent.enabled {
        config.policy.rules.as_slice()
    } else {
        &[]
    };
    redirect.set_rules(rules, config.relays(), is_chained(config))
}

/// Whether flows may be sent through other nodes.
pub(crate) fn is_chained(config: &Config) -> bool {
    // A controller may add routes at any time.
    !config.policy.chains.routes.is_empty() || config.follow.is_some()
}

/// The observation settings of the programs.
pub(crate) fn observing(config: &Config) -> Observing {
    Observing {
        ttl: config.observe.ttl,
        bypass: config.observe.bypass_for,
        gain_min: config.observe.gain_min,
    }
}

/// How long the packet path waits.
pub(crate) fn patience(config: &Config) -> Patience {
    Patience {
        idle: config.packet.idle,
        half_open: config.policy.half_open.expiry,
    }
}

/// The initial windows of connections with each peer, by its address.
pub(crate) fn peer_starts(policy: &Policy) -> Vec<(IpAddr, PathSettings)> {
    let peers = policy.chains.peers.iter();
    peers
        .map(|peer| (peer.address.ip(), peer.start()))
        .collect()
}

/// How many bytes per second may be sent to peers, by the addresses of their listeners and those
/// that they call from: the least where several share one.
pub(crate) fn rate_limits(policy: &Policy) -> HashMap<IpAddr, u32> {
    let mut limits = HashMap::new();
    for peer in policy.chains.peers.iter() {
        let Some(limit) = peer.rate_limit else {
            continue;
        };
        let others = peer.source_addresses.iter().copied();
        for address in others.chain([peer.address.ip()]) {
            let known = limits.entry(address).or_insert(limit);
            *known = limit.min(*known);
        }
    }
    limits
}

/// The addresses whose SYNs may announce flows.
pub(crate) fn syn_option_peers(policy: &Policy) -> Vec<IpAddr> {
    let peers = policy.chains.peers.iter();
    let peers = peers.filter(|peer| peer.encapsulation == Encapsulation::SynOption);
    let addresses = peers.flat_map(|peer| &peer.source_addresses);
    addresses.copied().collect()
}
