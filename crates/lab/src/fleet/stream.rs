// SPDX-License-Identifier: Apache-2.0
//! The node's end of a stream to its controller, non-blocking, so that one thread handles a
//! thousand; counts the bytes on the network.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use posthaste_control::frame::{self, LENGTH_BYTES};
use posthaste_control::message::{ToController, ToNode};
use posthaste_control::tls;
use rustls::{ClientConfig, ClientConnection};

/// Bytes read from TLS at once.
const CHUNK: usize = 16 << 10;

/// Bytes of all streams of a fleet, including TLS, without TCP headers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Bytes {
    pub(super) sent: u64,
    pub(super) received: u64,
}

/// A stream that is opening or open.
#[derive(Debug)]
pub(super) struct Stream {
    socket: TcpStream,
    tls: ClientConnection,
    /// Received bytes of incomplete messages, from `taken` on.
    input: Vec<u8>,
    taken: usize,
}

impl Stream {
    /// Connects; this does not block, since both ends are on one host.
    pub(super) fn dial(address: SocketAddr, config: Arc<ClientConfig>) -> Result<Self> {
        let socket = TcpStream::connect(address).context("connect")?;
        socket.set_nodelay(true).context("prepare a socket")?;
        socket.set_nonblocking(true).context("prepare a socket")?;
        let mut tls = ClientConnection::new(config, tls::no_name()).context("set TLS up")?;
        // A thousand links are one message, larger than the default limit.
        tls.set_buffer_limit(None);
        Ok(Self {
            socket,
            tls,
            input: Vec::new(),
            taken: 0,
        })
    }

    pub(super) fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Whether both ends have authenticated.
    pub(super) fn is_open(&self) -> bool {
        !self.tls.is_handshaking()
    }

    /// Sends and receives as much as possible without blocking.
    pub(super) fn advance(&mut self, bytes: &mut Bytes) -> Result<()> {
        self.flush(bytes)?;
        // Until it would block: the socket is watched edge-triggered.
        while self.take(bytes)? {}
        self.flush(bytes)
    }

    /// Reads once; returns whether there may be more.
    fn take(&mut self, bytes: &mut Bytes) -> Result<bool> {
        match self.tls.read_tls(&mut &self.socket) {
            Ok(0) => bail!("the controller has closed the connection"),
            Ok(count) => bytes.received += count as u64,
            Err(error) if would_block(&error) => return Ok(false),
            Err(error) => return Err(error).context("read"),
        }
        self.tls.process_new_packets().context("TLS")?;
        let mut chunk = [0; CHUNK];
        loop {
            match self.tls.reader().read(&mut chunk) {
                Ok(0) => bail!("the controller has closed the stream"),
                Ok(count) => self.input.extend_from_slice(&chunk[..count]),
                Err(error) if would_block(&error) => return Ok(true),
                Err(error) => return Err(error).context("read"),
            }
        }
    }

    /// The next complete message.
    pub(super) fn next(&mut self) -> Result<Option<ToNode>> {
        let rest = &self.input[self.taken..];
        let length = match rest.first_chunk() {
            Some(head) => frame::length(*head)?,
            None => usize::MAX - LENGTH_BYTES,
        };
        let Some(message) = rest.get(LENGTH_BYTES..LENGTH_BYTES + length) else {
            // Only here, where messages run out: draining after each would copy the rest each time.
            self.input.drain(..self.taken);
            self.taken = 0;
            return Ok(None);
        };
        self.taken += LENGTH_BYTES + length;
        Ok(Some(frame::read(message)?))
    }

    /// Queues a message for sending.
    pub(super) fn send(&mut self, message: &ToController, bytes: &mut Bytes) -> Result<()> {
        let mut framed = Vec::new();
        frame::write(message, &mut framed)?;
        self.tls.writer().write_all(&framed).context("write")?;
        self.flush(bytes)
    }

    fn flush(&mut self, bytes: &mut Bytes) -> Result<()> {
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut &self.socket) {
                Ok(count) => bytes.sent += count as u64,
                Err(error) if would_block(&error) => break,
                Err(error) => return Err(error).context("write"),
            }
        }
        Ok(())
    }
}

fn would_block(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
