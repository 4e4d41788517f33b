// SPDX-License-Identifier: Apache-2.0
//! Tables of valid and invalid files of controllers.

use std::path::Path;
use std::time::Duration;

use super::super::invariants::HOST;
use super::Controller;

/// The one file with a secret on that host.
const FILE: &str = "/etc/posthaste/rome.key";

fn parse(text: &str) -> Result<Controller, String> {
    let path = Path::new("controller.toml");
    Controller::parse(path, text, &HOST).map_err(|error| error.to_string())
}

/// A file with what must be there, and `rest`.
fn with(rest: &str) -> Result<Controller, String> {
    parse(&format!(
        "version = 1\n[server]\nlisten = [\"192.0.2.9:4490\"]\nidentity_file = \"{FILE}\"\n{rest}"
    ))
}

const NODES: &str = "
[[node]]
name = \"paris\"
id = 7
key = \"1111111111111111111111111111111111111111111111111111111111111111\"

[[node]]
name = \"rome\"
id = 8
key = \"2222222222222222222222222222222222222222222222222222222222222222\"
";

#[test]
fn little_is_required() {
    let config = with("").unwrap();
    assert!(config.api.is_some_and(|api| api.listen.ip().is_loopback()));
    assert_eq!(config.plan.ttl, Duration::from_secs(900));
    assert_eq!(config.plan.classes.sizes().len(), 10);
    assert_eq!(config.warnings.len(), 1, "{:?}", config.warnings);
    let error = parse("version = 1").unwrap_err();
    for key in ["server.listen", "server.identity_file"] {
        assert!(error.contains(&format!("{key} is missing")), "{error}");
    }
}

#[test]
fn shown_config_parses_back() {
    let text = format!(
        "keepalive = \"3s\"\n[api]\nlisten = \"[::1]:9000\"\nread_token_file = \"{FILE}\"\n
         operate_token_file = \"{FILE}\"\n[plan]\nttl = \"1m\"\nsizes = [1000, \"1MiB\"]\n
         access = [\"0ms\", \"30ms\"]\nhops = \"warm\"\nhops_max = 3\nmargin_percent = 20\n[measure]\n
         interval = \"5s\"\n{NODES}\n[[prefix]]\n
         destinations = [\"198.51.100.0/24\", \"2001:db8::/32\"]\nnode = \"rome\""
    );
    let config = with(&text).unwrap();
    assert_eq!(config.prefixes.len(), 2);
    assert_eq!(config.prefixes[1].1, 8);
    assert_eq!(config.nodes[0].name, "paris");
    assert_eq!(config.warnings, Vec::<String>::new());
    let shown = config.to_string();
    assert!(!shown.contains("5a5a"), "no secret: {shown}");
    let again = parse(&shown).unwrap_or_else(|error| panic!("{error}\n{shown}"));
    assert_eq!(again.to_string(), shown);
    let json = config.to_json().unwrap();
    assert_eq!(again.to_json().unwrap(), json);
    assert_eq!(config.adopt(again).1, [] as [&str; 0]);
}

// promise: O13
#[test]
fn mistakes_with_lines() {
    let line = |rest: &str| with(rest).unwrap_err();
    for (rest, sent) in [
        (
            "keepalive = \"3\"",
            "controller.toml:5:13: server.keepalive = \"3\"",
        ),
        ("keepalve = \"3s\"", "did you mean \"keepalive\"?"),
        ("[api]\nlisten = \"here\"", "api.listen = \"here\""),
        ("[api]\nread_token_file = \"/nowhere\"", "cannot be read"),
        ("[plan]\nsizes = [2, 1]", "expected ascending values"),
        (
            "[plan]\nhops_max = 0",
            "expected a whole number from 1 to 8",
        ),
        ("[plan]\nhops = \"hot\"", "expected \"cold\" or \"warm\""),
        ("[[node]]\nname = \"a\"", "node \"a\": id is missing"),
        (
            "[[node]]\nname = \"a\"\nid = 1\nkey = \"00\"",
            "as posthaste keys public prints them",
        ),
        (
            "[[prefix]]\ndestinations = [\"192.0.2.0/24\"]\nnode = \"b\"",
            "expected the name of a [[node]]",
        ),
    ] {
        let error = line(rest);
        assert!(error.contains(sent), "{error}");
    }
    let twice = NODES.replace("id = 8", "id = 7").replace('2', "1");
    let error = line(&twice);
    assert!(error.contains("is the id of node 1 already"), "{error}");
    assert!(error.contains("is the key of node 1 already"), "{error}");
}

#[test]
fn restart_keys_named() {
    let config = with(NODES).unwrap();
    let (adopted, waiting) = config.adopt(with("[plan]\nttl = \"1m\"").unwrap());
    assert_eq!(waiting, ["plan"]);
    assert!(adopted.nodes.is_empty());
    assert_eq!(adopted.plan, config.plan);
}

#[test]
fn api_address_waits_and_tokens_do_not() {
    let config = with("[api]\nlisten = \"127.0.0.1:9000\"").unwrap();
    let api = format!("[api]\nlisten = \"127.0.0.1:9001\"\nread_token_file = \"{FILE}\"");
    let next = with(&api).unwrap();
    let (adopted, waiting) = config.adopt(next.clone());
    assert_eq!(waiting, ["api.listen"]);
    assert!(adopted.api.as_ref().unwrap().read_token.is_some());
    // What waits is still reported at the next reload of the same file.
    assert_eq!(adopted.adopt(next).1, ["api.listen"]);
    let off = with("[api]\nlisten = \"off\"").unwrap();
    let (adopted, waiting) = config.adopt(off);
    assert_eq!(waiting, ["api.listen"]);
    assert!(adopted.api.is_some());
}

#[test]
fn files_are_distinguished() {
    assert!(Controller::is_meant_by(
        "version = 1\n[server]\nlisten = []"
    ));
    assert!(!Controller::is_meant_by("version = 1\n[node]\nid = 7"));
    assert!(!Controller::is_meant_by("[server"));
}
