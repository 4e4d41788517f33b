// SPDX-License-Identifier: Apache-2.0
//! Opening the upstream side of a flow.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use posthaste_wire::hop::Icmp;
use socket2::Socket;

use crate::flow::Flow;
use crate::intercept::Path;
use crate::outcome::Outcome;
use crate::policy::{Rule, SourceAddress};
use crate::sys;

/// How much of the client's address an upstream connection kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kept {
    AddressAndPort,
    Address,
    Nothing,
}

/// What an upstream connection is to be like.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted<'a> {
    pub(super) flow: Flow,
    pub(super) rule: &'a Rule,
    /// `SO_MARK`.
    pub(super) mark: u32,
    /// The client's segment size, which the hop is kept compatible with.
    pub(super) mss: Option<u16>,
    /// The TTL or hop limit of what it sends; `None` for the host's own.
    pub(super) hop_limit: Option<u8>,
    /// Keep what ICMP errors say, to pass them on.
    pub(super) strict: bool,
    /// The flow was asked for by whoever it is carried for: answers to the
    /// client's address may not come back here.
    pub(super) requested: bool,
    /// The way on that it has to take, and no other.
    pub(super) path: Option<Path>,
    /// The source address that it has instead of the client's or the node's own.
    pub(super) translated: Option<IpAddr>,
    /// The client is validated: nobody has to know the socket's address before
    /// its SYN leaves.
    pub(super) is_validated: bool,
}

impl Wanted<'_> {
    fn socket(&self) -> io::Result<Socket> {
        let ipv6 = !self.flow.is_ipv4();
        let socket = sys::upstream_socket(ipv6, self.mark)?;
        if let Some(path) = self.path {
            sys::bind_to_interface(&socket, path.ifindex)?;
        }
        if let Some(mss) = self.least_mss() {
            // A segment size the kernel will not take is no reason to fail.
            let _ = socket.set_tcp_mss(mss.into());
        }
        if let Some(hops) = self.hop_limit {
            sys::set_hop_limit(&socket, ipv6, hops)?;
        }
        if self.strict {
            sys::keep_icmp_errors(&socket, ipv6, true)?;
        }
        // The connection works without, so let it.
        let _ = sys::set_quick_ack(&socket, false);
        let _ = sys::apply_at_birth(&socket, &self.rule.upstream);
        Ok(socket)
    }

    fn least_mss(&self) -> Option<u16> {
        let observed = self.path.map(|path| path.mss).filter(|mss| *mss > 0);
        self.mss.into_iter().chain(observed).min()
    }

    fn own_address(&self, server: SocketAddr) -> io::Result<IpAddr> {
        self.translated
            .map_or_else(|| sys::local_address_toward(server), Ok)
    }

    /// Binds and returns the flow as the socket will see it.
    fn bind(&self, socket: &Socket, keep: Kept) -> io::Result<(Flow, Kept)> {
        let (client, server) = (self.flow.client(), self.flow.server());
        if keep == Kept::Nothing && self.is_validated && self.translated.is_none() {
            return Ok((self.flow, keep));
        }
        let source = match keep {
            Kept::AddressAndPort => client,
            Kept::Address => SocketAddr::new(client.ip(), 0),
            Kept::Nothing => SocketAddr::new(self.own_address(server)?, 0),
        };
        socket.bind(&source.into())?;
        let bound = if source.port() == 0 {
            bound_address(socket, source.ip())?
        } else {
            source
        };
        Ok((Flow::new(bound, server), keep))
    }
}

/// An upstream socket that is bound and ready to connect.
#[derive(Debug)]
pub(super) struct Hop {
    pub(super) socket: Socket,
    /// The flow as the upstream socket sees it.
    pub(super) flow: Flow,
    pub(super) kept: Kept,
}

impl Hop {
    /// A socket as `wanted`, bound to as much of the client's address as
    /// `keep` says and is free.
    pub(super) fn prepare(wanted: &Wanted<'_>, keep: Kept) -> io::Result<Self> {
        let keep = match wanted.rule.source_address {
            SourceAddress::Auto if wanted.requested => Kept::Nothing,
            SourceAddress::Auto | SourceAddress::Client => keep,
            SourceAddress::Node => Kept::Nothing,
        };
        let socket = wanted.socket()?;
        let mut result = wanted.bind(&socket, keep);
        for less in [Kept::Address, Kept::Nothing] {
            if less > keep && result.as_ref().is_err_and(cannot_bind) {
                result = wanted.bind(&socket, less);
            }
        }
        let (flow, kept) = result?;
        Ok(Self { socket, flow, kept })
    }

    /// Sends the SYN.
    pub(super) fn connect(self) -> io::Result<OwnedFd> {
        match self.socket.connect(&self.flow.server().into()) {
            Ok(()) => Ok(self.socket.into()),
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => Ok(self.socket.into()),
            Err(error) => Err(error),
        }
    }
}

fn bound_address(socket: &Socket, ip: IpAddr) -> io::Result<SocketAddr> {
    let address = socket.local_addr()?.as_socket();
    Ok(SocketAddr::new(
        ip,
        address.map_or(0, |address| address.port()),
    ))
}

/// Whether a socket may be bound to another source address: this one is taken, or its
/// port is privileged.
fn cannot_bind(error: &io::Error) -> bool {
    is_taken(error) || error.raw_os_error() == Some(libc::EACCES)
}

/// Whether another source address may succeed where this one failed.
pub(super) fn is_taken(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EADDRINUSE | libc::EADDRNOTAVAIL)
    )
}

/// What a failed connection attempt is called.
pub(super) fn connect_outcome(error: &io::Error) -> Outcome {
    match error.raw_os_error() {
        Some(libc::ECONNREFUSED | libc::ECONNRESET) => Outcome::UpstreamRefused,
        Some(libc::ETIMEDOUT) => Outcome::ConnectTimeout,
        Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS) => Outcome::Internal,
        _ => Outcome::UpstreamUnreachable,
    }
}

/// What a router would say of `error`, in words of ICMP or of ICMPv6: of a route
/// that refuses, or of a neighbour that does not answer.
pub(super) fn no_route(error: &io::Error, ipv6: bool, neighbour: bool) -> Option<Icmp> {
    let (kind, code) = match (error.raw_os_error()?, ipv6) {
        (libc::ENETUNREACH, false) => (3, 0),
        (libc::EHOSTUNREACH, false) => (3, 1),
        (libc::EACCES, false) => (3, 13),
        (libc::EACCES, true) => (1, 1),
        (libc::EHOSTUNREACH, true) if neighbour => (1, 3),
        // What Linux says of every route that leads nowhere.
        (libc::ENETUNREACH | libc::EHOSTUNREACH, true) => (1, 0),
        _ => return None,
    };
    Some(Icmp {
        kind,
        code,
        offender: None,
    })
}

/// The error a connecting socket ended with, if it did.
pub(super) fn connect_error(fd: &OwnedFd) -> Option<io::Error> {
    socket2::SockRef::from(fd).take_error().unwrap_or_else(Some)
}
