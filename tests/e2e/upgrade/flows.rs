// SPDX-License-Identifier: Apache-2.0
//! What clients and servers see of an upgrade: nothing.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use posthaste_lab::network::Family;
use serde_json::Value;

use super::traffic::{Download, Echo, Visitors, servers};
use super::{METRICS, Place, Testbed};
use crate::chains::{Plan, line_of};
use crate::support::{
    MODES_BY_PORT, PORT, Pair, counter, dial, each_mode, firewall, line, listen, remove_firewall,
    until,
};
use crate::tunnels;
use crate::watch::{assert_nothing_left, http_get, relay_lines};

/// How often the next node is replaced, unless [`UPGRADES_FROM`] sets another number.
const UPGRADES: u32 = 2;
/// Names the environment variable with another count.
const UPGRADES_FROM: &str = "POSTHASTE_UPGRADES";
/// Visitors at a time, and how many times many of them come before each replacement.
const VISITORS: usize = 8;
const VISITS_MANY: u32 = 5;
/// The port of the servers that answer visitors.
const ECHO: u16 = 81;

/// Connections of every accept mode.
// promise: F14
#[test]
fn connections_survive() {
    let network = Arc::new(line());
    let host = network.node(0);
    let mut place = Place::start(host, &each_mode());
    let first = place.first();
    let listeners = MODES_BY_PORT.map(|(_, port)| listen(network.server(), port));
    let each = || {
        let each = listeners.iter();
        each.flat_map(|listener| Family::ALL.map(|family| Pair::open(&network, family, listener)))
    };
    let downloads: Vec<_> = each().map(Download::start).collect();
    for (mode, _) in MODES_BY_PORT {
        assert_eq!(counter(&place.node, mode), 2);
    }
    let echoes = MODES_BY_PORT.map(|(_, port)| port + 1);
    let _echoes = echoes.map(|port| Echo::start(&network, port));
    let visited = echoes.map(|port| servers(&network, port)).concat();
    let visitors = Visitors::start(Arc::clone(&network), &visited);
    visitors.wait_for_many();
    place.upgrade(host);
    visitors.wait_for_many();
    let visits = visitors.end();
    // Each of them was relayed, by one or the other.
    let (before, after) = (
        place.opened_by(first),
        counter(&place.node, "relays_opened"),
    );
    assert_eq!(before + after, visits + 6, "{before} and {after}");
    assert!(before > 6 && after > 0);
    // The verb asks the replaced nodes too.
    let status = place.node.admin_json("status").unwrap();
    assert_eq!(status["replaced"][0]["pid"], first.as_raw(), "{status:#}");
    assert_eq!(status["replaced"][0]["relays"], 6);
    let page = http_get(host, METRICS, "/metrics").1;
    assert!(page.contains("posthaste_replaced_nodes 1"), "{page}");
    downloads.into_iter().for_each(Download::end);
    place.until_ended(first);
    for mut pair in each() {
        pair.check();
        pair.close_client_first();
    }
    assert_eq!(counter(&place.node, "relays_opened"), after + 6);
    place.signal(place.pid(), nix::sys::signal::Signal::SIGTERM);
    place.until_all_ended();
    assert_nothing_left(host);
}

// promise: F14
#[test]
fn fixed_listeners_lose_nothing() {
    let network = Arc::new(line());
    let host = network.node(0);
    let entrance = |family| SocketAddr::new(network.node_address(0, family), 8080);
    let listeners = Family::ALL.map(|family| {
        let (address, destination) = (entrance(family), SocketAddr::new(network.server_address(family), ECHO));
        format!("[[listener]]\nmode = \"fixed\"\naddress = \"{address}\"\ndestination = \"{destination}\"\n")
    });
    let place = Place::start(host, &listeners.concat());
    let first = place.first();
    let _echo = Echo::start(&network, ECHO);
    // So the first process stays and can be queried.
    let listener = listen(network.server(), PORT);
    let mut open = Pair::open(&network, Family::V4, &listener);
    let visitors = Visitors::start(Arc::clone(&network), &Family::ALL.map(entrance));
    visitors.wait_for_many();
    place.upgrade(host);
    visitors.wait_for_many();
    let visits = visitors.end();
    let count = |status: &Value| status["counters"]["fixed_connections"].as_u64().unwrap();
    let (before, after) = (
        count(&place.status_of(first)),
        counter(&place.node, "fixed_connections"),
    );
    assert_eq!(before + after, visits);
    assert!(before > 0 && after > 0);
    open.check();
}

