// SPDX-License-Identifier: Apache-2.0
//! What clients and servers see of an upgrade: nothing.

use std::net::SocketAddr;
use std::sync::Arc;

use posthaste_lab::network::Family;
use serde_json::Value;

use super::traffic::{Download, Echo, Visitors, servers};
use super::{METRICS, Place, Site};
use crate::chains::{Plan, line_of};
use crate::support::{
    MODES, PORT, Pair, accepting, counter, dial, firewall, line, listen, remove_firewall, until,
};
use crate::watch::{assert_nothing_left, http_get};

/// The port of the servers that answer visitors.
const ECHO: u16 = 81;

#[test]
fn open_connections_go_on_and_new_ones_are_relayed_in_early_mode() {
    goes_on("early");
}

#[test]
fn open_connections_go_on_and_new_ones_are_relayed_in_strict_mode() {
    goes_on("strict");
}

#[test]
fn open_connections_go_on_and_new_ones_are_relayed_in_late_mode() {
    goes_on("late");
}

fn goes_on(mode: &str) {
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
    let status = place.node.status().unwrap();
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

#[test]
fn listeners_with_a_destination_lose_no_connection() {
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
    // So the first process stays to be asked.
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

#[test]
fn chains_lose_no_connection_when_either_node_is_upgraded() {
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

#[test]
fn what_is_half_open_is_opened_by_who_began() {
    for mode in MODES {
        let site = Site::start(&accepting(mode));
        let first = site.place.first();
        // A port for each family.
        let targets = [(Family::V4, PORT), (Family::V6, ECHO)];
        let targets = targets
            .map(|(family, port)| SocketAddr::new(site.network.server_address(family), port));
        let listeners = targets.map(|target| listen(site.network.server(), target.port()));
        let closed = format!("tcp dport {{ {PORT}, {ECHO} }} drop");
        firewall(site.network.server(), "closed", &[("input", &closed)]);
        std::thread::scope(|scope| {
            let client = site.network.client();
            let dialling = targets.map(|target| scope.spawn(move || dial(client, target)));
            until("two flows that open", || {
                let relays = site.place.node.relays().unwrap();
                relays["relays"].as_array().unwrap().len() == 2
            });
            site.place.upgrade(site.host());
            remove_firewall(site.network.server(), "closed");
            for (dialling, listener) in dialling.into_iter().zip(&listeners) {
                let mut pair = Pair::of(dialling.join().unwrap(), listener);
                pair.check();
                until("relay", || site.place.opened_by(first) > 0);
                pair.close_client_first();
            }
        });
        let after = counter(&site.place.node, "relays_opened");
        assert_eq!(after, 0, "{mode}");
        site.end();
    }
}
