// SPDX-License-Identifier: Apache-2.0
//! Files: keys that are made, and configurations of other nodes that are checked.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::Files;
use crate::verbs::{assert_reports, failure_text, posthaste, printed};

// promise: C5
#[test]
fn key_made_once() {
    let key = printed(&posthaste(["keys", "generate"]));
    let digits = key.trim_end();
    assert!(
        digits.len() == 64 && digits.chars().all(|c| c.is_ascii_hexdigit()),
        "{key}"
    );
    assert_ne!(printed(&posthaste(["keys", "generate"])), key);

    let files = Files::new();
    let written = fs::read_to_string(&files.key).unwrap();
    let mode = fs::metadata(&files.key).unwrap().permissions().mode();
    assert_eq!((written.len(), mode & 0o777), (65, 0o600));
    let path = files.key.to_str().unwrap();
    let again = posthaste(["keys", "generate", "--output", path]);
    assert_reports(&failure_text(&again, 1), &[path, "is not overwritten"]);
    assert_eq!(fs::read_to_string(&files.key).unwrap(), written);
    let nowhere = posthaste(["keys", "generate", "--output", "/nowhere/key"]);
    assert_reports(
        &failure_text(&nowhere, 1),
        &["create /nowhere/key", "No such file"],
    );
}

/// A peer on lines 4 to 8, below a node's number on lines 2 and 3.
const PEER: &str = "[node]\nid = 7\n[[peer]]\nname = \"a\"\nid = 8\naddress = \"192.0.2.8:4480\"\n";

/// What follows a peer without a key, the position of the mistake, and its message.
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
        "KEY\n[[chain]]\nname = \"c\"\nnodes = [\"a\", 65535]",
        ":11:15",
        &["nodes = 65535", "1 to 65534"],
    ),
    (
        "KEY\n[[chain]]\nname = \"c\"\nnodes = []",
        ":9:1",
        &["nodes has 0 entries", "1 to 8"],
    ),
    (
        "KEY\n[[chain]]\nname = \"c\"\nnodes = [\"a\", \"a\"]",
        ":11:15",
        &["is named twice"],
    ),
    (
        "KEY\n[[chain]]\nname = \"c\"\nnodes = [\"z\"]\n[[route]]\nchains = [\"c\", \"d\"]",
        ":11:10",
        &[
            "chain \"c\": nodes = \"z\": is no peer",
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

// promise: C1
#[test]
fn peer_mistakes_have_places() {
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
        let message = failure_text(&posthaste(["check", &file]), 2);
        let start = format!("posthaste: {file}{place}: ");
        assert!(
            message.starts_with(&start),
            "{text}\n{message}\nnot at {start}"
        );
        assert_reports(&message, words);
        assert!(
            !message.contains("c0ffee") && !message.contains(digits.trim_end()),
            "{message}"
        );
    }
}

// promise: C2
#[test]
fn check_hides_keys() {
    let files = Files::new();
    let digits = fs::read_to_string(&files.key).unwrap();
    let file = files.config(&files.tables());
    let text = printed(&posthaste(["check", &file]));
    assert_reports(
        &text,
        &["[[peer]]", "[peer.socket]", "[[chain]]", "[[route]]", "12"],
    );
    assert_reports(&text, &[files.key.to_str().unwrap()]);
    // What is printed means the same.
    let meaning = printed(&posthaste(["check", &file, "--json"]));
    fs::write(&file, text).unwrap();
    assert_eq!(printed(&posthaste(["check", &file, "--json"])), meaning);

    let key = format!("key = \"{}\"", digits.trim_end());
    let inline = files.config(&format!("{PEER}{key}\n"));
    for words in [&["check", &inline][..], &["check", &inline, "--json"]] {
        let output = posthaste(words);
        assert_reports(&printed(&output), &["(hidden)"]);
        let all = [output.stdout, output.stderr].concat();
        assert!(!String::from_utf8_lossy(&all).contains(digits.trim_end()));
    }
}

// promise: C3
#[test]
fn readable_keys_warned() {
    let files = Files::new();
    let warnings = |file: &str| {
        let output = posthaste(["check", file]);
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
    assert_reports(
        &warnings(&file),
        &[&format!("chmod o= {key}"), "peer \"paris\": key_file"],
    );
    open(&files.key, 0o640);
    assert_eq!(warnings(&file), "");

    let digits = fs::read_to_string(&files.key).unwrap();
    let file = files.config(&format!("{PEER}key = \"{}\"\n", digits.trim_end()));
    open(Path::new(&file), 0o644);
    assert_reports(
        &warnings(&file),
        &["there are keys in it", &format!("chmod o= {file}")],
    );
    open(Path::new(&file), 0o600);
    assert_eq!(warnings(&file), "");
}
