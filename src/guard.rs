// SPDX-License-Identifier: Apache-2.0
//! A child process that cleans up after a node that died.
//!
//! The redirect program goes with the node's descriptors, but the rule, the
//! route and sockets in TIME_WAIT would stay, and such sockets swallow later
//! flows with the same addresses. The guard waits on a pipe whose other end
//! only the node holds: a byte means that the node cleaned up itself, the end
//! without one that it died. It holds nothing else and does nothing else. While other nodes are
//! there, it leaves them what they need: one that replaced this one, or that this one replaced.
//!
//! The first guard is forked while the node has one thread. One that dies is missed by the node,
//! which starts another: see `again`.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use caps::Capability;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal, pthread_sigmask, signal};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, dup2_stdin, dup2_stdout, fork, getpid, pipe2, setsid};

use crate::admin::api;
use crate::config::Transparent;
use crate::host::{self, Claim};
use crate::journal::Log;
use crate::{memory, privileges};

mod again;

use again::Revival;
pub(crate) use again::{GuardArgs, run};

/// Name of the process, as `ps -e` shows it: the most the kernel keeps.
const NAME: &std::ffi::CStr = c"posthaste-guard";
/// How long a node may take to start, in milliseconds.
const START_TIME_MAX: u16 = 1000;
/// How long the kernel may take to close what a dead node had open.
const DEATH_TIME_MAX: Duration = Duration::from_secs(2);

/// The node's hold on its guard. Dropping it without [`Guard::leave`] is
/// like dying.
#[derive(Debug)]
pub(crate) struct Guard {
    held: Mutex<Held>,
    /// Held together with the guard: a node that is started next waits for the
    /// later end of the two.
    claim: Claim,
    left: Left,
}

/// The guard of this moment.
#[derive(Debug)]
struct Held {
    /// Its process and its pipe; nothing while there is no guard.
    guard: Option<(Pid, File)>,
    revival: Revival,
    restarts: u64,
}

/// What a node leaves behind.
#[derive(Clone, Debug)]
struct Left {
    transparent: Transparent,
    /// How many nodes there were before it.
    successions: u16,
}

impl Left {
    fn remove(&self, claim: &Claim) -> anyhow::Result<host::Report> {
        host::leave(claim, &self.transparent, self.successions)
    }
}

impl Guard {
    /// Forks the guard. This process must have no other thread yet: the child
    /// goes on with a copy of the caller's alone, and with every descriptor
    /// that is open now.
    pub(crate) fn start(
        transparent: &Transparent,
        claim: Claim,
        successions: u16,
    ) -> anyhow::Result<Self> {
        let left = Left {
            transparent: transparent.clone(),
            successions,
        };
        let (read, write) = pipe2(OFlag::O_CLOEXEC).context("open the guard's pipe")?;
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
                drop(write);
                std::process::exit(live(node, read.into(), &left, &claim))
            }
        }
    }

    /// Sees whether the guard lives, and starts another when it does not.
    pub(crate) fn look_after(&self, log: &Log) {
        let now = Instant::now();
        let mut held = self.held();
        if let Some((pid, _)) = &held.guard {
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

    /// How it is, for the operator.
    pub(crate) fn state(&self) -> api::Guard {
        let held = self.held();
        api::Guard {
            pid: held.guard.as_ref().map(|(pid, _)| pid.as_raw()),
            restarts: held.restarts,
        }
    }

    /// The node's part of the claim on the network namespace.
    pub(crate) fn claim(&self) -> &Claim {
        &self.claim
    }

    /// Takes the node off the host, tells the guard so, and waits for its end.
    pub(crate) fn leave(&self) -> anyhow::Result<()> {
        let removed = self.left.remove(&self.claim);
        if let Some((pid, mut pipe)) = self.held().guard.take() {
            // Both fail only when the guard has ended before.
            let _ = pipe.write_all(b"c");
            let _ = waitpid(pid, None);
        }
        removed.map(drop)
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How a guard ended.
fn how(end: nix::Result<WaitStatus>) -> String {
    match end {
        Ok(WaitStatus::Signaled(_, signal, _)) => format!("killed by {signal}"),
        Ok(WaitStatus::Exited(_, code)) => format!("exit code {code}"),
        _ => "it is gone".into(),
    }
}

/// The guard's life; its exit code.
fn live(node: Pid, pipe: File, left: &Left, claim: &Claim) -> i32 {
    let death = open_pidfd(node);
    step_aside();
    if is_quiet(&pipe) {
        memory::forget_start();
    }
    if left_in_order(pipe) {
        return 0;
    }
    if let Some(death) = death {
        wait_for_end(&death);
    }
    match left.remove(claim) {
        Ok(report) => {
            eprintln!(
                "posthaste-guard: node {node} died: {}",
                report.done.join(", ")
            );
            0
        }
        Err(error) => {
            eprintln!(
                "posthaste-guard: node {node} died, and could not clean up after it: {error:#}"
            );
            1
        }
    }
}

/// Out of the node's session, deaf to what is meant for it, without its
/// standard input and output, and with the one capability it needs.
fn step_aside() {
    // Each is a precaution: a guard that lacks one still guards.
    let _ = nix::sys::prctl::set_name(NAME);
    let _ = setsid();
    for ignored in [
        Signal::SIGINT,
        Signal::SIGTERM,
        Signal::SIGHUP,
        Signal::SIGPIPE,
    ] {
        // SAFETY: no handler is installed, the signals are ignored.
        let _ = unsafe { signal(ignored, SigHandler::SigIgn) };
    }
    let _ = pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None);
    if let Ok(null) = File::options().read(true).write(true).open("/dev/null") {
        let _ = dup2_stdin(&null);
        let _ = dup2_stdout(&null);
    }
    let _ = privileges::keep_only(&[Capability::CAP_NET_ADMIN]);
}

/// Whether the node has lived for long enough to be in nobody's way.
fn is_quiet(pipe: &File) -> bool {
    let mut waiting = [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)];
    poll(&mut waiting, START_TIME_MAX) == Ok(0)
}

/// Waits for the pipe to end; whether the node said that it cleaned up.
fn left_in_order(mut pipe: File) -> bool {
    pipe.read_exact(&mut [0]).is_ok()
}

/// A descriptor that becomes readable when the process has ended.
pub(crate) fn open_pidfd(process: Pid) -> Option<OwnedFd> {
    // SAFETY: pidfd_open(2) takes no pointers and returns a new descriptor.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, process.as_raw(), 0) };
    let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0)?;
    // SAFETY: the descriptor is new and nobody else's.
    Some(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The pipe ends while the kernel still closes the node's other descriptors:
/// wait until its sockets are closed too.
fn wait_for_end(death: &OwnedFd) {
    let mut waiting = [PollFd::new(death.as_fd(), PollFlags::POLLIN)];
    let most = PollTimeout::try_from(DEATH_TIME_MAX).unwrap_or(PollTimeout::MAX);
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
