// SPDX-License-Identifier: Apache-2.0
//! What a flow has at a side: a socket, or a stream of a tunnel.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use nix::sys::socket::{MsgFlags, recv};
use posthaste_tunnel::{Stream, Tunnels};

use crate::control::StreamInfo;
use crate::sys::{self, retry};

/// Round trips that bytes on a stream may take until they are acknowledged, one loss among them,
/// and what the other end takes for that. No event and no call reports it.
const ACKED_ROUND_TRIPS: u32 = 3;
const ACKED_EXTRA: Duration = Duration::from_millis(100);

/// The tunnels of a worker, and its time.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) tunnels: RefCell<Tunnels>,
    pub(super) now: Cell<Duration>,
}

/// A stream that a flow owns. Like a socket it is reset when it is dropped, unless both directions
/// have ended.
#[derive(Debug)]
pub(super) struct StreamEnd {
    shared: Rc<Shared>,
    stream: Stream,
    /// The code of a reset.
    code: Cell<u32>,
    written: Cell<Duration>,
}

impl StreamEnd {
    pub(super) fn new(shared: &Rc<Shared>, stream: Stream) -> Self {
        Self {
            shared: Rc::clone(shared),
            stream,
            code: Cell::new(0),
            written: Cell::new(Duration::ZERO),
        }
    }

    /// Reports its events with `tag`.
    pub(super) fn set_tag(&self, tag: u64) {
        let mut tunnels = self.shared.tunnels.borrow_mut();
        tunnels.endpoint.set_tag(self.stream, tag);
    }

    /// The reason that its peer gets if it is reset.
    pub(super) fn set_code(&self, code: u32) {
        self.code.set(code);
    }

    /// The number of its connection.
    pub(super) fn connection(&self) -> u64 {
        self.stream.connection
    }

    /// Resets it, also if its end is on the way: nothing of it should arrive any more.
    pub(super) fn abandon(&self) {
        let mut tunnels = self.shared.tunnels.borrow_mut();
        tunnels.endpoint.reset(self.stream, self.code.get());
    }

    /// Reads into `buffer`; returns 0 at the end of the stream.
    ///
    /// # Errors
    /// `WouldBlock`, or `ConnectionReset`.
    pub(super) fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut tunnels = self.shared.tunnels.borrow_mut();
        tunnels.endpoint.read(self.stream, buffer)
    }

    /// Writes what there is room for.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub(super) fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut tunnels = self.shared.tunnels.borrow_mut();
        if !bytes.is_empty() {
            self.written.set(self.shared.now.get());
        }
        tunnels.endpoint.write(self.stream, bytes)
    }

    /// Writes a message.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub(super) fn write_message(&self, message: &[u8]) -> io::Result<usize> {
        let mut tunnels = self.shared.tunnels.borrow_mut();
        self.written.set(self.shared.now.get());
        tunnels.endpoint.write_message(self.stream, message)
    }

    /// Sends FIN.
    ///
    /// # Errors
    /// `NotConnected` when the stream has failed.
    pub(super) fn finish(&self) -> io::Result<()> {
        let mut tunnels = self.shared.tunnels.borrow_mut();
        self.written.set(self.shared.now.get());
        tunnels.endpoint.finish(self.stream)
    }

    /// Whether bytes that were written may be on their way.
    pub(super) fn is_unacknowledged(&self) -> bool {
        let round = self.round_trip().unwrap_or_default();
        let patience = round * ACKED_ROUND_TRIPS + ACKED_EXTRA;
        round > Duration::ZERO && self.shared.now.get() < self.written.get() + patience
    }

    /// Whether the peer has acknowledged something of its connection after `since`: what was sent before
    /// may have arrived.
    pub(super) fn has_acked(&self, since: Duration) -> bool {
        let tunnels = self.shared.tunnels.borrow();
        let acked = tunnels.endpoint.acked(self.stream.connection);
        acked.is_some_and(|acked| acked > since)
    }

    /// Its connection, if that is open.
    pub(super) fn info(&self) -> Option<StreamInfo> {
        let connection = self.stream.connection;
        let endpoint = &self.shared.tunnels.borrow().endpoint;
        let (packets_sent, packets_lost) = endpoint.sent_and_lost(connection)?;
        Some(StreamInfo {
            remote: endpoint.remote(connection)?,
            rtt: endpoint.round_trip(connection)?,
            packets_sent,
            packets_lost,
            streams: endpoint.streams(connection),
        })
    }

    /// The round-trip time of its connection, if that is open.
    pub(super) fn round_trip(&self) -> Option<Duration> {
        let tunnels = self.shared.tunnels.borrow();
        tunnels.endpoint.round_trip(self.stream.connection)
    }
}

impl Drop for StreamEnd {
    fn drop(&mut self) {
        let mut tunnels = self.shared.tunnels.borrow_mut();
        tunnels.endpoint.close(self.stream, self.code.get());
    }
}

/// One of both.
#[derive(Debug)]
pub(super) enum End<'a> {
    Socket(&'a OwnedFd),
    Stream(Rc<StreamEnd>),
}

impl<'a> From<&'a OwnedFd> for End<'a> {
    fn from(socket: &'a OwnedFd) -> Self {
        Self::Socket(socket)
    }
}

impl From<&Rc<StreamEnd>> for End<'_> {
    fn from(stream: &Rc<StreamEnd>) -> Self {
        Self::Stream(Rc::clone(stream))
    }
}

impl End<'_> {
    /// Reads into `buffer`; returns 0 at the end of the stream.
    ///
    /// # Errors
    /// `WouldBlock`, or the connection's error.
    pub(super) fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Socket(socket) => Ok(retry(|| {
                recv(socket.as_raw_fd(), buffer, MsgFlags::empty())
            })?),
            Self::Stream(stream) => stream.read(buffer),
        }
    }

    /// Writes what there is room for of a message.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub(super) fn write_message(&self, message: &[u8]) -> io::Result<usize> {
        match self {
            Self::Socket(socket) => socket2::SockRef::from(socket).send(message),
            Self::Stream(stream) => stream.write_message(message),
        }
    }

    /// Whether the connection is gone, where a read returns only an end.
    pub(super) fn is_gone(&self) -> bool {
        match self {
            Self::Socket(socket) => sys::is_gone(socket),
            Self::Stream(_) => false,
        }
    }
}
