// SPDX-License-Identifier: Apache-2.0
//! CUBIC (RFC 9438) with slow start, for competition.

use std::time::Duration;

use super::{Acked, PACKET, Rule};

const C: f64 = 0.4;
const BETA: f64 = 0.7;

/// In packets and seconds.
#[derive(Debug)]
pub struct Cubic {
    window: f64,
    threshold: f64,
    largest: f64,
    /// When the current epoch began; packets sent before it do not count as lost again.
    epoch: Option<Duration>,
}

impl Default for Cubic {
    fn default() -> Self {
        Self {
            window: 10.0,
            threshold: f64::MAX,
            largest: 0.0,
            epoch: None,
        }
    }
}

impl Rule for Cubic {
    fn window(&self) -> u64 {
        // Not negative, and far below the limits of either type.
        let packets = Duration::from_secs_f64(self.window).as_secs();
        packets * PACKET
    }

    fn on_acked(&mut self, now: Duration, acked: Acked) {
        if acked.lost > 0 {
            self.on_loss(now, acked.sent);
        } else {
            self.on_ack(now);
        }
    }

    fn on_time(&mut self, now: Duration, _lost: u64) {
        self.on_loss(now, now);
    }
}

impl Cubic {
    fn on_ack(&mut self, now: Duration) {
        if self.window < self.threshold {
            self.window += 1.0;
            return;
        }
        let since = now.saturating_sub(self.epoch.unwrap_or(now)).as_secs_f64();
        let k = (self.largest * (1.0 - BETA) / C).cbrt();
        let target = C * (since - k).powi(3) + self.largest;
        let step = (target - self.window).clamp(0.01, self.window / 2.0);
        self.window += step / self.window;
    }

    fn on_loss(&mut self, now: Duration, sent: Duration) {
        if self.epoch.is_some_and(|epoch| sent < epoch) {
            return;
        }
        self.largest = self.window;
        self.window = (self.window * BETA).max(2.0);
        self.threshold = self.window;
        self.epoch = Some(now);
    }
}
