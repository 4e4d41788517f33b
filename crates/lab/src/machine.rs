// SPDX-License-Identifier: Apache-2.0
//! Hosts with a systemd of their own.
//!
//! A [`Machine`] is a host of a network on which systemd is process 1, with its own processes,
//! mounts, control groups and files. The files are a tree that `scripts/setup-systemd.sh` has made,
//! under those that the caller gives; what the machine writes is gone with it.
//!
//! Its kernel, clock, and kernel settings other than the network's are those of the real host, and it
//! cannot change the latter.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::netns::Namespace;
use crate::process::{Process, wait_until};
use crate::scratch::{self, Scratch};

/// Where the trees are.
const TREES: &str = "/var/cache/posthaste/roots";
/// What makes a tree, and its copy in the tree.
const RECIPE: &str = include_str!("../../../scripts/setup-systemd.sh");
const RECIPE_IN_TREE: &str = "setup-systemd.sh";
/// Carries out the boot until systemd does.
const BOOT: &str = include_str!("machine.sh");
/// Exists once systemd takes orders.
const ORDERS: &str = "run/systemd/private";
/// How long a boot may take.
const BOOT_TIME_MAX: Duration = Duration::from_secs(60);

/// A version of systemd, by the Debian release that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// Debian 12, systemd 252.
    Bookworm,
    /// Debian 13, systemd 257.
    Trixie,
}

impl Release {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Bookworm, Self::Trixie];

    fn tree(self) -> Result<PathBuf> {
        let name = match self {
            Self::Bookworm => "bookworm",
            Self::Trixie => "trixie",
        };
        let tree = Path::new(TREES).join(name);
        let recipe = fs::read_to_string(tree.join(RECIPE_IN_TREE)).unwrap_or_default();
        ensure!(
            recipe == RECIPE,
            "{} is missing or outdated: run `make setup`",
            tree.display()
        );
        Ok(tree)
    }
}

/// A host with systemd, which ends when dropped.
#[derive(Debug)]
pub struct Machine {
    // In the order of their end: the kernel ends all processes of the machine with its first one, and no
    // process may be left in the group.
    _boot: Process,
    /// Process 1, as the real host numbers it.
    first: u32,
    group: Group,
    _directory: Scratch,
    _files: Arc<Scratch>,
}

impl Machine {
    /// Boots a host of a network. `files` is a tree that is laid over that of the release.
    ///
    /// # Errors
    /// There is no such tree, or not every unit came up.
    pub fn boot(host: &Namespace, release: Release, files: Arc<Scratch>) -> Result<Self> {
        let tree = release.tree()?;
        let directory = Scratch::new()?;
        let group = Group::make()?;
        let mut command = host.command("sh")?;
        // A group of its own before the namespace of groups, which begins there.
        let script = "echo $$ > \"$0/cgroup.procs\" && exec \"$@\"";
        command.args(["-c", script]).arg(&group.0);
        command.args(["unshare", "--mount", "--pid", "--uts", "--ipc", "--cgroup"]);
        command.args(["--fork", "--kill-child", "sh", "-c", BOOT, "sh"]);
        command.arg(tree).arg(files.path()).arg(directory.path());
        let mut boot = Process::spawn("systemd", command)?;
        let mut first = None;
        boot.wait_until("systemd that takes orders", BOOT_TIME_MAX, |boot| {
            first = first.or_else(|| only_child(boot.pid()));
            first.is_some_and(|first| of(first, ORDERS).exists())
        })?;
        let machine = Self {
            _boot: boot,
            first: first.context("find process 1")?,
            group,
            _directory: directory,
            _files: files,
        };
        let state = machine.try_run("systemctl is-system-running --wait")?;
        if !state.status.success() {
            let failed = machine
                .run("systemctl --failed --no-pager; journalctl -b --no-pager -p warning")?;
            anyhow::bail!("{}\n{failed}", String::from_utf8_lossy(&state.stdout));
        }
        Ok(machine)
    }

    /// A line of a shell, as root of the machine.
    pub fn command(&self, line: &str) -> Command {
        let mut command = Command::new("sh");
        let script = "echo $$ > \"$0/cgroup.procs\" && exec \"$@\"";
        command.args(["-c", script]).arg(self.group.of_commands());
        command.args(["nsenter", "--all", &format!("--target={}", self.first)]);
        command.args(["env", "-i", "HOME=/root", "TERM=dumb"]);
        command.arg("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        command.args(["sh", "-e", "-c", line]);
        command
    }

    /// Runs a line of a shell.
    ///
    /// # Errors
    /// It could not be started.
    pub fn try_run(&self, line: &str) -> Result<Output> {
        let output = self.command(line).output();
        output.with_context(|| format!("run {line}"))
    }

    /// Runs a line of a shell that succeeds; what it prints.
    ///
    /// # Errors
    /// It failed; with all that it printed.
    pub fn run(&self, line: &str) -> Result<String> {
        let output = self.try_run(line)?;
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success(),
            "{line}: {}\n{stdout}{stderr}",
            output.status
        );
        Ok(stdout)
    }

    /// Where a file of the machine is on the real host.
    pub fn path(&self, file: &str) -> PathBuf {
        of(self.first, file.trim_start_matches('/'))
    }
}

fn of(process: u32, file: &str) -> PathBuf {
    Path::new("/proc")
        .join(process.to_string())
        .join("root")
        .join(file)
}

fn only_child(process: u32) -> Option<u32> {
    let path = format!("/proc/{process}/task/{process}/children");
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// A control group with those of a machine.
#[derive(Debug)]
struct Group(PathBuf);

impl Group {
    fn make() -> Result<Self> {
        let group = Self(
            scratch::groups()
                .context("find cgroup v2")?
                .join(scratch::unique_name()),
        );
        fs::create_dir(&group.0).with_context(|| format!("create {}", group.0.display()))?;
        // Beside systemd's own, as a login would have one.
        fs::create_dir(group.of_commands()).context("make a group of commands")?;
        Ok(group)
    }

    fn of_commands(&self) -> PathBuf {
        self.0.join("commands")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let gone = || scratch::remove_group(&self.0).is_ok();
        // Processes that were killed are members until they have ended.
        let _ = wait_until("end of a machine", BOOT_TIME_MAX, gone);
    }
}
