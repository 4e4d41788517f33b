// SPDX-License-Identifier: Apache-2.0
//! Real programs through a node: what they carry arrives, and nothing is left of it.

#![allow(clippy::unwrap_used, reason = "a test ends where it finds a failure")]

use std::path::PathBuf;
use std::process::{Command, Output};

use posthaste_lab::node::Node;

use crate::watch::Accounts;

mod bulk;
mod shell;
mod web;

/// Where programs are, beyond PATH: Debian does not put `sbin` in every user's.
const SBIN: [&str; 2] = ["/usr/sbin", "/usr/local/sbin"];

/// The path of a program of this host. `make setup` installs those that are missing.
fn program(name: &str) -> PathBuf {
    program_if_any(name).unwrap_or_else(|| panic!("{name} is not installed: make setup"))
}

/// The path of a program that this host need not have.
fn program_if_any(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(SBIN.map(PathBuf::from))
        .map(|directory| directory.join(name))
        .find(|candidate| candidate.is_file())
}

/// Runs a program to its end and returns what it printed.
fn run(command: &mut Command) -> String {
    let output = succeed(command);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs a program to its end and asserts that it succeeds.
fn succeed(command: &mut Command) -> Output {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {output:?}");
    output
}

/// Asserts that the programs' connections were relayed and ended as such programs end them: in
/// order, or reset by one that had all it wanted. Returns how many there were.
fn settle(node: &Node, accounts: &Accounts) -> u64 {
    let ended = accounts.settle_any(node);
    for outcome in ended.keys() {
        let usual = ["finished", "downstream_reset", "upstream_reset"];
        assert!(usual.contains(&outcome.as_str()), "{ended:?}");
    }
    ended.values().sum()
}
