// SPDX-License-Identifier: Apache-2.0
//! The verbs that query and control a running node.

use std::process::Command;

use nix::sys::signal::Signal;
use posthaste_lab::network::Family;
use posthaste_lab::node::Node;
use posthaste_lab::process::Process;
use serde_json::Value;

use crate::payload::{receive, send};
use crate::support::{
    PORT, Pair, binary, counter, expect_reset, line, listen, relay_of, start_relaying, until,
    until_ended,
};
use crate::watch::wait_for_line;

// promise: W2
#[test]
fn relays_list_show_kill() {
    let network = line();
    let listener = listen(network.server(), PORT);
    let node = start_relaying(&network, "");
    for family in Family::ALL {
        let mut pair = Pair::open(&network, family, &listener);
        send(&mut pair.client, 1, 1000).unwrap();
        receive(&mut pair.server, 1, 1000).unwrap();
        send(&mut pair.server, 2, 200_000).unwrap();
        receive(&mut pair.client, 2, 200_000).unwrap();
        let relay = relay_of(&node, pair.client_address()).unwrap();
        assert_eq!(
            relay["server"],
            pair.client.peer_addr().unwrap().to_string()
        );
        let words = ["all", "early", "open"];
        assert_eq!([&relay["rule"], &relay["accept"], &relay["phase"]], words);
        assert_eq!(
            (&relay["bytes_up"], &relay["bytes_down"]),
            (&1000.into(), &200_000.into())
        );
        let id = relay["id"].as_str().unwrap();
        shown(&node, id);
        if family == Family::V4 {
            let killed = node.admin(&format!("relays kill {id}")).unwrap();
            assert_eq!(killed, format!("killed {id}\n"));
        } else {
            node.admin_json(&format!("relays kill {id}")).unwrap();
        }
        expect_reset(&mut pair.client);
        expect_reset(&mut pair.server);
        let line = wait_for_line(&node, &[&format!("id={id} "), "msg=relay"]);
        assert!(
            line.contains("code=KD outcome=killed bytes_up=1000 bytes_down=200000"),
            "{line}"
        );
        for verb in ["show", "kill"] {
            let message = node.admin(&format!("relays {verb} {id}")).unwrap_err();
            assert!(
                message
                    .to_string()
                    .ends_with(&format!("there is no relay {id}")),
                "{message}"
            );
        }
    }
    let none = node.admin_json("relays list").unwrap();
    let empty = serde_json::json!({
        "relays": [], "incomplete": false, "silent_workers": 0, "packet_flows": []
    });
    assert_eq!(none, empty);
}

/// Looks at one relay in both forms.
fn shown(node: &Node, id: &str) {
    let detail = node.admin_json(&format!("relays show {id}")).unwrap();
    assert_eq!(detail["id"], id);
    for side in ["downstream", "upstream"] {
        assert_eq!(detail[side]["state"], "ESTABLISHED", "{detail:#}");
        assert!(detail[side]["send_mss_bytes"].as_u64().unwrap() >= 536);
    }
    assert_eq!(detail["upstream"]["received_bytes"], 200_000);
    let text = node.admin(&format!("relays show {id}")).unwrap();
    for words in [
        id,
        "downstream (client)",
        "upstream (server)",
        "ESTABLISHED",
    ] {
        assert!(text.contains(words), "{words} in {text}");
    }
}

// promise: W1
#[test]
fn status_names_everything() {
    let network = line();
    let node = start_relaying(&network, "[node]\nworkers = 1\n");
    let status = node.status().unwrap();
    assert_eq!(
        (&status["state"], &status["workers"]),
        (&"ready".into(), &1.into())
    );
    assert_eq!(status["config"], node.config_file().display().to_string());
    let mut interfaces: Vec<_> = status["interfaces"].as_array().unwrap().iter().collect();
    interfaces.sort_by_key(|interface| interface["name"].to_string());
    for (interface, name) in interfaces.into_iter().zip(["c0", "s0"]) {
        assert_eq!(
            (&interface["name"], &interface["attached"]),
            (&name.into(), &true.into())
        );
    }
    let text = node.admin("status --all").unwrap();
    for words in [
        "ready",
        "1 workers",
        "interface      c0",
        "interface      s0",
        "relays_opened",
    ] {
        assert!(text.contains(words), "{words} in {text}");
    }
}

/// Lines of the short status, at most.
const LINES_MAX: usize = 10;

/// The short status of the node.
fn summary(node: &Node) -> String {
    let text = node.admin("status").unwrap();
    assert!(text.lines().count() <= LINES_MAX, "{text}");
    text
}

