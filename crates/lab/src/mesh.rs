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

use crate::link::{Link, Stats};
use crate::netns::Namespace;
use crate::network::fabric::{Fabric, Place, add_address, make_router, up};
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
    /// The places first, then the hosts beside them.
    fabric: Fabric,
    /// Place and number of each host.
    beside: Vec<(usize, u8)>,
    places: usize,
}

/// The address of a host of a place (counted from 0); host 0 is the place itself.
pub(crate) fn address(place: usize, host: u8, family: Family) -> IpAddr {
    end(place, host, if host == 0 { 1 } else { 2 }, family)
}

/// The address with this end: 0 for the prefix, 1 for the place, 2 for the host.
fn end(place: usize, host: u8, end: u16, family: Family) -> IpAddr {
    let place = u16::try_from(place + 1).expect("no more than 200 places");
    match family {
        Family::V4 => {
            let [place, end] = [place, end].map(|part| part.to_be_bytes()[1]);
            Ipv4Addr::new(10, place, host, end).into()
        }
        Family::V6 => Ipv6Addr::new(0xfd00, place, host.into(), 0, 0, 0, 0, end).into(),
    }
}

/// The prefix of a place and the hosts beside it.
pub(crate) fn prefix(place: usize, family: Family) -> String {
    let length = if family == Family::V4 { 16 } else { 32 };
    format!("{}/{length}", end(place, 0, 0, family))
}

/// The index of a link in the list of [`Mesh::new`].
fn index(one: usize, other: usize) -> usize {
    // The order of the pairs in `Mesh::new`: all with a smaller number come first.
    let (low, high) = (one.min(other), one.max(other));
    high * (high - 1) / 2 + low
}

impl Mesh {
    /// Builds a network. `link` returns the link between two places, which is an emulated one.
    /// Needs root.
    pub(crate) fn new(
        places: usize,
        beside: &[Beside],
        link: impl Fn(usize, usize) -> Link,
        congestion: &str,
        seed: u64,
    ) -> Result<Self> {
        ensure!((2..=200).contains(&places), "a mesh has 2 to 200 places");
        let toward = |here, there| Place::new(here, format!("p{}", there + 1));
        let pairs = (0..places).flat_map(|high| (0..high).map(move |low| (low, high)));
        let between = pairs.map(|(low, high)| {
            let ends = [toward(low, high), toward(high, low)];
            (ends, link(low, high))
        });
        let aside = beside.iter().zip(places..).map(|(one, host)| {
            let near = Place::new(one.place, format!("e{}", one.host));
            ([near, Place::new(host, TO_CLIENT)], one.link.clone())
        });
        let links: Vec<_> = between.chain(aside).collect();
        let mesh = Self {
            fabric: Fabric::new(places + beside.len(), &links, seed)?,
            beside: beside.iter().map(|one| (one.place, one.host)).collect(),
            places,
        };
        for place in 0..places {
            let own = mesh.beside.iter().filter(|(of, _)| *of == place);
            let own: Vec<u8> = own.map(|(_, host)| *host).collect();
            let lines = place_commands(place, places, &own, congestion);
            mesh.place(place).ip_batch(&lines)?;
            // Places forward between the hosts beside them and the other places.
            make_router(mesh.place(place))?;
        }
        for (place, host) in &mesh.beside {
            let lines = host_commands(*place, *host, congestion);
            mesh.host(*place, *host)?.ip_batch(&lines)?;
        }
        Ok(mesh)
    }

    /// A place.
    pub(crate) fn place(&self, place: usize) -> &Namespace {
        &self.fabric.hosts[place]
    }

    /// A host beside a place.
    pub(crate) fn host(&self, place: usize, host: u8) -> Result<&Namespace> {
        let found = self.beside.iter().position(|one| *one == (place, host));
        found
            .map(|index| &self.fabric.hosts[self.places + index])
            .with_context(|| format!("place {} has no host {host}", place + 1))
    }

    /// Changes the link between two places.
    pub(crate) fn change(&self, one: usize, other: usize, link: Link) -> Result<()> {
        self.fabric.change(index(one, other), link)
    }

    /// The counters of the links.
    pub(crate) fn stats(&self) -> Stats {
        self.fabric.stats()
    }
}

fn place_commands(place: usize, places: usize, hosts: &[u8], congestion: &str) -> Vec<String> {
    let others = || (0..places).filter(|other| *other != place);
    let mut lines: Vec<String> = others()
        .map(|other| up(&format!("p{}", other + 1)))
        .collect();
    for family in Family::ALL {
        let own = address(place, 0, family);
        let all = if family == Family::V4 { 32 } else { 128 };
        // On the loopback interface, so that a place has one address over all its links.
        lines.push(format!("address add {own}/{all} dev lo{}", family.nodad()));
        lines.extend(others().map(|other| {
            let (prefix, number) = (prefix(other, family), other + 1);
            format!("route add {prefix} dev p{number} src {own} congctl {congestion}")
        }));
    }
    for host in hosts {
        interface(
            &mut lines,
            (place, *host, 1),
            &format!("e{host}"),
            congestion,
        );
    }
    lines
}

fn host_commands(place: usize, host: u8, congestion: &str) -> Vec<String> {
    let mut lines = Vec::new();
    interface(&mut lines, (place, host, 2), TO_CLIENT, congestion);
    lines.extend(Family::ALL.map(|family| {
        let gateway = end(place, host, 1, family);
        format!("route add default via {gateway} congctl {congestion}")
    }));
    lines
}

/// One end of the link between a place and a host beside it.
fn interface(
    lines: &mut Vec<String>,
    (place, host, own): (usize, u8, u16),
    name: &str,
    congestion: &str,
) {
    let lengths = [(Family::V4, 24), (Family::V6, 48)];
    for (family, length) in lengths {
        lines.push(add_address(name, end(place, host, own, family), length));
    }
    // The kernel accepts no route over an interface that is down.
    lines.push(up(name));
    for (family, length) in lengths {
        let prefix = end(place, host, 0, family);
        lines.push(format!(
            "route add {prefix}/{length} dev {name} congctl {congestion}"
        ));
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
