// SPDX-License-Identifier: Apache-2.0
//! Nodes that start again, that are cut off, and that are sent away.

use nix::sys::signal::Signal;
use posthaste_lab::network::Family;

use super::fixture::{CHAIN, Fixture, HOP, Settings};
use super::opened;
use super::visitors::Visitors;
use crate::support::{Pair, firewall, until};

// promise: S6
#[test]
fn restart_without_controller() {
    let mut fixture = Fixture::start(&Settings::of(Family::V6));
    fixture.testbed.end(Signal::SIGKILL);
    fixture.stop_node(1);
    fixture.start_node(1);
    assert!(
        Family::ALL
            .iter()
            .all(|family| fixture.carry(*family) == CHAIN)
    );
    for number in [2, 3] {
        fixture.stop_node(number);
        fixture.start_node(number);
    }
    fixture.until_carried(&CHAIN);
}

// promise: S7
#[test]
fn cut_off_from_controller() {
    let fixture = Fixture::start(&Settings::of(Family::V6));
    let mut open = opened(&fixture);
    let visitors = Visitors::come(&fixture.network);
    fixture.cut(1, &fixture.controller());
    until("it is missed", || state(&fixture, 0) == "absent");
    until("the others have planned without it", || {
        fixture.testbed.document("/v1/plan")["nodes"] == 2
    });
    visitors.until_more(20);
    assert!(
        Family::ALL
            .iter()
            .all(|family| fixture.carry(*family) == CHAIN)
    );
    fixture.restore(1);
    until("it is there again", || state(&fixture, 0) == "connected");
    fixture.until_carried(&CHAIN);
    visitors.go();
    open.iter_mut().for_each(Pair::check);
}

// promise: S7
#[test]
fn cut_off_from_everything() {
    let fixture = Fixture::start(&Settings::of(Family::V4));
    let mut open = opened(&fixture);
    firewall(
        fixture.host(2),
        "cut",
        &[("input", "drop"), ("output", "drop")],
    );
    fixture.until_planned_without();
    fixture.until_carried(&HOP);
    fixture.until_dead(2, 1);
    fixture.until_dead(2, 3);
    fixture.restore(2);
    open.iter_mut().for_each(Pair::check);
    fixture.until_carried(&CHAIN);
}

// promise: S8
#[test]
fn removed_node_keeps_old_flows() {
    let mut fixture = Fixture::start(&Settings::of(Family::V4));
    let mut open = opened(&fixture);
    let visitors = Visitors::come(&fixture.network);
    fixture.testbed.nodes = vec![1, 3];
    fixture.testbed.reload();
    fixture.until_carried(&HOP);
    until("the controller closes the stream", || {
        let log = fixture.node(2).log();
        log.iter()
            .any(|line| line.contains("controller closed the stream"))
    });
    open.iter_mut().for_each(Pair::check);
    fixture.testbed.nodes = vec![1, 2, 3];
    fixture.testbed.reload();
    fixture.until_carried(&CHAIN);
    // The same without a controller to send it.
    fixture.testbed.end(Signal::SIGKILL);
    fixture.testbed.nodes = vec![1, 3];
    fixture.testbed.write_config();
    fixture.testbed.start();
    fixture.until_carried(&HOP);
    assert_eq!(fixture.following(1)["members"], 1);
    visitors.go();
    open.iter_mut().for_each(Pair::check);
}

/// How the controller sees a node, by its place.
fn state(fixture: &Fixture, place: usize) -> String {
    let nodes = fixture.testbed.document("/v1/nodes");
    nodes["nodes"][place]["state"].as_str().unwrap().to_owned()
}
