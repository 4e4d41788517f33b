// SPDX-License-Identifier: Apache-2.0
//! A stream as a relay sees it: like a TCP connection, whose reset ends both directions.

use std::io;

use quinn_proto::{Connection, ReadError, ReadableError, StreamId, VarInt, WriteError};

use crate::endpoint::Pace;
use crate::fec::{Assembly, Repair, SourceBlock};
use crate::transport::STREAM_WINDOW;

/// Bytes of a stream that may have come behind a gap: what a fast path brings while the same packet is
/// lost several times.
const UNREAD_MAX: u64 = 16 * STREAM_WINDOW as u64;

/// A stream, by a name that is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stream {
    /// The number of its connection.
    pub connection: u64,
    pub(crate) id: StreamId,
}

/// What a stream is ready for, once for each time that it becomes so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    /// Bytes, the end of the stream or an error wait to be read.
    pub readable: bool,
    /// Room, or an error, waits for a write.
    pub writable: bool,
    /// The stream was reset, or its connection is lost.
    pub failed: bool,
}

/// What has become of a stream, and who waits for it.
#[derive(Debug, Default)]
pub(crate) struct Local {
    /// What its events are reported with.
    pub(crate) tag: Option<u64>,
    /// Its end was read.
    ended: bool,
    /// A FIN was sent.
    finished: bool,
    /// The peer wants no more bytes.
    stopped: bool,
    /// One of the ends has reset it.
    failed: bool,
    /// Bytes that were written.
    pub(crate) written: u64,
    /// Those of them that the peer's flow has read.
    pub(crate) taken: u64,
    /// How fast it does, while it is behind.
    pub(crate) pace: Option<Pace>,
    /// A write found no room at the peer.
    pub(crate) waits_for_room: bool,
    /// Bytes that this end's flow has read, as the peer knows.
    pub(crate) reported: u64,
    /// The last of those written, which repair symbols will follow.
    pub(crate) block: Option<SourceBlock>,
    /// Bytes that were read before there was an assembly.
    read: u64,
    /// What was received, in any order, if the peer sends repair symbols.
    pub(crate) assembly: Option<Assembly>,
    /// quinn-proto has passed all bytes and the end.
    drained: bool,
}

impl Local {
    /// A stream whose events have `tag`.
    pub(crate) fn with(tag: u64) -> Self {
        Self {
            tag: Some(tag),
            ..Self::default()
        }
    }

