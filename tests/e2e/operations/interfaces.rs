// SPDX-License-Identifier: Apache-2.0
//! Interfaces that come and go while a node runs.

use std::net::SocketAddr;

use posthaste_lab::netns::Namespace;
use posthaste_lab::network::{Family, Network};
use posthaste_lab::node::Node;

use crate::support::{PORT, Pair, SOON, counter, dial, line, listen, start, until};
use crate::watch::{assert_nothing_left, installed, programs_at};

/// The addresses of a client that appears later, and the node's on its cable.
const LATE_CLIENT: [&str; 2] = ["10.9.0.1/24", "fd00:9::1/64"];
const LATE_NODE: [&str; 2] = ["10.9.0.2/24", "fd00:9::2/64"];

#[test]
fn a_client_on_a_new_interface_is_relayed() {
    let network = line();
    let host = network.node(0);
    let listener = listen(network.server(), PORT);
    let node = start(&network, "");
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
fn plug_in(client: &Namespace, node: &Namespace, name: &str) {
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
fn servers(network: &Network) -> [SocketAddr; 2] {
    Family::ALL.map(|family| SocketAddr::new(network.server_address(family), PORT))
}

fn interface(node: &Node, name: &str) -> Option<serde_json::Value> {
    let status = node.status().unwrap();
    let interfaces = status["interfaces"].as_array().unwrap();
    interfaces
        .iter()
        .find(|interface| interface["name"] == name)
        .cloned()
}

fn attached(node: &Node, name: &str) -> bool {
    interface(node, name).is_some_and(|interface| interface["attached"] == true)
}

#[test]
fn a_host_without_ipv6_relays_the_rest() {
    let network = line();
    let host = network.node(0);
    host.sysctl("net.ipv6.conf.all.disable_ipv6", "1").unwrap();
    let listener = listen(network.server(), PORT);
    let mut node = start(&network, "");
    Pair::open(&network, Family::V4, &listener).check();
    assert_eq!(counter(&node, "relays_opened"), 1);
    // A rule, a route, and a program at either interface.
    assert_eq!(installed(host).len(), 4, "{:#?}", installed(host));
    assert_eq!(node.stop(SOON).unwrap().code(), Some(0));
    assert_nothing_left(host);
}

#[test]
fn only_the_interfaces_named_are_intercepted() {
    let network = line();
    let host = network.node(0);
    let listener = listen(network.server(), PORT);
    let node = start(&network, "[transparent]\ninterfaces = [\"s0\", \"c0\"]\n");
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
