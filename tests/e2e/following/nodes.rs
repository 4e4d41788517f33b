// SPDX-License-Identifier: Apache-2.0
//! Nodes that start again, that are cut off, and that are sent away.

use nix::sys::signal::Signal;
use posthaste_lab::network::Family;

use super::opened;
use super::scene::{CHAIN, HOP, Scene, Settings};
use super::visitors::Visitors;
use crate::support::{Pair, firewall, until};

#[test]
fn a_node_that_starts_without_its_controller_has_its_plan() {
    let mut scene = Scene::start(&Settings::of(Family::V6));
    scene.site.end(Signal::SIGKILL);
    scene.stop_node(1);
    scene.start_node(1);
    assert!(
        Family::ALL
            .iter()
            .all(|family| scene.carry(*family) == CHAIN)
    );
    for number in [2, 3] {
        scene.stop_node(number);
        scene.start_node(number);
    }
    scene.until_carried(&CHAIN);
}

#[test]
fn a_node_that_is_cut_off_from_its_controller_goes_on_by_its_plan() {
    let scene = Scene::start(&Settings::of(Family::V6));
    let mut open = opened(&scene);
    let visitors = Visitors::come(&scene.network);
    scene.cut(1, &scene.controller());
    until("it is missed", || state(&scene, 0) == "absent");
    until("the others have planned without it", || {
        scene.site.document("/v1/plan")["nodes"] == 2
    });
    visitors.until_more(20);
    assert!(
        Family::ALL
            .iter()
            .all(|family| scene.carry(*family) == CHAIN)
    );
    scene.mend(1);
    until("it is there again", || state(&scene, 0) == "connected");
    scene.until_carried(&CHAIN);
    visitors.go();
    open.iter_mut().for_each(Pair::check);
}

#[test]
fn a_node_that_is_cut_off_from_all_is_done_without_until_it_is_back() {
    let scene = Scene::start(&Settings::of(Family::V4));
    let mut open = opened(&scene);
    firewall(
        scene.host(2),
        "cut",
        &[("input", "drop"), ("output", "drop")],
    );
    scene.until_planned_without();
    scene.until_carried(&HOP);
    scene.until_dead(2, 1);
    scene.until_dead(2, 3);
    scene.mend(2);
    open.iter_mut().for_each(Pair::check);
    scene.until_carried(&CHAIN);
}

#[test]
fn a_node_whose_key_is_taken_off_the_list_gets_no_new_flows_and_keeps_the_old_ones() {
    let mut scene = Scene::start(&Settings::of(Family::V4));
    let mut open = opened(&scene);
    let visitors = Visitors::come(&scene.network);
    scene.site.nodes = vec![1, 3];
    scene.site.reload();
    scene.until_carried(&HOP);
    until("it is told", || {
        let log = scene.node(2).log();
        log.iter()
            .any(|line| line.contains("the controller says farewell"))
    });
    open.iter_mut().for_each(Pair::check);
    scene.site.nodes = vec![1, 2, 3];
    scene.site.reload();
    scene.until_carried(&CHAIN);
    // The same while nobody is there to tell it.
    scene.site.end(Signal::SIGKILL);
    scene.site.nodes = vec![1, 3];
    scene.site.write_config();
    scene.site.start();
    scene.until_carried(&HOP);
    assert_eq!(scene.following(1)["members"], 1);
    visitors.go();
    open.iter_mut().for_each(Pair::check);
}

/// How the controller sees a node, by its place.
fn state(scene: &Scene, place: usize) -> String {
    let nodes = scene.site.document("/v1/nodes");
    nodes["nodes"][place]["state"].as_str().unwrap().to_owned()
}
