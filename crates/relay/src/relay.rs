// SPDX-License-Identifier: Apache-2.0
//! One joined pair of TCP connections: moves bytes both ways until it ends.
//!
//! # Theory of operation
//!
//! A relay has two independent directions, each named by the side it reads
//! from. A direction goes through
//!
//! ```text
//! Flowing --EOF--> Ending --held bytes written, FIN passed on--> Ended
//! ```
//!
//! and holds at most one load of bytes that it has read and could not write yet: a buffer (copied)
//! or a leased pipe (spliced). While it holds one it does not read, so TCP's own window slows the
//! sender. Small loads are copied, since a pipe costs more than it saves. After a load of half a
//! buffer a direction is spliced, until a load of less than a quarter arrives, or urgent data, at
//! which splicing would stop.
//!
//! Readiness is edge-triggered: a side counts as readable or writable from an event until a call
//! returns `WouldBlock`, or a read returns less than it could. Such a read has emptied the socket,
//! and later bytes raise another event.
//!
//! When a side fails (a reset, or a timeout), bytes that it sent before may still be queued: in its
//! socket, in the relay, or in the other side's send queue, which a reset of that side would
//! discard. So the direction to the failed side stops, the direction from it continues to its end,
//! and the relay lingers until the other side has acknowledged everything, or until [`LINGER_MS`]
//! have passed without an acknowledgement.
//!
//! The relay does no I/O itself and reads no clock: it acts on an [`Io`], and callers pass the
//! time. It ends with exactly one [`Outcome`]: `Finished` when both directions have ended, or the
//! fault of the side that failed first.

use std::io::{self, ErrorKind};
use std::time::Duration;

use crate::compact_instant::CompactInstant;
use crate::outcome::Outcome;
use crate::side::{Side, Sides};

mod failure;

use failure::Failure;

/// How long the bytes of a failed side may take to reach the other side, in ms from the failure or
/// from the last byte that moved or was acknowledged.
const LINGER_MS: u32 = 30_000;

/// Bytes that a direction may move in one turn, so that other relays get theirs.
pub const TURN_BYTES: u64 = 4 << 20;

/// Bytes of a spliced load, at most. What is moved in a call decides the cost of bulk transfer: with
/// 1 MiB it is about a quarter of that with 64 KiB.
pub(crate) const SPLICE_BYTES: usize = 1 << 20;
/// How often it is halved at most: down to a copied load. The kernel widens the receive window of a
/// socket with what is read from it in a round trip, so a load that waits for the other side would
/// let the sender send more of what cannot leave yet.
const HALVED_MAX: u8 = 4;

/// The I/O of a relay: two non-blocking streams and the worker's buffers.
pub trait Io {
    /// A leased pipe. Dropping one with bytes inside loses them.
    type Pipe;
    /// A buffer for bytes that could not be written at once.
    type Buffer: AsRef<[u8]>;
    /// The most that a read returns. A shorter read has emptied the socket, unless urgent data is
    /// queued.
    const READ_BYTES: usize;

