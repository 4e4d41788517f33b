// SPDX-License-Identifier: Apache-2.0
//! The source address that servers behind a chain see.

use posthaste_lab::network::Family;

use crate::support::{PORT, Pair, listen, until_ended};

use super::{Plan, line_of};

// promise: K8
#[test]
fn source_address_at_server() {
    let network = line_of(3);
    let listener = listen(network.server(), PORT);
    for (source, hops) in [
        ("auto", Family::V4),
        ("node", Family::V6),
        ("client", Family::V4),
    ] {
        let extra = format!("source_address = \"{source}\"\n");
        let plan = Plan {
            hops,
            extra: &extra,
            ..Plan::of(3)
        };
        let configs = (0..3).map(|node| {
            let config = plan.config(&network, node);
            // Answers to a client's address come back to a node that is on the path, and intercepts.
            match (source, node) {
                ("client", 2) => config.replace("enabled = false", "enabled = true"),
                _ => config,
            }
        });
        let nodes = crate::requests::start_all(&network, configs);
        for family in Family::ALL {
            let mut pair = Pair::open(&network, family, &listener);
            pair.check();
            let last = match family {
                Family::V4 => "10.0.3.1",
                Family::V6 => "fd00:0:0:3::1",
            };
            let seen = pair.seen_by_server();
            if source == "client" {
                assert_eq!(seen, pair.client_address(), "{source}");
            } else {
                assert_eq!(seen.ip().to_string(), last, "{source}");
            }
            pair.close_client_first();
        }
        for node in &nodes {
            until_ended(node, "finished", 2);
        }
    }
}
