// SPDX-License-Identifier: Apache-2.0
//! Tables of valid and invalid files.

use std::path::Path;
use std::time::Duration;

use posthaste_relay::accept_mode::AcceptMode;
use posthaste_relay::policy::{Action, SourceAddress};

use super::invariants::{HOST, read_again};
use super::{Capacity, Config};

mod chains;
mod keys;
mod measure;

fn parse(text: &str) -> Result<Config, String> {
    Config::parse(Path::new("node.toml"), text, &HOST).map_err(|error| error.to_string())
}

/// The error of `body` under a `version = 1` line.
fn error_of(body: &str) -> String {
    parse(&format!("version = 1\n{body}")).unwrap_err()
}

/// A node that may have peers, and a peer.
const NODE: &str = "[node]\nid = 7\n";
const PEER: &str = "[[peer]]\nname = \"a\"\nid = 8\naddress = \"192.0.2.8:4480\"\nkey = \"0101010101010101010101010101010101010101010101010101010101010101\"\n";

/// Asserts that each body, below a `version = 1` line and `above`, is refused at that place in
/// those words.
fn assert_mistakes(above: &str, table: &[(&str, &str, &[&str])]) {
    for (body, place, message) in table {
        let error = error_of(&format!("{above}{body}"));
        let start = format!("node.toml{place}: ");
        assert!(
            error.starts_with(&start),
            "{body}\ngives {error}\nnot at {start}"
        );
        for words in *message {
            assert!(
                error.contains(words),
                "{body}\ngives {error}\nwithout {words}"
            );
        }
    }
}

#[test]
fn safe_defaults() {
    let config = parse("version = 1").unwrap();
    assert_eq!((config.node.workers, config.node.relays_max), (2, 10_000));
    assert_eq!(config.policy.relays_max, 5_000);
    assert!(config.metrics.unwrap().ip().is_loopback());
    assert_eq!(config.admin_socket, Path::new(super::ADMIN_SOCKET));
    assert_eq!(config.transparent.mark & config.transparent.socket_mark, 0);
    let [all] = config.policy.rules.as_slice() else {
        panic!("one rule: {:?}", config.policy.rules)
    };
    assert_eq!(
        (all.name.as_str(), all.action, all.accept),
        ("all", Action::Relay, AcceptMode::EARLY)
    );
    assert_eq!(config.warnings, Vec::<String>::new());
}

#[test]
fn missing_file_is_empty() {
    let empty = Config::parse(Path::new(""), "version = 1", &Capacity::of_host()).unwrap();
    assert_eq!(Config::default(), empty);
}

/// Something of every section.
const FULL: &str = include_str!("../../../fuzz/seeds/config/full.toml");

#[test]
fn every_key_is_read() {
    let config = parse(FULL).unwrap();
    assert_eq!(config.policy.relays_max, 250);
    assert_eq!(config.metrics, None);
    assert_eq!(config.transparent.interfaces, ["c0", "s0"]);
    assert_eq!(config.policy.strict_after_failure, Duration::from_secs(300));
    let web = &config.policy.rules[0];
    assert_eq!(
        (web.accept, web.source_address),
        (AcceptMode::EARLY, SourceAddress::Node)
    );
    assert_eq!(web.matches.ports, [80..=80, 8000..=8999, 443..=443]);
    assert_eq!(web.matches.destinations[2].to_string(), "198.51.100.7/32");
    assert_eq!(web.downstream.congestion, None);
    assert_eq!(web.downstream.initial_window, Some(20));
    assert_eq!(web.downstream.send_buffer_bytes, Some(1 << 20));
    assert_eq!(web.timeouts.connect, Duration::from_millis(500));
    let rest = &config.policy.rules[1];
    assert_eq!(
        (rest.action, rest.accept),
        (Action::Forward, AcceptMode::STRICT)
    );
    assert_eq!(rest.downstream.congestion.as_deref(), Some("bbr"));
}

