// SPDX-License-Identifier: Apache-2.0
//! Relays under many random schedules of bytes, FINs, resets, time and kills.
//!
//! The fake kernel checks every call. This checks after every turn how much is held, the counts,
//! and the deadline. When no event is left, nothing that could be done may be left undone (no lost
//! wake-up). At the end there is one outcome that has a cause, the other side has everything that
//! the failed side had sent, and no pipe is leased.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::time::Duration;

use super::fake::{Kernel, PIPE_BYTES, Pipe, SCRATCH_BYTES};
use super::{Bounds, LINGER_MS, Progress, Ready, Relay, TURN_BYTES};
use crate::outcome::Outcome;
use crate::side::Side::{self, Downstream, Upstream};
use posthaste_testkit::{Rng, simulate};

const SHORT_SCHEDULES: u64 = 100_000;
const LONG_SCHEDULES: u64 = 100;
/// Far more rounds than any schedule needs to settle.
const ROUNDS_MAX: usize = 100_000;

/// The parameters of a schedule.
struct Shape {
    steps: usize,
    /// Bytes a peer sends at most before the relay has read them.
    window: usize,
    /// Sizes that send buffers and pipes may have.
    rooms: &'static [usize],
    pipes: &'static [usize],
    /// Whether connections may die, and the relay be killed.
    health: bool,
}

impl Shape {
    fn short(rng: &mut Rng) -> Self {
        Self {
            steps: 4 + rng.below(60),
            window: rng.pick(&[1, 50, 1000, 20_000]),
            rooms: &[1, 9, 200, 5000, 100_000],
            pipes: &[40, 300, 4096, 65_536],
            health: !rng.once_in(3),
        }
    }

    /// Enough bytes at once for more than one turn.
    fn long(rng: &mut Rng) -> Self {
        Self {
            steps: 200,
            window: 12 << 20,
            rooms: &[50_000, 1 << 20, 16 << 20],
            pipes: &[65_536, PIPE_BYTES],
            health: rng.once_in(4),
        }
    }
}

/// What happened in a number of schedules.
#[derive(Default)]
struct Tally {
    outcomes: HashMap<Outcome, usize>,
    spliced: usize,
    turns_used_up: usize,
}

/// One relay on its way to one outcome.
struct Schedule {
    shape: Shape,
    rng: Rng,
    kernel: Kernel,
    relay: Relay<Pipe, Vec<u8>>,
    bounds: Bounds,
    now: Duration,
    /// When a byte or a FIN last moved.
    active: Duration,
    /// The relay needs another turn, at once or after a delay.
    again: bool,
    lingers: bool,
    turns_used_up: usize,
    outcome: Option<Outcome>,
}

impl Schedule {
    fn new(mut rng: Rng, shape: Shape) -> Self {
        let mut kernel = Kernel::new(0);
        for side in Side::BOTH {
            kernel.streams[side].room = rng.pick(shape.rooms);
        }
        kernel.pipe_bytes = rng.pick(shape.pipes);
        let bounds = Bounds {
            idle_ms: 100,
            client_fin_ms: 30,
            server_fin_ms: 50,
        };
        Self {
            relay: Relay::new(Duration::ZERO),
            shape,
            rng,
            kernel,
            bounds,
            now: Duration::ZERO,
            active: Duration::ZERO,
            again: false,
            lingers: false,
            turns_used_up: 0,
            outcome: None,
        }
    }

    fn run(mut self, tally: &mut Tally) {
        self.join();
        self.grow_old();
        self.kernel.whims = Some(Rng::new(self.rng.next()));
        for _ in 0..self.shape.steps {
            if self.outcome.is_none() {
                self.step();
            }
        }
        self.come_to_an_end();
        self.close(tally);
    }

    /// As the worker does it: the readiness of the upstream side is known, and the downstream side
    /// is tried.
    fn join(&mut self) {
        if let Some(ready) = self.kernel.take_event(Upstream) {
            self.relay.note(Upstream, ready);
        }
        let ready = Ready {
            readable: true,
            writable: true,
            ..Ready::default()
        };
        self.kernel.expect(Downstream, ready);
        self.relay.note(Downstream, ready);
        self.advance();
    }

