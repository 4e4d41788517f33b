// SPDX-License-Identifier: Apache-2.0
//! Random values of this crate's types, for the tests.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use posthaste_testkit::Rng;

use crate::header::{ChainHeader, Endpoint, LoopGuard, NodeId};
use crate::segments::{SEGMENTS_MAX, SegmentList};

/// Draws values from a generator.
pub(crate) trait Draw {
    fn endpoint_v4(&mut self) -> Endpoint;
    fn endpoint(&mut self) -> Endpoint;
    /// Up to `max` segments, or a look-up.
    fn segments(&mut self, max: usize) -> SegmentList;
    fn header(&mut self) -> ChainHeader;
}

/// An endpoint at an address that `ip` draws.
fn endpoint(rng: &mut Rng, ip: impl Fn(&mut Rng) -> IpAddr) -> Endpoint {
    loop {
        let address = SocketAddr::new(ip(rng), u16::from_be_bytes(rng.array()));
        if let Ok(endpoint) = Endpoint::new(address) {
            return endpoint;
        }
    }
}

fn node(rng: &mut Rng) -> NodeId {
    NodeId::new(1 + rng.below(0xffff)).unwrap()
}

impl Draw for Rng {
    fn endpoint_v4(&mut self) -> Endpoint {
        endpoint(self, |rng| Ipv4Addr::from(rng.array::<4>()).into())
    }

    fn endpoint(&mut self) -> Endpoint {
        if self.below(2) == 0 {
            return self.endpoint_v4();
        }
        endpoint(self, |rng| Ipv6Addr::from(rng.array::<16>()).into())
    }

    fn segments(&mut self, max: usize) -> SegmentList {
        let count = self.below(max + 2);
        if count > max {
            return SegmentList::RESOLVE;
        }
        let nodes: Vec<NodeId> = (0..count).map(|_| node(self)).collect();
        SegmentList::of(nodes).unwrap()
    }

    fn header(&mut self) -> ChainHeader {
        ChainHeader {
            destination: self.endpoint(),
            source: self.perhaps(Self::endpoint),
            segments: self.segments(SEGMENTS_MAX),
            guard: self.perhaps(|rng| LoopGuard {
                origin: node(rng),
                hop_limit: rng.byte(),
            }),
        }
    }
}
