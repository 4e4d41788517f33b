// SPDX-License-Identifier: Apache-2.0
//! Nodes of a chain that die or cannot be reached.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use posthaste_lab::network::{Family, Network};
use posthaste_lab::node::Node;
use serde_json::Value;

use crate::payload::{receive_all, send};
use crate::requests::start_all;
use crate::support::{
    PORT, Pair, SOON, counter, dial, errno, expect_accepted_and_reset, expect_reset, firewall,
    listen, remove_firewall, target, until, until_counter, until_ended,
};

use super::{Plan, line_of};

/// The second and the fourth node, else the third and the fourth.
const TWO_WAYS: &[&[usize]] = &[&[1, 3], &[2, 3]];

fn two_ways(accept: &str, warm: bool) -> Plan<'_> {
    Plan {
        nodes: 4,
        chains: TWO_WAYS,
        accept,
        warm,
        ..Plan::of(3)
    }
}

/// Opens a connection that works, and returns how many relays each node has opened so far.
fn open_and_check(network: &Network, family: Family, nodes: &[Node]) -> Vec<u64> {
    let listener = listen(network.server(), PORT);
    open_and_check_with(network, family, &listener, nodes)
}

fn open_and_check_with(
    network: &Network,
    family: Family,
    listener: &TcpListener,
    nodes: &[Node],
) -> Vec<u64> {
    let mut pair = Pair::open(network, family, listener);
    pair.check();
    pair.close_client_first();
    let opened = nodes.iter().map(|node| counter(node, "relays_opened"));
    opened.collect()
}

// promise: K3
#[test]
fn dead_node_resets_relays() {
    for (accept, warm) in [("early", false), ("strict", true), ("late", true)] {
        let network = line_of(4);
        let mut nodes = two_ways(accept, warm).start(&network);
        let listener = listen(network.server(), PORT);
        let mut pairs = Family::ALL.map(|family| Pair::open(&network, family, &listener));
        pairs.iter_mut().for_each(Pair::check);
        assert_eq!(counter(&nodes[1], "relays"), 2, "{accept}");
        nodes[1].kill().expect("it was there");
        for pair in &mut pairs {
            expect_reset(&mut pair.client);
            expect_reset(&mut pair.server);
        }
        drop(listener);
        let alive = nodes.remove(1);
        drop(alive);
        for (count, family) in (1..).zip([Family::V4, Family::V6, Family::V4]) {
            let opened = open_and_check(&network, family, &nodes);
            assert_eq!(opened, [2 + count, count, 2 + count], "{accept}");
        }
    }
}

/// A busy machine makes some deaths known later, none sooner: the best of some counts.
// promise: B15
#[test]
fn silent_node_with_warm_hops() {
    for family in Family::ALL {
        let network = line_of(3);
        let plan = Plan {
            nodes: 3,
            chains: &[&[1], &[2]],
            hops: family,
            warm: true,
            ..Plan::of(3)
        };
        // Each worker notices by flows of its own.
        let one_worker = |config: String| config.replacen("[node]\n", "[node]\nworkers = 1\n", 1);
        let configs = (0..3).map(|node| one_worker(plan.config(&network, node)));
        let nodes = start_all(&network, configs);
        let listener = listen(network.server(), PORT);
        let elsewhere = listen(network.server(), PORT + 1);
        let query = crate::requests::LISTENER_PORT;
        let input = format!("tcp dport {query} drop");
        let output = format!("tcp sport {query} drop");
        let soon = (0..10).any(|_| {
            until("the first chain is up", || !is_down(&nodes[0], "node-1"));
            until("hops wait", || waiting(&nodes[0], "node-1") > 1);
            let before = counter(&nodes[1], "relays_opened");
            let opened = open_and_check_with(&network, family, &listener, &nodes);
            assert_eq!(opened[1], before + 1);
            firewall(
                network.node(1),
                "silence",
                &[("input", &input), ("output", &output)],
            );
            let since = Instant::now();
            // Flows that begin meanwhile fail with their hop, or arrive late: on a port of their
            // own, where the test does not mistake them for others.
            let target = target(&network, family, &elsewhere);
            let mut lost = Vec::new();
            while !is_down(&nodes[0], "node-1") {
                assert!(since.elapsed() < SOON, "the node detects nothing");
                lost.push(dial(network.client(), target));
                thread::sleep(Duration::from_millis(20));
            }
            let took = since.elapsed();
            drop(lost);
            let before = counter(&nodes[2], "relays_opened");
            let opened = open_and_check_with(&network, family, &listener, &nodes);
            assert!(opened[2] > before, "by the other chain");
            remove_firewall(network.node(1), "silence");
            took < Duration::from_secs(2)
        });
        assert!(soon, "{family}");
    }
}

