// SPDX-License-Identifier: Apache-2.0
//! The check whether a node could listen at its addresses, by trying, unless a node runs.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::path::Path;

use nix::unistd::{AccessFlags, access};
use socket2::{Domain, Socket, Type};

use super::Verdict;
use super::checks::{fail, ok, or_ok, warn};
use super::host::{Host, Presence};
use crate::reach;
use posthaste_config::Config;

/// An address where a node could not listen, and why.
#[derive(Clone, Debug)]
pub(super) struct Closed {
    /// The key of the configuration, with its value.
    pub(super) key: String,
    /// Zero for the admin socket.
    pub(super) port: u16,
    pub(super) why: ErrorKind,
    /// The error text.
    pub(super) words: String,
}

/// Binds every address of the configuration and releases it at once.
pub(super) fn look(config: &Config) -> Vec<Closed> {
    let fixed = config.fixed.iter().map(|fixed| fixed.address);
    let listeners = config.explicit.iter().copied().chain(fixed);
    let listeners = listeners.map(|address| ("listener.address", address, true));
    let metrics = config.metrics.into_iter();
    // One thread serves it, so no other socket may share the address.
    let metrics = metrics.map(|address| ("metrics.listen", address, false));
    let closed = metrics
        .chain(listeners)
        .filter_map(|(key, address, is_shared)| {
            let error = bind(address, is_shared).err()?;
            Some(Closed {
                key: format!("{key} = \"{address}\""),
                port: address.port(),
                why: error.kind(),
                words: error.to_string(),
            })
        });
    closed.chain(admin(&config.admin_socket)).collect()
}

/// Binds as a node does: each worker has its own socket for a listener.
fn bind(address: SocketAddr, is_shared: bool) -> io::Result<()> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    if is_shared {
        socket.set_reuse_port(true)?;
        if address.is_ipv6() {
            socket.set_only_v6(true)?;
        }
    }
    socket.bind(&address.into())
}

/// Whether the admin socket can be created: in its directory, or in the nearest existing parent.
fn admin(path: &Path) -> Option<Closed> {
    let above = path.ancestors().skip(1).find(|above| above.exists())?;
    let error = access(above, AccessFlags::W_OK | AccessFlags::X_OK).err()?;
    Some(Closed {
        key: format!("admin.socket = {path:?}: {}", above.display()),
        port: 0,
        why: io::Error::from(error).kind(),
        words: error.desc().into(),
    })
}

/// The addresses where a node could not listen.
pub(super) fn listening(host: &Host, config: &Config) -> Vec<Verdict> {
    if host.node != Presence::None {
        return ok("a node that runs, or may run, has its addresses: none was tried");
    }
    let mut findings: Vec<Verdict> = host.closed.iter().flat_map(verdicts).collect();
    if let Some(why) = reach::obstacle(config) {
        let (what, fix) = why.rsplit_once(": ").unwrap_or((&why, ""));
        findings.extend(warn(what, fix));
    }
    or_ok(findings, "a node could listen wherever it is to")
}

fn verdicts(closed: &Closed) -> Vec<Verdict> {
    let Closed { key, port, .. } = closed;
    let (what, fix) = match (closed.why, port) {
        (_, 0) => (
            format!("{key}: this process may not make files there ({})", closed.words),
            "run as root, choose another admin.socket, or have the systemd unit make the directory (RuntimeDirectory=)".into(),
        ),
        (ErrorKind::AddrInUse, _) => (
            format!("{key}: another program listens there"),
            format!("ss -tlnp 'sport = :{port}' shows which; stop it, or choose another address"),
        ),
        (ErrorKind::AddrNotAvailable, _) => (
            format!("{key}: this host has no such address"),
            "ip address shows those there are; choose one of them".into(),
        ),
        (ErrorKind::PermissionDenied, _) => (
            format!("{key}: this process may not listen there ({})", closed.words),
            "grant CAP_NET_BIND_SERVICE, as the systemd unit does, or choose a port from 1024 on".into(),
        ),
        _ => (
            format!("{key}: {}", closed.words),
            "choose another address".into(),
        ),
    };
    fail(what, fix)
}
