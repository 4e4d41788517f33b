// SPDX-License-Identifier: Apache-2.0
//! One of the two networks: clients, a masquerading router with a firewall, servers; and its
//! faults.

use std::time::Duration;

use anyhow::Result;

use super::plan::{
    CLIENTS, DROPPED_PORT, FORBIDDEN_SERVER, Fault, REJECTED_PORT, SERVERS, Side, server_address,
};
use super::{Args, Path};
use crate::link::{self, End, Link, split};
use crate::netns::Namespace;
use crate::network::{Family, Network, TO_CLIENT, TO_SERVER, add_addresses, client_address};
use crate::process::run;

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

/// Servers beside the line on [`Path::Unlike`], and the segments that the first of them grants, which
/// IPv6 has at least.
const OTHERS: usize = 2;
const SMALL_SEGMENT: u32 = 1220;

/// The interfaces of another link between clients and router, on [`Path::Moving`].
const SPARE: [&str; 2] = ["spare", "lan"];
const SPARE_CLIENT: [&str; 2] = ["10.99.0.1/24", "fd00:99::1/64"];
const SPARE_ROUTER: [&str; 2] = ["10.99.0.2/24", "fd00:99::2/64"];
/// The routes by one of the two links: of the clients, and of the router.
const BY_LAN: [[&str; 2]; 2] = [
    [
        "route replace default via 10.0.0.2",
        "route replace default via fd00::2",
    ],
    [
        "route replace 10.100.0.0/16 via 10.0.0.1",
        "route replace fd00:100::/32 via fd00::1",
    ],
];
const BY_SPARE: [[&str; 2]; 2] = [
    [
        "route replace default via 10.99.0.2",
        "route replace default via fd00:99::2",
    ],
    [
        "route replace 10.100.0.0/16 via 10.99.0.1",
        "route replace fd00:100::/32 via fd00:99::1",
    ],
];

/// A network; the two differ only in the node that one of them has.
#[derive(Debug)]
pub(super) struct Testbed {
    pub(super) network: Network,
    /// Probability of loss while no fault changes it.
    loss: f64,
    /// How many more servers, beside the line, have the same addresses.
    others: usize,
}

