// SPDX-License-Identifier: Apache-2.0
//! The messages of nodes and their controller. Order and types are the format: a change of either is a new
//! [`VERSION`]. A message is added at the end, and not sent to an end with an earlier version.
//!
//! Times are microseconds, node numbers those of chain headers, both as in `docs/protocol.md`.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

/// The version of these messages.
pub const VERSION: u16 = 1;

/// The number of a node, as in [`posthaste_wire::header::NodeId`].
pub type NodeNumber = u64;

/// Which plan: a later one has a greater epoch, or the same and a greater version.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct PlanVersion {
    /// Grows each time that a controller has lost the last plan's version.
    pub epoch: u64,
    /// Grows with each plan.
    pub version: u64,
}

/// From a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToController {
    /// The first message, and no other.
    Hello(Hello),
    /// Links that are not what they were; all of them after [`ToNode::Welcome`].
    Links(Vec<Link>),
    /// Destinations that this node's own connections went to of late.
    Destinations(Vec<Destination>),
    /// The plan that this node follows now. Answers [`ToNode::RouteUpdate`].
    Holds(PlanVersion),
    /// The rows that came last do not fit: all of them are requested.
    Nack {
        /// What this node follows.
        holds: Option<PlanVersion>,
        /// What does not fit, in words.
        why: String,
    },
    /// A request for the time, which is also the keepalive. Answered by [`ToNode::Time`], with the same mark.
    Time {
        /// Chosen by the node.
        mark: u64,
        /// How far its own clock is ahead of the controller's, in microseconds, if known.
        ahead_us: Option<i64>,
    },
}

/// Who a node is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The newest version of these messages that it speaks.
    pub version: u16,
    /// Its number.
    pub number: NodeNumber,
    /// Program and version, for people.
    pub software: String,
    /// Its X25519 public key (RFC 7748).
    pub exchange: [u8; 32],
    /// Its explicit listeners, as others reach them.
    pub listeners: Vec<SocketAddr>,
    /// Its reflectors, as others reach them.
    pub reflectors: Vec<SocketAddr>,
    /// The plan that it follows.
    pub holds: Option<PlanVersion>,
}

impl Hello {
    /// Others cannot reach what listens at all addresses by those: `ip`, from which the node sends this, takes their
    /// place. What listens at all addresses of the other family is left out.
    pub fn reach_by(&mut self, ip: IpAddr) {
        let reached = |at: &mut SocketAddr| {
            if at.ip().is_unspecified() && at.is_ipv4() == ip.is_ipv4() {
                at.set_ip(ip);
            }
            !at.ip().is_unspecified()
        };
        self.listeners.retain_mut(reached);
        self.reflectors.retain_mut(reached);
    }
}

/// A node's report of the link to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// The other node.
    pub to: NodeNumber,
    /// Whether it is there.
    pub state: LinkState,
}

/// Whether a link is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LinkState {
    /// Its state is unknown. It is in no chain.
    Unmeasured,
    /// It answers.
    Up {
        /// The shortest round trip of late, in microseconds, never 0.
        rtt_us: u32,
        /// Probes of a million that were lost, if enough were sent.
        loss_ppm: Option<u32>,
        /// Bytes per second that flows achieved, if they were limited by the link.
        rate: Option<u64>,
    },
    /// It does not answer any more.
    Dead,
}

/// How far a node is from some destinations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Destination {
    /// Which.
    pub prefix: Prefix,
    /// The shortest handshake of late, in microseconds, never 0.
    pub rtt_us: u32,
    /// Handshakes that this rests on.
    pub handshakes: u32,
}

/// Addresses that begin alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Prefix {
    /// In network order, v4-mapped for IPv4; no bit is set behind the prefix.
    pub address: [u8; 16],
    /// Of the 128: for IPv4 96 more than its own length.
    pub bits: u8,
}

