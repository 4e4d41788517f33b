// SPDX-License-Identifier: Apache-2.0
//! The controller's API, and its authorization.

use std::fs;

use nix::sys::signal::Signal;
use posthaste_control::message::ToNode;
use serde_json::{Value, json};

use super::testbed::{FAMILIES, Testbed, up};
use crate::support::{binary, until};
use crate::verbs::posthaste;

const READ: &str = "read-read-read-read";
const OPERATE: &str = "operate-operate-operate";

/// A controller with an API that requires tokens.
fn guarded(nodes: &[u64]) -> Testbed {
    let mut testbed = Testbed::new(nodes);
    let (read, operate) = (testbed.path("read"), testbed.path("operate"));
    fs::write(&read, READ).unwrap();
    fs::write(&operate, OPERATE.to_owned() + "\n").unwrap();
    testbed.more = format!("[api]\nread_token_file = {read:?}\noperate_token_file = {operate:?}");
    testbed.reload();
    testbed
}

// promise: O11
#[test]
fn tokens_for_read_and_write() {
    let testbed = guarded(&[1]);
    for target in [
        "/v1/status",
        "/v1/nodes",
        "/v1/links",
        "/v1/plan",
        "/metrics",
    ] {
        let get = format!("GET {target}");
        assert_eq!(testbed.query(&get, None, "").0, 401, "{target}");
        assert_eq!(
            testbed.query(&get, Some("read-read-read-reaD"), "").0,
            403,
            "{target}"
        );
        assert_eq!(testbed.query(&get, Some(READ), "").0, 200, "{target}");
        assert_eq!(testbed.query(&get, Some(OPERATE), "").0, 200, "{target}");
    }
    let put = "PUT /v1/prefixes";
    assert_eq!(testbed.query(put, Some(READ), "{\"prefixes\": []}").0, 403);
    assert_eq!(
        testbed.query(put, Some(OPERATE), "{\"prefixes\": []}").0,
        200
    );
    assert_eq!(
        testbed.query("GET /healthz", None, ""),
        (200, "ok\n".into())
    );
    let (code, page) = testbed.query("GET /metrics", Some(READ), "");
    assert!(
        code == 200 && page.contains("posthaste_controller_api_denied_total 11"),
        "{page}"
    );
}

// promise: O11
#[test]
fn prefixes_reach_nodes() {
    let mut testbed = guarded(&[1, 2]);
    let put = |testbed: &Testbed, body: Value| {
        testbed.query("PUT /v1/prefixes", Some(OPERATE), &body.to_string())
    };
    let both = json!({"prefixes": [
        {"prefix": "198.51.100.0/24", "node": "n1"},
        {"prefix": "2001:db8::/32", "node": "n2"},
    ]});
    assert_eq!(put(&testbed, both.clone()).0, 200);
    for (wrong, sent) in [
        (
            json!({"prefixes": [{"prefix": "198.51.100.1/24", "node": "n1"}]}),
            "address bits set",
        ),
        (
            json!({"prefixes": [{"prefix": "198.51.100.0/24", "node": "n9"}]}),
            "no node",
        ),
    ] {
        let (code, body) = put(&testbed, wrong);
        assert!(code == 422 && body.contains(sent), "{code} {body}");
    }
    testbed.end(Signal::SIGKILL);
    testbed.start();
    let mut one = testbed.node(1, FAMILIES[0]);
    let _two = testbed.node(2, FAMILIES[0]);
    one.until("both egresses", |node| {
        let mut lists = node.sent.iter().filter_map(|sent| match sent {
            ToNode::Egresses(list) => Some(list),
            _ => None,
        });
        lists.next_back().is_some_and(|list| list.len() == 2)
    });
    let (_, body) = testbed.query("GET /v1/prefixes", Some(READ), "");
    let prefixes: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(prefixes["set"], prefixes["in_force"]);
    assert_eq!(prefixes["set"].as_array().unwrap().len(), 2);
}

#[test]
fn operator_views() {
    let testbed = guarded(&[1, 2, 3]);
    let mut nodes = [1, 2].map(|number| testbed.node(number, FAMILIES[1]));
    nodes[0].report_links(&[up(2, 20)]);
    nodes[1].report_links(&[up(1, 24)]);
    nodes[0].until("a way", |node| node.best(2).is_some());
    let token = testbed.path("read");
    let run = |words: &[&str]| {
        let mut command = testbed.host.command(binary()).unwrap();
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
    let reason = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && reason.contains("the read token is needed"),
        "{reason}"
    );
}

// promise: O13
#[test]
fn checked_before_use() {
    let testbed = Testbed::new(&[1]);
    let file = testbed.path("controller.toml");
    let file = file.to_str().unwrap();
    let checked = posthaste(["check", file]);
    let text = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert!(
        checked.status.success() && text.contains("ttl = \"15m\""),
        "{text}"
    );
    fs::write(file, "version = 1\n[server]\nlissen = []\n").unwrap();
    for verb in [&["check", file][..], &["controller", "-c", file]] {
        let refused = posthaste(verb);
        assert_eq!(refused.status.code(), Some(2));
        let reason = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(
            reason.contains(":3:1:") && reason.contains("did you mean \"listen\"?"),
            "{reason}"
        );
    }
}
