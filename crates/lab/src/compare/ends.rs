// SPDX-License-Identifier: Apache-2.0
//! The processes at both ends of a subject: this program, as client and as server.

use std::fs;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::site::{NICE, PORT, cpu_set};
use crate::load::{Order, Outcome, Serve, Served};
use crate::netns::Namespace;
use crate::process::Process;
use crate::scratch::Scratch;
use crate::sys;

/// Bound on a load's time beyond its window.
pub(super) const PATIENCE: Duration = Duration::from_secs(40);

/// A server and its control socket. Killed when dropped.
#[derive(Debug)]
pub(super) struct Server {
    process: Process,
    control: PathBuf,
    _files: Scratch,
}

impl Server {
    /// Its process.
    pub(super) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Starts a server on a CPU; `prefer` if several servers share the connections.
    pub(super) fn start(namespace: &Namespace, cpu: usize, prefer: bool) -> Result<Self> {
        let files = Scratch::new()?;
        let control = files.path().join("served.sock");
        let order = Order::Serve(Serve {
            port: PORT,
            cpu: prefer.then_some(cpu),
            control: control.clone(),
        });
        let mut process = spawn("the server", namespace, cpu, &order)?;
        process.wait_until("control socket", PATIENCE, |_| control.exists())?;
        Ok(Self {
            process,
            control,
            _files: files,
        })
    }

    pub(super) fn served(&self) -> Result<Served> {
        let mut stream = UnixStream::connect(&self.control).context("connect to the server")?;
        // A server that hangs must fail the load, not the whole run.
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut text = String::new();
        stream
            .read_to_string(&mut text)
            .context("read the server's results")?;
        serde_json::from_str(&text).with_context(|| format!("the server sent {text:?}"))
    }
}

/// Starts this program as client or server.
pub(super) fn spawn(
    name: &str,
    namespace: &Namespace,
    cpu: usize,
    order: &Order,
) -> Result<Process> {
    // A process of its own: its CPU clock must not include the work of the lab.
    let own = std::env::current_exe().context("find this program's own path")?;
    let mut command: Command = namespace.command(own)?;
    let order = serde_json::to_string(order).context("encode an order")?;
    command.arg("load").arg(order);
    sys::confine(&mut command, cpu_set(&[cpu])?, NICE);
    Process::spawn(name, command)
}

/// Waits for a client, whose load lasts for a while, and reads its results.
pub(super) fn finish(mut client: Process, lasts: Duration) -> Result<Outcome> {
    let status = client.wait(lasts + PATIENCE)?;
    ensure!(status.success(), "the client: {}", client.stderr().trim());
    let text = client.stdout();
    serde_json::from_str(&text).with_context(|| format!("the client wrote {text:?}"))
}

/// The combined results of several clients that ran at the same time. CPU times are those that the
/// first one measured: each measures all processes.
pub(super) fn merge(outcomes: Vec<Outcome>) -> Outcome {
    let mut outcomes = outcomes.into_iter();
    let mut sum = outcomes.next().unwrap_or_default();
    for other in outcomes {
        // Percentiles of latency stay those of the first: they cannot be merged.
        sum.counted += other.counted;
        sum.counted_bytes += other.counted_bytes;
        sum.begun += other.begun;
        sum.completed += other.completed;
        sum.received += other.received;
        for (what, count) in other.errors {
            *sum.errors.entry(what).or_default() += count;
        }
    }
    sum
}

/// The processes `ksoftirqd/N` of these CPUs.
pub(super) fn ksoftirqd(cpus: &[usize]) -> Result<Vec<i32>> {
    let wanted: Vec<String> = cpus.iter().map(|cpu| format!("ksoftirqd/{cpu}")).collect();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").context("list /proc")? {
        let path = entry.context("list /proc")?.path();
        let name = fs::read_to_string(path.join("comm")).unwrap_or_default();
        let pid = path
            .file_name()
            .and_then(|name| name.to_str()?.parse::<i32>().ok());
        if wanted.iter().any(|wanted| wanted == name.trim()) {
            found.extend(pid);
        }
    }
    // Without them a part of the CPU time would be missing silently.
    ensure!(
        found.len() == cpus.len(),
        "no {wanted:?} among the processes"
    );
    Ok(found)
}
