// SPDX-License-Identifier: Apache-2.0
//! A kernel for relays under test: two TCP connections, a pool of pipes.
//!
//! It behaves as Linux does where a relay could notice: edge-triggered events that are sampled when
//! they are taken; room reported only to a writer that was refused, and only when a third of the
//! buffer is free. After a reset, received bytes are still readable, a FIN received before hides
//! the error from readers, and `shutdown` returns `ENOTCONN`. Urgent bytes are in line; a read
//! stops before them, and splicing does not get past them.
//! read stops before them, and splicing does not get past them.
//! It checks the invariants at every call: bytes arrive in order, once, and unchanged; nothing is
//! read while bytes are held; FIN is sent once, behind all bytes; nothing is written to a failed
//! side nor read for it; pipes return empty.
//! for it; pipes come back empty.

use std::io::{self, ErrorKind};
use std::sync::LazyLock;

use super::{Io, Ready};
use crate::side::{Side, Sides};
use posthaste_testkit::Rng;

/// The most a copy moves at once: less than in the worker, so that much is spliced.
pub(super) const SCRATCH_BYTES: usize = 4 << 10;
/// The largest pipe.
pub(super) const PIPE_BYTES: usize = 1 << 20;
/// Period of the content of a stream, in bytes.
const PERIOD_BYTES: usize = 1 << 20;

/// The bytes `from..from + bytes` of the stream from `side`.
fn content(side: Side, from: usize, bytes: usize) -> &'static [u8] {
    static NOISE: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let mut rng = Rng::new(0);
        let words = (0..PERIOD_BYTES / 8).map(|_| rng.next().to_le_bytes());
        words.collect::<Vec<_>>().concat().repeat(2)
    });
    let salt = side as usize * 4099;
    let start = (from + salt) % PERIOD_BYTES;
    &NOISE[start..start + bytes]
}

/// One TCP connection, seen from the relay.
#[derive(Debug)]
pub(super) struct Stream {
    /// Bytes that came from the peer, and whether its FIN came behind them.
    pub(super) arrived: usize,
    pub(super) fin: bool,
    /// The last urgent byte, until it is read.
    urgent: Option<usize>,
    /// Bytes that the relay has read, and whether it has read the end.
    pub(super) read: usize,
    pub(super) eof: bool,
    /// Whether a call reported the failure to the relay, and whether a read did.
    reported_death: bool,
    readers_learn: bool,
    /// Size of the send buffer, bytes written by the relay, bytes acknowledged.
    pub(super) room: usize,
    pub(super) written: usize,
    pub(super) acknowledged: usize,
    pub(super) fin_sent: bool,
    /// How the connection died.
    pub(super) died: Option<ErrorKind>,
    /// It dies when it has taken this many bytes.
    dies_at: Option<usize>,
    /// The error to report, once.
    pub(super) error: Option<ErrorKind>,
    /// A writer was refused and waits for room.
    out_of_files: bool,
    /// An event is pending.
    event: bool,
    /// The last bytes written wait for those that were announced to follow.
    waiting: bool,
    /// The readiness reported to the relay since a call was refused.
    pub(super) reported: Ready,
}

impl Stream {
    fn new(room: usize) -> Self {
        Self {
            arrived: 0,
            fin: false,
            urgent: None,
            read: 0,
            eof: false,
            reported_death: false,
            readers_learn: false,
            room,
            written: 0,
            acknowledged: 0,
            fin_sent: false,
            died: None,
            dies_at: None,
            error: None,
            out_of_files: false,
            event: true,
            waiting: false,
            reported: Ready::default(),
        }
    }

    pub(super) fn unread(&self) -> usize {
        self.arrived - self.read
    }

    pub(super) fn unacknowledged(&self) -> usize {
        self.written - self.acknowledged
    }

    fn free(&self) -> usize {
        self.room - self.unacknowledged()
    }

    /// Whether the relay can know that nothing more arrives: it has read the end, or it got the
    /// event and has read all bytes.
    fn has_ended(&self) -> bool {
        self.eof || (self.fin && self.reported.ending && self.unread() == 0)
    }

    /// Linux reports room when a third of the buffer is free.
    pub(super) fn roomy(&self) -> bool {
        self.free() * 3 >= self.room
    }

    fn sample(&mut self) -> Ready {
        let writable = self.died.is_some() || self.fin_sent || self.roomy();
        self.out_of_files |= !writable;
        Ready {
            readable: self.unread() > 0 || self.fin || self.died.is_some(),
            writable,
            failed: self.died.is_some() || (self.fin && self.fin_sent),
            urgent: self.urgent.is_some(),
            ending: self.fin || self.died.is_some(),
            edge_triggered: true,
        }
    }

