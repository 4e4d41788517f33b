// SPDX-License-Identifier: Apache-2.0
//! A forked helper process that outlives its parent, to clean up after it.

use std::ffi::CStr;
use std::fs::File;

use caps::Capability;
use nix::sys::prctl;
use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal, pthread_sigmask, signal};
use nix::unistd::{dup2_stdin, dup2_stdout, setsid};
use posthaste_daemon::privileges;

/// Leaves the parent's session, ignores the signals that are meant for the parent, gives up standard
/// input and output, and keeps only these capabilities. `name` is what `ps -e` shows: 15 bytes, the
/// most the kernel keeps (TASK_COMM_LEN).
pub(crate) fn step_aside(name: &CStr, kept: &[Capability]) {
    // Each is a precaution: a helper that lacks one still cleans up.
    let _ = prctl::set_name(name);
    // Keeps away the terminal's signals that are not ignored below (SIGTSTP).
    let _ = setsid();
    for ignored in [
        Signal::SIGINT,
        Signal::SIGTERM,
        Signal::SIGHUP,
        Signal::SIGQUIT,
        Signal::SIGPIPE,
    ] {
        // SAFETY: no handler is installed, the signals are ignored.
        let _ = unsafe { signal(ignored, SigHandler::SigIgn) };
    }
    let _ = pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None);
    // Released, so that a pipeline that reads the parent's output ends with the parent.
    if let Ok(null) = File::options().read(true).write(true).open("/dev/null") {
        let _ = dup2_stdin(&null);
        let _ = dup2_stdout(&null);
    }
    let _ = privileges::keep_only(kept);
}
