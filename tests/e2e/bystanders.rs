// SPDX-License-Identifier: Apache-2.0
//! What is none of a node's business: other protocols, the host's own services and connections,
//! and what the host would not forward.

use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::thread;
use std::time::Duration;

use posthaste_lab::link::Link;
use posthaste_lab::netns::Namespace;
use posthaste_lab::network::{Family, Network};
use socket2::{Domain, Protocol, Socket, Type};

use crate::payload::uninterrupted;
use crate::support::{
    MODES_BY_PORT, PORT, Pair, SOON, counter, dial, each_mode, expect_reset, line, listen,
    listen_at, network, start_relaying, until_counter, until_ended,
};

/// Sends something of another protocol to the server and back, in pieces where it is large.
fn other_traffic(network: &Network, family: Family) {
    let (client, server) = (
        network.client_address(family),
        network.server_address(family),
    );
    let bind = |host: &Namespace, ip: IpAddr| {
        let socket = host.run_in(|| UdpSocket::bind((ip, 9000)))?;
        socket.set_read_timeout(Some(SOON))?;
        Ok::<_, io::Error>(socket)
    };
    let ends = [
        bind(network.client(), client).expect("a UDP socket"),
        bind(network.server(), server).expect("a UDP socket"),
    ];
    let mut received = [0; 10_000];
    for bytes in [100, 5000] {
        let content = vec![3; bytes];
        for (from, to) in [(0, 1), (1, 0)] {
            let target = ends[to].local_addr().expect("a bound socket");
            ends[from].send_to(&content, target).expect("it is sent");
            let (length, _) = ends[to].recv_from(&mut received).expect("it arrives");
            assert_eq!(received[..length], content, "{family}");
        }
    }
    // 253: for experiments (RFC 3692).
    let raw = |host: &Namespace| {
        let make = || {
            Socket::new(
                Domain::for_address((server, 0).into()),
                Type::RAW,
                Some(Protocol::from(253)),
            )
        };
        let socket = host.run_in(make).expect("a raw socket");
        socket.set_read_timeout(Some(SOON)).expect("an option");
        socket
    };
    let (from, mut to) = (raw(network.client()), raw(network.server()));
    let target = SocketAddr::new(server, 0);
    from.send_to(b"neither TCP nor UDP", &target.into())
        .expect("it is sent");
    let length = uninterrupted(|| to.read(&mut received)).expect("it arrives");
    assert!(
        received[..length].ends_with(b"neither TCP nor UDP"),
        "{family}"
    );
    ping(network.client(), server);
}

/// Sends a large echo request and waits for the answer.
fn ping(host: &Namespace, to: IpAddr) {
    host.sysctl("net.ipv4.ping_group_range", "0 0")
        .expect("a namespace has its own choice");
    let to = SocketAddr::new(to, 0);
    let (protocol, request) = match to {
        SocketAddr::V4(_) => (Protocol::ICMPV4, 8),
        SocketAddr::V6(_) => (Protocol::ICMPV6, 128),
    };
    let make = || Socket::new(Domain::for_address(to), Type::DGRAM, Some(protocol));
    let mut socket = host.run_in(make).expect("a ping socket");
    socket.set_read_timeout(Some(SOON)).expect("an option");
    let mut message = vec![0; 4000];
    message[0] = request;
    socket.send_to(&message, &to.into()).expect("it is sent");
    let mut received = [0; 5000];
    let length = uninterrupted(|| socket.read(&mut received)).expect("an answer arrives");
    assert_eq!(length, message.len());
}

// promise: T13
#[test]
fn other_protocols_and_fragments_pass() {
    for links in [
        [Link::Veth, Link::Veth],
        [Link::delay(Duration::ZERO), Link::Veth],
    ] {
        let network = network(links);
        let node = start_relaying(&network, "");
        for family in Family::ALL {
            other_traffic(&network, family);
        }
        assert_eq!(counter(&node, "syns_redirected"), 0);
        assert_eq!(counter(&node, "relays_opened"), 0);
    }
}

// promise: T10
#[test]
fn transit_avoids_own_services() {
    let network = line();
    let node = start_relaying(&network, &each_mode());
    for (turn, (mode, port)) in (1..).zip(MODES_BY_PORT) {
        let shell = listen(network.node(0), port);
        let servers = listen(network.server(), port);
        for family in Family::ALL {
            // To the server: its own service.
            let mut pair = Pair::open(&network, family, &servers);
            pair.check();
            drop(pair);
            // To the node: the node's.
            let to = SocketAddr::new(network.node_address(0, family), port);
            Pair::of(dial(network.client(), to), &shell).check();
        }
        until_counter(&node, "relays", 0);
        assert_eq!(counter(&node, "relays_opened"), 2 * turn, "{mode}");
    }
    // A service that only the node has, on a port of strict mode.
    let _console = listen(network.node(0), 2081);
    for family in Family::ALL {
        let to = SocketAddr::new(network.server_address(family), 2081);
        let refused = dial(network.client(), to).expect_err("the server has none");
        assert_eq!(refused.raw_os_error(), Some(libc::ECONNREFUSED), "{family}");
    }
    until_ended(&node, "upstream_refused", 2);
}

