// SPDX-License-Identifier: Apache-2.0
//! Word to systemd about the state of the node (`Type=notify`).
//!
//! Outside systemd every call does nothing. Failing to tell is no reason to
//! fail: the service manager has its own time limits.

use std::time::Duration;

use sd_notify::NotifyState;

/// How long the end of a node may take once its workers have ended.
const TEARDOWN_TIME_MAX: Duration = Duration::from_secs(10);

/// The node relays. `what` is shown by `systemctl status`.
pub(crate) fn ready(what: &str) {
    send(&[NotifyState::Ready, NotifyState::Status(what)]);
}

/// The node relays, and this is its process from now on.
pub(crate) fn took_over() {
    let own = NotifyState::MainPid(std::process::id());
    send(&[own, NotifyState::Ready, NotifyState::Status("relaying")]);
}

/// Whether a service manager wants word.
pub(crate) fn supervised() -> bool {
    std::env::var_os("NOTIFY_SOCKET").is_some()
}

/// The limit of the service manager for two signs of life; `None` when it has none.
pub(crate) fn watchdog_limit() -> Option<Duration> {
    sd_notify::watchdog_enabled()
}

/// The configuration is being read again; [`ready`] ends it.
pub(crate) fn reloading() {
    // systemd 253 wants the time, to tell this reload from earlier ones.
    match NotifyState::monotonic_usec_now() {
        Ok(now) => send(&[NotifyState::Reloading, now]),
        Err(_) => send(&[NotifyState::Reloading]),
    }
}

/// The node drains. It will need up to `most` from now, and a moment more to
/// take itself off the host.
pub(crate) fn stopping(most: Duration) {
    let most_us = u32::try_from((most + TEARDOWN_TIME_MAX).as_micros()).unwrap_or(u32::MAX);
    send(&[
        NotifyState::Stopping,
        NotifyState::ExtendTimeoutUsec(most_us),
    ]);
}

/// How often systemd expects [`alive`]; `None` when it does not.
pub(crate) fn watchdog_interval() -> Option<Duration> {
    // Half the limit, as sd_watchdog_enabled(3) advises.
    watchdog_limit().map(|limit| limit / 2)
}

/// Every worker turns.
pub(crate) fn alive() {
    send(&[NotifyState::Watchdog]);
}

fn send(state: &[NotifyState<'_>]) {
    let _ = sd_notify::notify(state);
}
