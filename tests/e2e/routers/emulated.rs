// SPDX-License-Identifier: Apache-2.0
//! Routers with features that many kernels lack. `make kernel-test` runs these rows in its
//! emulated machine, with a kernel that has all of them; elsewhere they are listed as ignored, and
//! fail where the kernel lacks one.

use super::probe::{answered, refused, silent};
use super::row::Row;
use super::testbed::{ROUTER, Testbed};

/// A provider's router with two customers in VRFs, who use the same addresses. One of them has a server on
/// port 80, the other on port 81.
// promise: X17
#[test]
#[ignore = "needs VRF: run by make kernel-test"]
fn vrf() {
    let build = || {
        let mut testbed = Testbed::new(&["client", "client2", ROUTER, "server", "server2"]);
        testbed.forward(ROUTER);
        for (customer, client, server, port) in [
            ("red", "client", "server", 80),
            ("blue", "client2", "server2", 81),
        ] {
            let [lan, wan] = ["lan", "wan"].map(|side| format!("{side}-{customer}"));
            testbed.cable([client, "eth0"], [ROUTER, &lan]);
            testbed.cable([server, "eth0"], [ROUTER, &wan]);
            let lines = [
                format!("link add {customer} type vrf table {port}"),
                format!("link set {customer} up"),
                format!("link set {lan} master {customer}"),
                format!("link set {wan} master {customer}"),
            ];
            let made = testbed.host(ROUTER).ip_batch(&lines);
            made.expect("a kernel with VRF (CONFIG_NET_VRF)");
            let own = format!("address add LAN.1/LEN dev {lan}\naddress add WAN.1/LEN dev {wan}");
            testbed.ip(ROUTER, &own);
            let own = "address add LAN.2/LEN dev eth0\nroute add default via LAN.1";
            testbed.ip(client, own);
            let own = "address add WAN.2/LEN dev eth0\nroute add default via WAN.1";
            testbed.ip(server, own);
            testbed.serve(server, &[port]);
        }
        testbed
    };
    let probes = [
        answered("client@LAN.2", ("WAN.2", 80)),
        refused("client@LAN.2", ("WAN.2", 81)),
        refused("client2@LAN.2", ("WAN.2", 80)),
        answered("client2@LAN.2", ("WAN.2", 81)),
    ];
    Row::new(build, probes).run();
}

/// A fast home router: connections that are known to conntrack go by a flowtable, past the forward chain.
// promise: X17
#[test]
#[ignore = "needs flowtables of nftables: run by make kernel-test"]
fn flowtable() {
    let build = || {
        let testbed = Testbed::with_private_lan();
        let rules = "table IP fast {
            flowtable known { hook ingress priority 0; devices = { lan, wan }; }
            chain through { type filter hook forward priority 0; policy drop
            meta l4proto tcp ct state established flow add @known
            ct state established,related accept
            ct state invalid drop
            tcp dport $81 drop
            iifname lan oifname wan accept
            }
            chain after { type nat hook postrouting priority 100
            oifname wan masquerade
            }
            }";
        testbed.nft(ROUTER, rules);
        testbed
    };
    let probes = [
        answered("client@LAN.2", ("WAN.2", 80)),
        answered("client@LAN.3", ("WAN.3", 80)),
        silent("client@LAN.2", ("WAN.2", 81)),
        refused("client@LAN.2", ("WAN.2", 82)),
    ];
    Row::new(build, probes).run();
}
