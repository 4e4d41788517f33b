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

/// The properties of an upstream connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted<'a> {
    pub(super) flow: Flow,
    pub(super) rule: &'a Rule,
    /// `SO_MARK`.
    pub(super) mark: u32,
    /// The client's MSS, which bounds that of the upstream side.
    pub(super) mss: Option<u16>,
    /// The TTL or hop limit of its packets; `None` for the host's default.
    pub(super) hop_limit: Option<u8>,
    /// Whether to keep ICMP errors, to pass them on.
    pub(super) strict: bool,
    /// Whether the flow was requested from this node: answers to the client's address may not
    /// return through it.
    pub(super) requested: bool,
    /// The path it must take.
    pub(super) path: Option<Path>,
    /// The source address it must use instead of the client's or the node's own.
    pub(super) translated: Option<IpAddr>,
    /// Whether the client is validated: then the socket's address is not needed before its SYN
    /// leaves.
    pub(super) is_validated: bool,
}

impl Wanted<'_> {
    fn socket(&self) -> io::Result<Socket> {
        let ipv6 = !self.flow.is_ipv4();
        // A host without Multipath TCP has no such socket.
        let multipath = self.rule.upstream_multipath;
        let multipath = multipath.then(|| sys::multipath_upstream_socket(ipv6, self.mark));
        let (socket, is_multipath) = match multipath {
            Some(Ok(socket)) => (socket, true),
            _ => (sys::upstream_socket(ipv6, self.mark)?, false),
        };
        // The observation is evidence for this interface only.
        if let Some(path) = self.path {
            sys::bind_to_interface(&socket, path.ifindex)?;
        }
        if let Some(mss) = self.least_mss() {
            // Best effort: the kernel may reject the value.
            let _ = socket.set_tcp_mss(mss.into());
        }
        // The server gets the value that it would get without a node.
        if let Some(hops) = self.hop_limit {
            let set = sys::set_hop_limit(&socket, ipv6, hops);
            // The kernel has neither option for Multipath TCP: the host's hop limit applies, and
            // the client learns a refusal without the router that sent it.
            set.or_else(|error| if is_multipath { Ok(()) } else { Err(error) })?;
        }
        if self.strict && !is_multipath {
            sys::keep_icmp_errors(&socket, ipv6, true)?;
        }
        // Best effort: the connection works without these settings.
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

    /// Binds the socket and returns the flow as the socket has it.
    fn bind(&self, socket: &Socket, keep: Kept) -> io::Result<(Flow, Kept)> {
        let (client, server) = (self.flow.client(), self.flow.server());
        // `connect` picks a port that is free for this destination; `bind` needs one that is free
        // for all, and a busy node would run out of those.
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
    /// The flow as the upstream socket has it.
    pub(super) flow: Flow,
    pub(super) kept: Kept,
}

impl Hop {
    /// A socket as `wanted`, bound to as much of the client's address as `keep` allows and is free.
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

/// Whether binding to another source address may succeed: this one is taken, or its port is
/// privileged.
fn cannot_bind(error: &io::Error) -> bool {
    is_taken(error) || error.raw_os_error() == Some(libc::EACCES)
}

/// Whether another source address may succeed after this error.
pub(super) fn is_taken(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EADDRINUSE | libc::EADDRNOTAVAIL)
    )
}

/// The outcome for a failed connection attempt.
pub(super) fn connect_outcome(error: &io::Error) -> Outcome {
    match error.raw_os_error() {
        // `ECONNRESET`: the server reset it between its SYN-ACK and this look at the error.
        Some(libc::ECONNREFUSED | libc::ECONNRESET) => Outcome::UpstreamRefused,
        Some(libc::ETIMEDOUT) => Outcome::ConnectTimeout,
        Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS) => Outcome::Internal,
        _ => Outcome::UpstreamUnreachable,
    }
}

/// The ICMP or ICMPv6 type and code that a router would send for `error`: a route that rejects, or
/// a neighbour that does not answer.
pub(super) fn no_route(error: &io::Error, ipv6: bool, neighbour: bool) -> Option<Icmp> {
    // Unreachable network, host and prohibited (RFC 792, RFC 1812 §5.2.7.1); for IPv6 prohibited,
    // address and no route (RFC 4443 §3.1).
    let (kind, code) = match (error.raw_os_error()?, ipv6) {
        (libc::ENETUNREACH, false) => (3, 0),
        (libc::EHOSTUNREACH, false) => (3, 1),
        (libc::EACCES, false) => (3, 13),
        (libc::EACCES, true) => (1, 1),
        (libc::EHOSTUNREACH, true) if neighbour => (1, 3),
        // Linux returns these for every route that leads nowhere.
        (libc::ENETUNREACH | libc::EHOSTUNREACH, true) => (1, 0),
        _ => return None,
    };
    Some(Icmp {
        kind,
        code,
        offender: None,
    })
}

/// The error of a connecting socket, if it failed.
pub(super) fn connect_error(fd: &OwnedFd) -> Option<io::Error> {
    socket2::SockRef::from(fd).take_error().unwrap_or_else(Some)
}
