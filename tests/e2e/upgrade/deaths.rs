// SPDX-License-Identifier: Apache-2.0
//! A node that dies while another process is about to take its place.

use std::fs;
use std::process::{Child, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use posthaste_lab::netns::Namespace;
use posthaste_lab::network::Family;

use super::{Testbed, has_ended};
use crate::support::{PORT, Pair, SOON, binary, counter, listen, start_relaying, until};
use crate::watch::{assert_nothing_left, installed, processes};

/// How often a successor may be ready before it could be stopped.
const ATTEMPTS: usize = 10;

/// A successor that is stopped once it has a guard, and before it has taken anything.
struct Halfway {
    verb: Option<Child>,
    successor: Pid,
    testbed: Testbed,
}

/// A successor that has a guard, which has the same command line. It is not a child of its verb.
fn successor_in(host: &Namespace) -> Option<Pid> {
    let pids = processes(host).into_iter();
    let mut pids =
        pids.filter_map(|pid| Some(Pid::from_raw(pid.split_whitespace().next()?.parse().ok()?)));
    pids.find(|pid| {
        let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&command).contains("--take-over") && child_of(*pid).is_some()
    })
}

impl Halfway {
    /// None when the successor was too quick.
    fn reach() -> Option<Self> {
        let testbed = Testbed::start("");
        let mut verb = testbed.host().command(binary()).unwrap();
        verb.args(["upgrade", "--socket"])
            .arg(testbed.place.node.socket())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let verb = verb.spawn().unwrap();
        let mut successor = None;
        until("a successor with a guard", || {
            successor = successor_in(testbed.host());
            successor.is_some()
        });
        let successor = successor.unwrap();
        kill(successor, Signal::SIGSTOP).unwrap();
        let halfway = Self {
            verb: Some(verb),
            successor,
            testbed,
        };
        let log = halfway.testbed.place.node.log().join("\n");
        (!log.contains("was replaced\"")).then_some(halfway)
    }

    /// Lets the successor continue, and returns what the verb reports about it.
    fn resume(&mut self) -> Output {
        kill(self.successor, Signal::SIGCONT).unwrap();
        let output = self.verb.take().unwrap().wait_with_output().unwrap();
        until("the end of the successor", || has_ended(self.successor));
        output
    }
}

impl Drop for Halfway {
    fn drop(&mut self) {
        if let Some(mut verb) = self.verb.take() {
            let _ = kill(self.successor, Signal::SIGKILL);
            let _ = verb.wait();
        }
    }
}

/// The first child of the first thread of a process.
fn child_of(parent: Pid) -> Option<Pid> {
    let path = format!("/proc/{parent}/task/{parent}/children");
    let children = fs::read_to_string(path).ok()?;
    let first = children.split_whitespace().next()?;
    first.parse().ok().map(Pid::from_raw)
}

// promise: F15
#[test]
fn failed_successor_after_death() {
    let halfway = (0..ATTEMPTS).find_map(|_| Halfway::reach());
    let mut halfway = halfway.expect("a successor is stopped in time");
    let first = halfway.testbed.place.first();
    halfway.testbed.place.signal(first, Signal::SIGKILL);
    halfway.testbed.place.until_ended(first);
    // As a service manager would.
    let mut next = start_relaying(&halfway.testbed.network, "");
    let installed_by_next = rules_and_routes(halfway.testbed.host());
    assert!(!installed_by_next.is_empty());
    let listener = listen(halfway.testbed.network.server(), PORT);
    let open = |family| Pair::open(&halfway.testbed.network, family, &listener);
    let mut kept = Family::ALL.map(open);
    kept.iter_mut().for_each(Pair::check);
    let output = halfway.resume();
    let host = halfway.testbed.host();
    // The guards of both that failed have ended too: one node and its guard are left.
    until("the end of the guards", || processes(host).len() == 2);
    assert_eq!(rules_and_routes(host), installed_by_next);
    kept.iter_mut().for_each(Pair::check);
    for family in Family::ALL {
        let mut pair = Pair::open(&halfway.testbed.network, family, &listener);
        pair.check();
        pair.close_client_first();
    }
    assert_eq!(counter(&next, "relays_opened"), 4);
    kept.into_iter().for_each(Pair::close_server_first);
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && !message.contains("goes on"),
        "{message}"
    );
    assert!(message.contains(&format!("process {first}")), "{message}");
    assert!(message.contains("start it"), "{message}");
    next.stop(SOON).unwrap();
    assert_nothing_left(host);
}

/// What a node that has failed would take away with it. A successor that is stopped may have attached
/// its programs already, which go with it.
fn rules_and_routes(host: &Namespace) -> Vec<String> {
    let all = installed(host).into_iter();
    all.filter(|one| !one.starts_with("a tcx program"))
        .collect()
}