/// From the controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToNode {
    /// The first message, if the node may stay.
    Welcome(Welcome),
    /// Nodes that there are, or no longer are.
    Members {
        /// All that are not named here are gone.
        all: bool,
        /// New, or not what they were.
        members: Vec<Member>,
        /// Gone.
        removed: Vec<NodeNumber>,
    },
    /// How often to measure which links. Others are measured at leisure.
    Measure(Vec<Interval>),
    /// A plan, as far as it concerns this node.
    RouteUpdate(RouteUpdate),
    /// Whose destinations are whose, the whole list: the longest prefix counts.
    Egresses(Vec<Egress>),
    /// The plan that the node holds stands for another while.
    LeaseRenewed(PlanVersion),
    /// The last message, with the reason in words.
    GoAway(String),
    /// The time, when this was sent.
    Time {
        /// Of the request.
        mark: u64,
        /// Microseconds since 1970.
        unix_us: u64,
    },
}

/// What a node needs first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// The version of these messages that both speak.
    pub version: u16,
    /// The life of a plan after a lease renewal, in seconds.
    pub ttl_s: u32,
    /// The interval in which either end sends something, in seconds. An end that sends nothing for three
    /// times as long is taken for gone.
    pub keepalive_s: u32,
}

/// A node, to the others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Its number.
    pub number: NodeNumber,
    /// Its name, for people.
    pub name: String,
    /// Its X25519 public key.
    pub exchange: [u8; 32],
    /// Its explicit listeners.
    pub listeners: Vec<SocketAddr>,
    /// Its reflectors.
    pub reflectors: Vec<SocketAddr>,
}

/// How often to measure a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interval {
    /// To whom.
    pub to: NodeNumber,
    /// In milliseconds.
    pub every_ms: u32,
}

/// One node's part of a plan: the whole, or what is to be changed. Every list ascends and has nothing twice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteUpdate {
    /// Which plan.
    pub plan_version: PlanVersion,
    /// What the changes are to; without it this is the whole.
    pub base: Option<PlanVersion>,
    /// The largest transfer of each size class, in bytes, ascending.
    pub sizes: Vec<u64>,
    /// The longest access link of each of its classes, as a round trip in
    /// microseconds, ascending.
    pub access_us: Vec<u32>,
    /// Routes from this node to others: new or changed ones.
    pub routes: Vec<Routes>,
    /// Nodes without a route: flows to them go to their destinations from here. The node need not hold
    /// a route to them.
    pub routes_removed: Vec<NodeNumber>,
    /// Over what the node holds after it has applied the update: see `docs/protocol.md`.
    pub checksum: u64,
}

/// The routes from a node to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Routes {
    /// The other.
    pub egress: NodeNumber,
    /// The chains that `choices` name, each as the nodes between the two in order, at most
    /// [`SEGMENTS_MAX`](posthaste_wire::segments::SEGMENTS_MAX). One without nodes is the direct hop.
    pub chains: Vec<Vec<NodeNumber>>,
    /// Places in `chains` in order of preference, three at most. Without any, flows go to their
    /// destinations from here.
    pub choices: Vec<Vec<u8>>,
    /// For each class (that of access links counts faster than that of sizes), the place of its choice.
    pub classes: Vec<u8>,
}

/// Whose a destination is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Egress {
    /// Which destinations.
    pub prefix: Prefix,
    /// The node that connects to them.
    pub node: NodeNumber,
    /// How far they are from it, in microseconds and never 0, if it has them for being the nearest by
    /// measurement. Nothing where it has them by a table.
    pub rtt_us: Option<u32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_all_interfaces_become_the_one_that_is_used() {
        let sockets = |texts: &[&str]| -> Vec<SocketAddr> {
            texts.iter().map(|text| text.parse().unwrap()).collect()
        };
        let mut hello = Hello {
            version: VERSION,
            number: 1,
            software: String::new(),
            exchange: [0; 32],
            listeners: sockets(&["0.0.0.0:4480", "198.51.100.9:80", "[::]:4480"]),
            reflectors: sockets(&["0.0.0.0:862"]),
            holds: None,
        };
        hello.reach_by("192.0.2.1".parse().unwrap());
        assert_eq!(
            hello.listeners,
            sockets(&["192.0.2.1:4480", "198.51.100.9:80"])
        );
        assert_eq!(hello.reflectors, sockets(&["192.0.2.1:862"]));
    }
}
