// SPDX-License-Identifier: Apache-2.0
//! What the configuration wants done with a flow. Read-only for workers.

use std::net::{IpAddr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use crate::accept_mode::AcceptMode;
use crate::access::Access;
use crate::chain::{Chains, Peer, Transport};
use crate::flow::Flow;
use crate::side::Sides;

/// What a rule does with the flows it matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Split the connection.
    Relay,
    /// Leave the flow to IP forwarding.
    Forward,
    /// Answer the SYN with a reset.
    Reject,
}

/// How the segments of a flow reach the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DataPath {
    /// Through two sockets of the node: a relay.
    Socket,
    /// Translated packet by packet, by programs at the client's interface, where they take the
    /// flow; else it is forwarded.
    Packet,
    /// Likewise while its destination sends no more than a server's first window; through sockets
    /// where it sends more, or where the programs do not take the flow.
    Auto,
}

/// Which open relays leave their flows to the packet path (docs/design/0023).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bypass {
    /// None.
    Off,
    /// Those that no longer make their flow faster.
    Auto,
    /// Also those that repair losses, which their ends then repair over both connections.
    Always,
}

/// What happens to SYNs that request Multipath TCP (RFC 8684).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Multipath {
    /// They become TCP: their option is not answered.
    Off,
    /// The node answers them, and its server gets TCP.
    Convert,
    /// They are left to their server, and no relay begins.
    Pass,
}

/// Which source address the server sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SourceAddress {
    /// The client's for flows that cross this node, whose answers return through it; the node's for
    /// flows that were requested from it.
    Auto,
    /// The client's own address and port.
    Client,
    /// An address of this node.
    Node,
}

/// An address prefix of one family. IPv4 prefixes are stored v4-mapped, so `0.0.0.0/0` is
/// `::ffff:0:0/96`. `::/0` contains no IPv4 address all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Prefix {
    address: u128,
    bits: u8,
}

impl Prefix {
    /// The prefix of `bits` leading bits of `ip`; `None` when `bits` exceeds the family's length or
    /// bits behind the prefix are set.
    pub fn new(ip: IpAddr, bits: u8) -> Option<Self> {
        let (address, offset, most) = match ip {
            IpAddr::V4(v4) => (v4.to_ipv6_mapped(), 96, 32),
            IpAddr::V6(v6) => (v6, 0, 128),
        };
        if bits > most {
            return None;
        }
        let prefix = Self {
            address: u128::from(address),
            bits: bits + offset,
        };
        (prefix.address & !prefix.mask() == 0).then_some(prefix)
    }

    /// The first address as 16 bytes in network order, v4-mapped for IPv4.
    pub fn octets(&self) -> [u8; 16] {
        self.address.to_be_bytes()
    }

    /// Leading bits that count, of 128 (IPv4 prefixes count from 96).
    pub fn mapped_bits(&self) -> u8 {
        self.bits
    }

    /// Whether `address` (16 bytes, network order, v4-mapped) lies in it.
    pub fn contains(&self, address: [u8; 16]) -> bool {
        let address = u128::from_be_bytes(address);
        address & self.mask() == self.address && is_mapped(address) == self.is_ipv4()
    }

    /// Whether it is an IPv4 prefix.
    pub fn is_ipv4(&self) -> bool {
        self.bits >= 96 && is_mapped(self.address)
    }

    /// Ones where a bit of the address counts.
    pub fn mask(&self) -> u128 {
        u128::MAX
            // A prefix of no bits would shift by all 128, which is an overflow.
            .checked_shl(128 - u32::from(self.bits))
            .unwrap_or(0)
    }
}

/// Whether an address is a v4-mapped one (RFC 4291 §2.5.5.2).
fn is_mapped(address: u128) -> bool {
    address >> 32 == 0xffff
}

impl std::fmt::Display for Prefix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match Ipv6Addr::from(self.address).to_canonical() {
            IpAddr::V4(v4) if self.bits >= 96 => write!(f, "{v4}/{}", self.bits - 96),
            _ => write!(f, "{}/{}", Ipv6Addr::from(self.address), self.bits),
        }
    }
}

/// What a rule matches. An empty list matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// Prefixes of the original destination.
    pub destinations: Vec<Prefix>,
    /// Prefixes of the client.
    pub sources: Vec<Prefix>,
    /// Ports of the original destination.
    pub ports: Vec<RangeInclusive<u16>>,
}

/// The name of the congestion control that this program registers itself.
pub const OWN_CONGESTION: &str = "posthaste";
/// That of hops of Multipath TCP: over two paths at once it carries more than the node's own and BBR
/// (docs/design/0024).
pub const MULTIPATH_CONGESTION: &str = "cubic";

