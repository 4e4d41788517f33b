// SPDX-License-Identifier: Apache-2.0
//! Routers that translate addresses.

use super::probe::{answered, refused, silent};
use super::row::Row;
use super::testbed::{ROUTER, Testbed};

/// Gives what leaves by `wan` the router's own address.
const MASQUERADE: &str = "table IP nat {
chain after { type nat hook postrouting priority 100
oifname wan masquerade
}
}";

/// An office behind one public address: everything that leaves is masqueraded, and nothing is filtered.
// promise: X5
#[test]
fn masquerade() {
    let build = || {
        let testbed = Testbed::with_private_lan();
        testbed.nft(ROUTER, MASQUERADE);
        testbed
    };
    Row::new(
        build,
        [
            answered("client@LAN.2", ("WAN.2", 80)),
            answered("client@LAN.3", ("WAN.3", 81)),
            refused("client@LAN.2", ("WAN.2", 82)),
        ],
    )
    .relays()
    .run();
}

/// An office with some public addresses: clients share a pool, a server has an address of its own.
// promise: X5
#[test]
fn snat_to_a_pool() {
    let build = || {
        let testbed = Testbed::with_private_lan();
        testbed.ip(
            ROUTER,
            "address add WAN.20/ALL dev wan\naddress add WAN.21/ALL dev wan\n\
            address add WAN.22/ALL dev wan\naddress add WAN.30/ALL dev wan",
        );
        let script = "table IP nat {
            chain after { type nat hook postrouting priority 100
            oifname wan IP saddr LAN.4 snat to WAN.30
            oifname wan snat to WAN.20-WAN.22
            }
            }";
        testbed.nft(ROUTER, script);
        testbed
    };
    Row::new(
        build,
        [
            answered("client@LAN.2", ("WAN.2", 80)),
            answered("client@LAN.3", ("WAN.2", 80)),
            answered("client@LAN.4", ("WAN.2", 80)),
            refused("client@LAN.4", ("WAN.2", 82)),
        ],
    )
    .relays()
    .run();
}

/// A web server in a private network, published on the router's public address, on another port too. The
/// server itself is not reached from outside, and the office reaches it by the public address (hairpin).
// promise: X6
#[test]
fn dnat() {
    let build = || {
        let mut testbed = Testbed::with_private_lan();
        testbed.serve("client", &[80]);
        let script = "table IP nat {
            chain before { type nat hook prerouting priority -100
            IP daddr WAN.1 tcp dport { $80, $8080 } dnat to [LAN.2]:$80
            }
            chain after { type nat hook postrouting priority 100
            oifname wan masquerade
            iifname lan oifname lan masquerade
            }
            }
            table IP guard {
            chain through { type filter hook forward priority 0; policy drop
            ct state established,related accept
            ct status dnat accept
            iifname lan oifname wan accept
            }
            }";
        testbed.nft(ROUTER, script);
        testbed.ip("server", "route add LAN.0/LEN via WAN.1");
        testbed
    };
    Row::new(
        build,
        [
            answered("server@WAN.2", ("WAN.1", 80)),
            answered("server@WAN.3", ("WAN.1", 8080)),
            refused("server@WAN.2", ("WAN.1", 82)),
            silent("server@WAN.2", ("LAN.2", 80)),
            answered("client@LAN.3", ("WAN.1", 80)),
            answered("client@LAN.2", ("WAN.2", 80)),
        ],
    )
    .run();
}

/// A captive portal or a proxy such as squid: the router answers what guests send to port 80 of
/// any server.
// promise: X6
#[test]
fn redirect_to_the_router() {
    let build = || {
        let mut testbed = Testbed::with_private_lan();
        testbed.serve(ROUTER, &[3128]);
        let script = "table IP nat {
            chain before { type nat hook prerouting priority -100
            iifname lan IP saddr != LAN.4 tcp dport $80 redirect to :$3128
            }
            chain after { type nat hook postrouting priority 100
            oifname wan masquerade
            }
            }";
        testbed.nft(ROUTER, script);
        testbed
    };
    Row::new(
        build,
        [
            answered("client@LAN.2", ("WAN.2", 80)),
            answered("client@LAN.3", ("WAN.77", 80)),
            answered("client@LAN.4", ("WAN.2", 80)),
            answered("client@LAN.2", ("WAN.2", 81)),
        ],
    )
    .run();
}
