// SPDX-License-Identifier: Apache-2.0
//! One link: when to probe it, whether it is there, how long it is and how much
//! it loses. Pure: told what happened and what time it is.
//!
//! ```text
//!   unmeasured --answer--> up --5 probes and a handshake lost--> dead
//!       ^                   |  ^                                   |
//!       +---nothing for ----+  +-----3 answers or a handshake -----+
//!           three intervals
//! ```
//!
//! Probes go out at intervals, from one source port after the other. What looks
//! like news (one that was lost, a time that is longer than usual) is checked
//! at once, ten times a second, within a budget.

use std::time::Duration;

use posthaste_relay::rng::Rng;
use posthaste_wire::header::NodeId;

use super::checks::Checks;
use super::flights::{Flight, Flights};
use super::series::News;
use super::window::{Estimate, Window};
use crate::config::Schedule;

/// Probes lost in a row that make a link dead, if a handshake fails as well.
const DEAD_AFTER: u32 = 5;
/// Bounds on how long a handshake may take: the first SYN has a second, by which its repetition would leave.
const HANDSHAKE_MIN: Duration = Duration::from_secs(1);
const HANDSHAKE_MAX: Duration = Duration::from_secs(2);
/// Answers in a row that bring a dead link back.
const ALIVE_AFTER: u32 = 3;
/// Bounds on how long an answer is waited for, and what it is at first.
const PATIENCE_MIN: Duration = Duration::from_millis(300);
const PATIENCE_MAX: Duration = Duration::from_secs(2);
const PATIENCE_FIRST: Duration = Duration::from_secs(1);
/// Between probes of a dead link, at the most.
const DEAD_INTERVAL: Duration = Duration::from_secs(2);
/// Between handshakes over a dead link.
const DEAD_HANDSHAKES: Duration = Duration::from_secs(10);
/// Between a handshake that failed and the next, where UDP does not pass.
const HANDSHAKE_AGAIN: Duration = Duration::from_millis(500);
/// Handshakes that fail in a row until a link is dead where UDP does not pass.
const HANDSHAKES_FAILED: u32 = 2;
/// Until UDP is tried again where it did not pass: at first, as it may have been
/// a short failure, and ever more rarely up to this.
const BLOCKED_FIRST: Duration = Duration::from_secs(1);
const BLOCKED_MAX: Duration = Duration::from_secs(30);
/// A measurement counts for so many intervals.
const TTL_INTERVALS: u32 = 3;

/// Whether a link is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Nothing is known, or nothing any more.
    Unmeasured,
    /// It is.
    Up,
    /// Nothing comes back over it.
    Dead,
}

/// What a link wants done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Errand {
    /// Send a probe.
    Probe {
        /// From this port.
        port: u8,
        /// Which the port counts from 0.
        sequence: u32,
    },
    /// Try a TCP handshake, and tell what came of it.
    Handshake {
        /// Then it has failed.
        within: Duration,
    },
}

/// Counts, since the link is measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) sent: u64,
    pub(crate) answered: u64,
    pub(crate) lost: u64,
    pub(crate) handshakes: u64,
}

/// One link, to one peer.
#[derive(Debug)]
pub(crate) struct Link {
    pub(super) peer: NodeId,
    schedule: Schedule,
    pub(super) state: State,
    pub(super) in_use: bool,
    /// How often the controller wants it measured, if it says.
    wanted: Option<Duration>,
    /// For how long a measurement counted before the interval became shorter, and until when that
    /// holds: those that are now due more often have yet to come.
    eased: Option<(Duration, Duration)>,
    /// TCP passes and UDP does not.
    pub(super) blocked: bool,
    /// Until UDP is tried again.
    blocked_for: Duration,
    pub(super) counts: Counts,
    window: Window,
    flights: Flights,
    /// By port, the number of its next probe.
    sequences: Vec<u32>,
    next_port: u8,
    checks: Checks,
    due: Duration,
    lost_in_a_row: u32,
    answered_in_a_row: u32,
    handshake: Handshake,
}

/// What of handshakes is under way.
#[derive(Clone, Copy, Debug, Default)]
struct Handshake {
    due: Option<Duration>,
    pending: bool,
    /// What came of the last one since the link is in doubt.
    passed: Option<bool>,
    failed_in_a_row: u32,
}

