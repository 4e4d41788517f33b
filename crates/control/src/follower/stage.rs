// SPDX-License-Identifier: Apache-2.0
//! How far a node is with its stream, and when it tries again.

use std::time::Duration;

use crate::checksum::mix;

/// A stream that could not be opened, or ended soon, is tried again after so long, and after twice as
/// long each time; chance takes up to half of it, so that a thousand nodes do not come at once.
const AGAIN: Duration = Duration::from_secs(1);
const AGAIN_MAX: Duration = Duration::from_secs(30);
/// A stream that has lasted so long was a good one.
const GOOD: Duration = Duration::from_secs(10);
/// How long opening a stream and being let in may take.
const OPEN_WITHIN: Duration = Duration::from_secs(10);
/// A controller that has sent nothing for this many keepalive intervals is gone.
const SILENCE: u32 = 3;

#[derive(Clone, Copy, Debug)]
enum State {
    /// There is no stream until then.
    Apart(Duration),
    /// One is being opened.
    Dialing,
    /// It is open; by then the controller must have let the node in.
    Open { until: Duration, greeted: bool },
    /// It has.
    Joined {
        since: Duration,
        keepalive: Duration,
        received: Duration,
    },
}

#[derive(Debug)]
pub(super) struct Stage {
    state: State,
    /// Before the next try, chance aside.
    again: Duration,
    chance: u64,
}

impl Stage {
    /// Tries at once.
    pub(super) fn new(seed: u64, now: Duration) -> Self {
        Self {
            state: State::Apart(now),
            again: AGAIN,
            chance: seed,
        }
    }

    /// Whether a stream is to be opened now: once, and then it is being opened.
    pub(super) fn is_dialing_due(&mut self, now: Duration) -> bool {
        let is_due = matches!(self.state, State::Apart(until) if until <= now);
        if is_due {
            self.state = State::Dialing;
        }
        is_due
    }

    pub(super) fn on_open(&mut self, now: Duration) {
        self.state = State::Open {
            until: now + OPEN_WITHIN,
            greeted: false,
        };
    }

    pub(super) fn on_joined(&mut self, keepalive: Duration, now: Duration) {
        self.state = State::Joined {
            since: now,
            keepalive,
            received: now,
        };
    }

    pub(super) fn on_closed(&mut self, now: Duration) {
        // A controller that lets nodes in and drops them at once must not be dialed every second.
        if matches!(self.state, State::Joined { since, .. } if now >= since + GOOD) {
            self.again = AGAIN;
        }
        self.chance = mix(self.chance);
        let share = f64::from(u32::try_from(self.chance >> 32).unwrap_or(0)) / f64::from(u32::MAX);
        self.state = State::Apart(now + self.again.mul_f64(1.0 - share / 2.0));
        self.again = (self.again * 2).min(AGAIN_MAX);
    }

    pub(super) fn on_sent(&mut self) {
        if let State::Open { greeted, .. } = &mut self.state {
            *greeted = true;
        }
    }

    pub(super) fn on_received(&mut self, now: Duration) {
        if let State::Joined { received, .. } = &mut self.state {
            *received = now;
        }
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(self.state, State::Open { .. } | State::Joined { .. })
    }

    pub(super) fn is_joined(&self) -> bool {
        matches!(self.state, State::Joined { .. })
    }

    pub(super) fn owes_hello(&self) -> bool {
        matches!(self.state, State::Open { greeted: false, .. })
    }

    /// Why the controller is taken for gone, if it is.
    pub(super) fn is_silent(&self, now: Duration) -> Option<String> {
        let is_over = match self.state {
            State::Open { until, .. } => until <= now,
            State::Joined {
                received,
                keepalive,
                ..
            } => received + keepalive * SILENCE <= now,
            State::Apart(_) | State::Dialing => false,
        };
        is_over.then(|| "the controller sends nothing".to_owned())
    }

    pub(super) fn deadline(&self) -> Option<Duration> {
        match self.state {
            State::Apart(until) | State::Open { until, .. } => Some(until),
            State::Dialing => None,
            State::Joined {
                keepalive,
                received,
                ..
            } => Some(received + keepalive * SILENCE),
        }
    }
}
