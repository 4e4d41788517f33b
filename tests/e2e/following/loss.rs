// SPDX-License-Identifier: Apache-2.0
//! What becomes of flows when the controller is gone, and when it comes back with what it has left.

use std::fs;

use nix::sys::signal::Signal;
use posthaste_lab::chance::Random;
use posthaste_lab::network::Family;

use super::opened;
use super::scene::{CHAIN, DIRECT, NUMBERS, Scene, Settings};
use super::visitors::Visitors;
use crate::support::{Pair, until};

#[test]
fn without_its_controller_a_node_goes_by_the_last_plan_and_then_without() {
    let mut settings = Settings::of(Family::V4);
    settings.alive_s = 1;
    let mut scene = Scene::start(&settings);
    let mut open = opened(&scene);
    let visitors = Visitors::come(&scene.network);
    scene.site.end(Signal::SIGKILL);
    assert!(
        Family::ALL
            .iter()
            .all(|family| scene.carry(*family) == CHAIN)
    );
    let age = "posthaste_plan_age_seconds";
    until("a plan of two seconds", || {
        scene.metric(1, age) >= Some(2.0)
    });
    until("word of it", || scene.following(1)["joined"] == false);
    assert!(
        Family::ALL
            .iter()
            .all(|family| scene.carry(*family) == CHAIN)
    );
    let lasting = scene.site.more.clone();
    scene.site.more += "[plan]\nlife = \"2s\"\n";
    scene.site.write_config();
    scene.site.start();
    let is_short = |number| scene.following(number)["plan"]["life_ms"] == 2000;
    until("short lives", || NUMBERS.into_iter().all(is_short));
    scene.until_carried(&CHAIN);
    scene.site.end(Signal::SIGKILL);
    scene.until_carried(&DIRECT);
    assert_eq!(scene.metric(1, "posthaste_plan_in_force"), Some(0.0));
    scene.site.more = lasting;
    scene.site.write_config();
    scene.site.start();
    scene.until_carried(&CHAIN);
    visitors.go();
    open.iter_mut().for_each(Pair::check);
}

#[test]
fn a_controller_that_is_killed_again_and_again_disturbs_nobody() {
    let mut scene = Scene::start(&Settings::of(Family::V4));
    let mut open = opened(&scene);
    let visitors = Visitors::come(&scene.network);
    let mut random = Random::new(7);
    for round in 0..6 {
        // So that there are plans to be kept.
        match round % 2 {
            0 => scene.lengthen(),
            _ => scene.shorten(),
        }
        visitors.until_more(random.below(12));
        scene.site.end(Signal::SIGKILL);
        visitors.until_more(random.below(4));
        scene.site.start();
    }
    scene.until_carried(&CHAIN);
    let epoch = &scene.following(1)["plan"]["epoch"];
    assert_eq!(*epoch, 1, "nothing was lost");
    visitors.go();
    open.iter_mut().for_each(Pair::check);
}

#[test]
fn a_store_that_is_damaged_costs_what_was_in_it_and_no_flow() {
    let mut scene = Scene::start(&Settings::of(Family::V6));
    let mut open = opened(&scene);
    let visitors = Visitors::come(&scene.network);
    let file = scene.site.path("store.redb");
    let damages: [fn(&mut Vec<u8>); 3] = [
        |bytes| bytes.truncate(bytes.len() / 2),
        |bytes| bytes[4096..12_288].fill(0x5a),
        |bytes| bytes.fill(0x5a),
    ];
    for damage in damages {
        let before = scene.epoch();
        scene.site.end(Signal::SIGKILL);
        let mut bytes = fs::read(&file).unwrap();
        damage(&mut bytes);
        fs::write(&file, bytes).unwrap();
        scene.site.start();
        let was_lost = scene.site.log().contains("moved aside");
        until("all follow", || {
            let plan = scene.site.document("/v1/plan");
            plan["followed_by"] == 3 && plan["nodes"] == 3
        });
        let after = scene.epoch();
        assert!(after > before || !was_lost, "epochs {before}, {after}");
        scene.until_carried(&CHAIN);
    }
    let aside = scene.site.path("store.redb.broken-1");
    assert!(aside.exists(), "noise is no store");
    visitors.go();
    open.iter_mut().for_each(Pair::check);
}