/// The health of a peer, as the node reports it.
fn is_down(node: &Node, peer: &str) -> bool {
    known_peer(node, peer)["health"]["usable"] == false
}

fn waiting(node: &Node, peer: &str) -> u64 {
    known_peer(node, peer)["waiting"]
        .as_u64()
        .expect("a number")
}

fn known_peer(node: &Node, name: &str) -> Value {
    let chains = node.admin_json("chains").expect("the node answers");
    let peers = chains["peers"].as_array().expect("a list");
    let named = peers.iter().find(|peer| peer["name"] == name);
    named.expect("it is listed").clone()
}

/// In early mode the first node has sent its client's bytes by then, so one flow of each worker
/// may be reset before the node detects the failure.
// promise: K3
#[test]
fn dead_later_node_avoided() {
    for accept in ["early", "strict"] {
        let network = line_of(4);
        let plan = Plan {
            nodes: 4,
            chains: &[&[1, 2], &[3]],
            accept,
            ..Plan::of(3)
        };
        let mut nodes = plan.start(&network);
        nodes[2].kill().expect("it was there");
        let listener = listen(network.server(), PORT);
        let workers = counter(&nodes[0], "workers");
        let (done, mut lost) = (AtomicBool::new(false), 0);
        thread::scope(|scope| {
            scope.spawn(|| echo_bytes(&listener, &done));
            for family in Family::ALL.into_iter().cycle().take(8) {
                let client = dial(network.client(), target(&network, family, &listener));
                lost += u64::from(!is_answered(client.expect("it is not refused")));
            }
            done.store(true, Ordering::Relaxed);
        });
        let most = if accept == "early" { workers } else { 0 };
        assert!(lost <= most, "{accept}: {lost} were lost");
        until_counter(&nodes[0], "relays", 0);
    }
}

/// Answers every connection with its byte.
fn echo_bytes(listener: &TcpListener, done: &AtomicBool) {
    listener.set_nonblocking(true).expect("a socket");
    while !done.load(Ordering::Relaxed) {
        match listener.accept() {
            Ok((mut server, _)) => {
                server.set_nonblocking(false).expect("a socket");
                let mut byte = [0];
                server.read_exact(&mut byte).expect("a byte");
                server.write_all(&byte).expect("a byte");
            }
            Err(_) => thread::sleep(Duration::from_millis(2)),
        }
    }
}

/// Whether a byte comes back; if not, the client is reset.
fn is_answered(mut client: TcpStream) -> bool {
    let mut byte = [0];
    let answered = client
        .write_all(b"?")
        .and_then(|()| client.read_exact(&mut byte));
    let Err(error) = answered else {
        return true;
    };
    let reset = [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];
    assert!(reset.contains(&error.kind()), "{error}");
    false
}

// promise: K4
#[test]
fn silent_node_skipped() {
    for accept in ["early", "strict"] {
        for family in Family::ALL {
            let network = line_of(4);
            let deaf = format!("tcp dport {} drop", crate::requests::LISTENER_PORT);
            firewall(network.node(1), "deaf", &[("input", &deaf)]);
            let plan = two_ways(accept, false);
            let listener = listen(network.server(), PORT);
            let later = (1..4).map(|node| plan.config(&network, node));
            let hosts = network.nodes()[1..].iter();
            let _others: Vec<Node> = hosts
                .zip(later)
                .map(|(host, config)| crate::support::start_relaying_in(host, &config))
                .collect();
            // A busy machine makes some attempts longer, none shorter. A new node has forgotten that the
            // way is down.
            let mut took = (0..10).map(|_| {
                let first =
                    crate::support::start_relaying_in(network.node(0), &plan.config(&network, 0));
                let begin = Instant::now();
                let mut pair = Pair::open(&network, family, &listener);
                pair.check();
                let took = begin.elapsed();
                assert_eq!(counter(&first, "hops_failed"), 1, "{accept} {family}");
                // From now on it is known.
                pair.close_client_first();
                took
            });
            let soon = took.find(|took| *took < Duration::from_millis(2500));
            assert!(soon.is_some(), "{accept} {family}");
            remove_firewall(network.node(1), "deaf");
        }
    }
}

