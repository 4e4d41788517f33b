// SPDX-License-Identifier: Apache-2.0
//! Hosts joined by links: what the networks of the lab are built from.

use std::net::IpAddr;

use anyhow::{Context, Result, bail};

use super::{Family, TO_CLIENT, TO_SERVER};
use crate::link::{self, End, Ferry, Link, Stats};
use crate::netns::Namespace;

/// One end of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) host: usize,
    pub(crate) interface: String,
}

impl Place {
    pub(crate) fn new(host: usize, interface: impl Into<String>) -> Self {
        Self {
            host,
            interface: interface.into(),
        }
    }
}

/// The hosts and the emulation of their links. All ends with it.
#[derive(Debug)]
pub(crate) struct Fabric {
    /// First, so that the interfaces go before the namespaces.
    ferry: Option<Ferry>,
    pub(crate) hosts: Vec<Namespace>,
}

impl Fabric {
    /// Makes so many hosts, and the interfaces of links between them. `seed` is that of losses.
    pub(crate) fn new(hosts: usize, links: &[([Place; 2], Link)], seed: u64) -> Result<Self> {
        let hosts = (0..hosts)
            .map(|_| Namespace::new())
            .collect::<Result<Vec<_>>>()
            .context("make the network's namespaces")?;
        // All interfaces first: the ferry takes the files of all emulated links at once.
        let mut emulated = Vec::new();
        for (ends, link) in links {
            let [left, right] = ends.each_ref().map(|place| End {
                namespace: &hosts[place.host],
                interface: &place.interface,
            });
            match link {
                Link::Veth => link::make_veth(left, right)?,
                Link::Devices(devices) => link::move_devices(*devices, [left, right])?,
                Link::Emulated(emulation) => {
                    emulated.push((link::make_tuns(left, right)?, emulation.clone()));
                }
            }
        }
        let ferry = (!emulated.is_empty()).then(|| Ferry::start(emulated, seed));
        Ok(Self {
            ferry: ferry.transpose()?,
            hosts,
        })
    }

    /// Changes the properties of an emulated link. Indexes count the emulated links only.
    pub(crate) fn change(&self, index: usize, link: Link) -> Result<()> {
        let (Some(ferry), Link::Emulated(emulation)) = (&self.ferry, link) else {
            bail!("only emulated links change, into emulated ones");
        };
        ferry.change(index, emulation)
    }

    /// The counters of the emulated links; all zero when there are none.
    pub(crate) fn stats(&self) -> Stats {
        self.ferry.as_ref().map(Ferry::stats).unwrap_or_default()
    }
}

/// Makes a host forward packets of both families.
pub(crate) fn make_router(host: &Namespace) -> Result<()> {
    host.sysctls(&[
        ("net.ipv4.ip_forward", "1"),
        ("net.ipv6.conf.all.forwarding", "1"),
    ])
}

/// Makes a router what an office may have: new connections only from clients, nothing invalid, and its
/// own address for servers.
pub(crate) fn masquerade(router: &Namespace) -> Result<()> {
    router.nft(&format!(
        "table inet router {{
        chain forward {{
        type filter hook forward priority 0; policy drop;
        ct state invalid drop
        ct state established,related accept
        iifname {TO_CLIENT} oifname {TO_SERVER} tcp flags & (fin|syn|rst|ack) == syn ct state new accept
        }}
        chain translate {{
        type nat hook postrouting priority 100;
        oifname {TO_SERVER} masquerade
        }}
        }}"
    ))
}

/// The command that brings an interface up. Its queue is long, so that packets are dropped only in
/// the emulator's own queue.
pub(crate) fn up(interface: &str) -> String {
    let mtu = link::MTU;
    // TUN interfaces drop when their queue is full; the default is 500 packets.
    format!("link set {interface} up mtu {mtu} txqueuelen 10000")
}

/// The command that adds an address to an interface, without a route: the kernel's own route to
/// the prefix would lack the congestion control.
pub(crate) fn add_address(interface: &str, address: IpAddr, length: u8) -> String {
    let nodad = Family::of(address).nodad();
    format!("address add {address}/{length} dev {interface} noprefixroute{nodad}")
}
