// SPDX-License-Identifier: Apache-2.0
//! Links between nodes, as their nodes measure them.

mod forgeries;

use std::time::Duration;

use posthaste_lab::link::Link;
use posthaste_lab::network::{Family, Network};
use posthaste_lab::node::Node;
use posthaste_lab::process::wait_until;
use serde_json::Value;

use crate::requests::{ALLOWED, KEY, explicit, listener, start_all};
use crate::support::{PORT, Pair, SOON, binary, firewall, listen, network, remove_firewall, until};
use crate::watch::http_get;

const METRICS: u16 = 9464;
/// Measures often, so that tests need not wait.
const OFTEN: &str = "[measure]\ninterval = \"300ms\"\n";

/// Client, two nodes and server; the way between the nodes is `link`.
pub(crate) fn pair(link: Link) -> Network {
    network([Link::Veth, link, Link::Veth])
}

/// One of two nodes, which know each other and keep no warm hops.
pub(crate) fn member(network: &Network, node: usize, family: Family, measure: &str) -> String {
    let other = 1 - node;
    let address = listener(network, other, family);
    format!(
        "{own}[node]\nid = {id}\nworkers = 1\n{ALLOWED}{measure}\
         [[peer]]\nname = \"other\"\nid = {other_id}\naddress = \"{address}\"\nkey = \"{KEY}\"\n\
         pool_max = 0\n",
        own = explicit(network, node),
        id = node + 1,
        other_id = other + 1,
    )
}

fn start(network: &Network, family: Family, measure: &str) -> Vec<Node> {
    let configs = (0..2).map(|node| member(network, node, family, measure));
    start_all(network, configs)
}

/// The link of a node to its only peer.
pub(crate) fn link(node: &Node) -> Value {
    let links = node.admin_json("links").expect("the node answers");
    links["links"][0].clone()
}

/// Waits until the link of a node is so.
pub(crate) fn until_link(node: &Node, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    until_link_within(node, what, SOON, is_so)
}

fn until_link_within(
    node: &Node,
    what: &str,
    within: Duration,
    is_so: impl Fn(&Value) -> bool,
) -> Value {
    let mut last = Value::Null;
    let reached = wait_until(what, within, || {
        last = link(node);
        is_so(&last)
    });
    assert!(reached.is_ok(), "{what}: {last:#}");
    last
}

fn is_up_by(link: &Value, source: &str) -> bool {
    link["state"] == "up" && link["source"] == source
}

/// Whether the round trip is as long as it should be. On a slow machine some are longer, but not
/// for ever the shortest one.
fn takes(link: &Value, millis: u64) -> bool {
    let rtt_us = link["rtt_us"].as_u64();
    rtt_us.is_some_and(|rtt_us| (millis * 990..=millis * 1_000 + 2_000).contains(&rtt_us))
}

// promise: L1
#[test]
fn links_in_both_directions() {
    let network = pair(Link::delay(Duration::from_millis(20)));
    for family in Family::ALL {
        // Both live until both have measured.
        let nodes = start(&network, family, OFTEN);
        for node in &nodes {
            let link = until_link(node, "a measured link", |link| {
                is_up_by(link, "stamp") && takes(link, 40)
            });
            assert_eq!(
                (&link["peer"], &link["udp_blocked"]),
                (&"other".into(), &false.into())
            );
            let table = node.admin("links").expect("the node answers");
            assert!(
                table.contains("answers probes") && table.contains("stamp"),
                "{table}"
            );
        }
    }
}

#[test]
fn link_metrics_and_log() {
    let network = pair(Link::delay(Duration::from_millis(5)));
    let nodes: Vec<Node> = (0..2)
        .map(|index| {
            Node::builder(network.node(index), binary())
                .relaying()
                .config(&member(&network, index, Family::V4, OFTEN))
                .metrics(METRICS)
                .start()
                .expect("the node becomes ready")
        })
        .collect();
    until_link(&nodes[0], "a measured link", |link| {
        is_up_by(link, "stamp") && takes(link, 10)
    });
    let (_, page) = http_get(network.node(0), METRICS, "/metrics");
    for line in [
        "posthaste_link_up{peer=\"other\"} 1",
        "posthaste_link_rtt_seconds{peer=\"other\"} 0.0",
        "posthaste_stamp_refused_total{reason=\"auth\"} 0",
    ] {
        assert!(page.contains(line), "{line} is not in {page}");
    }
    until("line in the log", || {
        let log = nodes[0].log();
        log.iter()
            .any(|line| line.contains("msg=\"link is up\" peer=2 rtt_us="))
    });
}

// promise: L2, L7
#[test]
fn node_dies_and_returns() {
    let network = pair(Link::delay(Duration::from_millis(5)));
    let mut nodes = start(&network, Family::V6, OFTEN);
    until_link(&nodes[0], "a measured link", |link| is_up_by(link, "stamp"));
    nodes[1].kill().expect("it can be killed");
    let link = until_link(&nodes[0], "a dead link", |link| link["state"] == "dead");
    assert!(link["rtt_us"].is_null(), "absent, not 0: {link}");
    let config = member(&network, 1, Family::V6, OFTEN);
    nodes[1] = crate::support::start_relaying_in(network.node(1), &config);
    until_link(&nodes[0], "a link that is back", |link| {
        is_up_by(link, "stamp")
    });
}

