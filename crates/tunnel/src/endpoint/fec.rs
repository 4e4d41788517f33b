// SPDX-License-Identifier: Apache-2.0
//! Forward erasure correction of the streams of a connection: what it protects, and what it keeps.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use quinn_proto::{Connection, ConnectionHandle, Dir, Side, StreamId, VarInt};

use super::{Conn, Endpoint, Event, elicited};
use crate::control::Load;
use crate::fec::{Backlog, Loss, Repair, SourceBlock};
use crate::stream::{Ready, Stream};

/// The loss from which on streams are protected, in thousandths.
const PERMILLE_MIN: u64 = 5;
/// Bytes of all streams of a connection that are kept after they were read.
const RETAINED_MAX: usize = 4 << 20;
/// What a piece takes beside its bytes.
const PIECE_OVERHEAD: usize = 100;
/// Repair symbols that are kept for streams whose first packet is missing.
const EARLY_MAX: usize = 32;
/// By how much the bytes of a stream in a packet may exceed the largest DATAGRAM payload: 3 bytes of the
/// packet's number, and what the frame's type and length take of 9.
const STREAM_EXTRA: usize = 10;
/// What the window must have room for: some datagrams.
const ROOM_MIN: u64 = 16 << 10;
/// How long a stream may pause in a block, in eighths of a round trip: shorter than what is lost would
/// wait for otherwise, and longer than a sender that has more takes.
const PAUSE_MIN: Duration = Duration::from_millis(2);
const PAUSE_MAX: Duration = Duration::from_millis(25);

/// What was sent and repaired, of all connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repairs {
    /// DATAGRAM frames with repair symbols.
    pub datagrams_sent: u64,
    /// Bytes of streams that followed from repair symbols.
    pub bytes_repaired: u64,
}

/// What a connection has for it.
#[derive(Debug, Default)]
pub(super) struct Fec {
    load: Arc<Load>,
    backlog: Backlog,
    loss: Loss,
    /// Blocks that wait until the connection has nothing else to send.
    complete: VecDeque<Complete>,
    /// Bytes of these.
    complete_bytes: usize,
    /// The peer sends repair symbols.
    is_repaired: bool,
    /// Pieces of streams in the order of their arrival: where they end, and what they take.
    recent: VecDeque<(StreamId, u64, usize)>,
    /// Bytes of these.
    retained: usize,
    /// For streams that the peer has opened by packets that have not arrived.
    early: VecDeque<Repair>,
    /// Streams that it has opened by others.
    opened: u64,
    /// Streams that were repaired up to their end and closed, of which bytes may still come.
    leftover: HashSet<StreamId>,
}

/// A block that is complete.
#[derive(Debug)]
struct Complete {
    stream: StreamId,
    block: SourceBlock,
    is_last: bool,
}

impl Endpoint {
    /// What was sent and repaired since the last call.
    pub fn take_repairs(&mut self) -> Repairs {
        std::mem::take(&mut self.repairs)
    }

    /// Adds bytes that were written to a stream to its block, if it is to have one.
    pub(super) fn protect(&mut self, stream: Stream, mut bytes: &[u8]) {
        let Some(conn) = self.conn_mut(stream.connection) else {
            return;
        };
        conn.fec.on_written(bytes.len() as u64);
        conn.note_written(stream.id, bytes.len());
        let Some(local) = conn.streams.get_mut(&stream.id) else {
            return;
        };
        while !bytes.is_empty() {
            if local.block.is_none() {
                let symbol_bytes = conn.fec.symbol_bytes(&mut conn.inner);
                let block = symbol_bytes.map(|bytes| SourceBlock::new(local.written, bytes));
                local.block = block;
            }
            let Some(block) = &mut local.block else {
                local.written += bytes.len() as u64;
                return;
            };
            let taken = block.add(bytes);
            local.written += taken as u64;
            bytes = &bytes[taken..];
            if block.is_full() {
                conn.fec.complete(stream.id, local.block.take(), false);
            }
        }
        if local.block.is_some() {
            self.incomplete.insert(stream, None);
        } else {
            self.incomplete.remove(&stream);
        }
    }

    /// Completes the block that a stream has begun.
    pub(super) fn complete(&mut self, stream: Stream, is_last: bool) {
        self.incomplete.remove(&stream);
        if let Some(conn) = self.conn_mut(stream.connection)
            && let Some(local) = conn.streams.get_mut(&stream.id)
        {
            conn.fec.complete(stream.id, local.block.take(), is_last);
        }
    }

