// SPDX-License-Identifier: Apache-2.0
//! A node for a while: `posthaste try`.

use std::time::Duration;

use nix::sys::signal::Signal;
use posthaste_lab::link::Link;
use posthaste_lab::network::{Family, Network};
use posthaste_lab::process::Process;
use posthaste_lab::scratch::Scratch;
use serde_json::Value;

use crate::support::{PORT, Pair, binary, listen, network, until};

const MS: Duration = Duration::from_millis(1);

/// `posthaste try` on a network's node, with an admin socket of its own.
struct Trial {
    process: Process,
    files: Scratch,
}

impl Trial {
    fn start(network: &Network, seconds: u32) -> Self {
        let files = Scratch::new().expect("a directory");
        let config = files.path().join("node.toml");
        let socket = files.path().join("admin.sock");
        // Where a BPF file system is mounted, short flows would take the packet path.
        let text = format!(
            "version = 1\n[admin]\nsocket = {socket:?}\n[metrics]\nlisten = \"off\"\n\
             [defaults]\ndata_path = \"socket\"\n"
        );
        std::fs::write(&config, text).expect("the configuration can be written");
        let mut command = network.node(0).command(binary()).expect("a namespace");
        command.args(["try", &seconds.to_string(), "--json", "-c"]);
        command.arg(&config);
        let process = Process::spawn("posthaste try", command).expect("it can be started");
        let trial = Self { process, files };
        until("the node answers", || trial.status().is_some());
        trial
    }

    fn status(&self) -> Option<Value> {
        let mut command = std::process::Command::new(binary());
        command.args(["status", "--json", "--socket"]);
        let output = command.arg(self.files.path().join("admin.sock")).output();
        serde_json::from_slice(&output.ok()?.stdout).ok()
    }

    fn relayed(&self) -> u64 {
        let status = self.status().unwrap_or_default();
        status["counters"]["relays_opened"].as_u64().unwrap_or(0)
    }

    fn signal(&self, signal: Signal) {
        self.process.signal(signal).expect("it runs");
    }
}

fn exchange(network: &Network, listener: &std::net::TcpListener, times: usize) {
    for _ in 0..times {
        for family in Family::ALL {
            let mut pair = Pair::open(network, family, listener);
            pair.check();
            pair.close_client_first();
        }
    }
}

#[test]
fn what_it_did_is_shown() {
    let network = network([Link::delay(20 * MS), Link::delay(20 * MS)]);
    let listener = listen(network.server(), PORT);
    let mut trial = Trial::start(&network, 3600);
    exchange(&network, &listener, 4);
    until("relays", || trial.relayed() == 6);
    trial.signal(Signal::SIGINT);
    let status = trial
        .process
        .wait(Duration::from_secs(30))
        .expect("it ends");
    assert!(status.success(), "{}", trial.process.stderr());
    let outcome: Value = serde_json::from_str(&trial.process.stdout()).expect("JSON");
    assert_eq!(
        (outcome["watched"].as_u64(), outcome["relayed"].as_u64()),
        (Some(2), Some(6))
    );
    let services = outcome["services"].as_array().expect("a list");
    assert_eq!(services.len(), 2, "{outcome}");
    for service in services {
        let ms = |name: &str| service[name].as_f64().expect("a number");
        assert_eq!(service["relayed"], 3);
        assert!(ms("connect_before_ms") > 75.0, "{service}");
        assert!(ms("first_byte_before_ms") > 110.0, "{service}");
        assert!(ms("connect_ms") > 35.0, "{service}");
    }
    exchange(&network, &listener, 1);
}

#[test]
fn open_connections_outlive_it() {
    let network = network([Link::delay(20 * MS), Link::delay(20 * MS)]);
    let listener = listen(network.server(), PORT);
    let mut trial = Trial::start(&network, 3600);
    exchange(&network, &listener, 2);
    let mut pair = Pair::open(&network, Family::V4, &listener);
    pair.check();
    until("it is relayed", || trial.relayed() == 3);
    trial.signal(Signal::SIGTERM);
    until("the node drains", || {
        trial
            .status()
            .is_some_and(|status| status["state"] == "draining")
    });
    exchange(&network, &listener, 1);
    pair.check();
    pair.close_client_first();
    let status = trial
        .process
        .wait(Duration::from_secs(30))
        .expect("it ends");
    assert!(status.success(), "{}", trial.process.stderr());
}

#[test]
fn the_node_ends_with_it() {
    let network = network([Link::delay(20 * MS), Link::delay(20 * MS)]);
    let listener = listen(network.server(), PORT);
    let trial = Trial::start(&network, 3600);
    trial.signal(Signal::SIGKILL);
    until("the node has ended", || trial.status().is_none());
    exchange(&network, &listener, 2);
}
