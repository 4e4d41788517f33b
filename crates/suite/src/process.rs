// SPDX-License-Identifier: Apache-2.0
//! The processes of tests, and what tests leave of them.

use std::collections::HashMap;
use std::fs;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::prctl;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::Pid;

/// The unit of times in `/proc` (`USER_HZ`).
const TICK_MS: u64 = 10;

/// Who waits for the children that this process started, by their ids.
static OWN: Mutex<Option<HashMap<i32, Sender<Ended>>>> = Mutex::new(None);
/// Interval between two looks for children while there is none.
const IDLE: Duration = Duration::from_millis(20);

/// How a child ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub(crate) status: WaitStatus,
    /// CPU time of it and of the processes that it waited for.
    pub(crate) cpu: Duration,
}

/// A child that this process started.
#[derive(Debug)]
pub(crate) struct Own {
    pid: i32,
    ended: Receiver<Ended>,
}

/// Makes processes whose parents end children of this one, so that none is lost sight of, and reaps
/// all that end. From now on children are started by [`own`]: nothing else may wait for one.
pub(crate) fn adopt_orphans() -> Result<()> {
    prctl::set_child_subreaper(true).context("become the reaper of orphans")?;
    let reap = || loop {
        // It stays a zombie, whose CPU time can be read.
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
        match waitid(Id::All, flags).ok().and_then(|status| status.pid()) {
            Some(pid) => reap(pid),
            None => thread::sleep(IDLE),
        }
    };
    thread::Builder::new()
        .spawn(reap)
        .context("start a thread")
        .map(drop)
}

fn reap(pid: Pid) {
    // Locked, so that no child of our own is just being started, or killed.
    let mut own = lock();
    let cpu = cpu(pid).unwrap_or_default();
    let Ok(status) = waitpid(pid, Some(WaitPidFlag::WNOHANG)) else {
        return;
    };
    let waiting = own.as_mut().and_then(|own| own.remove(&pid.as_raw()));
    // Nobody may want to know.
    let _ = waiting.map(|waiting| waiting.send(Ended { status, cpu }));
}

/// Starts a child.
pub(crate) fn own(command: &mut Command) -> Result<(Own, Option<std::process::ChildStdout>)> {
    let mut own = lock();
    let name = command.get_program().to_string_lossy().into_owned();
    let mut child = command.spawn().with_context(|| format!("start {name}"))?;
    let pid = i32::try_from(child.id()).expect("process ids are small");
    let (waiting, ended) = mpsc::channel();
    own.get_or_insert_default().insert(pid, waiting);
    Ok((Own { pid, ended }, child.stdout.take()))
}

fn lock() -> MutexGuard<'static, Option<HashMap<i32, Sender<Ended>>>> {
    OWN.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Own {
    /// Waits for its end; `None` if it has not ended in time.
    pub(crate) fn wait(&self, at_most: Duration) -> Option<Ended> {
        match self.ended.recv_timeout(at_most) {
            Ok(ended) => Some(ended),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => unreachable!("its end is reported first"),
        }
    }

    /// Ends it, and with it what it started.
    pub(crate) fn kill(&self) {
        let own = lock();
        // Otherwise it has ended, and its id may be another's.
        if own.as_ref().is_some_and(|own| own.contains_key(&self.pid)) {
            let _ = kill(Pid::from_raw(self.pid), Signal::SIGKILL);
        }
    }
}

/// CPU time of a process that has ended and of the children that it waited for, until it is reaped.
fn cpu(pid: Pid) -> Option<Duration> {
    let fields = stat(pid.as_raw())?;
    // utime, stime, cutime and cstime (proc(5)).
    let ticks = fields
        .get(11..15)?
        .iter()
        .map(|field| field.parse::<u64>().unwrap_or(0));
    Some(Duration::from_millis(ticks.sum::<u64>() * TICK_MS))
}

/// The ids and commands of this process's children that run.
pub(crate) fn children() -> Vec<(i32, String)> {
    let own = std::process::id().to_string();
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let runs = |pid: &i32| {
        let fields = stat(*pid);
        fields.is_some_and(|fields| fields.get(1) == Some(&own) && fields[0] != "Z")
    };
    pids.filter(runs)
        .map(|pid| (pid, command_line(pid)))
        .collect()
}

/// The fields of `/proc/PID/stat` behind the name, which may have blanks.
fn stat(pid: i32) -> Option<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = text.rsplit_once(')')?;
    Some(fields.split_whitespace().map(str::to_owned).collect())
}

fn command_line(pid: i32) -> String {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words = bytes.split(|byte| *byte == 0).map(String::from_utf8_lossy);
    words.collect::<Vec<_>>().join(" ").trim_end().to_owned()
}

/// Counts for some milliseconds at a time, until the process that started it has ended, however that was.
const BURN: &str = "while kill -0 $PPID; do i=0; while [ $i -lt 10000 ]; do i=$((i+1)); done; done";

/// Processes that use a CPU each until this is dropped.
#[derive(Debug)]
pub(crate) struct Burners(Vec<Own>);

impl Burners {
    pub(crate) fn start(count: usize) -> Result<Self> {
        let start = |_| {
            let mut shell = Command::new("sh");
            shell
                .args(["-c", BURN])
                .stdin(Stdio::null())
                .stderr(Stdio::null());
            own(&mut shell).map(|(burner, _)| burner)
        };
        (0..count).map(start).collect::<Result<_>>().map(Self)
    }
}

impl Drop for Burners {
    fn drop(&mut self) {
        for burner in &self.0 {
            burner.kill();
        }
    }
}
