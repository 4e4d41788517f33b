// SPDX-License-Identifier: Apache-2.0
//! Who sends faster than the other end receives waits for it: what lies between both is bounded.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use posthaste_lab::link::Link;
use posthaste_lab::network::{Family, Network};
use posthaste_lab::node::Node;

use crate::chains::Plan;
use crate::slow_readers::unacknowledged;
use crate::support::{PORT, Pair, SOON, listen, network, start_relaying};
use crate::tunnels;

/// Bytes of an upload: more than the kernel's largest receive buffer.
const UPLOAD_BYTES: u64 = 20 << 20;
/// The kernel's receive buffers, as Linux has them since 6.16.
const BUFFERS: &str = "4096 131072 33554432";

/// Client, so many nodes, and a server behind 10 Mbit/s.
fn slow_server(nodes: usize) -> Network {
    let slow = Link::delay(Duration::from_millis(5)).rate(10_000_000);
    let hops = (1..nodes).map(|_| Link::delay(Duration::from_millis(10)));
    let links = [Link::Veth].into_iter().chain(hops);
    let network = network(links.chain([slow.queue(100_000)]));
    for node in network.nodes() {
        let set = node.sysctl("net.ipv4.tcp_rmem", BUFFERS);
        set.expect("a namespace has its own buffers");
    }
    network
}

/// Uploads as fast as the client may. Returns how many bytes its kernel knew to have arrived and the server had not
/// received, in the median: a moment in which nothing ran but the client shows nothing.
fn upload(pair: Pair) -> u64 {
    let Pair { mut client, server } = pair;
    let received = AtomicU64::new(0);
    thread::scope(|scope| {
        scope.spawn(|| count(server, &received));
        let piece = vec![7; 16 << 10];
        let (mut sent, mut between) = (0, Vec::new());
        while sent < UPLOAD_BYTES {
            client.write_all(&piece).expect("the bytes are sent");
            sent += piece.len() as u64;
            let waits = unacknowledged(&client).try_into().expect("not negative");
            let arrived = sent - u64::min(waits, sent);
            between.push(arrived.saturating_sub(received.load(Ordering::Relaxed)));
        }
        client.shutdown(Shutdown::Write).expect("it is open");
        between.sort_unstable();
        between[between.len() / 2]
    })
}

fn count(mut server: TcpStream, received: &AtomicU64) {
    let mut buffer = vec![0; 64 << 10];
    loop {
        match server.read(&mut buffer).expect("the upload arrives") {
            0 => break,
            read => received.fetch_add(read as u64, Ordering::Relaxed),
        };
    }
    assert_eq!(received.load(Ordering::Relaxed), UPLOAD_BYTES);
}

// promise: I11
#[test]
fn uploads_wait_for_the_server_of_a_relay() {
    let network = slow_server(1);
    let _node = start_relaying(&network, "");
    let listener = listen(network.server(), PORT);
    for family in Family::ALL {
        let between = upload(Pair::open(&network, family, &listener));
        assert!(between < 3_000_000, "{family}: {between}");
    }
}

// promise: I11
#[test]
fn uploads_wait_for_the_server_behind_hops() {
    let network = slow_server(2);
    let _nodes = Plan::of(2).start(&network);
    let listener = listen(network.server(), PORT);
    let between = upload(Pair::open(&network, Family::V4, &listener));
    assert!(between < 4_000_000, "{between}");
}

// promise: I11
#[test]
fn uploads_wait_for_the_server_behind_a_tunnel() {
    let network = slow_server(2);
    let (_nodes, listener) = tunnels::ready(&network, "early", Family::V4);
    let between = upload(Pair::open(&network, Family::V4, &listener));
    assert!(between < 4_000_000, "{between}");
}

/// Bytes of the memory of a node that are resident.
fn resident(node: &Node) -> u64 {
    let status = format!("/proc/{}/status", node.process().pid());
    let status = std::fs::read_to_string(status).expect("it lives");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kibibytes.expect("it has memory") << 10
}

/// Clients that read nothing of what their servers send, over the tunnels of one worker.
// promise: D11
#[test]
fn stalled_downloads_over_tunnels_hold_little_memory() {
    const CLIENTS: usize = 200;
    const QUIET: Duration = Duration::from_secs(3);
    let network = network([
        Link::Veth,
        Link::delay(Duration::from_millis(10)),
        Link::Veth,
    ]);
    let (nodes, listener) = tunnels::ready(&network, "early", Family::V4);
    let before: Vec<u64> = nodes.iter().map(resident).collect();
    let pairs: Vec<Pair> = (0..CLIENTS)
        .map(|_| Pair::open(&network, Family::V4, &listener))
        .collect();
    let piece = vec![7; 64 << 10];
    for pair in &pairs {
        pair.server.set_nonblocking(true).expect("it is open");
    }
    // Until the servers wait for good.
    let (begun, mut last) = (Instant::now(), Instant::now());
    while last.elapsed() < QUIET {
        assert!(begun.elapsed() < 4 * SOON, "they are never full");
        for mut server in pairs.iter().map(|pair| &pair.server) {
            match server.write(&piece) {
                Ok(written) if written > 0 => last = Instant::now(),
                Ok(_) => panic!("it is closed"),
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        }
        thread::sleep(Duration::from_millis(10));
    }
    for (node, before) in nodes.iter().zip(before) {
        let held = resident(node).saturating_sub(before);
        assert!(held < 120 << 20, "{held} bytes");
    }
}
