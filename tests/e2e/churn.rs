// SPDX-License-Identifier: Apache-2.0
//! Ten thousand connections that end in every way: every byte that arrives is the right one, no
//! end is mistaken for another, each has one outcome, and nothing is left of them.

#![allow(clippy::unwrap_used, reason = "a test ends where it finds a failure")]

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use posthaste_lab::network::{Family, Network};
use posthaste_lab::rng::Rng;

use crate::payload::{receive, receive_all, send, send_piece};
use crate::support::{PORT, accept, dial, line, listen, reset, start_relaying, target};
use crate::watch::{Accounts, relay_lines};

/// How many connections in all, and how many at a time.
const CONNECTIONS: u64 = 10_000;
const THREADS: u64 = 32;

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// The client closes when it has everything, then the server.
    ClientFirst,
    /// The server closes when it has sent everything, then the client.
    ServerFirst,
    /// The client closes its direction before the server answers.
    HalfClose,
    /// The client resets while the server still sends.
    ClientReset,
    /// The server resets while the client still sends.
    ServerReset,
}

const ENDINGS: [Ending; 5] = [
    Ending::ClientFirst,
    Ending::ServerFirst,
    Ending::HalfClose,
    Ending::ClientReset,
    Ending::ServerReset,
];

/// What one connection does. Client and server derive it from its number.
#[derive(Clone, Copy, Debug)]
struct Plan {
    number: u64,
    ending: Ending,
    /// Bytes from client to server, and back.
    up: u64,
    down: u64,
}

impl Plan {
    fn new(number: u64) -> Self {
        let mut random = Rng::new(number);
        // Most are short; one in fifty is long enough to be spliced.
        let mut size = || match random.below(50) {
            0 => 64 * 1024 + random.below(512 * 1024),
            _ => 1 + random.below(8 * 1024),
        };
        Self {
            number,
            ending: ENDINGS[usize::try_from(number % ENDINGS.len() as u64).unwrap()],
            up: size(),
            down: size(),
        }
    }

    /// Names of the contents of both directions.
    fn seeds(self) -> (u64, u64) {
        (2 * self.number, 2 * self.number + 1)
    }
}

// promise: I1, I5, I6
#[test]
fn ten_thousand_connections() {
    let network = line();
    let node = start_relaying(&network, "");
    let listener = listen(network.server(), PORT);
    let accounts = Accounts::of(&node);
    let Churn {
        expected,
        abandoned,
    } = churn(&network, &listener, CONNECTIONS, THREADS);
    assert_eq!(abandoned, 0, "connections reset before their first byte");
    accounts.settle(&node, &expected);
    let lines = relay_lines(&node);
    assert_eq!(lines.len() as u64, CONNECTIONS);
    for (outcome, count) in expected {
        let lines = lines.iter().filter(|line| line["outcome"] == outcome);
        assert_eq!(lines.count() as u64, count, "{outcome}");
    }
}

/// What connections came to.
pub(crate) struct Churn {
    /// How they should have ended at a node.
    pub(crate) expected: [(&'static str, u64); 3],
    /// Further connections at the server, reset before their first byte: a node gave up its hop
    /// and retried.
    pub(crate) abandoned: u64,
}

/// Makes `count` connections, so many at a time.
pub(crate) fn churn(network: &Network, listener: &TcpListener, count: u64, threads: u64) -> Churn {
    assert!(count.is_multiple_of(ENDINGS.len() as u64));
    let (dialled, accepted) = (AtomicU64::new(0), AtomicU64::new(0));
    let abandoned = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| be_client(network, listener, count, &dialled));
            scope.spawn(|| be_server(listener, count, &accepted, &abandoned));
        }
    });
    let each = count / ENDINGS.len() as u64;
    Churn {
        expected: [
            ("finished", 3 * each),
            ("downstream_reset", each),
            ("upstream_reset", each),
        ],
        abandoned: abandoned.into_inner(),
    }
}

