// SPDX-License-Identifier: Apache-2.0
//! A node among what hosts may be like: their settings, firewalls, devices and older connections.

use std::net::SocketAddr;
use std::time::Duration;

use posthaste_lab::link::Link;
use posthaste_lab::netns::Namespace;
use posthaste_lab::network::{Family, Network};
use posthaste_lab::node::Node;
use posthaste_lab::scratch::Scratch;
use posthaste_lab::transfer::{Request, fetch};
use serde_json::Value;

use crate::support::{
    MODES_BY_PORT, PORT, Pair, SOON, binary, counter, deliver, dial, each_mode, firewall,
    firewall_script, line, listen, network, serve_at, start_relaying, until_counter, until_ended,
};

/// Opens a connection of each family to a port and sends something each way.
fn connect_each(network: &Network, port: u16) {
    let listener = listen(network.server(), port);
    for family in Family::ALL {
        let mut pair = Pair::open(network, family, &listener);
        pair.check();
        pair.close_client_first();
    }
}

/// Fetches much from a port over each family.
fn transfer_each(network: &Network, port: u16) {
    let _server = serve_at(network, port);
    for family in Family::ALL {
        let request = Request::new(network.server_address(family), port, 1_000_000);
        fetch(network.client(), &request).unwrap_or_else(|error| panic!("{family}: {error:#}"));
    }
}

/// The report of `posthaste doctor` about a host: whether it passes, and its findings.
pub(crate) fn doctor(host: &Namespace) -> (bool, Value) {
    doctor_for(host, "")
}

/// The same for a node with this configuration.
pub(crate) fn doctor_for(host: &Namespace, config: &str) -> (bool, Value) {
    let directory = Scratch::new().expect("a directory for the configuration");
    let file = directory.path().join("node.toml");
    std::fs::write(&file, format!("version = 1\n{config}")).expect("a file can be written");
    let mut command = host.command(binary()).expect("the namespace is open");
    let output = command.args(["doctor", "--json", "-c"]).arg(&file).output();
    let output = output.expect("the program can be run");
    let answer = serde_json::from_slice(&output.stdout).expect("JSON");
    (output.status.success(), answer)
}

/// The findings of one check that are not "ok": each its level, and its words with the fix.
pub(crate) fn complaints(answer: &Value, check: &str) -> Vec<(String, String)> {
    let findings = answer["findings"].as_array().expect("a list of findings");
    let bad = findings
        .iter()
        .filter(|finding| finding["check"] == check && finding["level"] != "ok");
    let text = |finding: &Value, key: &str| finding[key].as_str().unwrap_or_default().to_owned();
    bad.map(|finding| {
        let words = text(finding, "what") + " " + &text(finding, "fix");
        (text(finding, "level"), words)
    })
    .collect()
}

// promise: T12
#[test]
fn syn_cookies_on_node() {
    let network = line();
    network
        .node(0)
        .sysctl("net.ipv4.tcp_syncookies", "2")
        .unwrap();
    let node = start_relaying(&network, &each_mode());
    for (turn, (mode, port)) in (1..).zip(MODES_BY_PORT) {
        for _ in 0..3 {
            connect_each(&network, port);
        }
        until_ended(&node, "finished", 6 * turn);
        assert_eq!(counter(&node, "cookies"), 6 * turn, "{mode}");
        assert_eq!(counter(&node, mode), 6, "{mode}");
    }
    until_counter(&node, "half_open", 0);
}

// promise: T12
#[test]
fn reverse_path_filters_accept() {
    let network = line();
    for filter in ["1", "2"] {
        let key = "net.ipv4.conf.all.rp_filter";
        network.node(0).sysctl(key, filter).unwrap();
        let node = start_relaying(&network, &each_mode());
        for (_, port) in MODES_BY_PORT {
            connect_each(&network, port);
        }
        until_ended(&node, "finished", 6);
    }
}

// promise: H8
#[test]
fn doctor_finds_dropping_settings() {
    let network = line();
    let host = network.node(0);
    let set = |key: &str, value: &str| {
        let key = format!("net.ipv4.conf.all.{key}");
        host.sysctl(&key, value).expect("a namespace has its own");
    };
    let (content, answer) = doctor(host);
    assert!(content, "{answer:#}");
    assert_eq!(complaints(&answer, "reverse path"), []);
    set("src_valid_mark", "1");
    for filter in ["1", "2"] {
        set("rp_filter", filter);
        let (content, answer) = doctor(host);
        assert!(!content);
        let complaints = complaints(&answer, "reverse path");
        assert!(!complaints.is_empty(), "{answer:#}");
        for (level, words) in complaints {
            assert_eq!(level, "fail", "{words}");
            assert!(words.contains("src_valid_mark=0"), "the fix: {words}");
        }
    }
    set("rp_filter", "0");
    assert!(!doctor(host).0, "accept_local is needed");
    set("accept_local", "1");
    let (content, answer) = doctor(host);
    assert!(content, "{answer:#}");
    // It is right: so it works.
    let node = start_relaying(&network, "");
    connect_each(&network, PORT);
    until_ended(&node, "finished", 2);
}

/// Drops what connection tracking calls invalid, as most firewalls do.
const NO_INVALID: [(&str, &str); 3] = [
    ("input", "ct state invalid drop"),
    ("forward", "ct state invalid drop"),
    ("output", "ct state invalid drop"),
];

