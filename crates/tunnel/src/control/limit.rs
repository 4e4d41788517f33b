// SPDX-License-Identifier: Apache-2.0
//! A bound on what a node sends to a peer, over all connections of all workers. A connection books when its
//! next bytes may leave, so that all have their turn.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::transport::MTU_MAX;

/// How late a sender may come without losing its time: event loops have turns.
const TOLERANCE: Duration = Duration::from_millis(5);
/// What is booked at once, as time, if a datagram takes no longer.
const BURST_MILLIS: u64 = 1;

/// The bound of a peer, if it has one.
#[derive(Debug, Default)]
pub(crate) struct Limit(Mutex<Option<Schedule>>);

/// When bytes may leave, and how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) at: Instant,
    pub(crate) bytes: u64,
}

#[derive(Clone, Copy, Debug)]
struct Schedule {
    /// Bytes per second.
    rate: u32,
    /// When the next bytes may leave that nobody has booked; at any time at first.
    due: Option<Instant>,
}

impl Limit {
    /// Bytes per second from now on.
    pub(super) fn set(&self, rate: Option<u32>) {
        let mut schedule = self.lock();
        let due = schedule.and_then(|schedule| schedule.due);
        *schedule = rate.map(|rate| Schedule {
            rate: rate.max(1),
            due,
        });
    }

    /// Books bytes that leave at once; `None` without a bound, and an error if others have booked before.
    pub(crate) fn take(&self, now: Instant) -> Result<Option<Slot>, ()> {
        match &mut *self.lock() {
            None => Ok(None),
            Some(schedule) if schedule.due.is_some_and(|due| due > now) => Err(()),
            Some(schedule) => Ok(Some(schedule.book(now))),
        }
    }

    /// Books the next bytes; `None` without a bound.
    pub(crate) fn book(&self, now: Instant) -> Option<Slot> {
        let mut schedule = self.lock();
        schedule.as_mut().map(|schedule| schedule.book(now))
    }

    /// Of so many bytes that were booked, so many have left.
    pub(crate) fn settle(&self, booked: u64, sent: u64) {
        if let Some(schedule) = &mut *self.lock()
            && let Some(due) = schedule.due
        {
            let due = due + schedule.takes(sent);
            schedule.due = due.checked_sub(schedule.takes(booked));
        }
    }

    /// What the lock holds is right at any moment, so a thread that panicked does not matter.
    fn lock(&self) -> MutexGuard<'_, Option<Schedule>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Schedule {
    fn book(&mut self, now: Instant) -> Slot {
        let bytes = u64::from(self.rate) * BURST_MILLIS / 1000;
        let bytes = bytes.max(MTU_MAX.into());
        let earliest = now.checked_sub(TOLERANCE).unwrap_or(now);
        let at = self.due.map_or(earliest, |due| due.max(earliest));
        self.due = Some(at + self.takes(bytes));
        Slot { at, bytes }
    }

    fn takes(&self, bytes: u64) -> Duration {
        Duration::from_nanos(bytes * 1_000_000_000 / u64::from(self.rate))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(rate: u32) -> Limit {
        let limit = Limit::default();
        limit.set(Some(rate));
        limit
    }

    /// Sends all that may leave at a moment.
    fn send(limit: &Limit, slot: &mut Option<Slot>, now: Instant) -> u64 {
        let mut sent = 0;
        loop {
            let next = slot.take().or_else(|| limit.book(now)).unwrap();
            if next.at > now {
                *slot = Some(next);
                return sent;
            }
            limit.settle(next.bytes, next.bytes);
            sent += next.bytes;
        }
    }

    #[test]
    fn late_senders_keep_their_rate_and_idle_ones_save_nothing() {
        let limit = limit(1_000_000);
        let (mut now, mut slot) = (Instant::now(), None);
        let mut sent = 0;
        for _ in 0..1_000 {
            now += Duration::from_millis(3);
            sent += send(&limit, &mut slot, now);
        }
        assert!((2_995_000..=3_008_000).contains(&sent), "{sent}");
        now += Duration::from_secs(60);
        slot = None;
        let at_once = send(&limit, &mut slot, now);
        assert!((5_000..8_000).contains(&at_once), "{at_once}");
    }

    #[test]
    fn senders_have_equal_shares() {
        for rate in [125_000, 2_500_000, 40_000_000] {
            let limit = limit(rate);
            let mut now = Instant::now();
            let (mut slots, mut sent) = ([None; 4], [0; 4]);
            for _ in 0..10_000 {
                now += Duration::from_millis(1);
                for (slot, sent) in slots.iter_mut().zip(&mut sent) {
                    *sent += send(&limit, slot, now);
                }
            }
            let share = u64::from(rate) * 10 / 4;
            for sent in sent {
                assert!((share * 9 / 10..share * 11 / 10).contains(&sent), "{sent}");
            }
        }
    }

    #[test]
    fn what_was_not_sent_can_be_booked_again() {
        let limit = limit(1_000_000);
        let now = Instant::now();
        while let Ok(Some(slot)) = limit.take(now) {
            limit.settle(slot.bytes, slot.bytes);
        }
        let slot = limit.book(now).unwrap();
        limit.settle(slot.bytes, 0);
        assert_eq!(limit.book(now), Some(slot));
        limit.settle(0, 1_000);
        let later = limit.book(now).unwrap();
        let after = slot.at + Duration::from_micros(slot.bytes + 1_000);
        assert_eq!(later.at, after);
    }

    #[test]
    fn without_a_bound_nothing_is_booked() {
        let limit = limit(1);
        limit.set(None);
        let now = Instant::now();
        assert_eq!((limit.take(now), limit.book(now)), (Ok(None), None));
    }
}