    /// Gives some directions a large load.
    fn grow_old(&mut self) {
        let young = SCRATCH_BYTES / 2;
        for side in Side::BOTH {
            if self.rng.once_in(3) {
                let room = std::mem::replace(&mut self.kernel.streams[!side].room, 2 * young);
                self.kernel.arrive(side, young);
                self.settle();
                self.kernel.acknowledge(!side, usize::MAX);
                self.kernel.streams[!side].room = room;
            }
        }
    }

    fn step(&mut self) {
        let side = self.rng.pick(&Side::BOTH);
        match self.rng.below(32) {
            0..=6 => self.peer_sends(side),
            7..=12 => self.peer_acknowledges(side),
            13..=19 => self.take_event(side),
            20..=21 => self.take_both_events(),
            22..=23 => self.mislead(side),
            24 => self.peer_closes(side),
            25..=26 => self.wait(),
            27 => self.kernel.pipes_max = self.rng.below(3),
            28 if self.shape.health => self.misfortune(side),
            29 => self.settle(),
            _ if self.again || self.lingers => self.advance(),
            _ => {}
        }
    }

    fn silent(&self, side: Side) -> bool {
        let stream = &self.kernel.streams[side];
        stream.fin || stream.died.is_some()
    }

    fn peer_sends(&mut self, side: Side) {
        let urgent = self.rng.once_in(64);
        let left = self
            .shape
            .window
            .saturating_sub(self.kernel.streams[side].unread());
        if left > 0 && !self.silent(side) {
            let bytes = self.rng.part_of(left);
            self.kernel.arrive(side, bytes);
            if urgent {
                self.kernel.make_last_urgent(side);
            }
            if self.rng.once_in(2) {
                // Linux also reports bytes that come behind unread ones.
                self.kernel.poke(side);
            }
        }
    }

    fn peer_acknowledges(&mut self, side: Side) {
        let left = self.kernel.streams[side].unacknowledged();
        if left > 0 {
            let bytes = self.rng.part_of(left);
            self.kernel.acknowledge(side, bytes);
        }
    }

    fn peer_closes(&mut self, side: Side) {
        if !self.silent(side) {
            self.kernel.arrive_fin(side);
        }
    }

    fn take_event(&mut self, side: Side) {
        if let Some(ready) = self.kernel.take_event(side) {
            self.relay.note(side, ready);
            self.advance();
        }
    }

    fn take_both_events(&mut self) {
        for side in Side::BOTH {
            if let Some(ready) = self.kernel.take_event(side) {
                self.relay.note(side, ready);
            }
        }
        self.advance();
    }

    /// Reports readiness that may be false.
    fn mislead(&mut self, side: Side) {
        let ready = Ready {
            readable: self.rng.once_in(2),
            writable: self.rng.once_in(2),
            failed: self.rng.once_in(2),
            urgent: false,
            ending: false,
            edge_triggered: false,
        };
        self.kernel.expect(side, ready);
        self.relay.note(side, ready);
        if self.rng.once_in(2) {
            self.advance();
        }
    }

    fn misfortune(&mut self, side: Side) {
        match self.rng.below(8) {
            0 => self.outcome = Some(Outcome::Killed),
            1 => {
                let bytes = 1 + self.rng.below(self.shape.window);
                self.kernel.die_after(side, bytes);
            }
            kind if self.kernel.streams[side].died.is_none() => {
                let of = if kind == 2 {
                    ErrorKind::TimedOut
                } else {
                    ErrorKind::ConnectionReset
                };
                self.kernel.die(side, of);
            }
            _ => {}
        }
    }

    fn wait(&mut self) {
        let millis = match self.rng.below(8) {
            0 if self.kernel.failure.is_some() => self.rng.below(40_000),
            0 => self.rng.below(150),
            _ => self.rng.below(10),
        };
        self.now += Duration::from_millis(millis);
        let (bound, called) = self.patience();
        let due = self.now >= self.active + bound;
        let outcome = self.relay.on_time(self.now, &self.bounds);
        assert_eq!(outcome.is_some(), due);
        match outcome {
            Some(outcome) if self.kernel.failure.is_some() => self.check_cause(outcome),
            _ => assert_eq!(outcome, due.then_some(called)),
        }
        // The worker checks only now and then.
        if self.rng.once_in(2) {
            self.outcome = outcome;
        }
    }

