// SPDX-License-Identifier: Apache-2.0
//! Routers with filters: the node relays nothing that they forbid, and clients see the same
//! refusals.

use super::probe::{Probe, answered, refused, silent, unreachable};
use super::row::Row;
use super::testbed::{ROUTER, Testbed};

/// A router between routed networks, with rules.
fn routed(rules: &str) -> Testbed {
    let testbed = Testbed::with_routed_lan();
    testbed.nft(ROUTER, rules);
    testbed
}

/// What any client of an open router gets.
fn open() -> [Probe; 3] {
    [
        answered("client@LAN.2", ("WAN.2", 80)),
        answered("client@LAN.3", ("WAN.3", 81)),
        refused("client@LAN.2", ("WAN.2", 82)),
    ]
}

/// A firewall between departments: all is forbidden but one service for one client. Beside it are a client
/// of the same network, a server of the same network and a port of the same server.
// promise: X4
#[test]
fn forward_policy_drop() {
    let build = || {
        routed(
            "table IP guard {
            chain through { type filter hook forward priority 0; policy drop
            ct state established,related accept
            IP saddr LAN.2 IP daddr WAN.2 tcp dport $80 accept
            }
            }",
        )
    };
    let probes = [
        answered("client@LAN.2", ("WAN.2", 80)),
        silent("client@LAN.3", ("WAN.2", 80)),
        silent("client@LAN.2", ("WAN.3", 80)),
        silent("client@LAN.2", ("WAN.2", 81)),
    ];
    Row::new(build, probes).run();
}

/// A firewall that is polite to those within: what it forbids it refuses, by a reset or an ICMP error.
// promise: X4
#[test]
fn forward_reject() {
    let build = || {
        routed(
            "table IP guard {
            chain through { type filter hook forward priority 0; policy accept
            IP saddr LAN.3 meta l4proto tcp reject with tcp reset
            IP daddr WAN.3 reject
            tcp dport $81 reject with ICMP type admin-prohibited
            }
            }",
        )
    };
    let probes = [
        answered("client@LAN.2", ("WAN.2", 80)),
        refused("client@LAN.3", ("WAN.2", 80)),
        refused("client@LAN.2", ("WAN.3", 80)),
        unreachable("client@LAN.2", ("WAN.2", 81)),
        answered("client@LAN.4", ("WAN.2", 80)),
    ];
    Row::new(build, probes).run();
}

/// An operator closes a port while the router is in use.
// promise: X3
#[test]
fn port_closed_later() {
    let build = || {
        routed(
            "table IP guard {
            chain through { type filter hook forward priority 0; policy accept
            }
            }",
        )
    };
    let close = |testbed: &Testbed| {
        testbed.nft(
            ROUTER,
            "insert rule IP guard through tcp dport $81 ct state new drop",
        );
    };
    let probes = [
        answered("client@LAN.2", ("WAN.2", 80)),
        answered("client@LAN.2", ("WAN.2", 81)),
    ];
    let closed = [
        answered("client@LAN.2", ("WAN.2", 80)),
        silent("client@LAN.2", ("WAN.2", 81)),
        silent("client@LAN.3", ("WAN.2", 81)),
    ];
    Row::new(build, probes).then(close, closed).run();
}

/// A daemon such as fail2ban adds clients to a set of those that are refused, and lets them go again.
// promise: X3
#[test]
fn client_added_to_a_set() {
    let build = || {
        routed(
            "table IP guard {
            set banned { type IPADDR; }
            chain through { type filter hook forward priority 0; policy accept
            IP saddr @banned drop
            }
            }",
        )
    };
    let ban = |testbed: &Testbed| testbed.nft(ROUTER, "add element IP guard banned { LAN.3 }");
    let pardon =
        |testbed: &Testbed| testbed.nft(ROUTER, "delete element IP guard banned { LAN.3 }");
    let clients = [
        answered("client@LAN.2", ("WAN.2", 80)),
        answered("client@LAN.3", ("WAN.2", 80)),
    ];
    let banned = [
        answered("client@LAN.2", ("WAN.2", 80)),
        silent("client@LAN.3", ("WAN.2", 80)),
    ];
    let row = Row::new(build, clients.clone());
    row.then(ban, banned).then(pardon, clients).run();
}

/// A router without logins: it accepts only answers to its own connections.
// promise: X7
#[test]
fn input_policy_drop() {
    let build = || {
        routed(
            "table IP guard {
            chain to_us { type filter hook input priority 0; policy drop
            ct state established,related accept
            iifname lo accept
            meta l4proto { icmp, ipv6-icmp } accept
            }
            }",
        )
    };
    Row::new(build, open()).run();
}

/// The same router, which may not open connections either.
// promise: X7
#[test]
fn input_and_output_policy_drop() {
    let build = || {
        routed(
            "table IP guard {
            chain to_us { type filter hook input priority 0; policy drop
            ct state established,related accept
            iifname lo accept
            meta l4proto { icmp, ipv6-icmp } accept
            }
            chain from_us { type filter hook output priority 0; policy drop
            ct state established,related accept
            oifname lo accept
            meta l4proto { icmp, ipv6-icmp } accept
            }
            }",
        )
    };
    Row::new(build, open()).run();
}

/// A stateful firewall by the book: whatever conntrack has no connection for is dropped, on every hook, and
/// conntrack looks at windows as strictly as it does by default.
// promise: X9
#[test]
fn invalid_is_dropped() {
    let build = || {
        let testbed = routed(
            "table IP guard {
            chain before { type filter hook prerouting priority -140
            ct state invalid drop
            }
            chain to_us { type filter hook input priority 0
            ct state invalid drop
            }
            chain through { type filter hook forward priority 0
            ct state invalid drop
            meta l4proto tcp ct state new tcp flags & (fin|syn|rst|ack) != syn drop
            }
            chain from_us { type filter hook output priority 0
            ct state invalid drop
            }
            }",
        );
        testbed.sysctl(ROUTER, "net.netfilter.nf_conntrack_tcp_be_liberal", "0");
        testbed.sysctl(ROUTER, "net.netfilter.nf_conntrack_tcp_loose", "0");
        testbed
    };
    Row::new(build, open()).relays().run();
}

/// A backbone router without state: nothing is tracked, and lists without state filter.
// promise: X4
#[test]
fn stateless_lists() {
    let build = || {
        routed(
            "table IP raw {
            chain before { type filter hook prerouting priority -300
            notrack
            IP saddr LAN.3 tcp dport $80 tcp flags & (syn|ack) == syn drop
            }
            chain from_us { type filter hook output priority -300
            notrack
            }
            }",
        )
    };
    let probes = [
        answered("client@LAN.2", ("WAN.2", 80)),
        answered("client@LAN.3", ("WAN.2", 81)),
        silent("client@LAN.3", ("WAN.2", 80)),
        refused("client@LAN.2", ("WAN.2", 82)),
    ];
    Row::new(build, probes).run();
}
