// SPDX-License-Identifier: Apache-2.0
//! Interfaces: bridges, narrow links, names that do not exist, addresses that come and go.

use super::probe::{Probe, answered, refused, silent, unreachable};
use super::row::Row;
use super::testbed::{ROUTER, Testbed};

/// Two hosts on bridge ports of the router; its filters also see bridged packets.
fn bridged() -> Testbed {
    let mut testbed = Testbed::new(&["client", "neighbour", ROUTER, "server"]);
    testbed.cable(["client", "eth0"], [ROUTER, "port1"]);
    testbed.cable(["neighbour", "eth0"], [ROUTER, "port2"]);
    testbed.cable(["server", "eth0"], [ROUTER, "wan"]);
    let bridge = "link add br-lan type bridge\nlink set br-lan up\n\
        link set port1 master br-lan\nlink set port2 master br-lan";
    let lines: Vec<_> = bridge.lines().map(|line| line.trim().to_owned()).collect();
    let made = testbed.host(ROUTER).ip_batch(&lines);
    made.expect("a router has bridges");
    for (key, value) in [("iptables", "1"), ("ip6tables", "1")] {
        let key = format!("net.bridge.bridge-nf-call-{key}");
        testbed.sysctl(ROUTER, &key, value);
    }
    testbed.ip("client", "address add LAN.2/LEN dev eth0");
    testbed.ip("neighbour", "address add LAN.3/LEN dev eth0");
    testbed.serve("neighbour", &[80, 81]);
    testbed
}

/// A router with a switch, as hosts of virtual machines have it too: `br_netfilter` shows the firewall what the
/// bridge carries. It routes for the bridge's hosts, and neighbours may reach one port of each other.
// promise: X14
#[test]
fn bridge_with_netfilter() {
    let build = || {
        let mut testbed = bridged();
        let router = "address add LAN.1/LEN dev br-lan\naddress add WAN.1/LEN dev wan";
        testbed.ip(ROUTER, router);
        testbed.forward(ROUTER);
        for host in ["client", "neighbour"] {
            testbed.ip(host, "route add default via LAN.1");
        }
        let server = "address add WAN.2/LEN dev eth0\nroute add default via WAN.1";
        testbed.ip("server", server);
        testbed.serve("server", &[80, 81]);
        let rules = "table IP guard {
            chain through { type filter hook forward priority 0; policy drop
            ct state established,related accept
            meta l4proto { icmp, ipv6-icmp } accept
            iifname br-lan tcp dport { $80, $82 } accept
            }
            }";
        testbed.nft(ROUTER, rules);
        testbed
    };
    let probes = [
        answered("client@LAN.2", ("WAN.2", 80)),
        answered("neighbour@LAN.3", ("WAN.2", 80)),
        refused("client@LAN.2", ("WAN.2", 82)),
        silent("client@LAN.2", ("WAN.2", 81)),
        answered("client@LAN.2", ("LAN.3", 80)),
        silent("client@LAN.2", ("LAN.3", 81)),
    ];
    Row::new(build, probes).run();
}

/// A router with one interface: client and server are on the same switch, in different networks.
fn one_armed() -> Testbed {
    let mut testbed = Testbed::new(&["client", "server", ROUTER, "switch"]);
    let mut lines = vec![
        "link add hub type bridge".to_owned(),
        "link set hub up".to_owned(),
    ];
    for (host, port) in [("client", "one"), ("server", "two"), (ROUTER, "three")] {
        testbed.cable([host, "eth0"], ["switch", port]);
        lines.push(format!("link set {port} master hub"));
    }
    let made = testbed.host("switch").ip_batch(&lines);
    made.expect("a switch is a bridge");
    let client = "address add LAN.2/LEN dev eth0\nroute add default via LAN.1";
    testbed.ip("client", client);
    let server = "address add WAN.2/LEN dev eth0\nroute add default via WAN.1";
    testbed.ip("server", server);
    let router = "address add LAN.1/LEN dev eth0\naddress add WAN.1/LEN dev eth0";
    testbed.ip(ROUTER, router);
    testbed.forward(ROUTER);
    // It would report a way around itself to both (RFC 792).
    for host in [ROUTER, "client", "server"] {
        for key in ["accept_redirects", "send_redirects"] {
            testbed.sysctl(host, &format!("net.ipv4.conf.eth0.{key}"), "0");
        }
        testbed.sysctl(host, "net.ipv6.conf.eth0.accept_redirects", "0");
    }
    testbed.serve("server", &[80, 81]);
    testbed
}

