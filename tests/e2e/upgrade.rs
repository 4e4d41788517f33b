// SPDX-License-Identifier: Apache-2.0
//! A new process takes a node's place: open connections continue, new ones are relayed, and a
//! failure leaves the node as it was.

#![allow(clippy::unwrap_used, reason = "a test ends where it finds a failure")]

mod deaths;
mod failures;
mod flows;
mod generations;
mod service;
mod traffic;

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use posthaste_lab::netns::Namespace;
use posthaste_lab::network::Network;
use posthaste_lab::node::Node;
use serde_json::Value;

use crate::support::{binary, line, until};
use crate::watch::assert_nothing_left;

/// Where nodes serve their metrics; each has a loopback address of its own.
const METRICS: u16 = 9464;

/// Client, node and server, and the processes that have the node's place one after the other.
struct Testbed {
    network: Network,
    place: Place,
}

impl Testbed {
    fn start(config: &str) -> Self {
        let network = line();
        let place = Place::start(network.node(0), config);
        Self { network, place }
    }

    fn host(&self) -> &Namespace {
        self.network.node(0)
    }

    /// Ends the node that has the place, and with it all others. Nothing remains.
    fn end(mut self) {
        let last = self.place.pid();
        self.place.signal(last, Signal::SIGTERM);
        self.place.until_all_ended();
        assert_nothing_left(self.host());
    }
}

/// A node and the processes that replace it. All of them are killed when it is dropped.
struct Place {
    /// The first process.
    node: Node,
    /// Those that came after it.
    successors: RefCell<Vec<Pid>>,
}

impl Place {
    fn start(host: &Namespace, config: &str) -> Self {
        let node = Node::builder(host, binary())
            .relaying()
            .config(config)
            .metrics(METRICS);
        Self::of(node.start().unwrap())
    }

    fn of(node: Node) -> Self {
        Self {
            node,
            successors: RefCell::default(),
        }
    }

    /// Has another process take the place; its number.
    fn upgrade(&self, host: &Namespace) -> Pid {
        let output = self.try_upgrade(host, &[]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{stderr}{:#?}", self.node.log());
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(answer["pid"], self.node.status().unwrap()["pid"]);
        self.pid()
    }

    /// Runs the verb, with more words.
    fn try_upgrade(&self, host: &Namespace, words: &[&str]) -> Output {
        self.upgrade_by(host.command(binary()).unwrap(), words)
    }

    /// The same with a command that runs the program.
    fn upgrade_by(&self, mut command: Command, words: &[&str]) -> Output {
        let socket = self.node.socket();
        command.args(["upgrade", "--json", "--socket"]).arg(socket);
        let output = command.args(words).output().unwrap();
        let pid = self.pid();
        if pid != self.first() && !self.successors.borrow().contains(&pid) {
            self.successors.borrow_mut().push(pid);
        }
        output
    }

    /// The process that has the place now.
    fn pid(&self) -> Pid {
        let status = self.node.status().unwrap();
        Pid::from_raw(status["pid"].as_i64().unwrap().try_into().unwrap())
    }

    fn first(&self) -> Pid {
        Pid::from_raw(self.node.process().pid().cast_signed())
    }

    /// The status of a replaced process.
    fn status_of(&self, pid: Pid) -> Value {
        status_at(&self.aside(pid)).unwrap()
    }

    /// Where it answers.
    fn aside(&self, pid: Pid) -> PathBuf {
        let mut name = self.node.socket().into_os_string();
        name.push(format!(".{pid}"));
        name.into()
    }

    /// How many relays a process has opened that was replaced.
    fn opened_by(&self, pid: Pid) -> u64 {
        self.status_of(pid)["counters"]["relays_opened"]
            .as_u64()
            .unwrap()
    }

    fn signal(&self, pid: Pid, signal: Signal) {
        kill(pid, signal).unwrap();
    }

    /// Waits for the end of a process.
    fn until_ended(&mut self, pid: Pid) {
        if pid == self.first() {
            let node = &mut self.node;
            until("the end of the first process", || {
                node.process_mut().ended().unwrap().is_some()
            });
        } else {
            until("the end of a process", || has_ended(pid));
        }
    }

    fn until_all_ended(&mut self) {
        let all = self.successors.borrow().clone();
        for pid in all {
            self.until_ended(pid);
        }
        self.until_ended(self.first());
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for pid in self
            .successors
            .borrow()
            .iter()
            .filter(|pid| !has_ended(**pid))
        {
            let _ = kill(*pid, Signal::SIGKILL);
        }
    }
}

/// Whether there is no such process, or nothing but its number is left: neither another thread,
/// which might still have its descriptors, nor the first.
fn has_ended(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").map_or("Z", |(_, state)| state);
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    state.starts_with(['Z', 'X']) && threads <= 1
}

fn status_at(socket: &Path) -> Option<Value> {
    let mut command = Command::new(binary());
    command.args(["status", "--json", "--socket"]).arg(socket);
    let output = command.output().unwrap();
    serde_json::from_slice(&output.stdout).ok()
}
