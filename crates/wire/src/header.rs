// SPDX-License-Identifier: Apache-2.0
//! The chain header: what a node must tell the next one.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU64;

/// How many nodes may pass a flow on, counted from the first.
pub const HOP_LIMIT_INITIAL: u8 = 16;

/// TTL or hop limit of the connection at a chain's end when no more nodes may pass its
/// flow on, and how much more it is for each that may.
const TTL_LEAST: u8 = 32;
const TTL_PER_NODE: u8 = 2;

/// Chains are numbered below this.
const CHAINS: u32 = 1 << 24;

/// The number that no chain has: whoever gets it in a label is to look up the way.
pub const RESOLVE: u32 = CHAINS - 1;

/// What a node tells the next: where to, from whom, and by which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChainHeader {
    /// The original destination: whom the client addressed.
    pub destination: Endpoint,
    /// The client's own address and port, if the server may see it.
    pub source: Option<Endpoint>,
    /// The rest of the way. Without it the node that reads the header
    /// connects to the destination itself.
    pub label: Option<Label>,
    /// What ends a loop. The SYN option has no room for it, and clients of
    /// others do not send it.
    pub guard: Option<LoopGuard>,
}

impl ChainHeader {
    /// A header that says no more than where to.
    pub fn to(destination: Endpoint) -> Self {
        Self {
            destination,
            source: None,
            label: None,
            guard: None,
        }
    }
}

/// An address and port that a connection can have at its end: unicast, not
/// this host's own, not port 0. IPv4 is never v4-mapped, IPv6 has no scope:
/// an interface of one host says nothing to another.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Endpoint(SocketAddr);

impl Endpoint {
    /// Checks `address` as RFC 8803 §6.2.5 demands of a remote peer. The
    /// unspecified address is refused too, because Linux connects it to the
    /// host itself, and so is port 0.
    pub fn new(address: SocketAddr) -> Result<Self, EndpointError> {
        let ip = address.ip().to_canonical();
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
        match self.0.ip() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => v6.octets(),
        }
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

/// Which chain a flow takes and how far along it is, as one number: the chain
/// in the upper 24 bits, the position in the lower 8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Label(u32);

impl Label {
    /// Position `position` of chain `chain`, which is 1 to 2^24 - 1. Position
    /// 0 is the node that the client's connection reaches first.
    pub fn new(chain: u32, position: u8) -> Option<Self> {
        (1..CHAINS)
            .contains(&chain)
            .then(|| Self(chain << 8 | u32::from(position)))
    }

    /// From its number. `None` when it names no chain.
    pub fn from_bits(bits: u32) -> Option<Self> {
        (bits >> 8 != 0).then_some(Self(bits))
    }

    /// The number, as it is sent.
    pub fn to_bits(self) -> u32 {
        self.0
    }

    /// The chain.
    pub fn chain(self) -> u32 {
        self.0 >> 8
    }

    /// Whether the node that gets it is to look up the way, as if the flow began there.
    pub fn is_resolve(self) -> bool {
        self.chain() == RESOLVE
    }

    /// Where in the chain the node is that this label is sent to.
    pub fn position(self) -> u8 {
        self.0.to_be_bytes()[3]
    }

    /// The label for the next node of the chain. `None` after position 255:
    /// no chain is longer, so none is a loop.
    pub fn next(self) -> Option<Self> {
        (self.position() < u8::MAX).then(|| Self(self.0 + 1))
    }
}

/// Who a node is among its like. Not zero; the operator's choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(NonZeroU64);

impl NodeId {
    /// `None` for zero.
    pub fn new(id: u64) -> Option<Self> {
        NonZeroU64::new(id).map(Self)
    }

    /// As a number.
    pub fn to_bits(self) -> u64 {
        self.0.get()
    }

    pub(crate) fn to_bytes(self) -> [u8; 8] {
        self.to_bits().to_be_bytes()
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
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
        TTL_LEAST + TTL_PER_NODE * self.hop_limit.min(HOP_LIMIT_INITIAL)
    }

    /// What the node `me` sends to the next. `None` when the flow has been
    /// here before, or has come too far.
    pub fn passed_on(self, me: NodeId) -> Option<Self> {
        let hop_limit = self.hop_limit.checked_sub(1)?;
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
    fn label_round_trip() {
        let label = Label::new(0x12_3456, 7).unwrap();
        assert_eq!(label.to_bits(), 0x1234_5607);
        assert_eq!(Label::from_bits(0x1234_5607), Some(label));
        assert_eq!((label.chain(), label.position()), (0x12_3456, 7));
        assert_eq!(label.next(), Label::new(0x12_3456, 8));
        assert_eq!(Label::new(1, u8::MAX).unwrap().next(), None);
        assert_eq!(Label::new(0, 1), None);
        assert_eq!(Label::new(CHAINS, 0), None);
        assert_eq!(Label::from_bits(0xff), None);
        assert!(!label.is_resolve());
        assert!(Label::new(RESOLVE, 1).unwrap().is_resolve());
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
