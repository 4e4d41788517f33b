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
    MODES, PORT, Pair, accepting, counter, dial, firewall, line, listen, remove_firewall, until,
};
use crate::watch::{assert_nothing_left, http_get, relay_lines};

/// The port of the servers that answer visitors.
const ECHO: u16 = 81;

// promise: F14
#[test]
fn early_connections_survive() {
    stays_open("early");
}

// promise: F14
#[test]
fn strict_connections_survive() {
    stays_open("strict");
}

// promise: F14
#[test]
fn late_connections_survive() {
    stays_open("late");
}

fn stays_open(mode: &str) {
    let network = Arc::new(line());
    let host = network.node(0);
    let mut place = Place::start(host, &accepting(mode));
    let first = place.first();
    let _echo = Echo::start(&network, ECHO);
    let listener = listen(network.server(), PORT);
    let downloads =
        Family::ALL.map(|family| Download::start(Pair::open(&network, family, &listener)));
    let visitors = Visitors::start(Arc::clone(&network), &servers(&network, ECHO));
    visitors.wait_for_many();
    place.upgrade(host);
    visitors.wait_for_many();
    let visits = visitors.end();
    // Each of them was relayed, by one or the other.
    let (before, after) = (
        place.opened_by(first),
        counter(&place.node, "relays_opened"),
    );
    assert_eq!(before + after, visits + 2, "{before} and {after}");
    assert!(before > 2 && after > 0);
    // The verb asks the replaced nodes too.
    let status = place.node.admin_json("status").unwrap();
    assert_eq!(status["replaced"][0]["pid"], first.as_raw(), "{status:#}");
    assert_eq!(status["replaced"][0]["relays"], 2);
    let page = http_get(host, METRICS, "/metrics").1;
    assert!(page.contains("posthaste_replaced_nodes 1"), "{page}");
    downloads.into_iter().for_each(Download::end);
    place.until_ended(first);
    for family in Family::ALL {
        let mut pair = Pair::open(&network, family, &listener);
        pair.check();
        pair.close_client_first();
    }
    assert_eq!(counter(&place.node, "relays_opened"), after + 2);
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

// promise: F14
#[test]
fn half_open_stays_with_beginner() {
    for mode in MODES {
        let testbed = Testbed::start(&accepting(mode));
        let first = testbed.place.first();
        // A port for each family.
        let targets = [(Family::V4, PORT), (Family::V6, ECHO)];
        let targets = targets
            .map(|(family, port)| SocketAddr::new(testbed.network.server_address(family), port));
        let listeners = targets.map(|target| listen(testbed.network.server(), target.port()));
        let closed = format!("tcp dport {{ {PORT}, {ECHO} }} drop");
        firewall(testbed.network.server(), "closed", &[("input", &closed)]);
        std::thread::scope(|scope| {
            let client = testbed.network.client();
            let dialling = targets.map(|target| scope.spawn(move || dial(client, target)));
            until("two flows that open", || {
                let relays = testbed.place.node.relays().unwrap();
                relays["relays"].as_array().unwrap().len() == 2
            });
            testbed.place.upgrade(testbed.host());
            remove_firewall(testbed.network.server(), "closed");
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
        let repeated = lines.into_iter().filter(is_repeated).count() as u64;
        assert!(repeated == 0 || mode == "strict", "{mode}");
        let after = counter(&testbed.place.node, "relays_opened");
        assert!(after <= repeated, "{mode}: {after} of {repeated}");
        testbed.end();
    }
}
