// SPDX-License-Identifier: Apache-2.0
//! The chain header: the destination of a flow, its source, and the rest of its route, which
//! each node of a chain sends to the next one.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU16;

use crate::segments::{RESOLVE, SegmentList};

/// How many nodes may pass a flow on, counted from the first.
pub const HOP_LIMIT_INITIAL: u8 = 16;

/// TTL or hop limit of the connection at a chain's end when no more nodes may pass its
/// flow on, and how much more it is for each that may.
const TTL_LEAST: u8 = 32;
const TTL_PER_NODE: u8 = 2;

/// What a node sends to the next one about a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChainHeader {
    /// The original destination: the address and port that the client connected to.
    pub destination: Endpoint,
    /// The client's own address and port, if the server may see it.
    pub source: Option<Endpoint>,
    /// The nodes behind the one that reads the header. If it is empty, that node connects to
    /// the destination itself.
    pub segments: SegmentList,
    /// Ends a loop. The SYN option has no room for it, and other clients do not send it.
    pub guard: Option<LoopGuard>,
}

impl ChainHeader {
    /// A header with a destination only.
    pub fn to(destination: Endpoint) -> Self {
        Self {
            destination,
            source: None,
            segments: SegmentList::EMPTY,
            guard: None,
        }
    }
}

/// An address and port that a connection can have at its end: unicast, not
/// this host's own, not port 0. IPv4 is never v4-mapped, IPv6 has no scope:
/// an interface of one host means nothing to another.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Endpoint(SocketAddr);

impl Endpoint {
    /// Checks `address` as RFC 8803 §6.2.5 demands of a remote peer. The
    /// unspecified address is refused too, because Linux connects it to the
    /// host itself, and so is port 0.
    pub fn new(address: SocketAddr) -> Result<Self, EndpointError> {
        // Canonical first: `::ffff:127.0.0.1` is loopback, too, and would pass every check below.
        let ip = address.ip().to_canonical();
        // IPv6 has no broadcast addresses (RFC 4291 section 2).
        let broadcast = matches!(ip, IpAddr::V4(v4) if v4.is_broadcast());
        if ip.is_multicast() {
            Err(EndpointError::Multicast)
        } else if broadcast {
            Err(EndpointError::Broadcast)
        } else if ip.is_loopback() {
            Err(EndpointError::Loopback)
        } else if ip.is_unspecified() {
            Err(EndpointError::Unspecified)
        } else if address.port() == 0 {
            Err(EndpointError::NoPort)
        } else {
            Ok(Self(SocketAddr::new(ip, address.port())))
        }
    }

    /// From 16 bytes, v4-mapped for IPv4 (RFC 4291 §2.5.5.2).
    pub(crate) fn from_mapped(ip: [u8; 16], port: u16) -> Result<Self, EndpointError> {
        Self::new(SocketAddr::new(Ipv6Addr::from(ip).into(), port))
    }

    /// The address as 16 bytes, v4-mapped for IPv4.
    pub(crate) fn mapped_ip(self) -> [u8; 16] {
        mapped(self.0.ip())
    }

    /// As the standard library's type.
    pub fn address(self) -> SocketAddr {
        self.0
    }

    /// The port, in host byte order.
    pub fn port(self) -> u16 {
        self.0.port()
    }
}

