// SPDX-License-Identifier: Apache-2.0
//! One link: when to probe it, whether it is up, its round trip time and its loss. Pure: callers
//! pass events and the time.
//!
//! ```text
//!   unmeasured --answer--> up --5 probes and a handshake lost--> dead
//!       ^                   |  ^                                   |
//!       +---nothing for ----+  +-----3 answers or a handshake -----+
//!           three intervals
//! ```
//!
//! Probes are sent at intervals, from one source port after the other. A possible change (a lost
//! probe, a longer time than usual) is checked at once, ten times a second, within a budget.

use std::time::Duration;

use posthaste_relay::rng::Rng;
use posthaste_wire::header::NodeId;

use super::checks::Checks;
use super::flights::{Flight, Flights};
use super::series::News;
use super::window::{Estimate, Window};
use posthaste_config::Schedule;

/// Probes lost in a row after which a link is dead, if a handshake fails as well.
const DEAD_AFTER: u32 = 5;
/// Bounds on the duration of a handshake: the first SYN has a second, after which it would be
/// retransmitted.
const HANDSHAKE_MIN: Duration = Duration::from_secs(1);
const HANDSHAKE_MAX: Duration = Duration::from_secs(2);
/// Answers in a row after which a dead link is up again.
const ALIVE_AFTER: u32 = 3;
/// Bounds on the timeout of a probe, and its initial value.
const PATIENCE_MIN: Duration = Duration::from_millis(300);
const PATIENCE_MAX: Duration = Duration::from_secs(2);
const PATIENCE_FIRST: Duration = Duration::from_secs(1);
/// Longest interval of probes of a dead link.
const DEAD_INTERVAL: Duration = Duration::from_secs(2);
/// Interval of handshakes over a dead link.
const DEAD_HANDSHAKES: Duration = Duration::from_secs(10);
/// Interval between a failed handshake and the next, where UDP does not pass.
const HANDSHAKE_AGAIN: Duration = Duration::from_millis(500);
/// Failed handshakes in a row after which a link is dead where UDP does not pass.
const HANDSHAKES_FAILED: u32 = 2;
/// Interval until UDP is tried again where it did not pass: short at first, since the failure may
/// be, and doubling up to the second value.
const BLOCKED_FIRST: Duration = Duration::from_secs(1);
const BLOCKED_MAX: Duration = Duration::from_secs(30);
/// Validity of a measurement, in intervals.
const TTL_INTERVALS: u32 = 3;

/// The state of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Not measured, or the measurement has expired.
    Unmeasured,
    /// Answers arrive.
    Up,
    /// No answers arrive.
    Dead,
}

/// The next action of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Errand {
    /// Send a probe.
    Probe {
        /// The source port.
        port: u8,
        /// Its number at this port, from 0.
        sequence: u32,
    },
    /// Try a TCP handshake, and report the result.
    Handshake {
        /// Its timeout.
        within: Duration,
    },
}

/// Counts since the start of the measurements.
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
    /// The interval that the controller requests, if any.
    wanted: Option<Duration>,
    /// The validity of measurements before the interval became shorter, and until when it applies:
    /// the more frequent ones have yet to arrive.
    eased: Option<(Duration, Duration)>,
    /// Whether TCP passes and UDP does not.
    pub(super) blocked: bool,
    /// Interval until UDP is tried again.
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

/// The state of handshakes.
#[derive(Clone, Copy, Debug, Default)]
struct Handshake {
    due: Option<Duration>,
    pending: bool,
    /// The result of the last one since the link became suspect.
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

    /// The round trip time of the link, if it is valid.
    pub(super) fn estimate(&self, now: Duration) -> Option<Estimate> {
        (self.state == State::Up)
            .then(|| self.window.estimate(now, self.ttl_at(now)))
            .flatten()
    }

    /// Mean and mean deviation of the round trips, in microseconds.
    pub(super) fn smoothed_us(&self) -> Option<(u32, u32)> {
        self.window.smoothed_us()
    }

    /// Recently lost probes per million.
    pub(super) fn loss_ppm(&self) -> Option<u32> {
        self.flights.loss_ppm()
    }

    /// Sets whether flows use the link.
    pub(super) fn set_in_use(&mut self, in_use: bool, now: Duration, rng: &mut Rng) {
        let ttl = self.ttl();
        self.in_use = in_use;
        self.hurry(ttl, now, rng);
    }

    /// Replaces the schedule by one with as many ports.
    pub(super) fn set_schedule(&mut self, schedule: Schedule, now: Duration, rng: &mut Rng) {
        let ttl = self.ttl();
        self.schedule = schedule;
        self.hurry(ttl, now, rng);
    }

