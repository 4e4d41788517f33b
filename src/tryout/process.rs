// SPDX-License-Identifier: Apache-2.0
//! The node of a trial: a process that ends with this one.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use nix::poll::PollTimeout;
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::Pid;

use posthaste_daemon::thread::lock;

use super::Ended;
use super::lines;
use crate::signals::Signals;

/// How long it may take to start.
const READY: Duration = Duration::from_secs(30);
/// Bound on recorded relays.
const ENDED_MAX: usize = 100_000;
const LOOK: Duration = Duration::from_millis(50);

/// Waits for `time`; returns whether a signal arrived.
pub(super) fn is_signalled(signals: &Signals, time: Duration) -> bool {
    let timeout = PollTimeout::try_from(time).unwrap_or(PollTimeout::MAX);
    signals.wait(timeout).is_some()
}

/// The process.
#[derive(Debug)]
pub(super) struct Node {
    child: Child,
    ended: Arc<Mutex<Vec<Ended>>>,
}

impl Node {
    /// Starts this program as a node.
    pub(super) fn start(config: Option<&Path>) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("find this program")?;
        let mut command = Command::new(program);
        command
            .arg("node")
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        if let Some(config) = config {
            command.arg("-c").arg(config);
        }
        // Ctrl-C at a terminal must reach only this process, which drains the node.
        command.process_group(0);
        // SAFETY: two system calls and nothing else, which is allowed between fork and exec.
        unsafe {
            command.pre_exec(|| {
                // The mask is inherited, and the node must receive its SIGTERM.
                SigSet::all().thread_unblock()?;
                Ok(prctl::set_pdeathsig(Signal::SIGTERM)?)
            });
        }
        let mut child = command.spawn().context("start the node")?;
        let log = child.stdout.take().context("read the node's log")?;
        let ended = Arc::default();
        let kept = Arc::clone(&ended);
        thread::spawn(move || follow(BufReader::new(log), &kept));
        Ok(Self { child, ended })
    }

    /// Waits until it answers.
    pub(super) fn wait_until_ready(&mut self, answers: impl Fn() -> bool) -> anyhow::Result<()> {
        let until = Instant::now() + READY;
        while !answers() {
            if let Some(ended) = self.failure() {
                bail!("the node did not start: {ended}; posthaste doctor may report why");
            }
            if Instant::now() > until {
                bail!("the node does not answer after {} s", READY.as_secs());
            }
            thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Its exit status, if it has ended.
    pub(super) fn failure(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Waits for its end; a signal resets its connections.
    pub(super) fn wait_until_ended(&mut self, signals: &Signals) {
        while self.failure().is_none() {
            if is_signalled(signals, LOOK) {
                // A second signal ends the drain early.
                self.terminate();
            }
        }
    }

    fn terminate(&self) {
        let pid = Pid::from_raw(self.child.id().cast_signed());
        // It may have ended: its id is free only once it was waited for.
        let _ = kill(pid, Signal::SIGTERM);
    }

    /// The relays that have finished.
    pub(super) fn ended(&self) -> Vec<Ended> {
        lock(&self.ended).clone()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if self.failure().is_none() {
            self.terminate();
            let _ = self.child.wait();
        }
    }
}

/// Records finished relays, and prints warnings and errors.
fn follow(log: impl BufRead, kept: &Mutex<Vec<Ended>>) {
    for line in log.lines().map_while(Result::ok) {
        if let Some(ended) = lines::ended(&line) {
            let mut kept = lock(kept);
            if kept.len() < ENDED_MAX {
                kept.push(ended);
            }
        } else if line.contains(" level=warn ") || line.contains(" level=error ") {
            eprintln!("{line}");
        }
    }
}
