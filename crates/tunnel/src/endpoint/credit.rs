// SPDX-License-Identifier: Apache-2.0
//! How much of the streams of a connection may wait for their receiver. Each end reports what its flows have read,
//! by a stream of its own, and writes no more of a stream than fits. QUIC's windows do not do it: a fast flow needs
//! a large one from its first byte on, and quinn-proto has the same for all streams of a connection.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use quinn_proto::{Connection, ConnectionHandle, Dir, ReadError, StreamId, VarInt};

use super::{Conn, Endpoint, Event};
use crate::stream::Ready;
use crate::transport;

/// What a unidirectional stream begins with: its sender goes away, or reports.
pub(super) const GOING_AWAY: u8 = 0;
const REPORTS: u8 = 1;
/// Bytes of a report: the number of a stream, and how many bytes of it were read.
const REPORT_BYTES: usize = 16;
/// Bytes of a stream that are read between two reports. Fewer than every stream may have, or a writer that waits
/// for room would wait for good.
const REPORT_EVERY: u64 = 32 << 10;
/// Bytes that every stream may have written and not read.
const STREAM_MIN: u64 = 64 << 10;
/// Bytes of all streams from which on they have no more than that: this, and so many windows of the congestion
/// control. A flow that is alone has half of it, since it may have as much as is left. Two windows are on their way,
/// as a report takes half a round trip too, and some wait to be sent.
const SHARED_MIN: u64 = 1 << 20;
const SHARED_WINDOWS: u64 = 5;
/// What it is at most: two windows of 400 Mbit/s and 150 ms, about what a connection can encrypt.
const SHARED_MAX: u64 = 16 << 20;
/// What all connections of the node have at most, beyond what every stream may have: enough for sixteen such peers.
const ALL_MAX: u64 = 256 << 20;

/// Bytes that a stream may have beyond what its reader takes in so many round trips, while that is behind.
const BEHIND_MIN: u64 = 512 << 10;
const BEHIND_ROUNDS: u64 = 4;
/// The least time over which its rate is measured: readers take bytes in bursts.
const MEASURED_MIN: Duration = Duration::from_millis(10);

/// How fast the reader of a stream takes its bytes, while it is behind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    since: Duration,
    taken: u64,
    /// Bytes that may be written and not read.
    room: u64,
}

impl Pace {
    /// What it is once so many bytes were taken.
    fn next(self, taken: u64, now: Duration, round: Duration) -> Self {
        let lasted = now.saturating_sub(self.since);
        if lasted < round.max(MEASURED_MIN) {
            return self;
        }
        let bytes = u128::from(taken - self.taken) * round.as_micros() / lasted.as_micros();
        let in_a_round = u64::try_from(bytes).unwrap_or(u64::MAX);
        Self {
            since: now,
            taken,
            room: BEHIND_ROUNDS
                .saturating_mul(in_a_round)
                .saturating_add(BEHIND_MIN),
        }
    }
}

/// How much of a stream's unreported bytes counts. The rest may have been read, and that of idle streams must not
/// add up.
fn counted(unread: u64) -> u64 {
    unread.saturating_sub(REPORT_EVERY)
}

/// Bytes written to the streams of a connection that the peer has not reported to have read, as they count: a part of
/// those of all connections of the node.
#[derive(Debug)]
struct Unread {
    own: u64,
    all: Arc<AtomicU64>,
}

impl Unread {
    fn change(&mut self, [before, after]: [u64; 2]) {
        let [before, after] = [before, after].map(counted);
        self.own = self.own - before + after;
        // Relaxed: it guards no data.
        self.all
            .fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
    }

    /// Bytes that a stream may have, of a connection with such a window.
    fn room(&self, window: u64) -> u64 {
        let shared = (SHARED_MIN + SHARED_WINDOWS * window).min(SHARED_MAX);
        let of_all = ALL_MAX.saturating_sub(self.all.load(Ordering::Relaxed));
        // Half of what is left, so that connections whose readers stall leave others some.
        let most = shared.min(of_all / 2);
        most.saturating_sub(self.own).max(STREAM_MIN)
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        self.all.fetch_sub(self.own, Ordering::Relaxed);
    }
}

/// What a connection has for it.
#[derive(Debug)]
pub(super) struct Credit {
    /// The streams of reports, if the peer takes them, and if it sends them.
    mine: Option<StreamId>,
    theirs: Option<StreamId>,
    /// The part of a report that has come.
    partial: Vec<u8>,
    /// Streams of which there is something to report.
    due: BTreeSet<StreamId>,
    /// Reports that have not left yet.
    unsent: Vec<u8>,
    unread: Unread,
}

impl Credit {
    /// `all` counts for all connections of the node.
    pub(super) fn new(all: Arc<AtomicU64>) -> Self {
        Self {
            mine: None,
            theirs: None,
            partial: Vec::new(),
            due: BTreeSet::new(),
            unsent: Vec::new(),
            unread: Unread { own: 0, all },
        }
    }
}

impl Conn {
    /// Opens the streams by which this end reports and goes away. A peer that permits one of them takes no
    /// reports.
    pub(super) fn open_own_streams(&mut self) {
        let [first, second] = [(); 2].map(|()| self.inner.streams().open(Dir::Uni));
        if second.is_none() {
            self.leaving.reserved = first;
            return;
        }
        (self.credit.mine, self.leaving.reserved) = (first, second);
        // The peer waits for no report before it knows that there are some.
        self.credit.unsent.push(REPORTS);
    }

    /// Notes that bytes of a stream were read.
    pub(super) fn note_read(&mut self, id: StreamId) {
        if let (Some(local), Some(_)) = (self.streams.get_mut(&id), self.credit.mine)
            && local.read_bytes() >= local.reported + REPORT_EVERY
        {
            self.credit.due.insert(id);
        }
    }

