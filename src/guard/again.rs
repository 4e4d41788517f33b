// SPDX-License-Identifier: Apache-2.0
//! Starts a guard anew after one died, from a process that has threads by now.
//!
//! Such a process cannot fork and go on: a lock that another thread holds would stay locked in the
//! child (fork(2)). So the program executes itself with the hidden verb `guard` and hands over what
//! the first guard was forked with: the pipe as standard input, the file of the claim as standard
//! output.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use clap::Args;
use nix::fcntl::OFlag;
use nix::unistd::{Pid, getpid, pipe2};

use super::{Left, live};
use crate::host::Claim;
use posthaste_config::Transparent;
use posthaste_daemon::privileges;

/// This program: the link names the running file also after an upgrade replaced the path.
const PROGRAM: &str = "/proc/self/exe";
/// The longest wait before the next attempt, when guards die at once or cannot be started.
const WAIT_MAX: Duration = Duration::from_secs(60);
const WAIT_MIN: Duration = Duration::from_secs(1);

/// Arguments of the hidden verb `guard`.
#[derive(Args, Debug)]
pub(crate) struct GuardArgs {
    /// The process that is guarded
    #[arg(long)]
    node: i32,
    #[arg(long)]
    mark: u32,
    #[arg(long)]
    socket_mark: u32,
    #[arg(long)]
    table: u32,
    /// How many nodes there were before it
    #[arg(long)]
    successions: u16,
}

/// The hidden verb `guard`. Does not return: the claim must not be dropped here.
pub(crate) fn run(args: &GuardArgs) -> anyhow::Result<()> {
    let inherit = |fd: std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned();
    let pipe = inherit(std::io::stdin().as_fd()).context("take the guard's pipe")?;
    let lock = inherit(std::io::stdout().as_fd()).context("take the lock file")?;
    let claim = Claim::inherited(lock).context("only a node starts this verb")?;
    let left = Left {
        transparent: Transparent {
            enabled: true,
            // Removal goes by mark and protocol number, on every interface.
            interfaces: Vec::new(),
            mark: args.mark,
            socket_mark: args.socket_mark,
            table: args.table,
        },
        successions: args.successions,
    };
    let node = Pid::from_raw(args.node);
    std::process::exit(live(node, pipe.into(), &left, claim))
}

/// Starts a guard of this process, and returns it with the node's end of its pipe.
pub(super) fn start(left: &Left, claim: &Claim) -> anyhow::Result<(Pid, File)> {
    let (read, write) = pipe2(OFlag::O_CLOEXEC).context("open the guard's pipe")?;
    let lock = claim
        .as_fd()
        .try_clone_to_owned()
        .context("share the lock file")?;
    let mut command = command(left, read, lock);
    // Capabilities belong to threads: those passed on here stay with this thread and its child.
    let spawned = std::thread::scope(|scope| {
        let spawning = scope.spawn(|| {
            // Ambient capabilities survive the execve(2) of a user who is not root; `keep_only` has
            // cleared those of the node.
            privileges::pass_on(&privileges::GUARD)?;
            command
                .spawn()
                .with_context(|| format!("execute {PROGRAM}"))
        });
        spawning
            .join()
            .map_err(|_| anyhow!("starting it ended with a panic"))
    })??;
    Ok((Pid::from_raw(spawned.id().cast_signed()), write.into()))
}

fn command(left: &Left, pipe: OwnedFd, lock: OwnedFd) -> Command {
    let number = |name: &str, value: u32| format!("--{name}={value}");
    let transparent = &left.transparent;
    let mut command = Command::new(PROGRAM);
    command
        // Otherwise `ps -f` would show /proc/self/exe.
        .arg0("posthaste")
        .arg("guard")
        .arg(format!("--node={}", getpid()))
        .arg(number("mark", transparent.mark))
        .arg(number("socket-mark", transparent.socket_mark))
        .arg(number("table", transparent.table))
        .arg(number("successions", left.successions.into()))
        .env_clear()
        .stdin(Stdio::from(pipe))
        .stdout(Stdio::from(lock));
    command
}

/// When to start a guard again: at once after the first death, then after 1, 2, 4 ... 60 s while
/// guards keep dying.
#[derive(Debug)]
pub(super) struct Revival {
    due: Option<Instant>,
    wait: Duration,
    begun: Instant,
}

impl Revival {
    /// A guard was started.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            due: None,
            wait: Duration::ZERO,
            begun: now,
        }
    }

    /// The guard died, or could not be started.
    pub(super) fn failed(&mut self, now: Instant) {
        // A guard that ran for a minute was fine: its death is no sign that the next one dies at
        // once. `due` is set while attempts fail, and such attempts keep backing off.
        if self.due.is_none() && now.duration_since(self.begun) >= WAIT_MAX {
            self.wait = Duration::ZERO;
        }
        self.due = Some(now + self.wait);
        self.wait = (self.wait * 2).clamp(WAIT_MIN, WAIT_MAX);
    }

    /// A guard was started again.
    pub(super) fn succeeded(&mut self, now: Instant) {
        self.due = None;
        self.begun = now;
    }

    /// Whether to start a guard now.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.due.is_some_and(|due| now >= due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restarts_back_off() {
        let start = Instant::now();
        let mut revival = Revival::new(start);
        assert!(!revival.is_due(start + WAIT_MAX));
        let mut now = start;
        let mut waits = Vec::new();
        for _ in 0..9 {
            revival.failed(now);
            let seconds =
                (0..=60).find(|seconds| revival.is_due(now + Duration::from_secs(*seconds)));
            waits.push(seconds.unwrap());
            now += Duration::from_secs(seconds.unwrap());
            revival.succeeded(now);
        }
        assert_eq!(waits, [0, 1, 2, 4, 8, 16, 32, 60, 60]);
        // A guard that ran for long does not count as failing.
        now += WAIT_MAX;
        revival.failed(now);
        assert!(revival.is_due(now));
    }

    #[test]
    fn failed_start_retried() {
        let now = Instant::now();
        let mut revival = Revival::new(now);
        revival.failed(now);
        assert!(revival.is_due(now));
        revival.failed(now);
        assert!(!revival.is_due(now));
        assert!(revival.is_due(now + WAIT_MIN));
    }
}