// promise: C2, H7
#[test]
fn shown_config_parses_back() {
    for text in ["version = 1", FULL] {
        let config = parse(text).unwrap();
        assert_eq!(read_again(&config, &config.to_string()).unwrap(), config);
        let json: serde_json::Value = serde_json::from_str(&config.to_json().unwrap()).unwrap();
        assert_eq!(json["node"]["workers"], config.node.workers);
    }
}

/// A body, where its mistake is, and the error about it.
const INVALID: &[(&str, &str, &[&str])] = &[
    (
        "[node]\nwrkers = 2",
        ":3:1",
        &["node.wrkers", "unknown key", "did you mean \"workers\"?"],
    ),
    ("[nodes]", ":2:2", &["nodes", "did you mean \"node\"?"]),
    (
        "[node]\nzzzzzz = 2",
        ":3:1",
        &["known keys here: workers, relays_max"],
    ),
    (
        "[[rule]]\nname = \"a\"\n[rule.timeouts]\nclient_fin = \"1s\"",
        ":5:1",
        &["did you mean \"client-fin\"?"],
    ),
    (
        "[node]\nworkers = \"two\"",
        ":3:11",
        &["node.workers = \"two\"", "whole number from 1 to 256"],
    ),
    ("[node]\nworkers = 0", ":3:11", &["node.workers = 0"]),
    (
        "[node]\nworkers = 2\nworkers = 3",
        ":4:1",
        &["duplicate key"],
    ),
    (
        "[node]\ndrain_timeout = 30",
        ":3:17",
        &["node.drain_timeout = 30", "\"30s\""],
    ),
    (
        "[node]\ndrain_timeout = \"99d\"",
        ":3:17",
        &["from 0s to 30d"],
    ),
    (
        "[node]\nlog_connections = \"yes\"",
        ":3:19",
        &["true or false"],
    ),
    (
        "node = 3",
        ":2:8",
        &["node = 3", "expected a section, [node]"],
    ),
    (
        "[rule]\nname = \"a\"",
        ":2:1",
        &["rule", "expected [[rule]], in two brackets"],
    ),
    (
        "[transparent]\ninterfaces = \"eth0\"",
        ":3:14",
        &["transparent.interfaces = \"eth0\": expected a list: [\"eth0\"]"],
    ),
    (
        "[admin]\nsocket = \"admin.sock\"",
        ":3:10",
        &["absolute path"],
    ),
    (
        "[metrics]\nlisten = \"9464\"",
        ":3:10",
        &["\"127.0.0.1:9464\"", "\"off\""],
    ),
    (
        "[transparent]\nmark = 3",
        ":3:8",
        &["transparent.mark = 3", "exactly one"],
    ),
    (
        "[transparent]\nmark = 0x20000000",
        ":3:8",
        &["0x20000000", "two different bits"],
    ),
    (
        "[transparent]\ntable = 254",
        ":3:9",
        &["transparent.table = 254", "main"],
    ),
    (
        "[transparent]\ninterfaces = \"eth0\"",
        ":3:14",
        &["transparent.interfaces"],
    ),
    (
        "[transparent]\ninterfaces = [\"a\", \"lo\"]",
        ":3:20",
        &["never"],
    ),
    (
        "[transparent]\ninterfaces = [\"a\", \"a\"]",
        ":3:20",
        &["named twice"],
    ),
    ("[transparent]\ninterfaces = []", "", &["leave the key out"]),
    (
        "[half_open]\ntotal = 10\nreserve = 11",
        ":4:11",
        &[
            "half_open.reserve = 11",
            "at most half_open.total, which is 10",
        ],
    ),
    (
        "[defaults]\naccept = \"eager\"",
        ":3:10",
        &["defaults.accept", "\"early\", \"strict\" or \"late\""],
    ),
    (
        "[defaults.upstream]\ncongestion = \"bbq\"",
        ":3:14",
        &["defaults.upstream.congestion = \"bbq\"", "cubic, bbr"],
    ),
    (
        "[defaults.upstream]\nsend_buffer = \"1MB\"",
        ":3:15",
        &["\"1MiB\""],
    ),
    (
        "[defaults.upstream]\nkeepalive_idle = \"10h\"",
        ":3:18",
        &["or \"0s\" for off"],
    ),
    (
        "[defaults.timeouts]\nidle = \"0s\"",
        ":3:8",
        &["defaults.timeouts.idle", "from 10ms to 30d"],
    ),
    ("[[rule]]\nports = [80]", ":2:1", &["rule.name is missing"]),
    ("[[rule]]\nname = \"a b\"", ":3:8", &["rule.name = \"a b\""]),
    (
        "[[rule]]\nname = \"a\"\n[[rule]]\nname = \"a\"",
        ":5:8",
        &["rule.name = \"a\"", "rule 1 already"],
    ),
    (
        "[[rule]]\nname = \"a\"\ndestinations = [\"10.0.0.1/8\"]",
        ":4:17",
        &[
            "rule \"a\": destinations = \"10.0.0.1/8\"",
            "\"10.0.0.0/8\"",
            "\"10.0.0.1/32\"",
        ],
    ),
    (
        "[[rule]]\nname = \"a\"\nsources = [\"2001:db8::1/32\"]",
        ":4:12",
        &["\"2001:db8::/32\""],
    ),
    (
        "[[rule]]\nname = \"a\"\nsources = [\"10.0.0.0/33\"]",
        ":4:12",
        &["from 0 to 32"],
    ),
    (
        "[[rule]]\nname = \"a\"\nsources = [\"example.org\"]",
        ":4:12",
        &["expected a prefix"],
    ),
    (
        "[[rule]]\nname = \"a\"\nports = [80, 0]",
        ":4:14",
        &["rule \"a\": ports = 0", "1 to 65535"],
    ),
    (
        "[[rule]]\nname = \"a\"\nports = [\"90-80\"]",
        ":4:10",
        &["\"80-90\""],
    ),
    (
        "[[rule]]\nname = \"a\"\naction = \"drop\"",
        ":4:10",
        &["\"relay\", \"forward\" or \"reject\""],
    ),
    ("[node\n", ":2:6", &[]),
];

