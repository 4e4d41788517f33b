// SPDX-License-Identifier: Apache-2.0
//! The queue of the bottleneck: it drops its tail, or controls its delay (CoDel, RFC 8289) by drops or ECN marks.

use std::collections::VecDeque;

use super::{NS_PER_S, PACKET};

/// CoDel's target of the delay, and the interval in which it has to be met.
const TARGET_NS: u64 = 5_000_000;
const INTERVAL_NS: u64 = 100_000_000;

/// A packet in the queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packet {
    pub(super) sender: usize,
    pub(super) number: u64,
    pub(super) added_ns: u64,
    pub(super) is_ecn: bool,
    pub(super) is_marked: bool,
}

/// What happens to packets beyond those that have no room.
#[derive(Clone, Copy, Debug)]
pub enum Discipline {
    /// Nothing.
    TailDrop,
    /// CoDel: packets that can be are marked, others dropped.
    CoDel,
    /// Packets that find more than so many bytes are marked if they can be (RED with one threshold).
    MarkBeyond(u64),
}

/// The state of CoDel.
#[derive(Debug, Default)]
struct CoDel {
    /// Since when the delay is beyond the target, and an interval.
    above_ns: Option<u64>,
    is_dropping: bool,
    next_drop_ns: u64,
    count: u32,
    last_count: u32,
}

/// Packets that wait.
#[derive(Debug)]
pub struct Queue {
    /// Bytes that may wait.
    pub bytes_max: u64,
    /// What else happens to packets.
    pub discipline: Discipline,
    /// Packets that were dropped and marked.
    pub dropped: u64,
    pub marked: u64,
    packets: VecDeque<Packet>,
    codel: CoDel,
    /// Since when the mean is taken, and the sum of bytes times nanoseconds until the last change.
    since_ns: u64,
    counted_ns: u64,
    sum: u128,
}

impl Queue {
    /// One for so many bytes, which drops its tail.
    pub fn of_bytes(bytes_max: u64) -> Self {
        Self {
            bytes_max,
            discipline: Discipline::TailDrop,
            dropped: 0,
            marked: 0,
            packets: VecDeque::new(),
            codel: CoDel::default(),
            since_ns: 0,
            counted_ns: 0,
            sum: 0,
        }
    }

    /// Bytes that wait.
    pub fn bytes(&self) -> u64 {
        self.packets.len() as u64 * PACKET
    }

    /// Bytes that waited on average during the last run of the path.
    pub fn mean(&self) -> u64 {
        let time = u128::from(self.counted_ns - self.since_ns).max(1);
        u64::try_from(self.sum / time).unwrap_or(u64::MAX)
    }

    pub(super) fn begin(&mut self, now: u64) {
        (self.since_ns, self.counted_ns, self.sum) = (now, now, 0);
    }

    pub(super) fn count(&mut self, now: u64) {
        let time = now - std::mem::replace(&mut self.counted_ns, now);
        self.sum += u128::from(self.bytes()) * u128::from(time);
    }

    /// A packet comes. Whether there was room.
    pub(super) fn add(&mut self, mut packet: Packet) -> bool {
        self.count(packet.added_ns);
        let bytes = self.bytes();
        if bytes + PACKET > self.bytes_max {
            self.dropped += 1;
            return false;
        }
        if let Discipline::MarkBeyond(threshold) = self.discipline
            && packet.is_ecn
            && bytes >= threshold
        {
            packet.is_marked = true;
            self.marked += 1;
        }
        self.packets.push_back(packet);
        true
    }

    /// The packet that is transmitted next.
    pub(super) fn take(&mut self, now: u64) -> Option<Packet> {
        self.count(now);
        if let Discipline::CoDel = self.discipline {
            self.take_by_codel(now)
        } else {
            self.packets.pop_front()
        }
    }

    /// The first packet, and whether the delay has been beyond the target for an interval.
    fn pop(&mut self, now: u64) -> (Option<Packet>, bool) {
        let Some(packet) = self.packets.pop_front() else {
            self.codel.above_ns = None;
            return (None, false);
        };
        if now - packet.added_ns < TARGET_NS || self.bytes() <= PACKET {
            self.codel.above_ns = None;
            return (Some(packet), false);
        }
        let above = *self.codel.above_ns.get_or_insert(now + INTERVAL_NS);
        (Some(packet), now >= above)
    }

