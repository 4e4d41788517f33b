// SPDX-License-Identifier: Apache-2.0
//! Runs the steps of documents as written: files at the paths that they name, commands on the
//! hosts that they name, services as the shipped units run them.
//!
//! The info string of a fenced block names its `host=`, and of a file its path, `file=`. Every
//! block with a command needs one.

#![allow(clippy::unwrap_used, reason = "a test ends where it finds a failure")]

mod hosts;
mod markdown;

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use posthaste_lab::link::Link;
use posthaste_lab::machine::Release;
use posthaste_lab::netns::Namespace;
use posthaste_lab::network::{Family, Network};

use crate::support::{Pair, add_address, dial, listen, until};
use hosts::Hosts;
use markdown::Block;

/// The port of the servers in the documents.
const HTTPS: u16 = 443;

/// A file of the repository.
pub(crate) fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn blocks(document: &str) -> Vec<Block> {
    let text = fs::read_to_string(repository(document)).unwrap();
    markdown::blocks(document, &text)
}

/// Has `host` reach an address as it reaches `neighbour`.
fn route(host: &Namespace, address: &str, neighbour: IpAddr) {
    let way = host.ip_output(&format!("route get {neighbour}")).unwrap();
    let words: Vec<&str> = way.split_whitespace().collect();
    let after = |word| {
        let at = words.iter().position(|other| *other == word)?;
        words.get(at + 1).copied()
    };
    let via = after("via").map_or_else(|| neighbour.to_string(), Into::into);
    host.ip(&format!(
        "route replace {address}/32 via {via} dev {}",
        after("dev").unwrap()
    ))
    .unwrap();
}

/// Connects to a server of a document until `node` carries the bytes: connections go directly
/// while it starts. The server returns the bytes.
fn connect_by(network: &Network, hosts: &Hosts<'_>, server: &str, node: &str) {
    let listener = listen(network.server(), HTTPS);
    let target = (server.parse::<IpAddr>().unwrap(), HTTPS).into();
    until(&format!("flow over {node}"), || {
        let mut pair = Pair::of(dial(network.client(), target), &listener);
        pair.check();
        pair.close_client_first();
        hosts.counter(node, "relays_opened") > 0
    });
}

// promise: W7
#[test]
fn chains_page_steps() {
    let links = [Link::Veth, Link::Veth, Link::Veth];
    let network = Network::line(links).build().unwrap();
    let [lille, boston] = [network.node(0), network.node(1)];
    add_address(lille, "192.0.2.1".parse().unwrap());
    add_address(boston, "198.51.100.2".parse().unwrap());
    add_address(network.server(), "203.0.113.7".parse().unwrap());
    route(boston, "192.0.2.1", network.client_address(Family::V4));
    let server = network.server_address(Family::V4);
    route(lille, "198.51.100.2", server);
    for host in [network.client(), lille, boston] {
        route(host, "203.0.113.7", server);
    }
    let mut hosts = Hosts::new(Release::Bookworm, &[("lille", lille), ("boston", boston)]);
    let printed = hosts.carry_out(&blocks("docs/chains.md"));
    let last = printed.last().unwrap();
    assert!(last.contains("america"), "{printed:#?}");
    connect_by(&network, &hosts, "203.0.113.7", "boston");
    let message = hosts.run("lille", "posthaste chains");
    assert!(
        message.contains("boston") && message.contains("up"),
        "{message}"
    );
}

// promise: W7
#[test]
fn controller_page_steps() {
    let links = [Link::Veth, Link::Veth, Link::Veth];
    let network = Network::line(links).beside(0, Link::Veth).build().unwrap();
    let (paris, tokyo, controller) = (network.node(0), network.node(1), network.aside(0));
    add_address(controller, "192.0.2.1".parse().unwrap());
    add_address(paris, "192.0.2.7".parse().unwrap());
    add_address(tokyo, "203.0.113.8".parse().unwrap());
    add_address(network.server(), "198.51.100.7".parse().unwrap());
    route(paris, "192.0.2.1", network.aside_address(0, Family::V4));
    for address in ["192.0.2.1", "192.0.2.7"] {
        route(tokyo, address, network.client_address(Family::V4));
    }
    let server = network.server_address(Family::V4);
    route(paris, "203.0.113.8", server);
    for host in [network.client(), paris, tokyo] {
        route(host, "198.51.100.7", server);
    }
    let all = [
        ("controller", controller),
        ("paris", paris),
        ("tokyo", tokyo),
    ];
    let mut hosts = Hosts::new(Release::Trixie, &all);
    hosts.carry_out(&blocks("docs/controller.md"));
    until("both nodes", || {
        let status = hosts.run(
            "controller",
            "posthaste status --controller http://127.0.0.1:9465",
        );
        ["paris", "tokyo"].iter().all(|name| status.contains(name))
    });
    until("a way by tokyo", || {
        let message = hosts.run("paris", "posthaste chains explain 198.51.100.7:443");
        message
            .lines()
            .any(|line| line.contains("tokyo") && line.contains("<- taken"))
    });
    connect_by(&network, &hosts, "198.51.100.7", "tokyo");
    hosts.run("controller", "systemctl reload posthaste-controller");
    for name in ["controller", "paris", "tokyo"] {
        assert_eq!(hosts.warnings(name), [""; 0], "{name}");
    }
}
