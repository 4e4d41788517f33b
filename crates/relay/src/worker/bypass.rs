// SPDX-License-Identifier: Apache-2.0
//! Relays that leave their flows to the packet path (docs/design/0023). No event reports what they
//! wait for, so the worker looks at them at short intervals.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::io;
use std::time::Duration;

use crate::intercept::{BypassEnds, BypassStep, Intercept};
use crate::outcome::Outcome;
use crate::policy::Bypass;
use crate::side::{Side, Sides};
use crate::sys::{self, LegState};

use super::Worker;
use super::entry::{Entry, State};

/// Bytes that a relay moves before it may leave: shorter flows end before it would pay.
const MOVED_MIN: u64 = 1 << 20;
/// How many times its backlog a flow has moved: the rest of it should be long as well, or it would
/// end while the relay drains.
const BACKLOG_SHARE: u64 = 10;
/// Round trips of both connections after which slow start is over, whose window doubles in each.
const ROUNDS_MIN: u32 = 20;
/// An end sends if it has sent one of so many bytes of the flow: the rest answers.
const SENDER_SHARE: u64 = 10;
/// Round trips that may be added to any: BBR's window has room for so much.
const ROUND_SLACK: Duration = Duration::from_millis(2);
/// Receive window of the sockets of a relay that leaves: what it may still promise an end, within what the other
/// end has room for.
const CLAMP_MAX: u64 = 256 << 10;
/// The least, so that no sender waits for each segment.
const CLAMP_MIN: u64 = 32 << 10;
/// How long an attempt may take before the relay stays.
const CLAMP_TIME_MAX: Duration = Duration::from_secs(10);
/// How long a relay stays before its next attempt: one that took too long, as on a busy machine, may
/// succeed later. A thirtieth of the time at most the clamp slows the flow.
const STAY_TIME: Duration = Duration::from_mins(5);
/// Interval between two looks at a relay that leaves.
const LOOK: Duration = Duration::from_millis(2);
/// How long copies of segments may be on their way in the kernel. One that found no socket would be
/// answered with a reset.
const QUIET: Duration = Duration::from_millis(100);

/// Which relays leave, and when to look at them.
#[derive(Debug, Default)]
pub(super) struct Leaving {
    relays: HashMap<u64, Stage>,
    due: BinaryHeap<Reverse<(Duration, u64)>>,
}

/// How far a relay has come.
#[derive(Clone, Copy, Debug)]
enum Stage {
    /// Segments that it received out of order may lie before the pair had its numbers.
    Learning {
        /// Bytes received, and the window behind them, when the pair had its numbers.
        begun: Option<Sides<(u64, u32)>>,
        until: Duration,
    },
    Clamping {
        until: Duration,
    },
    Draining,
    Closing {
        since: Duration,
    },
    /// It tried to leave and stays, until a time if it was only too slow.
    Stayed {
        until: Option<Duration>,
    },
}

impl Stage {
    /// What follows an attempt that would have lasted until `limit`. Before, it was given up because an
    /// end closes, or sends what the programs cannot divide.
    fn stayed(limit: Duration, now: Duration) -> Self {
        let until = (now >= limit).then_some(now + STAY_TIME);
        Self::Stayed { until }
    }
}

impl Leaving {
    /// When the next look is due.
    pub(super) fn deadline(&self) -> Option<Duration> {
        self.due.peek().map(|Reverse((due, _))| *due)
    }

    /// Whether a relay may begin to leave: it neither does nor has tried in vain.
    pub(super) fn may_begin(&self, key: u64, now: Duration) -> bool {
        match self.relays.get(&key) {
            None => true,
            Some(Stage::Stayed { until }) => until.is_some_and(|until| now >= until),
            Some(_) => false,
        }
    }

    /// Whether a relay is about to leave, with windows of its own.
    pub(super) fn has_begun(&self, key: u64) -> bool {
        let stage = self.relays.get(&key);
        stage.is_some_and(|stage| !matches!(stage, Stage::Stayed { .. }))
    }

    fn take(&mut self, now: Duration) -> Option<u64> {
        self.deadline().filter(|due| *due <= now)?;
        self.due.pop().map(|Reverse((_, key))| key)
    }

    fn set(&mut self, key: u64, stage: Stage, now: Duration) {
        self.relays.insert(key, stage);
        if !matches!(stage, Stage::Stayed { .. }) {
            self.due.push(Reverse((now + LOOK, key)));
        }
    }
}

