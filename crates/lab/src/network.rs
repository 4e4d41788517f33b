// SPDX-License-Identifier: Apache-2.0
//! Networks in a line: client, any number of nodes, server; and hosts beside the line.
//!
//! ```text
//! client s0 ---- c0 node 0 s0 ---- c0 node 1 s0 ---- c0 server
//!                                          b0
//!                                           |
//!                                     c0 aside 0
//! ```
//!
//! Every interface toward the client is called `c0`, every one toward the server `s0`, and those
//! of a node toward hosts beside the line `b0`, `b1` and so on. Link `i` (counted from the client,
//! those of the line first) has the prefixes `10.0.i.0/24` and `fd00:0:0:i::/64`; its end
//! nearer the client is `.1`, the other `.2`. Nodes forward both families and are plain routers
//! until something is started in them. Beyond the links, [`CLIENT_SIDE`] prefixes are routed to
//! the client and [`SERVER_SIDE`] prefixes to the server; no host has addresses in them unless an
//! experiment adds some, so packets to them vanish at the end host. Nodes have no default route:
//! they answer anything else with "unreachable". Hosts beside the line send everything to their
//! node.
//!
//! The routes of client and server carry the congestion control, so that programs that do not
//! choose one (nginx, curl) use it too. Nodes have the host's default.

pub(crate) mod fabric;
mod plan;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::{Result, ensure};

use crate::link::{Link, Stats};
use crate::netns::Namespace;
use fabric::Fabric;
use plan::{Plan, Side, address};

/// The interface of a host that leads toward the client.
pub const TO_CLIENT: &str = "c0";
/// The interface of a host that leads toward the server.
pub const TO_SERVER: &str = "s0";

/// Prefixes, one per family, whose packets are routed to the client.
pub const CLIENT_SIDE: [&str; 2] = ["10.100.0.0/16", "fd00:100::/32"];
/// Prefixes, one per family, whose packets are routed to the server.
pub const SERVER_SIDE: [&str; 2] = ["10.200.0.0/16", "fd00:200::/32"];

/// IP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, clap::ValueEnum)]
pub enum Family {
    /// IPv4.
    #[value(name = "4")]
    V4,
    /// IPv6.
    #[value(name = "6")]
    V6,
}

impl Family {
    /// Both families.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    pub(crate) fn of(address: IpAddr) -> Self {
        if address.is_ipv4() {
            Self::V4
        } else {
            Self::V6
        }
    }

    /// The end of a command that adds an address: addresses are unique, and need no detection of
    /// duplicates.
    pub(crate) fn nodad(self) -> &'static str {
        if self == Self::V6 { " nodad" } else { "" }
    }

    /// Bytes of IP and TCP header in a data packet with timestamps.
    pub fn header_bytes(self) -> u32 {
        // Timestamps take 10 bytes and 2 of padding in each segment of Linux.
        let ip = if self == Self::V4 { 20 } else { 40 };
        ip + 20 + 12
    }
}

impl std::fmt::Display for Family {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if *self == Self::V4 { "IPv4" } else { "IPv6" })
    }
}

/// The address of one of many clients that a host plays.
pub(crate) fn client_address(family: Family, client: u8) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::new(10, 100, 0, client).into(),
        Family::V6 => Ipv6Addr::new(0xfd00, 0x100, 0, 0, 0, 0, 0, client.into()).into(),
    }
}

/// Gives a host the addresses of the first `count` hosts that it plays, on its loopback interface.
pub(crate) fn add_addresses(
    host: &Namespace,
    address: impl Fn(Family, u8) -> IpAddr,
    count: u8,
) -> Result<()> {
    let lines = (1..=count).flat_map(|number| {
        let [v4, v6] = Family::ALL.map(|family| address(family, number));
        [
            format!("address add {v4}/32 dev lo"),
            format!("address add {v6}/128 dev lo nodad"),
        ]
    });
    host.ip_batch(&lines.collect::<Vec<_>>())
}

/// The properties of a network.
#[derive(Clone, Debug)]
pub struct Builder {
    /// The links of the line, then those to hosts beside it.
    links: Vec<Link>,
    plan: Plan,
    seed: u64,
    congestion: String,
}

impl Builder {
    /// The seed of all random losses; 1 by default.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// The congestion control of client and server; cubic by default.
    #[must_use]
    pub fn congestion(mut self, name: &str) -> Self {
        name.clone_into(&mut self.congestion);
        self
    }

