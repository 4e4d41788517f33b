// SPDX-License-Identifier: Apache-2.0
//! The policy of the worker of a command: relay everything through the one node.

use std::time::Duration;

use posthaste_relay::accept_mode::AcceptMode;
use posthaste_relay::chain::{Chain, Chains, Path, Route};
use posthaste_relay::policy::{
    Action, Bypass, DataPath, HalfOpenLimits, Match, Multipath, Policy, Rule, SideOptions,
    SourceAddress, Timeouts,
};

use posthaste_config::Config;

use super::via::Via;

/// Name of the only rule, peer and chain.
const NAME: &str = "run";
/// Connections have no timeout but those of their ends and keepalive.
const FOR_EVER: Duration = Duration::from_secs(40 * 24 * 3600);

/// One rule, one peer, one chain with it, and no other route.
pub(super) fn toward(via: &Via) -> Policy {
    let node = Config::default().node;
    let rule = Rule {
        name: NAME.to_owned(),
        matches: Match::default(),
        action: Action::Relay,
        // Handshakes within this host are complete at once: there is nothing to overlap.
        accept: AcceptMode::LATE,
        observe: false,
        source_address: SourceAddress::Node,
        data_path: DataPath::Socket,
        bypass: Bypass::Off,
        multipath: Multipath::Pass,
        upstream_multipath: false,
        proxy_protocol: false,
        transfer_bytes: None,
        downstream: SideOptions::default(),
        upstream: SideOptions::default(),
        timeouts: Timeouts {
            idle: FOR_EVER,
            client_fin: FOR_EVER,
            server_fin: FOR_EVER,
            ..Timeouts::default()
        },
    };
    let chain = Chain {
        name: NAME.into(),
        path: Path::to(via.peer().id),
    };
    let route = Route {
        matches: Match::default(),
        chains: vec![0],
        // What is meant to go through the node must not go past it unnoticed.
        direct: false,
        transfer_bytes: None,
    };
    Policy {
        rules: vec![rule],
        half_open: HalfOpenLimits::default(),
        strict_after_failure: Duration::ZERO,
        relays_max: node.relays_max,
        chains: Chains {
            me: via.me(),
            is_client: true,
            peers: vec![via.peer().clone()].into(),
            chains: vec![chain],
            routes: vec![route],
            planned: None,
            resolve: None,
        }
        .into(),
        access: posthaste_relay::access::Access::default(),
    }
}
