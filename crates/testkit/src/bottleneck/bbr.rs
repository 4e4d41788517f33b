// SPDX-License-Identifier: Apache-2.0
//! BBR version 1 as Linux has it: the model of the path (greatest delivery rate of ten rounds, least round trip of
//! 10 s), its four states, the estimate for policers, the allowance for aggregated ACKs.

use std::collections::VecDeque;

use super::{Acked, NS_PER_S, PACKET, Rule, carried};
use crate::Rng;

/// In 1/256, as the kernel's.
const UNIT: u64 = 256;
const HIGH_GAIN: u64 = UNIT * 2885 / 1000 + 1;
const DRAIN_GAIN: u64 = UNIT * 1000 / 2885;
const WINDOW_GAIN: u64 = 2 * UNIT;
const CYCLE: [u64; 8] = [
    UNIT * 5 / 4,
    UNIT * 3 / 4,
    UNIT,
    UNIT,
    UNIT,
    UNIT,
    UNIT,
    UNIT,
];
/// Rounds in which a rate counts.
const RATE_ROUNDS: u64 = 10;
const LEAST_ROUND_TRIP_NS: u64 = 10 * NS_PER_S;
const PROBE_ROUND_TRIP_NS: u64 = NS_PER_S / 5;
const WINDOW_LEAST: u64 = 4 * PACKET;
const WINDOW_FIRST: u64 = 10 * PACKET;
/// The pipe is full after so many rounds without growth by a quarter.
const FULL_ROUNDS: u32 = 3;
/// Pacing leaves this part of the rate, in percent.
const PACED: u64 = 99;
/// The estimate for policers: rounds of an interval, its share of losses in 1/256, the difference of two rates in an
/// eighth of them or in bytes per second, and the rounds for which it is used.
const POLICED_ROUNDS: (u32, u32) = (4, 16);
const POLICED_LOSS: u64 = 50;
const POLICED_DIFFERENCE: u64 = 4000 / 8;
const POLICED_FOR: u32 = 48;
/// The rounds in which the excess of ACKs counts, and the longest time for which it is allowed.
const EXCESS_ROUNDS: u64 = 5;
const EXCESS_NS: u64 = NS_PER_S / 10;

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Startup,
    Drain,
    ProbeRate,
    ProbeRoundTrip,
}

/// Looks for a policer: two intervals with losses at both ends and the same rate.
#[derive(Debug, Default)]
struct Policed {
    is_sampling: bool,
    rounds: u32,
    rate: u64,
    is_used: bool,
    since_ns: u64,
    delivered: u64,
    lost: u64,
}

/// BBR.
#[derive(Debug)]
pub struct Bbr {
    rng: Rng,
    state: State,
    /// Rates by round, the greatest first.
    rates: VecDeque<(u64, u64)>,
    rounds: u64,
    round_ends: u64,
    is_round_start: bool,
    least_ns: u64,
    least_at_ns: u64,
    probe_ends_ns: Option<u64>,
    probe_round_over: bool,
    full_rate: u64,
    full_rounds: u32,
    is_full: bool,
    phase: usize,
    phase_ns: u64,
    pacing: u64,
    window: u64,
    prior_window: u64,
    /// Recovery: until a packet that was sent after this is acknowledged; whether it is in its first round.
    recovery_ns: Option<u64>,
    is_conserving: bool,
    lost: u64,
    policed: Policed,
    excess: [(u64, u64); 2],
    excess_since_ns: u64,
    excess_acked: u64,
    is_idle_restart: bool,
}

impl Default for Bbr {
    fn default() -> Self {
        Self::new(1)
    }
}

impl Bbr {
    /// One whose cycle begins at a phase that follows from `seed`.
    pub fn new(seed: u64) -> Self {
        Self {
            rng: Rng::new(seed),
            state: State::Startup,
            rates: VecDeque::new(),
            rounds: 0,
            round_ends: 0,
            is_round_start: false,
            least_ns: u64::MAX,
            least_at_ns: 0,
            probe_ends_ns: None,
            probe_round_over: false,
            full_rate: 0,
            full_rounds: 0,
            is_full: false,
            phase: 0,
            phase_ns: 0,
            pacing: 0,
            window: WINDOW_FIRST,
            prior_window: 0,
            recovery_ns: None,
            is_conserving: false,
            lost: 0,
            policed: Policed::default(),
            excess: [(0, 0); 2],
            excess_since_ns: 0,
            excess_acked: 0,
            is_idle_restart: false,
        }
    }

