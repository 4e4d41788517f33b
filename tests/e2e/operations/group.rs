// SPDX-License-Identifier: Apache-2.0
//! Who may use the admin socket: root, the node's own user, and members of `admin.group`. Other
//! users receive that reason, and not that there is no node.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use posthaste_lab::process::Process;
use serde_json::Value;

use super::service::{NOBODY, Service};
use crate::support::{SOON, binary, line};
use crate::verbs::{assert_reports, failure_text, printed};

/// A group that no host has a name for.
const GROUP: u32 = 4_000_123;
/// Another.
const OTHERS: u32 = 4_000_124;
const NO_MORE: &str = "--clear-groups";

/// Every verb that queries the node.
const VERBS: [&str; 9] = [
    "status",
    "top --count 1 --interval 0.1",
    "relays list",
    "relays show 1",
    "relays kill 1",
    "chains",
    "links",
    "drain",
    "reload",
];

/// Starts a node that root runs, with these files.
fn start_as_root(network: &posthaste_lab::network::Network, service: &Service) -> Process {
    let mut command = network.node(0).command(binary()).unwrap();
    command.arg("node").arg("-c").arg(service.file());
    let mut node = Process::spawn("the node", command).unwrap();
    let is_ready = |node: &Process| node.stdout().contains("is ready\"");
    let ready = node.wait_until("word that it is ready", SOON, is_ready);
    assert!(ready.is_ok(), "{}", node.stderr());
    node
}

fn with_socket(service: &Service, words: &str) -> String {
    format!("{words} --socket {}", service.socket().display())
}

// promise: H12
#[test]
fn group_members_allowed() {
    let network = line();
    let service = Service::new(&format!("group = {GROUP}"));
    let _node = start_as_root(&network, &service);
    let socket = fs::metadata(service.socket()).unwrap();
    assert_eq!((socket.gid(), socket.mode() & 0o777), (GROUP, 0o660));
    for (group, groups) in [
        (GROUP, NO_MORE.to_owned()),
        (NOBODY, format!("--groups={OTHERS},{GROUP}")),
    ] {
        let status = service.run_as(group, &groups, &with_socket(&service, "status"));
        assert_reports(&printed(&status), &["posthaste ", "ready"]);
        let reload = service.run_as(group, &groups, &with_socket(&service, "reload"));
        assert_reports(&printed(&reload), &["reloaded"]);
    }
    let meaning = service.run_as(
        NOBODY,
        NO_MORE,
        &format!("check {} --json", service.file().display()),
    );
    let meaning: Value = serde_json::from_str(&printed(&meaning)).unwrap();
    assert_eq!(meaning["admin"]["group"], GROUP);
}

// promise: H12
#[test]
fn denied_users_get_reason() {
    let network = line();
    let service = Service::new(&format!("group = {GROUP}"));
    let _node = start_as_root(&network, &service);
    let path = service.socket().display().to_string();
    for words in VERBS {
        let output = service.run_as(OTHERS, NO_MORE, &with_socket(&service, words));
        let message = failure_text(&output, 1);
        let denied = format!("permission denied on {path}");
        assert_reports(
            &message,
            &[&denied, &format!("group {GROUP}"), "be root or a member"],
        );
        for wrong in ["is one running", "no node answers", "killed"] {
            assert!(!message.contains(wrong), "{message}");
        }
    }
    // The node runs, whatever its user may not see.
    let words = format!("doctor --json -c {}", service.file().display());
    let output = {
        let mut command = network.node(0).command("setpriv").unwrap();
        command
            .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .arg(service.program())
            .args(words.split(' '));
        command.output().unwrap()
    };
    let diagnosis: Value = serde_json::from_slice(&output.stdout).unwrap();
    let findings = diagnosis["findings"].as_array().unwrap();
    let node = findings
        .iter()
        .find(|finding| finding["check"] == "node")
        .unwrap();
    let what = node["what"].as_str().unwrap();
    assert_reports(what, &["permission denied", &path]);
    assert!(!what.contains("killed"), "{what}");
}

// promise: H12
#[test]
fn closed_directory_named() {
    let network = line();
    let service = Service::new(&format!("group = {GROUP}"));
    let directory = service.socket().parent().unwrap().to_owned();
    fs::set_permissions(&directory, Permissions::from_mode(0o700)).unwrap();
    let mut node = start_as_root(&network, &service);
    // The node logs that itself.
    let warned = |node: &Process| node.stdout().contains("members of the group cannot enter");
    node.wait_until("a warning", SOON, warned).unwrap();
    let output = service.run_as(GROUP, NO_MORE, &with_socket(&service, "status"));
    let denied = format!("permission denied on the directory {}", directory.display());
    assert_reports(&failure_text(&output, 1), &[&denied, "mode 0700"]);
}

// promise: H12
#[test]
fn socket_for_own_groups() {
    let network = line();
    let host = network.node(0);
    let service = Service::new(&format!("group = {GROUP}"));
    let mut node = service.spawn(host, &[]);
    assert_eq!(node.wait(SOON).unwrap().code(), Some(1));
    assert_reports(
        &node.stderr(),
        &[
            &format!("admin.group = \"{GROUP}\""),
            "as root or as a member",
            "SupplementaryGroups=",
        ],
    );
    let _node = service.start(host, &[GROUP]);
    assert_eq!(fs::metadata(service.socket()).unwrap().gid(), GROUP);
    let status = service.run_as(GROUP, NO_MORE, &with_socket(&service, "status"));
    assert_reports(&printed(&status), &["ready"]);
}

// promise: H12
#[test]
fn stale_socket_is_no_denial() {
    let service = Service::new("");
    let query = || service.run_as(NOBODY, NO_MORE, &with_socket(&service, "status"));
    let none = failure_text(&query(), 1);
    assert_reports(
        &none,
        &[
            "no node answers at",
            "there is no such file",
            "is one running?",
        ],
    );
    drop(std::os::unix::net::UnixListener::bind(service.socket()).unwrap());
    fs::set_permissions(service.socket(), Permissions::from_mode(0o666)).unwrap();
    let stale = failure_text(&query(), 1);
    assert_reports(&stale, &["no node answers at", "no process serves it"]);
}

#[test]
fn unknown_group_named() {
    let service = Service::new("group = \"no-such-group\"");
    let words = format!("check {}", service.file().display());
    let message = failure_text(&service.run_as(NOBODY, NO_MORE, &words), 2);
    assert_reports(
        &message,
        &[
            "admin.group = \"no-such-group\"",
            "a group of this host",
            "number of a group",
        ],
    );
}
