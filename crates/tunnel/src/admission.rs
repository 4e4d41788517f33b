// SPDX-License-Identifier: Apache-2.0
//! How many of the datagrams that may begin a connection are looked at. Each costs keys, an answer, and perhaps a
//! TLS handshake, and its source may be forged.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::time::Duration;

/// So many at once, and then one in each interval.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rate {
    pub(crate) burst: u32,
    pub(crate) interval: Duration,
}

/// What is left of a rate (GCRA, ITU-T I.371): when the next one is due.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bucket(Duration);

impl Bucket {
    pub(crate) fn take(&mut self, rate: Rate, now: Duration) -> bool {
        let earliest = now.saturating_sub(rate.interval * rate.burst.saturating_sub(1));
        let due = self.0.max(earliest);
        let is_due = due <= now;
        if is_due {
            self.0 = due + rate.interval;
        }
        is_due
    }
}

/// Of one address, and of all of its kind. A peer with 64 workers dials 128 connections at once, and each may be
/// sent to begin again by a Retry; others may be dialers behind a NAT. With 50 us for each, a worker spends 2 %
/// of its time on forged addresses, and 5 % on those of peers.
#[derive(Clone, Copy, Debug)]
struct Limits {
    each: Rate,
    all: Rate,
}

const PEERS: Limits = Limits {
    each: Rate {
        burst: 1024,
        interval: Duration::from_millis(4),
    },
    all: Rate {
        burst: 2048,
        interval: Duration::from_millis(1),
    },
};
const OTHERS: Limits = Limits {
    each: Rate {
        burst: 256,
        interval: Duration::from_millis(10),
    },
    all: Rate {
        burst: 512,
        interval: Duration::from_micros(2500),
    },
};
/// Addresses share them by a byte of a hash that a sender cannot predict.
const BUCKETS: usize = 1 << u8::BITS;

#[derive(Debug)]
struct Class {
    limits: Limits,
    all: Bucket,
    each: Box<[Bucket; BUCKETS]>,
}

impl Class {
    fn with(limits: Limits) -> Self {
        Self {
            limits,
            all: Bucket::default(),
            each: Box::new([Bucket::default(); BUCKETS]),
        }
    }

    fn take(&mut self, place: u8, now: Duration) -> bool {
        self.each[usize::from(place)].take(self.limits.each, now)
            && self.all.take(self.limits.all, now)
    }
}

/// What the listeners of an endpoint admit.
#[derive(Debug)]
pub(crate) struct Admission {
    peers: Class,
    others: Class,
    hash: RandomState,
    dropped: u64,
}

impl Default for Admission {
    fn default() -> Self {
        Self {
            peers: Class::with(PEERS),
            others: Class::with(OTHERS),
            hash: RandomState::new(),
            dropped: 0,
        }
    }
}

impl Admission {
    /// Whether a datagram from this address is to be looked at.
    pub(crate) fn admits(&mut self, from: IpAddr, is_of_peer: bool, now: Duration) -> bool {
        let hash = match from {
            IpAddr::V4(from) => self.hash.hash_one(from.octets()),
            // One host has all of a /64.
            IpAddr::V6(from) => self.hash.hash_one(&from.octets()[..8]),
        };
        let class = if is_of_peer {
            &mut self.peers
        } else {
            &mut self.others
        };
        let [place, ..] = hash.to_be_bytes();
        let is_admitted = class.take(place, now);
        self.dropped += u64::from(!is_admitted);
        is_admitted
    }

    /// How many were not since the last call.
    pub(crate) fn take_dropped(&mut self) -> u64 {
        std::mem::take(&mut self.dropped)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    /// Of 10,000 in each of three seconds, by this.
    fn admitted(
        admission: &mut Admission,
        is_of_peer: bool,
        from: impl Fn(u32) -> IpAddr,
    ) -> usize {
        let each = (0..30_000_u32).filter(|number| {
            let now = Duration::from_secs(100) + Duration::from_micros(100) * *number;
            admission.admits(from(*number), is_of_peer, now)
        });
        each.count()
    }

    // promise: B18
    #[test]
    fn floods_are_bounded_by_address_and_in_all() {
        let one = |_| IpAddr::from([198, 51, 100, 1]);
        let all = |number| IpAddr::from(Ipv4Addr::from_bits(number));
        let network = |number: u32| {
            let low = u64::from(number);
            IpAddr::from(Ipv6Addr::from_bits(0x2001_0db8 << 96 | u128::from(low)))
        };
        for (from, is_of_peer, most) in [
            (&one as &dyn Fn(u32) -> IpAddr, false, 256 + 300),
            (&network, false, 256 + 300),
            (&all, false, 512 + 1_200),
            (&one, true, 1024 + 750),
        ] {
            let mut admission = Admission::default();
            let admitted = admitted(&mut admission, is_of_peer, from);
            assert!(
                (most - 2..=most + 1).contains(&admitted),
                "{admitted} of {most}"
            );
            assert_eq!(admission.take_dropped(), 30_000 - admitted as u64);
        }
    }

    // promise: B18
    #[test]
    fn flood_leaves_room_for_peers_and_other_addresses() {
        let now = Duration::from_secs(100);
        let mut admission = Admission::default();
        let [flooding, other] = [[198, 51, 100, 1], [203, 0, 113, 9]].map(IpAddr::from);
        while admission.admits(flooding, false, now) {}
        // Another address has the same bucket once in 256 times.
        let others = (0..64).filter(|last| {
            let other = IpAddr::from([203, 0, 113, *last]);
            admission.admits(other, false, now)
        });
        assert!(others.count() > 48);
        assert!(admission.admits(flooding, true, now));
        while admission.admits(other, false, now) || admission.admits(flooding, false, now) {}
        assert!(admission.admits(other, true, now));
        assert!(admission.admits(flooding, false, now + Duration::from_secs(1)));
    }
}
