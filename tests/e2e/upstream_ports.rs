// SPDX-License-Identifier: Apache-2.0
//! Ports that upstream sockets take on hosts that track connections.
//!
//! A relay needs a port of its own there. Early demultiplexing gives its socket whatever has the same
//! addresses and ports, after NAT: also packets of a connection that the host forwards.

use std::net::{SocketAddr, TcpListener};

use posthaste_lab::netns::Namespace;
use posthaste_lab::network::{Family, Network};
use posthaste_lab::node::Node;

use crate::observing::{MASQUERADE, connect, observing, observing_in_each_mode, share_a_pool};
use crate::support::{
    MODES_BY_PORT, PORT, Pair, counter, dial_from, expect_reset, firewall, firewall_script, line,
    listen, reset, until,
};
use crate::watch::sockets;

/// A port that the router publishes: whoever connects to it reaches [`PORT`].
const PUBLISHED: u16 = PORT + 1;

/// Has the router publish each port by the next one.
fn publish(network: &Network, ports: &[u16]) {
    let rules = ports.iter().flat_map(|port| {
        Family::ALL.map(|family| {
            let to = SocketAddr::new(network.server_address(family), *port);
            let word = if to.is_ipv4() { "ip" } else { "ip6" };
            let published = port + 1;
            format!("meta nfproto {family} tcp dport {published} dnat {word} to {to}\n")
                .to_lowercase()
        })
    });
    let rules: String = rules.collect();
    let chain = "chain pre { type nat hook prerouting priority -100";
    let table = format!("table inet publish {{\n{chain}\n{rules}}}\n}}\n");
    firewall_script(network.node(0), &table);
}

fn pick_ports(host: &Namespace, range: &str) {
    let set = host.sysctl("net.ipv4.ip_local_port_range", range);
    set.expect("a range");
}

/// Opens a connection from a port of the client to one of the server's address.
fn opened(network: &Network, family: Family, ports: [u16; 2], listener: &TcpListener) -> Pair {
    let from = SocketAddr::new(network.client_address(family), ports[0]);
    let to = SocketAddr::new(network.server_address(family), ports[1]);
    let mut pair = Pair::of(dial_from(network.client(), from, to), listener);
    pair.check();
    pair
}

/// Has a node learn to relay the client's connections with the server.
fn learn_to_relay(network: &Network, node: &Node, family: Family, listener: &TcpListener) {
    connect(network, node, family, listener);
    assert!(connect(network, node, family, listener), "{family}");
}

/// A node that relays the client's connections with the server, and whose own sockets get one of the odd
/// ports of the lower half of this range, which the kernel prefers.
fn relaying_from_32_ports(network: &Network, family: Family, listener: &TcpListener) -> Node {
    let router = network.node(0);
    let node = observing(router, "early");
    learn_to_relay(network, &node, family, listener);
    pick_ports(router, "40000 40127");
    node
}

/// Connections to a port, one older than the node and in the case of the server's own port one younger, keep
/// working while the client opens relayed ones to the same server.
fn forwarded_connections_keep_working(network: &Network, family: Family, port: u16) {
    let router = network.node(0);
    let listener = listen(network.server(), PORT);
    let mut held = vec![opened(network, family, [40_003, port], &listener)];
    let node = observing(router, "early");
    if port == PORT {
        held.push(opened(network, family, [40_001, port], &listener));
    }
    learn_to_relay(network, &node, family, &listener);
    // The kernel prefers the odd ports of the lower half: four in this range.
    pick_ports(router, "40000 40015");
    for _ in 0..12 {
        let mut pair = Pair::open(network, family, &listener);
        pair.check();
        let port = pair.seen_by_server().port();
        let is_taken = |held: &Pair| held.client_address().port() == port;
        assert!(!held.iter().any(is_taken), "{family}: {port}");
        held.iter_mut().for_each(Pair::check);
        pair.close_server_first();
    }
    assert!(counter(&node, "relays_opened") > 1, "{family}");
    pick_ports(router, "32768 60999");
    held.into_iter().for_each(Pair::close_client_first);
}

// promise: X5
#[test]
fn relays_take_no_port_of_a_forwarded_connection() {
    let network = line();
    let invalid = [("forward", "ct state invalid drop")];
    firewall(network.node(0), "stateful", &invalid);
    for family in Family::ALL {
        forwarded_connections_keep_working(&network, family, PORT);
    }
}

/// NAT would give a relay another address of the pool, if its port were that of another connection.
// promise: X5
#[test]
fn relays_keep_the_address_that_nat_gives_their_client() {
    let network = line();
    let router = network.node(0);
    share_a_pool(router);
    let listener = listen(network.server(), PORT);
    for family in Family::ALL {
        let mut own = (40_001..40_016).step_by(2).map(|port| {
            let pair = opened(&network, family, [port, PORT], &listener);
            let address = pair.seen_by_server().ip();
            pair.close_client_first();
            address
        });
        let address = own.next().expect("one of them");
        assert!(own.all(|other| other == address), "{family}");
        let node = relaying_from_32_ports(&network, family, &listener);
        for _ in 0..4 {
            let mut pair = Pair::open(&network, family, &listener);
            pair.check();
            assert_eq!(pair.seen_by_server().ip(), address, "{family}");
            pair.close_server_first();
        }
        assert!(counter(&node, "relays_opened") > 1, "{family}");
        pick_ports(router, "32768 60999");
    }
}

