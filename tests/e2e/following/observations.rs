// SPDX-License-Identifier: Apache-2.0
//! What finished relays show: how large transfers are, and which node is the nearest to servers. And
//! how often links are measured.

use std::net::SocketAddr;
use std::time::Duration;

use posthaste_lab::network::Family;
use posthaste_lab::process::wait_until;
use serde_json::Value;

use super::fixture::{CHAIN, DIRECT, Fixture, HOP, Settings};
use crate::payload;
use crate::support::{PORT, SOON, firewall, listen, target, until};

/// What a large transfer carries, in bytes.
const LARGE: u64 = 300_000;

/// The report of node one about connections to the server.
fn explain(fixture: &Fixture, server: SocketAddr, size: Option<u64>) -> Value {
    let size = size.map(|bytes| format!(" --size {bytes}"));
    let words = format!("chains explain {server}{}", size.unwrap_or_default());
    fixture.node(1).admin_json(&words).unwrap()
}

/// The nodes after one of the way that is taken.
fn taken(explained: &Value) -> Vec<&str> {
    let next_hops = &explained["next_hops"];
    let taken =
        &next_hops["candidates"][usize::try_from(next_hops["taken"].as_u64().unwrap()).unwrap()];
    let nodes = taken["nodes"].as_array().unwrap();
    nodes.iter().map(|node| node.as_str().unwrap()).collect()
}

/// Loses every third probe from one to three, and nothing else: large transfers would suffer most.
fn lose_probes(fixture: &Fixture) {
    let rules = Family::ALL.map(|family| {
        let word = if family == Family::V4 { "ip" } else { "ip6" };
        let three = fixture.address(3, family);
        format!("{word} daddr {three} udp dport 862 numgen inc mod 3 0 drop\n")
    });
    firewall(fixture.host(1), "lossy", &[("output", &rules.concat())]);
}

// promise: E1, E6
#[test]
fn chain_for_learned_size() {
    // Two is far off: a way for those only who would wait long for what one and three lose.
    let settings = Settings {
        controller: "[plan]\nsizes = [\"2KiB\", \"512KiB\"]\n".to_owned(),
        beside: Duration::from_millis(160),
        encapsulations: HOP.to_vec(),
        transfer_size: "1KiB",
        ..Settings::of(Family::V4)
    };
    let fixture = Fixture::start(&settings);
    lose_probes(&fixture);
    let listener = listen(fixture.network.server(), PORT + 2);
    let servers = Family::ALL.map(|family| target(&fixture.network, family, &listener));
    for server in servers {
        let known = wait_until("a plan with the loss", SOON * 4, || {
            let large = explain(&fixture, server, Some(LARGE));
            let small = explain(&fixture, server, Some(1000));
            taken(&large) == ["n2", "n3"] && taken(&small) == ["n3"]
        });
        known.unwrap();
    }
    for (family, server) in Family::ALL.into_iter().zip(servers) {
        let before = explain(&fixture, server, None);
        assert_eq!(before["size"]["class"], 0, "{before:#}");
        assert_eq!(fixture.carry(family), HOP);
        // As many as it takes: smaller ones preceded.
        until("a size that was learned", || {
            for _ in 0..8 {
                let (mut pair, _) = fixture.open(family, &listener);
                payload::send(&mut pair.server, 1, LARGE).unwrap();
                payload::receive(&mut pair.client, 1, LARGE).unwrap();
                pair.close_client_first();
            }
            let size = explain(&fixture, server, None)["size"].clone();
            size["source"] == "learned" && size["class"] == 1
        });
        assert_eq!(fixture.carry(family), CHAIN);
        let after = explain(&fixture, server, None);
        assert!(after["size"]["transfers"].as_u64() >= Some(8), "{after:#}");
        let bytes = after["size"]["bytes"].as_u64().unwrap();
        assert!((LARGE * 5 / 6..LARGE * 6 / 5).contains(&bytes), "{bytes}");
        assert_eq!(taken(&after), ["n2", "n3"]);
        assert_eq!(after["plan"]["in_force"], true);
        let words = fixture
            .node(1)
            .admin(&format!("chains explain {server}"))
            .unwrap();
        assert!(words.contains("recent transfers to"), "{words}");
        assert!(words.contains("by a table of the controller"), "{words}");
        assert!(words.contains("by way of n2 > n3"), "{words}");
    }
    let sized = fixture.metric(1, "posthaste_destinations_sized");
    assert_eq!(sized, Some(2.0));
}

// promise: E4
#[test]
fn nearest_node_by_measurement() {
    for hops in Family::ALL {
        let mut fixture = Fixture::start(&Settings::of(hops));
        let listener = listen(fixture.network.server(), PORT + 2);
        // Node three has connected to the servers for one, and has measured their round-trip time.
        for family in Family::ALL {
            for _ in 0..4 {
                assert_eq!(fixture.carry(family), CHAIN);
            }
        }
        let measured = "posthaste_destinations_measured";
        until("word of three", || fixture.metric(3, measured) >= Some(2.0));
        // Node one may have connected there itself before it had a plan, and discards that.
        fixture.stop_node(1);
        fixture.start_node(1);
        let (kept, _) = fixture.testbed.more.split_once("[[prefix]]").unwrap();
        fixture.testbed.more = kept.to_owned();
        fixture.testbed.reload();
        // One does not know whether three is on its way before it has been there itself.
        fixture.until_carried(&DIRECT);
        fixture.until_carried(&CHAIN);
        for family in Family::ALL {
            let server = target(&fixture.network, family, &listener);
            let plan = explain(&fixture, server, None)["plan"].clone();
            assert_eq!(plan["egress"], "n3", "{plan:#}");
            let own = plan["own_rtt_us"].as_u64().unwrap();
            assert!(own >= 60_000, "{plan:#}");
            assert!(plan["rtt_us"].as_u64().unwrap() < own / 2, "{plan:#}");
        }
    }
}

/// How often node three, which carries no flows, measures the link to another.
fn every(fixture: &Fixture, peer: &str) -> u64 {
    let links = fixture.node(3).admin_json("links").unwrap();
    let mut links = links["links"].as_array().unwrap().iter();
    let link = links.find(|link| link["peer"] == peer).unwrap();
    link["interval_ms"].as_u64().unwrap()
}

// promise: E7
#[test]
fn controller_sets_intervals() {
    let mut fixture = Fixture::start(&Settings::of(Family::V6));
    until("the intervals of the controller", || {
        [every(&fixture, "n1"), every(&fixture, "n2")] == [1000, 300]
    });
    let other = fixture
        .testbed
        .more
        .replace("interval = \"1s\"", "interval = \"7s\"");
    fixture.testbed.more = other.replace("\"300ms\"", "\"2s\"");
    fixture.testbed.reload();
    until("its new intervals", || {
        [every(&fixture, "n1"), every(&fixture, "n2")] == [7000, 2000]
    });
    fixture.until_carried(&CHAIN);
}
