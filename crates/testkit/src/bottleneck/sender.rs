// SPDX-License-Identifier: Apache-2.0
//! What senders have in common: pacing in small bursts, detection of losses by number and time (RACK, RFC 8985), a
//! probe of the tail, the retransmission time-out (RFC 6298), samples of the delivery rate.
//!
//! Every packet has a number of its own. What is lost counts as not sent yet.

use std::collections::VecDeque;
use std::time::Duration;

use super::receiver::Arrival;
use super::{NS_PER_S, PACKET, Rule, carried, ns, time_for};

/// Packets acknowledged beyond one that show that it is lost.
const REORDERED_MAX: u64 = 3;
/// What a pacer lets go at once: the packets of a millisecond, and two at least.
const BURST_NS: u64 = NS_PER_S / 1000;
const BURST_LEAST: u64 = 2 * PACKET;
/// The least time-out beyond the smoothed round trip, and how often it doubles.
const TIMEOUT_NS: u64 = NS_PER_S / 5;
const DOUBLED_MAX: u32 = 6;
/// The time that a receiver may wait with an ACK for a single packet.
const DELAYED_NS: u64 = NS_PER_S / 25;

/// What one acknowledgement shows. In bytes and nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Acked {
    /// When it came.
    pub now_ns: u64,
    /// When the newest packet was sent that it acknowledges, and how long ago that is.
    pub sent_ns: u64,
    pub rtt_ns: u64,
    /// Newly acknowledged, and of that: with a congestion mark, and after it had counted as lost.
    pub acked: u64,
    pub marked: u64,
    pub spurious: u64,
    /// Newly found lost.
    pub lost: u64,
    /// In flight now, and before.
    pub in_flight: u64,
    pub former_in_flight: u64,
    /// Whether the sender has more to send.
    pub has_more: bool,
    /// All that was ever delivered.
    pub delivered: u64,
    /// The delivery rate.
    pub rate: RateSample,
}

/// A sample of the delivery rate (draft-ietf-ccwg-bbr section 4.1).
#[derive(Clone, Copy, Debug, Default)]
pub struct RateSample {
    /// Bytes delivered within a time.
    pub delivered: u64,
    pub interval_ns: u64,
    /// Bytes that had been delivered when the newest packet was sent.
    pub prior_delivered: u64,
    /// Whether the sender had nothing more to send then.
    pub is_app_limited: bool,
}

impl RateSample {
    /// Bytes per second.
    pub fn rate(&self) -> u64 {
        self.delivered.saturating_mul(NS_PER_S) / self.interval_ns.max(1)
    }
}

#[derive(Clone, Copy, Debug)]
struct Packet {
    is_outstanding: bool,
    sent_ns: u64,
    /// Of all packets, when this one was sent: bytes delivered, when the last of them were, and when the first
    /// packet of the current sample was sent.
    delivered: u64,
    delivered_ns: u64,
    first_sent_ns: u64,
    is_app_limited: bool,
}

/// Requests of one size at intervals.
#[derive(Clone, Copy, Debug)]
struct Requests {
    bytes: u64,
    every_ns: u64,
    next_ns: u64,
}

/// A sender of some bytes.
#[derive(Debug)]
pub struct Sender<R> {
    /// Its congestion control.
    pub rule: R,
    /// Whether queues may mark its packets.
    pub is_ecn: bool,
    /// What its round trip is longer than that of the link.
    pub(super) further_ns: u64,
    starts_ns: u64,
    /// Bytes to send.
    size: u64,
    requests: Option<Requests>,
    packets: VecDeque<Packet>,
    /// The number of the first of them, and how many are outstanding.
    first: u64,
    outstanding: u64,
    /// The newest packet that was acknowledged: one behind its number, and when it was sent.
    newest: u64,
    newest_sent_ns: u64,
    smoothed_ns: u64,
    variation_ns: u64,
    least_rtt_ns: u64,
    /// Whether packets overtook each other, and how many quarters of the least round trip they are given.
    reordered: u64,
    has_reordered_in: u64,
    /// When a packet that seems lost counts as such.
    reorder_ns: Option<u64>,
    /// When the pacer lets packets go, and whether it holds some back.
    paced_ns: u64,
    is_paced: bool,
    /// When a packet was last sent or acknowledged, and what happens if nothing follows.
    active_ns: u64,
    has_probed: bool,
    doubled: u32,
    delivered: u64,
    delivered_ns: u64,
    first_sent_ns: u64,
    /// Until so many bytes are delivered, samples show what there was to send.
    app_limited: u64,
    /// When the pending timer fires.
    armed_ns: Option<u64>,
    /// Bytes found lost so far.
    pub lost: u64,
    /// When all of its bytes had been acknowledged.
    pub finished: Option<Duration>,
}