    /// How long the relay may be quiet, by the FINs it has read.
    fn patience(&self) -> (Duration, Outcome) {
        let fins = Side::BOTH.map(|side| self.kernel.streams[side].eof);
        let (millis, called) = match fins {
            _ if self.kernel.failure.is_some() => (LINGER_MS, Outcome::Internal),
            [true, false] => (self.bounds.client_fin_ms, Outcome::ClientFinTimeout),
            [false, true] => (self.bounds.server_fin_ms, Outcome::ServerFinTimeout),
            _ => (self.bounds.idle_ms, Outcome::IdleTimeout),
        };
        (Duration::from_millis(millis.into()), called)
    }

    fn progress(&self) -> ([(usize, bool); 2], bool) {
        let moved = Side::BOTH.map(|side| {
            let stream = &self.kernel.streams[side];
            (stream.written, stream.eof)
        });
        (moved, self.kernel.failure.is_some())
    }

    /// Gives the relay a turn and checks what it did.
    fn advance(&mut self) {
        if self.rng.once_in(4) {
            self.kernel.spoil_scratch();
        }
        let before = self.progress();
        let step = self.relay.advance(&mut self.kernel, self.now);
        let after = self.progress();
        let late = self.kernel.failure.is_some() && self.relay.active() == self.now;
        if before != after || late {
            self.active = self.now;
        }
        self.again = step == Progress::Again;
        let turn = usize::try_from(TURN_BYTES).unwrap();
        let moved = [0, 1].map(|at| after.0[at].0 - before.0[at].0);
        assert!(moved.iter().all(|bytes| *bytes < turn + PIPE_BYTES));
        if self.again {
            self.turns_used_up += 1;
            let failed = after.1 != before.1;
            let used_up = moved.iter().any(|bytes| *bytes >= turn);
            assert!(used_up || failed, "not used up");
        }
        if let Progress::Done(outcome) = step {
            self.outcome = Some(outcome);
            self.check_cause(outcome);
            self.check_last_words();
        }
        self.lingers = step == Progress::Linger;
        if matches!(step, Progress::Blocked | Progress::Linger) {
            let forgotten = |side: &Side| self.kernel.waits(*side) && self.kernel.held(!*side) == 0;
            assert!(!Side::BOTH.iter().any(forgotten), "bytes wait for nothing");
        }
        self.check();
    }

    fn check(&self) {
        for side in Side::BOTH {
            let load = self.kernel.pipe_bytes.max(SCRATCH_BYTES);
            assert!(self.kernel.held(side) <= load, "more than a load is held");
            let written = self.kernel.streams[!side].written as u64;
            assert_eq!(self.relay.moved_from(side), written);
        }
        assert_eq!(self.relay.active(), self.active);
        assert_eq!(
            self.relay.deadline(&self.bounds),
            self.active + self.patience().0
        );
    }

    /// There was a reason for this outcome.
    fn check_cause(&self, outcome: Outcome) {
        let died = |side: Side| self.kernel.streams[side].died;
        // A FIN that cannot be passed on does not show how the side died, and no later call may
        // have reported it.
        let lost = |side: Side| {
            let stream = &self.kernel.streams[side];
            let untold = stream.error.is_some() || stream.eof;
            stream.died.is_some() && untold && self.kernel.streams[!side].eof
        };
        let reset = |side| died(side) == Some(ErrorKind::ConnectionReset) || lost(side);
        let silent = |side| died(side) == Some(ErrorKind::TimedOut);
        let justified = match outcome {
            Outcome::Finished => Side::BOTH.iter().all(|side| self.kernel.handed_over(*side)),
            Outcome::DownstreamReset => reset(Downstream),
            Outcome::UpstreamReset => reset(Upstream),
            Outcome::DownstreamTimeout => silent(Downstream),
            Outcome::UpstreamTimeout => silent(Upstream),
            _ => false,
        };
        assert!(
            justified,
            "{outcome:?} without a cause: {:?}",
            self.kernel.streams
        );
    }

