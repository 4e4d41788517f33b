// SPDX-License-Identifier: Apache-2.0
//! An upgrade as a service manager sees it, and when a reload is enough.

use std::io::ErrorKind;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use posthaste_lab::network::Family;
use posthaste_lab::node::Node;
use posthaste_lab::scratch::Scratch;
use serde_json::Value;

use super::{Place, Testbed};
use crate::support::{PORT, Pair, SOON, binary, install_program, line, listen, until};

/// A socket as systemd's.
struct Manager(Receiver<String>);

impl Manager {
    /// Reads all the time, as systemd does.
    fn at(path: &Path) -> Self {
        let socket = UnixDatagram::bind(path).unwrap();
        let (notices, manager) = channel();
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(length) = socket.recv(&mut buffer) {
                let notice = String::from_utf8_lossy(&buffer[..length]).into_owned();
                if notices.send(notice).is_err() {
                    return;
                }
            }
        });
        Self(manager)
    }

    fn next(&self) -> String {
        self.0.recv_timeout(SOON).expect("a notice")
    }

    /// Reads notices until one has all of `words`; none may have `never`.
    fn receive_all(&self, words: &[&str], never: &str) {
        loop {
            let notice = self.next();
            assert!(!notice.contains(never), "{notice}");
            if words.iter().all(|word| notice.contains(word)) {
                return;
            }
        }
    }
}

// promise: W4
#[test]
fn main_process_reported() {
    let network = line();
    let host = network.node(0);
    let directory = Scratch::new().unwrap();
    let path = directory.path().join("notify");
    let manager = Manager::at(&path);
    let under = |words: &str| crate::operations::wrapper(words);
    let words = format!("env NOTIFY_SOCKET={} WATCHDOG_USEC=400000", path.display());
    let script = under(&words);
    let node = Node::builder(host, script.path().join("posthaste"));
    let mut place = Place::of(node.start().unwrap());
    manager.receive_all(&["READY=1"], "STOPPING");
    // Not under the manager: it would lose sight of the process.
    let output = place.try_upgrade(host, &[]);
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(message.contains("systemctl reload posthaste"), "{message}");
    let mut command = host.command(binary()).unwrap();
    command.env("NOTIFY_SOCKET", &path);
    let output = place.upgrade_by(command, &[]);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let last = place.pid();
    assert_ne!(last, place.first());
    manager.receive_all(&[&format!("MAINPID={last}"), "READY=1"], "STOPPING");
    // The end of the first process is not reported, and the last sends the watchdog notifications.
    place.until_ended(place.first());
    for _ in 0..3 {
        manager.receive_all(&["WATCHDOG=1"], "STOPPING");
    }
}

/// A node under a manager that reads none of its notifications answers all the same.
#[test]
fn manager_may_be_stuck() {
    let network = line();
    let directory = Scratch::new().unwrap();
    let path = directory.path().join("notify");
    let _stuck = UnixDatagram::bind(&path).unwrap();
    let words = format!("env NOTIFY_SOCKET={} WATCHDOG_USEC=40000", path.display());
    let script = crate::operations::wrapper(&words);
    let node = Node::builder(network.node(0), script.path().join("posthaste"));
    let node = node.start().unwrap();
    let other = UnixDatagram::unbound().unwrap();
    other.connect(&path).unwrap();
    other.set_nonblocking(true).unwrap();
    until("a full queue", || {
        let sent = other.send(b"WATCHDOG=1");
        sent.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    });
    for _ in 0..10 {
        thread::sleep(Duration::from_millis(40));
        node.status().expect("the node answers");
    }
}

// promise: W4
#[test]
fn reload_without_replacement() {
    let testbed = Testbed::start("");
    let first = testbed.place.first();
    let upgrade = || testbed.place.try_upgrade(testbed.host(), &["--if-needed"]);
    testbed
        .place
        .node
        .write_config("[node]\nlog_connections = false\n")
        .unwrap();
    let output = upgrade();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["needs_restart"], serde_json::json!([]));
    assert_eq!(testbed.place.pid(), first);
    assert_eq!(
        testbed.place.node.status().unwrap()["reloads"]["succeeded"],
        1
    );
    // With another number of workers it is not.
    testbed
        .place
        .node
        .write_config("[node]\nworkers = 3\n")
        .unwrap();
    let listener = listen(testbed.network.server(), PORT);
    let mut pair = Pair::open(&testbed.network, Family::V4, &listener);
    assert!(upgrade().status.success());
    assert_ne!(testbed.place.pid(), first);
    assert_eq!(testbed.place.node.status().unwrap()["workers"], 3);
    pair.check();
    pair.close_client_first();
    // Nor with another program.
    let directory = Scratch::new().unwrap();
    let program = directory.path().join("posthaste");
    install_program(&binary(), &program);
    let before = testbed.place.pid();
    let command = testbed.host().command(&program).unwrap();
    assert!(
        testbed
            .place
            .upgrade_by(command, &["--if-needed"])
            .status
            .success()
    );
    assert_ne!(testbed.place.pid(), before);
    testbed.end();
}
