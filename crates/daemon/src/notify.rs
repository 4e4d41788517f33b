// SPDX-License-Identifier: Apache-2.0
//! Reports the state of the process to systemd (`Type=notify`).
//!
//! Outside systemd every call does nothing. Failures are ignored: the service manager has its own
//! timeouts. A manager that does not read holds the caller up for no longer than [`SEND_TIME_MAX`].

use std::fmt::Write;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use sd_notify::NotifyState;

/// Where the manager reads: a path, or after `@` an abstract name (sd_notify(3)).
const SOCKET: &str = "NOTIFY_SOCKET";
/// How long to wait for room in the manager's queue, which has ten places for each socket by default.
const SEND_TIME_MAX: Duration = Duration::from_secs(5);

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
    std::env::var_os(SOCKET).is_some()
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

/// Every worker's loop runs. Where the manager has not read the last ones, it needs no further one.
pub fn alive() {
    let _ = manager().and_then(|manager| {
        manager.set_nonblocking(true)?;
        deliver(&manager, &[NotifyState::Watchdog])
    });
}

fn send(state: &[NotifyState<'_>]) {
    let _ = manager().and_then(|manager| {
        manager.set_write_timeout(Some(SEND_TIME_MAX))?;
        deliver(&manager, state)
    });
}

/// The manager's socket, if there is one.
fn manager() -> io::Result<UnixDatagram> {
    let name = std::env::var_os(SOCKET).ok_or(io::ErrorKind::NotFound)?;
    let address = match name.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(&name)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.connect_addr(&address)?;
    Ok(socket)
}

fn deliver(manager: &UnixDatagram, state: &[NotifyState<'_>]) -> io::Result<()> {
    let mut message = String::new();
    for one in state {
        writeln!(message, "{one}").map_err(io::Error::other)?;
    }
    manager.send(message.as_bytes()).map(drop)
}
