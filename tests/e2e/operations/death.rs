// SPDX-License-Identifier: Apache-2.0
//! A node that is killed: no end takes a torn connection for a complete one, new connections go
//! direct at once, and nothing of the node remains.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use posthaste_lab::netns::Namespace;
use posthaste_lab::network::{Family, Network};
use posthaste_lab::node::Node;
use posthaste_lab::process::Process;

use super::METRICS;
use super::observation::metrics;
use super::service::Service;
use super::teardown::run;
use crate::payload::uninterrupted;
use crate::support::{
    PORT, Pair, SOON, binary, counter, dial_from, expect_end, line, listen, start, start_relaying,
    target, until,
};
use crate::watch::{
    assert_nothing_left, installed, process_named, processes, programs_at, quiet, sockets,
};

/// A connection waits this long before it repeats its lost first packet.
const RETRY: Duration = Duration::from_secs(1);

/// The name of the process that cleans up after a dead node.
const GUARD: &str = "posthaste-guard";

// promise: I4
#[test]
fn both_ends_reset() {
    let network = line();
    let listener = listen(network.server(), PORT);
    let mut node = start_relaying(&network, "");
    let open = || Family::ALL.map(|family| Pair::open(&network, family, &listener));
    let (mut idle, mut busy) = (open(), open());
    idle.iter_mut().for_each(Pair::check);
    // When the node dies, bytes wait everywhere on the way.
    busy.iter_mut().for_each(|pair| fill(&mut pair.server));
    assert_eq!(counter(&node, "relays"), 4);
    node.kill().unwrap();
    for pair in idle.iter_mut().chain(&mut busy) {
        read_to_reset(&mut pair.client);
        read_to_reset(&mut pair.server);
    }
}

/// Writes to a stream that is not read, until no byte fits any more.
fn fill(stream: &mut TcpStream) {
    stream.set_nonblocking(true).unwrap();
    let mut last = Instant::now();
    while last.elapsed() < Duration::from_millis(100) {
        if stream.write(&[7; 64 << 10]).is_ok() {
            last = Instant::now();
        }
    }
    stream.set_nonblocking(false).unwrap();
}

/// Reads what is there, then a reset. An orderly end would make it look complete.
fn read_to_reset(stream: &mut TcpStream) {
    let mut buffer = vec![0; 64 << 10];
    loop {
        match uninterrupted(|| stream.read(&mut buffer)) {
            Ok(0) => panic!("an orderly end instead of a reset"),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return,
            Err(error) => panic!("{error} instead of a reset"),
        }
    }
}

// promise: F2
#[test]
fn killed_node_leaves_nothing() {
    let network = line();
    let host = network.node(0);
    let listener = listen(network.server(), PORT);
    let mut node = start_relaying(&network, "");
    let pairs = Family::ALL.map(|family| Pair::open(&network, family, &listener));
    until("two relays", || sockets(host, "established").len() == 4);
    // What is looked for below can be found: a rule and a route for each family, a program at
    // each interface, a guard.
    assert_eq!(installed(host).len(), 6, "{:#?}", installed(host));
    assert_eq!((programs_at(host, "c0"), programs_at(host, "s0")), (1, 1));
    guard_of(host);
    node.kill().unwrap();
    assert_nothing_left(host);
    drop(pairs);
    // The admin socket's file is still there; the next node takes its place.
    let next = restart(&network, &node);
    assert_eq!(node.status().unwrap()["pid"], next.pid());
}

/// Starts another node with the same configuration file.
fn restart(network: &Network, former: &Node) -> Process {
    let mut command = network.node(0).command(binary()).unwrap();
    command.arg("node").arg("-c").arg(former.config_file());
    let mut next = Process::spawn("the next node", command).unwrap();
    next.wait_until("word that it is ready", SOON, |next| {
        next.stdout().contains("ready")
    })
    .unwrap();
    next
}

// promise: F5
#[test]
fn restart_after_kill() {
    let network = line();
    let listener = listen(network.server(), PORT);
    let mut node = start_relaying(&network, "");
    node.kill().unwrap();
    let _next = restart(&network, &node);
    for (opened, family) in (1..).zip(Family::ALL) {
        let mut pair = Pair::open(&network, family, &listener);
        pair.check();
        assert_eq!(counter(&node, "relays_opened"), opened);
    }
    // The guard of the first has not removed what is the second's.
    assert_eq!(installed(network.node(0)).len(), 6);
}

