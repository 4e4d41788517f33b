// SPDX-License-Identifier: Apache-2.0
//! The process of the command: starts it in its cgroup, waits for it, and passes signals on.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::Context;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Gid, Pid, Uid, setgid, setgroups, setuid, write};

use super::user::User;

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

/// The signals of this process, read from a descriptor.
#[derive(Debug)]
pub(super) struct Signals {
    fd: SignalFd,
    former: SigSet,
}

impl Signals {
    /// Blocks them from now on, for this thread and those it starts.
    pub(super) fn block() -> anyhow::Result<Self> {
        let mut wanted = SigSet::empty();
        wanted.add(Signal::SIGCHLD);
        PASSED_ON.iter().for_each(|signal| wanted.add(*signal));
        let mut former = SigSet::empty();
        sigprocmask(SigmaskHow::SIG_BLOCK, Some(&wanted), Some(&mut former))
            .context("block signals")?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let fd = SignalFd::with_flags(&wanted, flags).context("open a descriptor of signals")?;
        Ok(Self { fd, former })
    }

    /// The former signal mask.
    pub(super) fn former(&self) -> SigSet {
        self.former
    }

    /// Waits for a signal, at most `timeout`. Returns the signal if it must be passed on: the
    /// command gets those of a terminal itself.
    pub(super) fn next(&self, timeout: PollTimeout) -> Option<Signal> {
        let mut waiting = [PollFd::new(self.fd.as_fd(), PollFlags::POLLIN)];
        let _ = poll(&mut waiting, timeout);
        let info = self.fd.read_signal().ok().flatten()?;
        let signal = Signal::try_from(info.ssi_signo.cast_signed()).ok()?;
        let by_process = info.ssi_code <= 0;
        (by_process && PASSED_ON.contains(&signal)).then_some(signal)
    }
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
            write(&cgroup, b"0")?;
            setrlimit(Resource::RLIMIT_NOFILE, soft, hard)?;
            if let Some((uid, gid, groups)) = &user {
                become_user(*uid, *gid, groups)?;
            }
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
            match waitpid(self.0, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(_, code)) => return Ok(low_byte(code)),
                Ok(WaitStatus::Signaled(_, signal, _)) => {
                    return Ok(low_byte(BY_SIGNAL + signal as i32));
                }
                Ok(_) | Err(Errno::EINTR) => {}
                Err(error) => return Err(error).context("wait for the command"),
            }
            if let Some(signal) = signals.next(PollTimeout::NONE) {
                // Fails only when it has ended, which the next iteration detects.
                let _ = kill(self.0, signal);
            }
        }
    }
}

fn become_user(uid: Uid, gid: Gid, groups: &[Gid]) -> io::Result<()> {
    setgroups(groups)?;
    setgid(gid)?;
    setuid(uid)?;
    Ok(())
}

fn low_byte(code: i32) -> u8 {
    code.to_le_bytes()[0]
}