/// An address as 16 bytes in network byte order, v4-mapped for IPv4 (RFC 4291 §2.5.5.2).
pub fn mapped(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

impl From<Endpoint> for SocketAddr {
    fn from(endpoint: Endpoint) -> Self {
        endpoint.0
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Why an address and port cannot be an [`Endpoint`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// A multicast address.
    #[error("a multicast address")]
    Multicast,
    /// 255.255.255.255.
    #[error("the broadcast address")]
    Broadcast,
    /// The host itself.
    #[error("a loopback address")]
    Loopback,
    /// 0.0.0.0 or ::.
    #[error("the unspecified address")]
    Unspecified,
    /// Port 0.
    #[error("port 0")]
    NoPort,
}

/// The number of a node, which the operator or the controller's list chooses: 1 to 65534.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(NonZeroU16);

impl NodeId {
    /// The largest number of a node.
    pub const MAX: Self = Self(NonZeroU16::new(RESOLVE - 1).expect("not zero"));

    /// `None` for a number that no node can have.
    pub fn new(id: u64) -> Option<Self> {
        // Segment lists contain node numbers, and this one stands for a look-up there.
        let id = u16::try_from(id).ok().filter(|id| *id != RESOLVE)?;
        // 0 stands for no segment there.
        NonZeroU16::new(id).map(Self)
    }

    /// As a number.
    pub fn to_bits(self) -> u16 {
        self.0.get()
    }

    pub(crate) fn to_bytes(self) -> [u8; 2] {
        self.to_bits().to_be_bytes()
    }
}

impl From<NodeId> for u64 {
    fn from(id: NodeId) -> Self {
        id.to_bits().into()
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Ends a flow that would go round and round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LoopGuard {
    /// The first node, which made the header.
    pub origin: NodeId,
    /// How many more nodes may pass the flow on to another node. With 0 the
    /// node that reads it connects to the destination or gives up.
    pub hop_limit: u8,
}

impl LoopGuard {
    /// What the first node sends.
    pub fn new(origin: NodeId) -> Self {
        Self {
            origin,
            hop_limit: HOP_LIMIT_INITIAL,
        }
    }

    /// What the first node sends for a flow that would go on with `ttl` from there if it
    /// took no chain. `None` when the flow has come too far for one.
    pub fn with_ttl(origin: NodeId, ttl: u8) -> Option<Self> {
        // Half of the rest: each further node may be followed by a router as well.
        let nodes = ttl.checked_sub(TTL_LEAST)? / TTL_PER_NODE;
        Some(Self {
            origin,
            hop_limit: nodes.min(HOP_LIMIT_INITIAL),
        })
    }

    /// The TTL or hop limit of the connection to the destination, at the node that reads
    /// it. It is no more than the flow had at its first node, so that one which comes
    /// back there by plain connections goes round a number of times only.
    pub fn ttl(self) -> u8 {
        // Bounded here as well: another node sent the limit, and twice 255 is more than a TTL.
        TTL_LEAST + TTL_PER_NODE * self.hop_limit.min(HOP_LIMIT_INITIAL)
    }

    /// What the node `me` sends to the next. `None` when the flow has been
    /// here before, or has come too far.
    pub fn passed_on(self, me: NodeId) -> Option<Self> {
        let hop_limit = self.hop_limit.checked_sub(1)?;
        // The first node's own number is in the header, so its loops end at once; others end by the
        // limit.
        (self.origin != me).then_some(Self { hop_limit, ..self })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(text: &str) -> Result<Endpoint, EndpointError> {
        Endpoint::new(text.parse().unwrap())
    }

    // promise: B6
    #[test]
    fn impossible_destinations_refused() {
        use EndpointError::{Broadcast, Loopback, Multicast, NoPort, Unspecified};
        for (text, error) in [
            ("224.0.0.1:80", Multicast),
            ("[ff02::1]:80", Multicast),
            ("[::ffff:239.1.2.3]:80", Multicast),
            ("255.255.255.255:80", Broadcast),
            ("[::ffff:255.255.255.255]:80", Broadcast),
            ("127.9.9.9:80", Loopback),
            ("[::1]:80", Loopback),
            ("[::ffff:127.0.0.1]:80", Loopback),
            ("0.0.0.0:80", Unspecified),
            ("[::]:80", Unspecified),
            ("[::ffff:0.0.0.0]:80", Unspecified),
            ("192.0.2.1:0", NoPort),
        ] {
            assert_eq!(endpoint(text), Err(error), "{text}");
        }
    }

    #[test]
    fn an_endpoint_has_one_form() {
        let mapped = endpoint("[::ffff:192.0.2.1]:80").unwrap();
        assert_eq!(mapped, endpoint("192.0.2.1:80").unwrap());
        assert!(mapped.address().is_ipv4());
        let scoped = endpoint("[fe80::1%3]:80").unwrap();
        assert_eq!(scoped, endpoint("[fe80::1]:80").unwrap());
    }

    // promise: B9
    #[test]
    fn node_numbers_bounded() {
        for id in [1, 2, 65_534] {
            assert_eq!(NodeId::new(id).unwrap().to_string(), id.to_string());
        }
        assert_eq!(NodeId::new(65_534), Some(NodeId::MAX));
        for id in [0, 65_535, 65_536, u64::MAX] {
            assert_eq!(NodeId::new(id), None);
        }
    }

    // promise: B9
    #[test]
    fn a_loop_ends() {
        let (origin, other) = (NodeId::new(1).unwrap(), NodeId::new(2).unwrap());
        let first = LoopGuard::new(origin);
        assert_eq!(first.passed_on(origin), None);
        let mut guard = first;
        let mut nodes = 0;
        while let Some(next) = guard.passed_on(other) {
            (guard, nodes) = (next, nodes + 1);
        }
        assert_eq!(nodes, HOP_LIMIT_INITIAL);
    }

    // promise: K17
    #[test]
    fn plain_loop_ends() {
        let origin = NodeId::new(1).unwrap();
        assert_eq!(LoopGuard::new(origin).ttl(), 64, "as of any connection");
        for ttl in 0..=u8::MAX {
            let Some(guard) = LoopGuard::with_ttl(origin, ttl) else {
                assert!(ttl < TTL_LEAST);
                continue;
            };
            assert!(guard.hop_limit <= HOP_LIMIT_INITIAL && guard.ttl() <= ttl);
        }
        // Nothing but the two nodes takes from it.
        let (mut ttl, mut rounds) = (64_u8, 0);
        while let Some(guard) = LoopGuard::with_ttl(origin, ttl - 1) {
            (ttl, rounds) = (guard.ttl(), rounds + 1);
        }
        assert_eq!(rounds, 16);
    }
}
