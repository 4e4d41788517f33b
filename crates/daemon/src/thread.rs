// SPDX-License-Identifier: Apache-2.0
//! Threads beside the main one: they wait for sockets, times and a waker, and need few privileges.

use std::os::fd::AsFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use anyhow::Context;
use caps::Capability;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
pub use posthaste_relay::sys::Waker;
use posthaste_relay::sys::monotonic;

use super::log::Log;
use super::privileges;

/// Upper bound on a wait.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// Starts a thread with a stack of `stack_bytes`, which keeps no capabilities but `kept`.
///
/// # Errors
/// The kernel refuses a thread.
pub fn spawn(
    name: &'static str,
    stack_bytes: usize,
    kept: &'static [Capability],
    log: Log,
    work: impl FnOnce() + Send + 'static,
) -> anyhow::Result<JoinHandle<()>> {
    let thread = Builder::new().name(name.into()).stack_size(stack_bytes);
    // In the thread itself: Linux keeps capabilities per thread (capabilities(7)).
    let keep = move || {
        // Best effort: it works with more privileges, too.
        if let Err(error) = privileges::keep_only(kept) {
            let error = format!("{error:#}");
            log.warn(
                "could not drop capabilities in a thread",
                &[("thread", &name), ("error", &error)],
            );
        }
        work();
    };
    let started = thread.spawn(keep);
    started.with_context(|| format!("start the thread {name}"))
}

/// Waits until one of `sockets` is ready, the waker is used, or `deadline` by the monotonic clock
/// has come. On a signal it returns too early.
pub fn wait<'a>(
    waker: &'a Waker,
    sockets: impl IntoIterator<Item = PollFd<'a>>,
    deadline: Option<Duration>,
) {
    let now = monotonic();
    let wait = deadline.map_or(WAIT_MAX, |at| at.saturating_sub(now).min(WAIT_MAX));
    // Rounded up to a whole millisecond, so as not to wake too early.
    let wait_ms = i32::try_from(wait.as_micros().div_ceil(1_000)).unwrap_or(i32::MAX);
    let timeout = PollTimeout::try_from(wait_ms).unwrap_or(PollTimeout::MAX);
    let mut fds = vec![PollFd::new(waker.as_fd(), PollFlags::POLLIN)];
    fds.extend(sockets);
    // EINTR is no failure: callers check what is due after every return.
    let _ = poll(&mut fds, timeout);
    // Also after other events: an unread wake-up would end the next wait at once.
    waker.acknowledge();
}

/// Locks a mutex. A panic in another thread ends the process, so no lock stays poisoned.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
