// SPDX-License-Identifier: Apache-2.0
//! More than one process that was replaced, and how all of them end.

use nix::sys::signal::Signal;
use nix::unistd::Pid;
use posthaste_lab::network::Family;

use super::Testbed;
use crate::support::{PORT, Pair, counter, expect_reset, listen, until};
use crate::watch::assert_nothing_left;

/// Which processes still have relays, from the status of the last one.
fn replaced(testbed: &Testbed) -> Vec<Pid> {
    let status = testbed.place.node.status().unwrap();
    let each = status["replaced"].as_array().unwrap().iter();
    each.map(|one| Pid::from_raw(one["pid"].as_i64().unwrap().try_into().unwrap()))
        .collect()
}

// promise: F16
#[test]
fn oldest_generation_gives_way() {
    let mut testbed = Testbed::start("");
    let listener = listen(testbed.network.server(), PORT);
    let mut pairs = Vec::new();
    let mut pids = vec![testbed.place.first()];
    for _ in 0..3 {
        pairs.push(Pair::open(&testbed.network, Family::V4, &listener));
        pids.push(testbed.place.upgrade(testbed.host()));
        pairs.iter_mut().for_each(Pair::check);
        assert_eq!(replaced(&testbed), pids[..pids.len() - 1]);
    }
    pairs.push(Pair::open(&testbed.network, Family::V6, &listener));
    testbed.place.upgrade(testbed.host());
    testbed.place.until_ended(pids[0]);
    assert_eq!(replaced(&testbed), pids[1..]);
    let mut oldest = pairs.remove(0);
    expect_reset(&mut oldest.client);
    expect_reset(&mut oldest.server);
    pairs.iter_mut().for_each(Pair::check);
    // In whichever order they end.
    pairs.remove(1).close_client_first();
    testbed.place.until_ended(pids[2]);
    until("one less", || replaced(&testbed) == [pids[1], pids[3]]);
    pairs.iter_mut().for_each(Pair::check);
    pairs.into_iter().for_each(Pair::close_server_first);
    testbed.place.until_ended(pids[1]);
    testbed.place.until_ended(pids[3]);
    let mut last = Pair::open(&testbed.network, Family::V6, &listener);
    last.check();
    assert_eq!(counter(&testbed.place.node, "relays_opened"), 1);
    last.close_client_first();
    testbed.end();
}

// promise: F16
#[test]
fn signal_ends_all() {
    let mut testbed = Testbed::start("[node]\ndrain_timeout = \"1h\"\n");
    let listener = listen(testbed.network.server(), PORT);
    let mut before = Pair::open(&testbed.network, Family::V4, &listener);
    let last = testbed.place.upgrade(testbed.host());
    let mut after = Pair::open(&testbed.network, Family::V6, &listener);
    after.check();
    testbed.place.signal(last, Signal::SIGTERM);
    until("drain", || {
        testbed.place.node.status().unwrap()["state"] == "draining"
    });
    before.check();
    after.check();
    after.close_client_first();
    // The last waits for the first.
    before.check();
    assert!(!super::has_ended(last) && !super::has_ended(testbed.place.first()));
    before.close_client_first();
    testbed.place.until_all_ended();
    assert_nothing_left(testbed.host());
}

// promise: F16
#[test]
fn drain_deadline_of_all() {
    let mut testbed = Testbed::start("[node]\ndrain_timeout = \"100ms\"\n");
    let listener = listen(testbed.network.server(), PORT);
    let before = Pair::open(&testbed.network, Family::V4, &listener);
    let last = testbed.place.upgrade(testbed.host());
    let mut after = Pair::open(&testbed.network, Family::V6, &listener);
    after.check();
    testbed.place.signal(last, Signal::SIGTERM);
    for mut pair in [before, after] {
        expect_reset(&mut pair.client);
        expect_reset(&mut pair.server);
    }
    testbed.place.until_all_ended();
    assert_nothing_left(testbed.host());
}

// promise: F16
#[test]
fn upgrade_deadline_configured() {
    let mut testbed = Testbed::start("[node]\nupgrade_timeout = \"100ms\"\n");
    let listener = listen(testbed.network.server(), PORT);
    let mut pair = Pair::open(&testbed.network, Family::V4, &listener);
    testbed.place.upgrade(testbed.host());
    expect_reset(&mut pair.client);
    expect_reset(&mut pair.server);
    testbed.place.until_ended(testbed.place.first());
    let log = testbed.place.node.log().join("\n");
    assert!(
        log.contains("was replaced\"") && log.contains("deadline_s=0.1"),
        "{log}"
    );
    assert!(log.contains("code=KF"), "{log}");
    testbed.end();
}