/// Whether the flow would be no slower without its relay, and the packet path can carry it.
fn is_eligible(legs: &Sides<LegState>, age: Duration) -> bool {
    let each = |holds: fn(&LegState) -> bool| legs.0.iter().all(holds);
    let [down, up] = &legs.0;
    each(|leg| leg.is_steady && leg.has_options && leg.window > 0)
        && age >= ROUNDS_MIN * (down.round + up.round)
        && (down.ecn, down.advertised_mss, down.mtu) == (up.ecn, up.advertised_mss, up.mtu)
        && !is_window_limited(down, up)
        && !is_window_limited(up, down)
}

/// Whether losses bound its rate: without the relay they would do so over both round trips. On
/// average, losses of a share p leave a sender a window of sqrt(3 / 2p) segments (Mathis et al., The
/// macroscopic behavior of the TCP congestion avoidance algorithm, 1997).
fn is_loss_limited(legs: &Sides<LegState>, age: Duration) -> bool {
    let sum = |figure: fn(&LegState) -> u64| legs.0.iter().map(|leg| u128::from(figure(leg))).sum();
    let (lost, segments): (u128, u128) = (sum(|leg| leg.lost), sum(|leg| leg.segments));
    let micros: u128 = legs.0.iter().map(|leg| leg.round.as_micros()).sum();
    legs.0.iter().any(|leg| {
        let mss = u128::from(leg.advertised_mss.max(1));
        // The recent rate is low while a loss is repaired.
        let average = u128::from(leg.acked) * 1_000_000 / age.as_micros().max(1);
        let rate = average.max(leg.delivery_rate.into());
        let window = rate * micros / 1_000_000 / mss;
        2 * window * window * lost > 3 * segments
    })
}

/// Whether an end that sends would take its new round trip for a queue. BBR does if it is more than
/// twice the least one of the last 10 s, which bounds what it has in flight
/// (draft-ietf-ccwg-bbr). Nothing in its segments shows which congestion control it uses.
fn seems_queued(legs: &Sides<LegState>) -> bool {
    let [down, up] = &legs.0;
    let (round, moved) = (down.round + up.round, down.received + up.received);
    legs.0.iter().any(|leg| {
        let sends = leg.received.saturating_mul(SENDER_SHARE) >= moved;
        sends && round > 2 * leg.round + ROUND_SLACK
    })
}

/// What may be promised a sender whose receiver has so much room: less than that by a quarter, as segments come in
/// bursts. A slow flow's receiver never offers much.
fn clamp_of(room: u64) -> u64 {
    (room / 4 * 3).clamp(CLAMP_MIN, CLAMP_MAX)
}

/// Whether the window of an end is too small for its rate over both round trips.
fn is_window_limited(to: &LegState, from: &LegState) -> bool {
    let round = (to.round + from.round).as_micros();
    let needed = u128::from(to.delivery_rate) * round / 1_000_000;
    needed > to.peer_window.into()
}

impl Entry {
    /// Whether its relay may leave, as far as that shows without a system call.
    pub(super) fn may_leave(&self) -> bool {
        let State::Open(relay) = &self.state else {
            return false;
        };
        let rule = &self.rule.rule;
        let moved: u64 = Side::BOTH.map(|side| relay.moved_from(side)).iter().sum();
        rule.bypass != Bypass::Off
            && !rule.proxy_protocol
            && moved >= MOVED_MIN
            && self.is_in_transit()
            && !relay.closing()
            && relay.lingers_for().is_none()
    }

    fn legs(&self) -> io::Result<Sides<LegState>> {
        let leg = |side| {
            let socket = self.sockets[side].as_ref();
            let socket = socket.ok_or(io::ErrorKind::NotConnected)?;
            // Its data sequence numbers are in options, which the packet path does not translate.
            if sys::is_multipath(socket) {
                return Err(io::ErrorKind::Unsupported.into());
            }
            sys::leg_state(socket)
        };
        Ok(Sides([leg(Side::Downstream)?, leg(Side::Upstream)?]))
    }

    /// The sum of a figure of both sockets, in bytes.
    fn sum_of(&self, bytes: impl Fn(&std::os::fd::OwnedFd) -> io::Result<u64>) -> io::Result<u64> {
        let open = self.sockets.0.iter().flatten();
        open.map(bytes).sum()
    }

    /// Whether its server sees the client's address and port: else there are two flows to translate
    /// between.
    fn keeps_addresses(&self) -> bool {
        let upstream = self.sockets[Side::Upstream].as_ref();
        let local = upstream.and_then(|socket| sys::local_address(socket).ok());
        local == Some(self.flow.client())
    }

