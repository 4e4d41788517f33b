// SPDX-License-Identifier: Apache-2.0
//! Hosts that run containers.

use super::probe::{answered, refused, silent};
use super::row::Row;
use super::testbed::{ROUTER, Testbed};

/// As Docker writes them: published ports, masquerade, no way between its networks.
const RULES: &str = "table IP nat {
chain docker {
iifname docker0 return
iifname != docker0 tcp dport $8080 dnat to [DMZ.2]:$80
}
chain prerouting { type nat hook prerouting priority -100
fib daddr type local jump docker
}
chain postrouting { type nat hook postrouting priority 100
IP saddr DMZ.0/LEN oifname != docker0 masquerade
IP saddr ONE.0/LEN oifname != br1 masquerade
}
}
table IP filter {
chain isolation1 {
iifname docker0 oifname != docker0 jump isolation2
iifname br1 oifname != br1 jump isolation2
}
chain isolation2 {
oifname docker0 drop
oifname br1 drop
}
chain docker {
IP daddr DMZ.2 iifname != docker0 oifname docker0 tcp dport $80 accept
}
chain forward { type filter hook forward priority 0; policy drop
jump isolation1
oifname { docker0, br1 } ct state related,established accept
oifname { docker0, br1 } jump docker
iifname docker0 accept
iifname br1 accept
}
}";

/// A container on a bridge of its own.
fn container(testbed: &mut Testbed, name: &'static str, bridge: &str, net: &str) {
    let port = format!("to_{name}");
    testbed.cable([name, "eth0"], [ROUTER, &port]);
    let host = testbed.host(ROUTER);
    let lines = [
        format!("link add {bridge} type bridge"),
        format!("link set {bridge} up"),
        format!("link set {port} master {bridge}"),
    ];
    host.ip_batch(&lines).expect("a host has bridges");
    testbed.ip(ROUTER, &format!("address add {net}.1/LEN dev {bridge}"));
    let own = format!("address add {net}.2/LEN dev eth0\nroute add default via {net}.1");
    testbed.ip(name, &own);
    testbed.serve(name, &[80, 81]);
}

/// A host with Docker: one container publishes a port, another is in a network of its own. Both call out.
// promise: X6
#[test]
fn docker_host() {
    let build = || {
        let mut testbed = Testbed::new(&["client", ROUTER, "web", "alone"]);
        testbed.cable(["client", "eth0"], [ROUTER, "eth0"]);
        let own = "address add WAN.2/LEN dev eth0\nroute add default via WAN.1";
        testbed.ip("client", own);
        testbed.serve("client", &[80]);
        testbed.ip(ROUTER, "address add WAN.1/LEN dev eth0");
        testbed.forward(ROUTER);
        container(&mut testbed, "web", "docker0", "DMZ");
        container(&mut testbed, "alone", "br1", "ONE");
        testbed.nft(ROUTER, RULES);
        testbed
    };
    let probes = [
        answered("client@WAN.2", ("WAN.1", 8080)),
        refused("client@WAN.2", ("WAN.1", 80)),
        answered("client@WAN.2", ("DMZ.2", 80)),
        silent("client@WAN.2", ("DMZ.2", 81)),
        silent("client@WAN.2", ("ONE.2", 80)),
        answered("web@DMZ.2", ("WAN.2", 80)),
        answered("alone@ONE.2", ("WAN.2", 80)),
        refused("alone@ONE.2", ("WAN.2", 82)),
        silent("alone@ONE.2", ("DMZ.2", 80)),
        silent("web@DMZ.2", ("ONE.2", 80)),
    ];
    Row::new(build, probes).run();
}