impl Testbed {
    pub(super) fn new(args: &Args) -> Result<Self> {
        let loss = args.loss / 100.0;
        let network = build(args, loss)?;
        // A port is free again after a second where timestamps distinguish its connections.
        let ports = format!("{FIRST_PORT} {}", FIRST_PORT + args.ports - 1);
        for (key, value) in [
            ("net.ipv4.ip_local_port_range", ports.as_str()),
            ("net.ipv4.tcp_tw_reuse", "1"),
        ] {
            network.client().sysctl(key, value)?;
        }
        let others = match args.path {
            Path::Unlike => OTHERS,
            _ => 0,
        };
        let testbed = Self {
            network,
            loss,
            others,
        };
        // One host plays all clients, another all servers.
        add_addresses(testbed.network.client(), client_address, CLIENTS)?;
        for host in testbed.servers() {
            add_addresses(host, server_address, FORBIDDEN_SERVER)?;
        }
        match args.path {
            Path::Lists => testbed.join_to_lists()?,
            Path::Unlike => testbed.balance()?,
            Path::Moving => testbed.add_spare()?,
            Path::Plain | Path::Fragments | Path::Outages => {}
        }
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

    /// The hosts that have the addresses of all servers.
    pub(super) fn servers(&self) -> Vec<&Namespace> {
        let others = (0..self.others).map(|host| self.network.aside(host));
        [self.network.server()].into_iter().chain(others).collect()
    }

    /// Makes the router's interfaces join segments to lists, which they only do for what arrives as
    /// segments, and within a moment.
    fn join_to_lists(&self) -> Result<()> {
        let ends = [
            (self.network.client(), TO_SERVER),
            (self.network.server(), TO_CLIENT),
        ];
        for (host, device) in ends {
            shell(
                host,
                &format!("ethtool -K {device} tso off gso off gro off"),
            )?;
        }
        shell(
            self.router(),
            &format!(
                "mount -t sysfs none /sys
                for device in {TO_CLIENT} {TO_SERVER}; do
                ethtool -K $device gro on rx-gro-list on
                echo 1000000 > /sys/class/net/$device/gro_flush_timeout
                echo 100 > /sys/class/net/$device/napi_defer_hard_irqs
                done"
            ),
        )
    }

    /// Makes the second node send connections, by the port of their clients, to unlike servers.
    fn balance(&self) -> Result<()> {
        let (balancer, narrow, plain) = (
            self.network.node(1),
            self.network.aside(0),
            self.network.aside(1),
        );
        for option in ["timestamps", "sack", "window_scaling"] {
            plain.sysctl(&format!("net.ipv4.tcp_{option}"), "0")?;
        }
        narrow.sysctl("net.ipv4.tcp_rmem", "4096 16384 65536")?;
        for family in Family::ALL {
            let number = if family == Family::V4 { "-4" } else { "-6" };
            for host in 0..OTHERS {
                let (mark, beside) = (host + 1, self.network.aside_address(host, family));
                let lines = format!(
                    "ip {number} rule add fwmark {mark} lookup 10{mark}
                    ip {number} route add default via {beside} table 10{mark}"
                );
                shell(balancer, &lines)?;
            }
            let gateway = self.network.beside_address(0, family);
            narrow.ip(&format!(
                "route replace default via {gateway} advmss {SMALL_SEGMENT}"
            ))?;
        }
        // Ports of clients are even. A node leaves a service alone for minutes once it has met the last one.
        balancer.nft(&format!(
            "table inet balancer {{ chain choose {{ type filter hook prerouting priority -150;
            iifname {TO_CLIENT} tcp sport & 2 == 0 meta mark set 1
            iifname {TO_CLIENT} tcp sport & 126 == 2 meta mark set 2; }}; }}"
        ))
    }

    /// Adds another link between clients and router.
    fn add_spare(&self) -> Result<()> {
        let hosts = [self.network.client(), self.router()];
        let end = |host: usize| End {
            namespace: hosts[host],
            interface: SPARE[host],
        };
        link::make_veth(end(0), end(1))?;
        for (host, addresses) in [SPARE_CLIENT, SPARE_ROUTER].into_iter().enumerate() {
            let device = SPARE[host];
            let [v4, v6] = addresses;
            hosts[host].ip_batch(&[
                format!("address add {v4} dev {device}"),
                format!("address add {v6} dev {device} nodad"),
                format!("link set {device} up"),
            ])?;
        }
        Ok(())
    }

    /// Moves the clients to one of the two links.
    fn move_clients(&self, routes: [[&str; 2]; 2]) -> Result<()> {
        let [clients, router] = routes.map(|lines| lines.map(str::to_owned));
        self.network.client().ip_batch(&clients)?;
        self.router().ip_batch(&router)
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
            Fault::Move => self.move_clients(BY_SPARE),
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
            Fault::Move => self.move_clients(BY_LAN),
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

/// The hosts and links of a path.
fn build(args: &Args, loss: f64) -> Result<Network> {
    let links = DELAYS.map(|delay| Link::delay(delay).loss(loss));
    let builder = match args.path {
        Path::Lists => Network::line([Link::Veth, Link::Veth]),
        Path::Fragments => {
            let [lan, wan] = links;
            Network::line([lan, wan.rewrites(split::split)])
        }
        Path::Unlike => {
            let [lan, wan] = links;
            // The router, and the balancer with the other servers beside it.
            let line = Network::line([lan, Link::Veth, wan.clone()]);
            line.beside(1, wan.clone()).beside(1, wan)
        }
        Path::Plain | Path::Moving | Path::Outages => Network::line(links),
    };
    builder.seed(args.common.seed).build()
}

/// Runs lines of a shell in a host, with mounts of their own.
fn shell(host: &Namespace, lines: &str) -> Result<()> {
    let mut command = host.command("unshare")?;
    run(command.args(["--mount", "sh", "-ec", lines])).map(drop)
}

fn device(side: Side) -> &'static str {
    match side {
        Side::Lan => TO_CLIENT,
        Side::Wan => TO_SERVER,
    }
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
        iifname {{ {TO_CLIENT}, {} }} oifname {TO_SERVER} ct state new accept
        }}
        chain translate {{
        type nat hook postrouting priority 100;
        oifname {TO_SERVER} masquerade
        }}
        }}",
        SPARE[1]
    )
}

const _: () = assert!(SERVERS < FORBIDDEN_SERVER);
