// SPDX-License-Identifier: Apache-2.0
//! Routers that choose among ways, and those that see one direction only.

use super::probe::{answered, refused, silent, unreachable};
use super::row::Row;
use super::testbed::{ROUTER, Testbed};
use crate::support::firewall;

/// A router with the uplinks `one`, which is used by default, and `two`, for which there is table 102. Each
/// provider's address is given to what leaves by it: the server, which is behind both, sees which was used.
fn two_uplinks() -> Testbed {
    let mut testbed = Testbed::new(&["client", "guest", ROUTER, "server"]);
    testbed.cable(["client", "eth0"], [ROUTER, "lan"]);
    testbed.cable(["guest", "eth0"], [ROUTER, "guests"]);
    testbed.cable(["server", "one"], [ROUTER, "one"]);
    testbed.cable(["server", "two"], [ROUTER, "two"]);
    let clients = "address add LAN.2/LEN dev eth0\naddress add LAN.3/LEN dev eth0\n\
        route add default via LAN.1";
    testbed.ip("client", clients);
    let guest = "address add DMZ.2/LEN dev eth0\nroute add default via DMZ.1";
    testbed.ip("guest", guest);
    let server = "address add ONE.2/LEN dev one\naddress add TWO.2/LEN dev two\n\
        address add NET.2/ALL dev lo";
    testbed.ip("server", server);
    let router = "address add LAN.1/LEN dev lan\naddress add DMZ.1/LEN dev guests\n\
        address add ONE.1/LEN dev one\naddress add TWO.1/LEN dev two\n\
        route add NET.0/LEN via ONE.2\nroute add NET.0/LEN via TWO.2 table 102";
    testbed.ip(ROUTER, router);
    let rules = "table IP nat {
        chain after { type nat hook postrouting priority 100
        oifname { one, two } masquerade
        }
        }";
    testbed.nft(ROUTER, rules);
    testbed.forward(ROUTER);
    testbed.serve("server", &[80, 81]);
    testbed
}

/// An office with two providers: some clients are sent by the second one, by their address.
// promise: X11
#[test]
fn uplink_by_source() {
    let build = || {
        let testbed = two_uplinks();
        testbed.ip(ROUTER, "rule add from LAN.3/ALL table 102");
        testbed
    };
    let probes = [
        answered("client@LAN.2", ("NET.2", 80)),
        answered("client@LAN.3", ("NET.2", 80)),
        answered("guest@DMZ.2", ("NET.2", 80)),
        refused("client@LAN.3", ("NET.2", 82)),
    ];
    Row::new(build, probes).relays().run();
}

/// An office with two providers: the firewall marks whom and what it sends by the second one, and connections
/// keep their mark (the usual recipe of mwan3 and of Shorewall).
// promise: X11
#[test]
fn uplink_by_mark() {
    let build = || {
        let testbed = two_uplinks();
        testbed.ip(ROUTER, "rule add fwmark 0x2/0xff table 102");
        let rules = "table IP mangle {
            chain before { type filter hook prerouting priority -150
            ct mark != 0 meta mark set ct mark accept
            IP saddr LAN.3 meta mark set 0x2
            iifname lan tcp dport $81 meta mark set 0x2
            ct mark set meta mark
            }
            }";
        testbed.nft(ROUTER, rules);
        testbed
    };
    let probes = [
        answered("client@LAN.2", ("NET.2", 80)),
        answered("client@LAN.3", ("NET.2", 80)),
        answered("client@LAN.2", ("NET.2", 81)),
        answered("guest@DMZ.2", ("NET.2", 81)),
        refused("client@LAN.3", ("NET.2", 82)),
    ];
    Row::new(build, probes).run();
}

/// An office with a guest interface: packets from it leave by the second provider.
// promise: X11
#[test]
fn uplink_by_incoming_interface() {
    let build = || {
        let testbed = two_uplinks();
        testbed.ip(ROUTER, "rule add iif guests table 102");
        testbed
    };
    let probes = [
        answered("client@LAN.2", ("NET.2", 80)),
        answered("guest@DMZ.2", ("NET.2", 80)),
        refused("guest@DMZ.2", ("NET.2", 82)),
    ];
    Row::new(build, probes).run();
}

