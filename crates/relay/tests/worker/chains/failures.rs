// SPDX-License-Identifier: Apache-2.0
//! Nodes of a chain that are gone, and servers that refuse.

use std::io::ErrorKind;

use posthaste_relay::accept_mode::AcceptMode;
use posthaste_relay::chain::PoolLimits;
use posthaste_relay::outcome::Outcome;

use crate::host::{Family, Host};
use crate::node::{Node, Setup, start_all};
use crate::streams::{expect_reset, is_answered};

use super::{COLD, WARM, chain_of_three, member};

/// In early mode the first node has sent its client's bytes by then, so one flow may be reset before
/// the node detects the failure.
// promise: K3
#[test]
fn dead_later_node_avoided() {
    for (mode, lost_max) in [(AcceptMode::EARLY, 1), (AcceptMode::STRICT, 0)] {
        let host = Host::enter();
        let member = |node| member(node, Family::V4, COLD);
        let first = member(0).chain(&[1, 2]).chain(&[1]);
        let [first, _second] = start_all(&host, [first, member(1)]);
        let servers = host.listen();
        let lost = Family::ALL.repeat(4).into_iter().filter(|theirs| {
            let client = first.dial(mode, *theirs).unwrap();
            !is_answered(client, *theirs, &servers)
        });
        let lost = lost.count();
        assert!(lost <= lost_max, "{mode:?}: {lost} were lost");
        first.settle();
    }
}

/// A node with a chain over either of two others, which have ended.
fn left_alone(host: &Host, pool: PoolLimits, differ: impl FnOnce(Setup) -> Setup) -> Node {
    let member = |node| member(node, Family::V4, pool);
    let first = differ(member(0).chain(&[1]).chain(&[2]));
    let [first, ..] = start_all(host, [first, member(1), member(2)]);
    first
}

// promise: K5
#[test]
fn no_chain_goes_direct() {
    for (mode, pool) in [(AcceptMode::EARLY, WARM), (AcceptMode::STRICT, COLD)] {
        let host = Host::enter();
        let first = left_alone(&host, pool, Setup::or_direct);
        let servers = host.listen();
        for theirs in Family::ALL {
            let mut pair = first.open(mode, theirs, &servers);
            pair.check();
            let seen = pair.server.peer_addr().unwrap();
            let client = pair.client.local_addr().unwrap();
            assert_eq!(seen.port(), client.port(), "{mode:?}");
            assert_eq!(seen.ip().to_canonical(), client.ip(), "{mode:?}");
            pair.close_client_first();
        }
        first.until_ended(Outcome::Finished, 2);
        assert_eq!(first.settle(), 2);
    }
}

// promise: K5
#[test]
fn no_chain_is_refused() {
    let early = (AcceptMode::EARLY, COLD);
    for (mode, pool) in [early, (AcceptMode::LATE, WARM), (AcceptMode::STRICT, WARM)] {
        let host = Host::enter();
        let first = left_alone(&host, pool, |setup| setup);
        let _servers = host.listen();
        for (count, theirs) in (1..).zip(Family::ALL) {
            let dialled = first.dial(mode, theirs);
            if mode == AcceptMode::STRICT {
                assert_eq!(dialled.unwrap_err().kind(), ErrorKind::ConnectionRefused);
            } else {
                expect_reset(&mut dialled.unwrap());
            }
            first.until_ended(Outcome::HopFailed, count);
        }
        assert_eq!(first.settle(), 2);
    }
}

// promise: K2
#[test]
fn early_resets_refused_client() {
    for pool in [COLD, WARM] {
        let host = Host::enter();
        let nodes = chain_of_three(&host, Family::V4, pool);
        for theirs in Family::ALL.repeat(3) {
            nodes[0].until_all_waiting();
            expect_reset(&mut nodes[0].dial(AcceptMode::EARLY, theirs).unwrap());
        }
        for node in &nodes {
            node.until_ended(Outcome::UpstreamRefused, 6);
            assert_eq!(node.settle(), 6);
        }
        // The nodes are not to blame.
        assert_eq!(nodes[0].count(|counters| counters.hops_failed.read()), 0);
    }
}