/// A router on a stick, as in a small cloud network.
#[test]
fn one_interface_for_both_sides() {
    let probes = [
        answered("client@LAN.2", ("WAN.2", 80)),
        answered("client@LAN.2", ("WAN.2", 81)),
        refused("client@LAN.2", ("WAN.2", 82)),
    ];
    Row::new(one_armed, probes).relays_by_sockets().run();
}

/// The same, with the router's address for the server.
#[test]
fn one_interface_for_both_sides_with_translation() {
    let build = || {
        let testbed = one_armed();
        let script = "table IP nat {
            chain after { type nat hook postrouting priority 100
            IP daddr WAN.0/LEN masquerade
            }
            }";
        testbed.nft(ROUTER, script);
        testbed
    };
    let probes = [
        answered("client@LAN.2", ("WAN.2", 80)),
        refused("client@LAN.2", ("WAN.2", 82)),
    ];
    Row::new(build, probes).relays_by_sockets().run();
}

/// A box that is a bridge and no router: it has no address, and nothing is its business.
// promise: X14
#[test]
fn bridge_without_routing() {
    let probes = [
        answered("client@LAN.2", ("LAN.3", 80)),
        answered("client@LAN.2", ("LAN.3", 81)),
        refused("client@LAN.2", ("LAN.3", 82)),
    ];
    Row::new(bridged, probes).relays_none().run();
}

/// Beyond the router is a link with an MTU of 1280 bytes and without ICMP errors.
fn narrow() -> Testbed {
    let mut testbed = Testbed::new(&["client", ROUTER, "near", "far", "server"]);
    testbed.cable(["client", "eth0"], [ROUTER, "lan"]);
    testbed.cable([ROUTER, "wan"], ["near", "west"]);
    testbed.cable(["near", "east"], ["far", "west"]);
    testbed.cable(["far", "east"], ["server", "eth0"]);
    for (host, lines) in [
        (
            "client",
            "address add LAN.2/LEN dev eth0\nroute add default via LAN.1",
        ),
        (
            ROUTER,
            "address add LAN.1/LEN dev lan\naddress add WAN.1/LEN dev wan\nroute add default via WAN.2",
        ),
        (
            "near",
            "address add WAN.2/LEN dev west\naddress add MID.1/LEN dev east\n\
             route add LAN.0/LEN via WAN.1\nroute add NET.0/LEN via MID.2\n\
             link set east mtu 1280",
        ),
        (
            "far",
            "address add MID.2/LEN dev west\naddress add NET.1/LEN dev east\n\
             route add default via MID.1\nlink set west mtu 1280",
        ),
        (
            "server",
            "address add NET.2/LEN dev eth0\nroute add default via NET.1",
        ),
    ] {
        testbed.ip(host, lines);
    }
    for host in [ROUTER, "near", "far"] {
        testbed.forward(host);
    }
    let rules = "table IP guard {
        chain from_us { type filter hook output priority 0
        ICMP type ERRORS drop
        }
        }";
    for host in ["near", "far"] {
        testbed.nft(host, rules);
    }
    testbed.serve("server", &[80]);
    testbed
}

/// A subscriber's line (PPPoE, a tunnel) with ICMP filtered: the router clamps the MSS.
// promise: X15
#[test]
fn narrow_uplink_with_clamping() {
    let build = || {
        let testbed = narrow();
        let rules = "table IP mangle {
            chain through { type filter hook forward priority -150
            meta l4proto tcp tcp flags & (syn|rst) == syn tcp option maxseg size set 1220
            }
            }";
        testbed.nft(ROUTER, rules);
        testbed
    };
    let probes = [
        answered("client@LAN.2", ("NET.2", 80)),
        refused("client@LAN.2", ("NET.2", 82)),
    ];
    Row::new(build, probes).run();
}

