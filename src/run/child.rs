// SPDX-License-Identifier: Apache-2.0
//! The process of the command: starts it in its cgroup, waits for it, and passes signals on.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::Context;
use nix::errno::Errno;
use nix::poll::PollTimeout;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill, sigprocmask};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Gid, Pid, Uid, setgid, setgroups, setuid, write};

use super::user::User;
use crate::signals::Signals;

/// A shell's exit codes for a command that does not exist, and for one that cannot be executed.
const NOT_FOUND: u8 = 127;
const NOT_EXECUTABLE: u8 = 126;
/// A shell's exit code for a signal is this plus its number.
const BY_SIGNAL: i32 = 128;

/// Signals passed on to the command.
const PASSED_ON: [Signal; 6] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
];

/// Blocks the signals of this process that end or pass on.
pub(super) fn block_signals() -> anyhow::Result<Signals> {
    Signals::block(PASSED_ON.into_iter().chain([Signal::SIGCHLD]))
}

/// Waits for a signal, at most `timeout`. Returns the signal if it must be passed on: the command
/// gets those of a terminal itself.
pub(super) fn next_signal(signals: &Signals, timeout: PollTimeout) -> Option<Signal> {
    let info = signals.wait(timeout)?;
    let signal = Signal::try_from(info.ssi_signo.cast_signed()).ok()?;
    // SI_USER and the other codes of processes are not positive (sigaction(2)); a terminal's is
    // SI_KERNEL.
    let by_process = info.ssi_code <= 0;
    (by_process && PASSED_ON.contains(&signal)).then_some(signal)
}

/// The parameters of a command.
#[derive(Debug)]
pub(super) struct Launch<'a> {
    pub(super) command: &'a [OsString],
    /// The list of the cgroup's members.
    pub(super) cgroup: OwnedFd,
    /// Its limits of open files.
    pub(super) files: (u64, u64),
    pub(super) mask: SigSet,
    pub(super) user: Option<&'a User>,
}

/// A running command.
#[derive(Debug)]
pub(super) struct Child(Pid);

/// Why a command was not started.
#[derive(Debug)]
pub(super) struct Failure(io::Error);

impl Failure {
    /// Prints the error; returns its exit code.
    pub(super) fn report(&self, command: &[OsString]) -> u8 {
        let name = command.first().map(|name| name.to_string_lossy());
        let name = name.unwrap_or_default();
        let Self(error) = self;
        if error.kind() == io::ErrorKind::NotFound {
            eprintln!("posthaste: {name}: command not found");
            return NOT_FOUND;
        }
        eprintln!("posthaste: {name}: cannot be run: {error}");
        NOT_EXECUTABLE
    }
}

impl Child {
    /// Starts the command.
    pub(super) fn start(launch: Launch<'_>) -> Result<Self, Failure> {
        let Launch {
            command,
            cgroup,
            files: (soft, hard),
            mask,
            user,
        } = launch;
        let (program, arguments) = command.split_first().expect("the command line has one");
        let mut command = Command::new(program);
        command.args(arguments);
        if let Some(user) = user {
            command.env("HOME", &user.home);
            command.env("USER", &user.name).env("LOGNAME", &user.name);
        }
        let user = user.map(|user| (user.uid, user.gid, user.groups.clone()));
        let prepare = move || -> io::Result<()> {
            // 0 is the writing process (cgroups(7)). First: another user may not write here.
            write(&cgroup, b"0")?;
            setrlimit(Resource::RLIMIT_NOFILE, soft, hard)?;
            if let Some((uid, gid, groups)) = &user {
                become_user(*uid, *gid, groups)?;
            }
            // Blocked signals stay blocked over execve(2).
            sigprocmask(SigmaskHow::SIG_SETMASK, Some(&mask), None)?;
            Ok(())
        };
        // SAFETY: between fork and exec it makes system calls and nothing else: it
        // allocates nothing and takes no lock.
        unsafe { command.pre_exec(prepare) };
        let child = command.spawn().map_err(Failure)?;
        Ok(Self(Pid::from_raw(child.id().cast_signed())))
    }

    /// Waits for its end; returns its exit code.
    pub(super) fn wait(self, signals: &Signals) -> anyhow::Result<u8> {
        loop {
            // After every signal: pending signals of one kind are merged, and SIGCHLD is one of
            // them.
            match waitpid(self.0, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(_, code)) => return Ok(low_byte(code)),
                Ok(WaitStatus::Signaled(_, signal, _)) => {
                    return Ok(low_byte(BY_SIGNAL + signal as i32));
                }
                Ok(_) | Err(Errno::EINTR) => {}
                Err(error) => return Err(error).context("wait for the command"),
            }
            if let Some(signal) = next_signal(signals, PollTimeout::NONE) {
                // Fails only when it has ended, which the next iteration detects.
                let _ = kill(self.0, signal);
            }
        }
    }
}

fn become_user(uid: Uid, gid: Gid, groups: &[Gid]) -> io::Result<()> {
    // In this order: after setuid(2) the others would be refused.
    setgroups(groups)?;
    setgid(gid)?;
    setuid(uid)?;
    Ok(())
}

fn low_byte(code: i32) -> u8 {
    code.to_le_bytes()[0]
}
