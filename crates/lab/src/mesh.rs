// SPDX-License-Identifier: Apache-2.0
//! Networks of places, each linked to every other, and hosts beside them.
//!
//! ```text
//!  end -- e1 place 1 p2 ---------- p1 place 2
//!            p3                    p3
//!              \                  /
//!               p1 place 3 p2 ---       and so on
//! ```
//!
//! Places count from 1 here, as in addresses: place `n` is `10.n.0.1` and `fd00:n::1`, whatever the
//! interface; its interface toward place `m` is called `pm`. Hosts beside a place have an interface
//! `c0`, and the place one toward each, `e1` and so on: the host at `ek` is `10.n.k.2` and
//! `fd00:n:k::2`. They route everything through their place. A packet from one place to another
//! takes the link between them, never a detour: detours are for nodes.
//!
//! All routes carry the congestion control, so that programs that do not choose one use it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::{Context, Result, ensure};

use crate::link::{self, Emulation, End, Ferry, Link, Stats};
use crate::netns::Namespace;
use crate::network::{Family, TO_CLIENT};

/// A host beside a place.
#[derive(Clone, Debug)]
pub(crate) struct Beside {
    /// The place, counted from 0.
    pub(crate) place: usize,
    /// Its number at the place, from 1.
    pub(crate) host: u8,
    /// The link between them.
    pub(crate) link: Link,
}

/// A network that ends, with everything in it, when dropped.
#[derive(Debug)]
pub(crate) struct Mesh {
    /// First, so that the interfaces go before the namespaces.
    ferry: Ferry,
    places: Vec<Namespace>,
    beside: Vec<(usize, u8, Namespace)>,
}

/// The address of a host of a place (counted from 0); host 0 is the place itself.
pub(crate) fn address(place: usize, host: u8, family: Family) -> IpAddr {
    let place = u8::try_from(place + 1).expect("no more than 200 places");
    let last = if host == 0 { 1 } else { 2 };
    match family {
        Family::V4 => Ipv4Addr::new(10, place, host, last).into(),
        Family::V6 => {
            Ipv6Addr::new(0xfd00, place.into(), host.into(), 0, 0, 0, 0, last.into()).into()
        }
    }
}

/// The index of a link in the list of [`Mesh::new`].
fn index(one: usize, other: usize) -> usize {
    let (low, high) = (one.min(other), one.max(other));
    high * (high - 1) / 2 + low
}

impl Mesh {
    /// Builds a network. `link` returns the properties of the link between two places. Needs root.
    pub(crate) fn new(
        places: usize,
        beside: &[Beside],
        link: impl Fn(usize, usize) -> Emulation,
        congestion: &str,
        seed: u64,
    ) -> Result<Self> {
        ensure!((2..=200).contains(&places), "a mesh has 2 to 200 places");
        let namespaces: Vec<Namespace> = (0..places)
            .map(|_| Namespace::new())
            .collect::<Result<_>>()
            .context("make the namespaces of places")?;
        let hosts: Vec<(usize, u8, Namespace)> = beside
            .iter()
            .map(|one| Ok((one.place, one.host, Namespace::new()?)))
            .collect::<Result<_>>()?;
        let mut emulated = Vec::new();
        for high in 0..places {
            for low in 0..high {
                let ends = [(low, high), (high, low)]
                    .map(|(here, there)| (here, format!("p{}", there + 1)));
                let [left, right] = ends.each_ref().map(|(here, interface)| End {
                    namespace: &namespaces[*here],
                    interface,
                });
                emulated.push((link::make_tuns(left, right)?, link(low, high)));
            }
        }
        for (one, (place, host, namespace)) in beside.iter().zip(&hosts) {
            let interface = format!("e{host}");
            let left = End {
                namespace: &namespaces[*place],
                interface: &interface,
            };
            let right = End {
                namespace,
                interface: TO_CLIENT,
            };
            match &one.link {
                Link::Veth => link::make_veth(left, right)?,
                Link::Emulated(emulation) => {
                    emulated.push((link::make_tuns(left, right)?, emulation.clone()));
                }
            }
        }
        let ferry = Ferry::start(emulated, seed)?;
        for (place, namespace) in namespaces.iter().enumerate() {
            let own = beside.iter().filter(|one| one.place == place);
            let own: Vec<u8> = own.map(|one| one.host).collect();
            namespace.ip_batch(&place_commands(place, places, &own, congestion))?;
            namespace.sysctl("net.ipv4.ip_forward", "1")?;
            namespace.sysctl("net.ipv6.conf.all.forwarding", "1")?;
        }
        for (place, host, namespace) in &hosts {
            namespace.ip_batch(&host_commands(*place, *host, congestion))?;
        }
        Ok(Self {
            ferry,
            places: namespaces,
            beside: hosts,
        })
    }

    /// A place.
    pub(crate) fn place(&self, place: usize) -> &Namespace {
        &self.places[place]
    }

