// SPDX-License-Identifier: Apache-2.0
//! A first node that holds no plan: another looks the way up for each of its flows.

use std::net::TcpListener;

use posthaste_relay::accept_mode::AcceptMode;
use posthaste_relay::chain::{Chain, PoolLimits};
use posthaste_relay::outcome::Outcome;

use crate::host::{Family, Host};
use crate::node::{Node, Setup, id, start_all};

/// Has a node request look-ups from its first peer.
fn requesting(mut setup: Setup) -> Setup {
    setup.chains.resolve = Some(setup.chains.chains.len());
    setup.chains.chains.push(Chain::by_resolve(&setup.peers[0]));
    setup
}

/// Has a node accept look-ups of another.
fn answering(mut setup: Setup, other: u8) -> Setup {
    setup.policy.access.resolve.push(id(other));
    setup
}

/// The first node requests look-ups from the second, which sends flows over a third.
fn setups(hops: Family, pool: u16) -> [Setup; 3] {
    let pool = PoolLimits {
        min: pool,
        max: pool,
    };
    let first = Setup::of(0).peer_with(1, hops, |peer| peer.pool = pool);
    let second = Setup::of(1).peer(0, hops);
    let second = second.peer_with(2, hops, |peer| peer.pool = pool);
    [
        requesting(first),
        answering(second.chain(&[2]), 0),
        Setup::of(2).peer(1, hops),
    ]
}

/// Opens a connection that works.
fn check(first: &Node, mode: AcceptMode, theirs: Family, servers: &TcpListener) {
    let mut pair = first.open(mode, theirs, servers);
    pair.check();
    pair.close_client_first();
}

fn opened<const N: usize>(nodes: &[Node; N]) -> [u64; N] {
    nodes.each_ref().map(Node::relays_opened)
}

// promise: K13
#[test]
fn lookup_by_peer() {
    for hops in Family::ALL {
        for pool in [0, 2] {
            let host = Host::enter();
            let nodes = start_all(&host, setups(hops, pool));
            let servers = host.listen();
            let flows = AcceptMode::all().flat_map(|mode| Family::ALL.map(|theirs| (mode, theirs)));
            for (count, (mode, theirs)) in (1..).zip(flows) {
                nodes[0].until_waiting(pool.into());
                check(&nodes[0], mode, theirs, &servers);
                for node in &nodes {
                    node.until_ended(Outcome::Finished, count);
                }
                assert_eq!(opened(&nodes), [count; 3], "{mode:?} {hops}, {pool}");
            }
        }
    }
}

// promise: K13
#[test]
fn forbidden_lookup_goes_direct() {
    for hops in Family::ALL {
        let host = Host::enter();
        let mut setups = setups(hops, 0);
        setups[1].policy.access.resolve.clear();
        let nodes = start_all(&host, setups);
        let servers = host.listen();
        for theirs in Family::ALL {
            check(&nodes[0], AcceptMode::STRICT, theirs, &servers);
        }
        nodes[0].until_ended(Outcome::Finished, 2);
        assert_eq!(opened(&nodes), [2, 0, 0], "{hops}");
        // It tries once, and not again immediately.
        assert_eq!(nodes[0].count(|counters| counters.hops_cold.read()), 1);
    }
}

// promise: K13
#[test]
fn failed_lookup_goes_direct() {
    for mode in AcceptMode::all() {
        for hops in Family::ALL {
            let host = Host::enter();
            let [first, second, third] = start_all(&host, setups(hops, 0));
            let servers = host.listen();
            check(&first, mode, Family::V4, &servers);
            first.until_ended(Outcome::Finished, 1);
            drop(second);
            for theirs in Family::ALL {
                check(&first, mode, theirs, &servers);
            }
            first.until_ended(Outcome::Finished, 3);
            assert_eq!(third.relays_opened(), 1, "{mode:?} {hops}");
        }
    }
}

// promise: K13
#[test]
fn mutual_lookup_ends() {
    let host = Host::enter();
    let member = |node: u8| {
        let setup = requesting(Setup::of(node).peer(1 - node, Family::V4));
        answering(setup, 1 - node)
    };
    let nodes = start_all(&host, [member(0), member(1)]);
    let servers = host.listen();
    for (count, theirs) in (1..).zip(Family::ALL) {
        check(&nodes[0], AcceptMode::EARLY, theirs, &servers);
        for node in &nodes {
            node.until_ended(Outcome::Finished, count);
        }
        assert_eq!(opened(&nodes), [count, count]);
        assert_eq!(nodes[1].count(|counters| counters.hops_cold.read()), 0);
    }
}
