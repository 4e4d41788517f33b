// SPDX-License-Identifier: Apache-2.0
//! Routing loops, and what ends them: the node decrements the TTL or hop limit of a flow, and
//! relays no packet of its own host.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use posthaste_lab::netns::Namespace;
use posthaste_lab::network::{Family, Network};
use socket2::Socket;

use crate::capture::{Capture, Segment};
use crate::support::{
    MODES_BY_PORT, Pair, counter, dial_with, each_mode, errno, line, listen, network,
    start_relaying, start_relaying_in, talkative, target, tcp_socket, until, until_ended,
};
use posthaste_lab::link::Link;

/// Prefixes that the two nodes of [`looped`] route to each other.
const NOWHERE: [&str; 2] = ["10.77.0.0/16", "fd00:77::/32"];

/// An address that would exist if the routes led to it.
fn absent_host(family: Family, port: u16) -> SocketAddr {
    let text = ["10.77.0.1", "fd00:77::1"][usize::from(family == Family::V6)];
    SocketAddr::new(text.parse().expect("an address"), port)
}

/// Client, two nodes with a loop between them, server.
fn looped() -> Network {
    let network = network([Link::Veth, Link::Veth, Link::Veth]);
    for (family, prefix) in Family::ALL.into_iter().zip(NOWHERE) {
        let onward = network.node_address(1, family);
        let back = network.calling_address(0, family);
        for (host, via) in [(0, onward), (1, back)] {
            let route = format!("route add {prefix} via {via}");
            network.node(host).ip(&route).expect("a route can be added");
        }
    }
    network
}

/// Sends the SYN of a connection, and lets go of it when it is dropped.
fn reach(host: &Namespace, to: SocketAddr) -> Socket {
    let reach = || -> io::Result<Socket> {
        let socket = tcp_socket(to)?;
        socket.set_nonblocking(true)?;
        match socket.connect(&to.into()) {
            Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
            _ => Ok(socket),
        }
    };
    host.run_in(reach).expect("a SYN can be sent")
}

/// The SYNs to a host of the client that another has sent and received, once no more come. A loop that does
/// not end fails.
fn syns_until_quiet(capture: &Capture, to: SocketAddr) -> Vec<Segment> {
    let mut seen = 0;
    let syns = || {
        let syns = capture.syns_to(to.port()).into_iter();
        syns.filter(|syn| syn.to == to).collect::<Vec<_>>()
    };
    until("the end of the loop", || {
        std::thread::sleep(Duration::from_millis(200));
        let now = syns().len();
        assert!(now < 2000, "{now} SYNs");
        now > 0 && std::mem::replace(&mut seen, now) == now
    });
    syns()
}

/// Each accept mode and family, with the address that a loop keeps from being reached.
fn each_loop() -> impl Iterator<Item = (String, SocketAddr)> {
    MODES_BY_PORT.into_iter().flat_map(|(mode, port)| {
        Family::ALL.map(|family| (format!("{mode} {family}"), absent_host(family, port)))
    })
}

/// One SYN goes round as often as IP forwarding would have it: what each host sends is seen as it
/// is sent and as it arrives.
// promise: T19
#[test]
fn own_syn_returning() {
    let network = looped();
    talkative(network.nodes());
    let node = start_relaying(&network, &each_mode());
    for (what, to) in each_loop() {
        let capture = Capture::start(network.node(1));
        let reach = reach(network.node(0), to);
        let syns = syns_until_quiet(&capture, to);
        drop(reach);
        // The kernel repeats its SYN every second.
        let once: Vec<_> = syns.iter().map(|syn| syn.ttl).collect();
        assert!(once.len() <= 64 * 3, "{what}: {once:?}");
        assert_eq!(counter(&node, "relays_opened"), 0, "{what}");
    }
}

// promise: T19
#[test]
fn own_address_loop_ends() {
    let network = looped();
    talkative(network.nodes());
    let config = format!("[defaults]\nsource_address = \"node\"\n{}", each_mode());
    let nodes = [0, 1].map(|host| start_relaying_in(network.node(host), &config));
    let opened = || {
        let each = nodes.iter().map(|node| counter(node, "relays_opened"));
        each.sum::<u64>()
    };
    for (what, to) in each_loop() {
        let (capture, before) = (Capture::start(network.node(1)), opened());
        let reach = reach(network.client(), to);
        let syns = syns_until_quiet(&capture, to);
        drop(reach);
        let relays = opened() - before;
        let what = format!("{what}: {relays} relays, {} SYNs", syns.len());
        println!("{what}");
        assert!((1..=64).contains(&relays), "{what}");
        assert!(syns.len() <= 64 * 8, "{what}");
    }
}

// promise: T19
#[test]
fn client_address_loop_ends() {
    let network = looped();
    talkative(network.nodes());
    let node = start_relaying(&network, &each_mode());
    for (what, to) in each_loop() {
        let capture = Capture::start(network.node(1));
        let before = counter(&node, "relays_opened");
        let reach = reach(network.client(), to);
        let syns = syns_until_quiet(&capture, to);
        drop(reach);
        assert!(syns.len() <= 64 * 3, "{what}: {}", syns.len());
        let relays = counter(&node, "relays_opened") - before;
        assert!((1..=32).contains(&relays), "{what}: {relays}");
    }
}

/// Sets the TTL or hop limit of what a socket sends.
pub(crate) fn set_hop_limit(socket: &Socket, to: IpAddr, hops: u32) -> io::Result<()> {
    if to.is_ipv4() {
        socket.set_ttl_v4(hops)
    } else {
        socket.set_unicast_hops_v6(hops)
    }
}

// promise: T19
#[test]
fn hop_limit_less_one() {
    let network = line();
    for own_address in ["", "[defaults]\nsource_address = \"node\"\n"] {
        let node = start_relaying(&network, &(own_address.to_owned() + &each_mode()));
        for (mode, port) in MODES_BY_PORT {
            let listener = listen(network.server(), port);
            for family in Family::ALL {
                for hops in [2, 40, 64, 128, 255_u8] {
                    let what = format!("{mode} {family} {hops}");
                    let capture = Capture::start(network.server());
                    let to = target(&network, family, &listener);
                    let dialled = dial_with(network.client(), to, |socket| {
                        set_hop_limit(socket, to.ip(), hops.into())
                    });
                    let mut pair = Pair::of(dialled, &listener);
                    pair.check();
                    pair.close_client_first();
                    let segments = capture.segments().into_iter();
                    let ttls: Vec<_> = segments
                        .filter(|segment| segment.to == to)
                        .map(|segment| segment.ttl)
                        .collect();
                    assert!(ttls.len() >= 4, "{what}: {ttls:?}");
                    assert!(ttls.iter().all(|ttl| *ttl == hops - 1), "{what}: {ttls:?}");
                }
            }
        }
        until_ended(&node, "finished", 30);
    }
}

// promise: T19
#[test]
fn last_hop_syn_answered() {
    let network = line();
    talkative(network.nodes());
    let node = start_relaying(&network, &each_mode());
    let capture = Capture::start(network.server());
    for (mode, port) in MODES_BY_PORT {
        let listener = listen(network.server(), port);
        for family in Family::ALL {
            let to = target(&network, family, &listener);
            let dialled = dial_with(network.client(), to, |socket| {
                set_hop_limit(socket, to.ip(), 1)
            });
            assert_eq!(errno(&dialled), Some(libc::EHOSTUNREACH), "{mode} {family}");
        }
        assert_eq!(capture.syns_to(port), [], "{mode}");
        assert_eq!(counter(&node, "relays_opened"), 0, "{mode}");
    }
}
