// SPDX-License-Identifier: Apache-2.0
//! The `upgrade` verb: starts its own program as the successor of the running node, and reports the
//! result.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;

use anyhow::{Context, bail};
use clap::Args;
use nix::unistd::{dup2_stdin, setsid};
use serde::Serialize;

use super::{START_TIME_MAX, STEP_TIME_MAX};
use crate::api::Status;
use crate::client;
use crate::verb::{self, AdminArgs};
use posthaste_config::{ADMIN_SOCKET, Config};
use posthaste_daemon::thread::lock;

/// What a successor writes when it has taken over. Any other text is the error.
const DONE: &str = "done";

#[derive(Args, Debug)]
pub(crate) struct UpgradeArgs {
    /// Configuration file of the new node (default: that of the running node)
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Admin socket of the running node (default: that of FILE)
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Only reload the configuration if that is enough: the program is the one that runs, and no
    /// changed key needs a restart
    #[arg(long)]
    if_needed: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The result.
#[derive(Debug, Serialize)]
struct Upgraded {
    /// The process that relays now.
    pid: u32,
    /// The process that was replaced.
    replaced: u32,
    /// Its open relays.
    relays: u64,
}

/// Executes the verb.
pub(crate) fn run(args: &UpgradeArgs) -> anyhow::Result<()> {
    let admin = AdminArgs {
        socket: socket(args)?,
        json: args.json,
    };
    let running = client::status_of(&admin.socket)?;
    if args.if_needed && running.process.binary == binary_identity() {
        // The reload reports which changed keys only a new process can apply.
        let waiting = client::reload_at(&admin)?;
        if waiting.is_empty() {
            return Ok(());
        }
    }
    // systemd accepts as main process only what runs in the unit, as its reload command does.
    let supervised = std::env::var_os("NOTIFY_SOCKET").is_some();
    if running.process.supervised && !supervised {
        bail!("systemd has started the running node: systemctl reload posthaste upgrades it");
    }
    let upgraded = replace(args, &running, &admin.socket)?;
    if args.json {
        return verb::print_json(&upgraded);
    }
    verb::print(&format!(
        "process {} took over from {}, which keeps {} relays\n",
        upgraded.pid, upgraded.replaced, upgraded.relays
    ))
}

/// The admin socket of the running node.
fn socket(args: &UpgradeArgs) -> anyhow::Result<PathBuf> {
    match (&args.socket, &args.config) {
        (Some(socket), _) => Ok(socket.clone()),
        (None, Some(file)) => Ok(Config::load(file)?.admin_socket),
        (None, None) => Ok(ADMIN_SOCKET.into()),
    }
}

fn replace(args: &UpgradeArgs, running: &Status, socket: &Path) -> anyhow::Result<Upgraded> {
    // Not a pipe: the guard inherits the successor's end, and only a shutdown ends that copy too.
    let (mut ours, theirs) = UnixStream::pair().context("make a pipe to the new process")?;
    let most = Some(START_TIME_MAX + 2 * STEP_TIME_MAX);
    ours.set_read_timeout(most).context("bound the wait")?;
    let config = args
        .config
        .clone()
        .or_else(|| running.config.clone().map(Into::into));
    let mut child = spawn(config.as_deref(), running, theirs.into())?;
    let mut message = String::new();
    let received = ours.read_to_string(&mut message);
    let pid = child.id();
    if message == DONE {
        return Ok(Upgraded {
            pid,
            replaced: running.pid,
            relays: running.counters.get("relays").copied().unwrap_or(0),
        });
    }
    if received.is_err() {
        // It is stuck.
        let _ = child.kill();
    }
    let _ = child.wait();
    let why = if message.is_empty() {
        "the new process ended without a word".into()
    } else {
        message
    };
    bail!(
        "{why}\n{}",
        remaining(running.pid, client::status_of(socket))
    );
}

/// Which process relays after a failed upgrade, by the admin socket.
fn remaining(pid: u32, status: anyhow::Result<Status>) -> String {
    match status {
        Ok(status) if status.pid == pid => format!("the running node (process {pid}) goes on"),
        Ok(status) => format!(
            "process {} answers in the place of the node that ran (process {pid})",
            status.pid
        ),
        Err(error) => format!(
            "the node that ran (process {pid}) does not answer: {error:#}\n\
             if it has ended, start it: connections are forwarded until then"
        ),
    }
}

/// Starts the successor. It reports through `word`, its standard input.
fn spawn(config: Option<&Path>, running: &Status, word: OwnedFd) -> anyhow::Result<Child> {
    let program = std::env::current_exe().context("find this program's own file")?;
    let mut command = Command::new(&program);
    command
        .arg("node")
        .arg("--take-over")
        .stdin(Stdio::from(word));
    if let Some(config) = config {
        command.arg("--config").arg(config);
    }
    if let Some(interval) = running.process.watchdog_us {
        command.env("WATCHDOG_USEC", interval.to_string());
    }
    // It applies to another process.
    command.env_remove("WATCHDOG_PID");
    let child = command.spawn();
    child.with_context(|| format!("start {}", program.display()))
}

/// A successor's channel to the process that started it.
#[derive(Debug)]
pub(crate) struct Word(Mutex<Option<UnixStream>>);

impl Word {
    /// Takes over standard input as the channel, and leaves the session of the parent.
    pub(crate) fn take() -> anyhow::Result<Self> {
        let stdin = std::io::stdin();
        let word = stdin.as_fd().try_clone_to_owned();
        let word = word.context("keep standard input")?;
        let null = File::open("/dev/null").context("open /dev/null")?;
        dup2_stdin(&null).context("give up standard input")?;
        // Fails if it is a session leader already.
        let _ = setsid();
        Ok(Self(Mutex::new(Some(word.into()))))
    }

    /// Reports success.
    pub(crate) fn done(&self) {
        self.write(DONE);
    }

    /// Reports the failure; does nothing after [`Self::done`].
    pub(crate) fn failed(&self, error: &anyhow::Error) {
        self.write(&format!("{error:#}"));
    }

    fn write(&self, text: &str) {
        let word = lock(&self.0).take();
        if let Some(mut word) = word {
            // The reader may be gone. The shutdown also ends the copy that the guard has.
            let _ = word.write_all(text.as_bytes());
            let _ = word.shutdown(Shutdown::Both);
        }
    }
}

/// Identifies the file of this process: another file at the same path differs.
pub(crate) fn binary_identity() -> String {
    match fs::metadata("/proc/self/exe") {
        Ok(file) => format!(
            // An inode may be reused for a new file, so its time counts, too.
            "{}:{}:{}.{}",
            file.dev(),
            file.ino(),
            file.mtime(),
            file.mtime_nsec()
        ),
        Err(_) => String::new(),
    }
}
