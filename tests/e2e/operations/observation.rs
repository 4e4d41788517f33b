// SPDX-License-Identifier: Apache-2.0
//! What a node reports by itself: metrics, health, the log, notifications to systemd.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write;
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixDatagram;

use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use posthaste_lab::netns::Namespace;
use posthaste_lab::network::Family;
use posthaste_lab::node::Node;
use posthaste_lab::scratch::Scratch;

use super::{METRICS, wrapper};
use crate::support::{
    PORT, Pair, SOON, accepting, binary, dial, expect_reset, line, listen, reset, start_relaying,
    stop_listening, until, until_ended,
};
use crate::watch::{
    Accounts, Descriptors, assert_nothing_left, http_get, relay_lines, wait_for_line,
};

// promise: I5, W1
#[test]
fn status_metrics_log_agree() {
    let network = line();
    let host = network.node(0);
    let listener = listen(network.server(), PORT);
    let node = Node::builder(host, binary())
        .relaying()
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
    stop_listening(listener);
    // No socket listens any more: the node answers early, then resets the client.
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

/// Families that a node has only with peers or with a controller.
const CONDITIONAL: [&str; 5] = ["link_", "stamp_", "controller_", "plan_", "destination"];

#[test]
fn exported_metrics_documented() {
    const PAGE: &str = include_str!("../../../docs/operations.md");
    let network = line();
    let host = network.node(0);
    let node = Node::builder(host, binary()).metrics(METRICS);
    let _node = node.start().unwrap();
    let (_, page) = http_get(host, METRICS, "/metrics");
    let exported = page.lines().filter_map(|line| {
        let help = line.strip_prefix("# HELP posthaste_")?;
        help.split(' ').next()
    });
    let exported: BTreeSet<&str> = exported.collect();
    let names = PAGE.split("`posthaste_").skip(1).map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_lowercase() && c != '_');
        &rest[..end.unwrap_or(rest.len())]
    });
    let documented: BTreeSet<&str> = names.collect();
    let undocumented: Vec<_> = exported.difference(&documented).collect();
    assert!(
        undocumented.is_empty(),
        "not in operations.md: {undocumented:?}"
    );
    let is_plain = |name: &&&str| !CONDITIONAL.iter().any(|start| name.starts_with(start));
    let absent: Vec<_> = documented.difference(&exported).filter(is_plain).collect();
    assert!(absent.is_empty(), "only in operations.md: {absent:?}");
}

/// The values of `/metrics`, by name and labels.
pub(super) fn metrics(node: &Node, host: &Namespace) -> BTreeMap<String, f64> {
    let (code, page) = http_get(host, METRICS, "/metrics");
    assert_eq!(code, 200);
    let mut metrics = BTreeMap::new();
    let (mut described, mut histogram) = (String::new(), false);
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
            histogram = kind == "histogram";
        } else {
            let (name, value) = line.rsplit_once(' ').unwrap();
            let family = name.split('{').next().unwrap();
            let parts = ["_bucket", "_sum", "_count"];
            let mut parts = parts.iter().map(|part| format!("{described}{part}"));
            let is_part = histogram && parts.any(|part| part == family);
            assert!(is_part || family == described, "{line}");
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
            "relays" | "half_open" | "tunnels_up" | "tunnel_peers_down" => name.clone(),
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

/// One complete line for every relay; the numbers add up to the counters.
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

// promise: W1
#[test]
fn disabled_log_still_counts() {
    let network = line();
    let listener = listen(network.server(), PORT);
    let node = start_relaying(&network, "[node]\nlog_connections = false\n");
    Pair::open(&network, Family::V4, &listener).close_client_first();
    until_ended(&node, "finished", 1);
    node.write_config("[node]\nlog_connections = true\n")
        .unwrap();
    node.admin("reload").unwrap();
    Pair::open(&network, Family::V6, &listener).close_client_first();
    wait_for_line(&node, &["msg=relay"]);
    assert_eq!(relay_lines(&node).len(), 1);
}

// promise: W3
#[test]
fn health_endpoints() {
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
    // The metrics address accepts no commands.
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
fn ready_without_interfaces() {
    let network = line();
    let host = network.node(0);
    let node = Node::builder(host, binary()).metrics(METRICS).config(
        "[node]\nid = 7\n[transparent]\nenabled = false\n[[listener]]\nmode = \"fixed\"\n\
         address = \"127.0.0.1:4480\"\ndestination = \"192.0.2.1:443\"\n",
    );
    let node = node.start().unwrap();
    assert_eq!(node.status().unwrap()["interfaces"], serde_json::json!([]));
    assert_eq!(http_get(host, METRICS, "/readyz"), (200, "ready\n".into()));
}

// promise: W6
#[test]
fn silent_metrics_clients() {
    let network = line();
    let host = network.node(0);
    let node = Node::builder(host, binary())
        .metrics(METRICS)
        .start()
        .unwrap();
    let before = Descriptors::of(&node).sockets;
    let silent = host.run_in(|| {
        let open = || TcpStream::connect((Ipv4Addr::LOCALHOST, METRICS)).unwrap();
        std::iter::repeat_with(open).take(300).collect::<Vec<_>>()
    });
    assert_eq!(http_get(host, METRICS, "/healthz"), (200, "ok\n".into()));
    until("end of most", || {
        Descriptors::of(&node).sockets <= before + 40
    });
    drop(silent);
    until("end of all", || Descriptors::of(&node).sockets <= before);
}

// promise: D9
#[test]
fn blocked_log_reader() {
    let network = line();
    let listener = listen(network.server(), PORT);
    let directory = Scratch::new().unwrap();
    let path = directory.path().join("log");
    mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
    let mut full = File::options()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(&path)
        .unwrap();
    while full.write(&[0; 4096]).is_ok() {}
    // Only the node's own words go there, not those of the verbs.
    let script = wrapper(&format!(
        "sh -c '[ \"$2\" = node ] && exec \"$@\" > {}; exec \"$@\"' sh",
        path.display()
    ));
    let node = Node::builder(network.node(0), script.path().join("posthaste")).relaying();
    let mut node = node.start_unready().unwrap();
    until("answer", || node.status().is_ok());
    for _ in 0..20 {
        for family in Family::ALL {
            Pair::open(&network, family, &listener).close_client_first();
        }
    }
    until_ended(&node, "finished", 40);
    assert_eq!(node.stop(SOON).unwrap().code(), Some(0));
    assert_nothing_left(network.node(0));
}

// promise: W4
#[test]
fn systemd_notified_of_changes() {
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
    receive_all(&manager, &["READY=1", "STATUS=relaying"]);
    receive_all(&manager, &["WATCHDOG=1"]);
    node.process().signal(Signal::SIGHUP).unwrap();
    receive_all(&manager, &["RELOADING=1", "MONOTONIC_USEC="]);
    receive_all(&manager, &["READY=1"]);
    let status = node.stop(SOON).unwrap();
    assert_eq!(status.code(), Some(0));
    let notice = receive_all(&manager, &["STOPPING=1"]);
    let (_, most) = notice.split_once("EXTEND_TIMEOUT_USEC=").unwrap();
    assert!(most.trim().parse::<u64>().unwrap() >= 7_000_000, "{notice}");
}

/// Reads notices until one has all of `words`.
fn receive_all(manager: &UnixDatagram, words: &[&str]) -> String {
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