impl Link {
    /// A link to a node, which is probed first at `due`.
    pub(super) fn new(peer: NodeId, schedule: Schedule, due: Duration) -> Self {
        Self {
            peer,
            schedule,
            state: State::Unmeasured,
            in_use: false,
            wanted: None,
            eased: None,
            blocked: false,
            blocked_for: BLOCKED_FIRST,
            counts: Counts::default(),
            window: Window::new(schedule.ports),
            flights: Flights::default(),
            sequences: vec![0; usize::from(schedule.ports)],
            next_port: 0,
            checks: Checks::new(due),
            due,
            lost_in_a_row: 0,
            answered_in_a_row: 0,
            handshake: Handshake::default(),
        }
    }

    /// How long the link is, if that is known and counts.
    pub(super) fn estimate(&self, now: Duration) -> Option<Estimate> {
        (self.state == State::Up)
            .then(|| self.window.estimate(now, self.ttl_at(now)))
            .flatten()
    }

    /// Mean and mean deviation of the round trips, in microseconds.
    pub(super) fn smoothed_us(&self) -> Option<(u32, u32)> {
        self.window.smoothed_us()
    }

    /// Probes of a million that were lost, of late.
    pub(super) fn loss_ppm(&self) -> Option<u32> {
        self.flights.loss_ppm()
    }

    /// Flows use the link, or do not any more.
    pub(super) fn set_in_use(&mut self, in_use: bool, now: Duration, rng: &mut Rng) {
        let ttl = self.ttl();
        self.in_use = in_use;
        self.hurry(ttl, now, rng);
    }

    /// Another way of scheduling from now on, with as many ports.
    pub(super) fn set_schedule(&mut self, schedule: Schedule, now: Duration, rng: &mut Rng) {
        let ttl = self.ttl();
        self.schedule = schedule;
        self.hurry(ttl, now, rng);
    }

    /// It is to be measured so often, or more often while flows use it; nothing as the schedule says.
    pub(super) fn set_wanted(&mut self, wanted: Option<Duration>, now: Duration, rng: &mut Rng) {
        let ttl = self.ttl();
        self.wanted = wanted;
        self.hurry(ttl, now, rng);
    }

    /// Measures soon, if it is to be done more often than it was when a measurement counted for
    /// `ttl`. What is known counts as long as it did until there is more.
    fn hurry(&mut self, ttl: Duration, now: Duration, rng: &mut Rng) {
        if self.ttl() >= ttl {
            return;
        }
        let next = now + part(self.interval(), rng);
        self.eased = Some((ttl, next + PATIENCE_MAX));
        if self.blocked {
            self.handshake.due = self.handshake.due.map(|due| due.min(next));
        } else {
            self.due = self.due.min(next);
        }
    }

    /// What is to be done now; call again until it is nothing.
    pub(super) fn next_errand(&mut self, now: Duration, rng: &mut Rng) -> Option<Errand> {
        while let Some(flight) = self.flights.next_lost(now) {
            self.on_lost(flight, now);
        }
        if self.state == State::Up && self.estimate(now).is_none() {
            self.state = State::Unmeasured;
        }
        if self.handshake.due.is_some_and(|due| due <= now) && !self.handshake.pending {
            self.handshake.due = None;
            self.handshake.pending = true;
            self.counts.handshakes += 1;
            let within = (self.patience() * 3).clamp(HANDSHAKE_MIN, HANDSHAKE_MAX);
            return Some(Errand::Handshake { within });
        }
        if self.due <= now {
            // A quarter is left to chance, lest nodes probe in step.
            let interval = self.probe_interval();
            self.due = now + interval * 3 / 4 + part(interval / 2, rng);
            self.blocked_for = (self.blocked_for * 2).min(BLOCKED_MAX);
            let counts = self.state == State::Up && !self.blocked;
            return Some(self.probe(self.next_port, counts, now));
        }
        let port = self.checks.take(now)?;
        Some(self.probe(port, false, now))
    }

    /// When there may be something to do.
    pub(super) fn deadline(&self) -> Duration {
        let handshake = self.handshake.due.filter(|_| !self.handshake.pending);
        let stale = (self.state == State::Up)
            .then(|| self.window.newest().map(|at| self.stale_at(at)))
            .flatten();
        let all = [self.flights.deadline(), self.checks.at(), handshake, stale];
        all.into_iter().flatten().fold(self.due, Duration::min)
    }

