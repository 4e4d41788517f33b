// SPDX-License-Identifier: Apache-2.0
//! What time it is by the controller's clock. The node requests it; the answer was made at some point
//! between request and answer, so it is wrong by half of the round trip at the most.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Event;
use crate::message::ToController;

/// An answer that took longer is too uncertain: authentication tags are valid for 30 s.
const ROUND_TRIP_MAX: Duration = Duration::from_secs(10);
/// Clocks that are not disciplined gain or lose one part in so many at the most: twice the usual drift.
const DRIFT: u32 = 5_000;
/// A clock that differs by more is wrong. One that is disciplined differs by milliseconds, and by up to
/// a second while a leap second is spread over a day.
const WRONG: Duration = Duration::from_secs(1);

/// The controller's report of the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockOffset {
    /// The time since 1970, and when that was by the clock that only goes forward.
    unix: Duration,
    at: Duration,
    within: Duration,
}

impl ClockOffset {
    /// What time it is since 1970, at `now` by the clock that only goes forward.
    pub fn time(&self, now: Duration) -> Duration {
        self.unix + now.saturating_sub(self.at)
    }

    /// By how much that may be wrong.
    pub fn error(&self, now: Duration) -> Duration {
        self.within + now.saturating_sub(self.at) / DRIFT
    }

    /// Whether it can have been received, at `now` or before. What is read from a disk may be anything.
    fn is_possible(&self, now: Duration) -> bool {
        let latest = Duration::from_micros(u64::MAX) + ROUND_TRIP_MAX;
        self.at <= now && self.unix <= latest && self.within <= ROUND_TRIP_MAX
    }

    /// Whether this and a newer one may both be true.
    fn agrees(&self, newer: &Self) -> bool {
        let now = newer.at;
        self.time(now).abs_diff(newer.unix) <= self.error(now) + newer.within
    }
}

/// Requests the time, and keeps the best answer.
#[derive(Debug, Default)]
pub(super) struct Time {
    /// How often to request it, while there is a stream.
    every: Option<Duration>,
    send_at: Option<Duration>,
    /// When the request was sent that waits for its answer.
    sent_at: Option<Duration>,
    sent: Option<ClockOffset>,
    is_news: bool,
    /// What this host's own clock showed, and when.
    own: Option<(Duration, Duration)>,
    /// How far that was ahead at the last report that it is wrong, in microseconds; 0 if it is right.
    reported_us: i64,
}

impl Time {
    /// There is a stream: the first request is due at once, then one in each interval.
    pub(super) fn on_joined(&mut self, every: Duration, now: Duration) {
        (self.every, self.send_at) = (Some(every), Some(now));
    }

    pub(super) fn on_closed(&mut self) {
        (self.every, self.send_at, self.sent_at) = (None, None, None);
    }

    /// What was kept.
    pub(super) fn restore(&mut self, sent: Option<ClockOffset>, now: Duration) {
        self.sent = sent.filter(|sent| sent.is_possible(now));
        self.is_news = self.sent.is_some();
    }

    pub(super) fn sent(&self) -> Option<ClockOffset> {
        self.sent
    }

    /// The time to use from now on, if it is another.
    pub(super) fn take_news(&mut self) -> Option<ClockOffset> {
        let is_news = std::mem::take(&mut self.is_news);
        self.sent.filter(|_| is_news)
    }

    pub(super) fn deadline(&self) -> Option<Duration> {
        self.send_at
    }

    /// The request, if it is due. An answer to the former one no longer counts.
    pub(super) fn question(&mut self, now: Duration) -> Option<ToController> {
        let every = self.every?;
        self.send_at.take_if(|at| *at <= now)?;
        (self.sent_at, self.send_at) = (Some(now), Some(now + every));
        Some(ToController::Time {
            mark: mark(now),
            ahead_us: self.ahead_us(now),
        })
    }

