// SPDX-License-Identifier: Apache-2.0
//! Listeners with a fixed destination, for clients that connect to the node.

use std::net::SocketAddr;

use posthaste_lab::network::{Family, Network};
use posthaste_lab::node::Node;

use crate::payload;
use crate::requests::{ExplicitNode, fixture};
use crate::support::{PORT, Pair, accept, counter, dial, listen, until_ended};

/// Where clients connect to the first node.
fn entrance(network: &Network, family: Family) -> SocketAddr {
    SocketAddr::new(network.node_address(0, family), 8080)
}

/// A listener of the first node for its clients of one family.
fn fixed(network: &Network, ours: Family, destination: SocketAddr) -> String {
    let address = entrance(network, ours);
    format!(
        "[[listener]]\nmode = \"fixed\"\naddress = \"{address}\"\ndestination = \"{destination}\"\n"
    )
}

fn server(network: &Network, family: Family) -> SocketAddr {
    SocketAddr::new(network.server_address(family), PORT)
}

/// Listeners of both families with a server of one family as destination.
fn entrances(network: &Network, theirs: Family) -> String {
    let each = Family::ALL.map(|ours| fixed(network, ours, server(network, theirs)));
    each.concat()
}

/// Bytes go both ways, and each end sees the other's end.
fn check(mut pair: Pair) {
    payload::send(&mut pair.server, 1, 200_000).expect("it is read");
    payload::receive(&mut pair.client, 1, 200_000).expect("it arrives");
    payload::send(&mut pair.client, 2, 200_000).expect("it is read");
    payload::receive(&mut pair.server, 2, 200_000).expect("it arrives");
    pair.close_client_first();
}

// promise: Q17
#[test]
fn destination_of_either_family() {
    let network = fixture();
    let servers = listen(network.server(), PORT);
    for theirs in Family::ALL {
        let config = format!(
            "[transparent]\nenabled = false\n{}",
            entrances(&network, theirs)
        );
        let listening = ExplicitNode::start(&network, &config);
        for ours in Family::ALL {
            let client = dial(network.client(), entrance(&network, ours)).expect("it accepts");
            let (server, from) = accept(&servers);
            // The client's address would not lead back to the node.
            let calling = network.calling_address(0, theirs);
            assert_eq!(from.ip(), calling, "{ours} to {theirs}");
            check(Pair { client, server });
        }
        until_ended(&listening.node, "finished", 2);
        assert_eq!(counter(&listening.node, "fixed_connections"), 2);
        // Nothing crosses the programs of a node that needs none.
        let status = listening.node.status().expect("it answers");
        assert_eq!(status["interfaces"], serde_json::json!([]), "{status:#}");
        listening.settle();
    }
}

// promise: Q17
#[test]
fn fixed_beside_transit() {
    let network = fixture();
    let node = crate::support::start_relaying(&network, &entrances(&network, Family::V4));
    let servers = listen(network.server(), PORT);
    for family in Family::ALL {
        let client = dial(network.client(), entrance(&network, family)).expect("it accepts");
        let (server, _) = accept(&servers);
        let through = Pair::open(&network, family, &servers);
        assert_eq!(
            through.seen_by_server().ip(),
            network.client_address(family)
        );
        check(Pair { client, server });
        check(through);
    }
    until_ended(&node, "finished", 4);
    assert_eq!(counter(&node, "fixed_connections"), 2);
}

// promise: Q18
#[test]
fn listener_to_itself_refused() {
    let network = fixture();
    let own = SocketAddr::new(network.node_address(0, Family::V4), 8080);
    let config = format!(
        "[transparent]\nenabled = false\n[[listener]]\nmode = \"fixed\"\naddress = \"0.0.0.0:8080\"\n\
         destination = \"{own}\"\n"
    );
    let started = Node::builder(network.node(0), crate::support::binary())
        .config(&config)
        .start();
    let error = format!("{:#}", started.expect_err("it does not start"));
    assert!(error.contains("this node listens there itself"), "{error}");
}
