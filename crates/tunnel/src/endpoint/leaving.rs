// SPDX-License-Identifier: Apache-2.0
//! How connections end before their time: as one of the ends requests, or since the peer's host reports
//! that nothing listens there.

use std::time::Duration;

use bytes::Bytes;
use quinn_proto::{ConnectionHandle, Dir, StreamId, VarInt};

use crate::stream::discard;

use crate::transport::KEEP_ALIVE;

use super::credit::GOING_AWAY;
use super::{Conn, Endpoint, Event, LostReason, SILENT_MAX};

/// How long the peer may leave unacknowledged what is sent after it has sent something itself: an outage of this
/// direction of 4 s, the time to the next probe and that of its answer.
const ONE_WAY_MAX: Duration = Duration::from_secs(6);
/// How long only packets may be acknowledged that are shorter than those that QUIC needs.
const NARROW_MAX: Duration = Duration::from_secs(5);

/// How far the ends of a connection have come to leave it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Leaving {
    /// The streams by which they have reported it.
    mine: Option<StreamId>,
    theirs: Option<StreamId>,
    /// What the first of them will be.
    pub(super) reserved: Option<StreamId>,
    /// This end has no more streams, and has reported that.
    is_done: bool,
    /// It takes no more.
    pub(super) is_retired: bool,
}

impl Leaving {
    /// One of the ends wants no more streams.
    pub(super) fn has_begun(&self) -> bool {
        self.mine.is_some() || self.theirs.is_some()
    }

    /// Whether the peer has reported it by this stream.
    pub(super) fn is_reported_by(&self, id: StreamId) -> bool {
        self.theirs == Some(id)
    }
}

impl Conn {
    /// Something has come. Only an ACK of a packet that no other has acknowledged shows that what is sent arrives:
    /// where its direction alone is open, the peer sends again and again, and former ACKs with it.
    pub(super) fn note_acks(&mut self, now: Duration) {
        let (acks, _) = self.load.acks();
        if std::mem::replace(&mut self.acks, acks) != acks {
            (self.acked, self.waits_since, self.one_way_since) = (now, None, None);
            self.note_full_packets(now);
        } else if self.is_up && self.one_way_since.is_none() && self.is_silent(now) {
            self.one_way_since = Some(now);
        }
    }

    fn note_full_packets(&mut self, now: Duration) {
        let (acked, are_unacked) = self.load.full_packets();
        let former = std::mem::replace(&mut self.full_acked, acked);
        self.narrow_since = if former == acked && are_unacked {
            self.narrow_since.or(Some(now))
        } else {
            None
        };
    }

    /// Whether only short packets have been acknowledged for long: the path has become narrower than 1200
    /// bytes.
    fn is_narrow(&self, now: Duration) -> bool {
        let narrow = self.narrow_since.map(|since| now.saturating_sub(since));
        !self.is_lost && narrow.is_some_and(|lasted| lasted > NARROW_MAX)
    }

    /// Whether the peer has not acknowledged for long what was sent.
    pub(super) fn is_silent(&self, now: Duration) -> bool {
        let waited = self.waits_since.map(|since| now.saturating_sub(since));
        waited.is_some_and(|waited| waited > self.patience())
    }

    /// How long the peer may take to answer.
    pub(super) fn patience(&self) -> Duration {
        SILENT_MAX + 2 * self.inner.rtt()
    }

    /// Ends the stream by which this end goes away once no other is open and the peer has acknowledged all that
    /// was sent. Returns whether the peer has done the same, or the connection is lost.
    fn is_left(&mut self) -> bool {
        let Leaving { mine, theirs, .. } = self.leaving;
        if self.streams.is_empty() && self.unfinished.is_empty() && !self.leaving.is_done {
            let ended = mine.map(|id| self.inner.send_stream(id).finish());
            self.leaving.is_done = ended.is_some_and(|ended| ended.is_ok());
        }
        let is_done = self.leaving.is_done;
        self.is_lost || is_done && theirs.is_some_and(|id| discard(&mut self.inner, id))
    }

    /// When it is lost, and why, unless its peer answers.
    fn lost_at(&self) -> Option<(Duration, LostReason)> {
        // A NAT that has forgotten a peer which dialed reports this too. Its next packet shows the new address.
        let patience = self.patience()
            + if self.is_dialed {
                Duration::ZERO
            } else {
                KEEP_ALIVE
            };
        let refused = self.refused.map(|since| since + patience);
        let one_way = self.one_way_since.map(|since| since + ONE_WAY_MAX);
        let refused = refused.map(|at| (at, LostReason::Refused));
        let one_way = one_way.map(|at| (at, LostReason::TimedOut));
        let unanswered = self.answer_by.map(|at| (at, LostReason::TimedOut));
        let all = refused.into_iter().chain(one_way).chain(unanswered);
        let first = all.min_by_key(|(at, _)| *at);
        first.filter(|_| !self.is_lost)
    }
}

impl Endpoint {
    /// Requests that the peer open no more streams on a connection, by a stream of its own kind. That ends
    /// when this end has no more streams. The connection is closed when both have ended: then neither has
    /// bytes that were not read.
    pub fn go_away(&mut self, connection: u64) {
        let Some(&handle) = self.handles.get(&connection) else {
            return;
        };
        if let Some(conn) = self.connections.get_mut(&handle)
            && conn.leaving.mine.is_none()
            && let Some(id) = conn.leaving.reserved
        {
            conn.leaving.mine = Some(id);
            // There is room for it in a new stream, unless the peer grants none, which breaks the protocol.
            let _ = conn.inner.send_stream(id).write(&[GOING_AWAY]);
            self.closing.insert(connection);
            self.touch(handle);
        }
    }