    /// Reads into `buffer`; returns 0 at the end of the stream.
    ///
    /// # Errors
    /// `WouldBlock`, or `ConnectionReset`.
    pub(crate) fn read(
        &mut self,
        connection: &mut Connection,
        id: StreamId,
        buffer: &mut [u8],
    ) -> io::Result<usize> {
        if self.failed {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        if self.ended || buffer.is_empty() {
            return Ok(0);
        }
        match self.assembly.take() {
            Some(mut assembly) => {
                let read = self.read_assembled(connection, id, &mut assembly, buffer);
                self.assembly = Some(assembly);
                read
            }
            None => self.read_in_order(connection, id, buffer),
        }
    }

    /// Bytes that were read.
    pub(crate) fn read_bytes(&self) -> u64 {
        self.assembly
            .as_ref()
            .map_or(self.read, Assembly::read_bytes)
    }

    fn read_in_order(
        &mut self,
        connection: &mut Connection,
        id: StreamId,
        buffer: &mut [u8],
    ) -> io::Result<usize> {
        let mut stream = connection.recv_stream(id);
        let mut chunks = match stream.read(true) {
            Ok(chunks) => chunks,
            Err(ReadableError::ClosedStream | ReadableError::IllegalOrderedRead) => {
                return Err(self.fail());
            }
        };
        let mut filled = 0;
        let stop = loop {
            match chunks.next(buffer.len() - filled) {
                Ok(Some(chunk)) => {
                    buffer[filled..filled + chunk.bytes.len()].copy_from_slice(&chunk.bytes);
                    filled += chunk.bytes.len();
                    if filled == buffer.len() {
                        break None;
                    }
                }
                Ok(None) => {
                    (self.ended, self.drained) = (true, true);
                    break None;
                }
                Err(error) => break Some(error),
            }
        };
        let _ = chunks.finalize();
        self.read += filled as u64;
        match stop {
            Some(ReadError::Reset(_)) => Err(self.fail()),
            Some(ReadError::Blocked) if filled == 0 => Err(io::ErrorKind::WouldBlock.into()),
            Some(ReadError::Blocked) | None => Ok(filled),
        }
    }

    fn read_assembled(
        &mut self,
        connection: &mut Connection,
        id: StreamId,
        assembly: &mut Assembly,
        buffer: &mut [u8],
    ) -> io::Result<usize> {
        let mut filled = assembly.read(buffer);
        if filled < buffer.len() && !assembly.is_over() {
            self.drained = self.pull(connection, id, assembly)?;
            filled += assembly.read(&mut buffer[filled..]);
        }
        self.ended = assembly.is_over() && filled < buffer.len();
        if filled == 0 && !self.ended {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(filled)
    }

    /// Passes what has come to the assembly, in any order. Returns whether that was all.
    fn pull(
        &mut self,
        connection: &mut Connection,
        id: StreamId,
        assembly: &mut Assembly,
    ) -> io::Result<bool> {
        let mut stream = connection.recv_stream(id);
        let Ok(mut chunks) = stream.read(false) else {
            return Err(self.fail());
        };
        loop {
            let fits = match chunks.next(usize::MAX) {
                Ok(Some(chunk)) => assembly.insert(chunk.offset, &chunk.bytes),
                Ok(None) => return assembly.on_end().map(|()| true).map_err(|_| self.fail()),
                Err(ReadError::Blocked) => return Ok(false),
                Err(ReadError::Reset(_)) => return Err(self.fail()),
            };
            if fits.is_err() || assembly.unread() > UNREAD_MAX {
                return Err(self.fail());
            }
        }
    }

    /// Reads by pieces from now on: the peer sends repair symbols.
    pub(crate) fn assemble(&mut self) -> &mut Assembly {
        self.assembly
            .get_or_insert_with(|| Assembly::new(self.read))
    }

    /// Takes a repair symbol.
    pub(crate) fn on_repair(&mut self, repair: &Repair) {
        if !self.ended && !self.failed {
            self.assemble().on_repair(repair);
        }
    }

    /// Whether the stream has ended by repair, so that bytes may still come which no one needs.
    pub(crate) fn has_leftover(&self) -> bool {
        self.ended && !self.drained
    }

    /// Reads what has come after the end, and drops it.
    pub(crate) fn discard(&mut self, connection: &mut Connection, id: StreamId) {
        self.drained = discard(connection, id);
    }

    /// Writes what there is room for. Without bytes, it only checks whether the stream has failed.
    ///
    /// # Errors
    /// `WouldBlock`, or `ConnectionReset`.
    pub(crate) fn write(
        &mut self,
        connection: &mut Connection,
        id: StreamId,
        bytes: &[u8],
    ) -> io::Result<usize> {
        if self.failed || self.stopped {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        if bytes.is_empty() {
            return Ok(0);
        }
        match connection.send_stream(id).write(bytes) {
            Ok(written) => Ok(written),
            Err(WriteError::Blocked) => Err(io::ErrorKind::WouldBlock.into()),
            Err(WriteError::Stopped(_) | WriteError::ClosedStream) => {
                self.stopped = true;
                Err(io::ErrorKind::ConnectionReset.into())
            }
        }
    }

    /// Sends FIN.
    ///
    /// # Errors
    /// `NotConnected` when the stream has failed.
    pub(crate) fn finish(&mut self, connection: &mut Connection, id: StreamId) -> io::Result<()> {
        if self.failed || self.stopped || connection.send_stream(id).finish().is_err() {
            self.stopped = true;
            return Err(io::ErrorKind::NotConnected.into());
        }
        self.finished = true;
        Ok(())
    }

    /// Ends both directions at once: RESET_STREAM and STOP_SENDING. Neither is sent for one that
    /// has ended.
    pub(crate) fn reset(&mut self, connection: &mut Connection, id: StreamId, code: VarInt) {
        self.failed = true;
        let _ = connection.send_stream(id).reset(code);
        let _ = connection.recv_stream(id).stop(code);
    }

    /// Lets go of a stream: what was written and its FIN still arrive. A direction that has not
    /// ended is reset. Returns whether bytes of it may still come.
    pub(crate) fn close(mut self, connection: &mut Connection, id: StreamId, code: VarInt) -> bool {
        if !self.finished {
            self.reset(connection, id, code);
            return false;
        }
        if !self.ended {
            let _ = connection.recv_stream(id).stop(code);
        }
        self.has_leftover()
    }

    /// The peer wants no more bytes. What it has sent can still be read, as after the reset of a TCP
    /// connection whose bytes wait in the socket.
    pub(crate) fn stop(&mut self) {
        self.stopped = true;
    }

    fn fail(&mut self) -> io::Error {
        self.failed = true;
        io::ErrorKind::ConnectionReset.into()
    }
}

/// Reads and drops what has come of a stream. Returns whether that was all.
pub(crate) fn discard(connection: &mut Connection, id: StreamId) -> bool {
    let mut stream = connection.recv_stream(id);
    let Ok(mut chunks) = stream.read(false) else {
        return true;
    };
    loop {
        match chunks.next(usize::MAX) {
            Ok(Some(_)) => {}
            Err(ReadError::Blocked) => return false,
            Ok(None) | Err(ReadError::Reset(_)) => return true,
        }
    }
}