    /// Reads into the worker's scratch space; returns the number of bytes in it now, zero at the
    /// end of the stream.
    ///
    /// # Errors
    /// `WouldBlock`, or the connection's error.
    fn read(&mut self, side: Side) -> io::Result<usize>;
    /// Writes scratch bytes `from..to`; returns how many were taken. With `more`, bytes that do not
    /// fill a segment wait for the write or the FIN that follows at once. Without bytes, it only
    /// checks whether the connection has failed.
    ///
    /// # Errors
    /// As for [`Io::read`].
    fn write(&mut self, side: Side, from: usize, to: usize, more: bool) -> io::Result<usize>;
    /// Keeps scratch bytes `from..to` for later.
    fn keep(&mut self, from: usize, to: usize) -> Self::Buffer;
    /// Writes kept bytes from `from` on; returns how many were taken.
    ///
    /// # Errors
    /// As for [`Io::read`].
    fn write_held(&mut self, side: Side, kept: &Self::Buffer, from: usize) -> io::Result<usize>;
    /// Leases an empty pipe; `None` if none is available.
    fn lease(&mut self) -> Option<Self::Pipe>;
    /// Gives an empty pipe back.
    fn give_back(&mut self, pipe: Self::Pipe);
    /// Moves up to `most` bytes from a side into a pipe; zero where only [`Io::read`] can detect the
    /// end of the stream.
    ///
    /// # Errors
    /// `WouldBlock` when the side has no bytes (the pipe is empty), or the connection's error.
    fn fill(&mut self, side: Side, pipe: &mut Self::Pipe, most: usize) -> io::Result<usize>;
    /// Moves up to `bytes` from a pipe to a side.
    ///
    /// # Errors
    /// As for [`Io::read`].
    fn empty(&mut self, side: Side, pipe: &mut Self::Pipe, bytes: usize) -> io::Result<usize>;
    /// Sends FIN.
    ///
    /// # Errors
    /// `NotConnected` when the connection is gone, or its error.
    fn finish(&mut self, side: Side) -> io::Result<()>;
    /// Whether a side has yet to acknowledge bytes or a FIN. False for a connection that is gone.
    fn unacknowledged(&mut self, side: Side) -> bool;
}

/// The readiness of a side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    /// Bytes, an end of stream or an error wait to be read.
    pub readable: bool,
    /// Room, or an error, waits for a write.
    pub writable: bool,
    /// The connection may be gone.
    pub failed: bool,
    /// Urgent data (RFC 6093) is among the bytes.
    pub urgent: bool,
    /// The peer has sent FIN: no bytes follow those in the socket.
    pub ending: bool,
    /// Reported by an event: later changes raise another event.
    pub edge_triggered: bool,
}

impl Ready {
    /// Whether a read that returns less than it could has emptied the socket.
    fn ends_with_a_short_read(self) -> bool {
        self.edge_triggered && !(self.ending || self.failed || self.urgent)
    }

    /// Whether a read that returns less than it could has reached the end of the stream: the peer's
    /// FIN had arrived before.
    fn closes_with_a_short_read(self) -> bool {
        self.edge_triggered && self.ending && !(self.failed || self.urgent)
    }
}

/// What the relay needs next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Nothing until the next event.
    Blocked,
    /// Another turn: this one is used up.
    Again,
    /// A side failed, and the other has yet to acknowledge its bytes: another turn after a delay,
    /// since no event reports acknowledgements.
    Linger,
    /// Close it. Both sides are reset unless it finished.
    Done(Outcome),
}

/// Bounds on a relay's time in each state, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Without a byte in either direction.
    pub idle_ms: u32,
    /// Without a byte, once the client sent FIN.
    pub client_fin_ms: u32,
    /// Without a byte, once the server sent FIN.
    pub server_fin_ms: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The sender may send more.
    Flowing,
    /// The sender has sent FIN; held bytes are not written yet.
    Ending,
    /// FIN is passed on.
    Ended,
}

/// Bytes read and not yet written.
#[derive(Debug)]
enum Held<P, B> {
    Copied { buffer: B, from: usize },
    Spliced { pipe: P, bytes: usize },
}

#[derive(Debug)]
struct Direction<P, B> {
    stage: Stage,
    /// Boxed: a relay rarely holds bytes.
    held: Option<Box<Held<P, B>>>,
    moved_bytes: u64,
    /// Its last load was large.
    large: bool,
    /// How often a spliced load is halved: the side that takes it is slower than its sender.
    halved: u8,
}

impl<P, B> Default for Direction<P, B> {
    fn default() -> Self {
        Self {
            stage: Stage::Flowing,
            held: None,
            moved_bytes: 0,
            large: false,
            halved: 0,
        }
    }
}

/// What stopped a direction within a turn.
enum Stop {
    /// It waits for one of its sides.
    Blocked,
    /// Its share of the turn is used up.
    Spent,
    /// A side failed.
    Failed(Side, io::Error),
}

