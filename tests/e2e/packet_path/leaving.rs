// SPDX-License-Identifier: Apache-2.0
//! The node answers a client when its SYN has left: by the rules in force, for each connection anew. As users have
//! it, with a rule that observes.

use std::io;
use std::net::SocketAddr;

use super::*;
use crate::support::dial_from;

/// A node that has learned the service, and that its answers come this way.
fn ready_to_answer(network: &Network) -> (Node, TcpListener) {
    let listener = listen(network.server(), PORT);
    let node = Node::builder(network.node(0), binary()).config(CONFIG);
    let node = node.start().expect("the node starts");
    for family in Family::ALL {
        until("an answer of the node", || {
            let taken = redirect(&node, "packet_taken");
            let mut pair = Pair::open(network, family, &listener);
            pair.check();
            pair.close_client_first();
            redirect(&node, "packet_taken") > taken
        });
    }
    (node, listener)
}

/// Connects from a port of the client.
fn dial_from_port(network: &Network, to: SocketAddr, port: u16) -> io::Result<TcpStream> {
    let source = SocketAddr::new(network.client_address(Family::V4), port);
    dial_from(network.client(), source, to)
}

// promise: PK1
/// What the firewall rejects is not answered, whatever its rule looks at that no profile could hold, and counts once
/// in it.
#[test]
fn forbidden_connections_are_not_answered() {
    let network = line();
    let (node, listener) = ready_to_answer(&network);
    let forbidden = [
        "tcp sport 20000",
        "ip dscp 0 tcp sport 20001",
        "ether saddr != 00:00:00:00:00:00 tcp sport 20002",
        "tcp window > 0 tcp sport 20003",
        "tcp option sack-perm exists tcp sport 20004",
    ];
    let rules = forbidden.map(|rule| format!("{rule} counter reject with tcp reset"));
    firewall(
        network.node(0),
        "forbids",
        &[("forward", &rules.join("\n"))],
    );
    let to = target(&network, Family::V4, &listener);
    for port in 20_000..20_005 {
        let taken = redirect(&node, "packet_taken");
        let error = dial_from_port(&network, to, port).expect_err("it is forbidden");
        assert_eq!(error.raw_os_error(), Some(libc::ECONNREFUSED), "{port}");
        assert_eq!(redirect(&node, "packet_taken"), taken, "{port}");
    }
    let counted = firewall_text(network.node(0), "forbids");
    assert_eq!(
        counted.matches("counter packets 1 ").count(),
        5,
        "{counted}"
    );
    // All others are, also once rules have changed.
    let taken = redirect(&node, "packet_taken");
    drop(dial_from_port(&network, to, 20_005).expect("it is allowed"));
    assert_eq!(redirect(&node, "packet_taken"), taken + 1);
}

// promise: PK1
/// What one client has shown of a service serves its neighbours at their first contact.
#[test]
fn neighbours_are_answered_at_first_contact() {
    let network = line();
    let (node, listener) = ready_to_answer(&network);
    for (family, neighbour) in [(Family::V4, "10.0.0.77/24"), (Family::V6, "fd00::77/64")] {
        let add = format!("address add {neighbour} dev s0 nodad");
        let add = add.replace(" nodad", if family == Family::V4 { "" } else { " nodad" });
        network.client().ip(&add).expect("an address is added");
        let (ip, _) = neighbour.split_once('/').expect("a prefix");
        let source = SocketAddr::new(ip.parse().expect("an address"), 0);
        // The host answers no address of its link that it has not resolved.
        let refused = SocketAddr::new(network.server_address(family), PORT + 1);
        let _ = dial_from(network.client(), source, refused);
        let taken = redirect(&node, "packet_taken");
        let dialled = dial_from(
            network.client(),
            source,
            target(&network, family, &listener),
        );
        let mut pair = Pair::of(dialled, &listener);
        pair.check();
        pair.close_client_first();
        assert_eq!(redirect(&node, "packet_taken"), taken + 1, "{family}");
    }
}

// promise: PK1
/// A set that no connection meets, and an address that comes and goes, make the node forget nothing.
#[test]
fn changes_of_the_host_make_the_node_forget_nothing() {
    let network = line();
    let (node, listener) = ready_to_answer(&network);
    let host = network.node(0);
    let set = "table inet aside {\nset unused { type ipv4_addr; }\n}\n";
    firewall_script(host, set);
    for number in 1..6 {
        firewall_script(
            host,
            &format!("add element inet aside unused {{ 192.0.2.{number} }}"),
        );
        let address = format!("192.0.2.{number}/32 dev lo");
        host.ip(&format!("address add {address}"))
            .expect("an address is added");
        for family in Family::ALL {
            let taken = redirect(&node, "packet_taken");
            let mut pair = Pair::open(&network, family, &listener);
            pair.check();
            pair.close_client_first();
            assert_eq!(redirect(&node, "packet_taken"), taken + 1, "{family}");
        }
        host.ip(&format!("address del {address}"))
            .expect("an address is removed");
    }
}
