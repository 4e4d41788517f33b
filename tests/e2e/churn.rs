// SPDX-License-Identifier: Apache-2.0
//! Ten thousand connections that end in every way: every byte that arrives is the right one, no
//! end is mistaken for another, each has one outcome, and nothing is left of them.

#![allow(clippy::unwrap_used, reason = "a test ends where it finds a failure")]

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use posthaste_lab::network::{Family, Network};
use posthaste_lab::rng::Rng;

use crate::payload::{receive, receive_all, send, send_piece};
use crate::support::{PORT, bounded, dial, line, listen, reset, start_relaying, target};
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
    assert_eq!(abandoned, 0, "connections that no client made");
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
    /// Further connections at the server, which were reset: a node gave up its hop and retried.
    pub(crate) abandoned: u64,
}

/// What the servers have seen.
#[derive(Debug, Default)]
struct Served {
    /// All connections have ended.
    is_over: AtomicBool,
    /// Connections, and those of them that were reset before the end of their plan.
    accepted: AtomicU64,
    broken: AtomicU64,
}

/// Makes `count` connections, so many at a time.
pub(crate) fn churn(network: &Network, listener: &TcpListener, count: u64, threads: u64) -> Churn {
    assert!(count.is_multiple_of(ENDINGS.len() as u64));
    let (dialled, served) = (AtomicU64::new(0), Served::default());
    thread::scope(|scope| {
        let client = || be_client(network, listener, count, &dialled);
        let clients: Vec<_> = (0..threads).map(|_| scope.spawn(client)).collect();
        for _ in 0..threads {
            scope.spawn(|| be_server(listener, &served));
        }
        let clients: Vec<_> = clients
            .into_iter()
            .map(thread::ScopedJoinHandle::join)
            .collect();
        served.is_over.store(true, Ordering::Relaxed);
        for _ in 0..threads {
            // Each wakes a server, unless it has failed.
            let _ = dial(network.server(), target(network, Family::V4, listener));
        }
        for client in clients {
            client.expect("a client has what it expects");
        }
    });
    let abandoned = served.accepted.into_inner() - count;
    let broken = served.broken.into_inner();
    assert!(broken <= abandoned, "{broken} reset, {abandoned} abandoned");
    let each = count / ENDINGS.len() as u64;
    Churn {
        expected: [
            ("finished", 3 * each),
            ("downstream_reset", each),
            ("upstream_reset", each),
        ],
        abandoned,
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

/// Accepts one connection after the other and plays its server, until all clients have ended: a node
/// may repeat a request whose hop was silent, and resets the first, which carried nothing.
fn be_server(listener: &TcpListener, served: &Served) {
    loop {
        let accepted = listener.accept();
        if served.is_over.load(Ordering::Relaxed) {
            return;
        }
        match accepted {
            Ok((stream, peer)) => {
                served.accepted.fetch_add(1, Ordering::Relaxed);
                match serve(stream) {
                    Err(error) if error.kind() == ErrorKind::ConnectionReset => {
                        served.broken.fetch_add(1, Ordering::Relaxed);
                    }
                    played => played.unwrap_or_else(|error| panic!("server of {peer}: {error}")),
                }
            }
            // All others serve the last connections.
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => panic!("accept: {error}"),
        }
    }
}

fn serve(stream: TcpStream) -> io::Result<()> {
    let mut stream = bounded(stream)?;
    let mut number = [0; 8];
    // No end repeats a reset that was lost: nothing ever comes on such a connection.
    stream
        .read_exact(&mut number)
        .map_err(|error| match error.kind() {
            ErrorKind::WouldBlock => ErrorKind::ConnectionReset.into(),
            _ => error,
        })?;
    let plan = Plan::new(u64::from_be_bytes(number));
    play_server(plan, stream)
        .map_err(|error| io::Error::new(error.kind(), format!("{plan:?}: {error}")))
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
