// SPDX-License-Identifier: Apache-2.0
//! The features of a node under the restrictions of its unit: what a restriction forbids shows as an
//! error in the log, or as a flow that is not carried as configured.

use std::fs;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::thread;

use posthaste_lab::link::Link;
use posthaste_lab::machine::{Machine, Release};
use posthaste_lab::network::{Family, Network};

use super::{allow_many_starts, boot_all, carry_out, installed, journal, status, until_active};
use crate::bypass::{Transfer, open_limited};
use crate::requests::{ALLOWED, KEY, listener};
use crate::support::{PORT, Pair, listen, network, until};

/// Something that a node may do with a flow: what its configuration has for it, and the counter that shows
/// it.
struct Feature {
    /// In the rule.
    rule: &'static str,
    /// In the peer.
    peer: &'static str,
    /// In the peer's listener.
    listener: &'static str,
    /// The group of the status, and the name.
    counter: (&'static str, &'static str),
}

const HOPS: [Feature; 4] = [
    Feature {
        rule: "",
        peer: "rate_limit = \"100Mbit/s\"\npool_max = 4\n",
        listener: "",
        counter: ("counters", "hops_warm"),
    },
    Feature {
        rule: "",
        peer: "header_in = \"syn-option\"\npool_max = 0\n",
        listener: "",
        counter: ("counters", "syn_options_sent"),
    },
    Feature {
        rule: "",
        peer: "transport = \"mptcp\"\n",
        listener: "multipath = true\n",
        counter: ("counters", "relays_opened"),
    },
    Feature {
        rule: "",
        peer: "transport = \"quic\"\n",
        listener: "",
        counter: ("counters", "hops_quic"),
    },
];

/// Without a next node.
const BYPASS: Feature = Feature {
    rule: "bypass = \"always\"\n",
    peer: "",
    listener: "",
    counter: ("ended", "bypassed"),
};

impl Feature {
    fn config(&self, network: &Network, node: usize) -> String {
        let (own, other) = (node, 1 - node);
        let [here, there] = [own, other].map(|node| listener(network, node, Family::V4));
        let mut text = format!(
            "version = 1\n[node]\nid = {id}\nupgrade_timeout = \"1s\"\n{ALLOWED}\
             [measure]\nreflector = [\"{ip}:862\"]\n\
             [defaults]\nobserve = false\ndata_path = \"socket\"\n{rule}\
             [defaults.upstream]\ncongestion = \"posthaste\"\ninitial_window = 20\n\
             [[listener]]\naddress = \"{here}\"\n{of_listener}\
             [[peer]]\nname = \"other\"\nid = {other_id}\naddress = \"{there}\"\nkey = \"{KEY}\"\n\
             {peer}",
            ip = here.ip(),
            id = own + 1,
            other_id = other + 1,
            rule = self.rule,
            of_listener = self.listener,
            peer = self.peer,
        );
        if node == 0 && !self.peer.is_empty() {
            text += "[[chain]]\nname = \"two\"\nnodes = [\"other\"]\n\
                     [[route]]\nchains = [\"two\"]\ndirect = false\n";
        }
        text
    }

    /// Has both nodes do it, by a restart.
    fn start(&self, network: &Network, machines: &[Machine]) {
        thread::scope(|scope| {
            for (node, machine) in machines.iter().enumerate() {
                scope.spawn(move || self.start_one(network, (node, machine)));
            }
        });
    }

    fn start_one(&self, network: &Network, (node, machine): (usize, &Machine)) {
        let file = machine.path("/etc/posthaste/node.toml");
        fs::write(file, self.config(network, node)).unwrap();
        // It has a key.
        let keep = "chgrp posthaste /etc/posthaste/node.toml && chmod 640 /etc/posthaste/node.toml";
        carry_out(machine, keep);
        carry_out(machine, "systemctl restart posthaste");
        until_active(machine);
    }

    fn is_shown(&self, machine: &Machine) -> bool {
        let (group, name) = self.counter;
        status(machine)[group][name].as_u64() > Some(0)
    }
}

/// The page of metrics, from the host itself.
fn metrics(network: &Network) -> String {
    let fetched = network.node(0).run_in(|| -> io::Result<String> {
        let mut stream = TcpStream::connect("127.0.0.1:9464")?;
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    });
    fetched.unwrap()
}

/// Log lines that name what could not be done.
fn complaints(machine: &Machine) -> Vec<String> {
    let mut lines = journal(machine, 7);
    lines.retain(|line| line.contains(" level=error ") || line.contains(" error="));
    lines
}

fn features_under_the_unit(release: Release) {
    let network = network([Link::Veth, Link::Veth, Link::Veth]);
    let machines = boot_all(&[network.node(0), network.node(1)], release, installed());
    for machine in &machines {
        carry_out(machine, "systemd-sysusers");
        allow_many_starts(machine);
    }
    let listener = listen(network.server(), PORT);
    for feature in &HOPS {
        feature.start(&network, &machines);
        until(feature.peer, || {
            let mut pair = Pair::open(&network, Family::V4, &listener);
            pair.check();
            pair.close_client_first();
            feature.is_shown(&machines[0])
        });
    }
    assert!(metrics(&network).contains("\nposthaste_"));
    BYPASS.start(&network, &machines);
    let pair = open_limited(&network, Family::V4, &listener);
    let transfer = Transfer::start(&pair);
    until("hand-over", || BYPASS.is_shown(&machines[0]));
    // The flow has no socket any more: it outlives the node, by its pins.
    carry_out(&machines[0], "systemctl restart posthaste");
    transfer.finish();
    for machine in &machines {
        assert_eq!(complaints(machine), [""; 0]);
    }
}

// promise: W7
#[test]
fn features_under_the_unit_of_systemd_252() {
    features_under_the_unit(Release::Bookworm);
}

// promise: W7
#[test]
fn features_under_the_unit_of_systemd_257() {
    features_under_the_unit(Release::Trixie);
}
