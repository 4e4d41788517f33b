// SPDX-License-Identifier: Apache-2.0
//! Links, and the addresses and routes that follow from them. Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::fabric::{Place, add_address, up};
use super::{CLIENT_SIDE, Family, SERVER_SIDE, TO_CLIENT, TO_SERVER};

/// The shape of a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    /// How many links the line has.
    pub(super) line: usize,
    /// The host of the line to which each host beside it is linked.
    pub(super) beside: Vec<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// Nearer the client.
    Left,
    /// Nearer the server, or away from the line.
    Right,
}

use Side::{Left, Right};

impl Plan {
    pub(super) fn hosts(&self) -> usize {
        self.line + 1 + self.beside.len()
    }

    fn links(&self) -> usize {
        self.line + self.beside.len()
    }

    /// Whether a host is between client and server.
    pub(super) fn is_node(&self, host: usize) -> bool {
        (1..self.line).contains(&host)
    }

    /// Both ends of a link, the left one first.
    pub(super) fn ends(&self, link: usize) -> [Place; 2] {
        match link.checked_sub(self.line) {
            None => [Place::new(link, TO_SERVER), Place::new(link + 1, TO_CLIENT)],
            Some(index) => [
                Place::new(self.beside[index], format!("b{index}")),
                Place::new(self.line + 1 + index, TO_CLIENT),
            ],
        }
    }

    /// The `ip` commands that configure a host: interfaces, addresses, routes.
    pub(super) fn configuration(&self, host: usize, congestion: &str) -> Vec<String> {
        let mut lines = Vec::new();
        for (link, side, name) in self.interfaces(host) {
            for (family, length) in [(Family::V4, 24), (Family::V6, 64)] {
                lines.push(add_address(&name, address(link, side, family), length));
            }
            // Up before the routes: the kernel accepts none over an interface that is down.
            lines.push(up(&name));
        }
        if self.is_node(host) {
            self.node_routes(&mut lines, host);
        } else {
            // Hosts beside the line are for nodes, which use the host's default.
            let congestion = (host <= self.line).then_some(congestion);
            self.end_routes(&mut lines, host, congestion);
        }
        lines
    }

    /// The interfaces of a host: link, side of the link, name.
    fn interfaces(&self, host: usize) -> Vec<(usize, Side, String)> {
        let ends = (0..self.links()).flat_map(|link| {
            let [left, right] = self.ends(link);
            [(link, Left, left), (link, Right, right)]
        });
        ends.filter(|(.., place)| place.host == host)
            .map(|(link, side, place)| (link, side, place.interface))
            .collect()
    }

    /// The routes of a host with one link: to that link and, through its only neighbour, to
    /// everything.
    fn end_routes(&self, lines: &mut Vec<String>, host: usize, congestion: Option<&str>) {
        let congestion = congestion.map_or_else(String::new, |name| format!(" congctl {name}"));
        for (link, side, device) in self.interfaces(host) {
            let other = if side == Left { Right } else { Left };
            for family in Family::ALL {
                let (prefix, neighbour) = (prefix(link, family), address(link, other, family));
                lines.push(format!("route add {prefix} dev {device}{congestion}"));
                lines.push(format!("route add default via {neighbour}{congestion}"));
            }
        }
    }

    /// Routes of a node: to all links, and to the prefixes at either end.
    fn node_routes(&self, lines: &mut Vec<String>, host: usize) {
        let own = self.interfaces(host);
        for (position, family) in Family::ALL.into_iter().enumerate() {
            for (link, _, device) in &own {
                lines.push(format!("route add {} dev {device}", prefix(*link, family)));
            }
            let client_ward = address(host - 1, Left, family);
            let server_ward = address(host, Right, family);
            let others = (0..self.links()).filter(|link| own.iter().all(|(mine, ..)| mine != link));
            for link in others {
                // The link's left end is on the line, and so shows the direction.
                let before = self.ends(link)[0].host < host;
                let neighbour = if before { client_ward } else { server_ward };
                lines.push(format!(
                    "route add {} via {neighbour}",
                    prefix(link, family)
                ));
            }
            lines.push(format!(
                "route add {} via {client_ward}",
                CLIENT_SIDE[position]
            ));
            lines.push(format!(
                "route add {} via {server_ward}",
                SERVER_SIDE[position]
            ));
        }
    }
}

pub(super) fn address(link: usize, side: Side, family: Family) -> IpAddr {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn line(links: usize) -> Plan {
        Plan {
            line: links,
            beside: Vec::new(),
        }
    }

    fn assert_has(lines: &[String], wanted: &[&str]) {
        for line in wanted {
            assert!(lines.iter().any(|l| l == line), "{line} in {lines:#?}");
        }
    }

    #[test]
    fn client_routes_to_neighbour() {
        assert_has(
            &line(2).configuration(0, "cubic"),
            &[
                "address add 10.0.0.1/24 dev s0 noprefixroute",
                "address add fd00::1/64 dev s0 noprefixroute nodad",
                "route add default via 10.0.0.2 congctl cubic",
            ],
        );
    }

    #[test]
    fn node_routes_to_both_ends() {
        let lines = line(4).configuration(2, "cubic");
        assert_has(
            &lines,
            &[
                "route add 10.0.0.0/24 via 10.0.1.1",
                "route add 10.100.0.0/16 via 10.0.1.1",
                "route add 10.0.3.0/24 via 10.0.2.2",
                "route add fd00:0:0:3::/64 via fd00:0:0:2::2",
                "route add fd00:200::/32 via fd00:0:0:2::2",
            ],
        );
        assert!(!lines.iter().any(|l| l.contains("default")), "{lines:#?}");
    }

    #[test]
    fn side_hosts_reachable() {
        // Client, nodes 1 to 3, server 4; host 5 is linked to node 2, by link 4.
        let plan = Plan {
            line: 4,
            beside: vec![2],
        };
        assert_eq!((plan.hosts(), plan.is_node(5)), (6, false));
        let via = |host, neighbour: &str| {
            let route = format!("route add 10.0.4.0/24 via {neighbour}");
            assert_has(&plan.configuration(host, "cubic"), &[route.as_str()]);
        };
        via(1, "10.0.1.2");
        via(3, "10.0.2.1");
        assert_has(
            &plan.configuration(2, "cubic"),
            &[
                "address add 10.0.4.1/24 dev b0 noprefixroute",
                "route add 10.0.4.0/24 dev b0",
            ],
        );
        assert_has(
            &plan.configuration(5, "cubic"),
            &[
                "address add 10.0.4.2/24 dev c0 noprefixroute",
                "route add default via 10.0.4.1",
            ],
        );
    }
}
