// SPDX-License-Identifier: Apache-2.0
//! A client whose validation reaches a node in the middle of a chain late.

use std::time::{Duration, Instant};

use posthaste_lab::network::Family;

use crate::requests::LISTENER_PORT;
use crate::support::{PORT, Pair, counter, firewall, listen, until_ended};

use super::{Plan, line_of};

/// How many segments of the second node to the first are lost: as many as TCP sends in the first
/// second.
const LOST: u32 = 4;
/// A client that is not validated by then is late.
const LATE: Duration = Duration::from_millis(1000);

// promise: K18
#[test]
fn late_validation_keeps_next_hop() {
    for hops in Family::ALL {
        for family in Family::ALL {
            let network = line_of(3);
            let plan = Plan {
                accept: "strict",
                hops,
                ..Plan::of(3)
            };
            let nodes = plan.start(&network);
            // Only those with data: the request is acknowledged.
            let loss = format!(
                "tcp sport {LISTENER_PORT} tcp flags & psh == psh \
                 limit rate 1/day burst {LOST} packets drop"
            );
            firewall(network.node(1), "lossy", &[("output", &loss)]);
            let listener = listen(network.server(), PORT);
            let begun = Instant::now();
            let mut pair = Pair::open(&network, family, &listener);
            let took = begun.elapsed();
            assert!(took > LATE, "{hops} {family}: no proof was late: {took:?}");
            pair.check();
            let caller = network.calling_address(2, family);
            assert_eq!(pair.seen_by_server().ip(), caller, "{hops} {family}");
            assert_eq!(counter(&nodes[1], "hops_cold"), 1, "{hops} {family}");
            pair.close_client_first();
            for node in &nodes {
                assert_eq!(counter(node, "relays_opened"), 1, "{hops} {family}");
                until_ended(node, "finished", 1);
            }
        }
    }
}
