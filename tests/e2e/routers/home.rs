// SPDX-License-Identifier: Apache-2.0
//! The router that most people have.

use super::probe::{answered, refused, silent};
use super::row::Row;
use super::testbed::{ROUTER, Testbed};
use crate::support::firewall_script;

/// As OpenWrt has them by default: IPv4 is masqueraded, IPv6 is routed.
const RULES: &str = "table inet fw4 {
chain input { type filter hook input priority 0; policy drop
iifname lo accept
ct state vmap { established : accept, related : accept, invalid : drop }
meta l4proto { icmp, ipv6-icmp } accept
iifname lan accept
}
chain forward { type filter hook forward priority 0; policy drop
ct state vmap { established : accept, related : accept, invalid : drop }
iifname lan oifname wan accept
iifname lan reject with tcp reset
}
chain output { type filter hook output priority 0; policy accept
oifname lo accept
ct state vmap { established : accept, related : accept, invalid : drop }
}
chain srcnat { type nat hook postrouting priority 100
meta nfproto ipv4 oifname wan masquerade
}
chain mangle { type filter hook forward priority -150
meta l4proto tcp tcp flags & (syn|rst) == syn oifname wan tcp option maxseg size set rt mtu
}
}";

/// A home router such as OpenWrt: masquerade, nothing in from outside, invalid packets dropped, segments
/// clamped. A neighbour on the same uplink tries to reach the home.
// promise: X5
#[test]
fn home_router() {
    let build = || {
        let mut testbed = Testbed::with_routed_lan();
        firewall_script(testbed.host(ROUTER), RULES);
        testbed.serve("client", &[80]);
        testbed.serve(ROUTER, &[22]);
        testbed
    };
    let probes = [
        answered("client@LAN.2", ("WAN.2", 80)),
        answered("client@LAN.3", ("WAN.3", 81)),
        refused("client@LAN.2", ("WAN.2", 82)),
        answered("client@LAN.2", ("LAN.1", 22)),
        silent("server@WAN.2", ("LAN.2", 80)),
        silent("server@WAN.3", ("WAN.1", 22)),
    ];
    // The router that most have, also with nodes that carry connections in one way only.
    Row::new(build, probes).relays().apart().run();
}