    fn greatest(&self) -> u64 {
        self.rates.front().map_or(0, |(_, rate)| *rate)
    }

    fn rate(&self) -> u64 {
        if self.policed.is_used {
            self.policed.rate
        } else {
            self.greatest()
        }
    }

    fn pacing_gain(&self) -> u64 {
        match self.state {
            State::Startup => HIGH_GAIN,
            State::Drain => DRAIN_GAIN,
            State::ProbeRate if self.policed.is_used => UNIT,
            State::ProbeRate => CYCLE[self.phase],
            State::ProbeRoundTrip => UNIT,
        }
    }

    fn window_gain(&self) -> u64 {
        match self.state {
            State::Startup | State::Drain => HIGH_GAIN,
            State::ProbeRate => WINDOW_GAIN,
            State::ProbeRoundTrip => UNIT,
        }
    }

    /// What a burst of the pacer has: a millisecond's, within the kernel's bounds.
    fn burst(&self) -> u64 {
        let least = if self.pacing < 150_000 { 1 } else { 2 };
        (self.pacing / 1000).clamp(least * PACKET, 64_000)
    }

    fn held(&self, gain: u64) -> u64 {
        if self.least_ns == u64::MAX {
            return WINDOW_FIRST;
        }
        (carried(self.rate(), self.least_ns) * gain).div_ceil(UNIT)
    }

    /// What may be in flight by a gain: what the path holds, and what keeps bursts and ACKs in pairs going.
    fn in_flight_by(&self, gain: u64) -> u64 {
        let packets = (self.held(gain) + 3 * self.burst()).div_ceil(PACKET);
        let further = if self.state == State::ProbeRate && self.phase == 0 {
            2
        } else {
            0
        };
        (packets.next_multiple_of(2) + further) * PACKET
    }

    fn on_round(&mut self, acked: &Acked) {
        self.is_round_start = acked.acked > 0 && acked.rate.prior_delivered >= self.round_ends;
        if self.is_round_start {
            self.round_ends = acked.delivered;
            self.rounds += 1;
            self.is_conserving = false;
        }
    }

    fn on_rate(&mut self, acked: &Acked) {
        self.sample_policer(acked);
        let sample = acked.rate;
        if sample.interval_ns == 0 || sample.interval_ns < self.least_ns.min(acked.rtt_ns) {
            return;
        }
        let rate = sample.rate();
        if !sample.is_app_limited || rate >= self.rate() {
            while self.rates.back().is_some_and(|(_, last)| *last <= rate) {
                self.rates.pop_back();
            }
            self.rates.push_back((self.rounds, rate));
        }
        let is_old = |one: &(u64, u64)| one.0 + RATE_ROUNDS < self.rounds;
        while self.rates.len() > 1 && self.rates.front().is_some_and(is_old) {
            self.rates.pop_front();
        }
    }

    fn sample_policer(&mut self, acked: &Acked) {
        if self.policed.is_used {
            let counts = self.state == State::ProbeRate && self.is_round_start;
            self.policed.rounds += u32::from(counts);
            if self.policed.rounds >= POLICED_FOR {
                self.reset_policed(acked);
                self.policed.is_used = false;
                self.policed.rate = 0;
                self.begin_cycle(acked);
            }
            return;
        }
        if !self.policed.is_sampling {
            if acked.lost == 0 {
                return;
            }
            self.reset_policed(acked);
            self.policed.is_sampling = true;
        }
        if acked.rate.is_app_limited {
            self.reset_policed(acked);
            return;
        }
        self.policed.rounds += u32::from(self.is_round_start);
        if self.policed.rounds < POLICED_ROUNDS.0 {
            return;
        }
        if self.policed.rounds > POLICED_ROUNDS.1 {
            self.reset_policed(acked);
            return;
        }
        self.end_interval(acked);
    }

