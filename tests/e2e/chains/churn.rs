// SPDX-License-Identifier: Apache-2.0
//! Connections that end in every way, through three nodes over links that lose packets: every byte that
//! arrives is the right one, each relay has one outcome, and nothing is left of them.

use std::collections::BTreeMap;
use std::time::Duration;

use posthaste_lab::link::Link;
use posthaste_lab::network::Network;

use crate::churn::churn;
use crate::support::{PORT, listen};
use crate::watch::Accounts;

use super::Plan;

/// How many connections, unless [`COUNT_FROM`] says otherwise: what a few seconds suffice for.
const CONNECTIONS: u64 = 300;
/// Names the environment variable with another count.
const COUNT_FROM: &str = "POSTHASTE_CHURN";
/// Warm hops that wait for a flow, at each worker.
const POOL_MAX: usize = 4;
/// How many at a time.
const THREADS: u64 = 64;

#[test]
fn connections_over_lossy_hops_end_as_they_should() {
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
        let expected = churn(&network, &listener, count, THREADS);
        for (index, (node, accounts)) in nodes.iter().zip(accounts).enumerate() {
            let ended = accounts.settle_any(node);
            assert_ended(&ended, expected, index, pool_max);
        }
    }
}

/// The first node has one relay for each connection. The others have more, of hops that were given up
/// because the client was not proved in time or the hop was silent; the flow then took another.
fn assert_ended(
    ended: &BTreeMap<String, u64>,
    expected: [(&str, u64); 3],
    index: usize,
    pool_max: usize,
) {
    let count = |outcome: &str| ended.get(outcome).copied().unwrap_or(0);
    let given_up = count("client_absent");
    let others = ended.len() - usize::from(given_up > 0);
    assert_eq!(others, expected.len(), "node {index}: {ended:?}");
    for (outcome, most) in expected {
        let least = most - given_up.min(most);
        assert!(
            (least..=most).contains(&count(outcome)),
            "node {index}, pool_max = {pool_max}: {ended:?}"
        );
    }
    assert!(index > 0 || given_up == 0, "node {index}: {ended:?}");
}