/// A joined pair of TCP connections.
#[derive(Debug)]
pub struct Relay<P, B> {
    /// By the side a direction reads from.
    directions: Sides<Direction<P, B>>,
    ready: Sides<Ready>,
    /// When the last byte or FIN moved or a side failed, in the worker's time.
    active: CompactInstant,
    /// The side that failed first. Boxed: most relays have none.
    failure: Option<Box<Failure>>,
    /// The side to which a FIN was sent first.
    closed: Option<Side>,
}

impl<P, B: AsRef<[u8]>> Relay<P, B> {
    /// A relay of two connections that are both open at `now`.
    pub fn new(now: Duration) -> Self {
        Self {
            directions: Sides([Direction::default(), Direction::default()]),
            ready: Sides::default(),
            active: now.into(),
            failure: None,
            closed: None,
        }
    }

    /// As [`Relay::new`], for a client that has already sent `first`, which is passed on before
    /// anything else.
    pub fn with_first(now: Duration, first: B) -> Self {
        let mut relay = Self::new(now);
        if !first.as_ref().is_empty() {
            let held = Held::Copied {
                buffer: first,
                from: 0,
            };
            relay.directions[Side::Downstream].held = Some(Box::new(held));
        }
        relay
    }

    /// Adds to what `side` is ready for.
    pub fn note(&mut self, side: Side, ready: Ready) {
        self.ready[side].readable |= ready.readable;
        self.ready[side].writable |= ready.writable;
        self.ready[side].failed |= ready.failed;
        self.ready[side].urgent |= ready.urgent;
        self.ready[side].ending |= ready.ending;
        self.ready[side].edge_triggered |= ready.edge_triggered;
    }

    /// Moves what can be moved, within one turn.
    pub fn advance(&mut self, io: &mut impl Io<Pipe = P, Buffer = B>, now: Duration) -> Progress {
        let before = self.progress();
        let spent = self.pump_both(io);
        if self.progress() != before {
            self.active = now.into();
        }
        // Bytes in the socket of a side that has just failed wait for another turn: its direction
        // may have had its part of this one before the failure.
        let fresh = self.failure.is_some() != before.1;
        self.step(spent || fresh, io)
    }

    /// Runs both directions; returns whether one has used up its share of the turn.
    fn pump_both(&mut self, io: &mut impl Io<Pipe = P, Buffer = B>) -> bool {
        let mut spent = false;
        for side in Side::BOTH {
            let pumped = self.pump(side, io);
            spent |= self.record_reply(pumped);
            let probed = self.probe(side, io);
            self.record_reply(probed);
        }
        spent
    }

    /// Records why a direction stopped; returns whether its share is used up.
    fn record_reply(&mut self, stopped: Result<(), Stop>) -> bool {
        if let Err(Stop::Failed(side, error)) = &stopped {
            self.fail(*side, error);
        }
        matches!(stopped, Err(Stop::Spent))
    }

    /// The result of a turn.
    fn step(&self, spent: bool, io: &mut impl Io<Pipe = P, Buffer = B>) -> Progress {
        let Some(failure) = &self.failure else {
            let ended = Side::BOTH.iter().all(|side| self.ended(*side));
            return match (ended, spent) {
                (true, _) => Progress::Done(Outcome::Finished),
                (false, true) => Progress::Again,
                (false, false) => Progress::Blocked,
            };
        };
        if !self.ended(failure.side) {
            return if spent {
                Progress::Again
            } else {
                Progress::Blocked
            };
        }
        if io.unacknowledged(!failure.side) {
            return Progress::Linger;
        }
        Progress::Done(failure.outcome)
    }

    /// Records that a side has failed. Bytes it sent before may still be queued.
    fn fail(&mut self, side: Side, error: &io::Error) {
        match &mut self.failure {
            None => {
                self.failure = Some(Box::new(Failure::new(side, error)));
                // Received bytes may remain, and no further event reports them.
                self.ready[side].readable = true;
            }
            // Neither side can take the rest.
            Some(first) if first.side != side => self.directions[!side].stage = Stage::Ended,
            // A read returns the error that the failed shutdown did not report.
            Some(first) => **first = Failure::new(side, error),
        }
    }