    /// Queues repair symbols if a connection has nothing else to send. Returns whether it has some now.
    pub(super) fn repair(&mut self, handle: ConnectionHandle) -> bool {
        let Some(conn) = self.connections.get_mut(&handle) else {
            return false;
        };
        let Conn { fec, inner, .. } = conn;
        let Some(complete) = fec.next_to_repair() else {
            return false;
        };
        let Some(room) = inner.datagrams().max_size() else {
            return false;
        };
        let number = VarInt::from(complete.stream).into_inner();
        let permille = fec.loss.permille();
        let repairs = complete
            .block
            .repairs(number, complete.is_last, permille, room);
        let mut sent = 0;
        for repair in repairs {
            // quinn-proto sends them before bytes of streams, so the next block waits until these are gone.
            fec.backlog.on_written(repair.len() as u64);
            // What does not fit is not needed for the stream to arrive.
            sent += u64::from(inner.datagrams().send(repair, true).is_ok());
        }
        self.repairs.datagrams_sent += sent;
        sent > 0
    }

    /// Completes blocks to which nothing was added for a while.
    pub(super) fn complete_paused(&mut self, now: Duration) {
        let mut paused = Vec::new();
        let mut incomplete = std::mem::take(&mut self.incomplete);
        for (stream, due) in &mut incomplete {
            match due {
                Some(due) if *due <= now => paused.push(*stream),
                Some(_) => {}
                None => {
                    let round = self.round_trip(stream.connection).unwrap_or_default();
                    *due = Some(now + (round / 8).clamp(PAUSE_MIN, PAUSE_MAX));
                }
            }
        }
        self.incomplete = incomplete;
        for stream in paused {
            self.complete(stream, false);
            if let Some(&handle) = self.handles.get(&stream.connection) {
                self.touch(handle);
            }
        }
    }

    /// Takes the repair symbols that have arrived.
    pub(super) fn on_repairs(&mut self, handle: ConnectionHandle) {
        let Some(conn) = self.connections.get_mut(&handle) else {
            return;
        };
        while let Some(datagram) = conn.inner.datagrams().recv() {
            // A successor may send others.
            let Some(repair) = Repair::parse(&datagram) else {
                continue;
            };
            if let Some(tag) = conn.on_repair(repair) {
                let ready = Ready {
                    readable: true,
                    ..Ready::default()
                };
                self.events.push_back(Event::Ready { tag, ready });
            }
        }
    }

    /// Notes what a read has added to a stream, and forgets what was read long ago.
    pub(super) fn retain(&mut self, stream: Stream) {
        let Some(conn) = self.conn_mut(stream.connection) else {
            return;
        };
        let local = conn.streams.get_mut(&stream.id);
        let Some(assembly) = local.and_then(|local| local.assembly.as_mut()) else {
            return;
        };
        let (end, added, repaired) = assembly.take_added();
        if added > 0 {
            let kept = added + PIECE_OVERHEAD;
            conn.fec.recent.push_back((stream.id, end, kept));
            conn.fec.retained += kept;
        }
        while conn.fec.retained > RETAINED_MAX
            && let Some((id, end, length)) = conn.fec.recent.pop_front()
        {
            conn.fec.retained -= length;
            let local = conn.streams.get_mut(&id);
            if let Some(assembly) = local.and_then(|local| local.assembly.as_mut()) {
                assembly.forget(end);
            }
        }
        self.repairs.bytes_repaired += repaired as u64;
    }
}

#[cfg(test)]
impl Endpoint {
    /// Streams that were repaired up to their end and of which bytes may still come, blocks that wait, and
    /// bytes that are kept.
    pub(crate) fn leftovers(&self) -> (usize, usize, usize) {
        let all = self.connections.values();
        let streams = all.clone().map(|conn| conn.fec.leftover.len()).sum();
        let kept = all.map(|conn| conn.fec.retained).sum();
        (streams, self.incomplete.len(), kept)
    }
}

impl Conn {
    /// Whether its streams are read by pieces: their peer sends repair symbols.
    pub(super) fn is_repaired(&self) -> bool {
        self.fec.is_repaired
    }

