// SPDX-License-Identifier: Apache-2.0
//! Interfaces that come and go while a node runs.

use std::net::SocketAddr;

use posthaste_lab::netns::Namespace;
use posthaste_lab::network::{Family, Network};
use posthaste_lab::node::Node;

use serde_json::Value;

use crate::support::{
    PORT, Pair, SOON, binary, counter, dial, line, listen, start, start_relaying, until,
};
use crate::verbs::assert_reports;
use crate::watch::{assert_nothing_left, installed, programs_at};

/// The addresses of a client that appears later, and the node's on its cable.
const LATE_CLIENT: [&str; 2] = ["10.9.0.1/24", "fd00:9::1/64"];
const LATE_NODE: [&str; 2] = ["10.9.0.2/24", "fd00:9::2/64"];

// promise: F8
#[test]
fn new_interface_relays() {
    let network = line();
    let host = network.node(0);
    let listener = listen(network.server(), PORT);
    let node = start_relaying(&network, "");
    let client = Namespace::new().unwrap();
    plug_in(&client, host, "late0");
    until("attachment", || attached(&node, "late0"));
    assert_eq!(programs_at(host, "late0"), 1);
    for (opened, target) in (1..).zip(servers(&network)) {
        let mut pair = Pair::of(dial(&client, target), &listener);
        pair.check();
        assert_eq!(counter(&node, "relays_opened"), opened);
        pair.close_client_first();
    }
    host.ip("link del late0").unwrap();
    until("detachment", || interface(&node, "late0").is_none());
    plug_in(&client, host, "late0");
    until("attachment", || attached(&node, "late0"));
}

/// Joins a client to a node by a new cable.
pub(crate) fn plug_in(client: &Namespace, node: &Namespace, name: &str) {
    node.ip(&format!(
        "link add {name} type veth peer name s0 netns {}",
        client.name()
    ))
    .unwrap();
    for (host, interface, addresses) in [(client, "s0", LATE_CLIENT), (node, name, LATE_NODE)] {
        for address in addresses {
            let nodad = if address.contains(':') { "nodad" } else { "" };
            host.ip(&format!("address add {address} dev {interface} {nodad}"))
                .unwrap();
        }
        host.ip(&format!("link set {interface} up")).unwrap();
    }
    for gateway in LATE_NODE {
        let (gateway, _) = gateway.split_once('/').unwrap();
        client
            .ip(&format!("route add default via {gateway}"))
            .unwrap();
    }
}

/// The server's addresses, of either family.
pub(crate) fn servers(network: &Network) -> [SocketAddr; 2] {
    Family::ALL.map(|family| SocketAddr::new(network.server_address(family), PORT))
}

fn interface(node: &Node, name: &str) -> Option<Value> {
    let status = node.status().unwrap();
    let interfaces = status["interfaces"].as_array().unwrap();
    interfaces
        .iter()
        .find(|interface| interface["name"] == name)
        .cloned()
}

pub(crate) fn attached(node: &Node, name: &str) -> bool {
    interface(node, name).is_some_and(|interface| interface["attached"] == true)
}

// promise: F9
#[test]
fn host_without_ipv6() {
    let network = line();
    let host = network.node(0);
    host.sysctl("net.ipv6.conf.all.disable_ipv6", "1").unwrap();
    let listener = listen(network.server(), PORT);
    let mut node = start_relaying(&network, "");
    Pair::open(&network, Family::V4, &listener).check();
    assert_eq!(counter(&node, "relays_opened"), 1);
    // A rule, a route, and a program at either interface.
    assert_eq!(installed(host).len(), 4, "{:#?}", installed(host));
    assert_eq!(node.stop(SOON).unwrap().code(), Some(0));
    assert_nothing_left(host);
}

// promise: F8
#[test]
fn only_named_interfaces() {
    let network = line();
    let host = network.node(0);
    let listener = listen(network.server(), PORT);
    let node = start_relaying(&network, "[transparent]\ninterfaces = [\"s0\", \"c0\"]\n");
    let client = Namespace::new().unwrap();
    plug_in(&client, host, "late0");
    // Its coming is noticed: the next change is.
    host.ip("link del s0").unwrap();
    until("detachment", || !attached(&node, "s0"));
    assert_eq!(interface(&node, "late0"), None);
    assert_eq!(programs_at(host, "late0"), 0);
    assert_eq!(interface(&node, "s0").unwrap()["attached"], false);
    drop(listener);
}

/// What a starting node with this configuration, `check` and `doctor` report about the interfaces.
fn reports_of_interfaces(host: &Namespace, node: &Node) -> [String; 3] {
    let run = |words: &[&str]| {
        let mut command = host.command(binary()).unwrap();
        command
            .args(words)
            .arg(node.config_file())
            .output()
            .unwrap()
    };
    let log = || {
        let lines = node.log().into_iter();
        let warnings = lines.filter(|line| line.contains("level=warn"));
        warnings.collect::<Vec<_>>().join("\n")
    };
    until("warnings", || !log().is_empty());
    let check = run(&["check"]);
    assert!(check.status.success(), "{check:?}");
    let diagnosis = run(&["doctor", "--json", "-c"]);
    let diagnosis: Value = serde_json::from_slice(&diagnosis.stdout).unwrap();
    let findings = diagnosis["findings"].as_array().unwrap().iter();
    let found =
        findings.filter(|finding| finding["check"] == "interfaces" && finding["level"] != "ok");
    let found = found.map(|finding| format!("{} {}", finding["what"], finding["fix"]));
    let check = String::from_utf8_lossy(&check.stderr).into_owned();
    [log(), check, found.collect::<Vec<_>>().join("\n")]
}

