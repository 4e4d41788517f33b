// SPDX-License-Identifier: Apache-2.0
//! What a relay costs, in system calls: a number that no busy machine changes much.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::path::PathBuf;

use posthaste_lab::netns::Namespace;
use posthaste_lab::network::{Family, Network};
use posthaste_lab::node::Node;

use crate::support::{
    PORT, accept, accepting, dial, each_mode, expect_end, kernel_counter, line, listen,
    start_relaying, target, until_ended,
};

/// Fewer than show that a client is near: flows of an early rule open late after that.
const RELAYS: u64 = 14;
/// Enough to show it.
const NEAR_AFTER: u64 = 20;
const OBJECT: [u8; 8192] = [7; 8192];

/// Where the kernel numbers its tracepoints, and the one of system calls.
const TRACEFS: &str = "/sys/kernel/tracing";
const SYS_ENTER: &str = "events/raw_syscalls/sys_enter/id";

/// From linux/perf_event.h: an event of a tracepoint, the first version's size of what describes
/// one, and the request to leave some out.
const PERF_TYPE_TRACEPOINT: u64 = 2;
const PERF_ATTR_BYTES: u64 = 64;
const PERF_FLAG_FD_CLOEXEC: u64 = 8;
const PERF_EVENT_IOC_SET_FILTER: libc::Ioctl = 0x4008_2406;

/// Counts the system calls of a thread, except waits for events, because their number depends on
/// the scheduler.
struct Calls(File);

impl Calls {
    fn of(thread: u32, tracepoint: u64) -> io::Result<Self> {
        let mut about = [0_u64; 8];
        about[0] = PERF_TYPE_TRACEPOINT | PERF_ATTR_BYTES << 32;
        about[1] = tracepoint;
        // SAFETY: `about` has the length that it declares; the rest are numbers.
        let made = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                about.as_ptr(),
                thread,
                -1,
                -1,
                PERF_FLAG_FD_CLOEXEC,
            )
        };
        let fd = i32::try_from(made).expect("a descriptor or -1");
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just made it, for us alone.
        let file = unsafe { File::from_raw_fd(fd) };
        let filter = format!("{}\0", without_waiting());
        // SAFETY: the request takes a string that ends with a zero.
        let set = unsafe { libc::ioctl(fd, PERF_EVENT_IOC_SET_FILTER, filter.as_ptr()) };
        if set < 0 {
            return Err(io::Error::last_os_error());
        }
        assert_eq!(file.as_raw_fd(), fd);
        Ok(Self(file))
    }

    fn read(&mut self) -> u64 {
        let mut count = [0; 8];
        self.0.read_exact(&mut count).expect("a count");
        u64::from_ne_bytes(count)
    }
}

fn without_waiting() -> String {
    let mut waits = vec![libc::SYS_epoll_pwait, libc::SYS_epoll_pwait2];
    #[cfg(target_arch = "x86_64")]
    waits.push(libc::SYS_epoll_wait);
    let conditions: Vec<String> = waits.iter().map(|call| format!("id != {call}")).collect();
    conditions.join(" && ")
}

/// The number of the tracepoint of system calls. It is read where `host` has its files, so that a
/// mount of the file system ends with it.
fn tracepoint(host: &Namespace) -> u64 {
    let script = format!(
        "[ -e {TRACEFS}/{SYS_ENTER} ] || mount -t tracefs none {TRACEFS}; cat {TRACEFS}/{SYS_ENTER}"
    );
    let mut shell = host.command("sh").expect("an open namespace");
    let output = shell.args(["-c", &script]).output().expect("a shell");
    let number = String::from_utf8(output.stdout).expect("a number");
    number
        .trim()
        .parse()
        .expect("the kernel has the tracepoint")
}

/// The only worker of a node.
fn worker(node: &Node) -> u32 {
    let tasks = PathBuf::from(format!("/proc/{}/task", node.process().pid()));
    let of_worker = |task: &PathBuf| {
        fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim() == "worker-0")
    };
    let entries = fs::read_dir(tasks).expect("a process");
    let mut tasks = entries.map(|entry| entry.expect("a thread").path());
    let task = tasks.find(of_worker).expect("a worker");
    let name = task.file_name().and_then(|name| name.to_str());
    name.and_then(|name| name.parse().ok())
        .expect("a thread's number")
}

/// System calls for a relay with a request for 8 KB and a server that closes first, after `former`
/// ones.
fn calls(network: &Network, family: Family, config: &str, former: u64) -> f64 {
    let config = format!("{config}\n[node]\nworkers = 1\n");
    let node = start_relaying(network, &config);
    let listener = listen(network.server(), PORT);
    let target = target(network, family, &listener);
    let fetch = || {
        let mut client = dial(network.client(), target).expect("a connection");
        client.write_all(b"one object").expect("a request");
        let (mut server, _) = accept(&listener);
        server.read_exact(&mut [0; 10]).expect("a request");
        server.write_all(&OBJECT).expect("an object");
        drop(server);
        let mut got = Vec::new();
        client.read_to_end(&mut got).expect("an object");
        assert_eq!(got, OBJECT);
        expect_end(&mut client);
    };
    for _ in 0..former {
        fetch();
    }
    until_ended(&node, "finished", former);
    let mut calls =
        Calls::of(worker(&node), tracepoint(network.node(0))).expect("system calls are counted");
    for _ in 0..RELAYS {
        fetch();
    }
    until_ended(&node, "finished", former + RELAYS);
    calls.read() as f64 / RELAYS as f64
}

/// The bounds are those of promise N11.
// promise: N11
#[test]
fn few_system_calls() {
    let network = line();
    for (mode, former, most) in [
        ("early", 1, 36.5),
        ("early", NEAR_AFTER, 37.5),
        ("late", 1, 37.5),
    ] {
        for family in Family::ALL {
            // On a busy host a relay takes more turns: the least of three counts.
            let counts = (0..3).map(|_| calls(&network, family, &accepting(mode), former));
            let calls = counts.fold(f64::INFINITY, f64::min);
            println!("{mode} after {former}, {family}: {calls:.1} system calls a relay");
            assert!(calls <= most, "{mode} after {former}, {family}: {calls}");
            assert!(calls > 15.0, "they are not counted: {calls}");
        }
    }
}

/// Connections of silent clients.
const SILENT: u64 = 8;

/// The ACK that completes a server's handshake waits for the client's first bytes, if there are
/// any. A server that sends first must not wait for it.
// promise: A8
#[test]
fn handshake_ends_with_data() {
    let network = line();
    let node = start_relaying(&network, &each_mode());
    let mut count = 0;
    for (mode, port) in [("early", 1080), ("late", 3080)] {
        let listener = listen(network.server(), port);
        for family in Family::ALL {
            let delayed = || kernel_counter(network.node(0), "TcpExt", "DelayedACKs");
            let before = delayed();
            for _ in 0..SILENT {
                count += 1;
                let silent = dial(network.client(), target(&network, family, &listener));
                let mut client = silent.expect("a connection");
                // The server's handshake is complete when it is accepted.
                let (server, _) = accept(&listener);
                drop(server);
                expect_end(&mut client);
                drop(client);
                until_ended(&node, "finished", count);
            }
            // A busy machine holds the node up for as long as the kernel's timer, now and then.
            let waited = delayed() - before;
            assert!(waited < SILENT / 2, "{mode}, {family}: {waited}");
        }
    }
}
