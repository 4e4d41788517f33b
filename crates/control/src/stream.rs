// SPDX-License-Identifier: Apache-2.0
//! The node's end of a stream to its controller, for a thread that may wait. The only I/O here besides the
//! store's.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::{ClientConfig, ClientConnection, StreamOwned};

use crate::frame::{self, LENGTH_BYTES};
use crate::message::{ToController, ToNode};
use crate::tls;

/// Bytes that are read at a time.
const READ_BYTES: usize = 16 << 10;

/// How long the network may take to take a message.
const WRITE_TIME_MAX: Duration = Duration::from_secs(30);

/// A stream whose other end has shown the key that was expected.
#[derive(Debug)]
pub struct Stream {
    tls: StreamOwned<ClientConnection, TcpStream>,
    /// What has come of messages that are not whole yet.
    buffer: Vec<u8>,
}

impl Stream {
    /// Connects, within a time. `config` is that of [`tls::client`].
    ///
    /// # Errors
    /// No host answers, it takes too long, or the other end has not the key that was expected. That the
    /// other end refuses ours shows when something is read.
    pub fn connect(
        address: SocketAddr,
        config: Arc<ClientConfig>,
        patience: Duration,
    ) -> io::Result<Self> {
        let deadline = Instant::now() + patience;
        let socket = TcpStream::connect_timeout(&address, patience)?;
        // Messages are written whole, and the other end waits for each.
        socket.set_nodelay(true)?;
        let connection = ClientConnection::new(config, tls::no_name()).map_err(io::Error::other)?;
        let mut tls = StreamOwned::new(connection, socket);
        while tls.conn.is_handshaking() {
            // Anew in each round: a peer that sends byte after byte must not hold the thread.
            let left = time_until(deadline).ok_or(ErrorKind::TimedOut)?;
            tls.sock.set_read_timeout(Some(left))?;
            tls.sock.set_write_timeout(Some(left))?;
            if tls.conn.wants_write() {
                tls.conn.write_tls(&mut tls.sock)?;
                continue;
            }
            if tls.conn.read_tls(&mut tls.sock)? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            let read = tls.conn.process_new_packets();
            read.map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
        }
        tls.sock.set_write_timeout(Some(WRITE_TIME_MAX))?;
        Ok(Self {
            tls,
            buffer: Vec::new(),
        })
    }

    /// Sends a message.
    ///
    /// # Errors
    /// The stream has ended.
    pub fn send(&mut self, message: &ToController) -> io::Result<()> {
        let mut bytes = Vec::new();
        frame::write(message, &mut bytes).map_err(io::Error::other)?;
        self.send_raw(&bytes)
    }

    /// Sends bytes as they are, be they messages or not.
    ///
    /// # Errors
    /// The stream has ended.
    pub fn send_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.tls.write_all(bytes)?;
        self.tls.flush()
    }

    /// The controller's next message; nothing if it sends none in this time, which is not 0.
    ///
    /// # Errors
    /// The stream has ended, or what came cannot be read.
    pub fn receive(&mut self, patience: Duration) -> io::Result<Option<ToNode>> {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(message) = self.take()? {
                return Ok(Some(message));
            }
            let Some(left) = time_until(deadline) else {
                return Ok(None);
            };
            self.tls.sock.set_read_timeout(Some(left))?;
            let mut bytes = [0; READ_BYTES];
            match self.tls.read(&mut bytes) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.buffer.extend_from_slice(&bytes[..count]),
                Err(error) if is_wait(error.kind()) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The connection below, for example to be shut down by another thread.
    pub fn socket(&self) -> &TcpStream {
        &self.tls.sock
    }

    /// The first message of the buffer, if it is whole.
    fn take(&mut self) -> io::Result<Option<ToNode>> {
        let invalid = |error| io::Error::new(ErrorKind::InvalidData, error);
        let Some((head, rest)) = self.buffer.split_first_chunk() else {
            return Ok(None);
        };
        // Checked as soon as four bytes are there, so that a length cannot make the buffer grow
        // without bound.
        let length = frame::length(*head).map_err(invalid)?;
        let Some(message) = rest.get(..length) else {
            return Ok(None);
        };
        let message = frame::read(message).map_err(invalid)?;
        self.buffer.drain(..LENGTH_BYTES + length);
        Ok(Some(message))
    }
}

/// How long it is until then, if it is not over.
fn time_until(deadline: Instant) -> Option<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    (!left.is_zero()).then_some(left)
}

fn is_wait(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
    )
}