// promise: H6
#[test]
fn mistake_parts() {
    assert_mistakes("", INVALID);
}

#[test]
fn all_mistakes_in_order() {
    let error = error_of("[transparent]\ntable = 0\n[node]\nworkers = 0");
    let lines: Vec<&str> = error.lines().collect();
    assert!(
        lines.len() == 2 && lines[0].contains("table") && lines[1].contains("workers"),
        "{error}"
    );
}

#[test]
fn version_is_demanded() {
    assert!(parse("").unwrap_err().contains("version is missing"));
    assert!(parse("version = 2").unwrap_err().contains("version = 2"));
}

#[test]
fn doubtful_values_are_warned_about() {
    let config =
        parse("version = 1\n[node]\nrelays_max = 50000\n[metrics]\nlisten = \"0.0.0.0:9464\"")
            .unwrap();
    let message = config.warnings.join("\n");
    assert!(
        message.contains("suffices for 10000") && message.contains("readable by anyone"),
        "{message}"
    );
}

// promise: C4
#[test]
fn reloadable_keys() {
    let now = parse("version = 1").unwrap();
    let next = parse(FULL).unwrap();
    let (adopted, waiting) = now.adopt(next.clone());
    assert_eq!(
        waiting,
        [
            "node.workers",
            "node.id",
            "admin.socket",
            "admin.group",
            "metrics.listen",
            "transparent.enabled",
            "transparent.interfaces",
            "transparent.mark",
            "transparent.socket_mark",
            "transparent.table",
            "observe.profiles_max",
            "packet.flows",
            "half_open.total",
            "half_open.reserve",
            "listener",
            "measure.enabled",
            "measure.reflector",
            "controller",
        ]
    );
    assert_eq!(adopted.transparent, now.transparent);
    assert_eq!(adopted.policy.rules, next.policy.rules);
    // The chains wait for the number of the node.
    assert_eq!(adopted.policy.chains, now.policy.chains);
    assert_eq!(adopted.policy.access, next.policy.access);
    assert_eq!(adopted.node.drain_timeout, next.node.drain_timeout);
    assert_eq!(
        (adopted.node.relays_max, adopted.policy.relays_max),
        (1000, 500)
    );
    assert_eq!(
        (
            adopted.policy.half_open.total,
            adopted.policy.half_open.per_prefix
        ),
        (4096, 5)
    );
    // What waits is still reported at the next reload of the same file.
    assert_eq!(adopted.adopt(next).1, waiting);
    let (same, waiting) = now.adopt(now.clone());
    assert_eq!((same, waiting.len()), (now, 0));
}

