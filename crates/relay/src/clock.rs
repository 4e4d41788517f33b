// SPDX-License-Identifier: Apache-2.0
//! What time it is among nodes: the one place that knows how far this host's own clock is off.
//!
//! Authentication tags of requests and probes say when they were made, and count for 30 s. Who follows a controller
//! goes by the controller's time. Once that was told it is counted on by a clock that nobody can
//! set, so whoever sets the host's own clock disturbs nothing. Before, and without a controller, it
//! is the host's own.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::sys;

/// Two clocks that are read within this are read at once.
const AT_ONCE: Duration = Duration::from_millis(1);
/// How often that is tried.
const READINGS_MAX: u32 = 100;

/// Stands for a time that nobody has told.
const UNKNOWN: i64 = i64::MIN;

/// The time among nodes, shared by all that hold a copy. Reading it takes no lock.
#[derive(Clone, Debug)]
pub struct Clock {
    /// The time when the host was started, in microseconds since 1970.
    started_us: Arc<AtomicI64>,
}

impl Default for Clock {
    /// The host's own, until another is told.
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

    /// The same in milliseconds, as authentication tags have it.
    pub fn now_ms(&self) -> u64 {
        u64::try_from(self.now().as_millis()).unwrap_or(u64::MAX)
    }

    /// It is what `now` says, whatever the host's own clock shows.
    pub fn set_offset(&self, now: impl Fn() -> Duration) {
        let mut time = (now(), sys::since_start());
        for _ in 0..READINGS_MAX {
            let before = sys::since_start();
            time = (now(), before);
            if sys::since_start() < before + AT_ONCE {
                break;
            }
            // This thread had to wait between the two, and nobody knows after which.
        }
        let started_us = micros(time.0).saturating_sub(micros(time.1));
        self.started_us.store(started_us, Ordering::Relaxed);
    }

    /// How far the host's own clock is ahead, in microseconds; nothing if no other time was told.
    pub fn own_ahead_us(&self) -> Option<i64> {
        let corrected_to = self.started_us.load(Ordering::Relaxed) != UNKNOWN;
        corrected_to.then(|| micros(own()).saturating_sub(micros(self.now())))
    }

    /// A time of the host's own clock, such as the kernel stamps packets with, as all others are.
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

/// What the host's own clock shows, since 1970.
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

    /// How long a slow machine may take from one line to the next.
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