/// The second node gives its hop up after it has lost two SYNs. The first has no other chain, and the
/// client would have waited for a third.
// promise: K19
#[test]
fn only_chain_retried() {
    for accept in ["early", "strict", "late"] {
        for family in Family::ALL {
            let network = line_of(3);
            let plan = Plan {
                accept,
                ..Plan::of(3)
            };
            let nodes = plan.start(&network);
            let deaf = format!("tcp dport {} drop", crate::requests::LISTENER_PORT);
            firewall(network.node(2), "deaf", &[("input", &deaf)]);
            let listener = listen(network.server(), PORT);
            let mut pair = thread::scope(|scope| {
                let opening = scope.spawn(|| Pair::open(&network, family, &listener));
                until_counter(&nodes[1], "hops_failed", 1);
                remove_firewall(network.node(2), "deaf");
                opening.join().expect("the connection opens")
            });
            pair.check();
            pair.close_client_first();
            assert_eq!(counter(&nodes[1], "hops_failed"), 1, "{accept} {family}");
            until_ended(&nodes[0], "finished", 1);
        }
    }
}

/// As above, with a client that has sent more than the first node keeps.
// promise: K19
#[test]
fn only_chain_retried_for_upload() {
    const BYTES: u64 = 4 << 20;
    for accept in ["early", "late"] {
        for family in Family::ALL {
            let network = line_of(3);
            let plan = Plan {
                accept,
                ..Plan::of(3)
            };
            let nodes = plan.start(&network);
            let deaf = format!("tcp dport {} drop", crate::requests::LISTENER_PORT);
            firewall(network.node(2), "deaf", &[("input", &deaf)]);
            let listener = listen(network.server(), PORT);
            let to = SocketAddr::new(network.server_address(family), PORT);
            thread::scope(|scope| {
                let client = scope.spawn(|| {
                    let mut stream = dial(network.client(), to)?;
                    send(&mut stream, 1, BYTES)?;
                    stream.shutdown(Shutdown::Write)?;
                    receive_all(&mut stream, 2)
                });
                until_counter(&nodes[1], "hops_failed", 1);
                remove_firewall(network.node(2), "deaf");
                let (mut stream, _) = crate::support::accept(&listener);
                assert_eq!(receive_all(&mut stream, 1).unwrap(), BYTES);
                send(&mut stream, 2, BYTES).unwrap();
                drop(stream);
                assert_eq!(client.join().unwrap().unwrap(), BYTES, "{accept} {family}");
            });
            until_ended(&nodes[0], "finished", 1);
        }
    }
}

// promise: K5
#[test]
fn no_chain_goes_direct() {
    for (accept, warm) in [("early", true), ("strict", false)] {
        let network = line_of(4);
        let plan = Plan {
            direct: true,
            ..two_ways(accept, warm)
        };
        let mut nodes = plan.start(&network);
        let last = nodes.drain(1..);
        drop(last);
        let listener = listen(network.server(), PORT);
        for (count, family) in (1..).zip(Family::ALL) {
            let mut pair = Pair::open(&network, family, &listener);
            pair.check();
            assert_eq!(pair.seen_by_server(), pair.client_address(), "{accept}");
            pair.close_client_first();
            until_ended(&nodes[0], "finished", count);
        }
        assert_eq!(counter(&nodes[0], "relays_opened"), 2);
    }
}

// promise: K5
#[test]
fn no_chain_is_refused() {
    for (accept, warm) in [("early", false), ("late", true), ("strict", true)] {
        let network = line_of(4);
        let mut nodes = two_ways(accept, warm).start(&network);
        nodes.truncate(1);
        let _listener = listen(network.server(), PORT);
        for (count, family) in (1..).zip(Family::ALL) {
            let to = SocketAddr::new(network.server_address(family), PORT);
            let dialled = dial(network.client(), to);
            if accept == "strict" {
                assert_eq!(errno(&dialled), Some(libc::ECONNREFUSED));
            } else {
                expect_accepted_and_reset(dialled);
            }
            until_ended(&nodes[0], "hop_failed", count);
        }
    }
}

/// A refusal of one flow does not affect the others.
// promise: K6
#[test]
fn forbidden_destination_keeps_chain() {
    for (accept, warm) in [("strict", false), ("strict", true)] {
        let network = line_of(3);
        let plan = Plan {
            chains: &[&[1], &[2]],
            accept,
            warm,
            ..Plan::of(3)
        };
        let configs = (0..3).map(|node| {
            let config = plan.config(&network, node);
            if node == 1 {
                config.replace(crate::requests::ALLOWED, "")
            } else {
                config
            }
        });
        let nodes = start_all(&network, configs);
        let opened = open_and_check(&network, Family::V4, &nodes);
        assert_eq!(opened, [1, 0, 1], "{accept}");
        // The next flow uses the chain again, unless the machine is so busy that the node seems
        // silent.
        let retried = (0..10).any(|_| {
            let before = counter(&nodes[0], "hops_failed");
            let opened = open_and_check(&network, Family::V6, &nodes);
            assert_eq!((opened[0], opened[1]), (opened[2], 0), "{accept}");
            counter(&nodes[0], "hops_failed") > before
        });
        assert!(retried, "{accept}, warm: {warm}");
    }
}
