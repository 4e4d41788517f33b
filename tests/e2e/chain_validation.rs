// SPDX-License-Identifier: Apache-2.0
//! Clients that are never validated, in front of a chain with an explicit last node: its server
//! completes no handshake for them either.

use std::net::SocketAddr;
use std::time::Duration;

use posthaste_lab::flood::{Flood, Plan};
use posthaste_lab::link::Link;
use posthaste_lab::network::{CLIENT_SIDE, Family, Network};
use posthaste_lab::node::Node;

use crate::chains::{self, line_of};
use crate::support::{
    Pair, counter, each_mode, kernel_counter, listen, network, start_relaying_in, target, until,
    until_counter,
};

const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
/// Spoofed clients.
const CLIENTS: u32 = 50;

/// A node on the path, and the explicit node that receives all its requests.
fn start_both(network: &Network, hop: Family, encapsulation: &str) -> [Node; 2] {
    let requested = SocketAddr::new(network.node_address(1, hop), 4480);
    let requester = SocketAddr::new(network.calling_address(0, hop), 4480);
    let peer = |name: &str, id: u32, address: SocketAddr| {
        format!(
            "[[peer]]\nname = \"{name}\"\nid = {id}\naddress = \"{address}\"\nkey = \"{KEY}\"\n\
             pool_max = 0\nheader_in = \"{encapsulation}\"\n"
        )
    };
    let common = format!(
        "[half_open]\nexpiry = \"1s\"\n\
         [access]\ndestinations = [\"10.0.0.0/8\", \"fd00::/8\"]\n{}",
        each_mode()
    );
    let second = format!(
        "[node]\nid = 2\n[transparent]\nenabled = false\n{common}\
         [[listener]]\naddress = \"{requested}\"\n{}",
        peer("first", 1, requester)
    );
    let first = format!(
        "[node]\nid = 1\n{common}{}[[chain]]\nname = \"pair\"\nnodes = [\"second\"]\n\
         [[route]]\nchains = [\"pair\"]\ndirect = false\n",
        peer("second", 2, requested)
    );
    let second = start_relaying_in(network.node(1), &second);
    [start_relaying_in(network.node(0), &first), second]
}

// promise: C7, K10, Q11
#[test]
fn spoofed_client_end_of_chain() {
    let network = network([Link::Veth, Link::Veth, Link::Veth]);
    let both = &Family::ALL[..];
    for (hop, families, encapsulation) in [
        (Family::V4, both, "stream"),
        (Family::V6, both, "stream"),
        (Family::V4, &both[..1], "syn-option"),
    ] {
        let nodes = start_both(&network, hop, encapsulation);
        for mode in [("early", 1080), ("strict", 2080)] {
            for family in families {
                let what = format!("{mode:?} over {hop}, {family}, {encapsulation}");
                flood_opens_nothing(&network, &nodes, mode, *family, &what);
            }
        }
        let requested_in_syn = counter(&nodes[1], "syn_options_opened") > 0;
        assert_eq!(requested_in_syn, encapsulation == "syn-option", "{hop}");
    }
}

// promise: K10, Q11
#[test]
fn spoofed_client_two_nodes() {
    let network = line_of(3);
    let extra = format!("[half_open]\nexpiry = \"1s\"\n{}", each_mode());
    for hops in Family::ALL {
        for (warm, encapsulation) in [(false, "stream"), (true, "stream"), (false, "syn-option")] {
            let plan = chains::Plan {
                hops,
                warm,
                encapsulation,
                extra: &extra,
                ..chains::Plan::of(3)
            };
            let nodes = plan.start(&network);
            if warm {
                nodes[..2].iter().for_each(until_warm);
            }
            for mode in [("early", 1080), ("strict", 2080)] {
                for family in Family::ALL {
                    let what =
                        format!("{mode:?} over {hops}, {encapsulation}, warm {warm}, {family}");
                    flood_opens_nothing(&network, &nodes, mode, family, &what);
                }
            }
        }
    }
}

/// Waits for hops to the next node.
fn until_warm(node: &Node) {
    until("hops wait", || {
        let chains = node.admin_json("chains").expect("the node answers");
        let peers = chains["peers"].as_array().expect("a list");
        peers.iter().any(|peer| peer["waiting"].as_u64() > Some(0))
    });
}

/// Floods a port of the server, which is to see nothing of it until one comes that means it.
fn flood_opens_nothing(
    network: &Network,
    nodes: &[Node],
    (mode, port): (&str, u16),
    family: Family,
    what: &str,
) {
    let listener = listen(network.server(), port);
    let text = CLIENT_SIDE[usize::from(family == Family::V6)];
    let plan = Plan {
        sources: text.parse().expect("a prefix"),
        target: target(network, family, &listener),
        rate: 4 * CLIENTS,
        duration: Duration::from_millis(250),
        seed: 7,
    };
    let last = nodes.last().expect("there are nodes");
    let requested = counter(last, "relays_opened");
    let opened = || kernel_counter(network.server(), "Tcp", "PassiveOpens");
    let before = opened();
    let start = || Flood::start(plan);
    let flood = network.client().run_in(start).expect("the flood starts");
    flood.finish().expect("all are sent");
    if mode == "early" {
        until("requests at the last node", || {
            counter(last, "relays_opened") > requested
        });
    }
    for node in nodes {
        until("end of what is half open", || {
            counter(node, "half_open") == 0
        });
    }
    assert_eq!(opened(), before, "{what}");

    // One that means it is served.
    let mut pair = Pair::open(network, family, &listener);
    pair.check();
    pair.close_client_first();
    assert_eq!(opened(), before + 1, "{what}");
    for node in nodes {
        until_counter(node, "relays", 0);
    }
}