    /// RFC 8289 section 5.5.
    fn take_by_codel(&mut self, now: u64) -> Option<Packet> {
        let (mut packet, mut is_late) = self.pop(now);
        if !self.codel.is_dropping {
            if is_late {
                packet = self.begin_dropping(now, packet);
            }
            return packet;
        }
        while self.codel.is_dropping && is_late && now >= self.codel.next_drop_ns {
            self.codel.count += 1;
            let next = self.codel.next_drop_ns;
            self.codel.next_drop_ns = next + spacing(self.codel.count);
            if let Some(marked) = self.mark(packet) {
                return Some(marked);
            }
            (packet, is_late) = self.pop(now);
        }
        self.codel.is_dropping &= is_late;
        packet
    }

    fn begin_dropping(&mut self, now: u64, packet: Option<Packet>) -> Option<Packet> {
        let codel = &mut self.codel;
        let delta = codel.count - codel.last_count;
        let is_recent = now.saturating_sub(codel.next_drop_ns) < 16 * INTERVAL_NS;
        codel.is_dropping = true;
        codel.count = if delta > 1 && is_recent { delta } else { 1 };
        codel.last_count = codel.count;
        codel.next_drop_ns = now + spacing(codel.count);
        self.mark(packet).or_else(|| self.pop(now).0)
    }

    /// Marks a packet, or drops it.
    fn mark(&mut self, packet: Option<Packet>) -> Option<Packet> {
        let packet = packet?;
        if !packet.is_ecn {
            self.dropped += 1;
            return None;
        }
        self.marked += 1;
        Some(Packet {
            is_marked: true,
            ..packet
        })
    }
}

/// The time to the next drop: the interval by the root of the count.
fn spacing(count: u32) -> u64 {
    // In millionths, so that no floating point is needed.
    let root = (u64::from(count) * 1_000_000_000_000).isqrt();
    INTERVAL_NS * (NS_PER_S / 1000) / root.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(number: u64, added_ns: u64, is_ecn: bool) -> Packet {
        Packet {
            sender: 0,
            number,
            added_ns,
            is_ecn,
            is_marked: false,
        }
    }

    #[test]
    fn drops_the_tail_and_shows_the_mean() {
        let mut queue = Queue::of_bytes(3 * PACKET);
        let added = (0..5).filter(|n| queue.add(packet(*n, 0, false))).count();
        assert_eq!((added, queue.dropped), (3, 2));
        assert_eq!(queue.take(1000).map(|one| one.number), Some(0));
        queue.count(2000);
        assert_eq!(queue.mean(), 5 * PACKET / 2);
    }

    /// A queue that gets twice what it transmits: the first drop after an interval, then ever more.
    #[test]
    fn codel_drops_at_growing_frequency() {
        for is_ecn in [false, true] {
            let mut queue = Queue::of_bytes(10_000 * PACKET);
            queue.discipline = Discipline::CoDel;
            let mut first = None;
            for ms in 0..1000 {
                let now = ms * 1_000_000;
                queue.add(packet(2 * ms, now, is_ecn));
                queue.add(packet(2 * ms + 1, now, is_ecn));
                queue.take(now);
                if queue.dropped + queue.marked > 0 {
                    first.get_or_insert(ms);
                }
            }
            // The delay is 5 ms after 10 ms. After n drops, the times between add up to 200 ms by the root of n.
            assert!((105..115).contains(&first.unwrap()), "{first:?}");
            let signals = if is_ecn { queue.marked } else { queue.dropped };
            assert!((18..=30).contains(&signals), "{signals}");
            assert_eq!(queue.dropped * queue.marked, 0);
        }
    }

    #[test]
    fn codel_lets_short_queues_be() {
        let mut queue = Queue::of_bytes(10_000 * PACKET);
        queue.discipline = Discipline::CoDel;
        for ms in 0..1000 {
            queue.add(packet(ms, ms * 1_000_000, false));
            if ms >= 4 {
                queue.take(ms * 1_000_000);
            }
        }
        assert_eq!(queue.dropped, 0);
    }
}
