// SPDX-License-Identifier: Apache-2.0
//! Durations of handshakes with the servers of one destination. Pure.

use std::time::Duration;

/// The minimum covers the current window and the one before: a handshake counts for one to two of
/// these.
const WINDOW: Duration = Duration::from_secs(450);

/// Recent handshakes.
#[derive(Debug, Default)]
pub(super) struct Handshakes {
    now: Window,
    before: Window,
    /// Number of the window of `now`, from 0 at the start of the clock.
    number: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Window {
    /// The shortest, in microseconds; undefined without any.
    least_us: u32,
    count: u32,
}

impl Window {
    fn add(&mut self, us: u32) {
        self.least_us = if self.count == 0 {
            us
        } else {
            self.least_us.min(us)
        };
        self.count = self.count.saturating_add(1);
    }
}

impl Handshakes {
    /// Adds a handshake, in microseconds.
    pub(super) fn add(&mut self, us: u32, now: Duration) {
        let number = number(now);
        if number != self.number {
            self.before = if number == self.number + 1 {
                self.now
            } else {
                Window::default()
            };
            (self.now, self.number) = (Window::default(), number);
        }
        self.now.add(us.max(1));
    }

    /// The shortest recent one, in microseconds, and their number; `None` without any.
    pub(super) fn known(&self, now: Duration) -> Option<(u32, u32)> {
        let windows = match number(now).saturating_sub(self.number) {
            0 => [self.now, self.before],
            // No handshake since the window has changed: what is stored as the current one is the
            // one before.
            1 => [Window::default(), self.now],
            _ => return None,
        };
        let some = windows.into_iter().filter(|window| window.count > 0);
        some.map(|window| (window.least_us, window.count))
            .reduce(|one, other| (one.0.min(other.0), one.1.saturating_add(other.1)))
    }
}

fn number(now: Duration) -> u64 {
    now.as_secs() / WINDOW.as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(windows: f64) -> Duration {
        WINDOW.mul_f64(windows)
    }

    #[test]
    fn shortest_until_old() {
        let mut handshakes = Handshakes::default();
        assert_eq!(handshakes.known(at(10.0)), None);
        for us in [30_000, 20_000, 90_000] {
            handshakes.add(us, at(10.1));
        }
        assert_eq!(handshakes.known(at(10.1)), Some((20_000, 3)));
        handshakes.add(25_000, at(11.2));
        assert_eq!(handshakes.known(at(11.9)), Some((20_000, 4)));
        assert_eq!(handshakes.known(at(12.1)), Some((25_000, 1)));
        assert_eq!(handshakes.known(at(13.0)), None);
        handshakes.add(0, at(20.0));
        assert_eq!(handshakes.known(at(20.0)), Some((1, 1)));
    }

    #[test]
    fn empty_window_is_skipped() {
        let mut handshakes = Handshakes::default();
        handshakes.add(30_000, at(0.5));
        assert_eq!(handshakes.known(at(0.6)), Some((30_000, 1)));
        assert_eq!(handshakes.known(at(1.6)), Some((30_000, 1)));
    }
}
