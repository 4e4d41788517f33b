// SPDX-License-Identifier: Apache-2.0
//! A node without room forwards new flows. No connection fails because of that.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use posthaste_lab::link::Link;
use posthaste_lab::network::{Family, Network};
use posthaste_lab::node::Node;
use posthaste_lab::transfer::{Request, Server, fetch};

use super::wrapper;
use crate::payload::{receive, send};
use crate::support::{
    MODES_BY_PORT, PORT, Pair, accepting, counter, dial, each_mode, line, listen, network,
    start_relaying, target, until,
};
use crate::watch::{Accounts, Descriptors, quiet, wait_for_line};

// promise: D5
#[test]
fn full_table_forwards() {
    let network = line();
    for relays_max in [8, 100] {
        let config = format!("[node]\nworkers = 1\nrelays_max = {relays_max}\n");
        let node = start_relaying(&network, &(config + &each_mode()));
        for (mode, port) in MODES_BY_PORT {
            let listener = listen(network.server(), port);
            let (accounts, before) = (Accounts::of(&node), counter(&node, "relays_opened"));
            let mut pairs = open_both(&network, &listener, relays_max);
            let relayed = counter(&node, "relays");
            assert!(
                (1..=relays_max).contains(&relayed),
                "{mode}: {relayed} of at most {relays_max} relays"
            );
            let opened = counter(&node, "relays_opened") - before;
            assert_eq!(opened, relayed, "{:#}", node.status().unwrap());
            pairs.iter_mut().for_each(Pair::check);
            pairs.into_iter().for_each(Pair::close_client_first);
            accounts.settle(&node, &[("finished", relayed)]);
            relays_again(&network, &node, port + 1);
        }
    }
}

/// Opens `count` connections of either family and keeps them open.
fn open_both(network: &Network, listener: &TcpListener, count: u64) -> Vec<Pair> {
    let open = |_| Family::ALL.map(|family| Pair::open(network, family, listener));
    let mut pairs: Vec<_> = (0..count).flat_map(open).collect();
    pairs.iter_mut().for_each(Pair::check);
    pairs
}

/// Waits until the node relays new flows again, to a port at which clients that were given up do not arrive.
fn relays_again(network: &Network, node: &Node, port: u16) {
    let listener = &listen(network.server(), port);
    for family in Family::ALL {
        let before = counter(node, "relays_opened");
        until("relayed flow", || {
            let mut pair = Pair::open(network, family, listener);
            pair.check();
            pair.close_server_first();
            counter(node, "relays_opened") > before
        });
    }
    quiet(node);
}

/// The table fills during handshakes: the node continues those that it has begun and forwards the
/// others, and no client waits for a repetition of its SYN.
// promise: D5
#[test]
fn flows_survive_full_table() {
    let link = Link::delay(Duration::from_millis(10));
    let network = network([link.clone(), link]);
    let server = Server::start(network.server(), PORT, "cubic").unwrap();
    for mode in ["early", "strict"] {
        let config = "[node]\nworkers = 1\nrelays_max = 100\n".to_owned();
        let node = start_relaying(&network, &(config + &accepting(mode)));
        let accounts = Accounts::of(&node);
        for family in Family::ALL {
            let held = listen(network.server(), PORT + 1);
            let target = target(&network, family, &held);
            // Not quite full: as many again fit as the node keeps room for.
            let idle: Vec<_> = (0..74)
                .map(|_| Pair::of(dial(network.client(), target), &held))
                .collect();
            let request = Request::new(network.server_address(family), PORT, 1000);
            thread::scope(|scope| {
                for _ in 0..25 {
                    scope.spawn(|| fetch(network.client(), &request).unwrap());
                }
            });
            drop(idle);
            quiet(&node);
        }
        let ended = accounts.settle_any(&node);
        assert!(!ended.contains_key("client_absent"), "{mode}: {ended:?}");
    }
    assert_eq!(server.peers().len(), 100);
}

