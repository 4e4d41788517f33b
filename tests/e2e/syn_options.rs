// SPDX-License-Identifier: Apache-2.0
//! Hops with the chain header in an option of the SYN.

mod fallbacks;
mod hostile;
mod late_accepts;

pub(crate) mod raw;

use posthaste_lab::network::{Family, Network};
use posthaste_lab::node::Node;

use crate::chains::{Plan, line_of};
use crate::payload;
use crate::support::{MODES, PORT, Pair, counter, listen, until_ended};

/// All nodes in one chain, over cold hops that SYN option their flows.
fn chain_of(nodes: usize) -> Plan<'static> {
    Plan {
        encapsulation: "syn-option",
        ..Plan::of(nodes)
    }
}

/// Moves bytes both ways over a new connection, and closes it.
fn exchange(network: &Network, family: Family) {
    let listener = listen(network.server(), PORT);
    let mut pair = Pair::open(network, family, &listener);
    payload::send(&mut pair.client, 1, 300_000).expect("bytes leave");
    payload::receive(&mut pair.server, 1, 300_000).expect("bytes arrive");
    payload::send(&mut pair.server, 2, 300_000).expect("bytes leave");
    payload::receive(&mut pair.client, 2, 300_000).expect("bytes arrive");
    pair.close_client_first();
}

/// What became of SYN options: sent, accepted, not accepted, received, and flows opened by one.
fn syn_options(node: &Node) -> [u64; 5] {
    ["sent", "accepted", "ignored", "received", "opened"]
        .map(|name| counter(node, &format!("syn_options_{name}")))
}

// promise: K10
#[test]
fn options_in_every_mode() {
    for count in [2, 3, 4] {
        let network = line_of(count);
        for accept in MODES {
            let plan = Plan {
                accept,
                ..chain_of(count)
            };
            let nodes = plan.start(&network);
            for flows in 1..=2 {
                exchange(&network, Family::V4);
                for (place, node) in nodes.iter().enumerate() {
                    until_ended(node, "finished", flows);
                    let (first, last) = (place == 0, place + 1 == count);
                    let (sent, received) =
                        (if last { 0 } else { flows }, if first { 0 } else { flows });
                    let expected = [sent, sent, 0, received, received];
                    assert_eq!(
                        syn_options(node),
                        expected,
                        "{accept}, node {place} of {count}"
                    );
                    assert_eq!(
                        counter(node, "relays_opened"),
                        flows,
                        "one upstream for each"
                    );
                }
            }
        }
    }
}
