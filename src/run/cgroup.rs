// SPDX-License-Identifier: Apache-2.0
//! The cgroup of a command: a child of this process's cgroup, so that its limits apply to the
//! command. And a child process that removes it.
//!
//! The child waits on a pipe whose other end only this process holds, and acts when that is closed
//! for any reason. It moves remaining processes of the command to this process's cgroup.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Context;
use caps::Capability;
use nix::fcntl::OFlag;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, chdir, dup2_stderr, fork, getpid, pipe2};
use posthaste_bpf as bpf;
use posthaste_relay::sys;

use crate::aside::step_aside;

/// Name of the child.
const NAME: &std::ffi::CStr = c"posthaste-clean";
/// How long to wait for the child.
const REMOVAL_MAX: Duration = Duration::from_secs(2);
/// First and longest pause between two attempts of the child: processes may fork faster than they
/// are moved, or a cgroup below may not be removable.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// A cgroup for one command.
#[derive(Debug)]
pub(super) struct Cgroup {
    place: Place,
    directory: OwnedFd,
    /// The child waits until it is closed.
    pipe: OwnedFd,
    cleaner: Pid,
}

impl Cgroup {
    /// Creates the cgroup and forks the child. This process must have no other thread yet.
    pub(super) fn make() -> anyhow::Result<Self> {
        let parent = bpf::own_cgroup().context(
            "open the cgroup of this process: it needs cgroup v2, and CAP_SYS_ADMIN to mount it \
             for itself",
        )?;
        let chance = u32::from_ne_bytes(sys::random());
        let place = Place {
            parent,
            // Process ids are unique within a pid namespace only, and containers may share a
            // hierarchy.
            name: format!("posthaste-run-{}-{chance:08x}", getpid()),
        };
        // Before the cgroup exists: whenever this process ends, there is a child to remove it.
        let (pipe, cleaner) = start_cleaner(&place)?;
        let path = place.path();
        fs::create_dir(&path).context("make a cgroup for the command")?;
        let directory = File::open(&path).context("open the cgroup of the command")?;
        Ok(Self {
            place,
            directory: directory.into(),
            pipe,
            cleaner,
        })
    }

    /// Its directory.
    pub(super) fn directory(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    /// The file to which a process writes its ID to join.
    pub(super) fn members(&self) -> anyhow::Result<OwnedFd> {
        let file = self.place.path().join("cgroup.procs");
        let opened = OpenOptions::new().write(true).open(file);
        Ok(opened
            .context("open the list of the cgroup's members")?
            .into())
    }

    /// Has the child remove it, and waits up to [`REMOVAL_MAX`].
    pub(super) fn remove(self) {
        drop(self.pipe);
        let start = Instant::now();
        while start.elapsed() < REMOVAL_MAX {
            match waitpid(self.cleaner, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::StillAlive) => sleep(PAUSE_MIN),
                _ => break,
            }
        }
        // In case the child was killed.
        let _ = self.place.clear();
    }
}

/// The path of the cgroup.
#[derive(Debug)]
struct Place {
    parent: OwnedFd,
    name: String,
}

impl Place {
    fn beside(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.parent.as_raw_fd()).into()
    }

    fn path(&self) -> PathBuf {
        self.beside().join(&self.name)
    }

    /// Moves the processes out and removes the cgroup.
    fn clear(&self) -> io::Result<()> {
        let path = self.path();
        let list = match fs::read_to_string(path.join("cgroup.procs")) {
            Err(error) if is_gone(&error) => return Ok(()),
            list => list?,
        };
        let others = self.beside().join("cgroup.procs");
        for process in list.lines() {
            // A process that has ended meanwhile cannot be moved and need not be.
            let _ = fs::write(&others, process);
        }
        match fs::remove_dir(&path) {
            Err(error) if is_gone(&error) => Ok(()),
            removed => removed,
        }
    }
}

fn is_gone(error: &io::Error) -> bool {
    error.kind() == ErrorKind::NotFound || error.raw_os_error() == Some(libc::ENODEV)
}

fn start_cleaner(place: &Place) -> anyhow::Result<(OwnedFd, Pid)> {
    let (read, write) = pipe2(OFlag::O_CLOEXEC).context("open the cleaner's pipe")?;
    // SAFETY: there is one thread, so no lock is held by a thread that the child
    // lacks.
    match unsafe { fork() }.context("fork the cleaner")? {
        ForkResult::Parent { child } => Ok((write, child)),
        ForkResult::Child => {
            drop(write);
            clean(place, read.into());
            std::process::exit(0)
        }
    }
}

/// Runs the child.
fn clean(place: &Place, mut pipe: File) {
    step_aside(NAME, &[Capability::CAP_DAC_OVERRIDE]);
    // The working directory may be on a file system that is to be unmounted.
    let _ = chdir("/");
    let _ = dup2_stderr(io::stdin());
    let _ = pipe.read(&mut [0]);
    let mut pause = PAUSE_MIN;
    while place.clear().is_err() {
        sleep(pause);
        pause = PAUSE_MAX.min(pause * 2);
    }
}
