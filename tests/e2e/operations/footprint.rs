// SPDX-License-Identifier: Apache-2.0
//! What a node changes on its host: its own rules and routes, which it keeps in place, and
//! nothing else.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use posthaste_lab::netns::Namespace;
use posthaste_lab::network::Family;

use crate::support::{
    PORT, Pair, SOON, counter, firewall, firewall_text, line, listen, start, start_relaying, until,
};
use crate::watch::{assert_nothing_left, installed, wait_for_line};

/// Another program flushes the host's rules, as some network managers do when they start.
// promise: F10
#[test]
fn removed_rules_restored() {
    let network = line();
    let host = network.node(0);
    let listener = listen(network.server(), PORT);
    let mut node = start_relaying(&network, "");
    let mut open = Family::ALL.map(|family| Pair::open(&network, family, &listener));
    for round in 1..=3 {
        for words in [
            "-4 route flush table 20117",
            "-6 route flush table 20117",
            "-4 rule del fwmark 0x10000000/0x10000000",
            "-6 rule del fwmark 0x10000000/0x10000000",
        ] {
            host.ip_output(words).unwrap();
        }
        until("rules and routes", || installed(host).len() == 6);
        open.iter_mut().for_each(Pair::check);
        for family in Family::ALL {
            Pair::open(&network, family, &listener).check();
        }
        assert_eq!(counter(&node, "relays_opened"), 2 + 2 * round);
    }
    wait_for_line(
        &node,
        &["level=warn", "our routing rule or route was removed"],
    );
    drop(open);
    assert_eq!(node.stop(SOON).unwrap().code(), Some(0));
    assert_nothing_left(host);
}

// promise: H2
#[test]
fn no_sysctl_no_firewall_change() {
    let network = line();
    let host = network.node(0);
    let listener = listen(network.server(), PORT);
    firewall(host, "operators", &[("input", "tcp dport 1 drop")]);
    let state = || (settings(host), firewall_text(host, "operators"));
    let before = state();
    let mut node = start(&network, "");
    for family in Family::ALL {
        Pair::open(&network, family, &listener).check();
    }
    assert_same(&before, &state());
    assert_eq!(node.stop(SOON).unwrap().code(), Some(0));
    assert_same(&before, &state());
}

type State = (BTreeMap<String, String>, String);

fn assert_same(before: &State, now: &State) {
    for (name, value) in &now.0 {
        assert_eq!(before.0.get(name), Some(value), "{name}");
    }
    assert_eq!((before.0.len(), &before.1), (now.0.len(), &now.1));
}

/// The settings of a host's network that can be read, by name.
fn settings(host: &Namespace) -> BTreeMap<String, String> {
    host.run_in(|| {
        let mut all = BTreeMap::new();
        gather(Path::new("/proc/sys/net"), &mut all);
        // Not a setting: how many connections are tracked now.
        all.remove("/proc/sys/net/netfilter/nf_conntrack_count");
        // Nor these: what all nodes of the machine have registered.
        for list in ["allowed", "available"] {
            all.remove(&format!("/proc/sys/net/ipv4/tcp_{list}_congestion_control"));
        }
        all
    })
}

fn gather(directory: &Path, all: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(directory).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            gather(&path, all);
        } else if let Ok(value) = fs::read_to_string(&path) {
            all.insert(path.display().to_string(), value);
        }
    }
}
