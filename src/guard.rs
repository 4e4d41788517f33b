// SPDX-License-Identifier: Apache-2.0
//! A child process that cleans up after a node that died.
//!
//! The redirect program ends with the node's descriptors, but the rule, the route and sockets in
//! TIME_WAIT would stay, and such sockets swallow later flows with the same addresses. The guard
//! waits on a pipe whose other end only the node holds: a byte means that the node cleaned up
//! itself, end of file without a byte means that the node died. While a successor or a predecessor
//! of the node still runs, the guard leaves in place what that process needs.
//!
//! Flows of the packet path outlive the node. The guard looks after them until none is left or
//! another node has them.
//!
//! The first guard is forked while the node has one thread. The node notices when a guard dies and
//! starts another: see `again`.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, dup2_stderr, fork, getpid, pipe2};
use posthaste_bpf::Orphans;

use crate::api;
use crate::aside::step_aside;
use crate::host::{self, Claim};
use crate::memory;
use posthaste_config::Transparent;
use posthaste_daemon::journal;
use posthaste_daemon::log::{Level, Log};
use posthaste_daemon::privileges;
use posthaste_daemon::thread::lock;

mod again;

use again::Revival;
pub(crate) use again::{GuardArgs, run};

/// Name of the process.
const NAME: &std::ffi::CStr = c"posthaste-guard";
/// How long a node may take to start, in milliseconds. Until then the guard trims no memory.
const START_TIME_MAX: u16 = 1000;
/// How long the kernel may take to close what a dead node had open.
const DEATH_TIME_MAX: Duration = Duration::from_secs(2);

/// The node's handle of its guard. If it is dropped without [`Guard::leave`], the guard cleans up.
#[derive(Debug)]
pub(crate) struct Guard {
    held: Mutex<Held>,
    /// Shared with the guard: the next node waits until both have released it.
    claim: Claim,
    left: Left,
}

/// The current guard.
#[derive(Debug)]
struct Held {
    /// Process id and pipe of the guard; `None` while there is no guard.
    guard: Option<(Pid, File)>,
    revival: Revival,
    restarts: u64,
}

/// What a node leaves behind.
#[derive(Clone, Debug)]
struct Left {
    transparent: Transparent,
    /// Number of successive nodes before it.
    successions: u16,
}

impl Left {
    fn remove(&self, claim: &Claim) -> anyhow::Result<host::Report> {
        host::leave(claim, &self.transparent, self.successions)
    }
}

impl Guard {
    /// Forks the guard. This process must have no other thread yet: the child continues with a copy
    /// of the calling thread only, and with every descriptor that is open now.
    pub(crate) fn start(
        transparent: &Transparent,
        claim: Claim,
        successions: u16,
    ) -> anyhow::Result<Self> {
        let left = Left {
            transparent: transparent.clone(),
            successions,
        };
        // O_CLOEXEC: a program that the node executes must not inherit the writing end, or the
        // guard would not notice the node's death while that program runs.
        let (read, write) = pipe2(OFlag::O_CLOEXEC).context("open the guard's pipe")?;
        // Before the fork: in the child getppid(2) may name another process already.
        let node = getpid();
        // SAFETY: there is one thread, so no lock is held by a thread that the
        // child lacks.
        match unsafe { fork() }.context("fork the guard")? {
            ForkResult::Parent { child } => Ok(Self {
                held: Mutex::new(Held {
                    guard: Some((child, write.into())),
                    revival: Revival::new(Instant::now()),
                    restarts: 0,
                }),
                claim,
                left,
            }),
            ForkResult::Child => {
                // The child's copy of the writing end would keep the pipe open for ever.
                drop(write);
                // Does not return: the code of the caller is for the node alone.
                std::process::exit(live(node, read.into(), &left, claim))
            }
        }
    }

    /// Checks whether the guard lives, and starts another if not.
    pub(crate) fn look_after(&self, log: &Log) {
        let now = Instant::now();
        let mut held = lock(&self.held);
        if let Some((pid, _)) = &held.guard {
            // The guard is a child of this process, so its id cannot be reused before this call
            // reaps it.
            match waitpid(*pid, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::StillAlive) => return,
                end => log.error("the guard died", &[("process", pid), ("how", &how(end))]),
            }
            held.guard = None;
            held.revival.failed(now);
        }
        if !held.revival.is_due(now) {
            return;
        }
        match again::start(&self.left, &self.claim) {
            Ok(guard) => {
                log.warn("the guard was restarted", &[("process", &guard.0)]);
                held.guard = Some(guard);
                held.restarts += 1;
                held.revival.succeeded(now);
            }
            Err(error) => {
                held.revival.failed(now);
                let error = format!("{error:#}");
                log.error("could not restart the guard", &[("error", &error)]);
            }
        }
    }

    /// Its state, for the admin API.
    pub(crate) fn state(&self) -> api::Guard {
        let held = lock(&self.held);
        api::Guard {
            pid: held.guard.as_ref().map(|(pid, _)| pid.as_raw()),
            restarts: held.restarts,
        }
    }

    /// The node's part of the claim on the network namespace.
    pub(crate) fn claim(&self) -> &Claim {
        &self.claim
    }

    /// Removes what the node installed on the host, reports that to the guard, and waits for the
    /// guard's end.
    pub(crate) fn leave(&self) -> anyhow::Result<()> {
        // Before the byte: if the node dies in between, the guard still cleans up.
        let removed = self.left.remove(&self.claim);
        if let Some((pid, mut pipe)) = lock(&self.held).guard.take() {
            // Both fail only when the guard has ended before.
            let _ = pipe.write_all(b"c");
            // The guard holds a copy of the claim's lock: a node that starts now would find the
            // place taken until the guard has ended.
            let _ = waitpid(pid, None);
        }
        removed.map(drop)
    }
}

