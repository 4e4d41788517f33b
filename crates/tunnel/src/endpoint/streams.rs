// SPDX-License-Identifier: Apache-2.0
//! The streams of the connections: what their owner does with them, and what their peers do.

use std::io;

use quinn_proto::{Connection, ConnectionHandle, Dir, StreamEvent};

use super::{Conn, Endpoint, Event};
use crate::stream::{Local, Ready, Stream};
use crate::transport;

impl Endpoint {
    /// Streams that are open on a connection.
    pub fn streams(&self, connection: u64) -> usize {
        self.conn(connection).map_or(0, |conn| conn.streams.len())
    }

    /// Opens a stream, whose events have `tag`. `None` if the connection is lost or has as many as
    /// the peer permits.
    pub fn open(&mut self, connection: u64, tag: u64) -> Option<Stream> {
        let handle = *self.handles.get(&connection)?;
        let conn = self
            .connections
            .get_mut(&handle)
            .filter(|conn| conn.is_up)?;
        let id = conn.inner.streams().open(Dir::Bi)?;
        conn.streams.insert(id, Local::with(tag));
        Some(Stream { connection, id })
    }

    /// Reports the events of a stream with another tag. The first reports that it may be ready, as
    /// epoll does of a new descriptor: an event with the former tag may be lost.
    pub fn set_tag(&mut self, stream: Stream, tag: u64) {
        let conn = self.conn_mut(stream.connection);
        let Some(local) = conn.and_then(|conn| conn.streams.get_mut(&stream.id)) else {
            return;
        };
        local.tag = Some(tag);
        let ready = Ready {
            readable: true,
            writable: true,
            failed: false,
        };
        self.events.push_back(Event::Ready { tag, ready });
    }

    /// Reads into `buffer`; returns 0 at the end of the stream.
    ///
    /// # Errors
    /// `WouldBlock`; `ConnectionReset` when the peer has reset the stream, or the connection is
    /// lost.
    pub fn read(&mut self, stream: Stream, buffer: &mut [u8]) -> io::Result<usize> {
        let is_repaired = self.conn(stream.connection).is_some_and(Conn::is_repaired);
        let read = self.with(stream, |local, inner| {
            if is_repaired {
                local.assemble();
            }
            local.read(inner, stream.id, buffer)
        });
        if is_repaired {
            self.retain(stream);
        }
        if let Some(conn) = self.conn_mut(stream.connection) {
            conn.note_read(stream.id);
        }
        read.unwrap_or_else(|| Err(io::ErrorKind::ConnectionReset.into()))
    }

    /// Writes what there is room for, here and at the peer.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn write(&mut self, stream: Stream, bytes: &[u8]) -> io::Result<usize> {
        let conn = self.conn(stream.connection);
        let room = conn.map_or(u64::MAX, |conn| conn.room(stream.id));
        let room = usize::try_from(room).unwrap_or(usize::MAX);
        let written = self.write_all(stream, &bytes[..bytes.len().min(room)])?;
        if written == 0 && !bytes.is_empty() {
            self.with(stream, |local, _| local.waits_for_room = true);
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(written)
    }

    /// Writes what there is room for here.
    fn write_all(&mut self, stream: Stream, bytes: &[u8]) -> io::Result<usize> {
        let written = self
            .with(stream, |local, inner| local.write(inner, stream.id, bytes))
            .unwrap_or_else(|| Err(io::ErrorKind::ConnectionReset.into()))?;
        self.protect(stream, &bytes[..written]);
        Ok(written)
    }

