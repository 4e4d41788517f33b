// SPDX-License-Identifier: Apache-2.0
//! Reading the configuration again: new flows come under the new rules, open relays notice
//! nothing, and a wrong file changes nothing.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use nix::sys::signal::Signal;
use posthaste_lab::network::{Family, Network};
use posthaste_lab::node::Node;
use posthaste_lab::process::wait_until;

use crate::payload::{receive_all, send_piece};
use crate::support::{PORT, Pair, SOON, line, listen, relay_of, start, start_relaying, until};
use crate::watch::{Accounts, wait_for_line};

/// A configuration with one rule.
fn rule(name: &str) -> String {
    format!("[[rule]]\nname = {name:?}\n")
}

// promise: F7
#[test]
fn reload_keeps_relays() {
    let network = line();
    let listener = listen(network.server(), PORT);
    let node = start_relaying(&network, &rule("zero"));
    let accounts = Accounts::of(&node);
    let loads = Family::ALL.map(|family| Load::start(Pair::open(&network, family, &listener)));
    for (round, by_signal) in (1..=10).zip([true, false].into_iter().cycle()) {
        let name = format!("rule-{round}");
        node.write_config(&rule(&name)).unwrap();
        reload(&node, round, by_signal);
        for family in Family::ALL {
            let mut pair = Pair::open(&network, family, &listener);
            pair.check();
            let relay = relay_of(&node, pair.client_address()).unwrap();
            assert_eq!(relay["rule"], name);
            pair.close_client_first();
        }
    }
    for load in loads {
        assert_eq!(relay_of(&node, load.client).unwrap()["rule"], "zero");
        load.finish();
    }
    accounts.settle(&node, &[("finished", 22)]);
}

/// Bytes that flow from server to client without a pause, each of them checked.
struct Load {
    client: SocketAddr,
    done: Arc<AtomicBool>,
    sender: JoinHandle<u64>,
    receiver: JoinHandle<io::Result<u64>>,
}

impl Load {
    fn start(pair: Pair) -> Self {
        const SEED: u64 = 5;
        let client = pair.client_address();
        let done = Arc::new(AtomicBool::new(false));
        let Pair {
            client: mut from,
            server: mut to,
        } = pair;
        let reported = Arc::clone(&done);
        let sender = move || {
            let mut sent = 0;
            while !reported.load(Ordering::Relaxed) {
                sent += send_piece(&mut to, SEED, sent, u64::MAX).unwrap();
            }
            sent
        };
        Self {
            client,
            done,
            sender: thread::spawn(sender),
            receiver: thread::spawn(move || receive_all(&mut from, SEED)),
        }
    }

    /// Ends it; everything that was sent has arrived, and something was.
    fn finish(self) {
        self.done.store(true, Ordering::Relaxed);
        let sent = self.sender.join().unwrap();
        assert_eq!(self.receiver.join().unwrap().unwrap(), sent);
        assert!(sent > 0);
    }
}

/// Has the configuration read for the `count`th time.
fn reload(node: &Node, count: u64, by_signal: bool) {
    if by_signal {
        node.process().signal(Signal::SIGHUP).unwrap();
    } else {
        assert_eq!(node.admin_json("reload").unwrap()["rules"], 1);
    }
    until("reload", || {
        node.status().unwrap()["reloads"]["succeeded"] == count
    });
}

// promise: F7
#[test]
fn a_wrong_file_changes_nothing() {
    let network = line();
    let node = start_relaying(&network, &rule("good"));
    node.write_config("[[rule]]\nname = \"bad\"\nport = [80]\n")
        .unwrap();
    let message = node.admin("reload").unwrap_err().to_string();
    let file = node.config_file().display().to_string();
    assert_mistake_named(&message, &file);
    assert_rule(&network, &node, "good");

    node.process().signal(Signal::SIGHUP).unwrap();
    assert_mistake_named(
        &wait_for_line(&node, &["level=error", "reload failed"]),
        &file,
    );
    let twice = wait_until("a second failure", SOON, || {
        node.status().unwrap()["reloads"]["failed"] == 2
    });
    twice.unwrap();
    let status = node.status().unwrap();
    assert_mistake_named(status["reloads"]["last_error"].as_str().unwrap(), &file);
    assert_rule(&network, &node, "good");

    node.write_config(&rule("better")).unwrap();
    reload(&node, 1, true);
    assert!(node.status().unwrap()["reloads"]["last_error"].is_null());
    assert_rule(&network, &node, "better");
}

fn assert_mistake_named(message: &str, file: &str) {
    for words in [file, ":8:1: ", "unknown key", "did you mean", "ports"] {
        assert!(message.contains(words), "{words} in {message}");
    }
}

/// Asserts that new flows come under a rule.
fn assert_rule(network: &Network, node: &Node, name: &str) {
    let listener = listen(network.server(), PORT);
    for family in Family::ALL {
        let mut pair = Pair::open(network, family, &listener);
        pair.check();
        assert_eq!(relay_of(node, pair.client_address()).unwrap()["rule"], name);
        pair.close_server_first();
    }
}

// promise: F7
#[test]
fn restart_keys_named() {
    let network = line();
    let node = start(&network, "[node]\nworkers = 1\n");
    node.write_config("[node]\nworkers = 2\nrelays_max = 900\n")
        .unwrap();
    let report = node.admin_json("reload").unwrap();
    assert_eq!(report["needs_restart"], serde_json::json!(["node.workers"]));
    assert_eq!(node.status().unwrap()["workers"], 1);
}
