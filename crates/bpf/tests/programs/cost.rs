// SPDX-License-Identifier: Apache-2.0
//! What the programs cost the verifier, and so a node's start: the instructions it processes, held
//! against the table in `cost.txt`, which has a column per kernel.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, BorrowedFd};

use posthaste_bpf::Settings;

use crate::host::{Host, SETTINGS, on_host_with};
use crate::packets::packets;

/// Part of the recorded cost by which a program may exceed it before a person has to look.
const TOLERANCE_PERCENT: u32 = 10;

#[test]
fn verifier_cost_as_recorded() {
    let settings = Settings {
        windows: true,
        successions: 0,
        ..SETTINGS
    };
    on_host_with(settings, |host| {
        host.redirect.send_syn_options().unwrap();
        host.obey(&[packets()]);
        let counted = counted(host);
        println!("instructions verified: {counted:#?}");
        let recorded = recorded(&counted);
        assert!(counted.keys().eq(recorded.keys()), "{recorded:?}");
        for (name, count) in counted {
            let most = recorded[&name] + recorded[&name] * TOLERANCE_PERCENT / 100;
            assert!(
                count <= most,
                "{name}: {count} instructions verified, {} recorded in cost.txt",
                recorded[&name]
            );
        }
    });
}

/// The column of the newest kernel that is not newer than this one.
///
/// # Panics
/// A program has a question mark there: its cost, as `counted`, is still to be recorded.
fn recorded(counted: &BTreeMap<String, u32>) -> BTreeMap<String, u32> {
    let mut lines = include_str!("cost.txt").lines();
    let kernels = lines.next().unwrap().split_whitespace().skip(1);
    let here = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let column = kernels
        .take_while(|kernel| version(kernel) <= version(&here))
        .count();
    assert!(column > 0, "{here} is older than the table");
    let row = |line: &str| {
        let cells: Vec<&str> = line.split_whitespace().collect();
        let (name, unmeasured) = (cells[0], cells[column] == "?");
        assert!(!unmeasured, "record {:?} for {name}", counted.get(name));
        // A dash: this kernel cannot attach the program.
        let count = (cells[column] != "-").then(|| cells[column].parse().unwrap());
        Some((cells[0].to_owned(), count?))
    };
    lines.filter_map(row).collect()
}

/// The first two numbers of a kernel's version.
fn version(text: &str) -> (u32, u32) {
    let parts = text.split(|letter: char| !letter.is_ascii_digit());
    let mut numbers = parts.map(|part| part.parse().unwrap());
    (numbers.next().unwrap(), numbers.next().unwrap())
}

fn counted(host: &Host<'_>) -> BTreeMap<String, u32> {
    let programs = host.redirect.programs().into_iter();
    let each = programs.map(|(name, program)| (name.to_owned(), verified(program)));
    each.collect()
}

/// What the kernel reports about a program: the instructions it followed.
fn verified(program: BorrowedFd<'_>) -> u32 {
    let fd = program.as_raw_fd();
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("verified_insns:"));
    line.expect("it is a program").trim().parse().unwrap()
}