    /// What the kernel counts as acknowledged by each end beyond the bytes written to it. `None`
    /// while acknowledgements arrive.
    fn skew(&self) -> Option<[u32; 2]> {
        let State::Open(relay) = &self.state else {
            return None;
        };
        let skew = |side: Side| {
            let socket = self.sockets[side].as_ref()?;
            let before = sys::leg_state(socket).ok()?.acked;
            let unacked = sys::unacked_bytes(socket).ok()?;
            let after = sys::leg_state(socket).ok()?.acked;
            let written = relay.moved_from(!side);
            let skew = (before + unacked).checked_sub(written)?;
            (before == after)
                .then(|| u32::try_from(skew).ok())
                .flatten()
        };
        Some([skew(Side::Downstream)?, skew(Side::Upstream)?])
    }

    /// Lets the relay promise no end more than the other has room for, behind what the relay still has for it.
    fn clamp(&self, legs: &Sides<LegState>) {
        for side in Side::BOTH {
            let (Some(from), Some(to)) = (&self.sockets[side], &self.sockets[!side]) else {
                continue;
            };
            let backlog =
                sys::unread_bytes(from).unwrap_or(0) + sys::unacked_bytes(to).unwrap_or(0);
            let room = u64::from(legs[!side].peer_window).saturating_sub(backlog);
            // Without it the relay stays, as its windows do not become small enough.
            let _ = sys::set_window_clamp(from, Some(clamp_of(room)));
        }
    }

    fn lift_clamp(&self) {
        for socket in self.sockets.0.iter().flatten() {
            // It is as before: nothing else has bounded the window.
            let _ = sys::set_window_clamp(socket, None);
        }
    }

    /// Whether nothing lies in the sockets that was received out of order before the pair had its
    /// numbers: it would be taken for the ends' own.
    fn has_settled(&self, begun: &Sides<(u64, u32)>, legs: &Sides<LegState>) -> bool {
        Side::BOTH.iter().all(|side| {
            let (received, window) = begun[*side];
            let is_past = legs[*side].received > received + u64::from(window);
            let socket = self.sockets[*side].as_ref();
            is_past || socket.is_some_and(|socket| sys::is_empty(socket).unwrap_or(false))
        })
    }
}

impl<I: Intercept> Worker<I> {
    /// Lets a relay leave, if its flow needs it no longer.
    pub(super) fn begin_bypass(&mut self, key: u64) {
        let Some(entry) = self.entries.live_mut(key) else {
            return;
        };
        let Ok(legs) = entry.legs() else {
            return;
        };
        let State::Open(relay) = &entry.state else {
            return;
        };
        let moved: u64 = Side::BOTH.map(|side| relay.moved_from(side)).iter().sum();
        let backlog = entry
            .sum_of(sys::unacked_bytes)
            .and_then(|unacked| Ok(unacked + entry.sum_of(sys::unread_bytes)?));
        let is_long = backlog.is_ok_and(|backlog| moved >= BACKLOG_SHARE * backlog);
        let age = entry.age(self.now);
        let is_free = entry.rule.rule.bypass == Bypass::Always
            || !(is_loss_limited(&legs, age) || seems_queued(&legs));
        let is_eligible = is_long && is_free && is_eligible(&legs, age);
        if !is_eligible || !entry.keeps_addresses() {
            return;
        }
        let Some(skew) = entry.skew() else {
            return;
        };
        let ends = BypassEnds {
            shifts: legs.0.map(|leg| leg.shifts),
            skew,
        };
        let until = self.now + CLAMP_TIME_MAX;
        let begun = self.intercept.begin_bypass(&entry.flow, &ends, until);
        let stage = match begun {
            Ok(()) => Stage::Learning { begun: None, until },
            Err(_) => Stage::stayed(self.now, self.now),
        };
        if begun.is_ok() {
            self.counters.bypasses_begun.add(1);
            entry.clamp(&legs);
        }
        self.leaving.set(key, stage, self.now);
    }

    /// Advances the relays that leave and are due.
    pub(super) fn look_at_leaving(&mut self) {
        while let Some(key) = self.leaving.take(self.now) {
            let Some(stage) = self.leaving.relays.get(&key).copied() else {
                continue;
            };
            match stage {
                Stage::Learning { begun, until } => self.learn_numbers(key, begun, until),
                Stage::Clamping { until } => self.clamp(key, until),
                Stage::Draining => self.step_bypass(key, stage),
                Stage::Closing { since } if self.now >= since + QUIET => self.close_silently(key),
                Stage::Closing { .. } => self.leaving.set(key, stage, self.now),
                Stage::Stayed { .. } => {}
            }
        }
    }

