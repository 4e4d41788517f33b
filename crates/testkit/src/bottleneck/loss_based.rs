// SPDX-License-Identifier: Apache-2.0
//! Controls that take each loss and each mark for congestion: CUBIC (RFC 9438) and Reno (RFC 5681), with slow start,
//! proportional rate reduction (RFC 6937) and, if wanted, HyStart's end of slow start by delay. Not paced, as in Linux.

use super::{Acked, NS_PER_S, PACKET, Rule};

/// Packets of the first window (RFC 6928).
const FIRST: f64 = 10.0;
/// The least window after a loss.
const LEAST: f64 = 2.0;
/// HyStart: slow start ends when the round-trip times of the first so many ACKs of a round are longer by an eighth,
/// within these bounds, or when ACKs with no longer gaps than this have come for half a round trip.
const HYSTART_ACKS: u32 = 8;
const HYSTART_NS: (u64, u64) = (4_000_000, 16_000_000);
const HYSTART_GAP_NS: u64 = 2_000_000;

/// CUBIC's C, and what a loss leaves of the window.
const C: f64 = 0.4;
const BETA: f64 = 0.7;
const RENO_BETA: f64 = 0.5;

/// How the window grows and shrinks, in packets.
#[derive(Debug)]
enum Law {
    Cubic(CubicLaw),
    Reno,
}

#[derive(Debug, Default)]
struct CubicLaw {
    largest: f64,
    /// The current epoch: its start, the time until the largest window, and what Reno would have.
    epoch_ns: Option<u64>,
    k: f64,
    origin: f64,
    reno: f64,
}

impl CubicLaw {
    fn grow(&mut self, acked: &Acked, window: f64, packets: f64, smoothed_ns: u64) -> f64 {
        let epoch = *self.epoch_ns.get_or_insert_with(|| {
            self.origin = self.largest.max(window);
            self.k = ((self.origin - window) / C).cbrt();
            self.reno = window;
            acked.now_ns
        });
        // The window in a round trip from now on.
        let since = seconds(acked.now_ns - epoch + smoothed_ns);
        let target = self.origin + C * (since - self.k).powi(3);
        let target = target.clamp(window, window * 1.5);
        let alpha = if self.reno < self.largest {
            3.0 * (1.0 - BETA) / (1.0 + BETA)
        } else {
            1.0
        };
        self.reno += alpha * packets / window;
        let cubic = window + (target - window) / window * packets;
        cubic.max(self.reno)
    }

    fn shrink(&mut self, window: f64) -> f64 {
        // Fast convergence.
        self.largest = if window < self.largest {
            window * (1.0 + BETA) / 2.0
        } else {
            window
        };
        self.epoch_ns = None;
        window * BETA
    }
}

/// A recovery from losses, which ends when a packet is acknowledged that was sent after its start.
#[derive(Debug)]
struct Recovery {
    since_ns: u64,
    /// In flight at its start, delivered and sent since, in packets.
    before: f64,
    delivered: f64,
    sent: f64,
    /// Bytes found lost, and found not to be: if all were not, the window returns.
    lost: u64,
    spurious: u64,
    former: (f64, f64, f64),
}

#[derive(Debug)]
struct LossBased {
    law: Law,
    /// In packets.
    window: f64,
    threshold: f64,
    recovery: Option<Recovery>,
    /// What the recovery permits.
    permitted: f64,
    smoothed_ns: u64,
    hystart: Option<HyStart>,
}

#[derive(Debug, Default)]
struct HyStart {
    least_ns: Option<u64>,
    round_ns: u64,
    round_least_ns: u64,
    acks: u32,
    /// When the last ACK of a row without gaps came.
    train_ns: u64,
}

impl HyStart {
    /// Whether slow start ends.
    fn on_acked(&mut self, acked: &Acked) -> bool {
        if acked.sent_ns >= self.round_ns {
            (self.round_ns, self.round_least_ns, self.acks) = (acked.now_ns, u64::MAX, 0);
            self.train_ns = acked.now_ns;
        }
        let least = self
            .least_ns
            .map_or(acked.rtt_ns, |ns| ns.min(acked.rtt_ns));
        self.least_ns = Some(least);
        if self.acks < HYSTART_ACKS {
            self.acks += 1;
            self.round_least_ns = self.round_least_ns.min(acked.rtt_ns);
        }
        let delay = (least / 8).clamp(HYSTART_NS.0, HYSTART_NS.1);
        let is_train = acked.now_ns - self.train_ns <= HYSTART_GAP_NS;
        if is_train {
            self.train_ns = acked.now_ns;
        }
        let is_long = is_train && acked.now_ns - self.round_ns > least / 2;
        is_long || (self.acks == HYSTART_ACKS && self.round_least_ns >= least + delay)
    }
}

impl LossBased {
    fn new(law: Law) -> Self {
        Self {
            law,
            window: FIRST,
            threshold: f64::MAX,
            recovery: None,
            permitted: 0.0,
            smoothed_ns: 0,
            hystart: None,
        }
    }

    fn largest(&self) -> f64 {
        match &self.law {
            Law::Cubic(law) => law.largest,
            Law::Reno => 0.0,
        }
    }

