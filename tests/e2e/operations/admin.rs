// SPDX-License-Identifier: Apache-2.0
//! Watching a node: the admin socket's verbs, metrics, the log, systemd.

use std::collections::BTreeMap;
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;
use posthaste_lab::network::Family;
use posthaste_lab::node::Node;
use posthaste_lab::process::Process;
use posthaste_lab::scratch::Scratch;
use serde_json::Value;

use super::{METRICS, wrapper};
use crate::payload::{receive, send};
use crate::support::{
    PORT, Pair, SOON, accepting, binary, counter, dial, expect_reset, line, listen, relay_of,
    reset, start, until, until_ended,
};
use crate::watch::{Accounts, http_get, relay_lines, wait_for_line};

#[test]
fn relays_are_listed_shown_and_killed() {
    let network = line();
    let listener = listen(network.server(), PORT);
    let node = start(&network, "");
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
        let killed = node.admin(&format!("relays kill {id}")).unwrap();
        assert_eq!(killed, format!("killed {id}\n"));
        expect_reset(&mut pair.client);
        expect_reset(&mut pair.server);
        let line = wait_for_line(&node, &[&format!("id={id} "), "msg=relay"]);
        assert!(
            line.contains("code=KD outcome=killed bytes_up=1000 bytes_down=200000"),
            "{line}"
        );
        for verb in ["show", "kill"] {
            let said = node.admin(&format!("relays {verb} {id}")).unwrap_err();
            assert!(
                said.to_string()
                    .ends_with(&format!("there is no relay {id}")),
                "{said}"
            );
        }
    }
    let none = node.admin_json("relays list").unwrap();
    assert_eq!(none, serde_json::json!({"relays": [], "incomplete": false}));
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

#[test]
fn a_list_is_as_long_as_asked_for() {
    let network = line();
    let listener = listen(network.server(), PORT);
    let node = start(&network, "");
    let pairs: Vec<_> = (0..5)
        .map(|_| Pair::open(&network, Family::V4, &listener))
        .collect();
    until("relays", || counter(&node, "relays") == 5);
    let list = node.admin_json("relays list --limit 3").unwrap();
    assert_eq!(list["relays"].as_array().unwrap().len(), 3);
    assert_eq!(list["incomplete"], true);
    let text = node.admin("relays list").unwrap();
    assert_eq!(text.lines().count(), 6, "{text}");
    for pair in pairs {
        assert!(text.contains(&pair.client_address().to_string()), "{text}");
    }
}

