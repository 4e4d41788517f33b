// SPDX-License-Identifier: Apache-2.0
//! Signals that a verb reads from a descriptor while it waits for a child process.

use std::os::fd::AsFd;

use anyhow::Context;
use nix::libc::signalfd_siginfo;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// Blocked signals of this thread and of those that it starts.
#[derive(Debug)]
pub(crate) struct Signals {
    fd: SignalFd,
    former: SigSet,
}

impl Signals {
    /// Blocks them from now on.
    pub(crate) fn block(wanted: impl IntoIterator<Item = Signal>) -> anyhow::Result<Self> {
        let wanted: SigSet = wanted.into_iter().collect();
        let former = wanted.thread_swap_mask(SigmaskHow::SIG_BLOCK);
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let fd = SignalFd::with_flags(&wanted, flags).context("open a descriptor of signals")?;
        Ok(Self {
            fd,
            former: former.context("block signals")?,
        })
    }

    /// The former signal mask.
    pub(crate) fn former(&self) -> SigSet {
        self.former
    }

    /// Waits for a signal, at most `timeout`.
    pub(crate) fn wait(&self, timeout: PollTimeout) -> Option<signalfd_siginfo> {
        let mut waiting = [PollFd::new(self.fd.as_fd(), PollFlags::POLLIN)];
        // The descriptor does not block: after an early return there is simply nothing to read.
        let _ = poll(&mut waiting, timeout);
        self.fd.read_signal().ok().flatten()
    }
}
