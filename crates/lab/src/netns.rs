// SPDX-License-Identifier: Apache-2.0
//! Network namespaces.
//!
//! A [`Namespace`] has a unique name, is visible to `ip netns` and is removed when dropped. It
//! begins in a known state, whatever the host's settings: the sysctls that affect TCP and
//! forwarding are set to the kernel's own defaults, except that routes keep no metrics of past
//! connections.
//!
//! A namespace belongs to a thread, not to a process. Code that should run inside goes through
//! [`Namespace::run_in`] or [`Namespace::spawn`]; programs through [`Namespace::command`]. In
//! such code use `/proc/thread-self/net`, because `/proc/net` shows the main thread's namespace.
//!
//! Programs of a namespace have a BPF file system of their own at [`BPF_FILE_SYSTEM`], as those of a
//! host with systemd.

use std::ffi::CString;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result};

use crate::process::{run, run_with};
use crate::{scratch, sys, threads};

/// Settings every namespace starts with: a new one inherits some of these from the host.
const SETTINGS: &[(&str, &str)] = &[
    // Otherwise a connection would begin with the window and the threshold of the one before.
    ("net.ipv4.tcp_no_metrics_save", "1"),
    // The kernel derives its defaults from the memory of the host; windows must not depend on that.
    ("net.ipv4.tcp_rmem", "4096 131072 6291456"),
    ("net.ipv4.tcp_wmem", "4096 16384 4194304"),
    ("net.ipv4.tcp_slow_start_after_idle", "1"),
    // Hosts differ in these, and each changes handshakes or recovery from loss.
    ("net.ipv4.tcp_syncookies", "1"),
    ("net.ipv4.tcp_timestamps", "1"),
    ("net.ipv4.tcp_sack", "1"),
    ("net.ipv4.ip_forward", "0"),
    ("net.ipv4.ip_local_port_range", "32768 60999"),
    // Nodes send from addresses of clients, and some tests have asymmetric routes: the filter would
    // drop both. `default` applies to interfaces that come later.
    ("net.ipv4.conf.all.rp_filter", "0"),
    ("net.ipv4.conf.default.rp_filter", "0"),
    ("net.ipv4.conf.all.src_valid_mark", "0"),
    ("net.ipv4.conf.default.src_valid_mark", "0"),
    // A redirect would take the node off the path.
    ("net.ipv4.conf.all.accept_redirects", "0"),
    ("net.ipv4.conf.all.send_redirects", "0"),
    ("net.ipv6.conf.all.disable_ipv6", "0"),
    ("net.ipv6.conf.default.disable_ipv6", "0"),
    ("net.ipv6.conf.all.forwarding", "0"),
    // Addresses are unique in the lab, so duplicate address detection would only delay.
    ("net.ipv6.conf.all.accept_dad", "0"),
    ("net.ipv6.conf.default.accept_dad", "0"),
    ("net.ipv6.conf.default.accept_ra", "0"),
    ("net.ipv6.conf.default.router_solicitations", "0"),
];

/// Ends of those whose writes restart, and use a CPU, until they find the kernel's lock of all interfaces
/// of all namespaces free (`rtnl_trylock`, `restart_syscall`). Where many networks come and go it is
/// rarely free.
const TAKES_LOCK: [&str; 3] = ["ip_forward", ".forwarding", ".disable_ipv6"];

/// Where systemd mounts a BPF file system.
const BPF_FILE_SYSTEM: &str = "/sys/fs/bpf";
/// What nodes keep there.
const PINS: &str = "/sys/fs/bpf/posthaste";

/// A network namespace that ends when dropped.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    file: File,
    /// What its programs see of file systems.
    mounts: File,
}

impl Namespace {
    /// Makes a namespace with its loopback interface up. Needs root.
    pub fn new() -> Result<Self> {
        scratch::prepare();
        let name = scratch::unique_name();
        // `ip netns` also binds the namespace to a file, so that it lives without a process in it.
        run(Command::new("ip").args(["netns", "add", &name]))?;
        // An open file is entered without a look-up of the name, which another process may remove.
        let file = File::open(path_of(&name)).with_context(|| format!("open namespace {name}"))?;
        let prepared = run_inside(&file, prepare);
        // Owned from here on: it is removed if a step fails.
        let namespace = Self {
            mounts: prepared.inspect_err(|_| scratch::remove_namespace(&path_of(&name)))?,
            name,
            file,
        };
        Ok(namespace)
    }