    fn window(&self) -> u64 {
        let packets = match self.recovery {
            Some(_) => self.permitted,
            None => self.window,
        };
        // A recovery that has nothing in flight goes on.
        (whole(packets) * PACKET).max(PACKET)
    }

    fn on_sent(&mut self) {
        if let Some(recovery) = &mut self.recovery {
            recovery.sent += 1.0;
        }
    }

    fn on_acked(&mut self, acked: &Acked) {
        if acked.rtt_ns > 0 {
            self.smoothed_ns = match self.smoothed_ns {
                0 => acked.rtt_ns,
                smoothed => (smoothed * 7 + acked.rtt_ns) / 8,
            };
        }
        self.undo(acked);
        let is_over = |one: &Recovery| acked.acked > 0 && acked.sent_ns >= one.since_ns;
        if self.recovery.as_ref().is_some_and(is_over) {
            self.recovery = None;
        }
        if self.recovery.is_none() && acked.lost + acked.marked > 0 {
            self.shrink(acked);
        } else if self.recovery.is_none() {
            self.grow(acked);
        }
        self.reduce_in_proportion(acked);
    }

    fn grow(&mut self, acked: &Acked) {
        let packets = packets(acked.acked);
        let is_slow = self.window < self.threshold;
        let used = packets_in_flight(acked) * if is_slow { 2.0 } else { 1.0 } + 1.0;
        if used < self.window {
            return;
        }
        if is_slow {
            if self.hystart.as_mut().is_some_and(|one| one.on_acked(acked)) {
                self.threshold = self.window;
            }
            self.window += packets;
            return;
        }
        self.window = match &mut self.law {
            Law::Cubic(law) => law.grow(acked, self.window, packets, self.smoothed_ns),
            Law::Reno => self.window + packets / self.window,
        };
    }

    fn shrink(&mut self, acked: &Acked) {
        self.recovery = Some(Recovery {
            since_ns: acked.now_ns,
            before: packets(acked.former_in_flight).max(1.0),
            delivered: 0.0,
            sent: 0.0,
            lost: 0,
            spurious: 0,
            former: (self.window, self.threshold, self.largest()),
        });
        self.lower();
    }

    fn lower(&mut self) {
        let lowered = match &mut self.law {
            Law::Cubic(law) => law.shrink(self.window),
            Law::Reno => self.window * RENO_BETA,
        };
        self.window = lowered.max(LEAST);
        self.threshold = self.window;
    }

    /// RFC 6937, with the bound that lets slow start repair a flight of which too much is lost.
    fn reduce_in_proportion(&mut self, acked: &Acked) {
        let Some(recovery) = &mut self.recovery else {
            return;
        };
        recovery.lost += acked.lost;
        let (delivered, flight) = (packets(acked.acked), packets(acked.in_flight));
        recovery.delivered += delivered;
        let sendable = if flight > self.window {
            (recovery.delivered * self.window / recovery.before).ceil() - recovery.sent
        } else {
            let one = if acked.lost == 0 { 1.0 } else { 0.0 };
            let limit = (recovery.delivered - recovery.sent).max(delivered) + one;
            limit.min(self.window - flight)
        };
        self.permitted = flight + sendable.max(0.0);
    }

    /// RFC 9438 section 4.9: what counted as lost was not.
    fn undo(&mut self, acked: &Acked) {
        let Some(recovery) = &mut self.recovery else {
            return;
        };
        recovery.spurious += acked.spurious;
        if recovery.lost == 0 || recovery.spurious < recovery.lost {
            return;
        }
        let (window, threshold, largest) = recovery.former;
        self.recovery = None;
        (self.window, self.threshold) = (window, threshold);
        if let Law::Cubic(law) = &mut self.law {
            law.largest = largest;
            law.epoch_ns = None;
        }
    }

    fn on_timeout(&mut self) {
        self.lower();
        self.window = 1.0;
        self.recovery = None;
    }
}

fn packets(bytes: u64) -> f64 {
    bytes as f64 / PACKET as f64
}

fn packets_in_flight(acked: &Acked) -> f64 {
    packets(acked.former_in_flight)
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / NS_PER_S as f64
}

/// The whole part of a number that is not negative and far below the limits of either type.
fn whole(number: f64) -> u64 {
    std::time::Duration::from_secs_f64(number.max(0.0)).as_secs()
}

macro_rules! control {
    ($(#[$doc:meta])* $name:ident, $law:expr) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name(LossBased);

        impl Default for $name {
            fn default() -> Self {
                Self(LossBased::new($law))
            }
        }

        impl $name {
            /// The same, whose slow start ends when the delay grows.
            #[must_use]
            pub fn with_hystart() -> Self {
                let mut control = Self::default();
                control.0.hystart = Some(HyStart::default());
                control
            }
        }

        impl Rule for $name {
            fn window(&self) -> u64 {
                self.0.window()
            }

            fn on_sent(&mut self, _now_ns: u64, _in_flight: u64) {
                self.0.on_sent();
            }

            fn on_acked(&mut self, acked: &Acked) {
                self.0.on_acked(acked);
            }

            fn on_timeout(&mut self, _now_ns: u64, _lost: u64) {
                self.0.on_timeout();
            }
        }
    };
}

control!(
    /// CUBIC.
    Cubic,
    Law::Cubic(CubicLaw::default())
);
control!(
    /// Reno.
    Reno,
    Law::Reno
);