    /// Writes a message, for which there is room also when streams have filled that for their bytes.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn write_message(&mut self, stream: Stream, message: &[u8]) -> io::Result<usize> {
        if let Some(conn) = self.conn_mut(stream.connection) {
            let window = transport::SEND_WINDOW + transport::MESSAGE_WINDOW;
            conn.inner.set_send_window(window);
        }
        let written = self.write_all(stream, message);
        if let Some(conn) = self.conn_mut(stream.connection) {
            conn.inner.set_send_window(transport::SEND_WINDOW);
        }
        written
    }

    /// Sends FIN.
    ///
    /// # Errors
    /// `NotConnected` when the stream has failed.
    pub fn finish(&mut self, stream: Stream) -> io::Result<()> {
        self.with(stream, |local, inner| local.finish(inner, stream.id))
            .unwrap_or_else(|| Err(io::ErrorKind::NotConnected.into()))?;
        self.complete(stream, true);
        if let Some(conn) = self.conn_mut(stream.connection) {
            conn.unfinished.insert(stream.id);
        }
        Ok(())
    }

    /// Resets a stream in both directions, with the reason.
    pub fn reset(&mut self, stream: Stream, code: u32) {
        self.with(stream, |local, inner| {
            local.reset(inner, stream.id, code.into());
        });
        if let Some(conn) = self.conn_mut(stream.connection) {
            conn.unfinished.remove(&stream.id);
        }
    }

    /// Lets go of a stream: what was written before a FIN still arrives, and what has not ended is
    /// reset. There are no more events of it.
    pub fn close(&mut self, stream: Stream, code: u32) {
        let Some(&handle) = self.handles.get(&stream.connection) else {
            return;
        };
        if let Some(conn) = self.connections.get_mut(&handle)
            && let Some(local) = conn.streams.remove(&stream.id)
        {
            conn.forget_unread(local.written - local.taken);
            if local.close(&mut conn.inner, stream.id, code.into()) {
                conn.leave(stream.id);
            }
            self.incomplete.remove(&stream);
            self.touch(handle);
        }
    }

    fn with<T>(
        &mut self,
        stream: Stream,
        call: impl FnOnce(&mut Local, &mut Connection) -> T,
    ) -> Option<T> {
        let handle = *self.handles.get(&stream.connection)?;
        let conn = self.connections.get_mut(&handle)?;
        let local = conn.streams.get_mut(&stream.id)?;
        let result = call(local, &mut conn.inner);
        self.touch(handle);
        Some(result)
    }

    pub(super) fn on_stream(&mut self, handle: ConnectionHandle, event: StreamEvent) {
        let Some(conn) = self.connections.get_mut(&handle) else {
            return;
        };
        let mut ready = Ready::default();
        let id = match event {
            StreamEvent::Opened { dir: Dir::Uni } => return self.accept_own_streams(handle),
            StreamEvent::Opened { dir } if conn.leaving.is_retired => {
                return self.refuse_streams(handle, dir);
            }
            StreamEvent::Opened { dir } => return self.accept_streams(handle, dir),
            StreamEvent::Readable { id } if id.dir() == Dir::Uni => {
                return self.on_own_stream(handle, id);
            }
            StreamEvent::Readable { id } if conn.discard_leftover(id) => return,
            StreamEvent::Readable { id } => {
                ready.readable = true;
                id
            }
            StreamEvent::Writable { id } => {
                ready.writable = true;
                id
            }
            StreamEvent::Stopped { id, .. } => {
                (ready.writable, ready.failed) = (true, true);
                conn.unfinished.remove(&id);
                if let Some(local) = conn.streams.get_mut(&id) {
                    local.stop();
                }
                id
            }
            StreamEvent::Finished { id } => {
                conn.unfinished.remove(&id);
                return;
            }
            StreamEvent::Available { .. } => return,
        };
        if let Some(tag) = conn.streams.get(&id).and_then(|local| local.tag) {
            self.events.push_back(Event::Ready { tag, ready });
        }
    }

    fn accept_own_streams(&mut self, handle: ConnectionHandle) {
        while let Some(conn) = self.connections.get_mut(&handle)
            && let Some(id) = conn.inner.streams().accept(Dir::Uni)
        {
            self.on_own_stream(handle, id);
        }
    }

    pub(super) fn accept_streams(&mut self, handle: ConnectionHandle, dir: Dir) {
        let Some(conn) = self.connections.get_mut(&handle) else {
            return;
        };
        let (connection, peer) = (conn.number, conn.peer);
        while let Some(id) = conn.inner.streams().accept(dir) {
            conn.streams.insert(id, Local::default());
            conn.take_early(id);
            if let Some(peer) = peer {
                let stream = Stream { connection, id };
                self.events.push_back(Event::Opened { stream, peer });
            }
        }
    }
}