    /// Its name for `ip netns`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs `work` inside the namespace, on a thread of its own, and returns what it returned.
    ///
    /// # Panics
    /// When `work` does, or when the thread cannot enter the namespace.
    pub fn run_in<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        run_inside(&self.file, work)
    }

    /// Runs `work` on a thread of its own that sees the file systems of the namespace's programs, and
    /// returns what it returned.
    ///
    /// # Panics
    /// When `work` does, or when the thread cannot enter them.
    pub fn with_files<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let thread = scope.spawn(|| {
                sys::enter_mounts(&self.mounts).expect("open namespaces can be entered by root");
                work()
            });
            threads::join(thread)
        })
    }

    /// Starts a thread that lives inside the namespace.
    pub fn spawn<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<JoinHandle<T>> {
        let file = self
            .file
            .try_clone()
            .context("duplicate the namespace's descriptor")?;
        // A namespace belongs to a thread, so the thread itself has to enter it.
        let body = move || {
            enter(&file);
            work()
        };
        thread::Builder::new()
            .name(self.name.clone())
            .spawn(body)
            .context("start a thread")
    }

    /// A command that will run inside the namespace.
    ///
    /// The process is killed when the *thread* that starts it ends: start long-lived processes with
    /// [`Process::spawn`](crate::process::Process::spawn), which avoids that.
    pub fn command(&self, program: impl AsRef<Path>) -> Result<Command> {
        let mut command = Command::new(program.as_ref());
        let copy = |file: &File| {
            file.try_clone()
                .context("duplicate a namespace's descriptor")
        };
        let directory = std::env::current_dir().context("find the working directory")?;
        let directory = CString::new(directory.as_os_str().as_bytes())?;
        let (network, mounts) = (copy(&self.file)?, copy(&self.mounts)?);
        sys::start_in_namespaces(&mut command, network, mounts, directory);
        Ok(command)
    }

    /// Runs one `ip` command inside, given as the words after `ip`.
    pub fn ip(&self, words: &str) -> Result<()> {
        self.ip_batch(&[words.to_owned()])
    }

    /// Runs several `ip` commands inside, in one process.
    pub fn ip_batch(&self, lines: &[String]) -> Result<()> {
        let mut text = lines.join("\n");
        text.push('\n');
        let mut command = Command::new("ip");
        // A network of a dozen places takes hundreds of commands, and each would be a process.
        run_with(command.args(["-n", &self.name, "-batch", "-"]), &text).map(drop)
    }

    /// The output of `ip` for a query, given as the words after `ip`.
    pub fn ip_output(&self, words: &str) -> Result<String> {
        let mut command = Command::new("ip");
        command.args(["-n", &self.name]);
        run(command.args(words.split_whitespace()))
    }

    /// Runs a script of nftables inside.
    pub fn nft(&self, script: &str) -> Result<()> {
        let mut command = self.command("nft")?;
        let done = run(command.arg(script));
        done.map(drop).context("nft is of the package nftables")
    }

    /// Sets a sysctl, named with dots.
    pub fn sysctl(&self, key: &str, value: &str) -> Result<()> {
        self.sysctls(&[(key, value)])
    }

    /// Sets several sysctls, named with dots.
    pub fn sysctls(&self, settings: &[(&str, &str)]) -> Result<()> {
        self.run_in(|| set_all(settings))
    }

    /// Has one CPU receive the packets of the host, by receive packet steering. Another may send them. Packets that
    /// several CPUs receive overtake each other.
    pub fn receive_on(&self, cpu: usize) -> Result<()> {
        // The interfaces of a namespace are in a sysfs that was mounted in it.
        let mut steer = self.command("unshare")?;
        steer.args(["--mount", "sh", "-ec"]).arg(format!(
            "mount -t sysfs sysfs /sys; for queue in /sys/class/net/*/queues/rx-*/rps_cpus; do \
             echo {:x} >$queue; done",
            1_u128 << cpu
        ));
        run(&mut steer)
            .map(drop)
            .context("steer packets to one CPU")
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // A host that is gone has no flows: guards of killed nodes need not look after any.
        self.with_files(|| fs::remove_dir_all(PINS).ok());
        scratch::remove_namespace(&path_of(&self.name));
    }
}

/// Runs `work` on a thread of its own in a namespace.
fn run_inside<T: Send>(namespace: &File, work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            enter(namespace);
            work()
        });
        threads::join(thread)
    })
}

/// Brings a new namespace into the state that all begin with; returns that of its file systems.
fn prepare() -> Result<File> {
    set_all(SETTINGS)?;
    // A new namespace has it down, and local connections would fail.
    sys::bring_up("lo").context("bring up the loopback interface")?;
    Ok(sys::separate_mounts(BPF_FILE_SYSTEM)?)
}

/// Sets sysctls of the calling thread's namespace.
fn set_all(settings: &[(&str, &str)]) -> Result<()> {
    for (key, value) in settings {
        set(key, value).with_context(|| format!("set {key} to {value}"))?;
    }
    Ok(())
}

fn set(key: &str, value: &str) -> Result<()> {
    // /proc/sys/net shows the namespace of the thread that opens the file.
    let path = sysctl_path(key);
    let now = fs::read_to_string(&path)?;
    if now.split_whitespace().eq(value.split_whitespace()) {
        return Ok(());
    }
    if TAKES_LOCK.iter().any(|end| key.ends_with(end)) {
        // It waits for the lock asleep.
        sys::bring_up("lo")?;
    }
    Ok(fs::write(path, value)?)
}

fn enter(file: &File) {
    sys::enter_namespace(file).expect("an open namespace can be entered by the root that made it");
}

fn path_of(name: &str) -> PathBuf {
    Path::new(scratch::NAMESPACES).join(name)
}

fn sysctl_path(key: &str) -> PathBuf {
    Path::new("/proc/sys").join(key.replace('.', "/"))
}