    /// A probe was answered, after `rtt` if that is known: an answer whose
    /// times make no sense is an answer all the same. Returns whether one was
    /// waited for.
    pub(super) fn on_answer(
        &mut self,
        (port, sequence): (u8, u32),
        rtt_us: Option<u32>,
        now: Duration,
    ) -> bool {
        if self.flights.land(port, sequence).is_none() {
            return false;
        }
        self.counts.answered += 1;
        self.answered_in_a_row = self.answered_in_a_row.saturating_add(1);
        let was_in_doubt = std::mem::take(&mut self.lost_in_a_row) > 0;
        let was_blocked = std::mem::take(&mut self.blocked);
        match self.state {
            State::Dead if self.answered_in_a_row < ALIVE_AFTER => self.check_all(),
            State::Up if was_blocked => {
                self.due = self.due.min(now + self.interval());
                self.check_all();
            }
            State::Up if was_in_doubt => self.checks.clear(),
            State::Up => {}
            State::Unmeasured | State::Dead => {
                self.state = State::Up;
                self.check_all();
            }
        }
        if self.state == State::Up {
            self.handshake = Handshake {
                pending: self.handshake.pending,
                ..Handshake::default()
            };
        }
        if let Some(rtt_us) = rtt_us {
            let news = self.window.on_probe(port, rtt_us, now);
            self.look_into(news, Some(port), now);
        }
        true
    }

    /// A probe cannot have arrived: the network said so, or it was not sent.
    pub(super) fn on_refused(&mut self, (port, sequence): (u8, u32), now: Duration) {
        if let Some(flight) = self.flights.sink(port, sequence) {
            self.on_lost(flight, now);
        }
    }

    /// What came of a handshake: the time it took, or nothing.
    pub(super) fn on_handshake(&mut self, rtt_us: Option<u32>, now: Duration) {
        self.handshake.pending = false;
        self.handshake.passed = Some(rtt_us.is_some());
        if self.state == State::Dead {
            self.handshake.due = Some(now + DEAD_HANDSHAKES);
        }
        match rtt_us {
            Some(rtt_us) => {
                self.handshake.failed_in_a_row = 0;
                let news = self.window.on_handshake(rtt_us, now);
                if self.is_silent() {
                    self.go_on_by_handshakes(news, now);
                }
            }
            None if self.state == State::Dead => {}
            None => {
                self.handshake.failed_in_a_row += 1;
                if self.blocked && self.handshake.failed_in_a_row < HANDSHAKES_FAILED {
                    self.handshake.due = Some(now + HANDSHAKE_AGAIN);
                } else if self.is_silent() {
                    self.die(now);
                }
            }
        }
    }

    /// A connection to the node took so long for a round trip, at `at`.
    pub(super) fn on_hop(&mut self, rtt_us: u32, at: Duration, now: Duration) {
        let news = self.window.on_hop(rtt_us, at);
        if self.state == State::Up {
            self.look_into(news, None, now);
        }
    }

    /// Somebody else says that the node is not there.
    pub(super) fn suspect(&mut self, now: Duration) {
        if self.blocked {
            self.handshake.due = Some(now);
        } else if self.state == State::Up {
            self.check_all();
        }
    }

    /// This host did nothing for a while, whatever was due. Answers may wait
    /// in its sockets.
    pub(super) fn on_stall(&mut self, now: Duration) {
        self.flights.extend(now + PATIENCE_MIN);
    }

    /// How often the link is to be measured, by whatever means.
    pub(super) fn interval(&self) -> Duration {
        let wanted = self.wanted.unwrap_or(self.schedule.interval);
        if self.in_use {
            self.schedule.interval_in_use.min(wanted)
        } else {
            wanted
        }
    }

    /// Between probes.
    fn probe_interval(&self) -> Duration {
        match self.state {
            State::Dead => self.interval().min(DEAD_INTERVAL),
            _ if self.blocked => self.blocked_for,
            _ => self.interval(),
        }
    }

    /// How long a measurement counts.
    fn ttl(&self) -> Duration {
        self.interval() * TTL_INTERVALS + PATIENCE_MAX
    }

    /// The same, at a time.
    fn ttl_at(&self, now: Duration) -> Duration {
        let eased = self.eased.filter(|(_, until)| now < *until);
        let ttl = self.ttl();
        eased.map_or(ttl, |(before, _)| before.max(ttl))
    }