/// Two routers between the same networks: the client sends by one, the server answers by the other.
fn asymmetric([there, back]: [&'static str; 2]) -> Testbed {
    let mut testbed = Testbed::new(&["client", there, back, "server"]);
    testbed.cable(["client", "eth0"], [there, "lan"]);
    testbed.cable(["client", "eth1"], [back, "lan"]);
    testbed.cable(["server", "eth0"], [there, "wan"]);
    testbed.cable(["server", "eth1"], [back, "wan"]);
    let client = "address add LAN.2/LEN dev eth0\naddress add DMZ.2/LEN dev eth1\n\
        route add WAN.0/LEN via LAN.1";
    testbed.ip("client", client);
    let server = "address add WAN.2/LEN dev eth0\naddress add ONE.2/LEN dev eth1\n\
        route add LAN.0/LEN via ONE.1";
    testbed.ip("server", server);
    let first = "address add LAN.1/LEN dev lan\naddress add WAN.1/LEN dev wan";
    testbed.ip(there, first);
    let second = "address add DMZ.1/LEN dev lan\naddress add ONE.1/LEN dev wan\n\
        route add LAN.0/LEN via DMZ.2\nroute add WAN.0/LEN via ONE.2";
    testbed.ip(back, second);
    testbed.forward(there);
    testbed.forward(back);
    testbed.serve("server", &[80]);
    testbed
}

/// A network with two border routers; this one forwards only packets of clients.
// promise: X12
#[test]
fn answers_return_by_another_router() {
    let build = || asymmetric([ROUTER, "other"]);
    let probes = [
        answered("client@LAN.2", ("WAN.2", 80)),
        refused("client@LAN.2", ("WAN.2", 82)),
    ];
    Row::new(build, probes).relays_none().run();
}

/// A network with two border routers; this one forwards only packets of servers.
// promise: X12
#[test]
fn requests_come_by_another_router() {
    let build = || asymmetric(["other", ROUTER]);
    let probes = [
        answered("client@LAN.2", ("WAN.2", 80)),
        refused("client@LAN.2", ("WAN.2", 82)),
    ];
    Row::new(build, probes).relays_none().run();
}

/// A router with a strict reverse path filter (RFC 3704), as distributions have it for IPv4, and
/// firewalld for IPv6. A host in the LAN uses an address of the other side.
// promise: X13
#[test]
fn strict_reverse_path() {
    let build = || {
        let testbed = Testbed::with_routed_lan();
        for interface in ["all", "default", "lan", "wan"] {
            let key = format!("net.ipv4.conf.{interface}.rp_filter");
            testbed.sysctl(ROUTER, &key, "1");
        }
        let rules = "meta nfproto ipv6 meta l4proto tcp fib saddr . mark . iif oif missing drop";
        firewall(testbed.host(ROUTER), "guard", &[("prerouting", rules)]);
        testbed.ip("client", "address add WAN.9/ALL dev lo");
        testbed
    };
    let probes = [
        answered("client@LAN.2", ("WAN.2", 80)),
        answered("client@LAN.3", ("WAN.3", 81)),
        refused("client@LAN.2", ("WAN.2", 82)),
        silent("client@WAN.9", ("WAN.2", 80)),
    ];
    Row::new(build, probes).relays().run();
}

/// A router that keeps a client from one network by a rule for routing, and has no route to another.
// promise: X4
#[test]
fn prohibited_by_rule_and_route() {
    let build = || {
        let testbed = Testbed::with_routed_lan();
        testbed.ip(
            ROUTER,
            "rule add from LAN.3/ALL to WAN.2/ALL prohibit\nroute add blackhole WAN.3/ALL\n\
            route add unreachable WAN.4/ALL",
        );
        testbed
    };
    let probes = [
        answered("client@LAN.2", ("WAN.2", 80)),
        silent("client@LAN.2", ("WAN.3", 80)),
        // The kernel limits errors about unroutable packets for each client: five, and then one a
        // second.
        unreachable("client@LAN.2", ("NET.4", 80)).briefly(),
        unreachable("client@LAN.3", ("WAN.2", 80)).briefly(),
        unreachable("client@LAN.4", ("WAN.4", 80)).briefly(),
    ];
    Row::new(build, probes).apart().run();
}