    /// A host beside a place.
    pub(crate) fn host(&self, place: usize, host: u8) -> Result<&Namespace> {
        let is_it = |one: &&(usize, u8, Namespace)| (one.0, one.1) == (place, host);
        let found = self.beside.iter().find(is_it);
        found
            .map(|(.., namespace)| namespace)
            .with_context(|| format!("place {} has no host {host}", place + 1))
    }

    /// Changes the link between two places.
    pub(crate) fn change(&self, one: usize, other: usize, link: Emulation) -> Result<()> {
        self.ferry.change(index(one, other), link)
    }

    /// The counters of the links.
    pub(crate) fn stats(&self) -> Stats {
        self.ferry.stats()
    }
}

fn place_commands(place: usize, places: usize, hosts: &[u8], congestion: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mtu = link::MTU;
    let others: Vec<usize> = (0..places).filter(|other| *other != place).collect();
    for other in &others {
        // A long queue in front of the emulator, so that packets are dropped only in the emulator's
        // own queue.
        lines.push(format!(
            "link set p{} up mtu {mtu} txqueuelen 10000",
            other + 1
        ));
    }
    for family in Family::ALL {
        let (all, nodad) = whole(family);
        let own = address(place, 0, family);
        lines.push(format!("address add {own}/{all} dev lo{nodad}"));
        for other in &others {
            let (prefix, number) = (place_prefix(*other, family), other + 1);
            lines.push(format!(
                "route add {prefix} dev p{number} src {own} congctl {congestion}"
            ));
        }
    }
    for host in hosts {
        interface(&mut lines, place, *host, 1, &format!("e{host}"), congestion);
    }
    lines
}

fn host_commands(place: usize, host: u8, congestion: &str) -> Vec<String> {
    let mut lines = Vec::new();
    interface(&mut lines, place, host, 2, TO_CLIENT, congestion);
    for family in Family::ALL {
        let gateway = host_end(place, host, 1, family);
        lines.push(format!(
            "route add default via {gateway} congctl {congestion}"
        ));
    }
    lines
}

/// One end of the link between a place and a host beside it.
fn interface(
    lines: &mut Vec<String>,
    place: usize,
    host: u8,
    end: u8,
    name: &str,
    congestion: &str,
) {
    let mtu = link::MTU;
    for family in Family::ALL {
        let (_, nodad) = whole(family);
        let own = host_end(place, host, end, family);
        let length = host_length(family);
        lines.push(format!(
            "address add {own}/{length} dev {name} noprefixroute{nodad}"
        ));
    }
    lines.push(format!("link set {name} up mtu {mtu} txqueuelen 10000"));
    for family in Family::ALL {
        let first = host_end(place, host, 0, family);
        let length = host_length(family);
        lines.push(format!(
            "route add {first}/{length} dev {name} congctl {congestion}"
        ));
    }
}

fn host_end(place: usize, host: u8, end: u8, family: Family) -> IpAddr {
    match address(place, host, family) {
        IpAddr::V4(v4) => {
            let [a, b, c, _] = v4.octets();
            Ipv4Addr::new(a, b, c, end).into()
        }
        IpAddr::V6(v6) => {
            let mut segments = v6.segments();
            segments[7] = end.into();
            Ipv6Addr::from(segments).into()
        }
    }
}

fn host_length(family: Family) -> u8 {
    if family == Family::V4 { 24 } else { 48 }
}

fn place_prefix(place: usize, family: Family) -> String {
    let first = host_end(place, 0, 0, family);
    let length = if family == Family::V4 { 16 } else { 32 };
    format!("{first}/{length}")
}

/// The prefix length of a single address, and further options of its family.
fn whole(family: Family) -> (u8, &'static str) {
    match family {
        Family::V4 => (32, ""),
        Family::V6 => (128, " nodad"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_found_again() {
        let mut count = 0;
        for high in 0..12 {
            for low in 0..high {
                assert_eq!((index(low, high), index(high, low)), (count, count));
                count += 1;
            }
        }
    }

    #[test]
    fn regions_addresses_and_routes() {
        assert_eq!(address(11, 0, Family::V4).to_string(), "10.12.0.1");
        assert_eq!(address(11, 3, Family::V4).to_string(), "10.12.3.2");
        assert_eq!(address(11, 0, Family::V6).to_string(), "fd00:c::1");
        assert_eq!(address(11, 3, Family::V6).to_string(), "fd00:c:3::2");
        let lines = place_commands(1, 3, &[2], "cubic");
        for line in [
            "address add 10.2.0.1/32 dev lo",
            "route add 10.3.0.0/16 dev p3 src 10.2.0.1 congctl cubic",
            "route add fd00:1::/32 dev p1 src fd00:2::1 congctl cubic",
            "address add fd00:2:2::1/48 dev e2 noprefixroute nodad",
            "route add 10.2.2.0/24 dev e2 congctl cubic",
        ] {
            assert!(lines.iter().any(|one| one == line), "{line} in {lines:#?}");
        }
        let lines = host_commands(1, 2, "cubic");
        let line = "route add default via 10.2.2.1 congctl cubic".to_owned();
        assert!(lines.contains(&line), "{lines:#?}");
    }
}
