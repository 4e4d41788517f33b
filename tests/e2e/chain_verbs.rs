// SPDX-License-Identifier: Apache-2.0
//! The verbs that list other nodes and explain the chain of a flow.

#![allow(clippy::unwrap_used, reason = "a test ends where it finds a failure")]

use std::fs;
use std::path::PathBuf;

use posthaste_lab::link::Link;
use posthaste_lab::network::Family;
use posthaste_lab::scratch::Scratch;
use serde_json::{Value, json};

use crate::support::{
    PORT, Pair, SOON, binary, counter, line, listen, network, start, start_in, start_relaying,
    until,
};
use crate::verbs::{assert_reports, failure_text, posthaste, printed};
use crate::watch::{assert_nothing_left, installed};

mod files;

/// A directory with a key and a configuration.
struct Files {
    directory: Scratch,
    key: PathBuf,
}

impl Files {
    fn new() -> Self {
        let directory = Scratch::new().unwrap();
        let key = directory.path().join("paris.key");
        let output = posthaste(["keys", "generate", "--output", key.to_str().unwrap()]);
        assert_eq!(printed(&output), "");
        Self { directory, key }
    }

    /// A configuration with these tables.
    fn config(&self, tables: &str) -> String {
        let path = self.directory.path().join("node.toml");
        fs::write(&path, format!("version = 1\n{tables}")).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// A node with two peers, which it dials for flows only, and routes to them.
    fn tables(&self) -> String {
        let key = self.key.display();
        format!(
            "[node]\nid = 7\n\
             [access]\nclients = [\"192.0.2.0/24\"]\ndestinations = [\"198.51.100.0/24\"]\n\
             [[peer]]\nname = \"paris\"\nid = 8\naddress = \"192.0.2.8:4480\"\nkey_file = \"{key}\"\npool_max = 0\n\
             [[peer]]\nname = \"rome\"\nid = 9\naddress = \"[2001:db8::9]:4480\"\nkey_file = \"{key}\"\npool_max = 0\n\
             [[chain]]\nname = \"south\"\nnodes = [\"paris\", 12]\n\
             [[chain]]\nname = \"east\"\nnodes = [\"rome\"]\n\
             [[route]]\nchains = [\"east\"]\n\
             [[route]]\ndestinations = [\"198.51.100.0/24\", \"10.0.0.0/8\", \"2001:db8:5::/48\"]\n\
             chains = [\"south\", \"east\"]\ndirect = false\n"
        )
    }
}

// promise: C4, C6
#[test]
fn chains_list() {
    let network = line();
    let files = Files::new();
    let node = start_relaying(&network, &files.tables());
    let list = node.admin_json("chains").unwrap();
    assert_eq!(list["id"], 7);
    let peer = &list["peers"][1];
    assert_eq!(
        [&peer["name"], &peer["address"]],
        ["rome", "[2001:db8::9]:4480"]
    );
    assert_eq!(list["chains"][0]["nodes"], json!(["paris", "12"]));
    assert_eq!(
        list["routes"][1]["next_hops"]["candidates"][0]["peer"],
        "paris"
    );
    assert_eq!(list["incomplete"], false);
    let text = node.admin("chains").unwrap();
    assert_reports(
        &text,
        &[
            "node 7",
            "paris > 12",
            "192.0.2.8:4480",
            "to 198.51.100.0/24",
        ],
    );

    // A reload brings others.
    node.write_config(&files.tables().replace("south", "north"))
        .unwrap();
    node.admin("reload").unwrap();
    assert_eq!(
        node.admin_json("chains").unwrap()["chains"][0]["name"],
        "north"
    );
    // Another number waits for a restart, and what hangs on it.
    let renumbered = files.tables().replace("id = 7", "id = 6");
    node.write_config(&renumbered).unwrap();
    let report = node.admin_json("reload").unwrap();
    assert_eq!(report["needs_restart"], json!(["node.id"]));
    let list = node.admin_json("chains").unwrap();
    assert_eq!(
        (&list["id"], &list["chains"][0]["name"]),
        (&7.into(), &"north".into())
    );
}

// promise: C6
#[test]
fn chains_explain() {
    let network = line();
    let files = Files::new();
    let node = start(&network, &files.tables());
    let file = files.config(&files.tables());
    let offline = |words: &str| {
        let mut all = vec!["chains", "explain", "-c", &file, "--json"];
        all.extend(words.split(' '));
        serde_json::from_str::<Value>(&printed(&posthaste(&all))).unwrap()
    };
    for (question, number, chain) in [
        ("198.51.100.7:443", 2, "south"),
        ("198.51.100.7", 2, "south"),
        ("203.0.113.1:80 --from 192.0.2.5", 1, "east"),
        ("[2001:db8:5::1]:80", 2, "south"),
        ("2001:db8:6::1", 1, "east"),
    ] {
        let mut requested = node
            .admin_json(&format!("chains explain {question}"))
            .unwrap();
        assert_eq!(requested["routes"][0]["number"], number, "{requested:#}");
        let taken = usize::try_from(requested["next_hops"]["taken"].as_u64().unwrap()).unwrap();
        assert_eq!(
            requested["next_hops"]["candidates"][taken]["chain"], chain,
            "{requested:#}"
        );
        assert_eq!(requested["workers_queried"], true);
        requested["workers_queried"] = false.into();
        assert_eq!(offline(question), requested);
    }
    let requested = offline("10.1.1.1:80 --from 192.0.2.5");
    assert_eq!(
        requested["access"],
        json!({"denied": "private", "client_admitted": true})
    );
    let requested = offline("198.51.100.7:80 --from 10.0.0.1");
    assert_eq!(
        requested["access"],
        json!({"denied": null, "client_admitted": false})
    );

    let text = node
        .admin("chains explain 198.51.100.7 --from 10.0.0.1")
        .unwrap();
    let words = [
        "\"all\": the flow is relayed",
        "2 (destination in 198.51.100.0/24)",
        "before 1 (for all)",
        "chain south by way of paris",
        "<- taken",
        "the client may not connect without a key",
    ];
    assert_reports(&text, &words);
}

// promise: C6
#[test]
fn invalid_questions_refused() {
    for (words, code, saying) in [
        ("example.org", 2, "expected an address"),
        ("198.51.100.7:0", 2, "expected an address"),
        ("198.51.100.7 --from here", 2, "invalid IP address"),
        ("198.51.100.7 --from ::1", 1, "addresses of one family"),
        (
            "198.51.100.7 --socket /nowhere/admin.sock",
            1,
            "no node answers at /nowhere",
        ),
        (
            "198.51.100.7 -c /nowhere.toml",
            2,
            "/nowhere.toml: cannot be read",
        ),
        ("198.51.100.7 -c /x --socket /y", 2, "cannot be used with"),
    ] {
        let all: Vec<&str> = ["chains", "explain"]
            .into_iter()
            .chain(words.split(' '))
            .collect();
        assert_reports(&failure_text(&posthaste(&all), code), &[saying]);
    }
    let none = posthaste(["chains", "--socket", "/nowhere/admin.sock"]);
    assert_reports(&failure_text(&none, 1), &["no node answers at /nowhere"]);
}

// promise: C7
#[test]
fn explicit_node_takes_nothing() {
    let network = line();
    let host = network.node(0);
    let listener = listen(network.server(), PORT);
    let files = Files::new();
    let tables = files.tables() + "[[listener]]\n[transparent]\nenabled = false\n";
    let file = files.config(&tables);
    let mut setup = host.command(binary()).unwrap();
    let setup = setup.args(["setup", "-c", &file]).output().unwrap();
    assert_eq!(printed(&setup), "nothing to do\n");
    let mut node = start_relaying(&network, &tables);
    // Its programs at two interfaces, no rule and no route.
    assert_eq!(installed(host).len(), 2, "{:#?}", installed(host));
    for family in Family::ALL {
        let mut pair = Pair::open(&network, family, &listener);
        pair.check();
        pair.close_client_first();
    }
    assert_eq!(counter(&node, "relays_opened"), 0);
    assert_eq!(node.stop(SOON).unwrap().code(), Some(0));
    assert_nothing_left(host);
}

// promise: C6
#[test]
fn failed_peer_shown_down() {
    let network = line();
    let listener = listen(network.server(), PORT);
    let files = Files::new();
    // No socket listens there.
    let server = network.server_address(Family::V4);
    let tables = files
        .tables()
        .replace("192.0.2.8:4480", &format!("{server}:4480"));
    let tables = tables
        + "[[route]]\ndestinations = [\"10.0.0.0/8\"]\nports = [4000]\nchains = [\"south\"]\n";
    let tables = tables.replace("ports = [4000]", &format!("ports = [{PORT}]"));
    let tables = tables.replace("[node]\n", "[node]\nworkers = 1\n");
    let node = start_relaying(&network, &tables);
    let question = format!("chains explain {server}:{PORT}");
    let before = node.admin_json(&question).unwrap();
    assert_eq!(before["next_hops"]["taken"], 0, "{before:#}");
    // The peer is down for some seconds only; a slow machine may take longer to query it.
    until("a peer that is down", || {
        Pair::open(&network, Family::V4, &listener).check();
        let list = node.admin_json("chains").unwrap();
        let text = node.admin("chains").unwrap();
        let after = node.admin_json(&question).unwrap();
        let health = &list["peers"][0]["health"];
        health["down_at"].as_u64() > Some(0)
            && health["down_for_ms"].as_u64() > Some(0)
            && text.contains("down for")
            && after["next_hops"]["candidates"][0]["usable"] == false
            && after["next_hops"]["taken"] == 1
    });
}

// promise: C6
#[test]
fn idle_warm_hops_counted() {
    let network = network([Link::Veth, Link::Veth, Link::Veth]);
    let files = Files::new();
    let key = files.key.display();
    let address = |node: usize| network.node_address(node, Family::V6);
    let peer = |name: &str, id: u32, node: usize| {
        format!(
            "[[peer]]\nname = \"{name}\"\nid = {id}\naddress = \"[{}]:4480\"\nkey_file = \"{key}\"\n",
            address(node)
        )
    };
    let second = format!(
        "[node]\nid = 8\n[[listener]]\naddress = \"[{}]:4480\"\n{}pool_max = 0\n",
        address(1),
        peer("first", 7, 0)
    );
    let first = format!(
        "[node]\nid = 7\nworkers = 2\n{}pool_min = 3\n",
        peer("second", 8, 1)
    );
    let _second = start_in(network.node(1), &second);
    let node = start_in(network.node(0), &first);
    until("three warm hops at each worker", || {
        node.admin_json("chains").unwrap()["peers"][0]["waiting"] == 6
    });
    let list = node.admin_json("chains").unwrap();
    let health = json!({"usable": true, "known_to": 2, "down_at": 0, "down_for_ms": 0});
    assert_eq!(list["peers"][0]["health"], health);
    let text = node.admin("chains").unwrap();
    let row = text
        .lines()
        .find(|line| line.starts_with("second"))
        .unwrap();
    let cells: Vec<&str> = row.split_whitespace().collect();
    // Waiting, taken, in vain, lost.
    assert!(
        row.contains("up") && cells.ends_with(&["6", "0", "0", "0"]),
        "{text}"
    );
    let round: f64 = cells[cells.len() - 7].parse().unwrap();
    assert!(round < 30_000.0, "{text}");
}