#[test]
fn a_missing_file_is_named() {
    let error = Config::load(Path::new("/nonexistent/node.toml"))
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("/nonexistent/node.toml: cannot be read"),
        "{error}"
    );
}

#[test]
fn structural_mistakes_hide_none() {
    let error = error_of(
        "[node]\nworkers = 0\nwrkers = 2\n[transparent]\ninterfaces = \"eth0\"\n\
         [metric]\n[[rule]]\nname = \"a\"\nports = 443\naccept = \"soon\"\n",
    );
    let places = [
        ":3:11: node.workers",
        ":4:1: node.wrkers",
        ":6:14: transparent.interfaces",
    ];
    let places = places
        .into_iter()
        .chain([":7:2: metric:", ":10:9: rule", ":11:10: rule \"a\""]);
    let lines: Vec<&str> = error.lines().collect();
    assert_eq!(lines.len(), 6, "{error}");
    for (line, place) in lines.iter().zip(places) {
        assert!(line.contains(place), "{place} in {line}");
    }
    // What was taken out is not missing too.
    let error = error_of("[node]\nid = 9223372036854775808\n[[listener]]");
    assert!(!error.contains("missing"), "{error}");
    // There is an end to it.
    let many: String = (0..100)
        .map(|number| format!("key{number} = 1\n"))
        .collect();
    assert_eq!(error_of(&format!("[node]\n{many}")).lines().count(), 64);
}

#[test]
fn unreachable_rules_warned() {
    let warnings = |body: &str| parse(&format!("version = 1\n{body}")).unwrap().warnings;
    let rules = "[[rule]]\nname = \"web\"\nports = [80, 443]\n[[rule]]\nname = \"tls\"\nports = [443]\n\
                 [[rule]]\nname = \"rest\"\n";
    let [warning] = &warnings(rules)[..] else {
        panic!("one warning: {:?}", warnings(rules))
    };
    assert!(
        warning.starts_with("rule \"tls\" can never apply: rule \"web\" goes first"),
        "{warning}"
    );
    let routes = format!(
        "{NODE}{PEER}[[chain]]\nname = \"c\"\nnodes = [\"a\"]\n\
         [[route]]\nchains = [\"c\"]\n[[route]]\nchains = [\"c\"]\n"
    );
    let all = warnings(&routes);
    assert!(
        all.iter()
            .any(|warning| warning.starts_with("route 2 can never apply: route 1")),
        "{all:?}"
    );
}

#[test]
fn overlapping_listeners_warned() {
    let listener = |address: &str| format!("[[listener]]\naddress = \"{address}\"\n");
    let warnings = |addresses: &[&str]| {
        let listeners: String = addresses.iter().map(|address| listener(address)).collect();
        let text = format!("version = 1\n{NODE}[access]\nclients = [\"10.0.0.0/8\"]\n{listeners}");
        parse(&text).unwrap().warnings
    };
    let wide = warnings(&["0.0.0.0:4480", "192.0.2.1:4480"]);
    assert!(
        wide[0].contains("\"192.0.2.1:4480\"") && wide[0].contains("\"0.0.0.0:4480\""),
        "{wide:?}"
    );
    assert_eq!(
        warnings(&["0.0.0.0:4480", "[::]:4480", "192.0.2.1:4481"]),
        [""; 0]
    );
    for address in ["127.0.0.1:9464", "0.0.0.0:9464"] {
        let shared = warnings(&[address]);
        assert!(shared[0].contains("cannot start with both"), "{shared:?}");
    }
    assert_eq!(warnings(&["192.0.2.1:9464", "[::]:9464"]), [""; 0]);
}
