// SPDX-License-Identifier: Apache-2.0
//! Processes inside namespaces, and waiting for conditions.
//!
//! A [`Process`] is killed, by its id, when dropped, and by the kernel when the lab dies.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::scratch::Scratch;

/// Polling interval of conditions.
const POLL: Duration = Duration::from_millis(10);
/// The unit of times in `/proc` (`USER_HZ`).
const TICK_MS: u64 = 10;

/// A running program with its output.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    output: Scratch,
}

impl Process {
    /// Starts a command, made by [`Namespace::command`](crate::netns::Namespace::command).
    ///
    /// Its output goes to files that are removed with the process. `name` is for messages.
    pub fn spawn(name: &str, command: Command) -> Result<Self> {
        Self::spawn_with(name, command, |_| Ok(()))
    }

    /// As [`Self::spawn`]; the parent thread calls `adopt` with the process id before it is used
    /// elsewhere. If that fails the process is killed.
    pub fn spawn_with(
        name: &str,
        mut command: Command,
        adopt: impl FnOnce(u32) -> io::Result<()> + Send + 'static,
    ) -> Result<Self> {
        // Files instead of pipes: nobody reads while a process runs, and a full pipe would block
        // it.
        let output = Scratch::new()?;
        let create = |file| File::create(output.path().join(file)).context("make an output file");
        command
            // A program that reads a terminal would stop in the background.
            .stdin(Stdio::null())
            .stdout(create("stdout")?)
            .stderr(create("stderr")?);
        let spawn = move || adopted(command.spawn()?, adopt);
        let child = start(spawn).with_context(|| format!("start {name}"))?;
        Ok(Self {
            name: name.to_owned(),
            child,
            output,
        })
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its standard output so far.
    pub fn stdout(&self) -> String {
        self.read("stdout")
    }

    /// Its standard error so far.
    pub fn stderr(&self) -> String {
        self.read("stderr")
    }

    fn read(&self, file: &str) -> String {
        // The process may be within a character.
        let bytes = fs::read(self.path(file)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn path(&self, file: &str) -> PathBuf {
        self.output.path().join(file)
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        // The child is not reaped before `wait` or `drop`, so the id cannot be reused.
        let pid = i32::try_from(self.pid()).context("process id out of range")?;
        kill(Pid::from_raw(pid), signal).with_context(|| format!("send {signal} to {}", self.name))
    }

    /// CPU time of its threads so far, in user space and in the kernel.
    pub fn cpu(&self) -> Result<Duration> {
        let path = format!("/proc/{}/stat", self.pid());
        let stat = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
        // The name, in parentheses, may have blanks; utime and stime follow it (proc(5)).
        let behind = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
        let mut fields = behind.split_whitespace().skip(11);
        let mut ticks = || fields.next()?.parse::<u64>().ok();
        let ticks = ticks().zip(ticks()).context("read the CPU time")?;
        Ok(Duration::from_millis((ticks.0 + ticks.1) * TICK_MS))
    }

    /// Its exit status, if it has ended.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.child
            .try_wait()
            .with_context(|| format!("wait for {}", self.name))
    }

    /// Waits for its end.
    pub fn wait(&mut self, deadline: Duration) -> Result<ExitStatus> {
        let status = wait_for(deadline, || self.ended())?;
        status.with_context(|| self.failure(&format!("still runs after {deadline:?}")))
    }

    /// Waits until `condition` holds; fails at once when the process ends before that.
    pub fn wait_until(
        &mut self,
        what: &str,
        deadline: Duration,
        mut condition: impl FnMut(&Self) -> bool,
    ) -> Result<()> {
        let end = wait_for(deadline, || match condition(self) {
            true => Ok(Some(None)),
            false => Ok(self.ended()?.map(Some)),
        })?;
        let failure = match end {
            Some(None) => return Ok(()),
            Some(Some(status)) => format!("ended ({status}) before {what}"),
            None => format!("had no {what} in {deadline:?}"),
        };
        bail!(self.failure(&failure))
    }

    /// A message with all output.
    fn failure(&self, what: &str) -> String {
        format!("{} {what}\n{}{}", self.name, self.stdout(), self.stderr())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already; then there is nothing to kill.
        // SIGKILL, because a destructor must not wait for a program that drains.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until `condition` holds.
pub fn wait_until(
    what: &str,
    deadline: Duration,
    mut condition: impl FnMut() -> bool,
) -> Result<()> {
    let holds = wait_for(deadline, || Ok(condition().then_some(())))?;
    holds.with_context(|| format!("no {what} in {deadline:?}"))
}

/// Tries again and again until there is a result; `None` when there is none before the deadline.
pub(crate) fn wait_for<T>(
    deadline: Duration,
    mut attempt: impl FnMut() -> Result<Option<T>>,
) -> Result<Option<T>> {
    let until = Instant::now() + deadline;
    loop {
        let result = attempt()?;
        if result.is_some() || Instant::now() > until {
            return Ok(result);
        }
        // Conditions are files, counters and sockets of others: nothing to wait on.
        thread::sleep(POLL);
    }
}

/// Runs a command to its end and returns its output. An error contains its standard error.
pub(crate) fn run(command: &mut Command) -> Result<String> {
    run_with(command, "")
}

/// Likewise, with `input` on its standard input.
pub(crate) fn run_with(command: &mut Command, input: &str) -> Result<String> {
    let shown = format!("{command:?}");
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("start {shown}"))?;
    if let Some(mut stdin) = child.stdin.take() {
        // A command that ends early reports the reason below.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child
        .wait_with_output()
        .with_context(|| format!("wait for {shown}"))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        let message = format!("{shown} failed: {}\n{input}", stderr.trim());
        bail!("{}", message.trim_end());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Starts a process from the one thread that lives as long as the lab: the kernel kills child
/// processes when the *thread* that started them ends.
fn start(spawn: impl FnOnce() -> io::Result<Child> + Send + 'static) -> Result<Child> {
    static STARTER: OnceLock<Sender<Box<dyn FnOnce() + Send>>> = OnceLock::new();
    let starter = STARTER.get_or_init(|| {
        let (orders, inbox) = mpsc::channel::<Box<dyn FnOnce() + Send>>();
        thread::spawn(move || inbox.into_iter().for_each(|order| order()));
        orders
    });
    let (reply, answer) = mpsc::channel();
    // The caller waits for the reply.
    let order = move || drop(reply.send(spawn()));
    starter
        .send(Box::new(order))
        .ok()
        .context("reach the thread that starts processes")?;
    Ok(answer
        .recv()
        .context("receive from the thread that starts processes")??)
}

fn adopted(mut child: Child, adopt: impl FnOnce(u32) -> io::Result<()>) -> io::Result<Child> {
    if let Err(error) = adopt(child.id()) {
        // It may have ended already; then there is nothing to kill.
        let _ = child.kill();
        child.wait()?;
        return Err(error);
    }
    Ok(child)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    fn shell(script: &str) -> Process {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Process::spawn("the shell", command).unwrap()
    }

    #[test]
    fn output_and_exit_status() {
        let mut process = shell("echo out; echo err >&2; exit 3");
        assert_eq!(process.wait(SOON).unwrap().code(), Some(3));
        assert_eq!(
            (process.stdout().as_str(), process.stderr().as_str()),
            ("out\n", "err\n")
        );
    }

    #[test]
    fn early_end_shows_output() {
        let mut process = shell("echo no such luck");
        let error = process
            .wait_until("luck", SOON, |_| false)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("before luck") && error.contains("no such luck"),
            "{error}"
        );
    }

    #[test]
    fn a_dropped_process_is_dead() {
        let process = shell("exec sleep 100");
        let directory = format!("/proc/{}", process.pid());
        drop(process);
        assert!(!std::path::Path::new(&directory).exists());
    }
}
