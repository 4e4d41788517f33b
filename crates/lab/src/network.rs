// SPDX-License-Identifier: Apache-2.0
//! Networks in a line: client, any number of nodes, server.
//!
//! ```text
//! client s0 ---- c0 node 0 s0 ---- c0 node 1 s0 ---- c0 server
//! ```
//!
//! Every interface toward the client is called `c0`, every one toward the server `s0`. Link `i`
//! (counted from the client) has the prefixes `10.0.i.0/24` and `fd00:0:0:i::/64`; its end
//! nearer the client is `.1`, the other `.2`. Nodes forward both families and are plain routers
//! until something is started in them. Beyond the links, [`CLIENT_SIDE`] prefixes are routed to
//! the client and [`SERVER_SIDE`] prefixes to the server; nobody has addresses in them unless an
//! experiment adds some, so packets to them vanish at the end host. Nodes have no default route:
//! they answer anything else with "unreachable".
//!
//! The routes of client and server carry the congestion control, so that programs that do not
//! choose one (nginx, curl) use it too. Nodes have the host's default.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::{Context, Result, ensure};

use crate::link::{self, End, Ferry, Link, Stats};
use crate::netns::Namespace;

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

    /// Bytes of IP and TCP header in a data packet with timestamps.
    pub fn header_bytes(self) -> u32 {
        let ip = if self == Self::V4 { 20 } else { 40 };
        ip + 20 + 12
    }
}

impl std::fmt::Display for Family {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if *self == Self::V4 { "IPv4" } else { "IPv6" })
    }
}

/// What a network should be like.
#[derive(Clone, Debug)]
pub struct Builder {
    links: Vec<Link>,
    seed: u64,
    congestion: String,
    rp_filter: u8,
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

    /// The nodes' reverse path filter (0 off, 1 strict, 2 loose); off by default.
    #[must_use]
    pub fn rp_filter(mut self, mode: u8) -> Self {
        self.rp_filter = mode;
        self
    }

    /// Builds the network. Needs root.
    pub fn build(self) -> Result<Network> {
        ensure!(!self.links.is_empty(), "a network needs at least one link");
        ensure!(self.links.len() < 255, "a network has at most 254 links");
        let hosts = (0..=self.links.len())
            .map(|_| Namespace::new())
            .collect::<Result<Vec<_>>>()
            .context("make the network's namespaces")?;
        let ferry = self.make_links(&hosts)?;
        for (index, host) in hosts.iter().enumerate() {
            host.ip_batch(&self.configuration(index))?;
            if index > 0 && index < self.links.len() {
                self.make_router(host)?;
            }
        }
        Ok(Network {
            ferry,
            hosts,
            congestion: self.congestion,
        })
    }

    fn make_links(&self, hosts: &[Namespace]) -> Result<Option<Ferry>> {
        let mut emulated = Vec::new();
        for (link, pair) in self.links.iter().zip(hosts.windows(2)) {
            let left = End {
                namespace: &pair[0],
                interface: TO_SERVER,
            };
            let right = End {
                namespace: &pair[1],
                interface: TO_CLIENT,
            };
            match link {
                Link::Veth => link::make_veth(left, right)?,
                Link::Emulated(emulation) => {
                    emulated.push((link::make_tuns(left, right)?, emulation.clone()));
                }
            }
        }
        if emulated.is_empty() {
            return Ok(None);
        }
        Ferry::start(emulated, self.seed).map(Some)
    }

    fn make_router(&self, host: &Namespace) -> Result<()> {
        host.sysctl("net.ipv4.ip_forward", "1")?;
        host.sysctl("net.ipv6.conf.all.forwarding", "1")?;
        host.sysctl("net.ipv4.conf.all.rp_filter", &self.rp_filter.to_string())
    }

    /// The `ip` commands that configure host `index`: interfaces, addresses, routes.
    fn configuration(&self, index: usize) -> Vec<String> {
        let mut lines = Vec::new();
        let last = self.links.len();
        if index > 0 {
            interface(&mut lines, TO_CLIENT, index - 1, Right);
        }
        if index < last {
            interface(&mut lines, TO_SERVER, index, Left);
        }
        if index > 0 && index < last {
            router_routes(&mut lines, index, last);
        } else {
            self.end_routes(&mut lines, index);
        }
        lines
    }

    /// The routes of an end host: to its link and, through its only neighbour, to everything.
    fn end_routes(&self, lines: &mut Vec<String>, index: usize) {
        let (link, side, device) = match index {
            0 => (0, Right, TO_SERVER),
            _ => (index - 1, Left, TO_CLIENT),
        };
        let congestion = &self.congestion;
        for family in Family::ALL {
            let (neighbour, prefix) = (address(link, side, family), prefix(link, family));
            lines.push(format!(
                "route add {prefix} dev {device} congctl {congestion}"
            ));
            lines.push(format!(
                "route add default via {neighbour} congctl {congestion}"
            ));
        }
    }
}