    /// Likewise, and takes no more streams: those of the peer are reset.
    pub fn retire(&mut self, connection: u64, now: Duration) {
        let Some(conn) = self.conn_mut(connection) else {
            return;
        };
        conn.leaving.is_retired = true;
        if conn.is_up {
            self.go_away(connection);
        } else {
            self.disconnect(connection, now);
        }
    }

    /// Closes a connection: its streams are reset at both ends.
    pub fn disconnect(&mut self, connection: u64, now: Duration) {
        let Some(&handle) = self.handles.get(&connection) else {
            return;
        };
        let at = self.instant(now);
        if let Some(conn) = self.connections.get_mut(&handle) {
            conn.inner.close(at, VarInt::from_u32(0), Bytes::new());
            self.on_lost(handle, LostReason::Local);
            self.touch(handle);
            self.drain(handle);
        }
    }

    /// Whether no connection is up.
    pub fn is_over(&self) -> bool {
        !self.connections.values().any(|conn| conn.is_up)
    }

    /// A host has reported that nothing listens there. Anyone can send such a report, and routers do, so
    /// it ends an open connection only if its peer does not answer.
    pub(crate) fn on_refused(&mut self, connection: u64, now: Duration) {
        let Some(&handle) = self.handles.get(&connection) else {
            return;
        };
        let Some(conn) = self.connections.get_mut(&handle) else {
            return;
        };
        if !conn.is_up {
            self.on_lost(handle, LostReason::Refused);
            return self.disconnect(connection, now);
        }
        if conn.refused.is_none() {
            conn.refused = Some(now);
            conn.inner.ping();
            self.unanswered.insert(connection);
            self.touch(handle);
        }
    }

    /// A datagram of a connection has come.
    pub(super) fn on_received(&mut self, handle: ConnectionHandle, now: Duration) {
        let Some(conn) = self.connections.get_mut(&handle) else {
            return;
        };
        conn.answer_by = None;
        conn.note_acks(now);
        if conn.one_way_since.is_some() {
            self.unanswered.insert(conn.number);
        }
        if conn.is_narrow(now) {
            self.end_narrow(handle, now);
        }
    }

    /// Ends a connection that carries short packets only. Others with its peer take no more flows: they have
    /// no full packets, or end so too.
    fn end_narrow(&mut self, handle: ConnectionHandle, now: Duration) {
        let Some(conn) = self.connections.get(&handle) else {
            return;
        };
        let (connection, peer) = (conn.number, conn.peer);
        self.on_lost(handle, LostReason::TimedOut);
        self.disconnect(connection, now);
        let all = self.connections.values();
        let others = all.filter(|conn| conn.is_up && conn.peer == peer);
        for connection in others.map(|conn| conn.number).collect::<Vec<_>>() {
            self.go_away(connection);
            self.events.push_back(Event::GoingAway { connection });
        }
    }

    /// Ends connections whose peer has not answered in time.
    pub(super) fn end_unanswered(&mut self, now: Duration) {
        for connection in self.unanswered.clone() {
            match self.conn(connection).and_then(Conn::lost_at) {
                Some((due, _)) if due > now => {}
                Some((_, reason)) => {
                    self.unanswered.remove(&connection);
                    if let Some(handle) = self.handles.get(&connection) {
                        self.on_lost(*handle, reason);
                    }
                    self.disconnect(connection, now);
                }
                None => {
                    self.unanswered.remove(&connection);
                }
            }
        }
    }

    /// When [`Self::end_unanswered`] has something to do.
    pub(super) fn unanswered_until(&self) -> Option<Duration> {
        let unanswered = self.unanswered.iter();
        let due = unanswered.filter_map(|one| self.conn(*one).and_then(Conn::lost_at));
        due.map(|(at, _)| at).min()
    }

    /// Closes the connections that both ends leave and that have no more streams.
    pub(super) fn close_left(&mut self, now: Duration) {
        for connection in self.closing.clone() {
            let is_left = self.conn_mut(connection).is_none_or(Conn::is_left);
            if let Some(&handle) = self.handles.get(&connection) {
                self.touch(handle);
            }
            if is_left {
                self.closing.remove(&connection);
                self.disconnect(connection, now);
            }
        }
    }

    /// Resets what the peer has opened on a connection that was retired.
    pub(super) fn refuse_streams(&mut self, handle: ConnectionHandle, dir: Dir) {
        let Some(conn) = self.connections.get_mut(&handle) else {
            return;
        };
        while let Some(id) = conn.inner.streams().accept(dir) {
            let _ = conn.inner.send_stream(id).reset(VarInt::from_u32(0));
            let _ = conn.inner.recv_stream(id).stop(VarInt::from_u32(0));
        }
    }

    /// The peer goes away: so does this end.
    pub(super) fn on_going_away(&mut self, handle: ConnectionHandle, id: StreamId) {
        let Some(conn) = self.connections.get_mut(&handle) else {
            return;
        };
        let connection = conn.number;
        conn.leaving.theirs = Some(id);
        self.go_away(connection);
        self.events.push_back(Event::GoingAway { connection });
    }
}
