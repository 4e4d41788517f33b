// SPDX-License-Identifier: Apache-2.0
//! Flows while the controller is down, and after it returns with what remains of its store.

use std::fs;

use nix::sys::signal::Signal;
use posthaste_lab::network::Family;
use posthaste_lab::rng::Rng;

use super::fixture::{CHAIN, DIRECT, Fixture, NUMBERS, Settings};
use super::opened;
use super::visitors::Visitors;
use crate::support::{Pair, until};

// promise: S4
#[test]
fn lost_controller_plan_expires() {
    let mut settings = Settings::of(Family::V4);
    settings.keepalive_s = 1;
    let mut fixture = Fixture::start(&settings);
    let mut open = opened(&fixture);
    let visitors = Visitors::come(&fixture.network);
    fixture.testbed.end(Signal::SIGKILL);
    assert!(
        Family::ALL
            .iter()
            .all(|family| fixture.carry(*family) == CHAIN)
    );
    let age = "posthaste_plan_age_seconds";
    until("a plan of two seconds", || {
        fixture.metric(1, age) >= Some(2.0)
    });
    until("word of it", || fixture.following(1)["connected"] == false);
    assert!(
        Family::ALL
            .iter()
            .all(|family| fixture.carry(*family) == CHAIN)
    );
    let lasting = fixture.testbed.more.clone();
    fixture.testbed.more += "[plan]\nttl = \"2s\"\n";
    fixture.testbed.write_config();
    fixture.testbed.start();
    let is_short = |number| fixture.following(number)["plan"]["ttl_ms"] == 2000;
    until("short lives", || NUMBERS.into_iter().all(is_short));
    fixture.until_carried(&CHAIN);
    fixture.testbed.end(Signal::SIGKILL);
    fixture.until_carried(&DIRECT);
    assert_eq!(fixture.metric(1, "posthaste_plan_in_force"), Some(0.0));
    fixture.testbed.more = lasting;
    fixture.testbed.write_config();
    fixture.testbed.start();
    fixture.until_carried(&CHAIN);
    visitors.go();
    open.iter_mut().for_each(Pair::check);
}

// promise: S5
#[test]
fn killed_controller_unnoticed() {
    let mut fixture = Fixture::start(&Settings::of(Family::V4));
    let mut open = opened(&fixture);
    let visitors = Visitors::come(&fixture.network);
    let mut random = Rng::new(7);
    for round in 0..6 {
        // So that there are plans to be kept.
        match round % 2 {
            0 => fixture.lengthen(),
            _ => fixture.shorten(),
        }
        visitors.until_more(random.below(12));
        fixture.testbed.end(Signal::SIGKILL);
        visitors.until_more(random.below(4));
        fixture.testbed.start();
    }
    fixture.until_carried(&CHAIN);
    let epoch = &fixture.following(1)["plan"]["epoch"];
    assert_eq!(*epoch, 1, "nothing was lost");
    visitors.go();
    open.iter_mut().for_each(Pair::check);
}

// promise: S5
#[test]
fn damaged_store_costs_no_flow() {
    let mut fixture = Fixture::start(&Settings::of(Family::V6));
    let mut open = opened(&fixture);
    let visitors = Visitors::come(&fixture.network);
    let file = fixture.testbed.path("store.redb");
    let damages: [fn(&mut Vec<u8>); 3] = [
        |bytes| bytes.truncate(bytes.len() / 2),
        |bytes| bytes[4096..12_288].fill(0x5a),
        |bytes| bytes.fill(0x5a),
    ];
    for damage in damages {
        let before = fixture.epoch();
        fixture.testbed.end(Signal::SIGKILL);
        let mut bytes = fs::read(&file).unwrap();
        damage(&mut bytes);
        fs::write(&file, bytes).unwrap();
        fixture.testbed.start();
        let was_lost = fixture.testbed.log().contains("moved aside");
        until("all follow", || {
            let plan = fixture.testbed.document("/v1/plan");
            plan["followed_by"] == 3 && plan["nodes"] == 3
        });
        let after = fixture.epoch();
        assert!(after > before || !was_lost, "epochs {before}, {after}");
        fixture.until_carried(&CHAIN);
    }
    let aside = fixture.testbed.path("store.redb.broken-1");
    assert!(aside.exists(), "noise is no store");
    visitors.go();
    open.iter_mut().for_each(Pair::check);
}