/// The same line without clamping: hosts find out themselves what fits (RFC 4821). The router's own connections do
/// so because `posthaste doctor` advises it (`setup --tune`): a relay is one of them.
// promise: X15
#[test]
fn narrow_uplink_with_probing_hosts() {
    let build = || {
        let testbed = narrow();
        for host in ["client", ROUTER, "server"] {
            testbed.sysctl(host, "net.ipv4.tcp_mtu_probing", "1");
        }
        testbed
    };
    let probes = [
        answered("client@LAN.2", ("NET.2", 80)).briefly(),
        refused("client@LAN.2", ("NET.2", 82)),
    ];
    Row::new(build, probes).run();
}

/// What any client of an open router gets.
fn open() -> [Probe; 3] {
    [
        answered("client@LAN.2", ("WAN.2", 80)),
        answered("client@LAN.3", ("WAN.3", 81)),
        refused("client@LAN.2", ("WAN.2", 82)),
    ]
}

/// An interface that is written wrongly in the node's configuration.
// promise: X16
#[test]
fn misspelt_interface() {
    let config = "[transparent]\ninterfaces = [\"lan\", \"wam\"]\n";
    let row = Row::new(Testbed::with_routed_lan, open()).config(config);
    row.refuses("there is no interface wam").run();
}

/// One side of the path is missing in the node's configuration.
// promise: X16
#[test]
fn only_one_interface_named() {
    let config = "[transparent]\ninterfaces = [\"lan\"]\n";
    let row = Row::new(Testbed::with_routed_lan, open()).config(config);
    row.relays_none().run();
}

/// An uplink that comes back under another name than the node's configuration has, as dialled ones do.
// promise: X3
#[test]
fn uplink_renamed() {
    let rename = |testbed: &Testbed| {
        let renamed = "link set wan down\nlink set wan name ppp0\nlink set ppp0 up";
        let lines: Vec<_> = renamed.lines().map(str::to_owned).collect();
        let done = testbed.host(ROUTER).ip_batch(&lines);
        done.expect("an interface that is down can be renamed");
        testbed.ip(ROUTER, "address replace WAN.1/LEN dev ppp0");
    };
    let config = "[transparent]\ninterfaces = [\"lan\", \"wan\"]\n";
    let row = Row::new(Testbed::with_routed_lan, open()).config(config);
    row.then(rename, open()).run();
}

/// An uplink with an address that is removed and restored, as with DHCP, and masqueraded clients.
// promise: X3
#[test]
fn address_removed_and_restored() {
    let build = || {
        let testbed = Testbed::with_private_lan();
        let rules = "table IP nat {
            chain after { type nat hook postrouting priority 100
            oifname wan masquerade
            }
            }";
        testbed.nft(ROUTER, rules);
        // Once the kernel has forgotten what it masqueraded, a connection of the router itself may take the
        // port of a client's, of which the server resets the older one.
        let ports = ("net.ipv4.ip_local_port_range", "20000 29999");
        let router = testbed.host(ROUTER);
        router
            .sysctls(&[ports])
            .expect("a range of ports can be set");
        testbed
    };
    let go = |testbed: &Testbed| {
        testbed.ip(ROUTER, "address del WAN.1/LEN dev wan");
        testbed.wait_untracked(ROUTER, "WAN.1");
    };
    let come = |testbed: &Testbed| testbed.ip(ROUTER, "address add WAN.1/LEN dev wan");
    let there = [
        answered("client@LAN.2", ("WAN.2", 80)),
        answered("client@LAN.3", ("WAN.2", 81)),
    ];
    let gone = [
        // The kernel limits errors about unroutable packets for each client: five, and then one a
        // second.
        unreachable("client@LAN.2", ("WAN.2", 80)).briefly(),
        unreachable("client@LAN.4", ("WAN.3", 80)).briefly(),
    ];
    let row = Row::new(build, there.clone());
    row.then(go, gone).then(come, there).apart().run();
}
