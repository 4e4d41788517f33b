// SPDX-License-Identifier: Apache-2.0
//! The `upgrade` verb: starts its own program as the successor of the running node, and reports the
//! result.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

use anyhow::{Context, bail};
use clap::Args;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{ForkResult, Pid, dup2_stdin, fork, setsid};
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
    spawn(config.as_deref(), running, theirs.into())?;
    let mut words = BufReader::new(&mut ours);
    let pid = introduction(&mut words);
    let mut message = String::new();
    let received = words.read_to_string(&mut message);
    if let (Some(pid), DONE) = (pid, message.as_str()) {
        return Ok(Upgraded {
            pid: pid.as_raw().cast_unsigned(),
            replaced: running.pid,
            relays: running.counters.get("relays").copied().unwrap_or(0),
        });
    }
    if let (Err(_), Some(pid)) = (received, pid) {
        // It is stuck: its id cannot have been reused, since it has the other end of the pipe.
        let _ = kill(pid, Signal::SIGKILL);
    }
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

/// The id of the new process, its first word.
fn introduction(words: &mut impl BufRead) -> Option<Pid> {
    let mut line = String::new();
    words.read_line(&mut line).ok()?;
    Some(Pid::from_raw(line.trim_end().parse().ok()?))
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

/// Starts the successor as a child of process 1. It reports through `word`, its standard input.
///
/// A service manager supervises its own children only, and would not notice the end of another main
/// process. This verb is its child, so the successor must not be this verb's: a process in between
/// ends at once, and the successor is adopted before it reports anything.
fn spawn(config: Option<&Path>, running: &Status, word: OwnedFd) -> anyhow::Result<()> {
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
    // SAFETY: the closure runs in a process with one thread, between fork and exec. It makes one system
    // call in each of two processes, and allocates nothing.
    unsafe {
        command.pre_exec(|| match fork()? {
            ForkResult::Parent { .. } => libc::_exit(0),
            ForkResult::Child => Ok(()),
        });
    }
    let between = command.spawn().and_then(|mut between| between.wait());
    between.with_context(|| format!("start {}", program.display()))?;
    Ok(())
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
        let mut word = UnixStream::from(word);
        // The verb is not the parent, and names this process in its report.
        writeln!(word, "{}", std::process::id())
            .context("report to the process that started this one")?;
        Ok(Self(Mutex::new(Some(word))))
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