// promise: W8
#[test]
fn status_sentences_every_state() {
    let network = line();
    let host = network.node(0);
    let listener = listen(network.server(), PORT);
    let mut node = start_relaying(&network, "[node]\nworkers = 1\n");
    let text = summary(&node);
    assert!(text.starts_with("posthaste "), "no trouble: {text}");
    assert!(text.contains("is ready and relays on "), "{text}");
    assert!(text.contains("It has relayed nothing yet."), "{text}");

    let mut pairs = Family::ALL.map(|family| Pair::open(&network, family, &listener));
    pairs.iter_mut().for_each(Pair::check);
    let text = summary(&node);
    assert!(text.contains("It has relayed 2 connections"), "{text}");
    assert!(text.contains("2 are open now"), "{text}");
    let [one, other] = pairs;
    one.close_client_first();
    until_ended(&node, "finished", 1);
    assert!(summary(&node).contains("1 is open now"));

    node.write_config("[node]\nwrkers = 1\n[[rule]]\nnme = 1\n")
        .unwrap();
    node.admin("reload").unwrap_err();
    host.ip("link delete c0").unwrap();
    until("word of the interface", || {
        let text = summary(&node);
        text.starts_with("TROUBLE: ") && !text.contains("c0")
    });
    assert!(summary(&node).contains("the last reload FAILED"));

    node.process_mut().signal(Signal::SIGTERM).unwrap();
    until("the drain", || {
        summary(&node).contains("drains, and ends within")
    });
    drop(other);
}

// promise: W2
#[test]
fn list_limit() {
    let network = line();
    let listener = listen(network.server(), PORT);
    let node = start_relaying(&network, "");
    let pairs: Vec<_> = (0..5)
        .map(|_| Pair::open(&network, Family::V4, &listener))
        .collect();
    until("relays", || counter(&node, "relays") == 5);
    let list = node.admin_json("relays list --limit 3").unwrap();
    assert_eq!(list["relays"].as_array().unwrap().len(), 3);
    assert_eq!(list["incomplete"], true);
    // The list has the requested length, and there are no more.
    let list = node.admin_json("relays list --limit 5").unwrap();
    assert_eq!(list["relays"].as_array().unwrap().len(), 5);
    assert_eq!(list["incomplete"], false, "{list}");
    assert_eq!(list["silent_workers"], 0, "{list}");
    for (limit, reports_more) in [(4, true), (5, false), (6, false)] {
        let text = node.admin(&format!("relays list --limit {limit}")).unwrap();
        assert_eq!(
            text.contains("there are more"),
            reports_more,
            "{limit}: {text}"
        );
    }
    let text = node.admin("relays list").unwrap();
    assert_eq!(text.lines().count(), 6, "{text}");
    for pair in pairs {
        assert!(text.contains(&pair.client_address().to_string()), "{text}");
    }
}

// promise: W2
#[test]
fn top_shows_who_moves_bytes() {
    let network = line();
    let listener = listen(network.server(), PORT);
    let node = start_relaying(&network, "");
    let _idle = Pair::open(&network, Family::V4, &listener);
    let mut busy = Pair::open(&network, Family::V6, &listener);
    let client = busy.client_address().to_string();
    let mut command = Command::new(binary());
    command
        .args([
            "top",
            "--count",
            "1",
            "--json",
            "--interval",
            "1",
            "--rows",
            "1",
            "--socket",
        ])
        .arg(node.socket());
    let mut top = Process::spawn("top", command).unwrap();
    while top.ended().unwrap().is_none() {
        send(&mut busy.server, 3, 10_000).unwrap();
        receive(&mut busy.client, 3, 10_000).unwrap();
    }
    let seen: Value = serde_json::from_str(&top.stdout()).unwrap();
    assert_eq!(
        (&seen["relays_open"], &seen["relays"][0]["client"]),
        (&2.into(), &client.into())
    );
    assert!(
        seen["down_bytes_per_second"].as_f64().unwrap() > 0.0,
        "{seen}"
    );
    let text = node.admin("top --interval 0.1").unwrap();
    assert!(text.starts_with("posthaste ready: 2 relays"), "{text}");
}

// promise: H4
#[test]
fn second_node_refused() {
    let network = line();
    let node = start_relaying(&network, "");
    let mut command = network.node(0).command(binary()).unwrap();
    command.arg("node").arg("-c").arg(node.config_file());
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let message = String::from_utf8_lossy(&output.stderr);
    let socket = node.socket().display().to_string();
    assert!(
        message.contains("another node runs here") && message.contains(&socket),
        "{message}"
    );
    // With a socket of its own it is still the same network.
    let message = Node::builder(network.node(0), binary())
        .relaying()
        .start()
        .unwrap_err();
    let message = format!("{message:#}");
    assert!(
        message.contains("another node runs in this network namespace"),
        "{message}"
    );
    assert_eq!(node.status().unwrap()["state"], "ready");
}

// promise: W5
#[test]
fn verbs_without_node() {
    for words in [
        "status",
        "top --count 1",
        "relays list",
        "relays kill 1",
        "drain",
        "reload",
    ] {
        let mut command = Command::new(binary());
        command
            .args(words.split(' '))
            .args(["--socket", "/nowhere/admin.sock"]);
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{words}");
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(
            message.contains("no node answers at /nowhere/admin.sock"),
            "{message}"
        );
    }
}
