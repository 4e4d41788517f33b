// SPDX-License-Identifier: Apache-2.0
//! An upgrade that fails changes nothing; a process that dies takes nothing of the others along.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::MetadataExt;
use std::process::Output;

use nix::sys::signal::Signal;
use posthaste_lab::network::Family;
use socket2::{Domain, SockAddr, Socket, Type};

use super::Testbed;
use crate::support::{PORT, Pair, counter, expect_reset, listen, start_relaying, until};
use crate::watch::{assert_nothing_left, installed};

/// The verb failed, and reports why. The node continues as before.
fn assert_unchanged(testbed: &Testbed, output: &Output, words: &[&str]) {
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    for word in words {
        assert!(message.contains(word), "{word}: {message}");
    }
    assert!(message.contains("goes on"), "{message}");
    let status = testbed.place.node.status().unwrap();
    assert_eq!(status["pid"], testbed.place.first().as_raw());
    assert_eq!(
        (&status["state"], &status["replaced"]),
        (&"ready".into(), &serde_json::json!([]))
    );
    relays_more(testbed, &listen(testbed.network.server(), PORT));
}

fn relays_more(testbed: &Testbed, listener: &TcpListener) {
    let before = counter(&testbed.place.node, "relays_opened");
    for family in Family::ALL {
        let mut pair = Pair::open(&testbed.network, family, listener);
        pair.check();
        pair.close_client_first();
    }
    assert_eq!(counter(&testbed.place.node, "relays_opened"), before + 2);
}

// promise: F15
#[test]
fn wrong_configuration_changes_nothing() {
    let testbed = Testbed::start("");
    let installed = installed(testbed.host());
    testbed
        .place
        .node
        .write_config("[node]\nwrkers = 2\n")
        .unwrap();
    let output = testbed.place.try_upgrade(testbed.host(), &[]);
    assert_unchanged(&testbed, &output, &["unknown key", "wrkers", ":7:1"]);
    // A file that is right, but not with what there is.
    let taken = listen(testbed.host(), 8080);
    let address = SocketAddr::new(testbed.network.node_address(0, Family::V4), 8080);
    let fixed = format!(
        "[[listener]]\nmode = \"fixed\"\naddress = \"{address}\"\ndestination = \"192.0.2.9:80\"\n"
    );
    testbed.place.node.write_config(&fixed).unwrap();
    let output = testbed.place.try_upgrade(testbed.host(), &[]);
    assert_unchanged(&testbed, &output, &["8080", "in use"]);
    drop(taken);
    testbed
        .place
        .node
        .write_config("[transparent]\nmark = 0x4000000\n")
        .unwrap();
    let output = testbed.place.try_upgrade(testbed.host(), &[]);
    assert_unchanged(&testbed, &output, &["transparent.mark", "restart"]);
    let interfaces = "[transparent]\ninterfaces = [\"nowhere0\"]\n";
    testbed.place.node.write_config(interfaces).unwrap();
    let output = testbed.place.try_upgrade(testbed.host(), &[]);
    assert_unchanged(&testbed, &output, &["nowhere0"]);
    assert_eq!(crate::watch::installed(testbed.host()), installed);
    testbed.place.node.write_config("").unwrap();
    testbed.place.upgrade(testbed.host());
    testbed.end();
}

// promise: F15
#[test]
fn another_protocol_needs_a_restart() {
    let address = "127.0.0.1:8080";
    let fixed = |multipath: bool| {
        format!(
            "[[listener]]\nmode = \"fixed\"\naddress = \"{address}\"\n\
             destination = \"192.0.2.9:80\"\nmultipath = {multipath}\n"
        )
    };
    for before in [false, true] {
        let testbed = Testbed::start(&fixed(before));
        let config = fixed(!before);
        testbed.place.node.write_config(&config).unwrap();
        let output = testbed.place.try_upgrade(testbed.host(), &[]);
        assert_unchanged(
            &testbed,
            &output,
            &[address, "multipath changed", "restart"],
        );
        testbed.end();
    }
}

// promise: F15
#[test]
fn ending_node_refuses_successor() {
    let testbed = Testbed::start("[node]\ndrain_timeout = \"1h\"\n");
    let listener = listen(testbed.network.server(), PORT);
    let pair = Pair::open(&testbed.network, Family::V4, &listener);
    testbed.place.signal(testbed.place.first(), Signal::SIGTERM);
    until("drain", || {
        testbed.place.node.status().unwrap()["state"] == "draining"
    });
    let output = testbed.place.try_upgrade(testbed.host(), &[]);
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(message.contains("draining"), "{message}");
    pair.close_client_first();
    let mut testbed = testbed;
    testbed.place.until_all_ended();
    assert_nothing_left(testbed.host());
}