impl<R: Rule> Sender<R> {
    /// One that always has something to send, from a time on.
    pub fn new(rule: R, starts: Duration) -> Self {
        Self::of_bytes(rule, starts, u64::MAX)
    }

    /// One that sends so many bytes.
    pub fn of_bytes(rule: R, starts: Duration, size: u64) -> Self {
        Self {
            rule,
            is_ecn: false,
            further_ns: 0,
            starts_ns: ns(starts),
            size,
            requests: None,
            packets: VecDeque::new(),
            first: 0,
            outstanding: 0,
            newest: 0,
            newest_sent_ns: 0,
            smoothed_ns: 0,
            variation_ns: 0,
            least_rtt_ns: u64::MAX,
            reordered: 0,
            has_reordered_in: 0,
            reorder_ns: None,
            paced_ns: 0,
            is_paced: false,
            active_ns: 0,
            has_probed: false,
            doubled: 0,
            delivered: 0,
            delivered_ns: 0,
            first_sent_ns: 0,
            app_limited: 0,
            armed_ns: None,
            lost: 0,
            finished: None,
        }
    }

    /// One that sends so many bytes, again and again.
    pub fn of_requests(rule: R, starts: Duration, bytes: u64, every: Duration) -> Self {
        let mut sender = Self::of_bytes(rule, starts, 0);
        sender.requests = Some(Requests {
            bytes,
            every_ns: ns(every),
            next_ns: ns(starts),
        });
        sender
    }

    /// The same, whose packets queues may mark.
    #[must_use]
    pub fn with_ecn(mut self) -> Self {
        self.is_ecn = true;
        self
    }

    /// The same, whose round trip is so much longer than that of the link.
    #[must_use]
    pub fn behind(mut self, further: Duration) -> Self {
        self.further_ns = ns(further);
        self
    }

    /// Gives it more bytes to send from now on.
    pub fn add(&mut self, now: Duration, bytes: u64) {
        self.size += bytes;
        self.starts_ns = ns(now);
        self.finished = None;
    }

    /// Bytes delivered so far.
    pub fn delivered(&self) -> u64 {
        self.delivered
    }

    fn in_flight(&self) -> u64 {
        self.outstanding * PACKET
    }

    fn has_more(&self) -> bool {
        self.delivered + self.in_flight() < self.size
    }

    /// Sends a packet if window and pacer permit; returns its number.
    pub(super) fn send(&mut self, now: u64) -> Option<u64> {
        self.is_paced = false;
        if now < self.starts_ns || !self.has_more() {
            self.app_limited = self.app_limited_by(now);
            return None;
        }
        let in_flight = self.in_flight();
        // The first packet of a flight shows the rule that there is one.
        if in_flight > 0 && in_flight + PACKET > self.rule.window() {
            return None;
        }
        let rate = self.rule.pacing(self.smoothed());
        let burst = carried(rate, BURST_NS).max(BURST_LEAST);
        if rate > 0 && now + time_for(burst, rate) < self.paced_ns + time_for(PACKET, rate) {
            self.is_paced = true;
            return None;
        }
        self.rule.on_sent(now, in_flight);
        if in_flight + PACKET > self.rule.window() {
            return None;
        }
        let step = if rate > 0 { time_for(PACKET, rate) } else { 0 };
        self.paced_ns = self.paced_ns.max(now) + step;
        Some(self.push(now))
    }

