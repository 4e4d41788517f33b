// SPDX-License-Identifier: Apache-2.0
//! The processes of tests, and what tests leave of them.

use std::fs;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::prctl;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

/// The unit of times in `/proc` (`USER_HZ`).
const TICK_MS: u64 = 10;

/// The children that this process started and waits for.
static OWN: Mutex<Vec<i32>> = Mutex::new(Vec::new());
/// Interval at which orphans that have ended are reaped.
const REAP_INTERVAL: Duration = Duration::from_millis(20);

/// Makes processes whose parents end children of this one, so that none is lost sight of, and reaps
/// those that end.
pub(crate) fn adopt_orphans() -> Result<()> {
    prctl::set_child_subreaper(true).context("become the reaper of orphans")?;
    let reap = || loop {
        reap_orphans();
        thread::sleep(REAP_INTERVAL);
    };
    thread::Builder::new()
        .spawn(reap)
        .context("start a thread")
        .map(drop)
}

fn reap_orphans() {
    // Locked, so that no child of our own is just being started.
    let own = OWN.lock().unwrap_or_else(PoisonError::into_inner);
    let ended = states().into_iter().filter(|(_, state)| state == "Z");
    for (pid, _) in ended.filter(|(pid, _)| !own.contains(pid)) {
        let _ = waitpid(Pid::from_raw(pid), Some(WaitPidFlag::WNOHANG));
    }
}

/// Starts a child that [`reap`] waits for.
pub(crate) fn own(start: impl FnOnce() -> Result<Child>) -> Result<Child> {
    let mut own = OWN.lock().unwrap_or_else(PoisonError::into_inner);
    let child = start()?;
    own.push(pid(&child).as_raw());
    Ok(child)
}

/// Waits for a child that [`own`] started.
pub(crate) fn reap(child: &mut Child) -> Result<ExitStatus> {
    let pid = pid(child).as_raw();
    let status = child.wait().context("wait for a child");
    let mut own = OWN.lock().unwrap_or_else(PoisonError::into_inner);
    own.retain(|known| *known != pid);
    status
}

/// The id of a child.
pub(crate) fn pid(child: &Child) -> Pid {
    Pid::from_raw(child.id().try_into().expect("process ids are small"))
}

/// CPU time of a process that has ended and of the children that it waited for, until it is reaped.
pub(crate) fn cpu(pid: Pid) -> Option<Duration> {
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
    let running = states().into_iter().filter(|(_, state)| state != "Z");
    running.map(|(pid, _)| (pid, command_line(pid))).collect()
}

/// The ids and states of this process's children.
fn states() -> Vec<(i32, String)> {
    let own = std::process::id().to_string();
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let child = |pid: i32| {
        let fields = stat(pid)?;
        (*fields.get(1)? == own).then(|| (pid, fields[0].clone()))
    };
    pids.filter_map(child).collect()
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

/// Processes that use a CPU each until this is dropped.
#[derive(Debug)]
pub(crate) struct Burners(Vec<Child>);

impl Burners {
    pub(crate) fn start(count: usize) -> Result<Self> {
        let start = |_| {
            let mut shell = Command::new("sh");
            shell
                .args(["-c", "while :; do :; done"])
                .stdin(Stdio::null());
            own(|| shell.spawn().context("start a process that uses a CPU"))
        };
        (0..count).map(start).collect::<Result<_>>().map(Self)
    }
}

impl Drop for Burners {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // It runs until it is killed.
            let _ = child.kill();
            let _ = reap(child);
        }
    }
}