    /// Reads the numbers of the sockets. `None` while they change too fast.
    fn read_numbers(&mut self, key: u64) -> Option<Sides<LegState>> {
        let entry = self.entries.get(key)?;
        let legs = entry.legs().ok()?;
        // Again and again: the kernel raises it when it enlarges a receive buffer.
        entry.clamp(&legs);
        let windows = legs.0.map(|leg| leg.window);
        let learned = self.intercept.learn_bypass(&entry.flow, windows);
        learned.then_some(legs)
    }

    fn learn_numbers(&mut self, key: u64, begun: Option<Sides<(u64, u32)>>, until: Duration) {
        if self.now >= until {
            return self.stay(key, until);
        }
        let Some(legs) = self.read_numbers(key) else {
            return self
                .leaving
                .set(key, Stage::Learning { begun, until }, self.now);
        };
        let entry = self.entries.get(key);
        let settled =
            begun.is_some_and(|begun| entry.is_some_and(|entry| entry.has_settled(&begun, &legs)));
        let stage = if settled {
            Stage::Clamping { until }
        } else {
            let now = Sides(legs.0.map(|leg| (leg.received, leg.window)));
            let begun = Some(begun.unwrap_or(now));
            Stage::Learning { begun, until }
        };
        self.leaving.set(key, stage, self.now);
    }

    fn clamp(&mut self, key: u64, until: Duration) {
        let stage = Stage::Clamping { until };
        if self.read_numbers(key).is_some() {
            return self.step_bypass(key, stage);
        }
        self.leaving.set(key, stage, self.now);
    }

    fn step_bypass(&mut self, key: u64, stage: Stage) {
        let Some(entry) = self.entries.get(key) else {
            return;
        };
        let next = match self.intercept.step_bypass(&entry.flow, self.now) {
            BypassStep::GiveUp => {
                let limit = match stage {
                    Stage::Clamping { until } => until,
                    _ => Duration::MAX,
                };
                return self.stay(key, limit);
            }
            BypassStep::Clamp => stage,
            BypassStep::Drain => Stage::Draining,
            BypassStep::Close => Stage::Closing { since: self.now },
            BypassStep::Reset => return self.end(key, Outcome::Internal),
        };
        if matches!((stage, next), (Stage::Clamping { .. }, Stage::Draining)) {
            self.counters.bypasses_cut.add(1);
        }
        self.leaving.set(key, next, self.now);
    }

    /// Gives the attempt up, which would have lasted until `limit`: nothing has changed.
    fn stay(&mut self, key: u64, limit: Duration) {
        self.counters.bypasses_given_up.add(1);
        self.leaving
            .set(key, Stage::stayed(limit, self.now), self.now);
        if let Some(entry) = self.entries.get(key) {
            self.intercept.end_bypass(&entry.flow);
            entry.lift_clamp();
        }
    }

    /// The ends have all that was this relay's. Its sockets go, and neither end sees that.
    fn close_silently(&mut self, key: u64) {
        self.leaving.relays.remove(&key);
        let Some(entry) = self.entries.get(key) else {
            return;
        };
        let flow = entry.flow;
        for socket in entry.sockets.0.iter().flatten() {
            // If it fails, the programs still drop what the socket sends.
            let _ = sys::silence(socket);
        }
        self.end(key, Outcome::Bypassed);
        // Without room there the flow stays a pair, which is translated too.
        self.intercept.settle_bypass(&flow);
    }

