// SPDX-License-Identifier: Apache-2.0
//! Flows take the chain of the plan, and another when links become worse or end.

use posthaste_lab::network::Family;

use super::fixture::{CHAIN, Fixture, HOP, NUMBERS, Settings};
use super::opened;
use super::visitors::Visitors;
use crate::payload;
use crate::support::{PORT, Pair, counter, listen, target, until};
use crate::watch::outcomes;

// promise: S1
#[test]
fn flows_take_planned_chain() {
    for hops in Family::ALL {
        let fixture = Fixture::start(&Settings::of(hops));
        let network = &fixture.network;
        let server = listen(network.server(), PORT);
        for family in Family::ALL {
            let (mut pair, encapsulations) = fixture.open(family, &server);
            assert_eq!(encapsulations, CHAIN);
            let egress = network.calling_address(1, family);
            assert_eq!(pair.seen_by_server().ip(), egress);
            let seen = pair.client.peer_addr().unwrap();
            assert_eq!(seen, target(network, family, &server));
            payload::send(&mut pair.client, 1, 300_000).unwrap();
            payload::receive(&mut pair.server, 1, 300_000).unwrap();
            payload::send(&mut pair.server, 2, 300_000).unwrap();
            payload::receive(&mut pair.client, 2, 300_000).unwrap();
            pair.close_client_first();
        }
    }
}

// promise: S2
#[test]
fn longer_link_moves_new_flows() {
    for hops in Family::ALL {
        let fixture = Fixture::start(&Settings::of(hops));
        let mut open = opened(&fixture);
        let visitors = Visitors::come(&fixture.network);
        fixture.lengthen();
        fixture.until_carried(&HOP);
        fixture.shorten();
        fixture.until_carried(&CHAIN);
        visitors.go();
        open.iter_mut().for_each(Pair::check);
        for number in NUMBERS {
            let node = fixture.node(number);
            until("the end of the visits", || counter(node, "relays") == 2);
            let ended = outcomes(node);
            assert!(ended.keys().eq(["finished"]), "node {number}: {ended:?}");
            let visits = counter(node, "relays_opened") - 2;
            assert_eq!(ended["finished"], visits, "node {number}");
        }
    }
}

// promise: S3
#[test]
fn dead_link_moves_new_flows() {
    for hops in Family::ALL {
        let fixture = Fixture::start(&Settings::of(hops));
        let mut open = opened(&fixture);
        let three = Family::ALL.map(|family| fixture.address(3, family));
        fixture.cut(2, &three);
        fixture.until_planned_without();
        fixture.until_carried(&HOP);
        // A node that only saw it lose probes would continue to count that.
        fixture.until_dead(2, 3);
        fixture.restore(2);
        open.iter_mut().for_each(Pair::check);
        fixture.until_carried(&CHAIN);
    }
}
