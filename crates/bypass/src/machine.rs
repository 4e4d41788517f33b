// SPDX-License-Identifier: Apache-2.0
//! The hand-over of a pair of connections: its phases, and the steps of user space.
//!
//! ```text
//! Relaying -> Clamping -> Overlap -> Direct
//!    ^___________|           |________|__> Dead (the relay's process ended, or the overlap did not)
//! ```

use crate::header::{before, later};

/// How far the TSval of direct segments is ahead of P's own, in milliseconds: segments of P that are
/// sent again or late must not push those that go direct out of an end's PAWS check.
pub const TS_SLACK: u32 = 1000;

/// Longest overlap, in milliseconds. An end whose RST was lost leaves a hole that nothing fills.
pub const DRAIN_LIMIT: u32 = 60_000;

/// How far the hand-over of a pair has come. One word for both directions: a segment that saw one
/// phase and its answer another would stall the flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Every segment is of a socket of the relay.
    Relaying,
    /// The relay keeps its receive windows small. It may still give up without effect.
    Clamping,
    /// The cuts are chosen: bytes below are the relay's, the others go direct. No way back.
    Overlap,
    /// Every segment goes direct; the relay closes its sockets silently.
    Direct,
    /// The relay's process ended while it clamped or in the overlap, or the overlap did not end:
    /// bytes that the relay acknowledged are lost.
    Dead,
}

/// One direction, from its sender X over the relay P to its receiver Y. Sequence numbers are X's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Direction {
    /// Added to X's sequence number, gives the one that Y knows.
    pub delta: u32,
    /// Added to X's TSval, gives the one that Y reads on direct segments: P's, plus [`TS_SLACK`].
    pub ts_delta: u32,
    /// End of the highest payload seen from X.
    pub seen: u32,
    /// First byte that is not P's. Valid from the overlap on.
    pub cut: u32,
    /// What P has acknowledged to X.
    pub relay_ack: u32,
    /// End of the highest segment that P has sent to Y: P's `snd_nxt`.
    pub relay_sent: u32,
    /// What Y has acknowledged.
    pub end_ack: u32,
    /// Highest right window edge promised to X.
    pub promised: u32,
    /// Highest right window edge that Y has advertised.
    pub edge: u32,
    /// Sequence number of X's FIN, where `has_fin`.
    pub fin: u32,
    /// X has sent a FIN.
    pub has_fin: bool,
    /// Window shift of X (RFC 7323).
    pub end_shift: u8,
    /// Window shift of P's socket towards X.
    pub relay_shift: u8,
}

impl Direction {
    /// A direction in which nothing was sent: `first` is the number of its first byte, `window`
    /// what P and Y both promise at first, in bytes.
    #[must_use]
    pub fn new(first: u32, delta: u32, window: u32, shifts: (u8, u8)) -> Self {
        Self {
            delta,
            ts_delta: 0,
            seen: first,
            cut: first,
            relay_ack: first,
            relay_sent: first,
            end_ack: first,
            promised: first.wrapping_add(window),
            edge: first.wrapping_add(window),
            fin: first,
            has_fin: false,
            end_shift: shifts.0,
            relay_shift: shifts.1,
        }
    }

    /// Y has everything that is P's.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        !before(self.end_ack, self.cut)
    }

    fn is_finished(&self) -> bool {
        self.has_fin && before(self.fin, self.end_ack)
    }
}

/// What the flow table stores for a pair that may be handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// How far the hand-over has come.
    pub phase: Phase,
    /// When a clamp or an overlap is given up, in milliseconds of the caller's clock.
    pub deadline: u32,
    /// An end has aborted the flow.
    pub reset: bool,
    /// By their sender.
    pub directions: [Direction; 2],
}

// The flow table's value has 256 bytes, of which the packet path's own fields need 128.
const _: () = assert!(size_of::<Pair>() <= 128);

/// What user space does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Relay as ever.
    Relay,
    /// Take the clamp off both sockets and relay as ever.
    GiveUp,
    /// Set or keep `TCP_WINDOW_CLAMP` on both sockets, and relay.
    Clamp,
    /// Read what is below the cuts, write it, and wait.
    Drain,
    /// Wait for segments on their way in the kernel, then close both sockets in repair mode:
    /// without FIN and RST.
    CloseSilently,
    /// Send [`Pair::probe`] to both ends until they are gone: the packet path resets them.
    ProbeEnds,
}

impl Pair {
    /// A pair that is relayed.
    #[must_use]
    pub fn new(directions: [Direction; 2]) -> Self {
        Self {
            phase: Phase::Relaying,
            deadline: 0,
            reset: false,
            directions,
        }
    }

    /// Begins a hand-over that is given up at `deadline`, unless an end has begun to close.
    pub fn start(&mut self, deadline: u32) {
        if self.phase == Phase::Relaying && !self.is_ending() {
            self.phase = Phase::Clamping;
            self.deadline = deadline;
        }
    }

    /// Advances the hand-over and returns what user space does. Called whenever the relay ran.
    pub fn step(&mut self, now: u32) -> Step {
        match self.phase {
            Phase::Relaying => Step::Relay,
            Phase::Clamping => self.try_cut(now),
            Phase::Overlap if self.reset || self.directions.iter().all(Direction::is_drained) => {
                self.phase = Phase::Direct;
                Step::CloseSilently
            }
            Phase::Overlap if before(now, self.deadline) => Step::Drain,
            Phase::Overlap => {
                self.phase = Phase::Dead;
                Step::ProbeEnds
            }
            Phase::Direct => Step::CloseSilently,
            Phase::Dead => Step::ProbeEnds,
        }
    }

    /// Reports that the relay's process has ended. Its sockets reset the ends where no cut was
    /// chosen yet, but an end refuses a RST that overtakes lost data, and then nobody repeats it.
    pub fn process_ended(&mut self) {
        if matches!(self.phase, Phase::Clamping | Phase::Overlap) {
            self.phase = Phase::Dead;
        }
    }

    /// Both FINs are acknowledged by the ends.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.directions.iter().all(Direction::is_finished)
    }

    fn is_ending(&self) -> bool {
        self.reset || self.directions.iter().any(|d| d.has_fin)
    }

    fn try_cut(&mut self, now: u32) -> Step {
        if self.is_ending() || !before(now, self.deadline) {
            self.phase = Phase::Relaying;
            return Step::GiveUp;
        }
        if self.directions.iter().any(|d| before(d.edge, d.promised)) {
            return Step::Clamp;
        }
        for direction in &mut self.directions {
            // P may have acknowledged no byte that the packet path did not see, but be safe.
            direction.cut = later(direction.seen, direction.relay_ack);
        }
        self.phase = Phase::Overlap;
        self.deadline = now.wrapping_add(DRAIN_LIMIT);
        Step::Drain
    }
}