    /// Bytes to read now; zero at the end.
    fn readable(&mut self) -> io::Result<usize> {
        if self.unread() > 0 {
            return Ok(self.unread());
        }
        if !self.fin {
            if let Some(error) = self.error.take() {
                return Err(error.into());
            }
            if self.died.is_none() {
                return Err(ErrorKind::WouldBlock.into());
            }
        }
        self.eof = true;
        Ok(0)
    }

    /// Bytes that can be written now.
    fn writable(&mut self) -> io::Result<usize> {
        if self.died.is_some() || self.fin_sent {
            let error = self.error.take().unwrap_or(ErrorKind::BrokenPipe);
            return Err(error.into());
        }
        if self.free() == 0 {
            self.out_of_files = true;
            return Err(ErrorKind::WouldBlock.into());
        }
        Ok(self.free())
    }
}

/// A pipe, its content, and how much of that was taken out.
#[derive(Debug, Default)]
pub(super) struct Pipe {
    content: Vec<u8>,
    taken: usize,
}

impl Pipe {
    fn left(&self) -> &[u8] {
        &self.content[self.taken..]
    }
}

/// The kernel, and the worker's part of [`Io`].
#[derive(Debug)]
pub(super) struct Kernel {
    pub(super) streams: Sides<Stream>,
    scratch: Vec<u8>,
    /// How much of the scratch is in use.
    loaded: usize,
    pub(super) pipe_bytes: usize,
    /// Pipes that may be leased, and those that are.
    pub(super) pipes_max: usize,
    pub(super) leased: usize,
    /// Bytes that went through pipes.
    pub(super) spliced: usize,
    /// If set, calls move less than they could.
    pub(super) whims: Option<Rng>,
    /// Calls that read or wrote.
    pub(super) calls: usize,
    /// The side whose failure the relay got first.
    pub(super) failure: Option<Side>,
}

impl Kernel {
    /// Two open connections whose send buffers have this much room.
    pub(super) fn new(room: usize) -> Self {
        Self {
            streams: Sides([Stream::new(room), Stream::new(room)]),
            scratch: vec![0; SCRATCH_BYTES],
            loaded: 0,
            pipe_bytes: PIPE_BYTES,
            pipes_max: 2,
            leased: 0,
            spliced: 0,
            whims: None,
            calls: 0,
            failure: None,
        }
    }

    /// Bytes arrive from the peer on `side`.
    pub(super) fn arrive(&mut self, side: Side, bytes: usize) {
        let stream = &mut self.streams[side];
        assert!(!stream.fin && stream.died.is_none(), "the peer is silent");
        stream.event |= stream.unread() == 0 && bytes > 0;
        stream.arrived += bytes;
    }

    /// The byte that came last is urgent.
    pub(super) fn make_last_urgent(&mut self, side: Side) {
        let stream = &mut self.streams[side];
        assert!(stream.unread() > 0, "nothing to be urgent");
        stream.urgent = Some(stream.arrived - 1);
        stream.event = true;
    }

    /// The peer's FIN arrives.
    pub(super) fn arrive_fin(&mut self, side: Side) {
        let stream = &mut self.streams[side];
        assert!(!stream.fin && stream.died.is_none(), "the peer is silent");
        stream.fin = true;
        stream.event = true;
    }

    /// The connection dies: of a reset, or because the peer fell silent.
    pub(super) fn die(&mut self, side: Side, of: ErrorKind) {
        let stream = &mut self.streams[side];
        // Linux calls a reset behind a FIN a broken pipe.
        let closing = stream.fin && !stream.fin_sent && of == ErrorKind::ConnectionReset;
        stream.died = Some(of);
        stream.error = Some(if closing { ErrorKind::BrokenPipe } else { of });
        stream.event = true;
    }

    /// The connection is reset by the peer when it has taken `bytes` more.
    pub(super) fn die_after(&mut self, side: Side, bytes: usize) {
        let stream = &mut self.streams[side];
        stream.dies_at = Some(stream.written + bytes);
    }

    /// The peer acknowledges bytes, or memory has become free (zero bytes).
    pub(super) fn acknowledge(&mut self, side: Side, bytes: usize) {
        let stream = &mut self.streams[side];
        stream.acknowledged += bytes.min(stream.unacknowledged());
        if stream.out_of_files && stream.roomy() {
            stream.out_of_files = false;
            stream.event = true;
        }
    }

    /// Raises an event whether or not there is a reason.
    pub(super) fn poke(&mut self, side: Side) {
        self.streams[side].event = true;
    }

    pub(super) fn has_event(&self, side: Side) -> bool {
        self.streams[side].event
    }

