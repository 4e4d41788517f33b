// SPDX-License-Identifier: Apache-2.0
//! Where workers run.

use std::fs;
use std::process::Command;

use posthaste_lab::node::Node;

use crate::support::{line, start};

/// The CPUs that the kernel lets a thread use, as /proc lists them, by the thread's name.
fn allowed(node: &Node, name: &str) -> String {
    let tasks = fs::read_dir(format!("/proc/{}/task", node.process().pid())).expect("it lives");
    let mut status = tasks
        .filter_map(|task| fs::read_to_string(task.ok()?.path().join("status")).ok())
        .filter(|status| status.starts_with(&format!("Name:\t{name}\n")));
    let status = status.next().expect("there is such a thread");
    let mut lines = status.lines();
    let allowed = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    allowed.expect("Linux says so").trim().to_owned()
}

/// The CPUs that this process may use.
fn cpus() -> Vec<usize> {
    let myself = std::process::id().to_string();
    let shown = Command::new("taskset").args(["-pc", &myself]).output();
    let shown = shown.expect("taskset is of util-linux").stdout;
    let shown = String::from_utf8(shown).expect("it is text");
    let list = shown.rsplit(": ").next().expect("there is a list").trim();
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| text.parse::<usize>().expect("a number");
        number(first)..=number(last)
    };
    list.split(',').flat_map(range).collect()
}

#[test]
fn one_worker_for_each_cpu_stays_where_its_packets_are() {
    let network = line();
    let cpus = cpus();
    let workers = cpus.len();
    let node = start(&network, &format!("[node]\nworkers = {workers}\n"));
    for cpu in cpus {
        let worker = format!("worker-{}", cpu % workers);
        assert_eq!(allowed(&node, &worker), cpu.to_string(), "{worker}");
    }
    // The others go where there is room.
    assert_eq!(allowed(&node, "posthaste-log"), allowed(&node, "posthaste"));
}