// promise: X6
#[test]
fn relays_take_no_port_of_a_translated_connection() {
    let network = line();
    publish(&network, &[PORT]);
    for family in Family::ALL {
        forwarded_connections_keep_working(&network, family, PUBLISHED);
    }
}

/// The socket of an ended relay would swallow the packets of a connection that NAT gives its addresses.
// promise: X6
#[test]
fn ports_of_ended_relays_are_free() {
    let network = line();
    let router = network.node(0);
    publish(&network, &MODES_BY_PORT.map(|(_, port)| port));
    let node = observing_in_each_mode(router);
    for (mode, own) in MODES_BY_PORT {
        let listener = listen(network.server(), own);
        for family in Family::ALL {
            learn_to_relay(&network, &node, family, &listener);
            let mut pair = Pair::open(&network, family, &listener);
            pair.check();
            let port = pair.seen_by_server().port();
            assert_ne!(port, pair.client_address().port(), "{mode} {family}");
            pair.close_client_first();
            let waiting = || sockets(router, "time-wait");
            until("the end of TIME_WAIT", || waiting().is_empty());
            opened(&network, family, [port, own + 1], &listener).close_client_first();
        }
    }
}

/// A client may have the same port for a service that the router publishes, and for the server behind it. To
/// conntrack the connection that comes second has another port.
// promise: X6
#[test]
fn one_port_for_a_published_and_a_direct_connection() {
    let network = line();
    publish(&network, &MODES_BY_PORT.map(|(_, port)| port));
    let node = observing_in_each_mode(network.node(0));
    for (_, own) in MODES_BY_PORT {
        let (published, listener) = (own + 1, listen(network.server(), own));
        for family in Family::ALL {
            learn_to_relay(&network, &node, family, &listener);
            for (port, [first, second]) in [(30_001, [published, own]), (30_003, [own, published])]
            {
                let mut held = opened(&network, family, [port, first], &listener);
                opened(&network, family, [port, second], &listener).close_client_first();
                held.check();
                held.close_server_first();
            }
            opened(&network, family, [30_005, published], &listener).close_server_first();
            opened(&network, family, [30_005, own], &listener).close_client_first();
        }
    }
}

/// Conntrack would take a SYN with the addresses of a relay that was reset for one of its own, and forward
/// it as it had received it.
// promise: X5
#[test]
fn connections_after_a_reset_are_translated() {
    let network = line();
    let router = network.node(0);
    firewall_script(router, MASQUERADE);
    let listeners = MODES_BY_PORT.map(|mode| (mode, listen(network.server(), mode.1)));
    let each = || {
        listeners
            .iter()
            .flat_map(|mode| Family::ALL.map(|family| (mode, family)))
    };
    let node = observing_in_each_mode(router);
    for (((_, port), listener), family) in each() {
        learn_to_relay(&network, &node, family, listener);
        let Pair { mut client, server } = opened(&network, family, [30_001, *port], listener);
        reset(server);
        expect_reset(&mut client);
    }
    until("no relay", || counter(&node, "relays") == 0);
    drop(node);
    for (((mode, port), listener), family) in each() {
        let after = opened(&network, family, [30_001, *port], listener);
        let own = network.client_address(family);
        assert_ne!(after.seen_by_server().ip(), own, "{mode} {family}");
        after.close_server_first();
    }
}

/// NAT gives its address to all clients: sockets in TIME_WAIT would use up its ports.
// promise: X5
#[test]
fn translated_relays_leave_no_sockets() {
    let network = line();
    let router = network.node(0);
    firewall_script(router, MASQUERADE);
    let listener = listen(network.server(), PORT);
    let node = observing(router, "early");
    for family in Family::ALL {
        for _ in 0..3 {
            connect(&network, &node, family, &listener);
        }
    }
    assert!(counter(&node, "relays_opened") > 2);
    let waiting = || sockets(router, "time-wait");
    until("the end of TIME_WAIT", || waiting().is_empty());
}

/// To NAT the port of a translated connection is taken for as long as conntrack has it.
// promise: X6
#[test]
fn relays_take_no_port_of_an_ended_translated_connection() {
    let network = line();
    let router = network.node(0);
    publish(&network, &[PORT]);
    let listener = listen(network.server(), PORT);
    let ports: Vec<u16> = (40_001..40_016).step_by(2).collect();
    for family in Family::ALL {
        for port in &ports {
            opened(&network, family, [*port, PUBLISHED], &listener).close_client_first();
        }
        let node = relaying_from_32_ports(&network, family, &listener);
        for _ in 0..4 {
            let mut pair = Pair::open(&network, family, &listener);
            pair.check();
            let port = pair.seen_by_server().port();
            assert!(!ports.contains(&port), "{family}: {port}");
            pair.close_server_first();
        }
        assert!(counter(&node, "relays_opened") > 4, "{family}");
        pick_ports(router, "32768 60999");
    }
}