    fn end_interval(&mut self, acked: &Acked) {
        let lost = self.lost - self.policed.lost;
        let delivered = acked.delivered - self.policed.delivered;
        if acked.lost == 0 || delivered == 0 || lost * UNIT < delivered * POLICED_LOSS {
            return;
        }
        let time = acked.now_ns - self.policed.since_ns;
        if time < NS_PER_S / 1000 {
            return;
        }
        let rate = delivered.saturating_mul(NS_PER_S) / time;
        let difference = rate.abs_diff(self.policed.rate);
        let is_same = difference * 8 <= self.policed.rate || difference <= POLICED_DIFFERENCE;
        if self.policed.rate > 0 && is_same {
            self.policed.rate = rate.midpoint(self.policed.rate);
            self.policed.is_used = true;
            self.policed.rounds = 0;
            return;
        }
        self.policed.rate = rate;
        self.begin_interval(acked);
    }

    fn begin_interval(&mut self, acked: &Acked) {
        self.policed.since_ns = acked.now_ns;
        self.policed.delivered = acked.delivered;
        self.policed.lost = self.lost;
        self.policed.rounds = 0;
    }

    fn reset_policed(&mut self, acked: &Acked) {
        self.policed.is_sampling = false;
        self.policed.is_used = false;
        self.policed.rate = 0;
        self.begin_interval(acked);
    }

    /// More than the rate explains is acknowledged at once: so much more may be in flight.
    fn on_excess(&mut self, acked: &Acked) {
        if self.is_round_start && self.rounds.is_multiple_of(EXCESS_ROUNDS) {
            self.excess = [(self.excess[1].0, 0), (0, 0)];
        }
        let expected = carried(
            self.rate(),
            acked.now_ns.saturating_sub(self.excess_since_ns),
        );
        if self.excess_acked <= expected {
            self.excess_since_ns = acked.now_ns;
            self.excess_acked = 0;
        }
        let expected = if self.excess_acked == 0 { 0 } else { expected };
        self.excess_acked += acked.acked;
        let excess = (self.excess_acked.saturating_sub(expected)).min(self.window);
        self.excess[1].0 = self.excess[1].0.max(excess);
    }

    fn allowed_excess(&self) -> u64 {
        if !self.is_full {
            return 0;
        }
        let most = carried(self.rate(), EXCESS_NS);
        self.excess[0].0.max(self.excess[1].0).min(most)
    }

    fn begin_cycle(&mut self, acked: &Acked) {
        self.state = State::ProbeRate;
        // Any phase but the one that drains.
        self.phase = CYCLE.len() - 1 - self.rng.below(7_usize);
        self.next_phase(acked);
    }

    fn next_phase(&mut self, acked: &Acked) {
        self.phase = (self.phase + 1) % CYCLE.len();
        self.phase_ns = acked.now_ns;
    }

    fn on_cycle(&mut self, acked: &Acked) {
        if self.state != State::ProbeRate {
            return;
        }
        let is_long = acked.now_ns - self.phase_ns > self.least_ns;
        let gain = self.pacing_gain();
        let before = acked.former_in_flight;
        let is_over = match gain {
            UNIT => is_long,
            _ if gain > UNIT => is_long && (acked.lost > 0 || before >= self.in_flight_by(gain)),
            _ => is_long || before <= self.in_flight_by(UNIT),
        };
        if is_over {
            self.next_phase(acked);
        }
    }

    fn check_full(&mut self, acked: &Acked) {
        if self.is_full || !self.is_round_start || acked.rate.is_app_limited {
            return;
        }
        if self.greatest() * 4 >= self.full_rate * 5 {
            (self.full_rate, self.full_rounds) = (self.greatest(), 0);
            return;
        }
        self.full_rounds += 1;
        self.is_full = self.full_rounds >= FULL_ROUNDS;
    }

    fn check_drain(&mut self, acked: &Acked) {
        if self.state == State::Startup && self.is_full {
            self.state = State::Drain;
        }
        if self.state == State::Drain && acked.in_flight <= self.in_flight_by(UNIT) {
            self.begin_cycle(acked);
        }
    }

    fn on_round_trip(&mut self, acked: &Acked) {
        let now = acked.now_ns;
        let has_expired = self.least_ns != u64::MAX && now > self.least_at_ns + LEAST_ROUND_TRIP_NS;
        if acked.rtt_ns > 0 && (acked.rtt_ns <= self.least_ns || has_expired) {
            (self.least_ns, self.least_at_ns) = (acked.rtt_ns, now);
        }
        if has_expired && !self.is_idle_restart && self.state != State::ProbeRoundTrip {
            self.state = State::ProbeRoundTrip;
            self.prior_window = self.prior_window.max(self.window);
            self.probe_ends_ns = None;
        }
        if self.state == State::ProbeRoundTrip {
            self.probe_round_trip(acked);
        }
        self.is_idle_restart &= acked.acked == 0;
    }