    /// Takes the pending event of `side`.
    pub(super) fn take_event(&mut self, side: Side) -> Option<Ready> {
        let stream = &mut self.streams[side];
        let ready = std::mem::take(&mut stream.event).then(|| stream.sample());
        self.expect(side, ready.unwrap_or_default());
        ready
    }

    /// Records that `side` was reported ready to the relay, true or not.
    pub(super) fn expect(&mut self, side: Side, ready: Ready) {
        let reported = &mut self.streams[side].reported;
        reported.readable |= ready.readable;
        reported.writable |= ready.writable;
        reported.failed |= ready.failed;
        reported.urgent |= ready.urgent;
        reported.ending |= ready.ending;
        reported.edge_triggered |= ready.edge_triggered;
    }

    /// Bytes read from `side` and not written to the other.
    pub(super) fn held(&self, side: Side) -> usize {
        self.streams[side].read - self.streams[!side].written
    }

    /// Whether bytes wait in the socket of `side` for those announced to follow.
    pub(super) fn waits(&self, side: Side) -> bool {
        self.streams[side].waiting
    }

    /// Every byte and the FIN of `side` have been handed over.
    pub(super) fn handed_over(&self, side: Side) -> bool {
        let (from, to) = (&self.streams[side], &self.streams[!side]);
        from.fin && to.fin_sent && to.written == from.arrived
    }

    /// Takes a pipe that still has bytes in it.
    pub(super) fn discard(&mut self, pipe: Pipe) {
        assert!(!pipe.left().is_empty(), "an empty pipe is given back");
        self.leased -= 1;
    }

    /// Another relay of the worker had its turn.
    pub(super) fn spoil_scratch(&mut self) {
        self.scratch[..self.loaded].fill(0);
        self.loaded = 0;
    }

    /// A part of what a call could move.
    fn part(&mut self, bytes: usize) -> usize {
        match &mut self.whims {
            Some(rng) => rng.part_of(bytes),
            None => bytes,
        }
    }

    /// The relay is about to write to `side`.
    fn check_alive(&mut self, side: Side) {
        self.calls += 1;
        let reported = self.streams[side].reported_death;
        assert!(!reported, "the relay writes to a side that failed");
    }

    fn note_failure<T>(&mut self, side: Side, result: io::Result<T>) -> io::Result<T> {
        let failure = |error: &io::Error| error.kind() != ErrorKind::WouldBlock;
        if result.as_ref().is_err_and(failure) {
            self.streams[side].reported_death = true;
            // After an error the relay knows that there is an end to be read.
            self.streams[side].reported.readable = true;
            self.failure.get_or_insert(side);
        }
        result
    }

    /// Reads at most `limit` bytes from `side`.
    fn take(&mut self, side: Side, limit: usize) -> io::Result<&'static [u8]> {
        self.calls += 1;
        assert!(
            !self.streams[side].readers_learn,
            "it reads on after a fault"
        );
        assert!(
            !self.streams[!side].reported_death,
            "it reads for a dead side"
        );
        assert_eq!(self.held(side), 0, "it reads while it holds bytes");
        let stream = &mut self.streams[side];
        assert!(!stream.eof, "it reads past the end");
        assert!(stream.reported.readable, "it tries again for no reason");
        let readable = stream.readable();
        stream.reported.readable = readable.is_ok();
        let readable = self.note_failure(side, readable);
        self.streams[side].readers_learn = self.streams[side].reported_death && readable.is_err();
        let readable = readable?;
        let stream = &self.streams[side];
        let calm = match stream.urgent {
            Some(at) if at > stream.read => at - stream.read,
            _ => usize::MAX,
        };
        let bytes = match readable.min(limit).min(calm) {
            0 => 0,
            most => self.part(most),
        };
        let stream = &mut self.streams[side];
        stream.read += bytes;
        stream.urgent.take_if(|at| *at < stream.read);
        Ok(content(side, stream.read - bytes, bytes))
    }

    /// Writes bytes to `side`; returns how many it took.
    fn put(&mut self, side: Side, bytes: &[u8]) -> io::Result<usize> {
        self.check_alive(side);
        let writable = self.streams[side].writable();
        if bytes.is_empty() {
            let blocked = |error: &io::Error| error.kind() == ErrorKind::WouldBlock;
            let alive = writable.as_ref().err().is_none_or(blocked);
            return if alive {
                Ok(0)
            } else {
                self.note_failure(side, writable)
            };
        }
        let writable = self.run_short(side, writable);
        let stream = &mut self.streams[side];
        assert!(stream.reported.writable, "it tries again for no reason");
        stream.reported.writable = writable.is_ok();
        let most = stream.dies_at.map_or(usize::MAX, |at| at - stream.written);
        let writable = self.note_failure(side, writable)?;
        let taken = self.part(writable.min(bytes.len()).min(most));
        let stream = &mut self.streams[side];
        stream.waiting = false;
        let wanted = content(!side, stream.written, taken);
        assert!(bytes[..taken] == *wanted, "bytes are lost or out of order");
        stream.written += taken;
        if stream.dies_at == Some(stream.written) {
            self.die(side, ErrorKind::ConnectionReset);
        }
        Ok(taken)
    }

    /// Sometimes there is no memory for a moment.
    fn run_short(&mut self, side: Side, writable: io::Result<usize>) -> io::Result<usize> {
        let short = self.whims.as_mut().is_some_and(|rng| rng.once_in(16));
        if short && writable.is_ok() {
            self.streams[side].out_of_files = true;
            return Err(ErrorKind::WouldBlock.into());
        }
        writable
    }
}

