// SPDX-License-Identifier: Apache-2.0
//! What operators see and change while flows come.

use std::fs;

use posthaste_lab::network::Family;
use serde_json::{Value, json};

use super::fixture::{CHAIN, Fixture, SERVERS, Settings};
use super::visitors::Visitors;
use crate::support::{binary, until};

const OPERATE: &str = "operate-operate-operate";

// promise: S11
#[test]
fn prefixes_move_new_flows() {
    let mut fixture = Fixture::start(&Settings::of(Family::V6));
    fixture.lead_to_servers();
    let token = fixture.testbed.path("operate");
    fs::write(&token, OPERATE).unwrap();
    fixture.testbed.more += &format!("[api]\noperate_token_file = {token:?}\n");
    fixture.testbed.reload();
    let visitors = Visitors::come(&fixture.network);
    let put = |prefixes: Value| {
        let body = json!({ "prefixes": prefixes }).to_string();
        let put = "PUT /v1/prefixes";
        let (code, answer) = fixture.testbed.query(put, Some(OPERATE), &body);
        assert_eq!(code, 200, "{answer}");
    };
    // Longer ones than those of the configuration.
    let of_two = [("10.0.2.0/25"), ("fd00:0:0:2::/96")];
    put(json!(
        of_two.map(|prefix| json!({"prefix": prefix, "node": "n2"}))
    ));
    fixture.until_carried(&[1, 2]);
    put(json!([]));
    fixture.until_carried(&CHAIN);
    visitors.go();
    look(&fixture);
}

/// The reports of the API and the tool.
fn look(fixture: &Fixture) {
    let explained = fixture
        .testbed
        .document("/v1/explain?from=n1&to=n3&bytes=500000");
    assert_eq!(explained["routes"][0]["nodes"], json!(["n1", "n2", "n3"]));
    let links = fixture.testbed.document("/v1/links?node=n2");
    assert_eq!(links["links"].as_array().unwrap().len(), 2, "{links}");
    let prefixes = fixture.testbed.document("/v1/prefixes");
    // What was measured meanwhile may be there, too.
    let in_force = prefixes["in_force"].as_array().unwrap();
    for server in SERVERS {
        let entry = in_force.iter().find(|entry| entry["prefix"] == server);
        assert_eq!(entry.unwrap()["node"], "n3", "{prefixes}");
    }
    let mut command = fixture.testbed.host.command(binary()).unwrap();
    command.args(["status", "--controller", "http://127.0.0.1:9465"]);
    let shown = command.output().unwrap();
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    let named = ["n1", "n2", "n3"].iter().all(|name| text.contains(name));
    assert!(shown.status.success() && named, "{text}");
    assert!(!text.contains("absent"), "{text}");
    let ready = "posthaste_controller_plan_followers";
    fixture.testbed.until_metric(ready, 3.0);
    until("node one reports the same", || {
        let status = fixture.following(1);
        status["connected"] == true && status["plan"]["in_force"] == true
    });
}
