// SPDX-License-Identifier: Apache-2.0
//! An upgrade that fails changes nothing; a process that dies takes nothing of the others along.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::process::Output;

use nix::sys::signal::Signal;
use posthaste_lab::network::Family;

use super::Site;
use crate::support::{PORT, Pair, counter, expect_reset, listen, start, until};
use crate::watch::{assert_nothing_left, installed};

/// The verb failed, and says why. The node goes on as before.
fn assert_unchanged(site: &Site, output: &Output, words: &[&str]) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    for word in words {
        assert!(said.contains(word), "{word}: {said}");
    }
    assert!(said.contains("goes on"), "{said}");
    let status = site.place.node.status().unwrap();
    assert_eq!(status["pid"], site.place.first().as_raw());
    assert_eq!(
        (&status["state"], &status["replaced"]),
        (&"ready".into(), &serde_json::json!([]))
    );
    relays_more(site, &listen(site.network.server(), PORT));
}

fn relays_more(site: &Site, listener: &TcpListener) {
    let before = counter(&site.place.node, "relays_opened");
    for family in Family::ALL {
        let mut pair = Pair::open(&site.network, family, listener);
        pair.check();
        pair.close_client_first();
    }
    assert_eq!(counter(&site.place.node, "relays_opened"), before + 2);
}

#[test]
fn a_configuration_that_is_wrong_changes_nothing() {
    let site = Site::start("");
    let installed = installed(site.host());
    site.place
        .node
        .write_config("[node]\nwrkers = 2\n")
        .unwrap();
    let output = site.place.try_upgrade(site.host(), &[]);
    assert_unchanged(&site, &output, &["unknown key", "wrkers", ":7:1"]);
    // A file that is right, but not with what there is.
    let taken = listen(site.host(), 8080);
    let address = SocketAddr::new(site.network.node_address(0, Family::V4), 8080);
    let fixed = format!(
        "[[listener]]\nmode = \"fixed\"\naddress = \"{address}\"\ndestination = \"192.0.2.9:80\"\n"
    );
    site.place.node.write_config(&fixed).unwrap();
    let output = site.place.try_upgrade(site.host(), &[]);
    assert_unchanged(&site, &output, &["8080", "in use"]);
    drop(taken);
    site.place
        .node
        .write_config("[transparent]\nmark = 0x4000000\n")
        .unwrap();
    let output = site.place.try_upgrade(site.host(), &[]);
    assert_unchanged(&site, &output, &["transparent.mark", "restart"]);
    let interfaces = "[transparent]\ninterfaces = [\"nowhere0\"]\n";
    site.place.node.write_config(interfaces).unwrap();
    let output = site.place.try_upgrade(site.host(), &[]);
    assert_unchanged(&site, &output, &["nowhere0"]);
    assert_eq!(crate::watch::installed(site.host()), installed);
    site.place.node.write_config("").unwrap();
    site.place.upgrade(site.host());
    site.end();
}

#[test]
fn a_node_that_ends_gives_its_place_to_nobody() {
    let site = Site::start("[node]\ndrain_timeout = \"1h\"\n");
    let listener = listen(site.network.server(), PORT);
    let pair = Pair::open(&site.network, Family::V4, &listener);
    site.place.signal(site.place.first(), Signal::SIGTERM);
    until("drain", || {
        site.place.node.status().unwrap()["state"] == "draining"
    });
    let output = site.place.try_upgrade(site.host(), &[]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("draining"), "{said}");
    pair.close_client_first();
    let mut site = site;
    site.place.until_all_ended();
    assert_nothing_left(site.host());
}

#[test]
fn a_successor_that_dies_leaves_the_relays_of_its_predecessor() {
    let mut site = Site::start("");
    let listener = listen(site.network.server(), PORT);
    let mut kept = Family::ALL.map(|family| Pair::open(&site.network, family, &listener));
    let successor = site.place.upgrade(site.host());
    let mut lost = Pair::open(&site.network, Family::V4, &listener);
    lost.check();
    site.place.signal(successor, Signal::SIGKILL);
    site.place.until_ended(successor);
    expect_reset(&mut lost.client);
    expect_reset(&mut lost.server);
    // New connections go direct, and those of the first process on.
    for family in Family::ALL {
        let mut direct = Pair::open(&site.network, family, &listener);
        direct.check();
        direct.close_client_first();
    }
    kept.iter_mut().for_each(Pair::check);
    assert_eq!(site.place.opened_by(site.place.first()), 2);
    assert!(
        !installed(site.host()).is_empty(),
        "the first needs the rule"
    );
    // As a service manager would: a node starts beside it.
    let mut next = start(&site.network, "");
    let mut relayed = Pair::open(&site.network, Family::V6, &listener);
    relayed.check();
    assert_eq!(counter(&next, "relays_opened"), 1);
    kept.iter_mut().for_each(Pair::check);
    kept.into_iter().for_each(Pair::close_client_first);
    site.place.until_ended(site.place.first());
    relayed.check();
    relayed.close_client_first();
    next.stop(crate::support::SOON).unwrap();
    assert_nothing_left(site.host());
}

#[test]
fn the_last_to_go_cleans_up_even_if_it_was_replaced() {
    let mut site = Site::start("");
    let listener = listen(site.network.server(), PORT);
    let mut kept = Family::ALL.map(|family| Pair::open(&site.network, family, &listener));
    let successor = site.place.upgrade(site.host());
    site.place.signal(successor, Signal::SIGKILL);
    site.place.until_ended(successor);
    kept.iter_mut().for_each(Pair::check);
    kept.into_iter().for_each(Pair::close_server_first);
    site.place.until_ended(site.place.first());
    // The socket file is that of the dead process.
    let _ = fs::remove_file(site.place.node.socket());
    assert_nothing_left(site.host());
}

#[test]
fn a_predecessor_that_dies_takes_its_relays_and_nothing_else() {
    let mut site = Site::start("");
    let listener = listen(site.network.server(), PORT);
    let lost = Family::ALL.map(|family| Pair::open(&site.network, family, &listener));
    site.place.upgrade(site.host());
    let mut kept = Family::ALL.map(|family| Pair::open(&site.network, family, &listener));
    let before = installed(site.host()).len();
    site.place.signal(site.place.first(), Signal::SIGKILL);
    site.place.until_ended(site.place.first());
    for mut pair in lost {
        expect_reset(&mut pair.client);
        expect_reset(&mut pair.server);
    }
    kept.iter_mut().for_each(Pair::check);
    // Its program at either interface has gone, and nothing of the other's.
    until("two programs less", || {
        installed(site.host()).len() == before - 2
    });
    until("nobody replaced", || {
        site.place.node.status().unwrap()["replaced"] == serde_json::json!([])
    });
    relays_more(&site, &listener);
    kept.into_iter().for_each(Pair::close_client_first);
    let _ = fs::remove_file(site.place.aside(site.place.first()));
    site.end();
}
