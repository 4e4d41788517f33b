// SPDX-License-Identifier: Apache-2.0
//! Probes of one link in flight, and the loss among them. Pure.

use std::collections::VecDeque;
use std::time::Duration;

/// Bound on probes in flight.
const FLIGHTS_MAX: usize = 64;
/// How long the answer of a probe that was given up is still accepted.
const LATE_MAX: Duration = Duration::from_secs(5);
/// Bounds on the probes that count for the loss, by number and age.
const OUTCOMES_MAX: usize = 128;
const OUTCOMES_AGE: Duration = Duration::from_secs(600);
/// Fewer give no loss figure.
const OUTCOMES_MIN: usize = 10;

/// A probe in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flight {
    /// Its source port and its number at that port.
    pub(super) port: u8,
    pub(super) sequence: u32,
    pub(super) sent: Duration,
    /// When it times out.
    pub(super) deadline: Duration,
    /// Whether it was sent on schedule and counts for the loss. A probe sent because another was
    /// lost does not.
    pub(super) counts: bool,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    flight: Flight,
    lost: bool,
}

#[derive(Clone, Copy, Debug)]
struct Outcome {
    port: u8,
    sequence: u32,
    sent: Duration,
    lost: bool,
}

/// The probes of one link.
#[derive(Clone, Debug, Default)]
pub(super) struct Flights {
    waiting: VecDeque<Waiting>,
    outcomes: VecDeque<Outcome>,
}

impl Flights {
    pub(super) fn add(&mut self, flight: Flight) {
        if self.waiting.len() == FLIGHTS_MAX {
            // The oldest, whose answer is the least likely; it counts neither as lost nor answered.
            self.waiting.pop_front();
        }
        let lost = false;
        self.waiting.push_back(Waiting { flight, lost });
    }

    /// Takes the probe that an answer belongs to; `None` if there is none.
    pub(super) fn land(&mut self, port: u8, sequence: u32) -> Option<Flight> {
        let Waiting { flight, lost } = self.take(port, sequence)?;
        if lost {
            // It was counted as lost when it timed out.
            self.pardon(flight);
        } else {
            self.record(flight, false);
        }
        Some(flight)
    }

    /// Gives up a probe that cannot be answered any more.
    pub(super) fn sink(&mut self, port: u8, sequence: u32) -> Option<Flight> {
        let Waiting { flight, lost } = self.take(port, sequence)?;
        if lost {
            return None;
        }
        self.record(flight, true);
        Some(flight)
    }

    fn take(&mut self, port: u8, sequence: u32) -> Option<Waiting> {
        let is_it = |one: &Waiting| (one.flight.port, one.flight.sequence) == (port, sequence);
        let at = self.waiting.iter().position(is_it)?;
        self.waiting.remove(at)
    }

    /// The next probe that has timed out.
    pub(super) fn next_lost(&mut self, now: Duration) -> Option<Flight> {
        // Kept for a while after the timeout: an answer that is late takes the loss back.
        self.waiting
            .retain(|one| !one.lost || now < one.flight.sent + LATE_MAX);
        let is_due = |one: &&mut Waiting| !one.lost && one.flight.deadline <= now;
        let due = self.waiting.iter_mut().find(is_due)?;
        due.lost = true;
        let flight = due.flight;
        self.record(flight, true);
        Some(flight)
    }

    /// When the next probe times out.
    pub(super) fn deadline(&self) -> Option<Duration> {
        // Those that were lost stay only for an answer that is late.
        let open = self.waiting.iter().filter(|one| !one.lost);
        open.map(|one| one.flight.deadline).min()
    }

    /// Extends all timeouts to at least `until`: this host itself was late.
    pub(super) fn extend(&mut self, until: Duration) {
        for one in &mut self.waiting {
            one.flight.deadline = one.flight.deadline.max(until);
        }
    }

    /// Discards the losses since the last answer: they show a dead link, not a lossy one.
    pub(super) fn forget_last_losses(&mut self) {
        while self.outcomes.back().is_some_and(|outcome| outcome.lost) {
            self.outcomes.pop_back();
        }
    }

    /// Lost probes per million; `None` after too few. One loss is not counted: among few probes it
    /// would make a link look bad for minutes.
    pub(super) fn loss_ppm(&self) -> Option<u32> {
        let count = self.outcomes.len();
        let lost = self.outcomes.iter().filter(|outcome| outcome.lost).count();
        let counted = lost.saturating_sub(1);
        // At most OUTCOMES_MAX million, which fits.
        let ppm = u32::try_from(counted * 1_000_000 / count.max(1)).unwrap_or(0);
        (count >= OUTCOMES_MIN).then_some(ppm)
    }

