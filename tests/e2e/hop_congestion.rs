// SPDX-License-Identifier: Apache-2.0
//! Hops with the node's own congestion control, by eBPF.

use std::io::{Read, Write};
use std::thread;
use std::time::{Duration, Instant};

use posthaste_lab::link::Link;
use posthaste_lab::network::{Family, Network};
use posthaste_lab::node::Node;

use crate::requests::{ALLOWED, KEY, LISTENER_PORT, explicit, listener};
use crate::support::{PORT, Pair, binary, listen, network, until};

/// Of a transfer in one direction.
const BYTES: usize = 3_000_000;

/// Client, two nodes that reach each other by this family, and server.
fn member(network: &Network, node: usize, family: Family) -> String {
    let other = 1 - node;
    let address = listener(network, other, family);
    let mut text = format!(
        "[node]\nid = {}\nworkers = 1\n{ALLOWED}[[peer]]\nname = \"other\"\nid = {}\n\
         address = \"{address}\"\nkey = \"{KEY}\"\n",
        node + 1,
        other + 1,
    );
    if node == 0 {
        text += "[[chain]]\nname = \"two\"\nnodes = [\"other\"]\n\
                 [[route]]\nchains = [\"two\"]\ndirect = false\n";
    } else {
        text += &explicit(network, node);
    }
    text
}

/// The congestion controls of the first node's sockets, as `ss` lists them.
fn controls(network: &Network) -> String {
    let mut ss = network.node(0).command("ss").expect("an open namespace");
    let listed = ss.args(["-tinH", "state", "established"]).output();
    let listed = listed.expect("ss runs");
    String::from_utf8_lossy(&listed.stdout).into_owned()
}

/// Both directions at once, more than buffers hold, every byte compared.
fn exchange(network: &Network) {
    exchange_at(network, PORT);
}

fn exchange_at(network: &Network, port: u16) {
    let listener = listen(network.server(), port);
    let bytes: Vec<u8> = (0..BYTES)
        .map(|at| (at ^ at >> 8).to_le_bytes()[0])
        .collect();
    let pair = Pair::open(network, Family::V4, &listener);
    let ends = [&pair.client, &pair.server];
    thread::scope(|scope| {
        for (mut from, mut to) in [(ends[0], ends[1]), (ends[1], ends[0])] {
            let bytes = &bytes;
            scope.spawn(move || from.write_all(bytes).expect("the bytes are sent"));
            scope.spawn(move || {
                let mut received = vec![0; bytes.len()];
                to.read_exact(&mut received).expect("the bytes arrive");
                assert!(received == *bytes, "other bytes");
            });
        }
    });
    pair.close_client_first();
}

// promise: K24
#[test]
fn bytes_cross_a_lossy_hop() {
    for family in Family::ALL {
        let far = Link::delay(Duration::from_millis(20)).loss(0.05);
        let network = network([Link::Veth, far, Link::Veth]);
        let nodes = [1, 0].map(|node| {
            let builder = Node::builder(network.node(node), binary()).relaying();
            let started = builder.config(&member(&network, node, family)).start();
            started.expect("the node becomes ready")
        });
        exchange(&network);
        until("a hop has the control", || {
            // Warm hops are opened once there is demand.
            exchange(&network);
            controls(&network).contains("posthaste_")
        });
        // Also those that were opened as the node started.
        for socket in controls(&network).split("\n").collect::<Vec<_>>().chunks(2) {
            if socket[0].trim_end().ends_with(&format!(":{LISTENER_PORT}")) {
                assert!(socket[1].contains("posthaste_"), "{family}: {socket:?}");
            }
        }
        drop(nodes);
    }
}

/// All connections together, in each direction.
// promise: K25
#[test]
fn limited_rate_of_a_peer() {
    const LIMIT: f64 = 2e6;
    for family in Family::ALL {
        let network = network([Link::Veth, Link::Veth, Link::Veth]);
        let nodes = [1, 0].map(|node| {
            let text = member(&network, node, family);
            let from = network.calling_address(1 - node, family);
            let more =
                format!("\nrate_limit = \"16Mbit/s\"\nsource_addresses = [\"{from}\"]\nkey = ");
            let text = text.replace("\nkey = ", &more);
            let started = Node::builder(network.node(node), binary())
                .relaying()
                .config(&text)
                .start();
            started.expect("the node becomes ready")
        });
        let begun = Instant::now();
        thread::scope(|scope| {
            for port in [PORT, PORT + 1] {
                let network = &network;
                scope.spawn(move || exchange_at(network, port));
            }
        });
        // What the sockets hold of the first flight is sent at once.
        let least = (2 * BYTES - 500_000) as f64 / LIMIT;
        let lasted = begun.elapsed().as_secs_f64();
        assert!(lasted > least, "{family}: {lasted} s, not {least} s");
        drop(nodes);
    }
}

/// A kernel without type information.
// promise: K24
#[test]
fn hops_use_another_control() {
    let network = network([Link::Veth, Link::Veth, Link::Veth]);
    let scratch = posthaste_lab::scratch::Scratch::new().unwrap();
    let program = scratch.path().join("posthaste");
    let script = format!(
        "#!/bin/sh\nexec unshare --mount sh -c 'mount --bind /dev/null /sys/kernel/btf/vmlinux && exec \"$0\" \"$@\"' {} \"$@\"\n",
        binary().display()
    );
    std::fs::write(&program, script).unwrap();
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&program, executable).unwrap();
    let nodes = [1, 0].map(|node| {
        let builder = Node::builder(network.node(node), &program).relaying();
        let started = builder.config(&member(&network, node, Family::V4)).start();
        started.expect("the node becomes ready")
    });
    for node in &nodes {
        let log = node.log();
        assert!(
            format!("{log:?}").contains("is not available: bbr in its place"),
            "{log:?}"
        );
    }
    exchange(&network);
    assert!(!controls(&network).contains("posthaste_"));
}
