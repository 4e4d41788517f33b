// SPDX-License-Identifier: Apache-2.0
//! Routes that are moved to another interface while a node relays.

use std::net::TcpListener;

use super::*;

/// Joins a router and a server by a second cable.
fn add_cable(network: &Network) {
    let [router, server] = [network.node(0), network.server()];
    let cable = "link add second type veth peer name second netns";
    let joined = router.ip(&format!("{cable} {}", server.name()));
    joined.expect("a cable");
    for (host, number) in [(router, 1), (server, 2)] {
        for line in [
            format!("address add 10.77.0.{number}/24 dev second"),
            format!("address add fd77::{number}/64 dev second nodad"),
            "link set second up".to_owned(),
        ] {
            host.ip(&line).expect("it is set");
        }
    }
}

/// Which directions take the second cable.
#[derive(Clone, Copy, Debug)]
struct Moved {
    requests: bool,
    answers: bool,
}

/// Moves the routes between a client and its server to the second cable, or back.
fn route(network: &Network, family: Family, what: &str, moved: Moved) {
    let (first, bits) = match family {
        Family::V4 => ("10.77.0.", 32),
        Family::V6 => ("fd77::", 128),
    };
    let [client, server] = [
        network.client_address(family),
        network.server_address(family),
    ];
    if moved.requests {
        let line = format!("route {what} {server}/{bits} via {first}2 dev second");
        network.node(0).ip(&line).expect("a route");
    }
    if moved.answers {
        let line = format!("route {what} {client}/{bits} via {first}1 dev second");
        network.server().ip(&line).expect("a route");
    }
}

/// A connection that is relayed. The node may hear of the last change of routes meanwhile, and observe again.
fn relayed(network: &Network, node: &Node, family: Family, listener: &TcpListener) -> Pair {
    let mut relayed = None;
    until("a relay", || {
        let opened = counter(node, "relays_opened");
        let mut pair = Pair::open(network, family, listener);
        pair.check();
        relayed = (counter(node, "relays_opened") > opened).then_some(pair);
        relayed.is_some()
    });
    relayed.expect("it is there")
}

// promise: X11
/// Open relays go where forwarded connections go.
#[test]
fn relays_follow_moved_routes() {
    let network = line();
    add_cable(&network);
    let node = observing_in_each_mode(network.node(0));
    for (_, port) in MODES_BY_PORT {
        let listener = listen(network.server(), port);
        for family in Family::ALL {
            for (requests, answers) in [(true, true), (true, false), (false, true)] {
                let moved = Moved { requests, answers };
                let mut pair = relayed(&network, &node, family, &listener);
                for what in ["add", "del"] {
                    route(&network, family, what, moved);
                    pair.check();
                }
                pair.close_client_first();
                until("it has ended", || counter(&node, "relays") == 0);
            }
        }
    }
}

// promise: X11
/// The node sees no change when a server's answers take another interface of its host.
#[test]
fn answers_by_another_interface_reach_relays() {
    let network = line();
    add_cable(&network);
    let answers = Moved {
        requests: false,
        answers: true,
    };
    let node = observing_in_each_mode(network.node(0));
    for (mode, port) in MODES_BY_PORT {
        let listener = listen(network.server(), port);
        for family in Family::ALL {
            until("a relay", || connect(&network, &node, family, &listener));
            route(&network, family, "add", answers);
            assert!(
                connect(&network, &node, family, &listener),
                "{mode} {family}"
            );
            route(&network, family, "del", answers);
        }
    }
}

// promise: X11
/// A firewall that filters what is forwarded may forbid the other interface: an open relay does not leave by it.
#[test]
fn filtered_relays_stay_at_their_interface() {
    let network = line();
    add_cable(&network);
    firewall(
        network.node(0),
        "strict",
        &[("forward", "oifname second drop")],
    );
    firewall(
        network.server(),
        "seen",
        &[("prerouting", "iifname second tcp dport 80 counter")],
    );
    let listener = listen(network.server(), PORT);
    let requests = Moved {
        requests: true,
        answers: false,
    };
    let node = observing(network.node(0), "early");
    for family in Family::ALL {
        until("a relay", || connect(&network, &node, family, &listener));
        let mut pair = Pair::open(&network, family, &listener);
        pair.check();
        route(&network, family, "add", requests);
        pair.client
            .write_all(b"a secret")
            .expect("an open connection");
        std::thread::sleep(Duration::from_secs(1));
        let seen = firewall_text(network.server(), "seen");
        assert!(seen.contains("packets 0 "), "{family}: {seen}");
        route(&network, family, "del", requests);
        let mut received = [0; 8];
        pair.server
            .read_exact(&mut received)
            .expect("it is sent again");
        assert_eq!(&received, b"a secret");
        pair.close_client_first();
        until("it has ended", || counter(&node, "relays") == 0);
    }
}