// promise: F1
#[test]
fn direct_after_kill() {
    let network = line();
    let listener = listen(network.server(), PORT);
    for family in Family::ALL {
        let attempt = || {
            let mut node = start_relaying(&network, "");
            Pair::open(&network, family, &listener).check();
            assert_eq!(counter(&node, "relays_opened"), 1);
            node.kill().unwrap();
            let began = Instant::now();
            Pair::open(&network, family, &listener).check();
            began.elapsed()
        };
        // A busy machine makes some attempts longer, and none shorter.
        let shortest = std::iter::repeat_with(attempt).take(3).min().unwrap();
        assert!(shortest < RETRY, "{family}: {shortest:?}");
    }
}

/// A finished relay would leave a socket in TIME_WAIT with the addresses of client and server on
/// the node, which would swallow packets of the next connection between the same ports.
// promise: F1
#[test]
fn finished_ports_after_kill() {
    ports_work_after(|node, _| node.kill().unwrap());
}

// promise: F4
#[test]
fn finished_ports_without_guard() {
    ports_work_after(|node, host| {
        // A node that runs would start another guard.
        send(node.process().pid(), Signal::SIGSTOP);
        send(guard_of(host), Signal::SIGKILL);
        node.kill().unwrap();
        until("end of every process", || processes(host).is_empty());
        assert_eq!(installed(host).len(), 4, "no guard cleans up");
    });
}

fn ports_work_after(end: impl Fn(&mut Node, &Namespace)) {
    let network = line();
    // The ends remember nothing, so that only the node can be in the way.
    for end in [network.client(), network.server()] {
        end.sysctl("net.ipv4.tcp_max_tw_buckets", "0").unwrap();
    }
    let listener = listen(network.server(), PORT);
    for family in Family::ALL {
        for client_first in [true, false] {
            let times = reuse_after(&end, &network, family, &listener, client_first);
            let late = times.iter().filter(|time| **time >= RETRY).count();
            assert!(
                late <= times.len() / 2,
                "{family}, client first {client_first}: {times:?}"
            );
        }
    }
    run(network.node(0), "teardown");
    assert_nothing_left(network.node(0));
}

/// Uses some ports through a node, ends it, and uses them again; how long each then took.
fn reuse_after(
    end: impl Fn(&mut Node, &Namespace),
    network: &Network,
    family: Family,
    listener: &TcpListener,
    client_first: bool,
) -> Vec<Duration> {
    let ports = 20_000..20_008;
    let mut node = start_relaying(network, "");
    for port in ports.clone() {
        use_port(network, family, listener, port, client_first);
    }
    quiet(&node);
    let waiting = sockets(network.node(0), "time-wait");
    assert!(waiting.is_empty(), "{waiting:#?}");
    end(&mut node, network.node(0));
    let reuse = |port| use_port(network, family, listener, port, client_first);
    ports.map(reuse).collect()
}

/// Connects from a port, exchanges bytes and closes; returns how long that took.
fn use_port(
    network: &Network,
    family: Family,
    listener: &TcpListener,
    port: u16,
    client_first: bool,
) -> Duration {
    let any: SocketAddr = match family {
        Family::V4 => (Ipv4Addr::UNSPECIFIED, port).into(),
        Family::V6 => (Ipv6Addr::UNSPECIFIED, port).into(),
    };
    let began = Instant::now();
    let dialled = dial_from(network.client(), any, target(network, family, listener));
    let mut pair = Pair::of(dialled, listener);
    pair.check();
    let took = began.elapsed();
    if client_first {
        pair.close_client_first();
    } else {
        pair.close_server_first();
    }
    took
}

// promise: F3
#[test]
fn guard_within_a_second() {
    let network = line();
    let host = network.node(0);
    let listener = listen(network.server(), PORT);
    let attempt = || {
        let mut node = start(&network, "");
        for family in Family::ALL {
            Pair::open(&network, family, &listener).close_client_first();
        }
        quiet(&node);
        let began = Instant::now();
        node.kill().unwrap();
        until("end of rules, routes and sockets", || {
            installed(host).is_empty() && sockets(host, "all").is_empty()
        });
        began.elapsed()
    };
    // A busy machine makes some attempts longer, and none shorter.
    let shortest = std::iter::repeat_with(attempt).take(3).min().unwrap();
    assert!(shortest < Duration::from_secs(1), "{shortest:?}");
}

// promise: F2
#[test]
fn guard_ignores_signals() {
    let network = line();
    let mut node = start_relaying(&network, "");
    let guard = guard_of(network.node(0));
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        send(guard, signal);
    }
    node.kill().unwrap();
    assert_nothing_left(network.node(0));
}

/// Kills the guard and waits for the one that the node starts in its place.
/// The guard of the node there. A node may be ready before its guard has run so far that it has its name.
fn guard_of(host: &Namespace) -> u32 {
    until("the guard's name", || process_named(host, GUARD).is_some());
    process_named(host, GUARD).expect("it was there")
}