/// A node configured with more relays than its descriptors allow keeps some descriptors for
/// itself.
// promise: D5
#[test]
fn low_descriptor_limit() {
    let network = line();
    let listener = listen(network.server(), PORT);
    let script = wrapper("prlimit --nofile=600:600");
    let node = Node::builder(network.node(0), script.path().join("posthaste"))
        .relaying()
        .config("[node]\nrelays_max = 1000\n")
        .start()
        .unwrap();
    wait_for_line(&node, &["level=warn", "relays_max = 1000", "RLIMIT_NOFILE"]);
    let accounts = Accounts::of(&node);
    let mut pairs = open_both(&network, &listener, 60);
    let relayed = counter(&node, "relays");
    assert!((1..60).contains(&relayed), "{relayed} relays");
    for pair in &mut pairs {
        move_much(pair);
    }
    pairs.into_iter().for_each(Pair::close_client_first);
    accounts.settle(&node, &[("finished", relayed)]);
    relays_again(&network, &node, PORT + 1);
}

/// Moves more bytes than a relay copies, so that it wants a pipe.
fn move_much(pair: &mut Pair) {
    const BYTES: u64 = 200_000;
    let mut server = pair.server.try_clone().unwrap();
    let sender = thread::spawn(move || send(&mut server, 7, BYTES));
    receive(&mut pair.client, 7, BYTES).unwrap();
    sender.join().unwrap().unwrap();
}

/// The limit is lowered while the node runs, which stands for a host that has no more files.
// promise: D6
#[test]
fn descriptors_exhausted_and_back() {
    let network = line();
    let config = "[node]\nworkers = 1\n".to_owned();
    let node = start_relaying(&network, &(config + &each_mode()));
    for (mode, port) in MODES_BY_PORT {
        let listener = listen(network.server(), port);
        let accounts = Accounts::of(&node);
        let mut open = open_both(&network, &listener, 2);
        let former = limit_files(&node, Descriptors::of(&node).count() + 8);
        // Those on their way when it happens may fail; their clients try again.
        let mut failures = 0;
        for family in Family::ALL.into_iter().cycle().take(40) {
            let target = target(&network, family, &listener);
            let attempt = || {
                let client = dial(network.client(), target)?;
                exchange_bytes(client, &listener)
            };
            let attempts = std::iter::repeat_with(attempt);
            let pair = attempts
                .inspect(|attempt| failures += u32::from(attempt.is_err()))
                .find_map(Result::ok);
            open.extend(pair);
        }
        assert!(failures <= 4, "{mode}: {failures} connections failed");
        open.iter_mut().for_each(Pair::check);
        limit_files(&node, former);
        open.into_iter().for_each(Pair::close_client_first);
        drop(listener);
        relays_again(&network, &node, port + 1);
        accounts.settle_any(&node);
    }
}

/// Sets the limit of open files of a node; returns the former one.
fn limit_files(node: &Node, limit: usize) -> usize {
    let prlimit = |words: &[&str]| {
        let mut command = Command::new("prlimit");
        command.args(["--pid", &node.process().pid().to_string()]);
        let output = command.args(words).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let former = prlimit(&["--nofile", "--output", "SOFT", "--noheadings", "--raw"]);
    prlimit(&[&format!("--nofile={limit}:")]);
    former.trim().parse().unwrap()
}

/// Waits for the other end of a connection and lets a byte go each way, unless that takes long.
fn exchange_bytes(mut client: TcpStream, listener: &TcpListener) -> io::Result<Pair> {
    const PATIENCE: Duration = Duration::from_secs(3);
    client.set_read_timeout(Some(PATIENCE))?;
    client.write_all(b"?")?;
    listener.set_nonblocking(true)?;
    let until = Instant::now() + PATIENCE;
    let mut server = loop {
        match listener.accept() {
            // Clients that were given up may still arrive.
            Ok((server, peer)) if peer.port() == client.local_addr()?.port() => break server,
            Ok(_) => {}
            Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error),
            Err(_) if Instant::now() > until => return Err(ErrorKind::TimedOut.into()),
            Err(_) => thread::sleep(Duration::from_millis(1)),
        }
    };
    listener.set_nonblocking(false)?;
    server.set_nonblocking(false)?;
    server.set_read_timeout(Some(PATIENCE))?;
    server.read_exact(&mut [0])?;
    server.write_all(b"!")?;
    client.read_exact(&mut [0])?;
    Ok(Pair { client, server })
}
