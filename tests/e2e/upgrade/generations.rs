// SPDX-License-Identifier: Apache-2.0
//! More than one process that was replaced, and how all of them end.

use nix::sys::signal::Signal;
use nix::unistd::Pid;
use posthaste_lab::network::Family;

use super::Site;
use crate::support::{PORT, Pair, counter, expect_reset, listen, until};
use crate::watch::assert_nothing_left;

/// Which processes still have relays, by what the last one says.
fn replaced(site: &Site) -> Vec<Pid> {
    let status = site.place.node.status().unwrap();
    let each = status["replaced"].as_array().unwrap().iter();
    each.map(|one| Pid::from_raw(one["pid"].as_i64().unwrap().try_into().unwrap()))
        .collect()
}

#[test]
fn each_keeps_its_own_and_the_oldest_gives_way() {
    let mut site = Site::start("");
    let listener = listen(site.network.server(), PORT);
    let mut pairs = Vec::new();
    let mut pids = vec![site.place.first()];
    for _ in 0..3 {
        pairs.push(Pair::open(&site.network, Family::V4, &listener));
        pids.push(site.place.upgrade(site.host()));
        pairs.iter_mut().for_each(Pair::check);
        assert_eq!(replaced(&site), pids[..pids.len() - 1]);
    }
    pairs.push(Pair::open(&site.network, Family::V6, &listener));
    site.place.upgrade(site.host());
    site.place.until_ended(pids[0]);
    assert_eq!(replaced(&site), pids[1..]);
    let mut oldest = pairs.remove(0);
    expect_reset(&mut oldest.client);
    expect_reset(&mut oldest.server);
    pairs.iter_mut().for_each(Pair::check);
    // In whichever order they end.
    pairs.remove(1).close_client_first();
    site.place.until_ended(pids[2]);
    until("one less", || replaced(&site) == [pids[1], pids[3]]);
    pairs.iter_mut().for_each(Pair::check);
    pairs.into_iter().for_each(Pair::close_server_first);
    site.place.until_ended(pids[1]);
    site.place.until_ended(pids[3]);
    let mut last = Pair::open(&site.network, Family::V6, &listener);
    last.check();
    assert_eq!(counter(&site.place.node, "relays_opened"), 1);
    last.close_client_first();
    site.end();
}

#[test]
fn a_signal_to_the_last_ends_all_when_their_relays_have_ended() {
    let mut site = Site::start("[node]\ndrain_timeout = \"1h\"\n");
    let listener = listen(site.network.server(), PORT);
    let mut before = Pair::open(&site.network, Family::V4, &listener);
    let last = site.place.upgrade(site.host());
    let mut after = Pair::open(&site.network, Family::V6, &listener);
    after.check();
    site.place.signal(last, Signal::SIGTERM);
    until("drain", || {
        site.place.node.status().unwrap()["state"] == "draining"
    });
    before.check();
    after.check();
    after.close_client_first();
    // The last waits for the first.
    before.check();
    assert!(!super::has_ended(last) && !super::has_ended(site.place.first()));
    before.close_client_first();
    site.place.until_all_ended();
    assert_nothing_left(site.host());
}

#[test]
fn the_deadline_of_a_drain_is_that_of_all() {
    let mut site = Site::start("[node]\ndrain_timeout = \"100ms\"\n");
    let listener = listen(site.network.server(), PORT);
    let before = Pair::open(&site.network, Family::V4, &listener);
    let last = site.place.upgrade(site.host());
    let mut after = Pair::open(&site.network, Family::V6, &listener);
    after.check();
    site.place.signal(last, Signal::SIGTERM);
    for mut pair in [before, after] {
        expect_reset(&mut pair.client);
        expect_reset(&mut pair.server);
    }
    site.place.until_all_ended();
    assert_nothing_left(site.host());
}

#[test]
fn the_deadline_of_an_upgrade_is_the_configurations() {
    let mut site = Site::start("[node]\nupgrade_timeout = \"100ms\"\n");
    let listener = listen(site.network.server(), PORT);
    let mut pair = Pair::open(&site.network, Family::V4, &listener);
    site.place.upgrade(site.host());
    expect_reset(&mut pair.client);
    expect_reset(&mut pair.server);
    site.place.until_ended(site.place.first());
    let log = site.place.node.log().join("\n");
    assert!(
        log.contains("msg=replaced") && log.contains("deadline_s=0.1"),
        "{log}"
    );
    assert!(log.contains("code=KF"), "{log}");
    site.end();
}