// promise: H13
#[test]
fn single_interface_warned() {
    let network = line();
    let host = network.node(0);
    let listener = listen(network.server(), PORT);
    let node = start(&network, "[transparent]\ninterfaces = [\"c0\"]\n");
    for message in reports_of_interfaces(host, &node) {
        assert_reports(
            &message,
            &[
                "only c0 can be intercepted",
                "come and leave by c0",
                "other side",
            ],
        );
    }
    for family in Family::ALL {
        Pair::open(&network, family, &listener).check();
    }
    assert_eq!(counter(&node, "relays_opened"), 0);
}

/// Two networks behind one cable, and a node at its end.
fn stick(switch: &Namespace, node: &Namespace) -> [Namespace; 2] {
    switch.ip("link add br0 type bridge").unwrap();
    switch.ip("link set br0 up").unwrap();
    let hosts = [Namespace::new().unwrap(), Namespace::new().unwrap()];
    let ends = [
        (&hosts[0], "p1", "s0"),
        (&hosts[1], "p2", "s0"),
        (node, "p0", "stick0"),
    ];
    for (host, port, name) in ends {
        let words = format!(
            "link add {port} type veth peer name {name} netns {}",
            host.name()
        );
        switch.ip(&words).unwrap();
        switch
            .ip(&format!("link set {port} master br0 up"))
            .unwrap();
        host.ip(&format!("link set {name} up")).unwrap();
    }
    for (number, host) in (1..).zip(&hosts) {
        for (network, bits) in [
            (format!("10.9.{number}."), 24),
            (format!("fd00:9:{number}::"), 64),
        ] {
            let nodad = if bits == 64 { "nodad" } else { "" };
            host.ip(&format!("address add {network}1/{bits} dev s0 {nodad}"))
                .unwrap();
            node.ip(&format!("address add {network}2/{bits} dev stick0 {nodad}"))
                .unwrap();
            host.ip(&format!("route add default via {network}2"))
                .unwrap();
        }
    }
    hosts
}

// promise: H13
#[test]
fn router_on_a_stick() {
    let network = line();
    let (node_host, switch) = (network.node(0), Namespace::new().unwrap());
    let [client, server] = stick(&switch, node_host);
    let listener = listen(&server, PORT);
    let node = start_relaying(&network, "[transparent]\ninterfaces = [\"stick0\"]\n");
    for (opened, target) in (1..).zip(["10.9.2.1:80", "[fd00:9:2::1]:80"]) {
        let mut pair = Pair::of(dial(&client, target.parse().unwrap()), &listener);
        pair.check();
        assert_eq!(counter(&node, "relays_opened"), opened);
        pair.close_client_first();
    }
}

// promise: H13
#[test]
fn bridge_port_warned() {
    let network = line();
    let host = network.node(0);
    for words in [
        "link add br0 type bridge",
        "link add p0 type veth peer name p1",
        "link set p0 master br0 up",
        "link set br0 up",
    ] {
        host.ip(words).unwrap();
    }
    let node = start_relaying(&network, "[transparent]\ninterfaces = [\"p0\"]\n");
    for message in reports_of_interfaces(host, &node) {
        assert_reports(
            &message,
            &[
                "p0 is a port of br0 (bridge)",
                "bridged, not routed",
                "name br0 in its place",
                "nothing is relayed",
            ],
        );
    }
    assert_eq!(programs_at(host, "p0"), 0);
}

// promise: H13
#[test]
fn missing_and_down_interfaces() {
    let network = line();
    let host = network.node(0);
    host.ip("link add down0 type veth peer name down1").unwrap();
    let node = start_relaying(
        &network,
        "[transparent]\ninterfaces = [\"c0\", \"s0\", \"down0\"]\n",
    );
    for message in reports_of_interfaces(host, &node) {
        assert_reports(&message, &["down0 is down", "ip link set down0 up"]);
        assert!(
            !message.contains("alone") && !message.contains("only"),
            "{message}"
        );
    }
    node.write_config("[transparent]\ninterfaces = [\"c0\", \"s0\", \"eth7\"]\n")
        .unwrap();
    let mut command = host.command(binary()).unwrap();
    let check = command
        .arg("check")
        .arg(node.config_file())
        .output()
        .unwrap();
    let message = String::from_utf8_lossy(&check.stderr).into_owned();
    assert!(check.status.success(), "{message}");
    assert_reports(
        &message,
        &[
            "warning: ",
            "there is no interface eth7",
            "does not start without it",
        ],
    );
}
