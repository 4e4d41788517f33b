// SPDX-License-Identifier: Apache-2.0
//! Ends and resets through a chain of three nodes.

use std::net::{Shutdown, TcpListener};

use posthaste_lab::network::{Family, Network};
use posthaste_lab::node::Node;

use crate::support::{
    MODES, PORT, Pair, close, counter, deliver, expect_end, expect_reset, listen, reset,
    until_counter, until_ended,
};

use super::{Plan, line_of};

/// Does the same in every mode, over cold hops of one family and warm ones of the other.
fn in_every_mode(check: impl Fn(&Network, &TcpListener, &[Node])) {
    let network = line_of(3);
    let listener = listen(network.server(), PORT);
    for accept in MODES {
        for (hops, warm) in [(Family::V6, false), (Family::V4, true)] {
            let plan = Plan {
                accept,
                hops,
                warm,
                ..Plan::of(3)
            };
            let nodes = plan.start(&network);
            check(&network, &listener, &nodes);
            for node in &nodes {
                until_counter(node, "relays", 0);
                assert_eq!(counter(node, "half_open"), 0, "{accept}, warm: {warm}");
            }
        }
    }
}

fn all_ended(nodes: &[Node], outcome: &str, count: u64) {
    for node in nodes {
        until_ended(node, outcome, count);
    }
}

// promise: K7
#[test]
fn server_sends_first() {
    in_every_mode(|network, listener, nodes| {
        for family in Family::ALL {
            let mut pair = Pair::open(network, family, listener);
            deliver(&mut pair.server, &mut pair.client, b"220 ready\r\n");
            pair.check();
            pair.close_server_first();
        }
        all_ended(nodes, "finished", 2);
    });
}

// promise: K7
#[test]
fn half_close_through_chain() {
    in_every_mode(|network, listener, nodes| {
        for family in Family::ALL {
            let Pair {
                mut client,
                mut server,
            } = Pair::open(network, family, listener);
            deliver(&mut client, &mut server, b"all of my request");
            client.shutdown(Shutdown::Write).expect("it is open");
            expect_end(&mut server);
            for _ in 0..3 {
                deliver(&mut server, &mut client, &[7; 30_000]);
            }
            close(server, client);

            let Pair {
                mut client,
                mut server,
            } = Pair::open(network, family, listener);
            deliver(&mut server, &mut client, b"all there is");
            server.shutdown(Shutdown::Write).expect("it is open");
            expect_end(&mut client);
            for _ in 0..3 {
                deliver(&mut client, &mut server, &[8; 30_000]);
            }
            close(client, server);
        }
        all_ended(nodes, "finished", 4);
    });
}

/// A client may close before the server has answered; its bytes must still arrive.
// promise: K7
#[test]
fn bytes_before_close_arrive() {
    in_every_mode(|network, listener, nodes| {
        for family in Family::ALL {
            let to = crate::support::target(network, family, listener);
            let mut client = crate::support::dial(network.client(), to).expect("it connects");
            std::io::Write::write_all(&mut client, b"all of my request").expect("it is open");
            client.shutdown(Shutdown::Write).expect("it is open");
            let (mut server, _) = crate::support::accept(listener);
            assert_eq!(crate::requests::read(&mut server, 17), b"all of my request");
            expect_end(&mut server);
            close(server, client);
        }
        all_ended(nodes, "finished", 2);
    });
}

// promise: K7
#[test]
fn reset_in_both_directions() {
    in_every_mode(|network, listener, nodes| {
        for family in Family::ALL {
            let mut pair = Pair::open(network, family, listener);
            pair.check();
            reset(pair.client);
            expect_reset(&mut pair.server);

            let mut pair = Pair::open(network, family, listener);
            pair.check();
            reset(pair.server);
            expect_reset(&mut pair.client);
        }
        all_ended(nodes, "downstream_reset", 2);
        all_ended(nodes, "upstream_reset", 2);
    });
}

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
        all_ended(&nodes, "finished", 2);
    }
}
