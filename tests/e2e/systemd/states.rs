// SPDX-License-Identifier: Apache-2.0
//! Each verb of the service manager after each other, with relays open at the node and at replaced ones.

use std::fs;
use std::net::TcpListener;

use posthaste_lab::machine::{Machine, Release};
use posthaste_lab::netns::Namespace;
use posthaste_lab::network::{Family, Network};

use super::{allow_many_starts, carry_out, journal, machine_with, property, status, until_active};
use crate::support::{PORT, Pair, expect_gone, line, listen, until};

/// What is done to the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    Start,
    Stop,
    Restart,
    /// Of a file in which nothing changed.
    Reload,
    /// A reload that needs another process.
    Upgrade,
    /// `kill -9` of the main process.
    Kill,
}

const VERBS: [Verb; 6] = [
    Verb::Start,
    Verb::Upgrade,
    Verb::Kill,
    Verb::Reload,
    Verb::Restart,
    Verb::Stop,
];

/// A sequence in which every verb follows every one, itself too: an Eulerian circuit.
fn sequence() -> Vec<Verb> {
    let mut left: Vec<Vec<usize>> = vec![(0..VERBS.len()).collect(); VERBS.len()];
    let (mut path, mut circuit) = (vec![0], Vec::new());
    while let Some(&at) = path.last() {
        match left[at].pop() {
            Some(next) => path.push(next),
            None => circuit.extend(path.pop()),
        }
    }
    circuit.into_iter().rev().map(|at| VERBS[at]).collect()
}

#[test]
fn sequence_has_every_pair() {
    let all = sequence();
    assert_eq!(all.len(), VERBS.len() * VERBS.len() + 1);
    for first in VERBS {
        for second in VERBS {
            assert!(all.windows(2).any(|pair| pair == [first, second]));
        }
    }
}

fn config(workers: usize) -> String {
    format!(
        "version = 1\n[node]\nworkers = {workers}\ndrain_timeout = \"100ms\"\n\
         [defaults]\nobserve = false\ndata_path = \"socket\"\n"
    )
}

/// The service, and the relays that have to work.
struct Service<'a> {
    network: &'a Network,
    machine: Machine,
    listener: TcpListener,
    workers: usize,
    is_active: bool,
    /// The relays of the main process, and those of replaced ones.
    own: Vec<Pair>,
    of_replaced: Vec<Pair>,
}

impl<'a> Service<'a> {
    fn new(network: &'a Network, release: Release) -> Self {
        let machine = machine_with(network.node(0), release, &config(1));
        allow_many_starts(&machine);
        Self {
            network,
            machine,
            listener: listen(network.server(), PORT),
            workers: 1,
            is_active: false,
            own: Vec::new(),
            of_replaced: Vec::new(),
        }
    }

    fn host(&self) -> &Namespace {
        self.network.node(0)
    }

    fn systemctl(&self, words: &str) {
        carry_out(&self.machine, &format!("systemctl {words}"));
    }

    /// Carries out a verb, which fails only where systemd has nothing that it applies to.
    fn carry_out(&mut self, verb: Verb) {
        let was_active = self.is_active;
        match verb {
            Verb::Start => self.systemctl("start posthaste"),
            Verb::Restart => {
                self.systemctl("restart posthaste");
                self.lose_all();
            }
            Verb::Stop => {
                self.systemctl("stop posthaste");
                self.lose_all();
            }
            Verb::Reload if was_active => self.systemctl("reload posthaste"),
            Verb::Upgrade if was_active => self.upgrade(),
            Verb::Kill if was_active => self.kill(),
            Verb::Reload | Verb::Upgrade | Verb::Kill => {
                let failed = self.machine.try_run("systemctl reload posthaste");
                assert!(!failed.unwrap().status.success());
            }
        }
        self.is_active = match verb {
            Verb::Start | Verb::Restart => true,
            Verb::Stop => false,
            _ => was_active,
        };
    }

    fn upgrade(&mut self) {
        self.workers = 3 - self.workers;
        let file = self.machine.path("/etc/posthaste/node.toml");
        fs::write(file, config(self.workers)).unwrap();
        // The oldest of four would be ended.
        for pair in self.of_replaced.drain(..) {
            pair.close_client_first();
        }
        until("end of replaced nodes", || {
            status(&self.machine)["replaced"]
                .as_array()
                .is_some_and(Vec::is_empty)
        });
        self.systemctl("reload posthaste");
        self.of_replaced.append(&mut self.own);
    }

    fn kill(&mut self) {
        let former = property(&self.machine, "MainPID");
        self.systemctl("kill --signal=KILL --kill-whom=main posthaste");
        until("another main process", || {
            ![&former, "0"].contains(&property(&self.machine, "MainPID").as_str())
        });
        until_active(&self.machine);
        for mut pair in self.own.drain(..) {
            expect_gone(&mut pair.client);
        }
    }

    fn lose_all(&mut self) {
        for mut pair in self.own.drain(..).chain(self.of_replaced.drain(..)) {
            expect_gone(&mut pair.client);
        }
    }

    /// Compares the service with what it has to be by now.
    fn check(&mut self) {
        for pair in self.own.iter_mut().chain(&mut self.of_replaced) {
            pair.check();
        }
        if self.is_active {
            return self.check_active();
        }
        assert_eq!(property(&self.machine, "ActiveState"), "inactive");
        assert_eq!(property(&self.machine, "Result"), "success");
        let group = "/sys/fs/cgroup/system.slice/posthaste.service";
        assert!(!self.machine.path(group).exists(), "processes are left");
        let rules = self.host().ip_output("rule show").unwrap();
        assert!(!rules.contains("fwmark"), "{rules}");
    }

    fn check_active(&mut self) {
        assert_eq!(property(&self.machine, "ActiveState"), "active");
        let status = status(&self.machine);
        assert_eq!(
            property(&self.machine, "MainPID"),
            status["pid"].to_string()
        );
        assert_eq!(status["workers"], self.workers);
        let mut pair = Pair::open(self.network, Family::V4, &self.listener);
        pair.check();
        let after = super::status(&self.machine);
        assert!(
            after["counters"]["relays_opened"].as_u64()
                > status["counters"]["relays_opened"].as_u64()
        );
        self.own.push(pair);
    }
}

fn every_verb_after_every_other(release: Release) {
    let network = line();
    let mut service = Service::new(&network, release);
    let mut before = None;
    for verb in sequence() {
        println!("{verb:?} after {before:?}");
        service.carry_out(verb);
        service.check();
        before = Some(verb);
    }
    let warnings = journal(&service.machine, 4);
    let is_of_guard = |line: &&String| line.starts_with("posthaste-guard: node ");
    let others: Vec<_> = warnings.iter().filter(|line| !is_of_guard(line)).collect();
    assert!(others.is_empty(), "{others:#?}");
}

// promise: W4
#[test]
fn every_verb_after_every_other_systemd_252() {
    every_verb_after_every_other(Release::Bookworm);
}

// promise: W4
#[test]
fn every_verb_after_every_other_systemd_257() {
    every_verb_after_every_other(Release::Trixie);
}