    /// When to call [`Relay::on_time`], unless bytes move before.
    pub fn deadline(&self, bounds: &Bounds) -> Duration {
        self.quiet_since() + Duration::from_millis(self.patience(bounds).0.into())
    }

    /// When the relay was last active, or a side last acknowledged bytes that the relay waits for.
    fn quiet_since(&self) -> Duration {
        let failure = self.failure.as_deref();
        let progress = failure.and_then(Failure::progress).unwrap_or_default();
        self.active().max(progress)
    }

    /// The outcome, if the relay was quiet for too long.
    pub fn on_time(&self, now: Duration, bounds: &Bounds) -> Option<Outcome> {
        (now >= self.deadline(bounds)).then_some(self.patience(bounds).1)
    }

    /// How long the relay may be quiet, in ms, and the outcome after that.
    fn patience(&self, bounds: &Bounds) -> (u32, Outcome) {
        if let Some(failure) = &self.failure {
            return (LINGER_MS, failure.outcome);
        }
        let fin = |side: Side| self.directions[side].stage != Stage::Flowing;
        match (fin(Side::Downstream), fin(Side::Upstream)) {
            (true, false) => (bounds.client_fin_ms, Outcome::ClientFinTimeout),
            (false, true) => (bounds.server_fin_ms, Outcome::ServerFinTimeout),
            _ => (bounds.idle_ms, Outcome::IdleTimeout),
        }
    }

    /// When the last byte or FIN moved, in the worker's time.
    pub fn active(&self) -> Duration {
        self.active.into()
    }

    /// Bytes from `side` that the other side has taken.
    pub fn moved_from(&self, side: Side) -> u64 {
        self.directions[side].moved_bytes
    }

    /// The side to which a FIN was sent first: the kernel keeps its socket in TIME_WAIT, unless
    /// both ends have closed at the same moment.
    pub fn closed_first(&self) -> Option<Side> {
        self.closed
    }

    /// Bytes written to the upstream side, plus one for a FIN, as the kernel counts them.
    pub fn sent_to_upstream(&self) -> u64 {
        let fin = self.ended(Side::Downstream) && self.failure.is_none();
        self.moved_from(Side::Downstream) + u64::from(fin)
    }

    /// Whether a FIN was seen on either side.
    pub fn closing(&self) -> bool {
        Side::BOTH
            .iter()
            .any(|side| self.directions[*side].stage != Stage::Flowing)
    }

    fn ended(&self, side: Side) -> bool {
        self.directions[side].stage == Stage::Ended
    }

    /// Changes with every byte and FIN that moves, and when a side fails.
    fn progress(&self) -> ([(u64, Stage); 2], bool) {
        let moved = Side::BOTH.map(|side| (self.moved_from(side), self.directions[side].stage));
        (moved, self.failure.is_some())
    }

    /// Whether a side has failed: the relay writes nothing more to it.
    pub fn has_failed(&self, side: Side) -> bool {
        self.failure
            .as_ref()
            .is_some_and(|failure| failure.side == side)
    }

    /// The side that has yet to take the bytes of one that failed.
    pub fn lingers_for(&self) -> Option<Side> {
        self.failure.as_ref().map(|failure| !failure.side)
    }

    /// Reports that this side has not acknowledged `bytes` of what was written to it. The relay
    /// waits for a slow reader as long as it acknowledges.
    pub fn note_unacknowledged(&mut self, bytes: u64, now: Duration) {
        let Some(failure) = &mut self.failure else {
            return;
        };
        let written = self.directions[failure.side].moved_bytes;
        failure.note_acknowledged(written.saturating_sub(bytes), now);
    }

