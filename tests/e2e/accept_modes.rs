// SPDX-License-Identifier: Apache-2.0
//! When the node answers a client: at once (early), after the server answered (strict), or at once
//! with the server contacted afterwards (late).

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use posthaste_lab::link::Link;
use posthaste_lab::network::{Family, Network};
use posthaste_lab::node::Node;

use crate::capture::Capture;
use crate::support::{
    MODES, MODES_BY_PORT, PORT, Pair, accepting, counter, dial, each_mode, errno, firewall,
    firewall_text, kernel_counter, line, listen, network, remove_firewall, start_relaying, target,
    until, until_counter, until_ended,
};

pub(crate) mod refusals;

const MS: Duration = Duration::from_millis(1);

// promise: A1
#[test]
fn first_byte_by_mode() {
    let network = network([Link::delay(20 * MS), Link::delay(30 * MS)]);
    let listeners = MODES_BY_PORT.map(|(mode, port)| (mode, listen(network.server(), port)));
    let timed = |to| {
        let begin = Instant::now();
        let dialled = dial(network.client(), to);
        (errno(&dialled), begin.elapsed())
    };
    let round_trip = 100 * MS;
    let check_whole = |what: &str| {
        let [_, (_, strict), _] = &listeners;
        for family in Family::ALL {
            let open = target(&network, family, strict);
            let closed = SocketAddr::new(open.ip(), open.port() + 1);
            for (to, error) in [(open, None), (closed, Some(libc::ECONNREFUSED))] {
                let (got, took) = timed(to);
                assert_eq!(got, error, "{what} {to}");
                // The emulated links may be some microseconds early.
                assert!(took > round_trip - MS, "{what} {to}: {took:?}");
            }
        }
    };
    check_whole("direct");
    let node = start_relaying(&network, &each_mode());
    check_whole("strict");
    assert_eq!(counter(&node, "strict"), 4);
    for (mode, listener) in listeners.iter().filter(|(mode, _)| *mode != "strict") {
        for family in Family::ALL {
            let to = target(&network, family, listener);
            // A busy machine makes some attempts longer, none shorter.
            let attempts = (0..50).map(|_| timed(to).1);
            let shortest = attempts.inspect(|took| assert!(*took > 39 * MS, "{took:?}"));
            let soon = shortest.into_iter().find(|took| *took < 60 * MS);
            assert!(soon.is_some(), "{mode} {family}");
        }
    }
}

/// Keeps a host from receiving answers to its SYNs.
const NO_ANSWERS: &str = "tcp flags & (syn | ack) == syn | ack drop";

/// Connects while the client receives no SYN-ACK; `check` runs once the node has taken the SYN.
/// Then the client receives packets again, and the connection works.
fn connect_half(network: &Network, family: Family, node: &Node, check: impl FnOnce()) {
    let listener = listen(network.server(), PORT);
    let to = target(network, family, &listener);
    let before = counter(node, "syns_redirected");
    firewall(network.client(), "deaf", &[("input", NO_ANSWERS)]);
    thread::scope(|scope| {
        let dialled = scope.spawn(|| dial(network.client(), to));
        until("flow of the node", || {
            counter(node, "syns_redirected") > before
        });
        check();
        remove_firewall(network.client(), "deaf");
        let dialled = dialled.join().expect("no panic");
        Pair::of(dialled, &listener).check();
    });
}

// promise: A1, D1
#[test]
fn early_connects_first() {
    let network = line();
    let node = start_relaying(&network, "[half_open]\nexpiry = \"60s\"\n");
    for (count, family) in (1..).zip(Family::ALL) {
        let capture = Capture::start(network.server());
        let opened = || kernel_counter(network.server(), "Tcp", "PassiveOpens");
        let before = opened();
        connect_half(&network, family, &node, || {
            until("held answer", || counter(&node, "syn_acks_held") >= count);
            assert!(!capture.syns_to(PORT).is_empty(), "{family}: no SYN");
            assert_eq!(counter(&node, "half_open"), 1);
            assert_eq!(opened(), before, "{family}: a completed handshake");
        });
        assert_eq!(opened(), before + 1);
        assert_eq!(counter(&node, "early"), count);
        until_counter(&node, "half_open", 0);
    }
}

// promise: A5
#[test]
fn late_connects_after_ack() {
    let network = line();
    let node = start_relaying(&network, &accepting("late"));
    for (count, family) in (1..).zip(Family::ALL) {
        let client = Capture::start(network.client());
        let server = Capture::start(network.server());
        connect_half(&network, family, &node, || {
            until("repeated SYN", || client.syns_to(PORT).len() >= 2);
            assert_eq!(server.syns_to(PORT), [], "{family}");
        });
        assert_eq!(counter(&node, "late"), count);
    }
}

