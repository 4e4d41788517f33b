// SPDX-License-Identifier: Apache-2.0
//! Rate limits for unauthorized senders. Pure.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::IpAddr;
use std::time::Duration;

/// A token bucket.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bucket {
    left: f64,
    at: Duration,
}

/// The parameters of a bucket.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    pub(super) per_second: f64,
    pub(super) burst: f64,
}

impl Bucket {
    pub(super) fn full(rate: Rate) -> Self {
        Self {
            left: rate.burst,
            at: Duration::ZERO,
        }
    }

    /// Takes a token, if there is one.
    pub(super) fn take(&mut self, rate: Rate, now: Duration) -> bool {
        let passed = now.saturating_sub(self.at).as_secs_f64();
        self.left = (self.left + passed * rate.per_second).min(rate.burst);
        self.at = now;
        if self.left < 1.0 {
            return false;
        }
        self.left -= 1.0;
        true
    }
}

/// Number of buckets. Sources in the same slot share one.
const SLOTS: usize = 1024;

/// A bucket per source, in fixed memory.
#[derive(Debug)]
pub(super) struct Sources {
    rate: Rate,
    slots: Vec<Bucket>,
    /// A secret hash, so that no sender can choose addresses that share a bucket with another's.
    hash: RandomState,
}

impl Sources {
    pub(super) fn new(rate: Rate) -> Self {
        Self {
            rate,
            // Fixed: a table that grew with its sources could be filled from forged addresses.
            slots: vec![Bucket::full(rate); SLOTS],
            hash: RandomState::new(),
        }
    }

    /// Takes a token of this source.
    pub(super) fn take(&mut self, from: IpAddr, now: Duration) -> bool {
        let prefix = match from.to_canonical() {
            IpAddr::V4(v4) => u64::from(v4.to_bits()),
            // The owner of one address of a /64 has all.
            IpAddr::V6(v6) => u64::try_from(v6.to_bits() >> 64).unwrap_or(0),
        };
        // With the family: an IPv4 address may equal the upper half of an IPv6 one.
        let slot = self.hash.hash_one((from.is_ipv4(), prefix)) % SLOTS as u64;
        let slot = usize::try_from(slot).unwrap_or(0);
        self.slots[slot].take(self.rate, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Rate = Rate {
        per_second: 10.0,
        burst: 20.0,
    };

    fn taken(sources: &mut Sources, from: &str, ms: u64) -> usize {
        let from = from.parse().unwrap();
        let now = Duration::from_millis(ms);
        (0..1_000).filter(|_| sources.take(from, now)).count()
    }

    #[test]
    fn rate_per_source() {
        let mut sources = Sources::new(RATE);
        assert_eq!(taken(&mut sources, "192.0.2.1", 1_000), 20);
        assert_eq!(taken(&mut sources, "192.0.2.1", 1_500), 5);
        assert_eq!(taken(&mut sources, "192.0.2.1", 60_000), 20);
    }

    #[test]
    fn ipv6_prefix_is_one_source() {
        let mut sources = Sources::new(RATE);
        assert_eq!(taken(&mut sources, "2001:db8::1", 1_000), 20);
        assert_eq!(taken(&mut sources, "2001:db8::2", 1_000), 0);
    }

    #[test]
    fn one_source_leaves_room() {
        let mut sources = Sources::new(RATE);
        taken(&mut sources, "192.0.2.1", 1_000);
        let others = (0..=255).map(|last| format!("198.51.100.{last}"));
        let served = others.filter(|other| taken(&mut sources, other, 1_000) > 0);
        // Of 256 in 1024 slots, some 30 share one with another.
        assert!(served.count() > 150);
    }
}
