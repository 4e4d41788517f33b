// SPDX-License-Identifier: Apache-2.0
//! The time that nodes agree on: the only module with the offset of this host's clock.
//!
//! Authentication tags of requests and probes carry the time they were made and are valid for 30 s.
//! A node with a controller uses the controller's time, advanced by a clock that cannot be set, so
//! that setting the host's clock has no effect. Before the first report of a controller, and
//! without one, the time is the host's own.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::sys;

/// Two clocks read within this time count as read at once.
const AT_ONCE: Duration = Duration::from_millis(1);
/// Attempts to read both clocks at once.
const READINGS_MAX: u32 = 100;

/// No time was set.
const UNKNOWN: i64 = i64::MIN;

/// The time that nodes agree on, shared by all clones. Reading it takes no lock.
#[derive(Clone, Debug)]
pub struct Clock {
    /// The time of the host's boot, in microseconds since 1970.
    started_us: Arc<AtomicI64>,
}

impl Default for Clock {
    /// The host's own clock, until [`Clock::set_offset`] is called.
    fn default() -> Self {
        Self {
            started_us: Arc::new(AtomicI64::new(UNKNOWN)),
        }
    }
}

impl Clock {
    /// The time since 1970.
    pub fn now(&self) -> Duration {
        match self.started_us.load(Ordering::Relaxed) {
            UNKNOWN => own(),
            started_us => {
                let now_us = started_us.saturating_add(micros(sys::since_start()));
                Duration::from_micros(u64::try_from(now_us).unwrap_or(0))
            }
        }
    }

    /// [`Clock::now`] in milliseconds, the unit of authentication tags.
    pub fn now_ms(&self) -> u64 {
        u64::try_from(self.now().as_millis()).unwrap_or(u64::MAX)
    }

    /// Sets the time to what `now` returns, regardless of the host's clock.
    pub fn set_offset(&self, now: impl Fn() -> Duration) {
        let mut time = (now(), sys::since_start());
        for _ in 0..READINGS_MAX {
            let before = sys::since_start();
            time = (now(), before);
            if sys::since_start() < before + AT_ONCE {
                break;
            }
            // The thread was descheduled between the readings, so their difference is unknown.
        }
        let started_us = micros(time.0).saturating_sub(micros(time.1));
        // Relaxed: readers need this one number, and nothing that was written before it.
        self.started_us.store(started_us, Ordering::Relaxed);
    }

    /// How far the host's clock is ahead, in microseconds; `None` without [`Clock::set_offset`].
    pub fn own_ahead_us(&self) -> Option<i64> {
        let corrected_to = self.started_us.load(Ordering::Relaxed) != UNKNOWN;
        corrected_to.then(|| micros(own()).saturating_sub(micros(self.now())))
    }

    /// Converts a time of the host's clock, such as the kernel's packet timestamps, to this clock.
    pub fn corrected(&self, own: Duration) -> Duration {
        let ahead_us = self.own_ahead_us().unwrap_or(0);
        let by = Duration::from_micros(ahead_us.unsigned_abs());
        if ahead_us < 0 {
            own + by
        } else {
            own.saturating_sub(by)
        }
    }
}

/// The time since 1970 by the host's own clock.
pub fn own() -> Duration {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default()
}

fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How long a slow machine may take between two statements.
    const SLOW: Duration = Duration::from_secs(20);

    fn near(one: Duration, other: Duration) -> bool {
        one.abs_diff(other) < SLOW
    }

    #[test]
    fn own_clock_by_default() {
        let clock = Clock::default();
        assert!(near(clock.now(), own()));
        assert_eq!(clock.own_ahead_us(), None);
        assert_eq!(clock.corrected(SLOW), SLOW);
    }

    // promise: S12
    #[test]
    fn offset_shared_by_copies() {
        const HOUR: Duration = Duration::from_secs(3_600);
        let clock = Clock::default();
        let copy = clock.clone();
        let corrected_to = own() + HOUR;
        clock.set_offset(|| corrected_to);
        let now = copy.now();
        assert!(now >= corrected_to - Duration::from_micros(1) && near(now, corrected_to));
        assert!(u128::from(copy.now_ms()) >= now.as_millis());
        let ahead = copy.own_ahead_us().unwrap();
        assert!(ahead < 0 && near(Duration::from_micros(ahead.unsigned_abs()), HOUR));
        assert!(near(copy.corrected(own()), corrected_to));
        clock.set_offset(|| own() - HOUR);
        assert!(near(copy.corrected(own()), own() - HOUR));
        clock.set_offset(|| Duration::ZERO);
        assert!(near(copy.now(), Duration::ZERO), "no time is before 1970");
    }
}
