// SPDX-License-Identifier: Apache-2.0
//! A relay between two fake connections.

use std::time::Duration;

use super::super::fake::{Kernel, Pipe};
use super::super::{Progress, Relay};
use super::LARGE;
use crate::outcome::Outcome;
use crate::side::Side::{self, Downstream, Upstream};

/// A relay between two fake connections.
pub(super) struct Pair {
    pub(super) kernel: Kernel,
    pub(super) relay: Relay<Pipe, Vec<u8>>,
    pub(super) now: Duration,
}

impl Pair {
    /// Just joined; each side takes `room` bytes before its peer acknowledges.
    pub(super) fn joined(room: usize) -> Self {
        let mut pair = Self {
            kernel: Kernel::new(room),
            relay: Relay::new(Duration::ZERO),
            now: Duration::ZERO,
        };
        assert_eq!(pair.turn(), Progress::Blocked);
        pair
    }

    /// After a large load in each direction.
    pub(super) fn splicing(room: usize) -> Self {
        let mut pair = Self::joined(LARGE);
        for side in Side::BOTH {
            pair.send(side, LARGE);
            assert_eq!(pair.turn(), Progress::Blocked);
            pair.drain(!side);
        }
        assert_eq!(pair.turn(), Progress::Blocked);
        assert_eq!(pair.kernel.spliced, 0);
        for side in Side::BOTH {
            pair.kernel.streams[side].room = room;
        }
        pair
    }

    /// Holds `bytes` from `side`, since the other took only `room`.
    pub(super) fn holding(side: Side, room: usize, bytes: usize) -> Self {
        let mut pair = Self::joined(room);
        pair.send(side, room + bytes);
        assert_eq!(pair.turn(), Progress::Blocked);
        assert_eq!(pair.kernel.held(side), bytes);
        pair
    }

    /// As [`Pair::holding`], but in a pipe.
    pub(super) fn holding_in_a_pipe(side: Side, room: usize, bytes: usize) -> Self {
        let mut pair = Self::splicing(room);
        pair.send(side, room + bytes);
        assert_eq!(pair.turn(), Progress::Blocked);
        assert_eq!(pair.kernel.held(side), bytes);
        assert_eq!(pair.kernel.leased, 1);
        pair
    }

    /// FIN came from `side` and was passed on.
    pub(super) fn half_closed(side: Side) -> Self {
        let mut pair = Self::joined(1000);
        pair.kernel.arrive_fin(side);
        assert_eq!(pair.turn(), Progress::Blocked);
        assert!(pair.kernel.streams[!side].fin_sent);
        pair
    }

    pub(super) fn send(&mut self, side: Side, bytes: usize) {
        self.kernel.arrive(side, bytes);
    }

    /// The peer on `side` acknowledges everything.
    pub(super) fn drain(&mut self, side: Side) {
        self.kernel.acknowledge(side, usize::MAX);
    }

    /// Gives the relay every pending event, and then one turn.
    pub(super) fn turn(&mut self) -> Progress {
        for side in Side::BOTH {
            if let Some(ready) = self.kernel.take_event(side) {
                self.relay.note(side, ready);
            }
        }
        self.relay.advance(&mut self.kernel, self.now)
    }

    /// Gives turns until the relay needs no other at once.
    pub(super) fn turns(&mut self) -> Progress {
        loop {
            match self.turn() {
                Progress::Again => {}
                step => return step,
            }
        }
    }

    pub(super) fn after(&mut self, millis: u64) {
        self.now += Duration::from_millis(millis);
    }

    /// Discards what an unfinished relay holds; all pipes are returned then.
    pub(super) fn close(mut self) {
        for pipe in self.relay.into_pipes() {
            self.kernel.discard(pipe);
        }
        assert_eq!(self.kernel.leased, 0);
    }
}

/// The outcome of a relay that this side has reset.
pub(super) fn reset(side: Side) -> Outcome {
    match side {
        Downstream => Outcome::DownstreamReset,
        Upstream => Outcome::UpstreamReset,
    }
}
