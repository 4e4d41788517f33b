// SPDX-License-Identifier: Apache-2.0
//! What an operator asks a controller, and who may.

use std::fs;

use nix::sys::signal::Signal;
use posthaste_control::message::ToNode;
use serde_json::{Value, json};

use super::site::{FAMILIES, Site, up};
use crate::support::{binary, until};
use crate::verbs::posthaste;

const READ: &str = "read-read-read-read";
const OPERATE: &str = "operate-operate-operate";

/// A controller whose API wants tokens.
fn guarded(nodes: &[u64]) -> Site {
    let mut site = Site::new(nodes);
    let (read, operate) = (site.path("read"), site.path("operate"));
    fs::write(&read, READ).unwrap();
    fs::write(&operate, OPERATE.to_owned() + "\n").unwrap();
    site.more = format!("[api]\nread_token_file = {read:?}\noperate_token_file = {operate:?}");
    site.reload();
    site
}

#[test]
fn who_has_no_token_sees_nothing_and_who_may_look_changes_nothing() {
    let site = guarded(&[1]);
    for target in [
        "/v1/status",
        "/v1/nodes",
        "/v1/links",
        "/v1/plan",
        "/metrics",
    ] {
        let get = format!("GET {target}");
        assert_eq!(site.ask(&get, None, "").0, 401, "{target}");
        assert_eq!(
            site.ask(&get, Some("read-read-read-reaD"), "").0,
            403,
            "{target}"
        );
        assert_eq!(site.ask(&get, Some(READ), "").0, 200, "{target}");
        assert_eq!(site.ask(&get, Some(OPERATE), "").0, 200, "{target}");
    }
    let put = "PUT /v1/prefixes";
    assert_eq!(site.ask(put, Some(READ), "{\"prefixes\": []}").0, 403);
    assert_eq!(site.ask(put, Some(OPERATE), "{\"prefixes\": []}").0, 200);
    assert_eq!(site.ask("GET /healthz", None, ""), (200, "ok\n".into()));
    let (code, page) = site.ask("GET /metrics", Some(READ), "");
    assert!(
        code == 200 && page.contains("posthaste_controller_api_denied_total 11"),
        "{page}"
    );
}

#[test]
fn prefixes_that_are_set_reach_nodes_and_survive() {
    let mut site = guarded(&[1, 2]);
    let put =
        |site: &Site, body: Value| site.ask("PUT /v1/prefixes", Some(OPERATE), &body.to_string());
    let both = json!({"prefixes": [
        {"prefix": "198.51.100.0/24", "node": "n1"},
        {"prefix": "2001:db8::/32", "node": "n2"},
    ]});
    assert_eq!(put(&site, both.clone()).0, 200);
    for (wrong, told) in [
        (
            json!({"prefixes": [{"prefix": "198.51.100.1/24", "node": "n1"}]}),
            "address bits set",
        ),
        (
            json!({"prefixes": [{"prefix": "198.51.100.0/24", "node": "n9"}]}),
            "no node",
        ),
    ] {
        let (code, body) = put(&site, wrong);
        assert!(code == 422 && body.contains(told), "{code} {body}");
    }
    site.end(Signal::SIGKILL);
    site.start();
    let mut one = site.node(1, FAMILIES[0]);
    let _two = site.node(2, FAMILIES[0]);
    one.until("both egresses", |node| {
        let mut lists = node.told.iter().filter_map(|told| match told {
            ToNode::Egresses(list) => Some(list),
            _ => None,
        });
        lists.next_back().is_some_and(|list| list.len() == 2)
    });
    let (_, body) = site.ask("GET /v1/prefixes", Some(READ), "");
    let prefixes: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(prefixes["set"], prefixes["in_force"]);
    assert_eq!(prefixes["set"].as_array().unwrap().len(), 2);
}

#[test]
fn an_operator_sees_nodes_links_and_the_plan() {
    let site = guarded(&[1, 2, 3]);
    let mut nodes = [1, 2].map(|number| site.node(number, FAMILIES[1]));
    nodes[0].say_links(&[up(2, 20)]);
    nodes[1].say_links(&[up(1, 24)]);
    nodes[0].until("a way", |node| node.best(2).is_some());
    let token = site.path("read");
    let run = |words: &[&str]| {
        let mut command = site.host.command(binary()).unwrap();
        command.args(["status", "--controller", "http://127.0.0.1:9465"]);
        command.args(words).output().unwrap()
    };
    let token = ["--token-file", token.to_str().unwrap()];
    until("the plan is followed", || {
        let shown = run(&token);
        let text = String::from_utf8_lossy(&shown.stdout).into_owned();
        let lines = ["n1", "n3", "absent", "24.000 ms", "plan 1."];
        shown.status.success() && lines.iter().all(|line| text.contains(line))
    });
    let shown = run(&[&token[..], &["--json"]].concat());
    let document: Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!(document["status"]["connected"], 2);
    assert_eq!(document["links"]["links"][0]["rtt_us"], 24_000);
    let refused = run(&[]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && said.contains("the read token is needed"),
        "{said}"
    );
}

#[test]
fn a_file_is_checked_before_it_is_used() {
    let site = Site::new(&[1]);
    let file = site.path("controller.toml");
    let file = file.to_str().unwrap();
    let checked = posthaste(["check", file]);
    let text = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert!(
        checked.status.success() && text.contains("life = \"15m\""),
        "{text}"
    );
    fs::write(file, "version = 1\n[server]\nlissen = []\n").unwrap();
    for verb in [&["check", file][..], &["controller", "-c", file]] {
        let refused = posthaste(verb);
        assert_eq!(refused.status.code(), Some(2));
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(
            said.contains(":3:1:") && said.contains("did you mean \"listen\"?"),
            "{said}"
        );
    }
}