    /// The number of bytes delivered until which samples do not show the path.
    fn app_limited_by(&self, now: u64) -> u64 {
        let has_room = self.in_flight() + PACKET <= self.rule.window();
        if now >= self.starts_ns && has_room {
            (self.delivered + self.in_flight()).max(1)
        } else {
            self.app_limited
        }
    }

    fn smoothed(&self) -> u64 {
        match self.smoothed_ns {
            0 => NS_PER_S / 10,
            smoothed => smoothed,
        }
    }

    fn push(&mut self, now: u64) -> u64 {
        if self.outstanding == 0 {
            (self.first_sent_ns, self.delivered_ns) = (now, now);
        }
        self.packets.push_back(Packet {
            is_outstanding: true,
            sent_ns: now,
            delivered: self.delivered,
            delivered_ns: self.delivered_ns,
            first_sent_ns: self.first_sent_ns,
            is_app_limited: self.app_limited > self.delivered,
        });
        self.outstanding += 1;
        self.active_ns = now;
        self.first + self.packets.len() as u64 - 1
    }

    /// Packets were acknowledged.
    pub(super) fn on_ack(&mut self, now: u64, arrivals: impl Iterator<Item = Arrival>) {
        let mut acked = Acked {
            now_ns: now,
            former_in_flight: self.in_flight(),
            ..Acked::default()
        };
        let mut newest: Option<Packet> = None;
        for arrival in arrivals {
            let Some(packet) = self.take(arrival.number) else {
                acked.spurious += PACKET;
                continue;
            };
            acked.acked += PACKET;
            acked.marked += if arrival.is_marked { PACKET } else { 0 };
            if newest.is_none_or(|one| one.sent_ns <= packet.sent_ns) {
                newest = Some(packet);
            }
            if arrival.number >= self.newest {
                self.newest = arrival.number + 1;
                self.newest_sent_ns = packet.sent_ns;
            } else {
                // It was overtaken.
                self.reordered = self.reordered.max(1);
            }
        }
        if acked.spurious > 0 && self.delivered >= self.has_reordered_in {
            // RFC 8985 section 6.2: wait longer, once in a round trip.
            self.reordered += 1;
            self.has_reordered_in = self.delivered + self.in_flight();
        }
        self.delivered += acked.acked;
        if let Some(newest) = newest {
            self.on_newest(now, newest, &mut acked);
        }
        acked.lost = self.detect_losses(now);
        acked.in_flight = self.in_flight();
        acked.has_more = self.has_more();
        acked.delivered = self.delivered;
        if acked.acked + acked.lost + acked.spurious > 0 {
            self.rule.on_acked(&acked);
        }
        if self.delivered >= self.size && self.finished.is_none() {
            self.finished = Some(Duration::from_nanos(now));
        }
    }

    fn take(&mut self, number: u64) -> Option<Packet> {
        let place = usize::try_from(number.checked_sub(self.first)?).ok()?;
        let packet = self.packets.get_mut(place)?;
        if !std::mem::replace(&mut packet.is_outstanding, false) {
            return None;
        }
        self.outstanding -= 1;
        Some(*packet)
    }

    fn on_newest(&mut self, now: u64, newest: Packet, acked: &mut Acked) {
        acked.sent_ns = newest.sent_ns;
        acked.rtt_ns = now - newest.sent_ns;
        let sent_within = newest.sent_ns - newest.first_sent_ns;
        acked.rate = RateSample {
            delivered: self.delivered - newest.delivered,
            interval_ns: sent_within.max(now - newest.delivered_ns),
            prior_delivered: newest.delivered,
            is_app_limited: newest.is_app_limited,
        };
        self.first_sent_ns = newest.sent_ns;
        self.delivered_ns = now;
        self.active_ns = now;
        (self.has_probed, self.doubled) = (false, 0);
        self.on_round_trip(acked.rtt_ns);
    }