// promise: F15
#[test]
fn dead_successor_spares_predecessor() {
    let mut testbed = Testbed::start("");
    let listener = listen(testbed.network.server(), PORT);
    let mut kept = Family::ALL.map(|family| Pair::open(&testbed.network, family, &listener));
    let successor = testbed.place.upgrade(testbed.host());
    let mut lost = Pair::open(&testbed.network, Family::V4, &listener);
    lost.check();
    testbed.place.signal(successor, Signal::SIGKILL);
    testbed.place.until_ended(successor);
    expect_reset(&mut lost.client);
    expect_reset(&mut lost.server);
    // New connections go direct, and those of the first process on.
    for family in Family::ALL {
        let mut direct = Pair::open(&testbed.network, family, &listener);
        direct.check();
        direct.close_client_first();
    }
    kept.iter_mut().for_each(Pair::check);
    assert_eq!(testbed.place.opened_by(testbed.place.first()), 2);
    assert!(
        !installed(testbed.host()).is_empty(),
        "the first needs the rule"
    );
    // As a service manager would: a node starts beside it.
    let mut next = start_relaying(&testbed.network, "");
    let mut relayed = Pair::open(&testbed.network, Family::V6, &listener);
    relayed.check();
    assert_eq!(counter(&next, "relays_opened"), 1);
    kept.iter_mut().for_each(Pair::check);
    kept.into_iter().for_each(Pair::close_client_first);
    testbed.place.until_ended(testbed.place.first());
    relayed.check();
    relayed.close_client_first();
    next.stop(crate::support::SOON).unwrap();
    assert_nothing_left(testbed.host());
}

// promise: F15
#[test]
fn last_process_cleans_up() {
    let mut testbed = Testbed::start("");
    let listener = listen(testbed.network.server(), PORT);
    let mut kept = Family::ALL.map(|family| Pair::open(&testbed.network, family, &listener));
    let successor = testbed.place.upgrade(testbed.host());
    testbed.place.signal(successor, Signal::SIGKILL);
    testbed.place.until_ended(successor);
    kept.iter_mut().for_each(Pair::check);
    kept.into_iter().for_each(Pair::close_server_first);
    testbed.place.until_ended(testbed.place.first());
    // The socket file is that of the dead process.
    let _ = fs::remove_file(testbed.place.node.socket());
    assert_nothing_left(testbed.host());
}

// promise: F15
#[test]
fn dead_predecessor_takes_own_relays() {
    let mut testbed = Testbed::start("");
    let listener = listen(testbed.network.server(), PORT);
    let lost = Family::ALL.map(|family| Pair::open(&testbed.network, family, &listener));
    testbed.place.upgrade(testbed.host());
    let mut kept = Family::ALL.map(|family| Pair::open(&testbed.network, family, &listener));
    let before = installed(testbed.host()).len();
    testbed.place.signal(testbed.place.first(), Signal::SIGKILL);
    testbed.place.until_ended(testbed.place.first());
    for mut pair in lost {
        expect_reset(&mut pair.client);
        expect_reset(&mut pair.server);
    }
    kept.iter_mut().for_each(Pair::check);
    // Its program is removed from both interfaces, and nothing of the other's.
    until("two programs less", || {
        installed(testbed.host()).len() == before - 2
    });
    until("no replaced process", || {
        testbed.place.node.status().unwrap()["replaced"] == serde_json::json!([])
    });
    relays_more(&testbed, &listener);
    kept.into_iter().for_each(Pair::close_client_first);
    let _ = fs::remove_file(testbed.place.aside(testbed.place.first()));
    testbed.end();
}

// promise: F15
/// Of two upgrades at once one is told to wait, and the other one is not disturbed.
#[test]
fn second_upgrade_at_once_is_refused() {
    let testbed = Testbed::start("");
    // The first one has asked for the place, and is not ready yet.
    let first = testbed.host().run_in(|| {
        let first = Socket::new(Domain::UNIX, Type::SEQPACKET, None).unwrap();
        let namespace = fs::metadata("/proc/thread-self/ns/net").unwrap().ino();
        let path = format!("/run/posthaste/netns-{namespace}.handover");
        first.connect(&SockAddr::unix(path).unwrap()).unwrap();
        first
    });
    let output = testbed.place.try_upgrade(testbed.host(), &[]);
    assert_unchanged(&testbed, &output, &["another upgrade is under way"]);
    drop(first);
    // Until the node has seen that.
    until("the place is free", || {
        let output = testbed.place.try_upgrade(testbed.host(), &[]);
        output.status.success()
    });
    testbed.end();
}
