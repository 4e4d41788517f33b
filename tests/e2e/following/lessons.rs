// SPDX-License-Identifier: Apache-2.0
//! What finished relays teach: how large transfers are, and which node is the nearest to servers. And
//! how often links are measured.

use std::net::SocketAddr;
use std::time::Duration;

use posthaste_lab::network::Family;
use posthaste_lab::process::wait_until;
use serde_json::Value;

use super::scene::{CHAIN, DIRECT, HOP, Scene, Settings};
use crate::payload;
use crate::support::{PORT, SOON, firewall, listen, target, until};

/// What a large transfer carries, in bytes.
const LARGE: u64 = 300_000;

/// What one says of connections to the server.
fn explain(scene: &Scene, server: SocketAddr, size: Option<u64>) -> Value {
    let size = size.map(|bytes| format!(" --size {bytes}"));
    let words = format!("chains explain {server}{}", size.unwrap_or_default());
    scene.node(1).admin_json(&words).unwrap()
}

/// The nodes after one of the way that is taken.
fn taken(explained: &Value) -> Vec<&str> {
    let ways = &explained["ways"];
    let taken = &ways["candidates"][usize::try_from(ways["taken"].as_u64().unwrap()).unwrap()];
    let nodes = taken["nodes"].as_array().unwrap();
    nodes.iter().map(|node| node.as_str().unwrap()).collect()
}

/// Loses probes between one and three, and nothing else: large transfers would suffer most.
fn lose_probes(scene: &Scene) {
    let rules = Family::ALL.map(|family| {
        let word = if family == Family::V4 { "ip" } else { "ip6" };
        let three = scene.address(3, family);
        format!("{word} daddr {three} udp dport 862 numgen random mod 100 < 5 drop\n")
    });
    firewall(scene.host(1), "lossy", &[("output", &rules.concat())]);
}

#[test]
fn flows_take_the_ways_for_the_size_that_was_learned() {
    // Two is far off: a way for those only who would wait long for what one and three lose.
    let settings = Settings {
        controller: "[plan]\nsizes = [\"2KiB\", \"512KiB\"]\n".to_owned(),
        beside: Duration::from_millis(140),
        carriers: HOP.to_vec(),
        transfer_size: "1KiB",
        ..Settings::of(Family::V4)
    };
    let scene = Scene::start(&settings);
    lose_probes(&scene);
    let listener = listen(scene.network.server(), PORT + 2);
    let servers = Family::ALL.map(|family| target(&scene.network, family, &listener));
    for server in servers {
        // Which probes are lost is left to chance.
        let known = wait_until("a plan that knows of the loss", SOON * 4, || {
            let large = explain(&scene, server, Some(LARGE));
            let small = explain(&scene, server, Some(1000));
            taken(&large) == ["n2", "n3"] && taken(&small) == ["n3"]
        });
        known.unwrap();
    }
    for (family, server) in Family::ALL.into_iter().zip(servers) {
        let before = explain(&scene, server, None);
        assert_eq!(before["size"]["class"], 0, "{before:#}");
        assert_eq!(scene.carry(family), HOP);
        // As many as it takes: small ones have gone before.
        until("a size that was learned", || {
            for _ in 0..8 {
                let (mut pair, _) = scene.open(family, &listener);
                payload::send(&mut pair.server, 1, LARGE).unwrap();
                payload::receive(&mut pair.client, 1, LARGE).unwrap();
                pair.close_client_first();
            }
            let size = explain(&scene, server, None)["size"].clone();
            size["source"] == "learned" && size["class"] == 1
        });
        assert_eq!(scene.carry(family), CHAIN);
        let after = explain(&scene, server, None);
        assert!(after["size"]["transfers"].as_u64() >= Some(8), "{after:#}");
        let bytes = after["size"]["bytes"].as_u64().unwrap();
        assert!((LARGE * 5 / 6..LARGE * 6 / 5).contains(&bytes), "{bytes}");
        assert_eq!(taken(&after), ["n2", "n3"]);
        assert_eq!(after["plan"]["in_force"], true);
        let words = scene
            .node(1)
            .admin(&format!("chains explain {server}"))
            .unwrap();
        assert!(words.contains("transfers of late to"), "{words}");
        assert!(words.contains("by a table of the controller"), "{words}");
        assert!(words.contains("by way of n2 > n3"), "{words}");
    }
    let sized = scene.metric(1, "posthaste_destinations_sized");
    assert_eq!(sized, Some(2.0));
}

#[test]
fn the_nearest_node_has_a_destination_that_no_table_names() {
    for hops in Family::ALL {
        let mut scene = Scene::start(&Settings::of(hops));
        let listener = listen(scene.network.server(), PORT + 2);
        // Three has connected to the servers for one, and knows how near they are.
        for family in Family::ALL {
            for _ in 0..4 {
                assert_eq!(scene.carry(family), CHAIN);
            }
        }
        let measured = "posthaste_destinations_measured";
        until("word of three", || scene.metric(3, measured) >= Some(2.0));
        // One may have gone there itself before it had a plan, and forgets that.
        scene.stop_node(1);
        scene.start_node(1);
        let (kept, _) = scene.site.more.split_once("[[prefix]]").unwrap();
        scene.site.more = kept.to_owned();
        scene.site.reload();
        // One does not know whether three is on its way before it has been there itself.
        scene.until_carried(&DIRECT);
        scene.until_carried(&CHAIN);
        for family in Family::ALL {
            let server = target(&scene.network, family, &listener);
            let plan = explain(&scene, server, None)["plan"].clone();
            assert_eq!(plan["egress"], "n3", "{plan:#}");
            let own = plan["own_rtt_us"].as_u64().unwrap();
            assert!(own >= 60_000, "{plan:#}");
            assert!(plan["rtt_us"].as_u64().unwrap() < own / 2, "{plan:#}");
        }
    }
}

/// How often three, through which nobody connects, measures the link to another.
fn every(scene: &Scene, peer: &str) -> u64 {
    let links = scene.node(3).admin_json("links").unwrap();
    let mut links = links["links"].as_array().unwrap().iter();
    let link = links.find(|link| link["peer"] == peer).unwrap();
    link["interval_ms"].as_u64().unwrap()
}

#[test]
fn links_are_measured_as_often_as_the_controller_says() {
    let mut scene = Scene::start(&Settings::of(Family::V6));
    until("as the controller says", || {
        [every(&scene, "n1"), every(&scene, "n2")] == [1000, 300]
    });
    let other = scene
        .site
        .more
        .replace("interval = \"1s\"", "interval = \"7s\"");
    scene.site.more = other.replace("\"300ms\"", "\"2s\"");
    scene.site.reload();
    until("as it says now", || {
        [every(&scene, "n1"), every(&scene, "n2")] == [7000, 2000]
    });
    scene.until_carried(&CHAIN);
}
