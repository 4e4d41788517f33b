// SPDX-License-Identifier: Apache-2.0
//! Hops between nodes that are open before there is a flow for them.

use std::io::ErrorKind;

use posthaste_relay::accept_mode::AcceptMode;
use posthaste_relay::chain::PoolLimits;
use posthaste_relay::control::SideInfo;
use posthaste_relay::outcome::Outcome;
use posthaste_wire::auth::Key;

use crate::host::{Family, Host};
use crate::node::{Node, Setup, start_all};

/// A node that keeps so many hops to the next one.
fn first(hops: Family, pool: u16) -> Setup {
    let setup = Setup::of(0).peer_with(1, hops, |peer| {
        peer.pool = PoolLimits {
            min: pool,
            max: pool,
        };
    });
    setup.chain(&[1])
}

fn second() -> Setup {
    Setup::of(1).peer(0, Family::V4)
}

fn start(host: &Host, hops: Family, pool: u16) -> [Node; 2] {
    let nodes = start_all(host, [first(hops, pool), second()]);
    nodes[0].until_waiting(pool.into());
    nodes
}

/// Flows that left over warm hops, and over cold ones.
fn hops(node: &Node) -> [u64; 2] {
    let warm = node.count(|counters| counters.hops_warm.read());
    [warm, node.count(|counters| counters.hops_cold.read())]
}

#[test]
fn flows_take_warm_hops() {
    for family in Family::ALL {
        let host = Host::enter();
        let (nodes, servers) = (start(&host, family, 4), host.listen());
        let flows = AcceptMode::all().flat_map(|mode| Family::ALL.map(|theirs| (mode, theirs)));
        for (count, (mode, theirs)) in (1..).zip(flows) {
            nodes[0].until_waiting(4);
            let mut pair = nodes[0].open(mode, theirs, &servers);
            pair.check();
            pair.close_client_first();
            for node in &nodes {
                node.until_ended(Outcome::Finished, count);
            }
            assert_eq!(hops(&nodes[0]), [count, 0], "{mode:?} {family}");
        }
    }
}

// promise: F7
/// Idle hops have authenticated once, and could open flows for as long as the peer pings.
#[test]
fn removed_peer_loses_its_idle_hops() {
    for is_removed in [true, false] {
        let host = Host::enter();
        let nodes = start(&host, Family::V4, 2);
        let mut changed = second();
        if is_removed {
            changed.peers.clear();
        } else {
            changed.peers[0].key = Some(Key::new([7; 32]));
        }
        nodes[1].adopt(&changed);
        nodes[0].until_waiting(0);
    }
}

#[test]
fn refusals_over_warm_hops() {
    let host = Host::enter();
    let nodes = start(&host, Family::V6, 4);
    for family in Family::ALL {
        nodes[0].until_waiting(4);
        let refused = nodes[0].dial(AcceptMode::STRICT, family).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused, "{family}");
    }
    for node in &nodes {
        node.until_ended(Outcome::UpstreamRefused, 2);
    }
    assert_eq!(hops(&nodes[0]), [2, 0]);
}

#[test]
fn returning_node_dialed() {
    let host = Host::enter();
    let [first, former] = start(&host, Family::V4, 4);
    drop(former);
    first.until_waiting(0);
    let _returned = second().start(&host);
    first.until_waiting(4);
    let mut pair = first.open(AcceptMode::EARLY, Family::V4, &host.listen());
    pair.check();
    pair.close_server_first();
    first.until_ended(Outcome::Finished, 1);
}

fn congestion(side: &Option<SideInfo>) -> &str {
    let Some(SideInfo::Tcp(info)) = side else {
        panic!("{side:?} is no socket");
    };
    &info.congestion
}

#[test]
fn accepted_hops_congestion_control() {
    for pool in [2, 0] {
        let host = Host::enter();
        let mut requested = second();
        requested.peers[0].socket.congestion = Some("reno".to_owned());
        let nodes = start_all(&host, [first(Family::V6, pool), requested]);
        nodes[0].until_waiting(pool.into());
        let mut pair = nodes[0].open(AcceptMode::EARLY, Family::V4, &host.listen());
        pair.check();
        let relay = nodes[1].relay();
        assert_eq!(congestion(&relay.downstream), "reno", "{pool}");
        assert_ne!(congestion(&relay.upstream), "reno", "{pool}");
        pair.close_client_first();
    }
}
