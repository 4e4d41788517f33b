// SPDX-License-Identifier: Apache-2.0
//! From the installation to a node that relays, by the steps of the README.

use std::fs;
use std::net::TcpListener;
use std::thread;

use posthaste_lab::machine::{Machine, Release};
use posthaste_lab::network::{Family, Network};

use super::{PREFIX, boot_all, carry_out, installed, journal, machine_with, status, until_active};
use crate::documents::repository;
use crate::support::{PORT, Pair, line_of_far_client, listen, until};

/// How many lines a start may take in the journal.
const LINES_MAX: usize = 6;

/// systemd of this release knows all settings of the units, and finds their programs.
fn verify_units(machine: &Machine) {
    for unit in ["posthaste.service", "posthaste-controller.service"] {
        let line = format!("systemd-analyze verify {PREFIX}/lib/systemd/system/{unit} 2>&1");
        let message = carry_out(machine, &line);
        let ours: Vec<&str> = message.lines().filter(|line| line.contains(unit)).collect();
        assert!(ours.is_empty(), "{message}");
    }
}

/// The commands under a heading of the README, but for the first, which builds and installs.
fn readme_steps() -> Vec<String> {
    let text = fs::read_to_string(repository("README.md")).unwrap();
    let (_, section) = text.split_once("\n## Install and run\n").unwrap();
    let block = section.split("```").nth(1).unwrap();
    let (first, others) = block.trim().split_once('\n').unwrap();
    assert_eq!(first, "sudo make setup install");
    others.lines().map(Into::into).collect()
}

/// Opens connections one after the other, until one has taken the packet path, which stays open.
fn connect_by_packets(network: &Network, listener: &TcpListener, machine: &Machine) -> Pair {
    let mut kept = None;
    until("flow of the packet path", || {
        let mut pair = Pair::open(network, Family::V4, listener);
        pair.check();
        let opened = status(machine)["redirect"]["packet_opened"].as_u64();
        kept = Some(pair);
        opened > Some(0)
    });
    kept.unwrap()
}

/// `posthaste try` for a shorter time; connections cross the host meanwhile. Returns one of its flows.
fn try_it(network: &Network, listener: &TcpListener, machine: &Machine, line: &str) -> Pair {
    let line = line.replace("try 60", "try 4");
    thread::scope(|scope| {
        let tried = scope.spawn(|| machine.run(&line).unwrap());
        until("node", || {
            machine
                .try_run("posthaste status")
                .unwrap()
                .status
                .success()
        });
        let pair = connect_by_packets(network, listener, machine);
        let report = tried.join().unwrap();
        assert!(report.contains("took the packet path"), "{report}");
        assert!(!report.contains("No connection crossed"), "{report}");
        pair
    })
}

fn readme_leads_to_relays(release: Release) {
    let network = line_of_far_client();
    let listener = listen(network.server(), PORT);
    let machine = boot_all(&[network.node(0)], release, installed()).remove(0);
    verify_units(&machine);
    let mut open = Vec::new();
    for line in readme_steps() {
        if line.contains("posthaste try") {
            open.push(try_it(&network, &listener, &machine, &line));
        } else {
            carry_out(&machine, &line);
        }
    }
    until_active(&machine);
    let lines = journal(&machine, 7);
    assert!(lines.len() <= LINES_MAX, "{lines:#?}");
    assert_eq!(journal(&machine, 4), [""; 0]);
    open.push(connect_by_packets(&network, &listener, &machine));
    // Those that root's node has left, too.
    open.iter_mut().for_each(Pair::check);
}

// promise: W7
#[test]
fn readme_leads_to_relays_systemd_252() {
    readme_leads_to_relays(Release::Bookworm);
}

// promise: W7
#[test]
fn readme_leads_to_relays_systemd_257() {
    readme_leads_to_relays(Release::Trixie);
}

/// Has a node of root die with its guard, which leaves everything.
const DIE: &str = "posthaste node >/dev/null 2>&1 & pid=$!; \
    until posthaste status >/dev/null 2>&1; do sleep 0.1; done; \
    kill -9 $(cat /proc/$pid/task/*/children) $pid";

/// The unit gives the node what root's left. Where it does not, log, status and doctor report that.
#[test]
fn pins_of_another_user() {
    let network = line_of_far_client();
    let machine = machine_with(network.node(0), Release::Bookworm, "version = 1\n");
    carry_out(&machine, DIE);
    carry_out(&machine, "systemctl start posthaste");
    assert_eq!(journal(&machine, 4), [""; 0]);
    carry_out(&machine, "systemctl stop posthaste");
    carry_out(&machine, DIE);
    let without = "d=/run/systemd/system/posthaste.service.d; mkdir -p $d; \
         printf '[Service]\\nExecStartPre=\\n' > $d/own.conf; systemctl daemon-reload";
    carry_out(&machine, without);
    carry_out(&machine, "systemctl start posthaste");
    let trouble = "of a node that another user ran";
    let warnings = journal(&machine, 4);
    assert!(
        warnings.iter().any(|line| line.contains(trouble)),
        "{warnings:#?}"
    );
    for verb in ["status", "doctor"] {
        let answer = carry_out(&machine, &format!("posthaste {verb}; true"));
        assert!(answer.contains(trouble), "{verb}: {answer}");
    }
}