    /// Runs the direction that reads from `from` until it cannot go on.
    fn pump(&mut self, from: Side, io: &mut impl Io<Pipe = P, Buffer = B>) -> Result<(), Stop> {
        let stop_at = self.directions[from].moved_bytes.saturating_add(TURN_BYTES);
        // Bytes read from here on could reach nobody, and their sender would take the
        // acknowledgement for their delivery.
        if self.has_failed(!from) {
            return Ok(());
        }
        loop {
            // Held bytes first: those that a load reads come after them.
            self.flush(from, io)?;
            match self.directions[from].stage {
                Stage::Ended => return Ok(()),
                Stage::Ending => return self.pass_fin(from, io),
                Stage::Flowing if self.directions[from].moved_bytes >= stop_at => {
                    return Err(Stop::Spent);
                }
                Stage::Flowing => self.load(from, io)?,
            }
        }
    }

    /// Writes what the direction holds.
    fn flush(&mut self, from: Side, io: &mut impl Io<Pipe = P, Buffer = B>) -> Result<(), Stop> {
        let to = !from;
        loop {
            let Some(held) = &mut self.directions[from].held else {
                return Ok(());
            };
            if !self.ready[to].writable {
                return Err(Stop::Blocked);
            }
            let written = match &mut **held {
                Held::Copied { buffer, from } => io.write_held(to, buffer, *from),
                Held::Spliced { pipe, bytes } => io.empty(to, pipe, *bytes),
            };
            let written = self.wrote(to, written)?;
            self.directions[from].moved_bytes += written as u64;
            self.adapt_loads(from, written);
            self.release(from, written, io);
        }
    }

    /// Adapts the size of the next spliced loads to what the other side takes at once, of which this
    /// is the last.
    fn adapt_loads(&mut self, from: Side, written: usize) {
        let direction = &mut self.directions[from];
        if let Some(Held::Spliced { bytes, .. }) = direction.held.as_deref() {
            direction.halved = if written < *bytes {
                (direction.halved + 1).min(HALVED_MAX)
            } else {
                direction.halved.saturating_sub(1)
            };
        }
    }

    /// Subtracts `written` bytes from what the direction holds.
    fn release(&mut self, side: Side, written: usize, io: &mut impl Io<Pipe = P, Buffer = B>) {
        let held = &mut self.directions[side].held;
        let done = match held.as_deref_mut() {
            None => return,
            Some(Held::Copied { buffer, from }) => {
                *from += written;
                *from == buffer.as_ref().len()
            }
            Some(Held::Spliced { bytes, .. }) => {
                *bytes -= written;
                *bytes == 0
            }
        };
        if done
            && let Some(held) = held.take()
            && let Held::Spliced { pipe, .. } = *held
        {
            io.give_back(pipe);
        }
    }

    /// Reads the next load from `from`.
    fn load(&mut self, from: Side, io: &mut impl Io<Pipe = P, Buffer = B>) -> Result<(), Stop> {
        if !self.ready[from].readable {
            return Err(Stop::Blocked);
        }
        if self.directions[from].large
            && !self.ready[from].urgent
            && let Some(pipe) = io.lease()
        {
            return self.splice(from, pipe, io);
        }
        self.copy(from, io)
    }

    fn splice<I>(&mut self, from: Side, mut pipe: P, io: &mut I) -> Result<(), Stop>
    where
        I: Io<Pipe = P, Buffer = B>,
    {
        let most = SPLICE_BYTES >> self.directions[from].halved;
        let filled = io.fill(from, &mut pipe, most);
        // Zero is the end of the stream or urgent data; only a read can distinguish them.
        if matches!(filled, Ok(0)) {
            io.give_back(pipe);
            return self.copy(from, io);
        }
        match self.read_result(from, filled) {
            Ok(bytes) => {
                // Less than a copied load needs to count as large, so that a direction near the
                // bound does not change its way at every load.
                self.directions[from].large = bytes >= I::READ_BYTES / 4;
                self.directions[from].held = Some(Box::new(Held::Spliced { pipe, bytes }));
            }
            Err(stop) => {
                io.give_back(pipe);
                return Err(stop);
            }
        }
        Ok(())
    }

