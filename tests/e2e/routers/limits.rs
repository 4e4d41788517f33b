// SPDX-License-Identifier: Apache-2.0
//! Routers that limit how many connections there are, or how fast they come.

use super::probe::{answered, floods};
use super::row::Row;
use super::testbed::{ROUTER, Testbed};

fn limiting(rules: &str) -> Testbed {
    let testbed = Testbed::with_routed_lan();
    testbed.nft(ROUTER, rules);
    testbed
}

/// A server that is spared: no more than four connections at a time are forwarded to its port.
// promise: X10
#[test]
fn connections_at_a_time() {
    let build = || {
        limiting(
            "table IP guard {
            chain through { type filter hook forward priority 0; policy accept
            tcp dport $80 ct state new ct count over 4 drop
            }
            }",
        )
    };
    let probes = [floods(&[4, 4], "client@LAN.2", ("WAN.2", 80))];
    Row::new(build, probes).run();
}

/// A brake for guessers of passwords: three new connections, and then one an hour.
// promise: X10
#[test]
fn connections_an_hour() {
    let build = || {
        limiting(
            "table IP guard {
            chain through { type filter hook forward priority 0; policy accept
            tcp dport $80 ct state new limit rate over 1/hour burst 3 packets drop
            }
            }",
        )
    };
    let probes = [floods(&[3, 0], "client@LAN.2", ("WAN.2", 80))];
    Row::new(build, probes).run();
}

/// A small router with a connection table of four entries: when full, it forwards no new
/// connection and opens none of its own. The kernel's own limit covers all namespaces; this rule
/// has the same effect in the same place.
// promise: X10
#[test]
fn table_of_connections_full() {
    let build = || {
        limiting(
            "table IP guard {
            chain before { type filter hook prerouting priority -150
            iifname lan tcp dport $80 ct state new ct count over 4 drop
            }
            chain from_us { type filter hook output priority -150
            oifname wan tcp dport $80 ct state new ct count over 4 drop
            }
            }",
        )
    };
    let probes = [floods(&[4, 4], "client@LAN.2", ("WAN.2", 80))];
    Row::new(build, probes).run();
}

/// A router for children, with hours; here they last.
#[test]
fn hours() {
    let build = || {
        limiting(
            "table IP guard {
            chain through { type filter hook forward priority 0; policy accept
            tcp dport $81 meta time < \"2020-01-01 00:00:00\" drop
            }
            }",
        )
    };
    let probes = [
        answered("client@LAN.2", ("WAN.2", 80)),
        answered("client@LAN.2", ("WAN.2", 81)),
    ];
    Row::new(build, probes).relays_by_packets().run();
}

/// A firewall that looks at what connections carry.
#[test]
fn contents() {
    let build = || {
        limiting(
            "table IP guard {
            chain through { type filter hook forward priority 0; policy accept
            tcp dport $81 @th,160,32 0x47455420 drop
            }
            }",
        )
    };
    let probes = [
        answered("client@LAN.2", ("WAN.2", 80)),
        answered("client@LAN.2", ("WAN.2", 81)),
    ];
    Row::new(build, probes).relays_by_packets().run();
}
