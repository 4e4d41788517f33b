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
    PORT, Pair, counter, kernel_counter, listen, network, start_relaying_in, until, until_counter,
};

const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
/// Spoofed clients.
const CLIENTS: u32 = 50;

/// A node on the path, and the explicit node that receives all its requests.
fn start_both(network: &Network, mode: &str, hop: Family, encapsulation: &str) -> [Node; 2] {
    let requested = SocketAddr::new(network.node_address(1, hop), 4480);
    let requester = SocketAddr::new(network.calling_address(0, hop), 4480);
    let peer = |name: &str, id: u32, address: SocketAddr| {
        format!(
            "[[peer]]\nname = \"{name}\"\nid = {id}\naddress = \"{address}\"\nkey = \"{KEY}\"\n\
             pool_max = 0\nheader_in = \"{encapsulation}\"\n"
        )
    };
    let common = format!(
        "[half_open]\nexpiry = \"1s\"\n[defaults]\naccept = \"{mode}\"\n\
         [access]\ndestinations = [\"10.0.0.0/8\", \"fd00::/8\"]\n"
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
    for mode in ["early", "strict"] {
        for hop in Family::ALL {
            for family in Family::ALL {
                spoofed_clients_are_stopped(mode, hop, family, "stream");
            }
        }
        spoofed_clients_are_stopped(mode, Family::V4, Family::V4, "syn-option");
    }
}

// promise: K10, Q11
#[test]
fn spoofed_client_two_nodes() {
    for accept in ["early", "strict"] {
        for hops in Family::ALL {
            for (warm, encapsulation) in
                [(false, "stream"), (true, "stream"), (false, "syn-option")]
            {
                let network = line_of(3);
                let plan = chains::Plan {
                    accept,
                    hops,
                    warm,
                    encapsulation,
                    extra: "[half_open]\nexpiry = \"1s\"\n",
                    ..chains::Plan::of(3)
                };
                let nodes = plan.start(&network);
                if warm {
                    nodes[..2].iter().for_each(until_warm);
                }
                for (count, family) in (1..).zip(Family::ALL) {
                    let what =
                        format!("{accept} over {hops}, {encapsulation}, warm {warm}, {family}");
                    flood_opens_nothing(&network, &nodes, accept, family, &what, count);
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

fn spoofed_clients_are_stopped(mode: &str, hop: Family, family: Family, encapsulation: &str) {
    let network = network([Link::Veth, Link::Veth, Link::Veth]);
    let nodes = start_both(&network, mode, hop, encapsulation);
    let what = format!("{mode} over {hop}, {family}, {encapsulation}");
    flood_opens_nothing(&network, &nodes, mode, family, &what, 1);
    let requested_in_syn = counter(&nodes[1], "syn_options_opened") > 0;
    assert_eq!(requested_in_syn, encapsulation == "syn-option", "{what}");
}

/// Floods the server, which is to see nothing of it, and then the one who means it, who is number
/// `count`.
fn flood_opens_nothing(
    network: &Network,
    nodes: &[Node],
    mode: &str,
    family: Family,
    what: &str,
    count: u64,
) {
    let listener = listen(network.server(), PORT);
    let text = CLIENT_SIDE[usize::from(family == Family::V6)];
    let plan = Plan {
        sources: text.parse().expect("a prefix"),
        target: SocketAddr::new(network.server_address(family), PORT),
        rate: 4 * CLIENTS,
        duration: Duration::from_millis(250),
        seed: 7,
    };
    let last = nodes.last().expect("there are nodes");
    let requested = counter(last, "relays_opened");
    let start = || Flood::start(plan);
    let flood = network.client().run_in(start).expect("the flood starts");
    flood.finish().expect("all are sent");
    let opened = || kernel_counter(network.server(), "Tcp", "PassiveOpens");
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
    assert_eq!(opened(), count - 1, "{what}");

    // One that means it is served.
    let mut pair = Pair::open(network, family, &listener);
    pair.check();
    pair.close_client_first();
    assert_eq!(opened(), count, "{what}");
    for node in nodes {
        until_counter(node, "relays", 0);
    }
}
