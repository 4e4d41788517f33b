// SPDX-License-Identifier: Apache-2.0
//! What operators see and change while flows come.

use std::fs;

use posthaste_lab::network::Family;
use serde_json::{Value, json};

use super::scene::{CHAIN, SERVERS, Scene, Settings};
use super::visitors::Visitors;
use crate::support::{binary, until};

const OPERATE: &str = "operate-operate-operate";

#[test]
fn prefixes_that_are_set_move_new_flows_and_all_can_be_looked_at() {
    let mut scene = Scene::start(&Settings::of(Family::V6));
    scene.lead_to_servers();
    let token = scene.site.path("operate");
    fs::write(&token, OPERATE).unwrap();
    scene.site.more += &format!("[api]\noperate_token_file = {token:?}\n");
    scene.site.reload();
    let visitors = Visitors::come(&scene.network);
    let put = |prefixes: Value| {
        let body = json!({ "prefixes": prefixes }).to_string();
        let put = "PUT /v1/prefixes";
        let (code, answer) = scene.site.ask(put, Some(OPERATE), &body);
        assert_eq!(code, 200, "{answer}");
    };
    // Longer ones than those of the configuration.
    let of_two = [("10.0.2.0/25"), ("fd00:0:0:2::/96")];
    put(json!(
        of_two.map(|prefix| json!({"prefix": prefix, "node": "n2"}))
    ));
    scene.until_carried(&[1, 2]);
    put(json!([]));
    scene.until_carried(&CHAIN);
    visitors.go();
    look(&scene);
}

/// What the API and the tool say of all this.
fn look(scene: &Scene) {
    let explained = scene
        .site
        .document("/v1/explain?from=n1&to=n3&bytes=500000");
    assert_eq!(explained["ways"][0]["nodes"], json!(["n1", "n2", "n3"]));
    let links = scene.site.document("/v1/links?node=n2");
    assert_eq!(links["links"].as_array().unwrap().len(), 2, "{links}");
    let prefixes = scene.site.document("/v1/prefixes");
    // What was measured meanwhile may be there, too.
    let in_force = prefixes["in_force"].as_array().unwrap();
    for server in SERVERS {
        let entry = in_force.iter().find(|entry| entry["prefix"] == server);
        assert_eq!(entry.unwrap()["node"], "n3", "{prefixes}");
    }
    let mut command = scene.site.host.command(binary()).unwrap();
    command.args(["status", "--controller", "http://127.0.0.1:9465"]);
    let shown = command.output().unwrap();
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    let named = ["n1", "n2", "n3"].iter().all(|name| text.contains(name));
    assert!(shown.status.success() && named, "{text}");
    assert!(!text.contains("absent"), "{text}");
    let ready = "posthaste_controller_plan_followers";
    scene.site.until_metric(ready, 3.0);
    until("one says so, too", || {
        let status = scene.following(1);
        status["joined"] == true && status["plan"]["in_force"] == true
    });
}
