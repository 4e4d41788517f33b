// SPDX-License-Identifier: Apache-2.0
//! Connections that end in every way, through three nodes over links that lose packets: every byte that
//! arrives is the right one, each relay has one outcome, and nothing is left of them.

use std::collections::BTreeMap;
use std::time::Duration;

use posthaste_lab::link::Link;
use posthaste_lab::network::Network;

use crate::churn::{Churn, churn};
use crate::support::{PORT, counter, listen};
use crate::watch::Accounts;

use super::Plan;

/// How many connections, unless [`COUNT_FROM`] sets another number: as many as take a few seconds.
const CONNECTIONS: u64 = 300;
/// Names the environment variable with another count.
const COUNT_FROM: &str = "POSTHASTE_CHURN";
/// Warm hops that wait for a flow, at each worker.
const POOL_MAX: usize = 4;
/// How many at a time.
const THREADS: u64 = 64;

// promise: K9
#[test]
fn lossy_hops() {
    let count = std::env::var(COUNT_FROM).map_or(CONNECTIONS, |text| {
        text.parse().expect("a number of connections")
    });
    for pool_max in [0, POOL_MAX] {
        let link = Link::delay(Duration::from_millis(1)).loss(0.01);
        let network = Network::line(vec![link; 4]).seed(7).build();
        let network = network.expect("root can build a network of namespaces");
        let plan = Plan {
            pool_max: Some(pool_max),
            ..Plan::of(3)
        };
        let nodes = plan.start(&network);
        let listener = listen(network.server(), PORT);
        // Two peers of two workers each; a hop has a socket at either end.
        let spare = 2 * 2 * 2 * pool_max;
        let accounts = nodes
            .iter()
            .map(|node| Accounts::of(node).with_spare_sockets(spare));
        let accounts: Vec<_> = accounts.collect();
        let Churn {
            expected,
            abandoned,
        } = churn(&network, &listener, count, THREADS);
        let given_up: u64 = nodes.iter().map(|node| counter(node, "hops_failed")).sum();
        assert!(abandoned <= given_up, "{abandoned} of {given_up} hops");
        // A flow that a node moved has begun a second time at all nodes behind it.
        let mut given_up = 0;
        for (index, (node, accounts)) in nodes.iter().zip(accounts).enumerate() {
            let ended = accounts.settle_any(node);
            assert_ended(
                ended,
                &expected,
                given_up,
                &format!("node {index}, {plan:?}"),
            );
            given_up += counter(node, "hops_failed");
        }
    }
}

/// Every node has one relay for each connection, which ends with the connection. A node that
/// received the request a second time has one more: the previous node took its first hop for
/// silent, and that relay ends without a client or with the reset of its hop, or two lost SYNs in a row
/// made this node give up its own hop.
fn assert_ended(
    mut ended: BTreeMap<String, u64>,
    expected: &[(&str, u64)],
    given_up: u64,
    what: &str,
) {
    let expected = expected
        .iter()
        .map(|(name, count)| ((*name).into(), *count));
    let expected: BTreeMap<String, u64> = expected.collect();
    let again = ["client_absent", "hop_failed"].map(|outcome| ended.remove(outcome));
    let mut again: u64 = again.into_iter().flatten().sum();
    if let Some(reset) = ended.get_mut("downstream_reset") {
        let more = reset.saturating_sub(expected["downstream_reset"]);
        *reset -= more;
        again += more;
    }
    assert!(again <= given_up, "{what}: {again} of {given_up} hops");
    assert_eq!(ended, expected, "{what}");
}