// promise: L2
#[test]
fn path_cut_and_restored() {
    let network = pair(Link::delay(Duration::from_millis(5)));
    for family in Family::ALL {
        let nodes = start(&network, family, OFTEN);
        until_link(&nodes[0], "a measured link", |link| is_up_by(link, "stamp"));
        firewall(network.node(1), "cut", &[("input", "iifname \"c0\" drop")]);
        until_link(&nodes[0], "a dead link", |link| link["state"] == "dead");
        remove_firewall(network.node(1), "cut");
        until_link(&nodes[0], "a link that is back", |link| {
            is_up_by(link, "stamp")
        });
    }
}

// promise: L4
#[test]
fn handshakes_when_udp_blocked() {
    let network = pair(Link::delay(Duration::from_millis(20)));
    for family in Family::ALL {
        firewall(network.node(1), "block", &[("input", "udp dport 862 drop")]);
        let nodes = start(&network, family, OFTEN);
        let link = until_link(&nodes[0], "a link by handshakes", |link| {
            is_up_by(link, "handshake") && takes(link, 40)
        });
        assert_eq!(link["udp_blocked"], true);
        assert!(
            link["loss_ppm"].is_null(),
            "that UDP is blocked is no loss: {link}"
        );
        remove_firewall(network.node(1), "block");
        let long = SOON * 3;
        until_link_within(&nodes[0], "a link by STAMP", long, |link| {
            is_up_by(link, "stamp")
        });
        firewall(network.node(1), "block", &[("input", "udp dport 862 drop")]);
        until_link(&nodes[0], "handshakes again", |link| {
            is_up_by(link, "handshake")
        });
        remove_firewall(network.node(1), "block");
    }
}

// promise: L6
#[test]
fn loss_is_measured() {
    let network = pair(Link::delay(Duration::from_millis(2)).loss(0.1));
    let often = "[measure]\ninterval = \"100ms\"\n";
    let nodes = start(&network, Family::V4, often);
    let link = until_link_within(&nodes[0], "many probes", SOON * 4, |link| {
        link["probes"].as_u64() >= Some(200) && !link["loss_ppm"].is_null()
    });
    // 19 % of 128, there or back; four standard deviations.
    let loss_ppm = link["loss_ppm"].as_u64().expect("a number");
    assert!((50_000..=330_000).contains(&loss_ppm), "{link:#}");
}

// promise: L5
#[test]
fn flow_hops_preferred() {
    for pool in ["pool_min = 2", "pool_max = 0"] {
        let network = pair(Link::delay(Duration::from_millis(20)));
        let route = "[[chain]]\nname = \"two\"\nnodes = [\"other\"]\n\
                     [[route]]\nchains = [\"two\"]\ndirect = false\n";
        let slow = "[measure]\ninterval = \"1h\"\ninterval_in_use = \"2s\"\n";
        let first = member(&network, 0, Family::V4, slow).replace("pool_max = 0", pool);
        // On the path of its clients.
        let (_, first) = first.split_once("[node]").expect("a section");
        let configs = [
            format!("[node]{first}") + route,
            member(&network, 1, Family::V4, slow),
        ];
        let nodes = start_all(&network, configs.into_iter());
        let server = listen(network.server(), PORT);
        let link = until_link(&nodes[0], pool, |link| {
            let mut pair = Pair::open(&network, Family::V4, &server);
            pair.check();
            pair.close_client_first();
            // Hops that wait for flows are opened before.
            is_up_by(link, "hops") && takes(link, 40) && link["in_use"] == true
        });
        assert_eq!(link["interval_ms"], 2_000, "{pool}");
    }
}

// promise: L12
#[test]
fn reload_changes_links() {
    let network = pair(Link::delay(Duration::from_millis(5)));
    let nodes = start(&network, Family::V4, OFTEN);
    until_link(&nodes[0], "a measured link", |link| is_up_by(link, "stamp"));
    let off = member(&network, 0, Family::V4, OFTEN) + "reflector = \"off\"\n";
    nodes[0].write_config(&off).expect("it can be written");
    nodes[0].admin("reload").expect("it reloads");
    until("no link", || link(&nodes[0]).is_null());
    let other = member(&network, 0, Family::V6, OFTEN);
    nodes[0].write_config(&other).expect("it can be written");
    nodes[0].admin("reload").expect("it reloads");
    until_link(&nodes[0], "another link", |link| is_up_by(link, "stamp"));
}

// promise: L12
#[test]
fn no_peers_no_measuring() {
    let network = network([Link::Veth, Link::Veth]);
    let node = crate::support::start_relaying(&network, "");
    let links = node.admin_json("links").expect("the node answers");
    assert_eq!(
        (&links["links"], &links["reflectors"]),
        (&Value::Array(vec![]), &Value::Array(vec![]))
    );
    let mut ss = network
        .node(0)
        .command("ss")
        .expect("the namespace is open");
    let output = ss
        .arg("-uanH")
        .output()
        .expect("ss (package iproute2) can be run");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "");
}

// promise: L12
#[test]
fn failed_reflector_still_relays() {
    let network = pair(Link::delay(Duration::from_millis(5)));
    let elsewhere = "[measure]\nreflector = [\"192.0.2.99:862\"]\ninterval = \"300ms\"\n";
    let configs = [
        member(&network, 0, Family::V4, OFTEN),
        member(&network, 1, Family::V4, elsewhere),
    ];
    let nodes = start_all(&network, configs.into_iter());
    let links = nodes[1].admin_json("links").expect("the node answers");
    let failure = links["reflectors"][0]["failure"].as_str();
    assert!(
        failure.is_some_and(|failure| failure.contains("EADDRNOTAVAIL")),
        "{links}"
    );
    until_link(&nodes[0], "a link by handshakes", |link| {
        is_up_by(link, "handshake")
    });
}