// promise: H8
#[test]
fn connection_tracking_first_fix() {
    let network = line();
    let host = network.node(0);
    firewall(host, "guard", &NO_INVALID);
    // Something to track.
    connect_each(&network, PORT);
    assert_eq!(complaints(&doctor(host).1, "conntrack"), []);
    let vouched = "[defaults]\nobserve = false\n";
    let (_, answer) = doctor_for(host, vouched);
    let found = complaints(&answer, "conntrack");
    assert_eq!(found.len(), 1, "{answer:#}");
    let (level, words) = &found[0];
    assert_eq!(level, "warn");
    let setting = "net.netfilter.nf_conntrack_tcp_be_liberal";
    assert!(words.contains(&format!("{setting}=1")), "{words}");
    assert!(words.contains("notrack"), "{words}");
    host.sysctl(setting, "1").unwrap();
    assert_eq!(complaints(&doctor_for(host, vouched).1, "conntrack"), []);
    transfers_in_all_modes(&network);
}

// promise: H8
#[test]
fn connection_tracking_second_fix() {
    let network = line();
    let host = network.node(0);
    firewall(host, "guard", &NO_INVALID);
    // As in docs/troubleshooting.md.
    let recipe = "table inet posthaste_notrack {
        chain pre {
            type filter hook prerouting priority raw;
            meta mark and 0x10000000 != 0 notrack
        }
        chain out {
            type filter hook output priority raw;
            meta mark and 0x20000000 != 0 notrack
        }
    }";
    firewall_script(host, recipe);
    transfers_in_all_modes(&network);
}

fn transfers_in_all_modes(network: &Network) {
    let node = start_relaying(network, &each_mode());
    for (mode, port) in MODES_BY_PORT {
        transfer_each(network, port);
        assert_eq!(counter(&node, mode), 2);
    }
    until_ended(&node, "finished", 6);
}

// promise: T9
#[test]
fn older_connection_continues() {
    let network = line();
    let listener = listen(network.server(), PORT);
    for stop in [Node::kill, |node: &mut Node| node.stop(SOON).map(drop)] {
        let mut pairs = Family::ALL.map(|family| Pair::open(&network, family, &listener));
        pairs.iter_mut().for_each(Pair::check);
        let mut node = start_relaying(&network, "");
        pairs.iter_mut().for_each(Pair::check);
        for Pair { client, server } in &mut pairs {
            deliver(client, server, &[1; 50_000]);
            deliver(server, client, &[2; 50_000]);
        }
        assert_eq!(counter(&node, "relays_opened"), 0);
        stop(&mut node).expect("the node ends");
        pairs.iter_mut().for_each(Pair::check);
        pairs.into_iter().for_each(Pair::close_client_first);
    }
}

// promise: T14
#[test]
fn mixed_link_layers() {
    let (cable, tunnel) = (Link::Veth, Link::delay(Duration::from_millis(1)));
    let mixtures = [
        [cable.clone(), cable.clone()],
        [tunnel.clone(), tunnel.clone()],
        [cable.clone(), tunnel.clone()],
        [tunnel, cable],
    ];
    for links in mixtures {
        let what = format!("{links:?}");
        let network = network(links);
        let node = start_relaying(&network, &each_mode());
        for (mode, port) in MODES_BY_PORT {
            for _ in 0..3 {
                connect_each(&network, port);
            }
            transfer_each(&network, port);
            assert_eq!(counter(&node, mode), 8, "{mode} {what}");
        }
        until_ended(&node, "finished", 24);
        assert_eq!(counter(&node, "frames_lost"), 0, "{what}");
    }
}

// promise: T14
#[test]
fn client_and_server_swapped_sides() {
    let network = line();
    let node = start_relaying(&network, &each_mode());
    for (mode, port) in MODES_BY_PORT {
        let listener = listen(network.client(), port);
        for family in Family::ALL {
            let to = SocketAddr::new(network.client_address(family), port);
            let mut pair = Pair::of(dial(network.server(), to), &listener);
            assert_eq!(pair.seen_by_server(), pair.client_address());
            pair.check();
            pair.close_server_first();
        }
        assert_eq!(counter(&node, mode), 2);
    }
    until_ended(&node, "finished", 6);
}

// promise: T4
#[test]
fn translating_host_own_address() {
    let network = line();
    let masquerade = "table inet translation {
        chain out {
            type nat hook postrouting priority srcnat;
            oifname s0 masquerade
        }
    }";
    firewall_script(network.node(0), masquerade);
    let config = format!("[defaults]\nsource_address = \"node\"\n{}", each_mode());
    let node = start_relaying(&network, &config);
    for (mode, port) in MODES_BY_PORT {
        let listener = listen(network.server(), port);
        for (family, own) in Family::ALL.into_iter().zip(["10.0.1.1", "fd00:0:0:1::1"]) {
            let mut pair = Pair::open(&network, family, &listener);
            pair.check();
            assert_eq!(pair.seen_by_server().ip().to_string(), own, "{mode}");
            pair.close_client_first();
        }
        assert_eq!(counter(&node, mode), 2);
    }
    until_ended(&node, "finished", 6);
}
