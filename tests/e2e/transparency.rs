// SPDX-License-Identifier: Apache-2.0
//! Client and server see each other and no node: addresses, ports, sizes.

use std::io::Write;
use std::net::{IpAddr, SocketAddr, TcpListener};

use posthaste_lab::link::Link;
use posthaste_lab::netns::Namespace;
use posthaste_lab::network::{Family, Network, TO_CLIENT, TO_SERVER};
use posthaste_lab::transfer::{Request, fetch};

use crate::capture::Capture;
use crate::support::{
    MODES, MODES_BY_PORT, PORT, Pair, accepting, add_address, close, counter, dial_from, dial_with,
    each_mode, line, listen, network, plain, relay_of, serve, start_relaying, start_relaying_in,
    target, until_counter, until_ended,
};

/// More addresses of the client, by family.
fn more_clients(family: Family) -> [IpAddr; 2] {
    let texts = match family {
        Family::V4 => ["10.100.0.1", "10.100.9.9"],
        Family::V6 => ["fd00:100::1", "fd00:100:0:9::9"],
    };
    texts.map(|text| text.parse().expect("an address"))
}

/// More addresses of the server, by family.
fn more_servers(family: Family) -> [IpAddr; 2] {
    let texts = match family {
        Family::V4 => ["10.200.0.1", "10.200.9.9"],
        Family::V6 => ["fd00:200::1", "fd00:200:0:9::9"],
    };
    texts.map(|text| text.parse().expect("an address"))
}

// promise: T1
#[test]
fn addresses_and_ports_preserved() {
    let network = line();
    for mode in MODES {
        let node = start_relaying(&network, &accepting(mode));
        for port in [1, 22, 443, 8080, 65535] {
            let listener = listen(network.server(), port);
            for family in Family::ALL {
                let mut pair = Pair::open(&network, family, &listener);
                let server = target(&network, family, &listener);
                assert_eq!(pair.client.peer_addr().unwrap(), server);
                assert_eq!(plain(pair.server.local_addr().unwrap()), server);
                assert_eq!(pair.client_address(), pair.seen_by_server());
                assert_eq!(pair.client_address().ip(), network.client_address(family));
                pair.check();
                let relay = relay_of(&node, pair.client_address()).expect("it is relayed");
                assert_eq!(relay["server"], server.to_string());
                assert_eq!(relay["accept"], mode);
                pair.close_client_first();
            }
        }
        until_counter(&node, "relays", 0);
        assert_eq!(counter(&node, "relays_opened"), 10);
        until_ended(&node, "finished", 10);
        assert_eq!(counter(&node, "port_fallbacks"), 0);
    }
}

// promise: T2
#[test]
fn one_port_many_connections() {
    let network = line();
    for family in Family::ALL {
        for (client, server) in more_clients(family).into_iter().zip(more_servers(family)) {
            add_address(network.client(), client);
            add_address(network.server(), server);
        }
    }
    let node = start_relaying(&network, &each_mode());
    for (mode, port) in MODES_BY_PORT {
        let listeners = [port, port + 1].map(|port| listen(network.server(), port));
        let before = counter(&node, "relays_opened");
        for family in Family::ALL {
            let mut pairs = pairs_from(&network, family, 4001, &listeners);
            assert_eq!(counter(&node, "relays"), 3 * 3 * 2);
            pairs.iter_mut().for_each(Pair::check);
            drop(pairs);
            until_counter(&node, "relays", 0);
        }
        let opened = counter(&node, "relays_opened") - before;
        assert_eq!(opened, 2 * 3 * 3 * 2, "{mode}");
    }
    assert_eq!(counter(&node, "port_fallbacks"), 0);
}

/// Connects each address of the client, always from the same port, to each address of the server.
fn pairs_from(
    network: &Network,
    family: Family,
    port: u16,
    listeners: &[TcpListener],
) -> Vec<Pair> {
    let own = [network.client_address(family)];
    let clients = own.into_iter().chain(more_clients(family));
    let own = [network.server_address(family)];
    let servers: Vec<_> = own.into_iter().chain(more_servers(family)).collect();
    let mut pairs = Vec::new();
    for client in clients {
        for server in &servers {
            for listener in listeners {
                let bound = listener.local_addr().expect("a bound socket");
                let to = SocketAddr::new(*server, bound.port());
                let from = SocketAddr::new(client, port);
                let pair = Pair::of(dial_from(network.client(), from, to), listener);
                assert_eq!(pair.seen_by_server(), from);
                pairs.push(pair);
            }
        }
    }
    pairs
}

