// SPDX-License-Identifier: Apache-2.0
//! Packets that are sent to reflectors and senders to mislead them, or to be answered in vain.

#![allow(clippy::unwrap_used, reason = "a test ends where it finds a failure")]

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use posthaste_lab::link::Link;
use posthaste_lab::network::{Family, Network};
use posthaste_lab::node::Node;
use posthaste_wire::auth::Key;
use posthaste_wire::header::NodeId;
use posthaste_wire::stamp::{self, ErrorEstimate, Probe, Reflection, Timestamp};

use super::{OFTEN, link, member, pair, until_link};
use crate::requests::start_all;
use crate::support::{SOON, firewall, until};

/// The key of the two nodes.
fn key() -> Key {
    stamp::key(&Key::new(std::array::from_fn(|at| {
        u8::try_from(at).unwrap()
    })))
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}

/// A probe as the other node would send it.
fn probe(sequence: u32, sent: Duration) -> Probe {
    Probe {
        sequence,
        sent: Timestamp::from_unix(sent),
        error: ErrorEstimate::OURS,
        session: stamp::session(NodeId::new(2).unwrap()),
    }
}

fn start(network: &Network, family: Family, measure: &str) -> Vec<Node> {
    let configs = [measure, OFTEN].into_iter().enumerate();
    let configs: Vec<_> = configs
        .map(|(node, measure)| member(network, node, family, measure))
        .collect();
    start_all(network, configs.into_iter())
}

/// A socket of the client, and the reflector of the first node.
fn unauthorized(network: &Network, family: Family) -> (UdpSocket, SocketAddr) {
    let local = SocketAddr::new(network.client_address(family), 0);
    let bind = || UdpSocket::bind(local);
    let socket = network.client().run_in(bind).unwrap();
    socket.set_read_timeout(Some(SOON)).unwrap();
    let reflector = SocketAddr::new(network.node_address(0, family), stamp::PORT);
    (socket, reflector)
}

fn refused(node: &Node) -> BTreeMap<String, u64> {
    let links = node.admin_json("links").unwrap();
    let refused = links["refused"].as_object().unwrap().iter();
    let counts = refused.map(|(reason, count)| (reason.clone(), count.as_u64().unwrap()));
    counts.filter(|(_, count)| *count > 0).collect()
}

fn until_refused(node: &Node, counts: &[(&str, u64)]) {
    let wanted = counts
        .iter()
        .map(|(reason, count)| ((*reason).to_owned(), *count));
    let wanted: BTreeMap<_, _> = wanted.collect();
    let mut last = BTreeMap::new();
    let reached = posthaste_lab::process::wait_until("refusals", SOON, || {
        last = refused(node);
        last == wanted
    });
    assert!(reached.is_ok(), "{last:?} and not {wanted:?}");
}

/// Nothing was answered so far: what is answered last is answered first.
fn expect_first_answer(socket: &UdpSocket, sequence: u32) {
    let mut bytes = [0; 512];
    let (length, _) = socket.recv_from(&mut bytes).unwrap();
    assert_eq!(
        length,
        stamp::AUTHENTICATED_BYTES,
        "no longer than its probe"
    );
    let read = Reflection::parse(&bytes[..length]).unwrap();
    assert!(read.is_of(&key()));
    assert_eq!(read.packet.probe.sequence, sequence);
}

// promise: L10
#[test]
fn forged_probes_refused() {
    let network = pair(Link::delay(Duration::from_millis(5)));
    for family in Family::ALL {
        let nodes = start(&network, family, OFTEN);
        let (socket, reflector) = unauthorized(&network, family);
        let wrong = stamp::key(&Key::new([9; 32]));
        let whole = probe(1, now()).auth(&key());
        let old = probe(1, now() - Duration::from_secs(120)).auth(&key());
        let skewed = probe(1, now() + Duration::from_secs(120)).auth(&key());
        let packets: [&[u8]; 7] = [
            b"?",
            &whole[..111],
            &whole[..44],
            &probe(1, now()).encode(),
            &probe(1, now()).auth(&wrong),
            &old,
            &skewed,
        ];
        for packet in packets {
            socket.send_to(packet, reflector).unwrap();
        }
        socket
            .send_to(&probe(7, now()).auth(&key()), reflector)
            .unwrap();
        expect_first_answer(&socket, 7);
        until_refused(
            &nodes[0],
            // The first 44 bytes of an authenticated probe have an error estimate of zero.
            &[
                ("malformed", 3),
                ("auth", 1),
                ("stale", 2),
                ("unauthorized", 1),
            ],
        );
        let from = socket.local_addr().unwrap();
        until("lines in the log", || {
            let log = nodes[0].log();
            let message = |reason: &str| {
                let line = format!("msg=\"measuring packet refused\" from={from} reason={reason}");
                log.iter().any(|one| one.contains(&line))
            };
            ["malformed", "auth", "stale", "unauthorized"]
                .into_iter()
                .all(message)
        });
    }
}

