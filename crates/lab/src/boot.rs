// SPDX-License-Identifier: Apache-2.0
//! Times the start of a relay, and reads its memory.
//!
//! The *start* is the time from the `exec` of the program, which is in the page cache, until the
//! client has a byte back from the server through the relay (see [`probe`] for how relayed bytes
//! are distinguished from forwarded ones). The new process itself records the time just before
//! `exec`.

pub(crate) mod memory;
pub mod probe;

use std::fs::{self, File};
use std::io::{self, Read};
use std::net::SocketAddr;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::netns::Namespace;
use crate::network::Network;
use crate::record;
use crate::scratch::Scratch;
use crate::sys;

/// Bound on the start and the stop of a node.
const PATIENCE: Duration = Duration::from_secs(30);

/// A node that is ready to start.
#[derive(Debug)]
pub(crate) struct Launch {
    /// The command, with all slow preparations done.
    pub(crate) command: Command,
    ready: UnixDatagram,
    files: Scratch,
}

impl Launch {
    /// Prepares the start of a node in a namespace.
    pub(crate) fn new(namespace: &Namespace, binary: &Path, workers: usize) -> Result<Self> {
        let files = Scratch::new()?;
        let notices = files.path().join("notify.sock");
        let ready = UnixDatagram::bind(&notices).context("make a notification socket")?;
        let mut command = launch(namespace, binary, workers, &files)?;
        command.env("NOTIFY_SOCKET", &notices);
        Ok(Self {
            command,
            ready,
            files,
        })
    }

    /// Starts the node, waits for the first byte that it relays to `target` and stops it. Returns
    /// the time from `exec` until that byte.
    pub(crate) fn time(self, network: &Network, target: SocketAddr) -> Result<Duration> {
        let timed = time_start(network, self.command, target);
        let (node, took) =
            timed.with_context(|| format!("the node said: {}", message(&self.files)))?;
        // A node that is stopped before it is ready dies, and the next one waits until its guard
        // has cleaned up.
        await_ready(&self.ready)?;
        node.stop()?;
        Ok(took)
    }
}

/// Starts a relay and waits for the first byte that it relays to `target`. Returns it with the time
/// from `exec` until that byte.
pub(crate) fn time_start(
    network: &Network,
    mut command: Command,
    target: SocketAddr,
) -> Result<(Running, Duration)> {
    let (mut noted, note) = io::pipe().context("make a pipe")?;
    // The probes run before the relay starts, so that none of its time is lost to their start.
    let (go, over) = (Barrier::new(2), AtomicBool::new(false));
    thread::scope(|scope| {
        let prober = scope.spawn(|| {
            network.client().run_in(|| {
                go.wait();
                probe::first_relayed_byte(target, &over)
            })
        });
        go.wait();
        let start = Instant::now();
        sys::note_exec(&mut command, start, note);
        let relay = command.spawn().map(Running).context("start it");
        let relay = relay.and_then(|relay| relay.watch(|| prober.is_finished()));
        over.store(true, Ordering::Relaxed);
        let first = prober
            .join()
            .map_err(|_| anyhow!("the probing thread panicked"))?;
        let relay = relay?;
        let mut nanoseconds = [0; 8];
        noted
            .read_exact(&mut nanoseconds)
            .context("read the time of exec")?;
        // The parent's fork and the child's set-up are the lab's work, not the relay's.
        let forked = Duration::from_nanos(u64::from_ne_bytes(nanoseconds));
        Ok((relay, first?.duration_since(start) - forked))
    })
}

/// Waits until the node reports that it has started.
fn await_ready(notices: &UnixDatagram) -> Result<()> {
    notices.set_read_timeout(Some(PATIENCE))?;
    let mut notice = [0; 256];
    loop {
        let length = notices
            .recv(&mut notice)
            .context("wait until the node is ready")?;
        if notice[..length].starts_with(b"READY=1") {
            return Ok(());
        }
    }
}

fn message(files: &Scratch) -> String {
    fs::read_to_string(files.path().join("output")).unwrap_or_default()
}

/// The command that starts a node, with all slow preparations done.
fn launch(
    namespace: &Namespace,
    binary: &Path,
    workers: usize,
    files: &Scratch,
) -> Result<Command> {
    let config = files.path().join("node.toml");
    let socket = files.path().join("admin.sock");
    let text = format!(
        "version = 1\n[node]\nworkers = {workers}\n[admin]\nsocket = {socket:?}\n[metrics]\nlisten = \"off\"\n[defaults]\nobserve = false\n"
    );
    record::write_file(&config, &text)?;
    // A pipe would need a reader; a node that fills it would stop.
    let output = File::create(files.path().join("output")).context("make an output file")?;
    let mut command = namespace.command(binary)?;
    command
        .arg("node")
        .arg("-c")
        .arg(&config)
        .stdin(Stdio::null());
    command
        .stdout(output.try_clone().context("duplicate a descriptor")?)
        .stderr(output);
    Ok(command)
}

/// A relay that is killed when dropped.
#[derive(Debug)]
pub(crate) struct Running(Child);

impl Running {
    /// Waits until `done`; fails when the relay ends or nothing happens before that.
    fn watch(mut self, done: impl Fn() -> bool) -> Result<Self> {
        let until = Instant::now() + PATIENCE;
        while !done() {
            let ended = self.0.try_wait().context("wait for the node")?;
            ensure!(ended.is_none(), "it ended before it relayed a byte");
            ensure!(
                Instant::now() < until,
                "no byte was relayed within {PATIENCE:?}"
            );
            // The probing thread measures; this one only must not take its CPU.
            thread::sleep(Duration::from_millis(5));
        }
        Ok(self)
    }

    /// Stops the node with a signal and waits until it has ended.
    fn stop(mut self) -> Result<()> {
        let pid = i32::try_from(self.0.id()).context("process id out of range")?;
        kill(Pid::from_raw(pid), Signal::SIGTERM).context("send SIGTERM to the node")?;
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.0.try_wait().context("wait for the node")? {
                ensure!(status.success(), "the node ended with {status}");
                return Ok(());
            }
            ensure!(
                Instant::now() < until,
                "the node still runs {PATIENCE:?} after SIGTERM"
            );
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already; then there is nothing to kill.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