    /// Sends what is to be reported.
    pub(super) fn send_reports(&mut self) {
        let Some(mine) = self.credit.mine else {
            return;
        };
        // What there is no room for leaves before further ones.
        let is_free = self.credit.unsent.is_empty();
        while is_free && let Some(id) = self.credit.due.pop_first() {
            if let Some(local) = self.streams.get_mut(&id) {
                local.reported = local.read_bytes();
                let report = [VarInt::from(id).into_inner(), local.reported].map(u64::to_be_bytes);
                self.credit.unsent.extend(report.as_flattened());
            }
        }
        if self.credit.unsent.is_empty() {
            return;
        }
        let window = transport::SEND_WINDOW + transport::MESSAGE_WINDOW;
        self.inner.set_send_window(window);
        let written = self.inner.send_stream(mine).write(&self.credit.unsent);
        self.inner.set_send_window(transport::SEND_WINDOW);
        let written = written.unwrap_or(0);
        self.credit.unsent.drain(..written);
        self.fec.on_written(written as u64);
    }

    /// Bytes of a stream that there is room for at its receiver.
    pub(super) fn room(&self, id: StreamId) -> u64 {
        let (Some(local), Some(_)) = (self.streams.get(&id), self.credit.theirs) else {
            return u64::MAX;
        };
        let (window, _) = self.load.window_and_room();
        let most = self.credit.unread.room(window);
        let most = local.pace.map_or(most, |pace| most.min(pace.room));
        most.saturating_sub(local.written - local.taken)
    }

    /// Notes that bytes were written to a stream.
    pub(super) fn note_written(&mut self, id: StreamId, bytes: usize) {
        if let Some(local) = self.streams.get(&id) {
            let unread = local.written - local.taken;
            self.credit.unread.change([unread, unread + bytes as u64]);
        }
    }

    /// A stream is open no longer.
    pub(super) fn forget_unread(&mut self, unread: u64) {
        self.credit.unread.change([unread, 0]);
    }

    /// Takes a report; returns the tag of its stream if that waits for room.
    fn on_report(&mut self, report: [u8; REPORT_BYTES], now: Duration) -> Option<u64> {
        let round = self.inner.rtt();
        let [number, read] = [&report[..8], &report[8..]]
            .map(|part| part.iter().fold(0, |all, byte| all << 8 | u64::from(*byte)));
        let local = self.streams.get_mut(&super::fec::stream_id(number)?)?;
        let read = read.clamp(local.taken, local.written);
        let unread = [local.taken, read].map(|taken| local.written - taken);
        self.credit.unread.change(unread);
        local.taken = read;
        let first = Pace {
            since: now,
            taken: read,
            room: u64::MAX,
        };
        let is_behind = local.written - read >= REPORT_EVERY;
        let pace = local.pace.map_or(first, |pace| pace.next(read, now, round));
        local.pace = is_behind.then_some(pace);
        std::mem::take(&mut local.waits_for_room)
            .then_some(local.tag)
            .flatten()
    }
}

impl Endpoint {
    /// A unidirectional stream of the peer has bytes, or is new.
    pub(super) fn on_own_stream(&mut self, handle: ConnectionHandle, id: StreamId) {
        let Some(conn) = self.connections.get_mut(&handle) else {
            return;
        };
        if conn.leaving.is_reported_by(id) {
            return;
        }
        if conn.credit.theirs != Some(id) {
            match read(&mut conn.inner, id, 1).as_deref() {
                Some([GOING_AWAY]) => return self.on_going_away(handle, id),
                Some([REPORTS]) if conn.credit.theirs.is_none() => conn.credit.theirs = Some(id),
                // It is new, and another has come before it; or a successor's.
                _ => return,
            }
        }
        while let Some(part) = read(
            &mut conn.inner,
            id,
            REPORT_BYTES - conn.credit.partial.len(),
        ) {
            conn.credit.partial.extend(part);
            let Ok(report) = conn.credit.partial[..].try_into() else {
                continue;
            };
            conn.credit.partial.clear();
            if let Some(tag) = conn.on_report(report, self.now) {
                let ready = Ready {
                    writable: true,
                    ..Ready::default()
                };
                self.events.push_back(Event::Ready { tag, ready });
            }
        }
    }
}

/// Up to so many bytes of a stream, if there are some.
fn read(connection: &mut Connection, id: StreamId, most: usize) -> Option<Vec<u8>> {
    let mut stream = connection.recv_stream(id);
    let mut chunks = stream.read(true).ok()?;
    let read: Result<_, ReadError> = chunks.next(most);
    let _ = chunks.finalize();
    Some(read.ok()??.bytes.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: u64 = 10 << 20;

    // promise: D11
    #[test]
    fn connections_share_the_bound_of_all() {
        let all = Arc::new(AtomicU64::new(0));
        let new = || Unread {
            own: 0,
            all: Arc::clone(&all),
        };
        let mut full: Vec<_> = (0..16).map(|_| new()).collect();
        for one in &mut full {
            let room = one.room(WINDOW);
            one.change([0, room + REPORT_EVERY]);
            assert_eq!(one.room(WINDOW), STREAM_MIN);
        }
        assert!(all.load(Ordering::Relaxed) < ALL_MAX);
        let other = new();
        assert_eq!(other.room(WINDOW), 4 << 20);
        // What an ended connection had is free.
        drop(full);
        assert_eq!(all.load(Ordering::Relaxed), 0);
        assert_eq!(other.room(WINDOW), SHARED_MAX);
    }
}
