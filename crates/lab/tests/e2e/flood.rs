// SPDX-License-Identifier: Apache-2.0
//! Floods arrive, and what a server made of them is counted by kind.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use posthaste_lab::echo::Echo;
use posthaste_lab::flood::counts::Counts;
use posthaste_lab::flood::{Flood, IpNet, Plan};
use posthaste_lab::link::Link;
use posthaste_lab::network::{CLIENT_SIDE, Family, Network};
use posthaste_lab::process::wait_until;

const PORT: u16 = 7;
const SOON: Duration = Duration::from_secs(30);

fn line() -> Network {
    Network::line([Link::Veth, Link::Veth])
        .build()
        .expect("the network is built")
}

fn counts(network: &Network, prefix: IpNet) -> Counts {
    network
        .server()
        .run_in(|| Counts::take(prefix))
        .expect("the kernel shows its counters")
}

/// Lets every host on the way learn its neighbours' addresses. Packets wait for such an answer in
/// a queue that is shorter than a flood, and on a busy machine the answer takes its time.
fn meet_the_neighbours(network: &Network, server: SocketAddr) {
    let closed = SocketAddr::new(server.ip(), PORT + 1);
    let answer = network
        .client()
        .run_in(|| TcpStream::connect_timeout(&closed, SOON));
    assert_eq!(
        answer.expect_err("nobody listens").kind(),
        ErrorKind::ConnectionRefused
    );
}

fn flood_of(network: &Network, family: Family, sources: IpNet) -> u64 {
    let target = SocketAddr::new(network.server_address(family), PORT);
    meet_the_neighbours(network, target);
    let plan = Plan {
        sources,
        target,
        rate: 1000,
        duration: Duration::from_millis(300),
        seed: 1,
    };
    let flood = network
        .client()
        .run_in(|| Flood::start(plan))
        .expect("the flood starts");
    flood.finish().expect("all SYNs are sent")
}

#[test]
fn spoofed_syns_half_open() {
    for (family, sources) in Family::ALL.into_iter().zip(CLIENT_SIDE) {
        let network = line();
        let sources = sources.parse().unwrap();
        let _server = Echo::start(network.server(), PORT).unwrap();
        let sent = flood_of(&network, family, sources);
        assert_eq!(sent, 300);
        wait_until("half-open connection of each SYN", SOON, || {
            counts(&network, sources).half_open == sent
        })
        .unwrap();
        let counts = counts(&network, sources);
        assert_eq!((counts.completed, counts.passive_opens), (0, 0));
    }
}

#[test]
fn cookies_leave_nothing() {
    let network = line();
    network
        .server()
        .sysctl("net.ipv4.tcp_syncookies", "2")
        .unwrap();
    let sources = CLIENT_SIDE[0].parse().unwrap();
    let _server = Echo::start(network.server(), PORT).unwrap();
    let sent = flood_of(&network, Family::V4, sources);
    wait_until("cookie for each SYN", SOON, || {
        counts(&network, sources).cookies_sent == sent
    })
    .unwrap();
    assert_eq!(counts(&network, sources).half_open, 0);
}

/// The counts that must stay zero under a flood do move when a handshake is completed.
#[test]
fn completed_handshakes_are_seen() {
    for (family, sources) in Family::ALL.into_iter().zip(CLIENT_SIDE) {
        let network = line();
        // Otherwise an IPv6 address may be used once the kernel has found time for it.
        let (own, length) = if family == Family::V4 {
            ("10.100.0.1", "16")
        } else {
            ("fd00:100::1", "32 nodad")
        };
        let client = network.client();
        client
            .ip(&format!("address add {own}/{length} dev lo"))
            .unwrap();
        let server = network.server_address(family);
        let neighbour = network.node_address(0, family);
        client
            .ip(&format!("route replace {server} via {neighbour} src {own}"))
            .unwrap();
        let _server = Echo::start(network.server(), PORT).unwrap();
        let target = SocketAddr::new(server, PORT);
        let calls: Vec<TcpStream> = client.run_in(|| {
            let call = |_| TcpStream::connect_timeout(&target, SOON).unwrap();
            (0..3).map(call).collect()
        });
        wait_until("three connections at the server", SOON, || {
            counts(&network, sources.parse().unwrap()).passive_opens == 3
        })
        .unwrap();
        let counts = counts(&network, sources.parse().unwrap());
        assert_eq!(
            (counts.completed, counts.half_open, counts.passive_opens),
            (3, 0, 3)
        );
        drop(calls);
    }
}