fn kill_guard(host: &Namespace) {
    let former = guard_of(host);
    send(former, Signal::SIGKILL);
    until("another guard", || {
        process_named(host, GUARD).is_some_and(|guard| guard != former)
    });
}

// promise: F4
#[test]
fn dead_guard_restarted() {
    let network = line();
    let host = network.node(0);
    let listener = listen(network.server(), PORT);
    let node = Node::builder(host, binary()).relaying().metrics(METRICS);
    let mut node = node.start().unwrap();
    let guard = guard_of(host);
    assert_eq!(
        node.status().unwrap()["guard"]["pid"].as_u64(),
        Some(guard.into())
    );
    for restarts in 1..=2 {
        kill_guard(host);
        until("word of it", || {
            let guard = node.status().unwrap()["guard"].clone();
            guard["restarts"] == restarts
                && guard["pid"].as_u64() == process_named(host, GUARD).map(u64::from)
        });
    }
    let text = node.admin("status --all").unwrap();
    assert!(text.contains("started again 2 times"), "{text}");
    let metrics = metrics(&node, host);
    assert_eq!(metrics["posthaste_guard_up"], 1.0);
    assert_eq!(metrics["posthaste_guard_restarts_total"], 2.0);
    until("lines of the log", || {
        let log = node.log();
        let count = |words: &str| log.iter().filter(|line| line.contains(words)).count();
        count("level=error msg=\"the guard died\"") == 2
            && count("how=\"killed by SIGKILL\"") == 2
            && count("msg=\"the guard was restarted\"") == 2
    });
    // The third does what the first would have.
    let _unread = Family::ALL.map(|family| end_unread(&network, family, &listener));
    let relayed = || {
        let relayed = sockets(host, "time-wait").into_iter();
        relayed
            .filter(|socket| !socket.contains(" 127.0.0.1:"))
            .count()
    };
    until("TIME_WAIT", || relayed() == 2);
    node.kill().unwrap();
    assert_nothing_left(host);
}

// promise: F4
#[test]
fn restarted_guard_orderly_end() {
    let network = line();
    let host = network.node(0);
    let mut node = start(&network, "");
    kill_guard(host);
    assert_eq!(node.stop(SOON).unwrap().code(), Some(0));
    assert_nothing_left(host);
    // The lock of the network is free.
    let mut next = start(&network, "");
    assert_eq!(next.stop(SOON).unwrap().code(), Some(0));
}

/// A service manager runs a node as user `nobody`, with some capabilities.
// promise: F4
#[test]
fn unprivileged_guard_restarted() {
    let network = line();
    let host = network.node(0);
    let listener = listen(network.server(), PORT);
    let service = Service::new("");
    let mut node = service.start(host, &[]);
    kill_guard(host);
    for family in Family::ALL {
        Pair::open(&network, family, &listener).check();
    }
    node.signal(Signal::SIGKILL).unwrap();
    node.wait(SOON).unwrap();
    assert_nothing_left(host);
}

fn send(pid: u32, signal: Signal) {
    kill(Pid::from_raw(pid.cast_signed()), signal).unwrap();
}

/// Without its guard a dead node leaves its rules; they do no harm, and `teardown` removes them.
// promise: F4
#[test]
fn teardown_replaces_guard() {
    let network = line();
    let host = network.node(0);
    let listener = listen(network.server(), PORT);
    let mut node = start_relaying(&network, "");
    let unread = Family::ALL.map(|family| end_unread(&network, family, &listener));
    until("TIME_WAIT", || sockets(host, "time-wait").len() == 2);
    // A node that runs would start another guard.
    send(node.process().pid(), Signal::SIGSTOP);
    send(guard_of(host), Signal::SIGKILL);
    node.kill().unwrap();
    until("end of every process", || processes(host).is_empty());
    assert_eq!(installed(host).len(), 4, "{:#?}", installed(host));
    assert_eq!(sockets(host, "time-wait").len(), 2);
    drop(unread);
    for family in Family::ALL {
        Pair::open(&network, family, &listener).check();
    }
    let message = run(host, "teardown");
    assert!(message.contains("2 leftover sockets"), "{message}");
    assert_nothing_left(host);
}

/// A connection whose server has sent everything and closed, behind a client that did too and does
/// not read: the node's connection to the server is over, and its relay is not.
///
/// The bytes are more than the node can write towards the client (some 240 KB), and less than with
/// what its socket to the server holds however little that buffer has grown (some 370 KB).
fn end_unread(network: &Network, family: Family, listener: &TcpListener) -> TcpStream {
    let Pair { client, mut server } = Pair::open(network, family, listener);
    client.shutdown(Shutdown::Write).unwrap();
    expect_end(&mut server);
    server.write_all(&[0; 300 << 10]).unwrap();
    client
}
