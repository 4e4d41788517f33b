// SPDX-License-Identifier: Apache-2.0
//! What the programs cost the verifier, and so a node's start: held against the table in
//! `cost.txt`.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd};

use libbpf_rs::Object;
use libbpf_rs::query::ProgInfoIter;
use posthaste_bpf::Settings;

use crate::host::{Host, SETTINGS, on_host_with};

/// Part of the recorded cost by which a program may exceed it before a person has to look.
const TOLERANCE_PERCENT: u32 = 10;

#[test]
fn no_program_costs_the_verifier_more_than_recorded() {
    let recorded = recorded();
    on_host_with(
        Settings {
            windows: true,
            ..SETTINGS
        },
        |host| {
            let counted = counted(host);
            println!("instructions verified: {counted:#?}");
            let names = |costs: &BTreeMap<String, u32>| costs.keys().cloned().collect::<Vec<_>>();
            assert_eq!(names(&counted), names(&recorded), "programs");
            for (name, count) in counted {
                let most = recorded[&name] + recorded[&name] * TOLERANCE_PERCENT / 100;
                assert!(
                    count <= most,
                    "{name} has {count} instructions verified, {} are recorded in cost.txt",
                    recorded[&name]
                );
            }
        },
    );
}

fn recorded() -> BTreeMap<String, u32> {
    let lines = include_str!("cost.txt").lines();
    let lines = lines.filter(|line| !line.starts_with('#'));
    let parts = lines.map(|line| line.split_once(' ').expect("a name and a number"));
    parts
        .map(|(name, count)| (name.to_owned(), count.trim().parse().unwrap()))
        .collect()
}

fn counted(host: &Host<'_>) -> BTreeMap<String, u32> {
    let programs: Vec<_> = host.redirect.objects().flat_map(Object::progs).collect();
    let numbers = programs
        .iter()
        .map(|program| number(program.as_fd().as_raw_fd()));
    let numbers: Vec<u32> = numbers.collect();
    let ours = ProgInfoIter::default().filter(|info| numbers.contains(&info.id));
    ours.map(|info| (info.name.to_str().unwrap().to_owned(), info.verified_insns))
        .collect()
}

/// The kernel's number of the program behind a descriptor.
fn number(fd: i32) -> u32 {
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("prog_id:"));
    line.expect("it is a program").trim().parse().unwrap()
}
