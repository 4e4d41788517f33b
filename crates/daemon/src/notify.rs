// SPDX-License-Identifier: Apache-2.0
//! Reports the state of the process to systemd (`Type=notify`).
//!
//! Outside systemd every call does nothing. Failures are ignored: the service manager has its own
//! timeouts.

use std::time::Duration;

use sd_notify::NotifyState;

/// How long the end of a node may take once its workers have ended.
const TEARDOWN_TIME_MAX: Duration = Duration::from_secs(10);

/// The node relays. `systemctl status` shows `what`.
pub fn ready(what: &str) {
    send(&[NotifyState::Ready, NotifyState::Status(what)]);
}

/// The node relays, and this is its main process from now on.
pub fn took_over() {
    let own = NotifyState::MainPid(std::process::id());
    // In one message, so that both take effect together.
    send(&[own, NotifyState::Ready, NotifyState::Status("relaying")]);
}

/// Whether a service manager expects notifications.
pub fn supervised() -> bool {
    std::env::var_os("NOTIFY_SOCKET").is_some()
}

/// The watchdog timeout of the service manager; `None` without one.
pub fn watchdog_limit() -> Option<Duration> {
    sd_notify::watchdog_enabled()
}

/// A reload begins; [`ready`] ends it.
pub fn reloading() {
    // systemd 253 requires the time, to distinguish this reload from earlier ones.
    match NotifyState::monotonic_usec_now() {
        Ok(now) => send(&[NotifyState::Reloading, now]),
        Err(_) => send(&[NotifyState::Reloading]),
    }
}

/// The node drains. It needs up to `most` from now, and [`TEARDOWN_TIME_MAX`] to clean up.
pub fn stopping(most: Duration) {
    // 32 bits of microseconds hold 71 minutes.
    let most_us = u32::try_from((most + TEARDOWN_TIME_MAX).as_micros()).unwrap_or(u32::MAX);
    send(&[
        NotifyState::Stopping,
        NotifyState::ExtendTimeoutUsec(most_us),
    ]);
}

/// How often to call [`alive`]; `None` without a watchdog.
pub fn watchdog_interval() -> Option<Duration> {
    // Half the limit, as sd_watchdog_enabled(3) advises.
    watchdog_limit().map(|limit| limit / 2)
}

/// Every worker's loop runs.
pub fn alive() {
    send(&[NotifyState::Watchdog]);
}

fn send(state: &[NotifyState<'_>]) {
    let _ = sd_notify::notify(state);
}