    /// Takes an answer. Returns whether another time is to be used from now on: the better of two that
    /// may both be true, the newer of two that differ.
    pub(super) fn on_answer(&mut self, of: u64, unix_us: u64, now: Duration) -> bool {
        let Some(sent_at) = self.sent_at.take_if(|sent_at| mark(*sent_at) == of) else {
            return false;
        };
        let took = now.saturating_sub(sent_at);
        if took > ROUND_TRIP_MAX {
            return false;
        }
        // The controller answered at some point between both, so the middle is wrong by half at
        // most.
        let newer = ClockOffset {
            unix: Duration::from_micros(unix_us) + took / 2,
            at: now,
            within: took / 2,
        };
        if self.sent.is_none() {
            // The next request reports how far this host's clock is from the controller's.
            self.send_at = Some(now);
        }
        let stays = |sent: &ClockOffset| sent.agrees(&newer) && sent.error(now) < newer.within;
        if self.sent.as_ref().is_some_and(stays) {
            return false;
        }
        (self.sent, self.is_news) = (Some(newer), true);
        true
    }

    /// Takes what this host's own clock shows. Returns what is to be reported about it.
    pub(super) fn on_own_clock(&mut self, unix: Duration, now: Duration) -> Option<Event> {
        self.own = Some((unix, now));
        let error = self.sent?.error(now);
        let (ahead_us, wrong_us) = (self.ahead_us(now)?, micros(WRONG + error));
        // Half of the bound, so that a clock near the bound does not alternate between both events.
        let is_right = ahead_us.saturating_abs() < wrong_us / 2;
        if is_right && self.reported_us != 0 {
            self.reported_us = 0;
            return Some(Event::ClockRight);
        }
        // A clock that goes wrong slowly, or a controller's that is slewed, is no news each second.
        let least_us = wrong_us.saturating_add(self.reported_us.saturating_abs() / 4);
        if ahead_us.saturating_sub(self.reported_us).saturating_abs() <= least_us {
            return None;
        }
        self.reported_us = ahead_us;
        Some(Event::ClockWrong(ahead_us))
    }

    /// How far this host's own clock is ahead, in microseconds.
    fn ahead_us(&self, now: Duration) -> Option<i64> {
        let (unix, at) = self.own?;
        let sent = self.sent?.time(now);
        let own = unix + now.saturating_sub(at);
        let ahead = micros(own.saturating_sub(sent));
        Some(ahead - micros(sent.saturating_sub(own)))
    }
}

/// The mark of the request that was sent then.
fn mark(sent_at: Duration) -> u64 {
    u64::try_from(sent_at.as_nanos()).unwrap_or(u64::MAX)
}

fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: Duration = Duration::from_secs(10);
    /// The controller's time when the node's clock that only goes forward began.
    const ZERO: Duration = Duration::from_secs(1_700_000_000);

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn joined() -> Time {
        let mut time = Time::default();
        time.on_joined(EVERY, at(0));
        time
    }

    /// Requests the time, and has it answered: `there` ms later by a controller that is `ahead_ms` ahead, and read
    /// `back` ms after that.
    fn exchange(time: &mut Time, now_ms: u64, there: u64, back: u64, ahead_ms: u64) -> bool {
        let question = time.question(at(now_ms));
        let Some(ToController::Time { mark, .. }) = question else {
            panic!("nothing is requested at {now_ms}");
        };
        let unix = ZERO + at(now_ms + there + ahead_ms);
        let unix_us = u64::try_from(unix.as_micros()).unwrap();
        time.on_answer(mark, unix_us, at(now_ms + there + back))
    }

    fn off_ms(time: &Time, now_ms: u64) -> u128 {
        let sent = time.sent().unwrap().time(at(now_ms));
        sent.abs_diff(ZERO + at(now_ms)).as_millis()
    }

    // promise: S12
    #[test]
    fn best_clock_answer_counts() {
        let mut time = joined();
        assert!(exchange(&mut time, 0, 5, 195, 0));
        assert_eq!((off_ms(&time, 200), off_ms(&time, 9_000)), (95, 95));
        assert_eq!(time.sent().unwrap().error(at(200)), at(100));
        // At once again: the controller has not received how far off this host is.
        assert!(exchange(&mut time, 200, 10, 14, 0));
        assert_eq!(off_ms(&time, 9_000), 2);
        assert_eq!(time.deadline(), Some(at(10_200)));
        assert!(!exchange(&mut time, 10_200, 400, 0, 0), "a worse one");
        assert_eq!(off_ms(&time, 20_000), 2);
        // After a day unknown the clock has gone, and a worse one is better.
        assert!(exchange(&mut time, 86_400_000, 400, 0, 0));
        assert_eq!(off_ms(&time, 86_400_400), 200);
    }

    // promise: S12
    #[test]
    fn impossible_offset_discarded() {
        let mut time = joined();
        assert!(exchange(&mut time, 0, 1, 1, 0));
        assert!(exchange(&mut time, 2, 300, 300, 5_000));
        assert_eq!(off_ms(&time, 700), 5_000);
    }

    // promise: S12
    #[test]
    fn bad_clock_answers_ignored() {
        let mut time = joined();
        assert!(!exchange(&mut time, 0, 9_000, 2_000, 0));
        let _ = time.question(at(20_000)).unwrap();
        assert!(!time.on_answer(mark(at(0)), 7, at(20_001)));
        assert!(time.on_answer(mark(at(20_000)), 7, at(20_002)));
        assert!(!time.on_answer(mark(at(20_000)), 9_000_000, at(20_003)));
        time.on_closed();
        assert!(time.question(at(1_000_000)).is_none() && time.deadline().is_none());
        assert!(time.sent().is_some(), "it outlives the stream");
    }

    // promise: S12
    #[test]
    fn wrong_clock_reported_once() {
        let mut time = joined();
        let own = |ahead_ms: u64| ZERO + at(100 + ahead_ms);
        assert_eq!(time.on_own_clock(own(90_000), at(100)), None, "unknown");
        assert!(exchange(&mut time, 100, 0, 0, 0));
        assert_eq!(time.on_own_clock(own(999), at(100)), None);
        let text = |us| Some(Event::ClockWrong(us));
        assert_eq!(time.on_own_clock(own(90_000), at(100)), text(90_000_000));
        assert_eq!(time.on_own_clock(own(110_000), at(100)), None);
        assert_eq!(time.on_own_clock(own(20_000), at(100)), text(20_000_000));
        assert_eq!(
            time.on_own_clock(own(400), at(100)),
            Some(Event::ClockRight)
        );
        assert_eq!(time.on_own_clock(own(400), at(100)), None);
        let behind = ZERO - Duration::from_secs(3_600) + at(100);
        assert_eq!(time.on_own_clock(behind, at(100)), text(-3_600_000_000));
        let Some(ToController::Time { ahead_us, .. }) = time.question(at(100)) else {
            panic!("nothing is requested");
        };
        assert_eq!(ahead_us, Some(-3_600_000_000));
    }
    // promise: S12
    #[test]
    fn extreme_times_accepted() {
        let mut time = joined();
        for (step, unix_us) in (0..).zip([0, u64::MAX, 0, u64::MAX]) {
            let now = at(step * 20_000);
            let Some(ToController::Time { mark, .. }) = time.question(now) else {
                panic!("nothing is requested");
            };
            assert!(time.on_answer(mark, unix_us, now));
            let text = time.on_own_clock(ZERO, now);
            assert!(matches!(text, Some(Event::ClockWrong(_))), "{text:?}");
        }
        // Nor is what is read from a disk.
        let sent = time.sent().unwrap();
        let unix = Duration::MAX;
        let within = Duration::MAX;
        let wrong = [ClockOffset { unix, ..sent }, ClockOffset { within, ..sent }];
        for wrong in wrong {
            time.restore(Some(wrong), at(100_000));
            assert_eq!(time.on_own_clock(ZERO, at(100_000)), None, "{wrong:?}");
        }
    }
}