/// Dials one connection after the other and plays its client.
fn be_client(network: &Network, listener: &TcpListener, count: u64, dialled: &AtomicU64) {
    loop {
        let number = dialled.fetch_add(1, Ordering::Relaxed);
        if number >= count {
            return;
        }
        let plan = Plan::new(number);
        let family = Family::ALL[usize::from((number / 5).is_multiple_of(2))];
        let dialled = dial(network.client(), target(network, family, listener));
        let played = dialled.and_then(|stream| play_client(plan, stream));
        played.unwrap_or_else(|error| panic!("client of {plan:?}: {error}"));
    }
}

/// Accepts one connection after the other and plays its server.
fn be_server(listener: &TcpListener, count: u64, accepted: &AtomicU64, abandoned: &AtomicU64) {
    while accepted.fetch_add(1, Ordering::Relaxed) < count {
        let (plan, stream) = loop {
            let (mut stream, peer) = accept(listener);
            let mut number = [0; 8];
            match stream.read_exact(&mut number) {
                Ok(()) => break (Plan::new(u64::from_be_bytes(number)), stream),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => {
                    abandoned.fetch_add(1, Ordering::Relaxed);
                }
                Err(error) => panic!("server of {peer}: {error}"),
            }
        };
        let played = play_server(plan, stream);
        played.unwrap_or_else(|error| panic!("server of {plan:?}: {error}"));
    }
}

fn play_client(plan: Plan, mut stream: TcpStream) -> io::Result<()> {
    let (up, down) = plan.seeds();
    stream.write_all(&plan.number.to_be_bytes())?;
    match plan.ending {
        Ending::ClientFirst => {
            send(&mut stream, up, plan.up)?;
            receive(&mut stream, down, plan.down)
        }
        Ending::ServerFirst => {
            send(&mut stream, up, plan.up)?;
            expect_exactly(&mut stream, down, plan.down)
        }
        Ending::HalfClose => {
            send(&mut stream, up, plan.up)?;
            stream.shutdown(Shutdown::Write)?;
            expect_exactly(&mut stream, down, plan.down)
        }
        Ending::ClientReset => {
            receive(&mut stream, down, plan.down)?;
            reset(stream);
            Ok(())
        }
        Ending::ServerReset => send_until_reset(&mut stream, up),
    }
}

fn play_server(plan: Plan, mut stream: TcpStream) -> io::Result<()> {
    let (up, down) = plan.seeds();
    match plan.ending {
        Ending::ClientFirst => {
            receive(&mut stream, up, plan.up)?;
            send(&mut stream, down, plan.down)?;
            expect_exactly(&mut stream, up, 0)
        }
        Ending::ServerFirst => {
            receive(&mut stream, up, plan.up)?;
            send(&mut stream, down, plan.down)
        }
        Ending::HalfClose => {
            expect_exactly(&mut stream, up, plan.up)?;
            send(&mut stream, down, plan.down)
        }
        Ending::ClientReset => send_until_reset(&mut stream, down),
        Ending::ServerReset => {
            receive(&mut stream, up, plan.up)?;
            reset(stream);
            Ok(())
        }
    }
}

/// Reads to the end of the stream and asserts where that is.
fn expect_exactly(stream: &mut TcpStream, seed: u64, bytes: u64) -> io::Result<()> {
    let received = receive_all(stream, seed)?;
    assert_eq!(received, bytes, "the end of content {seed}");
    Ok(())
}

/// Sends until the other end resets.
fn send_until_reset(stream: &mut TcpStream, seed: u64) -> io::Result<()> {
    let mut sent = 0;
    loop {
        match send_piece(stream, seed, sent, u64::MAX) {
            Ok(bytes) => sent += bytes,
            Err(error) => {
                let reset = [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];
                return if reset.contains(&error.kind()) {
                    Ok(())
                } else {
                    Err(error)
                };
            }
        }
    }
}