    /// Takes a repair symbol; returns the tag of its stream.
    fn on_repair(&mut self, repair: Repair) -> Option<u64> {
        self.fec.is_repaired = true;
        let id = stream_id(repair.stream)?;
        if let Some(local) = self.streams.get_mut(&id) {
            local.on_repair(&repair);
            return local.tag;
        }
        // Those of its streams come in their order, so this one is closed.
        if id.initiator() == self.inner.side() || id.index() < self.fec.opened {
            return None;
        }
        if self.fec.early.len() == EARLY_MAX {
            self.fec.early.pop_front();
        }
        self.fec.early.push_back(repair);
        None
    }

    /// Passes a stream that the peer has opened the repair symbols that came before it.
    pub(super) fn take_early(&mut self, id: StreamId) {
        self.fec.opened = self.fec.opened.max(id.index() + 1);
        let number = VarInt::from(id).into_inner();
        let early = std::mem::take(&mut self.fec.early);
        for repair in early {
            match self.streams.get_mut(&id) {
                Some(local) if repair.stream == number => local.on_repair(&repair),
                _ => self.fec.early.push_back(repair),
            }
        }
    }

    /// Bytes of a closed stream may still come, which no one needs.
    pub(super) fn leave(&mut self, id: StreamId) {
        self.fec.leftover.insert(id);
        self.discard_leftover(id);
    }

    /// Reads what has come of a stream that was repaired up to its end. Returns whether it is such a
    /// stream.
    pub(super) fn discard_leftover(&mut self, id: StreamId) -> bool {
        if let Some(local) = self.streams.get_mut(&id) {
            let is_leftover = local.has_leftover();
            if is_leftover {
                local.discard(&mut self.inner, id);
            }
            return is_leftover;
        }
        let is_leftover = self.fec.leftover.contains(&id);
        if is_leftover && crate::stream::discard(&mut self.inner, id) {
            self.fec.leftover.remove(&id);
        }
        is_leftover
    }
}

impl Fec {
    /// The path has changed, and with it the load.
    pub(super) fn set_load(&mut self, load: Arc<Load>) {
        // It counts from the beginning.
        self.backlog = Backlog::default();
        self.load = load;
    }

    /// Of a connection with this load.
    pub(super) fn new(load: Arc<Load>) -> Self {
        Self {
            load,
            ..Self::default()
        }
    }

    /// Bytes were written to a stream.
    pub(super) fn on_written(&mut self, bytes: u64) {
        self.backlog.on_written(bytes);
    }

    /// Bytes of a symbol, if the path loses packets and the peer takes repair symbols.
    fn symbol_bytes(&mut self, connection: &mut Connection) -> Option<usize> {
        if !self.load.has_lost() {
            return None;
        }
        let stats = connection.stats();
        let sent = elicited(&stats).min(stats.path.sent_packets);
        self.loss.on_totals(sent, stats.path.lost_packets);
        if self.loss.permille() < PERMILLE_MIN {
            return None;
        }
        // No packet has more bytes of a stream, so each that is lost costs one repair symbol.
        Some(connection.datagrams().max_size()? + STREAM_EXTRA)
    }

    fn complete(&mut self, stream: StreamId, block: Option<SourceBlock>, is_last: bool) {
        let Some(block) = block else {
            return;
        };
        self.complete_bytes += block.len();
        self.complete.push_back(Complete {
            stream,
            block,
            is_last,
        });
        // Before the last window, lost packets are sent again as soon.
        let (window, _) = self.load.window_and_room();
        while self.complete_bytes as u64 > window && self.complete.len() > 1 {
            self.pop_complete();
        }
    }

    fn pop_complete(&mut self) -> Option<Complete> {
        let complete = self.complete.pop_front()?;
        self.complete_bytes -= complete.block.len();
        Some(complete)
    }

    /// All that may be sent was sent: the next block, if no bytes wait that its repair symbols would delay.
    fn next_to_repair(&mut self) -> Option<Complete> {
        let (window, room) = self.load.window_and_room();
        let (gone, acks) = (self.load.gone(), self.load.acks());
        let is_empty = self.backlog.on_sent_all(gone, acks, window);
        if !is_empty || room < ROOM_MIN {
            return None;
        }
        self.pop_complete()
    }
}

/// The bidirectional stream with a number (RFC 9000 §2.1).
pub(super) fn stream_id(number: u64) -> Option<StreamId> {
    let initiator = if number & 1 == 0 {
        Side::Client
    } else {
        Side::Server
    };
    let is_bidirectional = number & 2 == 0;
    is_bidirectional.then(|| StreamId::new(initiator, Dir::Bi, number >> 2))
}