// promise: F14
#[test]
fn chains_lose_nothing() {
    let network = Arc::new(line_of(2));
    let plan = Plan {
        warm: true,
        ..Plan::of(2)
    };
    let nodes = plan.start(&network);
    let places: Vec<Place> = nodes.into_iter().map(Place::of).collect();
    let firsts: Vec<_> = places.iter().map(Place::first).collect();
    let _echo = Echo::start(&network, ECHO);
    let listener = listen(network.server(), PORT);
    let mut open = Pair::open(&network, Family::V4, &listener);
    let visitors = Visitors::start(Arc::clone(&network), &servers(&network, ECHO));
    for number in [1, 0] {
        visitors.wait_for_many();
        places[number].upgrade(network.node(number));
    }
    visitors.wait_for_many();
    let visits = visitors.end();
    open.check();
    for (place, first) in places.iter().zip(firsts) {
        let (before, after) = (
            place.opened_by(first),
            counter(&place.node, "relays_opened"),
        );
        assert_eq!(before + after, visits + 1, "{before} and {after}");
        assert!(after > 0);
    }
}

/// The next node is replaced again and again, while connections begin over its warm hops or tunnels.
// promise: F14
#[test]
fn next_node_is_replaced_under_load() {
    let upgrades = std::env::var(UPGRADES_FROM)
        .map_or(UPGRADES, |text| text.parse().expect("a number of upgrades"));
    let network = Arc::new(line_of(2));
    let tcp = Plan {
        warm: true,
        ..Plan::of(2)
    };
    for is_tunnel in [false, true] {
        let nodes = if is_tunnel {
            let nodes = tunnels::start(&network, "early", Family::V4);
            tunnels::until_up(&nodes);
            nodes
        } else {
            tcp.start(&network)
        };
        let [first, next] = nodes.try_into().expect("two nodes");
        let next = Place::of(next);
        let _echo = Echo::start(&network, ECHO);
        let server = network.server_address(Family::V4);
        let targets = [SocketAddr::new(server, ECHO); VISITORS];
        let visitors = Visitors::start(Arc::clone(&network), &targets);
        for _ in 0..upgrades {
            (0..VISITS_MANY).for_each(|_| visitors.wait_for_many());
            next.upgrade(network.node(1));
        }
        visitors.wait_for_many();
        let visits = visitors.end();
        println!("tunnel: {is_tunnel}, {visits} connections, {upgrades} upgrades");
        assert_eq!(counter(&first, "relays_opened"), visits);
        if is_tunnel {
            assert!(counter(&first, "hops_quic") > 0);
        }
    }
}

// promise: F14
#[test]
fn half_open_stays_with_beginner() {
    let testbed = Testbed::start(&each_mode());
    let first = testbed.place.first();
    // A port for each family.
    let of_mode = |(_, port): (&str, u16)| [(Family::V4, port), (Family::V6, port + 1)];
    let targets = MODES_BY_PORT.map(of_mode).concat();
    let targets = targets
        .into_iter()
        .map(|(family, port)| SocketAddr::new(testbed.network.server_address(family), port));
    let targets: Vec<_> = targets.collect();
    let server = testbed.network.server();
    let listeners = targets.iter().map(|target| listen(server, target.port()));
    let listeners: Vec<_> = listeners.collect();
    let closed = "tcp flags & (syn | ack) == syn drop";
    firewall(server, "closed", &[("input", closed)]);
    std::thread::scope(|scope| {
        let client = testbed.network.client();
        let dial = |target: &SocketAddr| {
            let target = *target;
            scope.spawn(move || dial(client, target))
        };
        let dialling: Vec<_> = targets.iter().map(dial).collect();
        until("flows that open", || {
            let relays = testbed.place.node.relays().unwrap();
            relays["relays"].as_array().unwrap().len() == targets.len()
        });
        testbed.place.upgrade(testbed.host());
        remove_firewall(server, "closed");
        for (dialling, listener) in dialling.into_iter().zip(&listeners) {
            let mut pair = Pair::of(dialling.join().unwrap(), listener);
            pair.check();
            until("relay", || testbed.place.opened_by(first) > 0);
            pair.close_client_first();
        }
    });
    // A strict flow ends with its upstream SYN, which waits no longer than the client's first
    // repetition: on a busy host the upgrade takes longer, and the client begins anew.
    let is_repeated = |line: &HashMap<String, String>| line["outcome"] == "connect_timeout";
    let lines = relay_lines(&testbed.place.node);
    let repeated: Vec<_> = lines.into_iter().filter(is_repeated).collect();
    assert!(
        repeated.iter().all(|line| line["accept"] == "strict"),
        "{repeated:#?}"
    );
    let (after, repeated) = (
        counter(&testbed.place.node, "relays_opened"),
        repeated.len() as u64,
    );
    assert!(after <= repeated, "{after} of {repeated}");
    testbed.end();
}
