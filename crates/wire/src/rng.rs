// SPDX-License-Identifier: Apache-2.0
//! Repeatable chance for the tests, and values made of it.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::header::{ChainHeader, Endpoint, LoopGuard, NodeId};
use crate::segments::{SEGMENTS_MAX, SegmentList};

/// SplitMix64: small, quick without optimisation, and any seed will do.
#[derive(Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number in `0..limit`; `limit` is not zero.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit as u64).expect("less than a usize")
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    pub(crate) fn perhaps<T>(&mut self, make: impl FnOnce(&mut Self) -> T) -> Option<T> {
        (self.below(2) == 0).then(|| make(self))
    }

    pub(crate) fn byte(&mut self) -> u8 {
        self.next().to_be_bytes()[0]
    }

    pub(crate) fn array<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.byte())
    }

    pub(crate) fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.byte()).collect()
    }

    fn until<T>(&mut self, mut make: impl FnMut(&mut Self) -> Option<T>) -> T {
        loop {
            if let Some(made) = make(self) {
                return made;
            }
        }
    }

    fn port(&mut self) -> u16 {
        u16::from_be_bytes(self.array())
    }

    pub(crate) fn endpoint_v4(&mut self) -> Endpoint {
        self.until(|rng| {
            let ip = Ipv4Addr::from(rng.array::<4>());
            Endpoint::new(SocketAddr::new(ip.into(), rng.port())).ok()
        })
    }

    pub(crate) fn endpoint(&mut self) -> Endpoint {
        if self.below(2) == 0 {
            return self.endpoint_v4();
        }
        self.until(|rng| {
            let ip = Ipv6Addr::from(rng.array::<16>());
            Endpoint::new(SocketAddr::new(ip.into(), rng.port())).ok()
        })
    }

    /// Up to `max` segments, or a look-up.
    pub(crate) fn segments(&mut self, max: usize) -> SegmentList {
        let count = self.below(max + 2);
        if count > max {
            return SegmentList::RESOLVE;
        }
        let nodes: Vec<NodeId> = (0..count).map(|_| self.node()).collect();
        SegmentList::of(nodes).unwrap()
    }

    pub(crate) fn node(&mut self) -> NodeId {
        self.until(|rng| NodeId::new(rng.next() & 0xffff))
    }

    pub(crate) fn header(&mut self) -> ChainHeader {
        ChainHeader {
            destination: self.endpoint(),
            source: self.perhaps(Self::endpoint),
            segments: self.segments(SEGMENTS_MAX),
            guard: self.perhaps(|rng| LoopGuard {
                origin: rng.node(),
                hop_limit: rng.byte(),
            }),
        }
    }
}

/// Names the schedule that is under way when a check fails.
struct Witness(u64);

impl Drop for Witness {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("to see this again: POSTHASTE_SEED={}", self.0);
        }
    }
}

/// Runs `count` schedules, each with its own chance.
pub(crate) fn simulate(count: u64, mut schedule: impl FnMut(Rng)) {
    let first = match std::env::var("POSTHASTE_SEED") {
        Ok(seed) => seed.parse().expect("POSTHASTE_SEED is a number"),
        Err(_) => 1,
    };
    for number in 0..count {
        let witness = Witness(first + number);
        schedule(Rng::new(witness.0));
    }
}