    /// A relay that was about to leave has ended. Before its cuts, its FIN and RST reach the ends.
    /// After, its ends have numbers that only the programs translate: these reset them, once nobody
    /// looks after the pair.
    pub(super) fn stop_leaving(&mut self, key: u64) {
        let stage = self.leaving.relays.remove(&key);
        let is_before = matches!(stage, Some(Stage::Learning { .. } | Stage::Clamping { .. }));
        if let (true, Some(entry)) = (is_before, self.entries.get(key)) {
            self.intercept.end_bypass(&entry.flow);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGE: Duration = Duration::from_secs(1);

    fn leg() -> LegState {
        LegState {
            is_steady: true,
            has_options: true,
            ecn: false,
            shifts: (7, 7),
            advertised_mss: 1460,
            mtu: 1500,
            round: Duration::from_millis(20),
            delivery_rate: 10_000_000,
            peer_window: 1 << 20,
            received: 0,
            acked: 0,
            lost: 0,
            segments: 25_000,
            window: 65536,
        }
    }

    #[test]
    fn steady_flows_are_left() {
        assert!(is_eligible(&Sides([leg(), leg()]), AGE));
    }

    #[test]
    fn promises_fit_what_the_other_end_has_room_for() {
        assert_eq!(clamp_of(0), CLAMP_MIN, "a full one still gets segments");
        assert_eq!(clamp_of(100_000), 75_000);
        assert_eq!(clamp_of(6 << 20), CLAMP_MAX);
    }

    #[test]
    fn longer_round_trips_of_senders() {
        let leg = |millis, received| LegState {
            round: Duration::from_millis(millis),
            received,
            ..leg()
        };
        // A download: the server's round trip counts, and the client's does not.
        assert!(!seems_queued(&Sides([leg(20, 1000), leg(20, 1_000_000)])));
        assert!(!seems_queued(&Sides([leg(20, 1000), leg(40, 1_000_000)])));
        assert!(seems_queued(&Sides([leg(40, 1000), leg(20, 1_000_000)])));
        assert!(!seems_queued(&Sides([leg(40, 1_000_000), leg(20, 1000)])));
        // Both ends send.
        assert!(seems_queued(&Sides([
            leg(20, 1_000_000),
            leg(40, 1_000_000)
        ])));
        assert!(
            !seems_queued(&Sides([leg(2, 0), leg(1, 1_000_000)])),
            "a near one"
        );
    }

    #[test]
    fn flows_that_need_their_relay_are_not() {
        let others = [
            LegState {
                is_steady: false,
                ..leg()
            },
            LegState {
                has_options: false,
                ..leg()
            },
            LegState {
                round: Duration::from_millis(31),
                ..leg()
            },
            LegState { window: 0, ..leg() },
            LegState { ecn: true, ..leg() },
            LegState {
                advertised_mss: 1440,
                ..leg()
            },
            LegState { mtu: 1400, ..leg() },
            // 10 MB/s over 40 ms.
            LegState {
                peer_window: 399_999,
                ..leg()
            },
        ];
        for other in others {
            assert!(!is_eligible(&Sides([leg(), other]), AGE), "{other:?}");
            assert!(!is_eligible(&Sides([other, leg()]), AGE), "{other:?}");
        }
    }

    /// 10 MB/s over 40 ms are 273 segments, so one loss in 49,686 bounds the rate.
    #[test]
    fn lossy_flows_keep_their_relay() {
        let lost = |lost, segments| LegState {
            lost,
            segments,
            ..leg()
        };
        let limited = |down, up| is_loss_limited(&Sides([down, up]), AGE);
        assert!(!limited(leg(), leg()));
        assert!(!limited(lost(1, 24_700), leg()));
        assert!(limited(lost(1, 24_600), leg()));
        assert!(limited(leg(), lost(1, 24_600)));
        let slow = LegState {
            delivery_rate: 0,
            ..lost(250, 25_000)
        };
        assert!(!limited(slow, slow));
        let acked = 10_000_000;
        assert!(limited(LegState { acked, ..slow }, slow), "until now fast");
    }

    #[test]
    fn slow_attempts_are_repeated() {
        let at = Duration::from_secs;
        let mut leaving = Leaving::default();
        assert!(leaving.may_begin(7, at(1)));
        leaving.set(7, Stage::Clamping { until: at(11) }, at(1));
        assert!(!leaving.may_begin(7, at(10)));
        leaving.set(7, Stage::stayed(at(11), at(11)), at(11));
        assert!(!leaving.may_begin(7, at(310)));
        assert!(leaving.may_begin(7, at(311)));
        leaving.set(8, Stage::stayed(at(11), at(10)), at(10));
        assert!(!leaving.may_begin(8, at(1_000_000)), "an end closes");
    }

    #[test]
    fn looks_follow_until_it_stays() {
        let at = Duration::from_millis;
        let mut leaving = Leaving::default();
        let stage = Stage::Clamping { until: at(10_000) };
        leaving.set(7, stage, at(100));
        assert_eq!(leaving.deadline(), Some(at(102)));
        assert_eq!(leaving.take(at(101)), None);
        assert_eq!(leaving.take(at(102)), Some(7));
        leaving.set(7, Stage::stayed(at(10_000), at(102)), at(102));
        assert_eq!(leaving.deadline(), None);
    }
}