// promise: L11
#[test]
fn flood_answered_within_bounds() {
    let network = pair(Link::delay(Duration::from_millis(5)));
    let nodes = start(&network, Family::V4, OFTEN);
    until_link(&nodes[0], "a measured link", |link| link["state"] == "up");
    let (socket, reflector) = unauthorized(&network, Family::V4);
    socket.set_nonblocking(true).unwrap();
    let mut answers: u64 = 0;
    for sequence in 0..5_000 {
        let packet = probe(sequence, now()).auth(&key());
        match socket.send_to(&packet, reflector) {
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        while socket.recv(&mut [0; 512]).is_ok() {
            answers += 1;
        }
    }
    until("a bound", || refused(&nodes[0]).contains_key("limited"));
    assert!(answers < 5_000, "{answers}");
    for node in &nodes {
        until_link(node, "a link that is up", |link| link["state"] == "up");
    }
    assert_eq!(refused(&nodes[1]), BTreeMap::new());
}

/// The answers of the true reflector are cut off. What others send in its place changes nothing.
// promise: L10
#[test]
fn forged_answers_ignored() {
    let network = pair(Link::delay(Duration::from_millis(5)));
    let nodes = start(&network, Family::V4, OFTEN);
    until_link(&nodes[0], "a measured link", |link| link["state"] == "up");
    let ports = source_ports(&network);
    assert_eq!(ports.len(), 4, "{ports:?}");
    firewall(network.node(1), "cut", &[("input", "iifname \"c0\" drop")]);
    let (socket, _) = unauthorized(&network, Family::V4);
    let node = network.calling_address(0, Family::V4);
    let forge = |sequence: u32| {
        let mut sent = probe(sequence, now());
        sent.session = stamp::session(NodeId::new(1).unwrap());
        let reflection = Reflection {
            sequence,
            received: Timestamp::from_unix(now()),
            sent: Timestamp::from_unix(now()),
            error: ErrorEstimate::OURS,
            probe: sent,
            ttl: 64,
        };
        reflection.auth(&key())
    };
    until("a dead link", || {
        for port in &ports {
            for sequence in 0..20 {
                socket.send_to(&forge(sequence), (node, *port)).unwrap();
            }
        }
        link(&nodes[0])["state"] == "dead"
    });
    assert!(refused(&nodes[0])["unexpected"] > 0);
}

/// The ports that the first node probes from.
fn source_ports(network: &Network) -> Vec<u16> {
    let mut ss = network.node(0).command("ss").unwrap();
    let output = ss.arg("-uanH").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let locals = text
        .lines()
        .filter_map(|line| line.split_whitespace().nth(3));
    let ports = locals.filter_map(|local| local.rsplit(':').next()?.parse().ok());
    ports.filter(|port| *port != stamp::PORT).collect()
}

// promise: L11
#[test]
fn named_sources_without_tag() {
    let network = pair(Link::Veth);
    for family in Family::ALL {
        let measure = format!(
            "{OFTEN}open_to = [\"{}\"]\n",
            network.client_address(family)
        );
        let nodes = start(&network, family, &measure);
        let (socket, reflector) = unauthorized(&network, family);
        let sent = probe(3, Duration::ZERO);
        socket.send_to(&sent.encode(), reflector).unwrap();
        let mut bytes = [0; 512];
        let (length, from) = socket.recv_from(&mut bytes).unwrap();
        assert_eq!((length, from), (stamp::OPEN_BYTES, reflector));
        let read = Reflection::parse(&bytes[..length]).unwrap().packet;
        assert_eq!((read.probe, read.ttl), (sent, 64));
        assert_eq!(refused(&nodes[0]), BTreeMap::new());
    }
}