// promise: T3
#[test]
fn occupied_port_replaced() {
    let network = line();
    let _taken = listen(network.node(0), 5000);
    let node = start_relaying(&network, &each_mode());
    let mut count = 0;
    for (mode, port) in MODES_BY_PORT {
        let listener = listen(network.server(), port);
        for family in Family::ALL {
            count += 1;
            let from = SocketAddr::new(network.client_address(family), 5000);
            let to = target(&network, family, &listener);
            let mut pair = Pair::of(dial_from(network.client(), from, to), &listener);
            assert_eq!(pair.seen_by_server().ip(), from.ip());
            assert_ne!(pair.seen_by_server().port(), from.port(), "{mode}");
            assert_eq!(counter(&node, "port_fallbacks"), count);
            pair.check();
            pair.close_client_first();
        }
    }
    until_ended(&node, "finished", 6);
    until_counter(&node, "half_open", 0);
}

// promise: T4
#[test]
fn node_as_source() {
    let network = line();
    let config = format!("[defaults]\nsource_address = \"node\"\n{}", each_mode());
    let node = start_relaying(&network, &config);
    for (mode, port) in MODES_BY_PORT {
        let listener = listen(network.server(), port);
        for (family, nodes) in Family::ALL.into_iter().zip(["10.0.1.1", "fd00:0:0:1::1"]) {
            let mut pair = Pair::open(&network, family, &listener);
            assert_eq!(
                pair.seen_by_server().ip(),
                nodes.parse::<IpAddr>().unwrap(),
                "{mode}: the node's own address on the server's side"
            );
            assert_eq!(
                pair.client.peer_addr().unwrap(),
                target(&network, family, &listener)
            );
            pair.check();
            pair.close_server_first();
        }
    }
    until_ended(&node, "finished", 6);
    until_counter(&node, "half_open", 0);
}

// promise: T5
#[test]
fn mss_not_raised() {
    let network = line();
    let capture = Capture::start(network.server());
    let _node = start_relaying(&network, &each_mode());
    for (mode, port) in MODES_BY_PORT {
        let listener = listen(network.server(), port);
        for family in Family::ALL {
            let to = target(&network, family, &listener);
            for wanted in [None, Some(700_u16)] {
                let client = dial_with(network.client(), to, |socket| {
                    wanted.map_or(Ok(()), |mss| socket.set_tcp_mss(mss.into()))
                });
                let mut pair = Pair::of(client, &listener);
                pair.check();
                let limit = wanted.unwrap_or(1500 - 20 - 20);
                let syns = capture.syns_to(port);
                let announced = syns.last().expect("a SYN").mss.expect("an MSS option");
                assert!(
                    (500..=limit).contains(&announced),
                    "{mode} {family}: {announced} > {limit}"
                );
                pair.close_client_first();
            }
        }
    }
}

/// A link in the middle of the path that carries only smaller packets.
fn narrow(left: &Namespace, right: &Namespace) {
    for (host, interface) in [(left, TO_SERVER), (right, TO_CLIENT)] {
        host.ip(&format!("link set {interface} mtu 1300"))
            .expect("an interface has an MTU");
    }
}

/// Sends `bytes` from a client to a server that only counts them.
fn upload(network: &Network, family: Family, bytes: usize) {
    let listener = listen(network.server(), 90);
    let Pair { client, server } = Pair::open(network, family, &listener);
    let content: Vec<u8> = (0..=250).cycle().take(bytes).collect();
    std::thread::scope(|scope| {
        let mut sender = client.try_clone().expect("a second handle");
        let sent = &content;
        scope.spawn(move || sender.write_all(sent).expect("everything is sent"));
        let mut received = vec![0; bytes];
        let mut receiver = &server;
        std::io::Read::read_exact(&mut receiver, &mut received).expect("everything arrives");
        assert!(received == content, "wrong bytes");
    });
    close(client, server);
}

/// Has the server send much to the client.
fn download(network: &Network, family: Family) {
    let _server = serve(network);
    let request = Request::new(network.server_address(family), PORT, 2_000_000);
    fetch(network.client(), &request).unwrap_or_else(|e| panic!("{family}: {e:#}"));
}

// In both tests the first transfer is the one in which the node sends into the narrow link. An end
// host that has learned the path's size announces smaller segments from then on.

// promise: T6
#[test]
fn path_mtu_behind_node() {
    let network = network(vec![Link::Veth; 4]);
    narrow(network.node(1), network.node(2));
    let node = start_relaying_in(network.node(0), "");
    for (errors, family) in (1..).zip(Family::ALL) {
        upload(&network, family, 1_000_000);
        assert!(counter(&node, "icmp_errors") >= errors, "{family}");
        download(&network, family);
    }
    assert_eq!(counter(&node, "relays_opened"), 4);
}

// promise: T6
#[test]
fn path_mtu_before_node() {
    let network = network(vec![Link::Veth; 4]);
    narrow(network.node(0), network.node(1));
    let node = start_relaying_in(network.node(2), "");
    for (errors, family) in (1..).zip(Family::ALL) {
        download(&network, family);
        assert!(counter(&node, "icmp_errors") >= errors, "{family}");
        upload(&network, family, 1_000_000);
    }
    assert_eq!(counter(&node, "relays_opened"), 4);
}