    fn record(&mut self, flight: Flight, lost: bool) {
        if !flight.counts {
            return;
        }
        let aged = |outcome: &Outcome| flight.sent >= outcome.sent + OUTCOMES_AGE;
        while self.outcomes.len() == OUTCOMES_MAX || self.outcomes.front().is_some_and(aged) {
            self.outcomes.pop_front();
        }
        self.outcomes.push_back(Outcome {
            port: flight.port,
            sequence: flight.sequence,
            sent: flight.sent,
            lost,
        });
    }

    /// The probe was late and not lost.
    fn pardon(&mut self, flight: Flight) {
        let key = (flight.port, flight.sequence);
        // It may be absent: outcomes are dropped by number and age, and checks have none.
        let mut outcomes = self.outcomes.iter_mut();
        if let Some(outcome) = outcomes.find(|one| (one.port, one.sequence) == key) {
            outcome.lost = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn flight(sequence: u32, sent_ms: u64) -> Flight {
        Flight {
            port: 0,
            sequence,
            sent: at(sent_ms),
            deadline: at(sent_ms + 300),
            counts: true,
        }
    }

    #[test]
    fn answers_count_once() {
        let mut flights = Flights::default();
        flights.add(flight(7, 0));
        assert_eq!(flights.land(1, 7), None);
        assert_eq!(flights.land(0, 8), None);
        assert_eq!(flights.land(0, 7), Some(flight(7, 0)));
        assert_eq!(flights.land(0, 7), None);
    }

    #[test]
    fn late_is_lost_until_answered() {
        let mut flights = Flights::default();
        for sequence in 0..10 {
            flights.add(flight(sequence, 0));
        }
        assert_eq!(flights.deadline(), Some(at(300)));
        assert_eq!(flights.next_lost(at(299)), None);
        while flights.next_lost(at(300)).is_some() {}
        assert_eq!(flights.loss_ppm(), Some(900_000));
        assert_eq!(flights.deadline(), None);
        assert!(flights.land(0, 3).is_some());
        assert_eq!(flights.loss_ppm(), Some(800_000));
        assert_eq!(flights.next_lost(at(5_000)), None);
        assert_eq!(flights.land(0, 4), None, "too late");
    }

    #[test]
    fn loss_of_last_probes() {
        let mut flights = Flights::default();
        let (most, least) = (128, 10);
        assert_eq!((OUTCOMES_MAX, OUTCOMES_MIN), (128, 10));
        for sequence in 0..most * 2 {
            let sent = u64::from(sequence) * 100;
            flights.add(flight(sequence, sent));
            let lost = sequence >= most && sequence % 4 == 0;
            let fate = if lost {
                flights.sink(0, sequence)
            } else {
                flights.land(0, sequence)
            };
            assert!(fate.is_some());
            let few = sequence + 1 < least;
            assert_eq!(flights.loss_ppm().is_none(), few);
        }
        assert_eq!(flights.loss_ppm(), Some(242_187));
        flights.add(flight(1_000, 3_600_000));
        assert!(flights.land(0, 1_000).is_some());
        assert_eq!(flights.loss_ppm(), None, "the others were long ago");
    }

    #[test]
    fn probes_after_loss_ignored() {
        let mut flights = Flights::default();
        for sequence in 0..20 {
            flights.add(flight(sequence, 0));
            flights.land(0, sequence);
        }
        for sequence in 20..40 {
            let counts = false;
            flights.add(Flight {
                counts,
                ..flight(sequence, 0)
            });
            assert!(flights.sink(0, sequence).is_some());
        }
        assert_eq!(flights.loss_ppm(), Some(0));
    }

    #[test]
    fn dead_link_has_no_loss() {
        let mut flights = Flights::default();
        for sequence in 0..20 {
            flights.add(flight(sequence, 0));
            if sequence < 15 {
                flights.land(0, sequence);
            } else {
                flights.sink(0, sequence);
            }
        }
        flights.forget_last_losses();
        assert_eq!(flights.loss_ppm(), Some(0));
    }

    #[test]
    fn late_sender_waits_longer() {
        let mut flights = Flights::default();
        flights.add(flight(0, 0));
        flights.extend(at(60_000));
        assert_eq!(flights.next_lost(at(59_999)), None);
        assert!(flights.next_lost(at(60_000)).is_some());
    }
}
