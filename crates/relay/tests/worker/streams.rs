// SPDX-License-Identifier: Apache-2.0
//! Clients and servers: connections, and what comes over them.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use socket2::{Domain, Socket, Type};

use crate::host::{Family, SOON};

/// Connects from the client.
pub(crate) fn dial(to: SocketAddr) -> TcpStream {
    dial_from(SocketAddr::new(Family::of(to).client(), 0), to)
}

/// Connects from an address.
pub(crate) fn dial_from(from: SocketAddr, to: SocketAddr) -> TcpStream {
    connected(bound(from), to)
}

/// A socket with this address, which others may have too.
pub(crate) fn bound(from: SocketAddr) -> Socket {
    let socket = Socket::new(Domain::for_address(from), Type::STREAM, None).unwrap();
    socket.set_reuse_address(true).unwrap();
    socket.bind(&from.into()).unwrap();
    socket
}

pub(crate) fn connected(socket: Socket, to: SocketAddr) -> TcpStream {
    socket.connect(&to.into()).expect("it is accepted");
    bounded(socket.into())
}

/// Connects and sends bytes.
pub(crate) fn send_to(to: SocketAddr, bytes: &[u8]) -> TcpStream {
    let mut stream = dial(to);
    stream.write_all(bytes).expect("it can be sent");
    stream
}

/// Takes the next connection.
pub(crate) fn accept(listener: &TcpListener) -> TcpStream {
    let (stream, _) = listener.accept().expect("a connection arrives");
    bounded(stream)
}

fn bounded(stream: TcpStream) -> TcpStream {
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream.set_write_timeout(Some(SOON)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// Reads so many bytes.
pub(crate) fn read(stream: &mut TcpStream, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    stream.read_exact(&mut bytes).expect("they arrive");
    bytes
}

/// All that came over a connection until its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) bytes: Vec<u8>,
    /// It ended by a reset, and not in order.
    pub(crate) reset: bool,
}

impl Received {
    pub(crate) fn and_closed(bytes: &[u8]) -> Self {
        Self {
            bytes: bytes.to_vec(),
            reset: false,
        }
    }

    pub(crate) fn only_a_reset() -> Self {
        Self {
            bytes: Vec::new(),
            reset: true,
        }
    }
}

/// Reads a connection to its end.
pub(crate) fn receive_all(stream: &mut TcpStream) -> Received {
    let mut received = Received::and_closed(&[]);
    if let Err(error) = stream.read_to_end(&mut received.bytes) {
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{error}");
        received.reset = true;
    }
    received
}

/// Bytes that do not repeat within a stream's buffers.
pub(crate) fn content(count: u32) -> Vec<u8> {
    (0..count)
        .map(|at| at.wrapping_mul(0x9e37_79b9).to_be_bytes()[0])
        .collect()
}

/// Sends bytes from one end while the other reads them.
pub(crate) fn transfer(from: &mut TcpStream, to: &mut TcpStream, bytes: &[u8]) {
    thread::scope(|scope| {
        scope.spawn(|| from.write_all(bytes).expect("they are sent"));
        assert!(read(to, bytes.len()) == bytes, "other bytes");
    });
}

/// The other end has closed in order.
pub(crate) fn expect_end(stream: &mut TcpStream) {
    assert_eq!(receive_all(stream), Received::and_closed(&[]));
}

/// The other end, or a node, has reset the connection.
pub(crate) fn expect_reset(stream: &mut TcpStream) {
    assert_eq!(receive_all(stream), Received::only_a_reset());
}

/// Resets a connection.
pub(crate) fn reset(stream: TcpStream) {
    let socket = Socket::from(stream);
    socket.set_linger(Some(Duration::ZERO)).unwrap();
}

/// Sends a question to the server. The client must receive the whole answer, or a reset.
pub(crate) fn is_answered(mut client: TcpStream, theirs: Family, servers: &TcpListener) -> bool {
    thread::scope(|scope| {
        scope.spawn(|| answer_once(servers));
        let sent = client.write_all(b"a question");
        let mut answer = [0; 9];
        let answered = sent.and_then(|()| client.read_exact(&mut answer));
        if let Err(error) = answered {
            let reset = [io::ErrorKind::ConnectionReset, io::ErrorKind::BrokenPipe];
            assert!(reset.contains(&error.kind()), "{error}");
            // No client connects, so the server must not wait.
            drop(dial(theirs.server()));
            return false;
        }
        assert_eq!(&answer, b"an answer");
        true
    })
}

/// Answers the question of the next client, if it has one.
fn answer_once(servers: &TcpListener) {
    let mut stream = accept(servers);
    let mut question = [0; 10];
    if stream.read_exact(&mut question).is_ok() {
        assert_eq!(&question, b"a question");
        stream.write_all(b"an answer").expect("bytes leave");
    }
}

/// Both ends of one connection.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) client: TcpStream,
    pub(crate) server: TcpStream,
}

impl Pair {
    /// Connects to an entrance of a node that leads to the server.
    pub(crate) fn open(entrance: SocketAddr, servers: &TcpListener) -> Self {
        let client = dial(entrance);
        let server = accept(servers);
        Self { client, server }
    }

    /// Bytes go both ways.
    pub(crate) fn check(&mut self) {
        transfer(&mut self.client, &mut self.server, b"a question");
        transfer(&mut self.server, &mut self.client, b"an answer");
    }

    /// The same with more than buffers hold.
    pub(crate) fn check_much(&mut self) {
        let bytes = content(300_000);
        transfer(&mut self.client, &mut self.server, &bytes);
        transfer(&mut self.server, &mut self.client, &bytes);
    }

    /// Ends the connection in order, the client first.
    pub(crate) fn close_client_first(self) {
        close(self.client, self.server);
    }

    /// Ends the connection in order, the server first.
    pub(crate) fn close_server_first(self) {
        close(self.server, self.client);
    }
}

/// Closes `first`, waits for that at `second`, then closes `second` and waits for that too.
pub(crate) fn close(mut first: TcpStream, mut second: TcpStream) {
    first.shutdown(Shutdown::Write).unwrap();
    expect_end(&mut second);
    drop(second);
    expect_end(&mut first);
}