    /// When the newest measurement counts no more.
    fn stale_at(&self, newest: Duration) -> Duration {
        let usual = newest + self.ttl();
        let eased = self.eased.map(|(ttl, until)| until.min(newest + ttl));
        eased.map_or(usual, |eased| usual.max(eased))
    }

    fn patience(&self) -> Duration {
        let Some((mean_us, deviation_us)) = self.window.smoothed_us() else {
            return PATIENCE_FIRST;
        };
        let micros = 2 * u64::from(mean_us) + 4 * u64::from(deviation_us);
        Duration::from_micros(micros).clamp(PATIENCE_MIN, PATIENCE_MAX)
    }

    fn probe(&mut self, port: u8, counts: bool, now: Duration) -> Errand {
        self.next_port = (port + 1) % self.schedule.ports.max(1);
        let next = &mut self.sequences[usize::from(port)];
        let sequence = *next;
        *next = next.wrapping_add(1);
        self.counts.sent += 1;
        self.flights.add(Flight {
            port,
            sequence,
            sent: now,
            deadline: now + self.patience(),
            counts,
        });
        Errand::Probe { port, sequence }
    }

    fn on_lost(&mut self, flight: Flight, now: Duration) {
        self.counts.lost += 1;
        self.answered_in_a_row = 0;
        self.lost_in_a_row = self.lost_in_a_row.saturating_add(1);
        if self.state == State::Dead || self.blocked {
            return;
        }
        if self.lost_in_a_row == 1 {
            // All that it takes to be certain, while the first of them is waited for.
            self.check_ports(flight.port + 1, DEAD_AFTER - 1);
        }
        let requested = self.handshake.pending || self.handshake.due.is_some();
        if self.handshake.passed.is_none() && !requested {
            // Unless the next probe is answered meanwhile.
            self.handshake.due = Some(now + self.patience() / 2);
        }
        if self.is_silent() {
            match self.handshake.passed {
                // It may have been just before the node went.
                Some(true) => self.go_on_by_handshakes(News::Odd, now),
                Some(false) => self.die(now),
                None => {}
            }
        }
    }

    /// As many probes were lost as it takes.
    fn is_silent(&self) -> bool {
        self.lost_in_a_row >= DEAD_AFTER
    }

    /// Probes are lost, handshakes are not.
    fn go_on_by_handshakes(&mut self, news: News, now: Duration) {
        if !self.blocked {
            self.flights.forget_last_losses();
            self.blocked_for = BLOCKED_FIRST;
            self.due = now + BLOCKED_FIRST;
        }
        self.blocked = true;
        self.state = State::Up;
        self.checks.clear();
        let wait = if news == News::Usual {
            self.interval()
        } else {
            self.interval().min(HANDSHAKE_AGAIN)
        };
        self.handshake.due = Some(now + wait);
    }

    fn die(&mut self, now: Duration) {
        self.state = State::Dead;
        self.blocked = false;
        self.window = Window::new(self.schedule.ports);
        self.flights.forget_last_losses();
        self.checks.clear();
        self.answered_in_a_row = 0;
        self.due = self.due.min(now + DEAD_INTERVAL);
        self.handshake = Handshake {
            due: Some(now + DEAD_HANDSHAKES),
            ..Handshake::default()
        };
    }

    /// Checks what looks new: the port again that it was seen at, and the
    /// others when it is certain.
    fn look_into(&mut self, news: News, port: Option<u8>, now: Duration) {
        match (news, port) {
            (News::Usual, _) => {}
            (News::Odd, Some(port)) => self.checks.again(port, now),
            _ => self.check_all(),
        }
    }

    fn check_all(&mut self) {
        self.check_ports(self.next_port, self.schedule.ports.into());
    }

    /// Has so many ports probed out of turn, from this one on.
    fn check_ports(&mut self, first: u8, count: u32) {
        let ports = (0..self.schedule.ports).cycle();
        let ports = ports.skip(usize::from(first % self.schedule.ports));
        self.checks.set(ports.take(count as usize));
    }
}

/// Any part of a time.
fn part(whole: Duration, rng: &mut Rng) -> Duration {
    whole.mul_f64(f64::from(u32::try_from(rng.next() >> 32).unwrap_or(0)) / f64::from(u32::MAX))
}
