// SPDX-License-Identifier: Apache-2.0
//! `setup` and `teardown`: both report what they did, and change nothing the second time.

use posthaste_lab::netns::Namespace;
use posthaste_lab::network::Family;
use serde_json::Value;

use crate::support::{PORT, Pair, binary, counter, line, listen, start_relaying, until};
use crate::watch::{assert_nothing_left, installed};

/// Runs a verb of the program in a namespace, asserts that it succeeds and returns its words.
pub(super) fn run(host: &Namespace, words: &str) -> String {
    let mut command = host.command(binary()).unwrap();
    let output = command.args(words.split(' ')).output().unwrap();
    assert!(output.status.success(), "{words}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

// promise: H3
#[test]
fn repeated_setup_and_teardown() {
    let network = line();
    let host = network.node(0);
    until_links_are_up(host);
    let before = state(host);
    let message = run(host, "setup");
    assert_eq!(message.lines().count(), 4, "{message}");
    // A rule and a route of either family.
    assert_eq!(installed(host).len(), 4, "{:#?}", installed(host));
    assert_eq!(run(host, "setup"), "nothing to do\n");
    assert_eq!(installed(host).len(), 4, "{:#?}", installed(host));
    let message = run(host, "teardown");
    assert_eq!(message.lines().count(), 4, "{message}");
    assert_nothing_left(host);
    assert_eq!(run(host, "teardown"), "nothing to do\n");
    assert_eq!(state(host), before);
}

/// Waits until the kernel has done what it does of itself when links come up.
fn until_links_are_up(host: &Namespace) {
    until("links that are up", || {
        let [v4, v6] = ["-4", "-6"].map(|family| {
            let words = format!("{family} route show table all");
            host.ip_output(&words).unwrap()
        });
        !v4.contains("linkdown") && v6.matches("\nlocal fe80::").count() == 2
    });
}

/// Everything a node might touch that is not its own.
fn state(host: &Namespace) -> Vec<String> {
    let words = [
        "-4 rule",
        "-6 rule",
        "-4 route show table all",
        "-6 route show table all",
    ];
    words.map(|words| host.ip_output(words).unwrap()).into()
}

// promise: H3
#[test]
fn setup_and_teardown_json() {
    let network = line();
    let host = network.node(0);
    let report = |words| serde_json::from_str::<Value>(&run(host, words)).unwrap();
    let list = |report: &Value, key: &str| report[key].as_array().unwrap().len();
    let first = report("setup --json");
    assert_eq!((list(&first, "done"), list(&first, "unchanged")), (4, 0));
    let second = report("setup --json");
    assert_eq!((list(&second, "done"), list(&second, "unchanged")), (0, 4));
    assert_eq!(list(&report("teardown --json"), "done"), 4);
    assert_eq!(list(&report("teardown --json"), "done"), 0);
}

/// What others put there stays, even where it looks like ours.
// promise: H1
#[test]
fn teardown_removes_nothing_of_others() {
    let network = line();
    let host = network.node(0);
    for words in [
        "rule add fwmark 0x10000000/0x10000000 lookup 20117 priority 500",
        "route add local default dev lo table 20117 metric 5",
        "-6 rule add fwmark 0x10000000/0x10000000 lookup 4711",
    ] {
        host.ip_output(words).unwrap();
    }
    until_links_are_up(host);
    let before = state(host);
    run(host, "setup");
    assert_ne!(state(host), before);
    run(host, "teardown");
    assert_eq!(state(host), before);
}

// promise: H3
#[test]
fn teardown_spares_running_node() {
    let network = line();
    let host = network.node(0);
    let listener = listen(network.server(), PORT);
    let node = start_relaying(&network, "");
    for files in [vec![node.config_file()], vec![]] {
        let mut command = host.command(binary()).unwrap();
        command.arg("teardown");
        for file in files {
            command.arg("-c").arg(file);
        }
        let output = command.output().unwrap();
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{message}");
        assert!(message.contains("another node runs"), "{message}");
    }
    for (opened, family) in (1..).zip(Family::ALL) {
        Pair::open(&network, family, &listener).check();
        assert_eq!(counter(&node, "relays_opened"), opened);
    }
}