    /// The remaining side has everything that the failed side had sent.
    fn check_last_words(&self) {
        let Some(side) = self.kernel.failure else {
            return;
        };
        let (from, to) = (&self.kernel.streams[side], &self.kernel.streams[!side]);
        if to.died.is_none() {
            assert_eq!(to.written, from.arrived, "bytes before a fault are lost");
            assert_eq!(to.unacknowledged(), 0, "the reset overtakes bytes");
            let is_reset = from.died == Some(ErrorKind::ConnectionReset);
            assert!(!from.fin || to.fin_sent || !is_reset, "FIN is lost");
        }
    }

    /// Lets the relay take events until none is left.
    fn settle(&mut self) {
        if self.lingers {
            self.advance();
        }
        for _ in 0..ROUNDS_MAX {
            let mut quiet = !self.again;
            if self.again {
                self.advance();
            }
            for side in Side::BOTH {
                self.kernel.acknowledge(side, 0);
                quiet &= !self.kernel.has_event(side);
                if self.outcome.is_none() {
                    self.take_event(side);
                }
            }
            if self.outcome.is_some() {
                return;
            }
            if quiet {
                return self.check_rest();
            }
        }
        panic!("the relay does not come to rest");
    }

    /// Nothing that could be done is left undone.
    fn check_rest(&self) {
        let failure = self.kernel.failure;
        for side in Side::BOTH
            .into_iter()
            .filter(|side| failure != Some(!*side))
        {
            let (from, to) = (&self.kernel.streams[side], &self.kernel.streams[!side]);
            if self.kernel.held(side) > 0 {
                assert!(!to.roomy(), "bytes are held although there is room");
                assert_eq!(to.died, None, "bytes are held for a dead side");
            } else {
                assert_eq!(from.unread(), 0, "bytes are left unread");
                assert!(!from.fin || from.eof, "FIN is left unread");
                let passed = to.fin_sent || to.died.is_some() || from.died.is_some();
                assert!(!from.fin || passed, "FIN is not passed on");
                let seen = from.died.is_none() || self.lingers;
                assert!(seen, "its death was not seen");
            }
        }
    }

    /// Both peers finish, with time and room for everything.
    fn come_to_an_end(&mut self) {
        for _ in 0..ROUNDS_MAX {
            if self.outcome.is_some() {
                return;
            }
            for side in Side::BOTH {
                self.kernel.streams[side].room = 1 << 20;
                self.kernel.acknowledge(side, usize::MAX);
                self.peer_closes(side);
            }
            self.settle();
        }
        panic!("the relay does not end");
    }

    fn close(mut self, tally: &mut Tally) {
        let outcome = self.outcome.expect("it has come to an end");
        *tally.outcomes.entry(outcome).or_default() += 1;
        tally.spliced += self.kernel.spliced;
        tally.turns_used_up += self.turns_used_up;
        for pipe in self.relay.into_pipes() {
            self.kernel.discard(pipe);
        }
        assert_eq!(self.kernel.leased, 0, "a pipe is out");
    }
}

// promise: I1, I8
#[test]
fn short_schedules() {
    let mut tally = Tally::default();
    simulate(SHORT_SCHEDULES, |mut rng| {
        let shape = Shape::short(&mut rng);
        Schedule::new(rng, shape).run(&mut tally);
    });
    let common = [
        Outcome::Finished,
        Outcome::DownstreamReset,
        Outcome::UpstreamReset,
        Outcome::DownstreamTimeout,
        Outcome::UpstreamTimeout,
        Outcome::IdleTimeout,
        Outcome::ClientFinTimeout,
        Outcome::ServerFinTimeout,
        Outcome::Killed,
    ];
    for outcome in common {
        let count = tally.outcomes.get(&outcome).copied().unwrap_or(0);
        assert!(count > 100, "{count} schedules ended as {outcome:?}");
    }
    assert!(tally.spliced > 1 << 20, "{} bytes spliced", tally.spliced);
}

// promise: I1
#[test]
fn long_schedules() {
    let mut tally = Tally::default();
    simulate(LONG_SCHEDULES, |mut rng| {
        let shape = Shape::long(&mut rng);
        Schedule::new(rng, shape).run(&mut tally);
    });
    let count = tally.turns_used_up;
    assert!(count > 10, "{count} turns were used up");
}
