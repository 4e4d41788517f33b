// SPDX-License-Identifier: Apache-2.0
//! What an operator says of other nodes and asks about them: keys, the configuration of peers
//! and chains, and the verbs that list and explain them.

#![allow(clippy::unwrap_used, reason = "a test ends where it finds a failure")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use posthaste_lab::link::Link;
use posthaste_lab::network::Family;
use posthaste_lab::scratch::Scratch;
use serde_json::{Value, json};

use crate::support::{
    PORT, Pair, SOON, binary, counter, line, listen, network, start, start_in, until,
};
use crate::watch::{assert_nothing_left, installed};

/// Runs the program to its end.
fn posthaste(words: &[&str]) -> Output {
    Command::new(binary()).args(words).output().unwrap()
}

/// What a run that succeeded printed.
fn printed(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// What a run that failed said, if it failed with that exit code.
fn said(output: &Output, code: i32) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    stderr
}

/// Asserts that a message has all of `words`.
fn assert_says(message: &str, words: &[&str]) {
    for word in words {
        assert!(message.contains(word), "no {word:?} in: {message}");
    }
}

/// A directory with a key and a configuration.
struct Files {
    directory: Scratch,
    key: PathBuf,
}

impl Files {
    fn new() -> Self {
        let directory = Scratch::new().unwrap();
        let key = directory.path().join("paris.key");
        let output = posthaste(&["keys", "generate", "--output", key.to_str().unwrap()]);
        assert_eq!(printed(&output), "");
        Self { directory, key }
    }

