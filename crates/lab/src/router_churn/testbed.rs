// SPDX-License-Identifier: Apache-2.0
//! One of the two networks: clients, a masquerading router with a firewall, servers; and its
//! faults.

use std::time::Duration;

use anyhow::Result;

use super::Args;
use super::plan::{
    CLIENTS, DROPPED_PORT, FORBIDDEN_SERVER, Fault, REJECTED_PORT, SERVERS, Side, client_address,
    server_address,
};
use crate::link::Link;
use crate::netns::Namespace;
use crate::network::{Family, Network, TO_CLIENT, TO_SERVER};

/// The lowest port of clients, as of Linux.
const FIRST_PORT: u16 = 32_768;

/// One-way delays of the two links.
const DELAYS: [Duration; 2] = [Duration::from_millis(3), Duration::from_millis(5)];

/// The router's interface on a side, its addresses there and the routes by it.
const LAN: [&str; 6] = [
    "address replace 10.0.0.2/24 dev c0 noprefixroute",
    "address replace fd00::2/64 dev c0 noprefixroute nodad",
    "route replace 10.0.0.0/24 dev c0",
    "route replace fd00::/64 dev c0",
    "route replace 10.100.0.0/16 via 10.0.0.1",
    "route replace fd00:100::/32 via fd00::1",
];
const WAN: [&str; 6] = [
    "address replace 10.0.1.1/24 dev s0 noprefixroute",
    "address replace fd00:0:0:1::1/64 dev s0 noprefixroute nodad",
    "route replace 10.0.1.0/24 dev s0",
    "route replace fd00:0:0:1::/64 dev s0",
    "route replace 10.200.0.0/16 via 10.0.1.2",
    "route replace fd00:200::/32 via fd00:0:0:1::2",
];

/// A network; the two differ only in the node that one of them has.
#[derive(Debug)]
pub(super) struct Testbed {
    pub(super) network: Network,
    /// Probability of loss while no fault changes it.
    loss: f64,
}

impl Testbed {
    pub(super) fn new(args: &Args) -> Result<Self> {
        let loss = args.loss / 100.0;
        let links = DELAYS.map(|delay| Link::delay(delay).loss(loss));
        let network = Network::line(links).seed(args.common.seed).build()?;
        // A port is free again after a second where timestamps distinguish its connections.
        let ports = format!("{FIRST_PORT} {}", FIRST_PORT + args.ports - 1);
        for (key, value) in [
            ("net.ipv4.ip_local_port_range", ports.as_str()),
            ("net.ipv4.tcp_tw_reuse", "1"),
        ] {
            network.client().sysctl(key, value)?;
        }
        let testbed = Self { network, loss };
        let [clients, servers] = [client_address, server_address];
        // Addresses on the loopback interface: one host plays all clients, another all servers.
        add_addresses(testbed.network.client(), clients, CLIENTS)?;
        add_addresses(testbed.network.server(), servers, FORBIDDEN_SERVER)?;
        // A rejected connection must get its ICMP error in both networks: the limit would drop some of
        // them, and not the same ones.
        for key in ["net.ipv4.icmp_ratelimit", "net.ipv6.icmp.ratelimit"] {
            testbed.router().sysctl(key, "0")?;
        }
        testbed.router().nft(&rules())?;
        Ok(testbed)
    }

    pub(super) fn router(&self) -> &Namespace {
        self.network.node(0)
    }

    /// Begins a fault, except those of the node.
    pub(super) fn begin(&self, fault: Fault) -> Result<()> {
        match fault {
            Fault::Kill | Fault::Upgrade | Fault::Drain | Fault::Reload => Ok(()),
            // A chain without a hook drops nothing, but the kernel reports the change: profiles end.
            Fault::Rule => self
                .router()
                .nft("add chain inet router nobody { tcp dport 9 counter; }"),
            Fault::ClosePort(port) => self.element("add", "closed", &port.to_string()),
            Fault::ForbidClient(client) => self.forbid("add", client),
            Fault::Loss(side) => self.change(side, 1.0),
            Fault::Down(side) => self.router().ip(&format!("link set {} down", device(side))),
            Fault::Address => self.router().ip_batch(&[
                "address del 10.0.1.1/24 dev s0".to_owned(),
                "address del fd00:0:0:1::1/64 dev s0".to_owned(),
            ]),
        }
    }

    /// Ends a fault.
    pub(super) fn end(&self, fault: Fault) -> Result<()> {
        match fault {
            Fault::Kill | Fault::Upgrade | Fault::Drain | Fault::Reload => Ok(()),
            Fault::Rule => self
                .router()
                .nft("flush chain inet router nobody; delete chain inet router nobody"),
            Fault::ClosePort(port) => self.element("delete", "closed", &port.to_string()),
            Fault::ForbidClient(client) => self.forbid("delete", client),
            Fault::Loss(side) => self.change(side, self.loss),
            Fault::Down(side) => {
                // First the interface: the kernel accepts no route over one that is down.
                self.router().ip(&format!("link set {} up", device(side)))?;
                self.restore(side)
            }
            Fault::Address => self.restore(Side::Wan),
        }
    }

    fn element(&self, verb: &str, set: &str, element: &str) -> Result<()> {
        self.router()
            .nft(&format!("{verb} element inet router {set} {{ {element} }}"))
    }

    fn forbid(&self, verb: &str, client: u8) -> Result<()> {
        for (family, set) in Family::ALL.into_iter().zip(["forbidden4", "forbidden6"]) {
            self.element(verb, set, &client_address(family, client).to_string())?;
        }
        Ok(())
    }

    fn change(&self, side: Side, loss: f64) -> Result<()> {
        // Links count from the client.
        let index = usize::from(side == Side::Wan);
        self.network
            .change(index, Link::delay(DELAYS[index]).loss(loss))
    }

    /// Restores what the kernel removed from an interface when it went down, or lost its addresses.
    fn restore(&self, side: Side) -> Result<()> {
        let lines = if side == Side::Lan { LAN } else { WAN };
        self.router().ip_batch(&lines.map(str::to_owned))
    }
}

fn device(side: Side) -> &'static str {
    match side {
        Side::Lan => TO_CLIENT,
        Side::Wan => TO_SERVER,
    }
}

fn add_addresses(
    host: &Namespace,
    address: impl Fn(Family, u8) -> std::net::IpAddr,
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

/// The firewall of an office: new connections only from inside, and not to all destinations.
fn rules() -> String {
    let [v4, v6] = Family::ALL.map(|family| server_address(family, FORBIDDEN_SERVER));
    format!(
        "table inet router {{
        set closed {{ type inet_service; }}
        set forbidden4 {{ type ipv4_addr; }}
        set forbidden6 {{ type ipv6_addr; }}
        chain forward {{
        type filter hook forward priority 0; policy drop;
        ct state invalid drop
        ct state established,related accept
        meta l4proto {{ icmp, ipv6-icmp }} accept
        tcp dport {DROPPED_PORT} drop
        tcp dport {REJECTED_PORT} reject with tcp reset
        ip daddr {v4} drop
        ip6 daddr {v6} drop
        tcp dport @closed drop
        ip saddr @forbidden4 drop
        ip6 saddr @forbidden6 drop
        iifname {TO_CLIENT} oifname {TO_SERVER} ct state new accept
        }}
        chain translate {{
        type nat hook postrouting priority 100;
        oifname {TO_SERVER} masquerade
        }}
        }}"
    )
}

const _: () = assert!(SERVERS < FORBIDDEN_SERVER);