/// Socket settings of one side of a relay. `None` leaves the kernel's default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SideOptions {
    /// Congestion control by its kernel name, for example `bbr`, or [`OWN_CONGESTION`].
    pub congestion: Option<String>,
    /// Initial congestion window in segments.
    pub initial_window: Option<u32>,
    /// `SO_SNDBUF` in bytes; `None` keeps autotuning.
    pub send_buffer_bytes: Option<u32>,
    /// `SO_RCVBUF` in bytes; `None` keeps autotuning.
    pub receive_buffer_bytes: Option<u32>,
    /// `TCP_NOTSENT_LOWAT` in bytes: bound on unsent bytes in the kernel.
    pub notsent_lowat_bytes: u32,
    /// Idle time before the first keepalive probe; zero turns keepalive off.
    pub keepalive_idle: Duration,
    /// Time between keepalive probes.
    pub keepalive_interval: Duration,
    /// Keepalive probes in a row without an answer that end a connection.
    pub keepalive_probes: u32,
    /// How long bytes in flight may stay unacknowledged (`TCP_USER_TIMEOUT`); zero leaves the
    /// kernel's retry limits.
    pub user_timeout: Duration,
}

impl Default for SideOptions {
    fn default() -> Self {
        Self {
            congestion: None,
            initial_window: None,
            send_buffer_bytes: None,
            receive_buffer_bytes: None,
            notsent_lowat_bytes: 128 << 10,
            keepalive_idle: Duration::from_secs(180),
            keepalive_interval: Duration::from_secs(60),
            // Two hours and four minutes with the idle time (RFC 5382 REQ-5).
            keepalive_probes: 121,
            user_timeout: Duration::ZERO,
        }
    }
}

impl SideOptions {
    /// Those of hops to other nodes, without those of a peer.
    pub fn of_hops() -> Self {
        Self {
            congestion: Some(OWN_CONGESTION.to_owned()),
            ..Self::default()
        }
    }
}

const DAY: Duration = Duration::from_secs(86_400);

/// Bounds on the time a relay may spend in each state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// From the upstream SYN to the upstream SYN-ACK.
    pub connect: Duration,
    /// Without a byte in either direction.
    pub idle: Duration,
    /// From the client's FIN to the server's.
    pub client_fin: Duration,
    /// From the server's FIN to the client's.
    pub server_fin: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(30),
            // Keepalives detect dead ends; a live connection may last as long as its ends want.
            idle: DAY,
            client_fin: DAY,
            server_fin: DAY,
        }
    }
}

/// One rule of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Its name in the configuration, in logs and in metrics.
    pub name: String,
    /// Which flows it matches.
    pub matches: Match,
    /// What to do with these flows.
    pub action: Action,
    /// When the client is answered.
    pub accept: AcceptMode,
    /// Whether flows are relayed only after one between the same two hosts was forwarded and
    /// observed.
    pub observe: bool,
    /// How segments reach the server.
    pub data_path: DataPath,
    /// Which relays leave their flows to the packet path.
    pub bypass: Bypass,
    /// What happens to SYNs that request Multipath TCP.
    pub multipath: Multipath,
    /// Whether the node requests Multipath TCP from servers.
    pub upstream_multipath: bool,
    /// Which source address the server sees.
    pub source_address: SourceAddress,
    /// Whether the PROXY protocol, version 2, sends the client's address to the server.
    pub proxy_protocol: bool,
    /// Settings of the sockets toward clients.
    pub downstream: SideOptions,
    /// Settings of the sockets toward servers.
    pub upstream: SideOptions,
    /// Its timeouts.
    pub timeouts: Timeouts,
    /// Expected bytes per transfer, if configured.
    pub transfer_bytes: Option<u32>,
}

impl Rule {
    /// Whether it delivers packets of transit flows to this host: to sockets, or to be reset.
    pub fn uses_sockets(&self) -> bool {
        match self.action {
            // The packet path takes no Multipath TCP.
            Action::Relay => self.data_path != DataPath::Packet || self.converts_multipath(),
            Action::Forward => false,
            Action::Reject => true,
        }
    }

    /// The data path of its transit flows. `Auto` leaves to sockets what only they do. `chained` is
    /// whether flows may be sent through other nodes.
    pub fn effective_data_path(&self, chained: bool) -> DataPath {
        let needs_sockets = chained
            || self.accept != AcceptMode::EARLY
            || self.source_address == SourceAddress::Node
            || self.proxy_protocol
            || self.upstream_multipath;
        match self.data_path {
            DataPath::Auto if needs_sockets => DataPath::Socket,
            set => set,
        }
    }

