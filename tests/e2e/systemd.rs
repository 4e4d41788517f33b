// SPDX-License-Identifier: Apache-2.0
//! Services as a systemd runs them: with the shipped units, on hosts that have one.

#![allow(clippy::unwrap_used, reason = "a test ends where it finds a failure")]

mod sandbox;
mod start;
mod states;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::thread;

use caps::{CapSet, Capability};
use posthaste_lab::machine::{Machine, Release};
use posthaste_lab::netns::Namespace;
use posthaste_lab::scratch::Scratch;
use serde_json::Value;

use crate::documents::repository;
use crate::support::{binary, install_program, until};

/// Where programs and units are installed.
const PREFIX: &str = "/usr/local";

/// The files of a host on which posthaste was installed, as `make install` does.
pub(crate) fn installed() -> Scratch {
    let files = Scratch::new().unwrap();
    let made = Command::new("make")
        .args(["--no-print-directory", "install-service"])
        .arg(format!("PREFIX={PREFIX}"))
        .arg(format!("DESTDIR={}", files.path().display()))
        .current_dir(repository(""))
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    let bin = files.path().join("usr/local/bin");
    fs::create_dir(&bin).unwrap();
    install_program(&binary(), &bin.join("posthaste"));
    without_missing_capabilities(files.path());
    files
}

/// A container may lack a capability that a node can do without, and systemd starts no service that is
/// to have it.
fn without_missing_capabilities(files: &Path) {
    let unit =
        fs::read_to_string(files.join("usr/local/lib/systemd/system/posthaste.service")).unwrap();
    let mut lines = unit.lines();
    let all = lines
        .find_map(|line| line.strip_prefix("AmbientCapabilities="))
        .unwrap();
    let is_held = |name: &&str| {
        let capability = name.parse::<Capability>().unwrap();
        caps::has_cap(None, CapSet::Bounding, capability).unwrap()
    };
    let held: Vec<&str> = all.split_whitespace().filter(is_held).collect();
    if held.len() < all.split_whitespace().count() {
        let directory = files.join("etc/systemd/system/posthaste.service.d");
        fs::create_dir_all(&directory).unwrap();
        let text = format!(
            "[Service]\nAmbientCapabilities=\nAmbientCapabilities={}\n",
            held.join(" ")
        );
        fs::write(directory.join("capabilities.conf"), text).unwrap();
    }
}

/// Boots hosts at once, each with these files.
pub(crate) fn boot_all(hosts: &[&Namespace], release: Release, files: Scratch) -> Vec<Machine> {
    let files = Arc::new(files);
    let boot = &|host| Machine::boot(host, release, Arc::clone(&files)).unwrap();
    thread::scope(|scope| {
        let boots: Vec<_> = hosts
            .iter()
            .map(|host| scope.spawn(move || boot(host)))
            .collect();
        boots.into_iter().map(|boot| boot.join().unwrap()).collect()
    })
}

/// A machine on which the user of the service exists, and a node has this configuration.
fn machine_with(host: &Namespace, release: Release, config: &str) -> Machine {
    let files = installed();
    let etc = files.path().join("etc/posthaste");
    fs::create_dir_all(&etc).unwrap();
    fs::write(etc.join("node.toml"), config).unwrap();
    let machine = Machine::boot(host, release, Arc::new(files)).unwrap();
    machine.run("systemd-sysusers").unwrap();
    machine
}

/// Lets tests start the service more often than operators do.
fn allow_many_starts(machine: &Machine) {
    let unlimited = "d=/run/systemd/system/posthaste.service.d; mkdir -p $d; \
         printf '[Unit]\\nStartLimitIntervalSec=0\\n' > $d/often.conf; systemctl daemon-reload";
    carry_out(machine, unlimited);
}

/// Runs a line of a shell that succeeds; what it prints. A failure shows the log.
fn carry_out(machine: &Machine, line: &str) -> String {
    let done = machine.run(line);
    done.unwrap_or_else(|error| panic!("{error:#}\n{:#?}", journal(machine, 7)))
}

/// What a node reports.
fn status(machine: &Machine) -> Value {
    serde_json::from_str(&carry_out(machine, "posthaste status --json")).unwrap()
}

/// A property of the node's service.
fn property(machine: &Machine, name: &str) -> String {
    let shown = carry_out(
        machine,
        &format!("systemctl show posthaste --value -p {name}"),
    );
    shown.trim().to_owned()
}

/// What the node's processes have logged, with priorities up to `most`.
fn journal(machine: &Machine, most: u8) -> Vec<String> {
    let shown = machine.run(&format!(
        "journalctl --sync && journalctl --no-pager -o cat -u posthaste -t posthaste -p {most}"
    ));
    shown.unwrap().lines().map(Into::into).collect()
}

fn until_active(machine: &Machine) {
    until("active service", || {
        property(machine, "ActiveState") == "active"
    });
}