// promise: A3
#[test]
fn strict_answers_after_server() {
    let network = line();
    let listener = listen(network.server(), PORT);
    let node = start_relaying(&network, &accepting("strict"));
    let silence = format!("tcp dport {PORT} drop");
    for (count, family) in (1..).zip(Family::ALL) {
        let to = target(&network, family, &listener);
        let (client, server) = (
            Capture::start(network.client()),
            Capture::start(network.server()),
        );
        firewall(network.server(), "silence", &[("input", &silence)]);
        thread::scope(|scope| {
            let dialled = scope.spawn(|| dial(network.client(), to));
            until("second SYN", || client.syns_to(PORT).len() >= 2);
            until("SYN at the server", || !server.syns_to(PORT).is_empty());
            let mut segments = client.segments().into_iter();
            let answered = segments.any(|segment| segment.from == to);
            assert!(!answered, "{family}: an answer before the server's");
            remove_firewall(network.server(), "silence");
            Pair::of(dialled.join().expect("no panic"), &listener).check();
        });
        assert_eq!(counter(&node, "strict"), count);
        assert_eq!(counter(&node, "relays_opened"), count);
    }
}

/// Packets of a handshake that may be lost: where, on which hook, and which they are; `PORT`
/// stands for the server's port.
const LOSSES: [(&str, &str, &str); 4] = [
    (
        "server",
        "input",
        "tcp dport PORT tcp flags & (syn | ack) == syn",
    ),
    (
        "server",
        "output",
        "tcp sport PORT tcp flags & (syn | ack) == syn | ack",
    ),
    (
        "client",
        "input",
        "tcp sport PORT tcp flags & (syn | ack) == syn | ack",
    ),
    (
        "client",
        "output",
        "tcp dport PORT tcp flags & (syn | ack | psh) == ack",
    ),
];

/// One handshake that loses a packet.
struct Unlucky {
    port: u16,
    family: Family,
}

/// One for each mode, loss and family.
fn unlucky_handshakes() -> Vec<(Unlucky, usize)> {
    let mut all = Vec::new();
    for (_, first) in MODES_BY_PORT {
        for loss in 0..LOSSES.len() {
            for family in Family::ALL {
                let last = if family == Family::V4 { 4 } else { 6 };
                let port = first + 10 * u16::try_from(loss).expect("a few") + last;
                all.push((Unlucky { port, family }, loss));
            }
        }
    }
    all
}

/// Firewall rules that drop one packet of each handshake that loses one there.
fn losses_at(handshakes: &[(Unlucky, usize)], host: &str, hook: &str) -> String {
    let mut rules = String::new();
    for (handshake, loss) in handshakes {
        let (lossy_host, lossy_hook, packets) = LOSSES[*loss];
        if (lossy_host, lossy_hook) == (host, hook) {
            let packets = packets.replace("PORT", &handshake.port.to_string());
            // Room for one packet of a handshake, not for two.
            rules += &format!("{packets} quota until 100 bytes counter drop\n");
        }
    }
    rules
}

// promise: A7
#[test]
fn lost_handshake_packets() {
    let network = line();
    let handshakes = unlucky_handshakes();
    for (name, host) in [("client", network.client()), ("server", network.server())] {
        let rules = ["input", "output"].map(|hook| losses_at(&handshakes, name, hook));
        let [input, output] = &rules;
        firewall(host, "losses", &[("input", input), ("output", output)]);
    }
    let config = format!("[half_open]\nexpiry = \"60s\"\n{}", each_mode());
    let node = start_relaying(&network, &config);
    thread::scope(|scope| {
        for (handshake, _) in &handshakes {
            let network = &network;
            scope.spawn(move || {
                let listener = listen(network.server(), handshake.port);
                let mut pair = Pair::open(network, handshake.family, &listener);
                pair.check();
                pair.close_client_first();
            });
        }
    });
    let dropped = |host| {
        firewall_text(host, "losses")
            .matches("counter packets 1 ")
            .count()
    };
    let lost = dropped(network.client()) + dropped(network.server());
    assert_eq!(lost, handshakes.len(), "one packet of each was lost");
    until_ended(&node, "finished", handshakes.len() as u64);
    assert_eq!(counter(&node, "relays_opened"), handshakes.len() as u64);
    for mode in MODES {
        assert_eq!(counter(&node, mode), 8);
    }
    assert_eq!(counter(&node, "half_open"), 0);
}