impl Io for Kernel {
    type Pipe = Pipe;
    type Buffer = Vec<u8>;
    const READ_BYTES: usize = SCRATCH_BYTES;

    fn read(&mut self, side: Side) -> io::Result<usize> {
        // A read returns everything, so it ignores the whims.
        let whims = self.whims.take();
        let bytes = self.take(side, SCRATCH_BYTES);
        self.whims = whims;
        let bytes = bytes?;
        let reported = &mut self.streams[side].reported;
        reported.readable &= bytes.len() == SCRATCH_BYTES || !reported.ends_with_a_short_read();
        self.scratch[..bytes.len()].copy_from_slice(bytes);
        self.loaded = bytes.len();
        Ok(bytes.len())
    }

    fn write(&mut self, side: Side, from: usize, to: usize, more: bool) -> io::Result<usize> {
        assert!(to <= self.loaded, "the scratch holds less");
        let scratch = std::mem::take(&mut self.scratch);
        let result = self.put(side, &scratch[from..to]);
        self.scratch = scratch;
        self.streams[side].waiting |= more && matches!(result, Ok(1..));
        result
    }

    fn keep(&mut self, from: usize, to: usize) -> Vec<u8> {
        assert!(from < to && to <= self.loaded, "nothing to keep");
        self.scratch[from..to].to_vec()
    }

    fn write_held(&mut self, side: Side, kept: &Vec<u8>, from: usize) -> io::Result<usize> {
        self.put(side, &kept[from..])
    }

    fn lease(&mut self) -> Option<Pipe> {
        if self.leased >= self.pipes_max {
            return None;
        }
        self.leased += 1;
        Some(Pipe::default())
    }

    fn give_back(&mut self, pipe: Pipe) {
        assert!(pipe.left().is_empty(), "bytes are lost in a pipe");
        self.leased -= 1;
    }

    fn fill(&mut self, side: Side, pipe: &mut Pipe, most: usize) -> io::Result<usize> {
        assert!(pipe.content.is_empty(), "the pipe is in use");
        let stream = &mut self.streams[side];
        if stream.urgent == Some(stream.read) {
            return if stream.fin {
                Ok(0)
            } else {
                stream.reported.readable = false;
                Err(ErrorKind::WouldBlock.into())
            };
        }
        let bytes = self.take(side, self.pipe_bytes.min(most))?;
        if bytes.is_empty() {
            // Only a read reports the end of the stream reliably.
            self.streams[side].eof = false;
            self.streams[side].reported.readable = true;
        }
        pipe.content.extend_from_slice(bytes);
        self.spliced += bytes.len();
        Ok(bytes.len())
    }

    fn empty(&mut self, side: Side, pipe: &mut Pipe, bytes: usize) -> io::Result<usize> {
        assert_eq!(bytes, pipe.left().len(), "miscounted");
        let taken = self.put(side, pipe.left())?;
        pipe.taken += taken;
        Ok(taken)
    }

    fn finish(&mut self, side: Side) -> io::Result<()> {
        self.check_alive(side);
        assert!(self.streams[!side].has_ended(), "FIN is passed on unseen");
        self.streams[!side].eof = true;
        assert_eq!(self.held(!side), 0, "FIN overtakes bytes");
        let stream = &mut self.streams[side];
        assert!(!stream.fin_sent, "FIN is sent twice");
        stream.waiting = false;
        if stream.died.is_some() {
            return self.note_failure(side, Err(ErrorKind::NotConnected.into()));
        }
        stream.fin_sent = true;
        Ok(())
    }

    fn unacknowledged(&mut self, side: Side) -> bool {
        let stream = &self.streams[side];
        stream.died.is_none() && stream.unacknowledged() > 0
    }
}