    fn copy<I>(&mut self, from: Side, io: &mut I) -> Result<(), Stop>
    where
        I: Io<Pipe = P, Buffer = B>,
    {
        let result = io.read(from);
        let read = self.read_result(from, result)?;
        self.directions[from].large = read >= I::READ_BYTES / 2;
        if read < I::READ_BYTES && self.ready[from].ends_with_a_short_read() {
            self.ready[from].readable = false;
        }
        let closes = read < I::READ_BYTES && self.ready[from].closes_with_a_short_read();
        // Linux sets RDHUP for a reset too, and then no FIN follows.
        let fin_follows =
            self.ready[from].ending && !self.ready[from].failed && self.failure.is_none();
        // At once, since the other side nearly always has room: keeping the load would cost an
        // allocation and a copy.
        let mut written = 0;
        while written < read && self.ready[!from].writable {
            let result = io.write(!from, written, read, fin_follows);
            match self.wrote(!from, result) {
                Ok(bytes) => {
                    written += bytes;
                    self.directions[from].moved_bytes += bytes as u64;
                }
                Err(Stop::Blocked) => break,
                Err(stop) => return Err(stop),
            }
        }
        if written < read {
            let buffer = io.keep(written, read);
            self.directions[from].held = Some(Box::new(Held::Copied { buffer, from: 0 }));
        } else if closes && self.failure.is_none() {
            self.directions[from].stage = Stage::Ending;
        }
        Ok(())
    }

    /// Records the end of the stream or of readiness.
    fn read_result(&mut self, from: Side, result: io::Result<usize>) -> Result<usize, Stop> {
        match result {
            Ok(0) => {
                let failure = self.failure.as_ref();
                let cut = failure.is_some_and(|failure| failure.cuts(from));
                self.directions[from].stage = if cut { Stage::Ended } else { Stage::Ending };
                Ok(0)
            }
            Ok(bytes) => Ok(bytes),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.ready[from].readable = false;
                Err(Stop::Blocked)
            }
            Err(error) => {
                // Linux reports an error behind all received bytes.
                self.directions[from].stage = Stage::Ended;
                Err(Stop::Failed(from, error))
            }
        }
    }

    fn wrote(&mut self, to: Side, result: io::Result<usize>) -> Result<usize, Stop> {
        match result {
            Ok(bytes) => Ok(bytes),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.ready[to].writable = false;
                Err(Stop::Blocked)
            }
            Err(error) => Err(Stop::Failed(to, error)),
        }
    }

    fn pass_fin(&mut self, from: Side, io: &mut impl Io<Pipe = P, Buffer = B>) -> Result<(), Stop> {
        let passed = io.finish(!from);
        // Also after an error: a second `shutdown` would return it again.
        self.directions[from].stage = Stage::Ended;
        self.closed.get_or_insert(!from);
        passed.map_err(|error| Stop::Failed(!from, error))
    }

    /// Checks whether a side has failed that the relay does not read from: because it has sent FIN,
    /// after which Linux reports errors to writers only, or because the relay holds bytes of it.
    fn probe(&mut self, side: Side, io: &mut impl Io<Pipe = P, Buffer = B>) -> Result<(), Stop> {
        // After our FIN every write fails.
        let fails = self.failure.is_none() && !self.ended(!side);
        if fails && std::mem::take(&mut self.ready[side].failed) {
            let result = io.write(side, 0, 0, false);
            self.wrote(side, result)?;
        }
        Ok(())
    }

    /// Ends a relay that has not finished. Returns the pipes that still contain bytes.
    pub fn into_pipes(self) -> impl Iterator<Item = P> {
        self.directions
            .0
            .into_iter()
            .filter_map(|direction| match *direction.held? {
                // Not to be used again: the next relay would send these bytes as its own.
                Held::Spliced { pipe, .. } => Some(pipe),
                Held::Copied { .. } => None,
            })
    }
}

#[cfg(test)]
mod fake;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
