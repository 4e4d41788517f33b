// SPDX-License-Identifier: Apache-2.0
//! A worker may accept a hop before it has the event of the hop's SYN: when the two come between its
//! look at the events and its look at the listener. Here that takes long, since a debugger delays
//! each `accept4` of the workers.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use posthaste_lab::node::Node;

use crate::chains::line_of;
use crate::churn::churn;
use crate::support::{PORT, counter, ended, listen, until_counter};

use super::{chain_of, syn_options};

const CONNECTIONS: u64 = 200;
/// How many at a time: few, so that the queue of the listener is often empty.
const THREADS: u64 = 4;
const POLL: Duration = Duration::from_micros(20);
/// Longer than a handshake takes.
const DELAY: Duration = Duration::from_millis(5);

/// The threads of a node's workers.
fn workers(node: &Node) -> Vec<Pid> {
    let tasks = fs::read_dir(format!("/proc/{}/task", node.process().pid()));
    let tasks = tasks.expect("it runs").flatten();
    let workers = tasks.filter(|task| {
        let name = fs::read_to_string(task.path().join("comm"));
        name.is_ok_and(|name| name.starts_with("worker-"))
    });
    let number = |name: String| name.parse().expect("a number");
    let numbers = workers.map(|task| number(task.file_name().into_string().expect("text")));
    numbers.map(Pid::from_raw).collect()
}

/// Delays each `accept4` of threads until it is over. The caller's thread must be the only one that
/// traces.
fn delay_accepts(threads: &[Pid], is_over: &AtomicBool) {
    for thread in threads {
        ptrace::seize(*thread, Options::PTRACE_O_TRACESYSGOOD).expect("it can be traced");
        ptrace::interrupt(*thread).expect("it is traced");
    }
    let flags = WaitPidFlag::__WALL | WaitPidFlag::WNOHANG;
    while !is_over.load(Ordering::Relaxed) {
        // Leaves the CPU to those that are waited for.
        thread::sleep(POLL);
        for thread in threads {
            let signal = match waitpid(*thread, Some(flags)).expect("it is traced") {
                WaitStatus::StillAlive => continue,
                WaitStatus::Stopped(_, signal) => Some(signal),
                WaitStatus::PtraceSyscall(_) if enters_accept(*thread) => {
                    thread::sleep(DELAY);
                    None
                }
                _ => None,
            };
            ptrace::syscall(*thread, signal).expect("it is stopped");
        }
    }
    for thread in threads {
        detach(*thread);
    }
}

fn enters_accept(thread: Pid) -> bool {
    let info = ptrace::syscall_info(thread).expect("it is stopped");
    // SAFETY: the kernel has filled in the part that `op` names.
    let number = unsafe { info.u.entry.nr };
    info.op == libc::PTRACE_SYSCALL_INFO_ENTRY && i64::try_from(number) == Ok(libc::SYS_accept4)
}

/// Only a stopped thread can be detached.
fn detach(thread: Pid) {
    match ptrace::interrupt(thread) {
        // It has stopped since it was last waited for.
        Ok(()) | Err(Errno::ESRCH) => {}
        Err(error) => panic!("{thread}: {error}"),
    }
    waitpid(thread, Some(WaitPidFlag::__WALL)).expect("it is traced");
    ptrace::detach(thread, None::<Signal>).expect("it is stopped");
}

// promise: K11
#[test]
fn late_accept_opens_once() {
    let network = line_of(2);
    let nodes = chain_of(2).start(&network);
    let listener = listen(network.server(), PORT);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| delay_accepts(&workers(&nodes[1]), &is_over));
        churn(&network, &listener, CONNECTIONS, THREADS);
        is_over.store(true, Ordering::Relaxed);
    });
    until_counter(&nodes[1], "relays", 0);
    let opened = nodes.iter().map(|node| counter(node, "relays_opened"));
    let opened: Vec<_> = opened.collect();
    let options = syn_options(&nodes[1]);
    assert!(options[4] > 0, "{options:?}");
    assert_eq!(opened[0], opened[1], "{options:?}");
    assert_eq!(ended(&nodes[1], "client_absent"), 0, "{options:?}");
}
