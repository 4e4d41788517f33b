// SPDX-License-Identifier: Apache-2.0
//! The listeners of `[[listener]]` sections. Every worker has its own.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use anyhow::{Context, ensure};
use posthaste_relay::sys::{self, SocketSettings};
use socket2::Socket;

use crate::upgrade::Kind;
use crate::upgrade::take::Sockets;
use posthaste_config::{Config, Fixed};

/// The explicit ones, and the fixed ones with their destinations.
pub(super) type Opened = (Vec<Socket>, Vec<(Socket, SocketAddr)>);

/// A predecessor's listeners, by worker.
#[derive(Debug, Default)]
pub(super) struct Inherited(HashMap<(Kind, SocketAddr), Vec<Vec<OwnedFd>>>);

impl Inherited {
    /// Takes from `sockets` the listeners that the configuration has too.
    pub(super) fn new(config: &Config, sockets: &mut Sockets) -> Self {
        let explicit = config
            .explicit
            .iter()
            .map(|address| (Kind::Explicit, *address));
        let fixed = config
            .fixed
            .iter()
            .map(|fixed| (Kind::Fixed, fixed.address));
        let mut share = |(kind, address)| {
            // The two nodes may have different numbers of workers, and connections are queued in
            // each socket.
            let shares = sockets.divide(kind, address, config.node.workers);
            ((kind, address), shares)
        };
        Self(explicit.chain(fixed).map(&mut share).collect())
    }

    /// The inherited listeners for a worker; if there are none, the one that `open` makes. Those of
    /// another protocol than `multipath` requests cannot be replaced without losing the handshakes
    /// that they have begun.
    fn take(
        &mut self,
        (kind, address): (Kind, SocketAddr),
        worker: u16,
        multipath: bool,
        open: impl FnOnce() -> io::Result<Socket>,
    ) -> anyhow::Result<Vec<Socket>> {
        let shares = self.0.get_mut(&(kind, address));
        let share = shares.and_then(|shares| shares.get_mut(usize::from(worker)));
        let share: Vec<OwnedFd> = share.map(std::mem::take).unwrap_or_default();
        // There is no predecessor, or this one has more workers.
        if share.is_empty() {
            let opened = open().with_context(|| format!("open the listener {address}"))?;
            return Ok(vec![opened]);
        }
        let can = sys::supports_multipath().is_ok();
        let differs = |socket: &OwnedFd| match sys::is_multipath(socket) {
            true => !multipath,
            false => multipath && can,
        };
        ensure!(
            !share.iter().any(differs),
            "listener {address}: multipath changed: the running node and its successor need the same; restart the \
             node instead"
        );
        Ok(share.into_iter().map(Socket::from).collect())
    }
}

/// Opens the explicit listeners, and the fixed ones with their destinations, for a worker, or
/// continues with those of a predecessor. `home` is the CPU that the worker is pinned to.
pub(super) fn open(
    config: &Config,
    settings: SocketSettings,
    (worker, home): (u16, Option<usize>),
    inherited: &mut Inherited,
) -> anyhow::Result<Opened> {
    let (mut explicit, mut fixed) = Opened::default();
    for address in &config.explicit {
        let multipath = config.multipath_listeners.contains(address);
        let open = || match multipath {
            true => open_addressed(*address, settings, sys::explicit_listener),
            false => sys::explicit_listener(*address, settings),
        };
        let kind = (Kind::Explicit, *address);
        explicit.extend(inherited.take(kind, worker, multipath, open)?);
    }
    for each in &config.fixed {
        check(each, config)?;
        let multipath = config.multipath_listeners.contains(&each.address);
        let open = || match multipath {
            true => open_addressed(each.address, settings, sys::fixed_listener),
            false => sys::fixed_listener(each.address, settings),
        };
        let kind = (Kind::Fixed, each.address);
        let listeners = inherited.take(kind, worker, multipath, open)?;
        fixed.extend(
            listeners
                .into_iter()
                .map(|listener| (listener, each.destination)),
        );
    }
    if let Some(home) = home {
        for listener in explicit
            .iter()
            .chain(fixed.iter().map(|(listener, _)| listener))
        {
            // Best effort: without SO_INCOMING_CPU the kernel picks a worker by a hash of the flow.
            let _ = sys::prefer_cpu(listener, home);
        }
    }
    Ok((explicit, fixed))
}

/// Opens a listener for clients of Multipath TCP and of TCP; by `otherwise`, for those of TCP alone,
/// where this host has no Multipath TCP.
fn open_addressed(
    address: SocketAddr,
    settings: SocketSettings,
    otherwise: fn(SocketAddr, SocketSettings) -> io::Result<Socket>,
) -> io::Result<Socket> {
    match sys::supports_multipath() {
        Ok(()) => sys::addressed_multipath_listener(address, settings),
        Err(_) => otherwise(address, settings),
    }
}

/// Refuses a destination at which this node listens: each connection would lead back to the
/// listener. The configuration check has found the cases that need no knowledge of the host.
fn check(fixed: &Fixed, config: &Config) -> anyhow::Result<()> {
    let destination = fixed.destination;
    let own = config.fixed.iter().map(|fixed| fixed.address);
    let mut everywhere =
        own.filter(|address| address.ip().is_unspecified() && address.port() == destination.port());
    // Only wildcard listeners need the host's addresses: a destination equal to a concrete listener
    // is refused when the file is read.
    ensure!(
        everywhere.next().is_none() || !sys::is_own_address(destination.ip()),
        "listener.destination = \"{destination}\": this node listens there itself"
    );
    Ok(())
}