// promise: T10
#[test]
fn own_connections_untouched() {
    let network = line();
    let listener = listen(network.server(), PORT);
    let node = start_relaying(&network, "");
    for (family, own) in Family::ALL.into_iter().zip(["10.0.1.1", "fd00:0:0:1::1"]) {
        let to = SocketAddr::new(network.server_address(family), PORT);
        let mut pair = Pair::of(dial(network.node(0), to), &listener);
        assert_eq!(pair.seen_by_server().ip(), own.parse::<IpAddr>().unwrap());
        pair.check();
    }
    assert_eq!(counter(&node, "syns_redirected"), 0);
    assert_eq!(counter(&node, "relays_opened"), 0);
}

/// The ports of sockets in a namespace that listen on a loopback address.
fn loopback_listeners(host: &Namespace) -> Vec<SocketAddr> {
    let tables = [
        ("tcp", "0100007F:", "127.0.0.1"),
        ("tcp6", "00000000000000000000000001000000:", "::1"),
    ];
    let mut found = Vec::new();
    for (table, address, text) in tables {
        let path = format!("/proc/thread-self/net/{table}");
        let lines = host
            .run_in(|| std::fs::read_to_string(path))
            .expect("a table of sockets");
        for line in lines.lines() {
            let fields: Vec<_> = line.split_ascii_whitespace().collect();
            // 0A: listening.
            if let (Some(port), Some(&"0A")) = (
                fields.get(1).and_then(|local| local.strip_prefix(address)),
                fields.get(3),
            ) {
                let port = u16::from_str_radix(port, 16).expect("a port");
                found.push(SocketAddr::new(text.parse().expect("an address"), port));
            }
        }
    }
    found
}

// promise: T10
#[test]
fn listeners_refuse_direct_connections() {
    let network = line();
    let node = start_relaying(&network, "");
    let listeners = loopback_listeners(network.node(0));
    assert!(listeners.len() >= 2, "{listeners:?}");
    for listener in listeners {
        // From the host itself: closed at once.
        let mut stream = dial(network.node(0), listener).expect("the socket listens");
        expect_reset(&mut stream);
        // From outside, to an address of the node where no socket listens.
        for family in Family::ALL {
            let to = SocketAddr::new(network.node_address(0, family), listener.port());
            let refused = dial(network.client(), to).expect_err("no socket listens");
            assert_eq!(refused.raw_os_error(), Some(libc::ECONNREFUSED), "{to}");
        }
    }
    assert_eq!(counter(&node, "relays_opened"), 0);
}

// promise: T10
#[test]
fn unforwarded_not_relayed() {
    let network = line();
    let _listener = listen(network.server(), PORT);
    let node = start_relaying(&network, "");
    network
        .client()
        .sysctl("net.ipv4.tcp_syn_retries", "1")
        .unwrap();
    network.node(0).sysctl("net.ipv4.ip_forward", "0").unwrap();
    network
        .node(0)
        .sysctl("net.ipv6.conf.all.forwarding", "0")
        .unwrap();
    thread::scope(|scope| {
        for family in Family::ALL {
            let to = SocketAddr::new(network.server_address(family), PORT);
            let client = network.client();
            scope.spawn(move || assert!(dial(client, to).is_err(), "{family}"));
        }
    });
    assert_eq!(counter(&node, "relays_opened"), 0);
}

// promise: T10
#[test]
fn bound_service_avoids_transit() {
    let network = line();
    let own = SocketAddr::new(network.node_address(0, Family::V4), PORT);
    let service = listen_at(network.node(0), own);
    let listener = listen(network.server(), PORT);
    let node = start_relaying(&network, "");
    Pair::of(dial(network.client(), own), &service).check();
    for family in Family::ALL {
        Pair::open(&network, family, &listener).check();
    }
    until_ended(&node, "finished", 2);
}

/// A service may begin to listen on the port of connections in transit, on all addresses.
// promise: T10
#[test]
fn services_listen_on_ports_of_relays() {
    let network = line();
    let node = start_relaying(&network, &each_mode());
    for (turn, (_, port)) in (1..).zip(MODES_BY_PORT) {
        let listener = listen(network.server(), port);
        let open = Family::ALL.map(|family| Pair::open(&network, family, &listener));
        let service = listen(network.node(0), port);
        for mut pair in open {
            pair.check();
            pair.close_client_first();
        }
        until_ended(&node, "finished", 2 * turn);
        drop(service);
    }
}
