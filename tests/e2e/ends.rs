// SPDX-License-Identifier: Apache-2.0
//! Kinds of connections and how they end, whatever carries them: relays in each accept mode, the packet path,
//! what users' nodes do. [`exchange`] is also for other networks: lossy ones, routers, several paths.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::thread;

use posthaste_lab::network::Family;
use posthaste_lab::node::Node;

use crate::observing::redirect;
use crate::packet_path::exchange_all;
use crate::support::{
    MODES_BY_PORT, Pair, counter, each_mode, ended, expect_end, expect_reset, line, listen, reset,
    start, start_relaying, until, until_counter, until_ended,
};

/// Kinds of connections that end in order, numbered from 0.
pub(crate) const ORDERLY: usize = 9;
/// All kinds; the others are reset.
pub(crate) const KINDS: usize = 13;
/// Those whose client sends much: the packet path does not answer later clients of such a service.
pub(crate) const UPLOADS: [usize; 2] = [4, 7];

/// Bytes that depend on their place.
pub(crate) fn pattern(bytes: usize, seed: usize) -> Vec<u8> {
    (0..bytes)
        .map(|at| (at * 7 + at / 251 + seed).to_le_bytes()[0])
        .collect()
}

/// Sends from one end while the other reads, and compares.
pub(crate) fn carry(from: &mut TcpStream, to: &mut TcpStream, bytes: usize, seed: usize) {
    let sent = pattern(bytes, seed);
    let mut received = vec![0; bytes];
    thread::scope(|scope| {
        scope.spawn(|| from.write_all(&sent).expect("the bytes are sent"));
        to.read_exact(&mut received).expect("the bytes arrive");
    });
    assert!(sent == received, "{bytes} bytes, seed {seed}");
}

/// One connection of a kind.
pub(crate) fn exchange(kind: usize, seed: usize, mut pair: Pair) {
    let (client, server) = (&mut pair.client, &mut pair.server);
    match kind {
        // The client, then the server closes first.
        0 => carry(client, server, 700, seed),
        1 => {
            carry(client, server, 700, seed);
            carry(server, client, 30_000, seed);
            return pair.close_server_first();
        }
        // The server has something to say first.
        2 => {
            carry(server, client, 2_000, seed);
            carry(client, server, 10, seed);
            return pair.close_server_first();
        }
        // A first flight, an upload, a download.
        3 => carry(client, server, 14_000, seed),
        4 => carry(client, server, 200_000, seed),
        5 => carry(server, client, 300_000, seed),
        // Half closed, by either end.
        6 => return half_close(pair.client, pair.server, seed),
        7 => return half_close(pair.server, pair.client, seed),
        // Nothing at all.
        8 => (),
        // Resets, by either end, before and after bytes.
        9 => return reset_by(pair.client, pair.server),
        10 => return reset_by(pair.server, pair.client),
        11 => {
            carry(client, server, 5_000, seed);
            return reset_by(pair.client, pair.server);
        }
        _ => {
            carry(server, client, 5_000, seed);
            return reset_by(pair.server, pair.client);
        }
    }
    pair.close_client_first();
}

/// One end closes its direction, and the other sends more after that.
fn half_close(mut first: TcpStream, mut second: TcpStream, seed: usize) {
    carry(&mut first, &mut second, 900, seed);
    first.shutdown(Shutdown::Write).expect("it is open");
    expect_end(&mut second);
    carry(&mut second, &mut first, 60_000, seed);
    second.shutdown(Shutdown::Write).expect("it is open");
    expect_end(&mut first);
}

fn reset_by(first: TcpStream, mut second: TcpStream) {
    reset(first);
    expect_reset(&mut second);
}

/// Waits until so many relays of either end have ended by a reset.
fn until_resets(node: &Node, count: u64) {
    for outcome in ["downstream_reset", "upstream_reset"] {
        until(outcome, || ended(node, outcome) >= count);
    }
}

// promise: I2, I3, T7, PK2
#[test]
fn every_kind_ends_as_without_a_node() {
    let network = line();
    let packets = "[[rule]]\nname = \"packets\"\nports = [\"4080-4099\"]\ndata_path = \"packet\"\n";
    let config = format!(
        "[defaults]\ndata_path = \"socket\"\n{}{packets}",
        each_mode()
    );
    let node = start_relaying(&network, &config);
    let (all, orderly) = (2 * KINDS as u64, 2 * ORDERLY as u64);
    for (turn, (mode, port)) in (1..).zip(MODES_BY_PORT) {
        let listener = listen(network.server(), port);
        for family in Family::ALL {
            for kind in 0..KINDS {
                exchange(kind, turn, Pair::open(&network, family, &listener));
            }
        }
        assert_eq!(counter(&node, mode), all);
        until_counter(&node, "relays", 0);
        until_ended(&node, "finished", turn as u64 * orderly);
        until_resets(&node, turn as u64 * 2);
    }
    let listener = listen(network.server(), 4080);
    until("the packet path is attached", || {
        Pair::open(&network, Family::V4, &listener).close_client_first();
        redirect(&node, "packet_learning") > 0
    });
    exchange_all(&network, &node, 4081, KINDS);
    assert_eq!(counter(&node, "relays_opened"), 3 * all);
}

/// Nodes as users have them observe a destination's first connection and carry later ones, by the packet path
/// or by sockets.
// promise: I2, I3, T7, PK2
#[test]
fn every_kind_ends_so_by_default() {
    let network = line();
    // Else nothing is gained by a node that is as near.
    let node = start(&network, "[observe]\ngain_min = \"0s\"\n");
    let carried = || counter(&node, "relays_opened") + redirect(&node, "packet_opened");
    for (kind, port) in (0..KINDS).zip(1000..) {
        let listener = listen(network.server(), port);
        for family in Family::ALL {
            let before = carried();
            let open = || Pair::open(&network, family, &listener);
            exchange(kind, 0, open());
            assert_eq!(carried(), before, "kind {kind}, {family}: it is observed");
            for seed in 1..=2 {
                exchange(kind, seed, open());
            }
            assert!(carried() > before, "kind {kind}, {family}");
        }
    }
    until_counter(&node, "relays", 0);
}