    fn on_round_trip(&mut self, rtt: u64) {
        self.least_rtt_ns = self.least_rtt_ns.min(rtt);
        if self.smoothed_ns == 0 {
            (self.smoothed_ns, self.variation_ns) = (rtt, rtt / 2);
            return;
        }
        let off = self.smoothed_ns.abs_diff(rtt);
        self.variation_ns = (self.variation_ns * 3 + off) / 4;
        self.smoothed_ns = (self.smoothed_ns * 7 + rtt) / 8;
    }

    /// Takes packets that are lost out of flight; returns their bytes.
    fn detect_losses(&mut self, now: u64) -> u64 {
        let before = self.outstanding;
        self.reorder_ns = None;
        let least = self.least_rtt_ns.min(NS_PER_S);
        let patience = (least / 4 * self.reordered.max(1)).min(self.smoothed_ns);
        while let Some(packet) = self.packets.front() {
            if packet.is_outstanding {
                let is_overtaken = self.reordered == 0 && self.first + REORDERED_MAX < self.newest;
                let due = packet.sent_ns + self.smoothed_ns + patience;
                if self.first + 1 >= self.newest || packet.sent_ns > self.newest_sent_ns {
                    break;
                }
                if !is_overtaken && now < due {
                    self.reorder_ns = Some(due);
                    break;
                }
                self.outstanding -= 1;
            }
            self.packets.pop_front();
            self.first += 1;
        }
        let lost = (before - self.outstanding) * PACKET;
        self.lost += lost;
        lost
    }

    /// A timer has fired. Whether it was the pending one.
    pub(super) fn on_wake(&mut self, now: u64) -> bool {
        if self.armed_ns != Some(now) {
            return false;
        }
        self.armed_ns = None;
        if let Some(requests) = &mut self.requests {
            while requests.next_ns <= now {
                requests.next_ns += requests.every_ns;
                self.size += requests.bytes;
                self.finished = None;
            }
        }
        if self.reorder_ns.is_some_and(|at| at <= now) {
            self.on_ack(now, std::iter::empty());
        }
        if self.outstanding > 0 && now >= self.timeout_ns() {
            self.on_timeout(now);
        }
        true
    }

    /// When something is done about packets that are not acknowledged.
    fn timeout_ns(&self) -> u64 {
        let smoothed = self.smoothed();
        let patience = if self.doubled == 0 && !self.has_probed {
            2 * smoothed + DELAYED_NS
        } else {
            (smoothed + TIMEOUT_NS.max(4 * self.variation_ns)) << self.doubled.min(DOUBLED_MAX)
        };
        self.active_ns + patience
    }

    /// At first the oldest packet is sent again as a probe: its ACK shows which others are lost. Then all are.
    fn on_timeout(&mut self, now: u64) {
        if !self.has_probed && self.doubled == 0 {
            self.has_probed = true;
            self.active_ns = now;
            self.give_up_oldest();
            return;
        }
        self.doubled += 1;
        let lost = self.in_flight();
        self.first += self.packets.len() as u64;
        self.packets.clear();
        self.outstanding = 0;
        self.lost += lost;
        self.active_ns = now;
        self.paced_ns = now;
        self.rule.on_timeout(now, lost);
    }

    fn give_up_oldest(&mut self) {
        if let Some(oldest) = self.packets.iter_mut().find(|one| one.is_outstanding) {
            oldest.is_outstanding = false;
            self.outstanding -= 1;
        }
    }

    /// When the timer has to fire, if no timer is pending that fires before.
    pub(super) fn next_wake(&mut self, now: u64) -> Option<u64> {
        let requests = self.requests.map(|requests| requests.next_ns);
        let starts = (now < self.starts_ns).then_some(self.starts_ns);
        let timeout = (self.outstanding > 0).then(|| self.timeout_ns());
        let paced = self.is_paced.then_some(self.paced_ns);
        let all = [requests, starts, timeout, paced, self.reorder_ns];
        let at = all.into_iter().flatten().min()?.max(now + 1);
        if self.armed_ns.is_some_and(|armed| armed <= at) {
            return None;
        }
        self.armed_ns = Some(at);
        Some(at)
    }
}