/// Describes how a guard ended.
fn how(end: nix::Result<WaitStatus>) -> String {
    match end {
        Ok(WaitStatus::Signaled(_, signal, _)) => format!("killed by {signal}"),
        Ok(WaitStatus::Exited(_, code)) => format!("exit code {code}"),
        _ => "it is gone".into(),
    }
}

/// Runs the guard; returns its exit code.
fn live(node: Pid, pipe: File, left: &Left, claim: Claim) -> i32 {
    // Opened first, while the id certainly names the node: after its death the id may be given to
    // another process.
    let death = open_pidfd(node);
    // Standard error stays: the report after the node's death goes there.
    step_aside(NAME, &privileges::GUARD);
    // Trimming while the node starts would compete with it for the CPU, and start time counts (N3).
    if is_quiet(&pipe) {
        memory::forget_start();
    }
    let in_order = left_in_order(pipe);
    if !in_order && let Some(death) = death {
        wait_for_end(&death);
    }
    // While the claim is held: once it is dropped, another node may have the flows.
    let orphans = orphans(node, &claim);
    if let Some(orphans) = &orphans {
        orphans.bury();
    }
    let code = if in_order {
        0
    } else {
        clean_up(node, left, &claim)
    };
    // The next node waits for it.
    drop(claim);
    if let Some(orphans) = orphans {
        look_after(orphans, in_order);
    }
    code
}

/// Flows of the packet path that no node looks after: neither the one that has ended nor its successor, which may
/// be of another version and leave them alone.
fn orphans(node: Pid, claim: &Claim) -> Option<Orphans> {
    let orphans = Orphans::find(posthaste_relay::sys::netns_cookie().ok()?)?;
    let is_last = orphans.owner() == node.as_raw().cast_unsigned();
    (is_last || claim.is_alone().unwrap_or(false)).then_some(orphans)
}

fn look_after(orphans: Orphans, in_order: bool) {
    if in_order {
        // The node waits for the end of its child, and cannot wait for flows.
        // SAFETY: the guard has one thread.
        match unsafe { fork() } {
            Ok(ForkResult::Child) => {}
            _ => return,
        }
    }
    // Nothing is reported any more, and a reader of the node's output would wait for the last flow.
    let _ = dup2_stderr(std::io::stdin());
    orphans.look_after();
}

/// Removes what a dead node left; returns the exit code.
fn clean_up(node: Pid, left: &Left, claim: &Claim) -> i32 {
    // The log's thread was not forked: standard error is the only output.
    match left.remove(claim) {
        Ok(report) => {
            let done = match &report.done[..] {
                [] => "nothing was left to remove".to_owned(),
                done => done.join(", "),
            };
            let text = format!("posthaste-guard: node {node} died: {done}");
            journal::report(Level::Warn, &text);
            0
        }
        Err(error) => {
            let text = format!(
                "posthaste-guard: node {node} died, and could not clean up after it: {error:#}"
            );
            journal::report(Level::Error, &text);
            1
        }
    }
}

/// Whether the node has run for [`START_TIME_MAX`] without writing to the pipe or closing it.
fn is_quiet(pipe: &File) -> bool {
    let mut waiting = [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)];
    poll(&mut waiting, START_TIME_MAX) == Ok(0)
}

/// Waits for the end of the pipe; returns whether the node reported that it cleaned up.
fn left_in_order(mut pipe: File) -> bool {
    // `read_exact` retries EINTR, so a stray signal is not taken for the node's death.
    pipe.read_exact(&mut [0]).is_ok()
}

/// A descriptor that becomes readable when the process has ended.
pub(crate) fn open_pidfd(process: Pid) -> Option<OwnedFd> {
    // SAFETY: pidfd_open(2) takes no pointers and returns a new descriptor.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, process.as_raw(), 0) };
    let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0)?;
    // SAFETY: the descriptor is new and has no other owner.
    Some(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The pipe ends while the kernel still closes the node's other descriptors:
/// wait until its sockets are closed too.
fn wait_for_end(death: &OwnedFd) {
    let mut waiting = [PollFd::new(death.as_fd(), PollFlags::POLLIN)];
    let most = PollTimeout::try_from(DEATH_TIME_MAX).unwrap_or(PollTimeout::MAX);
    // A node that does not end in time is cleaned up after all the same.
    let _ = poll(&mut waiting, most);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_means_orderly_end() {
        let (read, write) = pipe2(OFlag::O_CLOEXEC).unwrap();
        File::from(write).write_all(b"c").unwrap();
        assert!(left_in_order(read.into()));
        let (read, write) = pipe2(OFlag::O_CLOEXEC).unwrap();
        drop(write);
        assert!(!left_in_order(read.into()));
    }

    #[test]
    fn process_end_detected() {
        let mut child = std::process::Command::new("sleep")
            .arg("600")
            .spawn()
            .unwrap();
        let pid = Pid::from_raw(child.id().cast_signed());
        let death = open_pidfd(pid).unwrap();
        child.kill().unwrap();
        wait_for_end(&death);
        assert!(child.try_wait().unwrap().is_some());
        assert!(open_pidfd(pid).is_none());
    }
}
