// SPDX-License-Identifier: Apache-2.0
//! Where workers run.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::thread;

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use posthaste_lab::network::{Family, Network};
use posthaste_lab::node::Node;

use crate::support::{PORT, accept, dial, line, listen, relay_of, start_relaying};

/// What is below the worker in the id of a relay, in bits.
const WORKER_SHIFT: u32 = 48;

/// The CPUs that the kernel lets a thread use, as /proc lists them, by the thread's name.
fn allowed(node: &Node, name: &str) -> String {
    let tasks = fs::read_dir(format!("/proc/{}/task", node.process().pid())).expect("it lives");
    let mut status = tasks
        .filter_map(|task| fs::read_to_string(task.ok()?.path().join("status")).ok())
        .filter(|status| status.starts_with(&format!("Name:\t{name}\n")));
    let status = status.next().expect("there is such a thread");
    let mut lines = status.lines();
    let allowed = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    allowed.expect("Linux reports it").trim().to_owned()
}

/// The CPUs that this process may use.
pub(crate) fn cpus() -> Vec<usize> {
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

/// Connects from a CPU, on which the packets of a veth are handled then.
pub(crate) fn dial_on(cpu: usize, network: &Network, address: SocketAddr) -> TcpStream {
    let connect = || {
        let mut mask = CpuSet::new();
        mask.set(cpu).expect("there is such a CPU");
        sched_setaffinity(Pid::from_raw(0), &mask).expect("it may be used");
        dial(network.client(), address).expect("the node accepts")
    };
    thread::scope(|scope| scope.spawn(connect).join().expect("it connects"))
}

/// The number of the worker that carries a client's relay: the id begins with it.
pub(crate) fn worker_of(node: &Node, client: SocketAddr) -> usize {
    let relay = relay_of(node, client).expect("it is relayed");
    let id = u64::from_str_radix(relay["id"].as_str().expect("an id"), 16).expect("hexadecimal");
    usize::try_from(id >> WORKER_SHIFT).expect("a small number")
}

// promise: H10
#[test]
fn client_meets_packets_worker() {
    let network = line();
    let cpus = cpus();
    let workers = cpus.len();
    let entrance = SocketAddr::new(network.node_address(0, Family::V4), 8080);
    let server = SocketAddr::new(network.server_address(Family::V4), PORT);
    let servers = listen(network.server(), PORT);
    let node = start_relaying(
        &network,
        &format!(
            "[node]\nworkers = {workers}\n[transparent]\nenabled = false\n[[listener]]\n\
             mode = \"fixed\"\naddress = \"{entrance}\"\ndestination = \"{server}\"\n"
        ),
    );
    for cpu in cpus {
        for _ in 0..8 {
            let client = dial_on(cpu, &network, entrance);
            let _server = accept(&servers);
            let from = client.local_addr().expect("it has one");
            assert_eq!(worker_of(&node, from), cpu % workers);
        }
    }
}

// promise: H10
#[test]
fn workers_stay_on_cpus() {
    let network = line();
    let cpus = cpus();
    let workers = cpus.len();
    let node = start_relaying(&network, &format!("[node]\nworkers = {workers}\n"));
    for cpu in cpus {
        let worker = format!("worker-{}", cpu % workers);
        assert_eq!(allowed(&node, &worker), cpu.to_string(), "{worker}");
    }
    // The others go where there is room.
    assert_eq!(allowed(&node, "posthaste-log"), allowed(&node, "posthaste"));
}