#[test]
fn top_shows_who_moves_bytes() {
    let network = line();
    let listener = listen(network.server(), PORT);
    let node = start(&network, "");
    let _idle = Pair::open(&network, Family::V4, &listener);
    let mut busy = Pair::open(&network, Family::V6, &listener);
    let client = busy.client_address().to_string();
    let mut command = Command::new(binary());
    command
        .args([
            "top",
            "--once",
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
    let text = node.admin("top --once --interval 0.1").unwrap();
    assert!(text.starts_with("posthaste ready: 2 relays"), "{text}");
}

#[test]
fn status_metrics_and_log_tell_the_same() {
    let network = line();
    let host = network.node(0);
    let listener = listen(network.server(), PORT);
    let node = Node::builder(host, binary())
        .metrics(METRICS)
        .start()
        .unwrap();
    let accounts = Accounts::of(&node);
    for family in Family::ALL {
        Pair::open(&network, family, &listener).close_client_first();
        let mut pair = Pair::open(&network, family, &listener);
        pair.check();
        reset(pair.client);
        expect_reset(&mut pair.server);
        let mut pair = Pair::open(&network, family, &listener);
        pair.check();
        reset(pair.server);
        expect_reset(&mut pair.client);
    }
    drop(listener);
    // Nobody listens any more: answered early, then reset.
    let mut refused = dial(
        network.client(),
        (network.server_address(Family::V4), PORT).into(),
    );
    expect_reset(refused.as_mut().unwrap());
    let expected = [
        ("finished", 2),
        ("downstream_reset", 2),
        ("upstream_reset", 2),
        ("upstream_refused", 1),
    ];
    accounts.settle(&node, &expected);
    let metrics = metrics(&node, host);
    for (outcome, count) in expected {
        let name = format!("posthaste_relays_ended_total{{outcome=\"{outcome}\"}}");
        assert_eq!(metrics[&name], count as f64);
    }
    assert_counters(&node, &metrics);
    assert_log(&node);
}

/// What `/metrics` says, by name and labels.
fn metrics(node: &Node, host: &posthaste_lab::netns::Namespace) -> BTreeMap<String, f64> {
    let (code, page) = http_get(host, METRICS, "/metrics");
    assert_eq!(code, 200);
    let mut metrics = BTreeMap::new();
    let mut described = String::new();
    for line in page.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, text) = help.split_once(' ').unwrap();
            assert!(name.starts_with("posthaste_") && !text.is_empty(), "{line}");
            name.clone_into(&mut described);
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').unwrap();
            assert_eq!(
                (name, kind == "counter"),
                (&*described, name.ends_with("_total"))
            );
        } else {
            let (name, value) = line.rsplit_once(' ').unwrap();
            assert_eq!(name.split('{').next(), Some(&*described), "{line}");
            let former = metrics.insert(name.to_owned(), value.parse().unwrap());
            assert_eq!(former, None, "{line}");
        }
    }
    let version = node.status().unwrap()["version"]
        .as_str()
        .unwrap()
        .to_owned();
    let build = format!("posthaste_build_info{{version=\"{version}\"}}");
    assert_eq!(metrics[&build], 1.0);
    metrics
}

/// Every counter of the status is among the metrics, with the same value.
fn assert_counters(node: &Node, metrics: &BTreeMap<String, f64>) {
    let status = node.status().unwrap();
    for (name, value) in status["counters"].as_object().unwrap() {
        let names = match name.as_str() {
            "early" | "strict" | "late" => format!("flows_total{{accept=\"{name}\"}}"),
            "bytes_up" => "relay_bytes_total{direction=\"up\"}".into(),
            "bytes_down" => "relay_bytes_total{direction=\"down\"}".into(),
            "bytes_spliced" => "spliced_bytes_total".into(),
            "relays" | "half_open" => name.clone(),
            _ => format!("{name}_total"),
        };
        let metric = metrics.get(&format!("posthaste_{names}"));
        assert_eq!(metric.copied(), value.as_f64(), "{name}");
    }
    for interface in ["c0", "s0"] {
        let name = format!("posthaste_redirect_attached{{interface=\"{interface}\"}}");
        assert_eq!(metrics[&name], 1.0);
    }
}

/// One line for every relay, complete, whose numbers add up to the counters.
fn assert_log(node: &Node) {
    let lines = relay_lines(node);
    let status = node.status().unwrap();
    assert_eq!(lines.len() as u64, status["counters"]["relays_opened"]);
    let mut totals: BTreeMap<&str, u64> = BTreeMap::new();
    for line in &lines {
        for key in ["time", "id", "rule", "accept", "client", "server", "code"] {
            assert!(!line[key].is_empty(), "{key} in {line:?}");
        }
        for key in ["bytes_up", "bytes_down"] {
            *totals.entry(key).or_default() += line[key].parse::<u64>().unwrap();
        }
        for timer in ["accept_ms", "connect_ms", "first_byte_ms"] {
            let reached = line[timer] != "-";
            let expected = match timer {
                "accept_ms" => true,
                "connect_ms" => line["outcome"] != "upstream_refused",
                _ => line["bytes_down"] != "0",
            };
            assert_eq!(reached, expected, "{timer} in {line:?}");
            let total = line["total_ms"].parse::<f64>().unwrap();
            assert!(
                !reached || line[timer].parse::<f64>().unwrap() <= total,
                "{line:?}"
            );
        }
    }
    for (key, total) in totals {
        assert_eq!(status["counters"][key], total, "{key}");
    }
}