    fn probe_round_trip(&mut self, acked: &Acked) {
        let Some(ends) = self.probe_ends_ns else {
            if acked.in_flight <= WINDOW_LEAST {
                self.probe_ends_ns = Some(acked.now_ns + PROBE_ROUND_TRIP_NS);
                self.probe_round_over = false;
                self.round_ends = acked.delivered;
            }
            return;
        };
        self.probe_round_over |= self.is_round_start;
        if self.probe_round_over && acked.now_ns > ends {
            self.least_at_ns = acked.now_ns;
            self.window = self.window.max(self.prior_window);
            if self.is_full {
                self.begin_cycle(acked);
            } else {
                self.state = State::Startup;
            }
        }
    }

    fn set_pacing(&mut self, acked: &Acked) {
        if self.pacing == 0 && acked.rtt_ns > 0 {
            self.pacing = WINDOW_FIRST * NS_PER_S / acked.rtt_ns * HIGH_GAIN / UNIT;
        }
        let rate = self.rate() * self.pacing_gain() / UNIT * PACED / 100;
        if rate > 0 && (self.is_full || rate > self.pacing) {
            self.pacing = rate;
        }
    }

    /// In the first round of a recovery as much is sent as is delivered. Whether the window is set by that.
    fn on_recovery(&mut self, acked: &Acked) -> bool {
        if acked.lost > 0 {
            self.window = self.window.saturating_sub(acked.lost).max(PACKET);
        }
        match self.recovery_ns {
            None if acked.lost > 0 => {
                self.prior_window = match self.state {
                    State::ProbeRoundTrip => self.prior_window.max(self.window),
                    _ => self.window + acked.lost,
                };
                self.recovery_ns = Some(acked.now_ns);
                self.is_conserving = true;
                self.round_ends = acked.delivered;
                self.window = acked.in_flight + acked.acked;
            }
            Some(since) if acked.sent_ns >= since && acked.lost == 0 => {
                self.recovery_ns = None;
                self.is_conserving = false;
                self.window = self.window.max(self.prior_window);
            }
            _ => {}
        }
        if self.is_conserving {
            self.window = self.window.max(acked.in_flight + acked.acked);
        }
        self.is_conserving
    }

    fn set_window(&mut self, acked: &Acked) {
        if acked.acked > 0 && !self.on_recovery(acked) {
            let target = self.in_flight_by(self.window_gain()) + self.allowed_excess();
            let grown = self.window + acked.acked;
            if self.is_full {
                self.window = grown.min(target);
            } else if self.window < target || acked.delivered < WINDOW_FIRST {
                self.window = grown;
            }
            self.window = self.window.max(WINDOW_LEAST);
        }
        if self.state == State::ProbeRoundTrip {
            self.window = self.window.min(WINDOW_LEAST);
        }
    }
}

impl Rule for Bbr {
    fn window(&self) -> u64 {
        self.window
    }

    fn pacing(&self, smoothed_ns: u64) -> u64 {
        match self.pacing {
            0 => WINDOW_FIRST * NS_PER_S / smoothed_ns * HIGH_GAIN / UNIT,
            pacing => pacing,
        }
    }

    fn on_sent(&mut self, now_ns: u64, in_flight: u64) {
        if in_flight > 0 || self.rates.is_empty() {
            return;
        }
        self.is_idle_restart = true;
        (self.excess_since_ns, self.excess_acked) = (now_ns, 0);
        if self.state == State::ProbeRate {
            self.pacing = self.rate() * PACED / 100;
        }
    }

    fn on_acked(&mut self, acked: &Acked) {
        self.lost += acked.lost;
        self.on_round(acked);
        self.on_rate(acked);
        self.on_excess(acked);
        self.on_cycle(acked);
        self.check_full(acked);
        self.check_drain(acked);
        self.on_round_trip(acked);
        self.set_pacing(acked);
        self.set_window(acked);
    }

    fn on_timeout(&mut self, now_ns: u64, lost: u64) {
        self.lost += lost;
        self.prior_window = self.prior_window.max(self.window);
        self.full_rate = 0;
        self.window = PACKET;
        self.recovery_ns = Some(now_ns);
        self.is_conserving = false;
    }
}