    /// Sets the interval that a controller requests; it is shorter while flows use the link.
    /// `None`: by the schedule.
    pub(super) fn set_wanted(&mut self, wanted: Option<Duration>, now: Duration, rng: &mut Rng) {
        let ttl = self.ttl();
        self.wanted = wanted;
        self.hurry(ttl, now, rng);
    }

    /// Measures soon, if the interval became shorter than when a measurement was valid for `ttl`.
    /// Existing measurements keep that validity until there are new ones.
    fn hurry(&mut self, ttl: Duration, now: Duration, rng: &mut Rng) {
        // A longer interval takes effect by itself, after the next probe.
        if self.ttl() >= ttl {
            return;
        }
        let next = now + part(self.interval(), rng);
        // Until the first measurement at the new interval must have arrived.
        self.eased = Some((ttl, next + PATIENCE_MAX));
        // Probes show nothing while UDP does not pass.
        if self.blocked {
            self.handshake.due = self.handshake.due.map(|due| due.min(next));
        } else {
            self.due = self.due.min(next);
        }
    }

    /// The next action; call again until there is none.
    pub(super) fn next_errand(&mut self, now: Duration, rng: &mut Rng) -> Option<Errand> {
        // First: a loss may bring a handshake forward, or end the link.
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
            // A part is random, so that nodes do not probe in step.
            let interval = self.probe_interval();
            self.due = now + interval * 3 / 4 + part(interval / 2, rng);
            // Used only while UDP does not pass, and reset when that begins.
            self.blocked_for = (self.blocked_for * 2).min(BLOCKED_MAX);
            // Losses of a dead link or of one without UDP do not show a lossy path.
            let counts = self.state == State::Up && !self.blocked;
            return Some(self.probe(self.next_port, counts, now));
        }
        // These do not count for the loss: they are sent because something was odd.
        let port = self.checks.take(now)?;
        Some(self.probe(port, false, now))
    }

    /// When the next action may be due.
    pub(super) fn deadline(&self) -> Duration {
        let handshake = self.handshake.due.filter(|_| !self.handshake.pending);
        // The link becomes unmeasured then, which is to be reported.
        let stale = (self.state == State::Up)
            .then(|| self.window.newest().map(|at| self.stale_at(at)))
            .flatten();
        let all = [self.flights.deadline(), self.checks.at(), handshake, stale];
        all.into_iter().flatten().fold(self.due, Duration::min)
    }

    /// A probe was answered, after `rtt` if known: an answer with invalid times still counts as an
    /// answer. Returns whether the probe was in flight.
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
        // One answer is enough: it shows that UDP passes again.
        let was_blocked = std::mem::take(&mut self.blocked);
        match self.state {
            // One answer may be chance: more are needed before flows come back.
            State::Dead if self.answered_in_a_row < ALIVE_AFTER => self.check_all(),
            State::Up if was_blocked => {
                // The next probe was put off while UDP did not pass.
                self.due = self.due.min(now + self.interval());
                self.check_all();
            }
            // The loss was a single one: the rest of the check is not needed.
            State::Up if was_in_doubt => self.checks.clear(),
            State::Up => {}
            // All ports, since what was measured before has expired.
            State::Unmeasured | State::Dead => {
                self.state = State::Up;
                self.check_all();
            }
        }
        if self.state == State::Up {
            self.handshake = Handshake {
                // A handshake in progress has yet to report its result.
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

    /// A probe was not sent, or the network reported that it did not arrive.
    pub(super) fn on_refused(&mut self, (port, sequence): (u8, u32), now: Duration) {
        if let Some(flight) = self.flights.sink(port, sequence) {
            self.on_lost(flight, now);
        }
    }

    /// The result of a handshake: its duration, or `None`.
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
            // The next one was scheduled above.
            None if self.state == State::Dead => {}
            None => {
                self.handshake.failed_in_a_row += 1;
                // Nothing else measures here, and one lost SYN does not mean a dead link.
                if self.blocked && self.handshake.failed_in_a_row < HANDSHAKES_FAILED {
                    self.handshake.due = Some(now + HANDSHAKE_AGAIN);
                } else if self.is_silent() {
                    self.die(now);
                }
            }
        }
    }

    /// A connection to the node measured a round trip at `at`.
    pub(super) fn on_hop(&mut self, rtt_us: u32, at: Duration, now: Duration) {
        // Does not bring a link up: probes and handshakes alone decide that.
        let news = self.window.on_hop(rtt_us, at);
        if self.state == State::Up {
            self.look_into(news, None, now);
        }
    }

    /// Another source reports that the node is down.
    pub(super) fn suspect(&mut self, now: Duration) {
        if self.blocked {
            self.handshake.due = Some(now);
        } else if self.state == State::Up {
            self.check_all();
        }
    }

    /// This host was stalled. Answers may be queued in its sockets.
    pub(super) fn on_stall(&mut self, now: Duration) {
        self.flights.extend(now + PATIENCE_MIN);
    }

    /// The interval of measurements by any means.
    pub(super) fn interval(&self) -> Duration {
        let wanted = self.wanted.unwrap_or(self.schedule.interval);
        if self.in_use {
            self.schedule.interval_in_use.min(wanted)
        } else {
            wanted
        }
    }

    /// The interval of probes.
    fn probe_interval(&self) -> Duration {
        match self.state {
            State::Dead => self.interval().min(DEAD_INTERVAL),
            _ if self.blocked => self.blocked_for,
            _ => self.interval(),
        }
    }

    /// The validity of a measurement.
    fn ttl(&self) -> Duration {
        // The answer to the last probe may take its whole timeout.
        self.interval() * TTL_INTERVALS + PATIENCE_MAX
    }

    /// The validity at a time.
    fn ttl_at(&self, now: Duration) -> Duration {
        let eased = self.eased.filter(|(_, until)| now < *until);
        let ttl = self.ttl();
        eased.map_or(ttl, |(before, _)| before.max(ttl))
    }

    /// When the newest measurement expires.
    fn stale_at(&self, newest: Duration) -> Duration {
        let usual = newest + self.ttl();
        let eased = self.eased.map(|(ttl, until)| until.min(newest + ttl));
        eased.map_or(usual, |eased| usual.max(eased))
    }

    fn patience(&self) -> Duration {
        // None again after the link was dead: times before that may be of another path.
        let Some((mean_us, deviation_us)) = self.window.smoothed_us() else {
            return PATIENCE_FIRST;
        };
        // As the retransmission timeout (RFC 6298 section 2.3), with one round trip more.
        let micros = 2 * u64::from(mean_us) + 4 * u64::from(deviation_us);
        Duration::from_micros(micros).clamp(PATIENCE_MIN, PATIENCE_MAX)
    }

    fn probe(&mut self, port: u8, counts: bool, now: Duration) -> Errand {
        // In turn: networks spread flows over several paths by their ports.
        self.next_port = (port + 1) % self.schedule.ports.max(1);
        let next = &mut self.sequences[usize::from(port)];
        // Starts at 0 for each session, here for each source port (RFC 8762 section 4.2.1).
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
            // Enough probes to decide, while the first one is pending.
            self.check_ports(flight.port + 1, DEAD_AFTER - 1);
        }
        let requested = self.handshake.pending || self.handshake.due.is_some();
        // One is enough: its result stands until a probe is answered.
        if self.handshake.passed.is_none() && !requested {
            // Cancelled if the next probe is answered meanwhile.
            self.handshake.due = Some(now + self.patience() / 2);
        }
        if self.is_silent() {
            match self.handshake.passed {
                // It may have been just before the node failed.
                Some(true) => self.go_on_by_handshakes(News::Odd, now),
                Some(false) => self.die(now),
                None => {}
            }
        }
    }

    /// Whether enough probes in a row were lost.
    fn is_silent(&self) -> bool {
        self.lost_in_a_row >= DEAD_AFTER
    }

    /// Probes are lost, but handshakes succeed.
    fn go_on_by_handshakes(&mut self, news: News, now: Duration) {
        if !self.blocked {
            // A filter drops UDP alone: flows over TCP do not see that as loss.
            self.flights.forget_last_losses();
            self.blocked_for = BLOCKED_FIRST;
            self.due = now + BLOCKED_FIRST;
        }
        self.blocked = true;
        self.state = State::Up;
        // Checks are probes over UDP, and would be lost.
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
        // Its path may be another when it is up again.
        self.window = Window::new(self.schedule.ports);
        self.flights.forget_last_losses();
        self.checks.clear();
        self.answered_in_a_row = 0;
        // A link that is measured rarely must still be found up again soon.
        self.due = self.due.min(now + DEAD_INTERVAL);
        self.handshake = Handshake {
            due: Some(now + DEAD_HANDSHAKES),
            ..Handshake::default()
        };
    }

    /// Checks a possible change: the port of the observation first, and the others once it is
    /// confirmed.
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

    /// Probes `count` ports out of schedule, from this one on.
    fn check_ports(&mut self, first: u8, count: u32) {
        // With fewer ports than probes each is used again.
        let ports = (0..self.schedule.ports).cycle();
        let ports = ports.skip(usize::from(first % self.schedule.ports));
        self.checks.set(ports.take(count as usize));
    }
}

/// A random part of a time.
fn part(whole: Duration, rng: &mut Rng) -> Duration {
    whole.mul_f64(f64::from(u32::try_from(rng.next() >> 32).unwrap_or(0)) / f64::from(u32::MAX))
}