    /// Whether it converts Multipath TCP.
    pub fn converts_multipath(&self) -> bool {
        self.action == Action::Relay && self.multipath == Multipath::Convert
    }

    /// Settings of the sockets of both sides.
    pub fn sides(&self) -> Sides<&SideOptions> {
        Sides([&self.downstream, &self.upstream])
    }
}

/// Bounds on half-open upstream connections: those opened at a SYN whose
/// sender has not completed its handshake yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HalfOpenLimits {
    /// Bound over all workers. Beyond it, flows open in late mode.
    pub total: u32,
    /// Part of `total` that is reserved for clients from prefixes that completed a handshake.
    pub reserve: u32,
    /// Per client prefix (IPv4 /24, IPv6 /64).
    pub per_prefix: u32,
    /// How long a client may take to complete its handshake.
    pub expiry: Duration,
}

impl Default for HalfOpenLimits {
    fn default() -> Self {
        Self {
            total: 4096,
            reserve: 1024,
            per_prefix: 256,
            expiry: Duration::from_secs(5),
        }
    }
}

/// The whole policy: a snapshot that workers share and never write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The rules, in the order of the configuration. At most 1024.
    pub rules: Vec<Rule>,
    /// Bounds on half-open upstream connections.
    pub half_open: HalfOpenLimits,
    /// How long a destination that failed in early mode is treated as strict.
    pub strict_after_failure: Duration,
    /// Relays per worker; beyond it, new flows are forwarded.
    pub relays_max: u32,
    /// Other nodes, and the flows that are sent through them.
    pub chains: Arc<Chains>,
    /// Which clients may use the explicit listeners, and for which destinations.
    pub access: Access,
}

impl Policy {
    /// Whether a rule converts Multipath TCP, or it is requested from servers or peers.
    pub fn wants_multipath(&self) -> bool {
        self.converts_multipath() || self.requests_multipath()
    }

    /// Whether a rule requests Multipath TCP from servers, or hops to a peer use it.
    pub fn requests_multipath(&self) -> bool {
        let requested = |rule: &Rule| rule.action == Action::Relay && rule.upstream_multipath;
        let carries = |peer: &Peer| peer.transport == Transport::Mptcp;
        self.rules.iter().any(requested) || self.chains.peers.iter().any(carries)
    }

    /// Whether a rule converts Multipath TCP.
    pub fn converts_multipath(&self) -> bool {
        self.rules.iter().any(Rule::converts_multipath)
    }

    /// The rule for a flow: the longest destination prefix wins, then the
    /// longest source prefix, then the narrowest port range, then the order
    /// of the configuration. `None` when no rule matches.
    pub fn classify(&self, flow: &Flow) -> Option<usize> {
        Match::best(self.rules.iter().map(|rule| &rule.matches), flow)
    }
}

/// Specificity of a match: destination bits, source bits, and the number of ports left out.
type Specificity = (u8, u8, u16);

impl Match {
    /// The index of the most specific match for a flow: see [`Policy::classify`].
    pub fn best<'a>(matches: impl Iterator<Item = &'a Self>, flow: &Flow) -> Option<usize> {
        let (client, server) = flow.addresses();
        let port = flow.server().port();
        let mut best: Option<(Specificity, usize)> = None;
        for (index, matches) in matches.enumerate() {
            let Some(specificity) = matches.specificity(client, server, port) else {
                continue;
            };
            // Of equals the first in the configuration stays.
            if best.is_none_or(|(most, _)| specificity > most) {
                best = Some((specificity, index));
            }
        }
        best.map(|(_, index)| index)
    }

    fn specificity(&self, client: [u8; 16], server: [u8; 16], port: u16) -> Option<Specificity> {
        let ports = if self.ports.is_empty() {
            Some(0)
        } else {
            let holding = self.ports.iter().filter(|range| range.contains(&port));
            holding
                .map(|range| u16::MAX - (range.end() - range.start()))
                .max()
        };
        Some((
            longest(&self.destinations, server)?,
            longest(&self.sources, client)?,
            ports?,
        ))
    }
}

fn longest(prefixes: &[Prefix], address: [u8; 16]) -> Option<u8> {
    if prefixes.is_empty() {
        return Some(0);
    }
    let holding = prefixes.iter().filter(|prefix| prefix.contains(address));
    holding.map(Prefix::mapped_bits).max()
}

#[cfg(test)]
mod tests;
