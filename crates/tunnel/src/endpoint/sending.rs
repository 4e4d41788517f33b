// SPDX-License-Identifier: Apache-2.0
//! Which connection sends next: one after the other, each when the limit of its peer leaves room.

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use quinn_proto::{ConnectionHandle, ConnectionStats, Transmit};

use super::{Conn, Endpoint};
use crate::control::Slot;
use crate::transport::MTU_MAX;

/// Connections that may have something to send.
#[derive(Debug, Default)]
pub(super) struct Sending {
    ready: VecDeque<ConnectionHandle>,
    /// Those whose peer has a limit, and until when.
    paced: BTreeSet<(Instant, ConnectionHandle)>,
}

impl Sending {
    pub(super) fn remove(&mut self, handle: ConnectionHandle) {
        self.ready.retain(|one| *one != handle);
        self.paced.retain(|(_, one)| *one != handle);
    }

    /// The turn of some may have come.
    pub(super) fn resume(&mut self, now: Instant) {
        while let Some((due, handle)) = self.paced.first().copied()
            && due <= now
        {
            self.paced.pop_first();
            self.ready.push_back(handle);
        }
    }

    /// When to call [`Self::resume`].
    pub(super) fn deadline(&self) -> Option<Instant> {
        Some(self.paced.first()?.0)
    }
}

/// What a connection had to send.
enum Sent {
    /// By this socket.
    Datagrams(u64, Transmit),
    /// More than ACKs, which may leave then.
    NoRoom(Instant),
    Nothing,
}

impl Conn {
    /// What its peer's limit leaves it now, if it has one; an error if its turn comes later.
    fn slot(&mut self, at: Instant) -> Result<Option<Slot>, ()> {
        let Some(limit) = &self.limit else {
            return Ok(None);
        };
        match self.slot {
            Some(slot) if slot.at > at => Err(()),
            Some(_) => Ok(self.slot.take()),
            None => limit.take(at),
        }
    }

    /// Sends ACKs. If there is more, books when that may leave.
    fn transmit_held(&mut self, most: usize, buffer: &mut Vec<u8>, at: Instant) -> Sent {
        self.load.hold(true);
        let transmit = self.inner.poll_transmit(at, most, buffer);
        let has_waited = self.load.has_waited();
        self.load.hold(false);
        let Some(limit) = &self.limit else {
            return self.sent(transmit);
        };
        if let Some(transmit) = transmit {
            limit.settle(0, transmit.size as u64);
            return Sent::Datagrams(self.socket, transmit);
        }
        if has_waited {
            self.slot = self.slot.or_else(|| limit.book(at));
        }
        let at = self.slot.filter(|_| has_waited).map(|slot| slot.at);
        at.map_or(Sent::Nothing, Sent::NoRoom)
    }

    fn sent(&self, transmit: Option<Transmit>) -> Sent {
        transmit.map_or(Sent::Nothing, |transmit| {
            Sent::Datagrams(self.socket, transmit)
        })
    }

    /// Whether it has sent since the last call what the peer acknowledges.
    pub(super) fn has_elicited(&mut self) -> bool {
        let elicited = elicited(&self.inner.stats());
        std::mem::replace(&mut self.elicited, elicited) != elicited
    }
}

impl Endpoint {
    /// The next datagrams to send, into `buffer`, and by which socket: up to `most` in one.
    pub fn poll_transmit(
        &mut self,
        most: usize,
        buffer: &mut Vec<u8>,
        now: Duration,
    ) -> Option<(u64, Transmit)> {
        let at = self.instant(now);
        while let Some(handle) = self.sending.ready.front().copied() {
            buffer.clear();
            match self.transmit(handle, most, buffer, at) {
                Sent::Datagrams(socket, transmit) => {
                    self.note_elicited(handle, now);
                    // In turn, so that no connection waits for the whole window of another.
                    self.sending.ready.rotate_left(1);
                    return Some((socket, transmit));
                }
                Sent::NoRoom(until) => {
                    self.sending.ready.pop_front();
                    self.sending.paced.insert((until, handle));
                }
                Sent::Nothing if self.repair(handle) => {}
                Sent::Nothing => {
                    self.sending.ready.pop_front();
                    if let Some(conn) = self.connections.get_mut(&handle) {
                        conn.is_dirty = false;
                    }
                    self.drain(handle);
                }
            }
        }
        None
    }

    /// The next datagrams of a connection.
    fn transmit(
        &mut self,
        handle: ConnectionHandle,
        most: usize,
        buffer: &mut Vec<u8>,
        at: Instant,
    ) -> Sent {
        let Some(conn) = self.connections.get_mut(&handle) else {
            return Sent::Nothing;
        };
        conn.send_reports();
        let Ok(slot) = conn.slot(at) else {
            return conn.transmit_held(most, buffer, at);
        };
        let room = slot.map(|slot| slot.bytes / u64::from(MTU_MAX));
        let room = room.and_then(|room| usize::try_from(room).ok());
        let most = room.map_or(most, |room| most.min(room.max(1)));
        let transmit = if std::mem::take(&mut conn.probes) {
            conn.load.probe(true);
            let transmit = conn.inner.poll_transmit(at, 1, buffer);
            conn.load.probe(false);
            transmit
        } else {
            conn.inner.poll_transmit(at, most, buffer)
        };
        let sent = transmit.as_ref().map_or(0, |transmit| transmit.size as u64);
        if let (Some(slot), Some(limit)) = (slot, &conn.limit) {
            limit.settle(slot.bytes, sent);
        }
        conn.sent(transmit)
    }

    /// Whether a connection may have something to send.
    pub fn has_transmits(&self) -> bool {
        !self.sending.ready.is_empty()
    }

    /// A connection may have something to send.
    pub(super) fn touch(&mut self, handle: ConnectionHandle) {
        if let Some(conn) = self.connections.get_mut(&handle)
            && !std::mem::replace(&mut conn.is_dirty, true)
        {
            self.sending.ready.push_back(handle);
        }
    }
}

/// Frames sent of the kinds that are sent again and again until they are acknowledged.
pub(super) fn elicited(stats: &ConnectionStats) -> u64 {
    let frames = stats.frame_tx;
    frames.stream + frames.ping + frames.reset_stream + frames.crypto + frames.datagram
}
