// SPDX-License-Identifier: Apache-2.0
//! An off-path node whose plain connections, at the end of a chain, return through the node that
//! sent it the request: that node must not use the chain again.
//!
//! ```text
//! client --- node 0 --- server
//!              |
//!           node 1
//! ```

use posthaste_lab::link::Link;
use posthaste_lab::network::{Family, Network, TO_CLIENT};
use posthaste_lab::node::Node;

use crate::payload;
use crate::requests::{ALLOWED, KEY, LISTENER_PORT};
use crate::support::{MODES, PORT, Pair, counter, listen, start_relaying_in, until_ended};

const BYTES: u64 = 300_000;

fn fixture() -> Network {
    let line = Network::line([Link::Veth, Link::Veth]).beside(0, Link::Veth);
    line.build().expect("root can build a network")
}

/// Both nodes; the first has every flow carried by the other.
fn nodes(network: &Network, accept: &str, encapsulation: &str) -> [Node; 2] {
    let second = network.aside_address(0, Family::V4);
    let first = second.to_string().replace(".2.2", ".2.1");
    let config = |id: u8, accept: &str, (peer, name, address): (u8, &str, &str)| {
        format!(
            "[node]\nid = {id}\n{ALLOWED}[defaults]\naccept = \"{accept}\"\n\
             [[peer]]\nname = \"{name}\"\nid = {peer}\naddress = \"{address}:{LISTENER_PORT}\"\n\
             key = \"{KEY}\"\nheader_in = \"{encapsulation}\"\nsource_addresses = [\"{address}\"]\n\
             pool_max = 0\n"
        )
    };
    let requested = config(2, "early", (1, "first", &first))
        + &format!(
            "[transparent]\nenabled = false\n[[listener]]\naddress = \"{second}:{LISTENER_PORT}\"\n"
        );
    let on_path = config(1, accept, (2, "second", &second.to_string()))
        + "[[chain]]\nname = \"aside\"\nnodes = [\"second\"]\n\
           [[route]]\nchains = [\"aside\"]\ndirect = false\n";
    let requested = start_relaying_in(network.aside(0), &requested);
    [start_relaying_in(network.node(0), &on_path), requested]
}

/// Moves bytes in both directions, closes in order, and returns how many relays each node had for
/// that.
fn transfer(network: &Network, family: Family, nodes: &[Node; 2]) -> [u64; 2] {
    let before = nodes.each_ref().map(|node| counter(node, "relays_opened"));
    let listener = listen(network.server(), PORT);
    let mut pair = Pair::open(network, family, &listener);
    payload::send(&mut pair.client, 1, BYTES).expect("bytes leave");
    payload::receive(&mut pair.server, 1, BYTES).expect("bytes arrive");
    payload::send(&mut pair.server, 2, BYTES).expect("bytes leave");
    payload::receive(&mut pair.client, 2, BYTES).expect("bytes arrive");
    pair.close_client_first();
    let opened = nodes.each_ref().map(|node| counter(node, "relays_opened"));
    for (node, opened) in nodes.iter().zip(opened) {
        until_ended(node, "finished", opened);
    }
    [opened[0] - before[0], opened[1] - before[1]]
}

// promise: K17
#[test]
fn plain_peer_connection_no_chain() {
    let network = fixture();
    for encapsulation in ["stream", "syn-option"] {
        for mode in MODES {
            let nodes = nodes(&network, mode, encapsulation);
            for family in Family::ALL {
                let relays = transfer(&network, family, &nodes);
                // IPv6 is another address of the peer's than the one that is known.
                let known = family == Family::V4;
                let what = format!("{encapsulation} {mode} {family}: {relays:?}");
                println!("{what}");
                assert!(!known || relays == [2, 1], "{what}");
                assert!(relays[0] <= 17 && relays[1] <= 16, "{what}");
            }
        }
    }
}

/// It comes from an address that the first node does not know: the TTL of the flow, which the
/// second has from the first, ends it.
// promise: K17
#[test]
fn unknown_address_loop_ends() {
    let network = fixture();
    let known = network.aside_address(0, Family::V4).to_string();
    let (other, gateway) = (known.replace(".2.2", ".2.7"), known.replace(".2.2", ".2.1"));
    for line in [
        format!("address add {other}/24 dev {TO_CLIENT}"),
        format!("route replace default via {gateway} src {other}"),
    ] {
        network.aside(0).ip(&line).expect("it can be set up");
    }
    for encapsulation in ["stream", "syn-option"] {
        for mode in MODES {
            let nodes = nodes(&network, mode, encapsulation);
            for family in Family::ALL {
                let relays = transfer(&network, family, &nodes);
                assert_eq!(relays, [17, 16], "{encapsulation} {mode} {family}");
            }
        }
    }
}