    /// Adds a host beside the line, with a link to a node. Such hosts are numbered from 0, in the
    /// order of these calls.
    #[must_use]
    pub fn beside(mut self, node: usize, link: Link) -> Self {
        self.plan.beside.push(node + 1);
        self.links.push(link);
        self
    }

    /// Builds the network. Needs root.
    pub fn build(self) -> Result<Network> {
        let plan = &self.plan;
        ensure!(plan.line > 0, "a network needs at least one link");
        // The number of a link is a byte of its IPv4 prefix.
        ensure!(self.links.len() < 255, "a network has at most 254 links");
        ensure!(
            plan.beside.iter().all(|&host| plan.is_node(host)),
            "hosts beside the line hang on nodes"
        );
        let ends = (0..self.links.len()).map(|link| plan.ends(link));
        let links: Vec<_> = ends.zip(self.links).collect();
        let fabric = Fabric::new(plan.hosts(), &links, self.seed)?;
        for (index, host) in fabric.hosts.iter().enumerate() {
            // After all interfaces exist: routes name neighbours on them.
            host.ip_batch(&plan.configuration(index, &self.congestion))?;
            // Ends must not forward: a packet for another host that arrives there is lost.
            if plan.is_node(index) {
                fabric::make_router(host)?;
            }
        }
        Ok(Network {
            fabric,
            plan: self.plan,
            congestion: self.congestion,
        })
    }
}

/// A network that ends, with everything in it, when dropped.
#[derive(Debug)]
pub struct Network {
    fabric: Fabric,
    plan: Plan,
    congestion: String,
}

impl Network {
    /// Describes a line of hosts joined by `links`, from the client to the server. There is a
    /// node between any two links.
    pub fn line(links: impl IntoIterator<Item = Link>) -> Builder {
        let links: Vec<Link> = links.into_iter().collect();
        let plan = Plan {
            line: links.len(),
            beside: Vec::new(),
        };
        Builder {
            links,
            plan,
            seed: 1,
            congestion: "cubic".to_owned(),
        }
    }

    /// The client's namespace.
    pub fn client(&self) -> &Namespace {
        &self.fabric.hosts[0]
    }

    /// The server's namespace.
    pub fn server(&self) -> &Namespace {
        &self.fabric.hosts[self.plan.line]
    }

    /// The namespaces between client and server, in that order.
    pub fn nodes(&self) -> &[Namespace] {
        &self.fabric.hosts[1..self.plan.line]
    }

    /// The namespace of one node.
    ///
    /// # Panics
    /// When there is no such node.
    pub fn node(&self, index: usize) -> &Namespace {
        &self.nodes()[index]
    }

    /// The namespace of a host beside the line.
    ///
    /// # Panics
    /// When there is no such host.
    pub fn aside(&self, index: usize) -> &Namespace {
        &self.fabric.hosts[self.plan.line + 1 + index]
    }

    /// The client's address.
    pub fn client_address(&self, family: Family) -> IpAddr {
        address(0, Side::Left, family)
    }

    /// The server's address.
    pub fn server_address(&self, family: Family) -> IpAddr {
        address(self.plan.line - 1, Side::Right, family)
    }

    /// A node's own address on its server side, from which it connects onward.
    pub fn node_address(&self, index: usize, family: Family) -> IpAddr {
        address(index, Side::Right, family)
    }

    /// A node's own address on its server side, from which it calls those beyond.
    pub fn calling_address(&self, index: usize, family: Family) -> IpAddr {
        address(index + 1, Side::Left, family)
    }

    /// The address of a host beside the line.
    pub fn aside_address(&self, index: usize, family: Family) -> IpAddr {
        address(self.plan.line + index, Side::Right, family)
    }

    /// The address of a node toward a host beside the line.
    pub fn beside_address(&self, index: usize, family: Family) -> IpAddr {
        address(self.plan.line + index, Side::Left, family)
    }

    /// The congestion control of client and server.
    pub fn congestion(&self) -> &str {
        &self.congestion
    }

    /// Changes the properties of an emulated link. Indexes count from the client, without plain
    /// links.
    pub fn change(&self, index: usize, link: Link) -> Result<()> {
        self.fabric.change(index, link)
    }

    /// The counters of the emulated links; all zero when there are none.
    pub fn stats(&self) -> Stats {
        self.fabric.stats()
    }
}
