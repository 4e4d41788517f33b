// SPDX-License-Identifier: Apache-2.0
//! The boot experiment's probes detect the host that terminates the connection, and none behind it.

use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use posthaste_lab::boot::probe::{check_path, first_relayed_byte};
use posthaste_lab::echo::Echo;
use posthaste_lab::link::Link;
use posthaste_lab::network::{Family, Network};

const PORT: u16 = 7;

#[test]
fn probes_ignore_forwarded_answers() {
    let network = Network::line([Link::Veth, Link::Veth]).build().unwrap();
    let _server = Echo::start(network.server(), PORT).unwrap();
    for family in Family::ALL {
        let target = SocketAddr::new(network.server_address(family), PORT);
        network.client().run_in(|| check_path(target)).unwrap();
    }
}

/// The next hop itself stands in for a node: its packets, too, arrive with the full TTL.
#[test]
fn probes_detect_the_next_hop() {
    let network = Network::line([Link::Veth, Link::Veth]).build().unwrap();
    let _node = Echo::start(network.node(0), PORT).unwrap();
    for family in Family::ALL {
        let target = SocketAddr::new(network.node_address(0, family), PORT);
        let (start, over) = (Instant::now(), AtomicBool::new(false));
        let first = network
            .client()
            .run_in(|| first_relayed_byte(target, &over))
            .unwrap();
        assert!(first > start);
        let error = network.client().run_in(|| check_path(target)).unwrap_err();
        assert!(error.to_string().contains("look the same"), "{error:#}");
    }
}
