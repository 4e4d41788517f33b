// SPDX-License-Identifier: Apache-2.0
//! Flows over several nodes: the first is on the path of its clients, the others receive requests.

mod ends;
mod failures;
mod silence;

use posthaste_relay::accept_mode::AcceptMode;
use posthaste_relay::chain::PoolLimits;
use posthaste_relay::outcome::Outcome;

use crate::host::{Family, Host};
use crate::node::{Node, Setup, start_all};

const COLD: PoolLimits = PoolLimits { min: 0, max: 0 };
const WARM: PoolLimits = PoolLimits { min: 4, max: 4 };

/// A node that dials those behind it.
fn member(node: u8, hops: Family, pool: PoolLimits) -> Setup {
    let others = (0..3).filter(|other| *other != node);
    others.fold(Setup::of(node), |setup, other| {
        setup.peer_with(other, hops, |peer| {
            peer.pool = if other > node { pool } else { COLD };
        })
    })
}

/// Three nodes in one chain.
fn chain_of_three(host: &Host, hops: Family, pool: PoolLimits) -> [Node; 3] {
    let member = |node| member(node, hops, pool);
    start_all(host, [member(0).chain(&[1, 2]), member(1), member(2)])
}

/// Flows that left over warm hops, and over cold ones.
fn hops(node: &Node) -> [u64; 2] {
    let warm = node.count(|counters| counters.hops_warm.read());
    [warm, node.count(|counters| counters.hops_cold.read())]
}

// promise: K1
#[test]
fn chain_in_every_mode() {
    for family in Family::ALL {
        for pool in [COLD, WARM] {
            let host = Host::enter();
            let nodes = chain_of_three(&host, family, pool);
            let servers = host.listen();
            let flows = AcceptMode::all().flat_map(|mode| Family::ALL.map(|theirs| (mode, theirs)));
            for (count, (mode, theirs)) in (1..).zip(flows) {
                nodes[0].until_waiting(pool.min.into());
                nodes[1].until_all_waiting();
                let mut pair = nodes[0].open(mode, theirs, &servers);
                pair.check_much();
                pair.close_client_first();
                for node in &nodes {
                    node.until_ended(Outcome::Finished, count);
                    assert_eq!(node.relays_opened(), count, "{mode:?} {family}");
                }
            }
            let expected = if pool == COLD { [0, 6] } else { [6, 0] };
            assert_eq!(nodes.each_ref().map(hops), [expected, expected, [0, 0]]);
            for node in &nodes {
                node.settle();
            }
        }
    }
}

/// A refusal of one flow does not affect the others.
// promise: K6
#[test]
fn forbidden_destination_keeps_chain() {
    for pool in [COLD, WARM] {
        let host = Host::enter();
        let first = member(0, Family::V4, pool).chain(&[1]).chain(&[2]);
        let mut second = member(1, Family::V4, COLD);
        second.policy.access.destinations.clear();
        let nodes = start_all(&host, [first, second, member(2, Family::V4, COLD)]);
        let servers = host.listen();
        let flows = [AcceptMode::STRICT, AcceptMode::LATE].repeat(2);
        for (count, mode) in (1..).zip(flows) {
            nodes[0].until_all_waiting();
            let mut pair = nodes[0].open(mode, Family::V4, &servers);
            pair.check();
            pair.close_client_first();
            nodes[0].until_ended(Outcome::Finished, count);
            let opened = nodes.each_ref().map(Node::relays_opened);
            assert_eq!(opened, [count, 0, count], "{mode:?}, {pool:?}");
            // Each flow uses the chain again.
            let failed = nodes[0].count(|counters| counters.hops_failed.read());
            assert_eq!(failed, count, "{mode:?}, {pool:?}");
        }
    }
}