    /// A configuration with these tables.
    fn config(&self, tables: &str) -> String {
        let path = self.directory.path().join("node.toml");
        fs::write(&path, format!("version = 1\n{tables}")).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// A node that knows two others, which it dials for a flow alone, and which flows are for
    /// them.
    fn tables(&self) -> String {
        let key = self.key.display();
        format!(
            "[node]\nid = 7\n\
             [access]\nclients = [\"192.0.2.0/24\"]\n\
             [[peer]]\nname = \"paris\"\nid = 8\naddress = \"192.0.2.8:4480\"\nkey_file = \"{key}\"\npool_max = 0\n\
             [[peer]]\nname = \"rome\"\nid = 9\naddress = \"[2001:db8::9]:4480\"\nkey_file = \"{key}\"\npool_max = 0\n\
             [[chain]]\nname = \"south\"\nnumber = 1\nnodes = [\"paris\", \"tunis\"]\n\
             [[chain]]\nname = \"east\"\nnumber = 2\nnodes = [\"rome\"]\n\
             [[route]]\nchains = [\"east\"]\n\
             [[route]]\ndestinations = [\"198.51.100.0/24\", \"10.0.0.0/8\", \"2001:db8:5::/48\"]\n\
             chains = [\"south\", \"east\"]\ndirect = false\n"
        )
    }
}

#[test]
fn a_key_is_made_once_and_for_its_owner() {
    let key = printed(&posthaste(&["keys", "generate"]));
    let digits = key.trim_end();
    assert!(
        digits.len() == 64 && digits.chars().all(|c| c.is_ascii_hexdigit()),
        "{key}"
    );
    assert_ne!(printed(&posthaste(&["keys", "generate"])), key);

    let files = Files::new();
    let written = fs::read_to_string(&files.key).unwrap();
    let mode = fs::metadata(&files.key).unwrap().permissions().mode();
    assert_eq!((written.len(), mode & 0o777), (65, 0o600));
    let path = files.key.to_str().unwrap();
    let again = posthaste(&["keys", "generate", "--output", path]);
    assert_says(&said(&again, 1), &[path, "is not overwritten"]);
    assert_eq!(fs::read_to_string(&files.key).unwrap(), written);
    let nowhere = posthaste(&["keys", "generate", "--output", "/nowhere/key"]);
    assert_says(&said(&nowhere, 1), &["create /nowhere/key", "No such file"]);
}

/// A peer on lines 4 to 8, below a node's number on lines 2 and 3.
const PEER: &str = "[node]\nid = 7\n[[peer]]\nname = \"a\"\nid = 8\naddress = \"192.0.2.8:4480\"\n";

/// What follows a peer without a key, where the mistake is, and what is said of it.
const WRONG: &[(&str, &str, &[&str])] = &[
    (
        "",
        ":4:1",
        &[
            "peer \"a\": key is missing",
            "64 hexadecimal digits",
            "key_file",
        ],
    ),
    (
        "key = \"c0ffee\"",
        ":8:7",
        &["peer \"a\": key = (hidden)", "posthaste keys generate"],
    ),
    (
        "key_file = \"a.key\"",
        ":8:12",
        &["key_file = \"a.key\"", "an absolute path"],
    ),
    (
        "key_file = \"/nowhere/a.key\"",
        ":8:12",
        &["cannot be read", "No such file"],
    ),
    (
        "key_file = \"/proc\"",
        ":8:12",
        &["cannot be read", "not a file"],
    ),
    (
        "key_file = \"/proc/version\"",
        ":8:12",
        &["expected 64 hexadecimal digits in it"],
    ),
    (
        "KEY\nkey_file = \"/x\"",
        ":9:12",
        &["key and key_file: expected one of them"],
    ),
    (
        "KEY\npool_min = 9\npool_max = 8",
        ":9:12",
        &["pool_min = 9", "at most pool_max, which is 8"],
    ),
    (
        "KEY\nkey_id = -1",
        ":9:10",
        &["key_id = -1", "from 0 to 4294967295"],
    ),
    (
        "KEY\n[peer.socket]\nidle = 3",
        ":10:1",
        &["peer.socket.idle", "unknown key"],
    ),
    (
        "KEY\n[peer.socket]\ninitial_window = 0",
        ":10:18",
        &["socket.initial_window = 0", "from 1 to 1000"],
    ),
    (
        "KEY\n[peer.socket]\ncongestion = \"warp\"",
        ":10:14",
        &["socket.congestion = \"warp\"", "cubic"],
    ),
    (
        "KEY\n[[peer]]\nname = \"a\"\nid = 8",
        ":9:1",
        &[
            "peer.name = \"a\": is the name of peer 1 already",
            "peer.id = 8: is the id of peer 1 already",
            "peer \"a\": address is missing",
        ],
    ),
    (
        "KEY\n[[peer]]\nid = 7\naddress = \"rome\"",
        ":9:1",
        &["is this node's own number", "address = \"rome\""],
    ),
    (
        "KEY\n[[chain]]\nname = \"c\"\nnumber = 0\nnodes = [\"a\"]",
        ":11:10",
        &["number = 0", "1 to 16777214"],
    ),
    (
        "KEY\n[[chain]]\nname = \"c\"\nnumber = 1\nnodes = []",
        ":9:1",
        &["nodes has 0 names", "1 to 254"],
    ),
    (
        "KEY\n[[chain]]\nname = \"c\"\nnumber = 1\nnodes = [\"a\", \"a\"]",
        ":12:15",
        &["is named twice"],
    ),
    (
        "KEY\n[[chain]]\nname = \"c\"\nnumber = 1\nnodes = [\"z\"]\n[[route]]\nchains = [\"c\", \"d\"]",
        ":14:11",
        &[
            "route 1: chains = \"c\": begins with \"z\", which is no peer",
            "route 1: chains = \"d\": expected the name of a chain: c",
        ],
    ),
    (
        "KEY\n[[route]]\ndirect = false",
        ":9:1",
        &["route 1 leads nowhere"],
    ),
    (
        "KEY\n[[route]]\nsources = [\"10.0.0.1/8\"]",
        ":10:12",
        &["route 1: sources", "\"10.0.0.0/8\""],
    ),
    (
        "KEY\n[[listener]]\nmode = \"socks\"",
        ":10:8",
        &["listener.mode = \"socks\"", "\"explicit\""],
    ),
    (
        "KEY\n[[listener]]\naddress = \"localhost:1\"",
        ":10:11",
        &["\"127.0.0.1:4480\""],
    ),
    (
        "KEY\n[[listener]]\n[[listener]]",
        ":10:1",
        &["is the address of listener 1 already"],
    ),
    (
        "KEY\n[transparent]\nenabled = false",
        ":10:11",
        &["a [[listener]] as well"],
    ),
    (
        "KEY\n[access]\nclients = \"all\"",
        ":10:11",
        &["access.clients"],
    ),
    (
        "KEY\n[access]\ncookies = 1",
        ":10:11",
        &["access.cookies = 1", "true or false"],
    ),
];

#[test]
fn every_mistake_about_other_nodes_is_named_with_its_place() {
    let files = Files::new();
    let digits = fs::read_to_string(&files.key).unwrap();
    let key = format!("key = \"{}\"", digits.trim_end());
    let mut cases: Vec<_> = WRONG
        .iter()
        .map(|(text, place, words)| (format!("{PEER}{text}"), *place, *words))
        .collect();
    let unnumbered = PEER.replace("id = 7\n", "");
    cases.push((
        unnumbered + "KEY",
        ":3:1",
        &["node.id is missing", "a node with peers"],
    ));
    cases.push((
        "[[listener]]".into(),
        ":2:1",
        &["node.id is missing", "explicit listeners"],
    ));
    cases.push((
        "[node]\nid = 0".into(),
        ":3:6",
        &["node.id = 0", "from 1 to"],
    ));
    for (text, place, words) in cases {
        let file = files.config(&text.replace("KEY", &key));
        let message = said(&posthaste(&["check", &file]), 2);
        let start = format!("posthaste: {file}{place}: ");
        assert!(
            message.starts_with(&start),
            "{text}\n{message}\nnot at {start}"
        );
        assert_says(&message, words);
        assert!(
            !message.contains("c0ffee") && !message.contains(digits.trim_end()),
            "{message}"
        );
    }
}

#[test]
fn check_shows_other_nodes_and_no_key() {
    let files = Files::new();
    let digits = fs::read_to_string(&files.key).unwrap();
    let file = files.config(&files.tables());
    let text = printed(&posthaste(&["check", &file]));
    assert_says(
        &text,
        &[
            "[[peer]]",
            "[peer.socket]",
            "[[chain]]",
            "[[route]]",
            "\"tunis\"",
        ],
    );
    assert_says(&text, &[files.key.to_str().unwrap()]);
    // What is printed means the same.
    let meaning = printed(&posthaste(&["check", &file, "--json"]));
    fs::write(&file, text).unwrap();
    assert_eq!(printed(&posthaste(&["check", &file, "--json"])), meaning);

    let key = format!("key = \"{}\"", digits.trim_end());
    let inline = files.config(&format!("{PEER}{key}\n"));
    for words in [&["check", &inline][..], &["check", &inline, "--json"]] {
        let output = posthaste(words);
        assert_says(&printed(&output), &["(hidden)"]);
        let all = [output.stdout, output.stderr].concat();
        assert!(!String::from_utf8_lossy(&all).contains(digits.trim_end()));
    }
}

#[test]
fn keys_that_others_can_read_are_warned_of() {
    let files = Files::new();
    let warnings = |file: &str| {
        let output = posthaste(&["check", file]);
        printed(&output);
        String::from_utf8(output.stderr).unwrap()
    };
    let open = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    let file = files.config(&files.tables());
    assert_eq!(warnings(&file), "");
    open(&files.key, 0o644);
    let key = files.key.display();
    assert_says(
        &warnings(&file),
        &[&format!("chmod o= {key}"), "peer \"paris\": key_file"],
    );
    open(&files.key, 0o640);
    assert_eq!(warnings(&file), "");

    let digits = fs::read_to_string(&files.key).unwrap();
    let file = files.config(&format!("{PEER}key = \"{}\"\n", digits.trim_end()));
    open(Path::new(&file), 0o644);
    assert_says(
        &warnings(&file),
        &["there are keys in it", &format!("chmod o= {file}")],
    );
    open(Path::new(&file), 0o600);
    assert_eq!(warnings(&file), "");
}

#[test]
fn a_running_node_lists_its_chains() {
    let network = line();
    let files = Files::new();
    let node = start(&network, &files.tables());
    let list = node.admin_json("chains").unwrap();
    assert_eq!(list["id"], 7);
    let peer = &list["peers"][1];
    assert_eq!(
        [&peer["name"], &peer["address"]],
        ["rome", "[2001:db8::9]:4480"]
    );
    assert_eq!(list["chains"][0]["nodes"], json!(["paris", "tunis"]));
    assert_eq!(list["routes"][1]["ways"]["candidates"][0]["peer"], "paris");
    assert_eq!(list["incomplete"], false);
    let text = node.admin("chains").unwrap();
    assert_says(
        &text,
        &[
            "node 7",
            "paris > tunis",
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

#[test]
fn a_node_and_a_file_explain_the_way_of_a_flow() {
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
        let mut asked = node
            .admin_json(&format!("chains explain {question}"))
            .unwrap();
        assert_eq!(asked["routes"][0]["number"], number, "{asked:#}");
        let taken = usize::try_from(asked["ways"]["taken"].as_u64().unwrap()).unwrap();
        assert_eq!(
            asked["ways"]["candidates"][taken]["chain"], chain,
            "{asked:#}"
        );
        assert_eq!(asked["asked"], true);
        asked["asked"] = false.into();
        assert_eq!(offline(question), asked);
    }
    let asked = offline("10.1.1.1:80 --from 192.0.2.5");
    assert_eq!(
        asked["access"],
        json!({"denied": "private", "client_admitted": true})
    );
    let asked = offline("198.51.100.7:80 --from 10.0.0.1");
    assert_eq!(
        asked["access"],
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
        "the client may not ask without a key",
    ];
    assert_says(&text, &words);
}

#[test]
fn questions_that_make_no_sense_are_refused() {
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
        assert_says(&said(&posthaste(&all), code), &[saying]);
    }
    let none = posthaste(&["chains", "--socket", "/nowhere/admin.sock"]);
    assert_says(&said(&none, 1), &["no node answers at /nowhere"]);
}

#[test]
fn a_node_that_is_only_asked_takes_no_flow() {
    let network = line();
    let host = network.node(0);
    let listener = listen(network.server(), PORT);
    let files = Files::new();
    let tables = files.tables() + "[[listener]]\n[transparent]\nenabled = false\n";
    let file = files.config(&tables);
    let mut setup = host.command(binary()).unwrap();
    let setup = setup.args(["setup", "-c", &file]).output().unwrap();
    assert_eq!(printed(&setup), "nothing to do\n");
    let mut node = start(&network, &tables);
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

#[test]
fn a_peer_that_fails_is_shown_as_down_and_passed_over() {
    let network = line();
    let listener = listen(network.server(), PORT);
    let files = Files::new();
    // Nobody listens there.
    let server = network.server_address(Family::V4);
    let tables = files
        .tables()
        .replace("192.0.2.8:4480", &format!("{server}:4480"));
    let tables = tables
        + "[[route]]\ndestinations = [\"10.0.0.0/8\"]\nports = [4000]\nchains = [\"south\"]\n";
    let tables = tables.replace("ports = [4000]", &format!("ports = [{PORT}]"));
    let tables = tables.replace("[node]\n", "[node]\nworkers = 1\n");
    let node = start(&network, &tables);
    let question = format!("chains explain {server}:{PORT}");
    let before = node.admin_json(&question).unwrap();
    assert_eq!(before["ways"]["taken"], 0, "{before:#}");
    // It is down for some seconds only, which a slow machine may take to ask.
    until("a peer that is down", || {
        Pair::open(&network, Family::V4, &listener).check();
        let list = node.admin_json("chains").unwrap();
        let text = node.admin("chains").unwrap();
        let after = node.admin_json(&question).unwrap();
        let health = &list["peers"][0]["health"];
        health["down_at"].as_u64() > Some(0)
            && health["down_for_ms"].as_u64() > Some(0)
            && text.contains("down for")
            && after["ways"]["candidates"][0]["usable"] == false
            && after["ways"]["taken"] == 1
    });
}

#[test]
fn warm_hops_that_wait_are_counted() {
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
    let round: f64 = cells[cells.len() - 5].parse().unwrap();
    assert!(round < 30_000.0, "{text}");
}
