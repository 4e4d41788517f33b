// SPDX-License-Identifier: Apache-2.0
//! The stream to the controller: a non-blocking socket, TLS over it, and messages in that.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use nix::poll::PollFlags;
use posthaste_control::frame;
use posthaste_control::message::{ToController, ToNode};
use posthaste_control::tls;
use rustls::{ClientConfig, ClientConnection};
use socket2::{Domain, Protocol, Socket, Type};

/// Bytes taken out of TLS at once.
const CHUNK: usize = 16 << 10;

/// A stream that is being opened, or is open.
#[derive(Debug)]
pub(super) struct Stream {
    socket: Socket,
    tls: ClientConnection,
    /// Whether the connection is known to be there.
    connected: bool,
    /// What came and is no whole message yet.
    input: Vec<u8>,
}

impl Stream {
    /// Begins to open one. `mark` is that of the node's own sockets.
    pub(super) fn dial(
        address: SocketAddr,
        mark: u32,
        config: &Arc<ClientConfig>,
    ) -> anyhow::Result<Self> {
        let socket = Socket::new(
            Domain::for_address(address),
            Type::STREAM,
            Some(Protocol::TCP),
        );
        let socket = socket.context("open a socket")?;
        socket.set_nonblocking(true).context("prepare a socket")?;
        socket.set_mark(mark).context("mark a socket")?;
        // Messages are written whole: waiting for more bytes only delays them.
        socket.set_tcp_nodelay(true).context("prepare a socket")?;
        match socket.connect(&address.into()) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
            Err(error) => return Err(error).context("connect"),
        }
        let mut tls =
            ClientConnection::new(Arc::clone(config), tls::no_name()).context("set TLS up")?;
        // What waits is bounded by what the follower has to send.
        tls.set_buffer_limit(None);
        Ok(Self {
            socket,
            tls,
            connected: false,
            input: Vec::new(),
        })
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// The address of this host by which the stream goes.
    pub(super) fn own_ip(&self) -> Option<IpAddr> {
        let own = self.socket.local_addr().ok()?.as_socket()?;
        Some(own.ip().to_canonical())
    }

    /// What to wait for.
    pub(super) fn interest(&self) -> PollFlags {
        let mut interest = PollFlags::POLLIN;
        if !self.connected || self.tls.wants_write() {
            interest |= PollFlags::POLLOUT;
        }
        interest
    }

    /// Whether both ends have shown their keys.
    pub(super) fn is_open(&self) -> bool {
        self.connected && !self.tls.is_handshaking()
    }

    /// Sends and takes what can be without waiting.
    ///
    /// # Errors
    /// The stream has ended, in order or not.
    pub(super) fn advance(&mut self) -> anyhow::Result<()> {
        if !self.connected {
            if let Some(error) = self.socket.take_error().context("look at the socket")? {
                return Err(error).context("connect");
            }
            // Without an error and without a peer, the handshake is still under way.
            if self.socket.peer_addr().is_err() {
                return Ok(());
            }
            self.connected = true;
        }
        self.flush()?;
        // What is read may make TLS write, as in its handshake.
        while self.take()? {}
        self.flush()
    }

    /// Reads once; whether there may be more.
    fn take(&mut self) -> anyhow::Result<bool> {
        match self.tls.read_tls(&mut &self.socket) {
            Ok(0) => bail!("the controller has closed the connection"),
            Ok(_) => {}
            Err(error) if would_block(&error) => return Ok(false),
            Err(error) => return Err(error).context("read"),
        }
        let state = self.tls.process_new_packets();
        if state.is_err() {
            // The queued alert shows the other end why (RFC 8446 section 6.2).
            let _ = self.flush();
        }
        state.context("TLS")?;
        let mut chunk = [0; CHUNK];
        loop {
            match self.tls.reader().read(&mut chunk) {
                Ok(0) => bail!("the controller has closed the stream"),
                Ok(count) => self.input.extend_from_slice(&chunk[..count]),
                Err(error) if would_block(&error) => return Ok(true),
                Err(error) => return Err(error).context("read"),
            }
            // Even an authenticated controller must not fill the memory of the node.
            ensure!(
                self.input.len() <= frame::MESSAGE_MAX + frame::LENGTH_BYTES + CHUNK,
                "more than a message waits"
            );
            self.check_length()?;
        }
    }

    fn check_length(&self) -> anyhow::Result<()> {
        if let Some(head) = self.input.first_chunk() {
            frame::length(*head)?;
        }
        Ok(())
    }

    /// The next message that came whole.
    ///
    /// # Errors
    /// What came is none.
    pub(super) fn next(&mut self) -> anyhow::Result<Option<ToNode>> {
        let Some(head) = self.input.first_chunk() else {
            return Ok(None);
        };
        let end = frame::LENGTH_BYTES + frame::length(*head)?;
        if self.input.len() < end {
            return Ok(None);
        }
        let message = frame::read(&self.input[frame::LENGTH_BYTES..end])?;
        self.input.drain(..end);
        Ok(Some(message))
    }

    /// Has a message sent, as soon as it goes.
    pub(super) fn send(&mut self, message: &ToController) -> anyhow::Result<()> {
        let mut bytes = Vec::new();
        frame::write(message, &mut bytes)?;
        self.tls.writer().write_all(&bytes).context("write")?;
        self.flush()
    }

    /// Sends close_notify: nothing more comes (RFC 8446 section 6.1).
    pub(super) fn close(mut self) {
        self.tls.send_close_notify();
        // An end that is gone need not receive it.
        let _ = self.flush();
    }

    fn flush(&mut self) -> anyhow::Result<()> {
        while self.connected && self.tls.wants_write() {
            match self.tls.write_tls(&mut &self.socket) {
                Ok(_) => {}
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
