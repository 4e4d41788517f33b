// SPDX-License-Identifier: Apache-2.0
//! Who reads slowly what the other end had sent before it failed: it has all of it, however long that
//! takes, for as long as it acknowledges.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::thread;
use std::time::{Duration, Instant};

use posthaste_lab::netns::Namespace;
use posthaste_lab::network::Family;
use posthaste_lab::node::Node;

use crate::support::{
    PORT, Pair, expect_reset, line, listen, reset, start_relaying, until, until_counter,
    until_ended,
};

/// How long a reader is slow: longer than a node waits for one that acknowledges nothing.
const SLOW_FOR: Duration = Duration::from_secs(40);
/// What it reads then, and how often.
const PIECE_BYTES: usize = 512;
const EVERY: Duration = Duration::from_millis(500);
/// Receive buffers of both ends, so that a reader acknowledges what it has read.
const WINDOW: &str = "4096 16384 16384";
/// Receive buffer of the node: all bytes arrive there.
const ARRIVING: &str = "4096 2097152 4194304";
/// Send buffers of the node, and bytes sent: all of them fit, or so few that the node writes
/// nothing more while the reader is slow, since the kernel reports room when a third is free.
const BUFFERS: [(&str, usize); 2] = [
    ("4096 2097152 4194304", 100_000),
    ("4096 262144 262144", 400_000),
];

fn set(host: &Namespace, key: &str, value: &str) {
    let done = host.sysctl(&format!("net.ipv4.{key}"), value);
    done.expect("a namespace has its own buffers");
}

/// Bytes that the peer of a connection has not acknowledged (`SIOCOUTQ`, tcp(7)).
pub(crate) fn unacknowledged(stream: &TcpStream) -> i32 {
    let mut bytes = 0;
    // SAFETY: the kernel writes a C int there.
    let result = unsafe { libc::ioctl(stream.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    bytes
}

/// Sends `count` bytes, and fails once the node has all of them.
fn send_and_fail(mut from: TcpStream, count: usize) {
    from.write_all(&vec![9; count])
        .expect("the node takes them");
    until("all at the node", || unacknowledged(&from) == 0);
    reset(from);
}

/// Reads slowly and then the rest at once: every byte, and behind them the reset.
fn read_slowly(mut stream: TcpStream, count: usize) {
    let (begun, mut received) = (Instant::now(), 0);
    while begun.elapsed() < SLOW_FOR {
        let mut piece = [0; PIECE_BYTES];
        stream.read_exact(&mut piece).expect("it is not cut off");
        received += piece.len();
        // The pace is what is tested.
        thread::sleep(EVERY);
    }
    let mut rest = vec![0; count - received];
    stream.read_exact(&mut rest).expect("the rest arrives too");
    expect_reset(&mut stream);
}

/// Which end reads slowly.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reader {
    Client,
    Server,
}

// promise: I8
#[test]
fn slow_reader_awaited() {
    let networks = BUFFERS.map(|(buffer, count)| {
        let network = line();
        set(network.node(0), "tcp_wmem", buffer);
        set(network.node(0), "tcp_rmem", ARRIVING);
        for host in [network.client(), network.server()] {
            set(host, "tcp_rmem", WINDOW);
        }
        let node: Node = start_relaying(&network, "");
        (network, node, count)
    });
    thread::scope(|scope| {
        for (network, _, count) in &networks {
            let listener = listen(network.server(), PORT);
            for family in Family::ALL {
                for reader in [Reader::Client, Reader::Server] {
                    let Pair { client, server } = Pair::open(network, family, &listener);
                    let (from, to) = match reader {
                        Reader::Client => (server, client),
                        Reader::Server => (client, server),
                    };
                    scope.spawn(move || {
                        send_and_fail(from, *count);
                        read_slowly(to, *count);
                    });
                }
            }
        }
    });
    for (_, node, _) in &networks {
        until_counter(node, "relays", 0);
        until_ended(node, "upstream_reset", 2);
        until_ended(node, "downstream_reset", 2);
    }
}