#[test]
fn a_node_without_the_log_counts_all_the_same() {
    let network = line();
    let listener = listen(network.server(), PORT);
    let node = start(&network, "[node]\nlog_connections = false\n");
    Pair::open(&network, Family::V4, &listener).close_client_first();
    until_ended(&node, "finished", 1);
    node.write_config("[node]\nlog_connections = true\n")
        .unwrap();
    node.admin("reload").unwrap();
    Pair::open(&network, Family::V6, &listener).close_client_first();
    wait_for_line(&node, &["msg=relay"]);
    assert_eq!(relay_lines(&node).len(), 1);
}

#[test]
fn health_is_told_to_whoever_asks() {
    let network = line();
    let host = network.node(0);
    let _node = Node::builder(host, binary())
        .metrics(METRICS)
        .config(&accepting("strict"))
        .start()
        .unwrap();
    assert_eq!(http_get(host, METRICS, "/healthz"), (200, "ok\n".into()));
    assert_eq!(http_get(host, METRICS, "/readyz"), (200, "ready\n".into()));
    assert_eq!(http_get(host, METRICS, "/nothing").0, 404);
    // Nobody controls a node by way of its metrics address.
    assert_eq!(http_get(host, METRICS, "/status").0, 404);
    for interface in ["c0", "s0"] {
        host.ip(&format!("link del {interface}")).unwrap();
    }
    until("unreadiness", || {
        http_get(host, METRICS, "/readyz").0 == 503
    });
    assert_eq!(http_get(host, METRICS, "/healthz").0, 200);
}

#[test]
fn a_second_node_does_not_start() {
    let network = line();
    let node = start(&network, "");
    let mut command = network.node(0).command(binary()).unwrap();
    command.arg("node").arg("-c").arg(node.config_file());
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    let socket = node.socket().display().to_string();
    assert!(
        said.contains("another node runs here") && said.contains(&socket),
        "{said}"
    );
    // With a socket of its own it is still the same network.
    let said = Node::builder(network.node(0), binary())
        .start()
        .unwrap_err();
    let said = format!("{said:#}");
    assert!(
        said.contains("another node runs in this network namespace"),
        "{said}"
    );
    assert_eq!(node.status().unwrap()["state"], "ready");
}

#[test]
fn verbs_say_when_there_is_no_node() {
    for words in [
        "status",
        "top --once",
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
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            said.contains("no node answers at /nowhere/admin.sock"),
            "{said}"
        );
    }
}

#[test]
fn systemd_hears_of_every_change() {
    let network = line();
    let directory = Scratch::new().unwrap();
    let path = directory.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(SOON)).unwrap();
    let script = wrapper(&format!(
        "env NOTIFY_SOCKET={} WATCHDOG_USEC=200000",
        path.display()
    ));
    let node = Node::builder(network.node(0), script.path().join("posthaste"));
    let mut node = node
        .config("[node]\ndrain_timeout = \"7s\"\n")
        .start()
        .unwrap();
    hear(&manager, &["READY=1", "STATUS=relaying"]);
    hear(&manager, &["WATCHDOG=1"]);
    node.process().signal(Signal::SIGHUP).unwrap();
    hear(&manager, &["RELOADING=1", "MONOTONIC_USEC="]);
    hear(&manager, &["READY=1"]);
    let status = node.stop(Duration::from_secs(60)).unwrap();
    assert_eq!(status.code(), Some(0));
    let notice = hear(&manager, &["STOPPING=1"]);
    let (_, most) = notice.split_once("EXTEND_TIMEOUT_USEC=").unwrap();
    assert!(most.trim().parse::<u64>().unwrap() >= 7_000_000, "{notice}");
}

/// Reads notices until one has all of `words`.
fn hear(manager: &UnixDatagram, words: &[&str]) -> String {
    let mut buffer = [0; 4096];
    loop {
        let length = manager
            .recv(&mut buffer)
            .unwrap_or_else(|error| panic!("{words:?}: {error}"));
        let notice = String::from_utf8_lossy(&buffer[..length]);
        if words.iter().all(|word| notice.contains(word)) {
            return notice.into_owned();
        }
    }
}
