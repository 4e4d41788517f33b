// SPDX-License-Identifier: Apache-2.0
//! Flows take the chain of the plan, and another when links become worse or end.

use posthaste_lab::network::Family;

use super::opened;
use super::scene::{CHAIN, HOP, NUMBERS, Scene, Settings};
use super::visitors::Visitors;
use crate::payload;
use crate::support::{PORT, Pair, counter, listen, target, until};
use crate::watch::outcomes;

#[test]
fn flows_take_the_chain_of_the_plan_and_both_ends_see_what_they_should() {
    for hops in Family::ALL {
        let scene = Scene::start(&Settings::of(hops));
        let network = &scene.network;
        let server = listen(network.server(), PORT);
        for family in Family::ALL {
            let (mut pair, carriers) = scene.open(family, &server);
            assert_eq!(carriers, CHAIN);
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

#[test]
fn a_link_that_becomes_longer_moves_new_flows_and_no_others() {
    for hops in Family::ALL {
        let scene = Scene::start(&Settings::of(hops));
        let mut open = opened(&scene);
        let visitors = Visitors::come(&scene.network);
        scene.lengthen();
        scene.until_carried(&HOP);
        scene.shorten();
        scene.until_carried(&CHAIN);
        visitors.go();
        open.iter_mut().for_each(Pair::check);
        for number in NUMBERS {
            let node = scene.node(number);
            until("the end of the visits", || counter(node, "relays") == 2);
            let ended = outcomes(node);
            assert!(ended.keys().eq(["finished"]), "node {number}: {ended:?}");
            let visits = counter(node, "relays_opened") - 2;
            assert_eq!(ended["finished"], visits, "node {number}");
        }
    }
}

#[test]
fn a_link_that_ends_moves_new_flows_and_old_ones_go_on_when_it_is_back() {
    for hops in Family::ALL {
        let scene = Scene::start(&Settings::of(hops));
        let mut open = opened(&scene);
        let three = Family::ALL.map(|family| scene.address(3, family));
        scene.cut(2, &three);
        scene.until_planned_without();
        scene.until_carried(&HOP);
        // Who only saw it lose would go on to count that.
        scene.until_dead(2, 3);
        scene.mend(2);
        open.iter_mut().for_each(Pair::check);
        scene.until_carried(&CHAIN);
    }
}