/// A node knows the links on either side and the prefixes at either end.
fn router_routes(lines: &mut Vec<String>, index: usize, last: usize) {
    for (position, family) in Family::ALL.into_iter().enumerate() {
        lines.push(format!(
            "route add {} dev {TO_CLIENT}",
            prefix(index - 1, family)
        ));
        lines.push(format!(
            "route add {} dev {TO_SERVER}",
            prefix(index, family)
        ));
        let client_ward = address(index - 1, Left, family);
        let server_ward = address(index, Right, family);
        let near_client = (0..index - 1).map(|link| prefix(link, family));
        for to in near_client.chain([CLIENT_SIDE[position].to_owned()]) {
            lines.push(format!("route add {to} via {client_ward}"));
        }
        let near_server = (index + 1..last).map(|link| prefix(link, family));
        for to in near_server.chain([SERVER_SIDE[position].to_owned()]) {
            lines.push(format!("route add {to} via {server_ward}"));
        }
    }
}

fn interface(lines: &mut Vec<String>, name: &str, link: usize, side: Side) {
    for (family, length) in [(Family::V4, 24), (Family::V6, 64)] {
        let nodad = if family == Family::V6 { " nodad" } else { "" };
        let address = address(link, side, family);
        // The kernel's own route to the prefix would not carry the congestion control.
        lines.push(format!(
            "address add {address}/{length} dev {name} noprefixroute{nodad}"
        ));
    }
    let mtu = link::MTU;
    // A long queue in front of the emulator, whose own queue is the one that drops.
    lines.push(format!("link set {name} up mtu {mtu} txqueuelen 10000"));
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    /// Nearer the client.
    Left,
    /// Nearer the server.
    Right,
}

use Side::{Left, Right};

fn address(link: usize, side: Side, family: Family) -> IpAddr {
    let host = if side == Left { 1 } else { 2 };
    let link = u8::try_from(link).expect("the builder allows at most 254 links");
    match family {
        Family::V4 => Ipv4Addr::new(10, 0, link, host).into(),
        Family::V6 => Ipv6Addr::new(0xfd00, 0, 0, link.into(), 0, 0, 0, host.into()).into(),
    }
}

fn prefix(link: usize, family: Family) -> String {
    match family {
        Family::V4 => format!("10.0.{link}.0/24"),
        Family::V6 => format!("fd00:0:0:{link:x}::/64"),
    }
}

/// A network that ends, with everything in it, when dropped.
#[derive(Debug)]
pub struct Network {
    /// First, so that the interfaces go before the namespaces.
    ferry: Option<Ferry>,
    hosts: Vec<Namespace>,
    congestion: String,
}

impl Network {
    /// Describes a line of hosts joined by `links`, from the client to the server. There is a
    /// node between any two links.
    pub fn line(links: impl IntoIterator<Item = Link>) -> Builder {
        let links = links.into_iter().collect();
        Builder {
            links,
            seed: 1,
            congestion: "cubic".to_owned(),
            rp_filter: 0,
        }
    }

    /// The client's namespace.
    pub fn client(&self) -> &Namespace {
        &self.hosts[0]
    }

    /// The server's namespace.
    pub fn server(&self) -> &Namespace {
        &self.hosts[self.hosts.len() - 1]
    }

    /// The namespaces between client and server, in that order.
    pub fn nodes(&self) -> &[Namespace] {
        &self.hosts[1..self.hosts.len() - 1]
    }

    /// The namespace of one node.
    ///
    /// # Panics
    /// When there is no such node.
    pub fn node(&self, index: usize) -> &Namespace {
        &self.nodes()[index]
    }

    /// The client's address.
    pub fn client_address(&self, family: Family) -> IpAddr {
        address(0, Left, family)
    }

    /// The server's address.
    pub fn server_address(&self, family: Family) -> IpAddr {
        address(self.hosts.len() - 2, Right, family)
    }

    /// A node's own address on its client side.
    pub fn node_address(&self, index: usize, family: Family) -> IpAddr {
        address(index, Right, family)
    }

    /// The congestion control of client and server.
    pub fn congestion(&self) -> &str {
        &self.congestion
    }

    /// What the emulated links carried so far; all zero when there are none.
    pub fn stats(&self) -> Stats {
        self.ferry.as_ref().map(Ferry::stats).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(links: usize) -> Builder {
        Network::line(vec![Link::Veth; links])
    }

    #[test]
    fn a_client_sends_everything_to_its_neighbour() {
        let lines = line(2).configuration(0);
        assert!(
            lines.contains(&"address add 10.0.0.1/24 dev s0 noprefixroute".to_owned()),
            "{lines:?}"
        );
        assert!(
            lines.contains(&"address add fd00::1/64 dev s0 noprefixroute nodad".to_owned()),
            "{lines:?}"
        );
        let route = "route add default via 10.0.0.2 congctl cubic".to_owned();
        assert!(lines.contains(&route), "{lines:?}");
    }

    #[test]
    fn a_node_routes_to_both_ends() {
        let lines = line(4).configuration(2);
        for route in [
            "route add 10.0.0.0/24 via 10.0.1.1",
            "route add 10.100.0.0/16 via 10.0.1.1",
            "route add 10.0.3.0/24 via 10.0.2.2",
            "route add fd00:0:0:3::/64 via fd00:0:0:2::2",
            "route add fd00:200::/32 via fd00:0:0:2::2",
        ] {
            assert!(lines.contains(&route.to_owned()), "{route} in {lines:?}");
        }
        assert!(
            !lines.iter().any(|line| line.contains("default")),
            "{lines:?}"
        );
    }
}
